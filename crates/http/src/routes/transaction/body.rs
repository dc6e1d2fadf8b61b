//! The body of a transaction, read and checked.

use std::borrow::Cow;
use std::fmt;

use queen_broker::api::{PositionSet, PushItem, Subscribe, TransactionAck};
use queen_record::ids::Offset;
use serde::de::{Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use super::Slot;
use crate::error::ApiError;
use crate::options::SubscribeDefault;
use crate::read::{self, Fields, Leading, List, Object, Raw, Text, skip};
use crate::routes::push::PARTITION_DEFAULT;
use crate::routes::shared::ITEMS_MAX;
use crate::routes::{ack, push, shared};

const POSITIONS_MAX: usize = 16_384;

/// A transaction as its request gives it.
#[derive(Debug, Default)]
pub(crate) struct Bundle<'a> {
    operations: Vec<Operation<'a>>,
    required: Leases<'a>,
    positions: Vec<Position<'a>>,
}

/// A checked transaction.
#[derive(Debug)]
pub(crate) struct Shape<'a> {
    pub(crate) acks: Vec<TransactionAck>,
    /// The transactionId of each.
    pub(crate) ack_ids: Vec<&'a str>,
    pub(crate) items: Vec<PushItem<'a>>,
    pub(crate) positions: Vec<PositionSet>,
    /// What each result of `operations` belongs to.
    pub(crate) order: Vec<Slot>,
}

impl<'a> Bundle<'a> {
    /// Reads a body.
    ///
    /// # Errors
    /// 400 for a body that is no JSON object, an operation that there is not, or a field of another shape; 413 for too many
    /// parts.
    pub(crate) fn read(body: &'a [u8]) -> Result<Self, ApiError> {
        let top = read::body::<Object<Top<'a>>>(body)?.0;
        let operations = array::<Leading<Operation<'a>>>("operations", top.operations)?;
        let is_too_long = |operation: &Operation<'_>| {
            operation.items.as_ref().is_some_and(|items| items.is_too_long)
        };
        let parts = operations.items.iter().map(|one| one.ack_count() + one.item_count());
        if operations.is_too_long
            || operations.items.iter().any(is_too_long)
            || parts.sum::<usize>() > ITEMS_MAX
        {
            return Err(ApiError::too_many("acks and pushes", ITEMS_MAX));
        }
        let operations = operations.items;
        let required = array("requiredLeases", top.required_leases)?;
        let positions = array::<Leading<Position<'a>>>("positions", top.positions)?;
        for (name, rider) in [("kv", top.kv), ("timers", top.timers)] {
            if !array::<List<Raw<'_>, 1>>(name, rider)?.items.is_empty() {
                let text = format!("{name} operations are not served by this version");
                return Err(ApiError::bad_request(text));
            }
        }
        if positions.is_too_long {
            return Err(ApiError::bad_request(format!("at most {POSITIONS_MAX} positions")));
        }
        Ok(Self { operations, required, positions: positions.items })
    }

    /// The checked parts; an error rolls the transaction back.
    pub(crate) fn shape(&self) -> Result<Shape<'_>, String> {
        self.shape_of_head(false)
    }

    /// The same of a head; `others` says that the transaction has more parts than these.
    pub(crate) fn shape_of_head(&self, others: bool) -> Result<Shape<'_>, String> {
        let ack_count = self.operations.iter().map(Operation::ack_count).sum();
        let item_count = self.operations.iter().map(Operation::item_count).sum();
        let mut acks = Vec::with_capacity(ack_count);
        let mut ack_ids = Vec::with_capacity(ack_count);
        let mut items = Vec::with_capacity(item_count);
        let mut order = Vec::with_capacity(ack_count + item_count);
        let shared_lease = self.shared_lease();
        for operation in &self.operations {
            match operation.kind {
                Kind::Ack => {
                    let (id, mut ack) = operation.ack()?;
                    if ack.item.lease.is_none() {
                        ack.item.lease.clone_from(&shared_lease);
                    }
                    order.push(Slot::Ack(acks.len()));
                    acks.push(ack);
                    ack_ids.push(id);
                }
                Kind::Push => {
                    let before = items.len();
                    operation.put_items(&mut items)?;
                    order.extend((before..items.len()).map(Slot::Push));
                }
            }
        }
        let positions = self.positions.iter().map(Position::set).collect::<Result<Vec<_>, _>>()?;
        if order.is_empty() && positions.is_empty() && !others {
            return Err("the transaction has no parts".to_owned());
        }
        Ok(Shape { acks, ack_ids, items, positions, order })
    }

    /// The one lease id that the whole body names, if it is one.
    fn shared_lease(&self) -> Option<String> {
        if self.required.are_several {
            return None;
        }
        let required = self.required.first.iter().map(|lease| &*lease.0);
        let own = self.operations.iter().filter_map(Operation::lease);
        let mut named = required.chain(own).filter(|lease| !lease.is_empty());
        let first = named.next()?;
        named.all(|lease| lease == first).then(|| first.to_owned())
    }
}

/// Of a list of lease ids, whether it names one or several; no more of it matters.
#[derive(Debug, Default)]
struct Leases<'a> {
    first: Option<Text<'a>>,
    are_several: bool,
}

impl<'de> Deserialize<'de> for Leases<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(LeasesVisitor)
    }
}

struct LeasesVisitor;

impl<'de> Visitor<'de> for LeasesVisitor {
    type Value = Leases<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of lease ids")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut array: A) -> Result<Self::Value, A::Error> {
        let mut leases = Leases::default();
        while let Some(lease) = array.next_element::<Text<'de>>()? {
            match &leases.first {
                _ if lease.0.is_empty() => {}
                None => leases.first = Some(lease),
                Some(first) => leases.are_several |= first.0 != lease.0,
            }
        }
        Ok(leases)
    }
}

/// A top-level field that is an array; absent, it is an empty one.
fn array<'de, T: Deserialize<'de>>(name: &str, raw: Option<&'de RawValue>) -> Result<T, ApiError> {
    let text = match raw.map(RawValue::get) {
        None | Some("null") => "[]",
        Some(text) => text,
    };
    if !text.starts_with('[') {
        return Err(ApiError::bad_request(format!("{name} must be an array")));
    }
    serde_json::from_str(text).map_err(|error| ApiError::bad_request(format!("{name}: {error}")))
}

/// The fields of the body, each still unread.
#[derive(Debug, Default)]
struct Top<'a> {
    operations: Option<&'a RawValue>,
    required_leases: Option<&'a RawValue>,
    positions: Option<&'a RawValue>,
    kv: Option<&'a RawValue>,
    timers: Option<&'a RawValue>,
}

impl<'de> Fields<'de> for Top<'de> {
    const NAME: &'static str = "an object with \"operations\"";

    fn field<A: MapAccess<'de>>(&mut self, name: &str, map: &mut A) -> Result<(), A::Error> {
        let slot = match name {
            "operations" => &mut self.operations,
            "requiredLeases" => &mut self.required_leases,
            "positions" => &mut self.positions,
            "kv" => &mut self.kv,
            "timers" => &mut self.timers,
            _ => return skip(map),
        };
        *slot = Some(map.next_value()?);
        Ok(())
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Kind {
    #[default]
    Ack,
    Push,
}

#[derive(Debug, Default)]
struct Operation<'a> {
    kind: Kind,
    has_kind: bool,
    transaction_id: Option<Text<'a>>,
    group: Option<Text<'a>>,
    lease: Option<Text<'a>>,
    partition_id: Option<Raw<'a>>,
    status: Option<Text<'a>>,
    error: Option<Raw<'a>>,
    items: Option<Leading<Item<'a>>>,
    /// On the heap, so that the other operations are small.
    inline: Option<Box<push::Item<'a>>>,
}

impl<'de> Fields<'de> for Operation<'de> {
    const NAME: &'static str = "an operation of type \"ack\" or \"push\"";
    const LIST_MAX: usize = ITEMS_MAX;

    fn field<A: MapAccess<'de>>(&mut self, name: &str, map: &mut A) -> Result<(), A::Error> {
        match name {
            "type" => {
                let text = map.next_value::<Text<'de>>()?;
                self.kind = match &*text.0 {
                    "ack" => Kind::Ack,
                    "push" => Kind::Push,
                    other => {
                        return Err(Error::custom(format_args!(
                            "an operation is \"ack\" or \"push\", not {other:?}"
                        )));
                    }
                };
                self.has_kind = true;
            }
            "transactionId" => self.transaction_id = map.next_value()?,
            "consumerGroup" => self.group = map.next_value()?,
            "leaseId" => self.lease = map.next_value()?,
            "partitionId" => self.partition_id = map.next_value()?,
            "status" => self.status = map.next_value()?,
            "error" => self.error = map.next_value()?,
            "items" => self.items = map.next_value()?,
            _ => self.inline.get_or_insert_default().field(name, map)?,
        }
        Ok(())
    }

    fn is_whole(&self) -> bool {
        match (self.kind, &self.items) {
            (Kind::Ack, _) => self.transaction_id.is_some(),
            (Kind::Push, Some(items)) => items.items.last().is_none_or(Item::is_whole),
            (Kind::Push, None) => self.inline.as_ref().is_some_and(|item| item.is_whole()),
        }
    }

    fn check<E: Error>(&self) -> Result<(), E> {
        push::check_id(self.transaction_id.as_ref())?;
        if self.has_kind { Ok(()) } else { Err(E::missing_field("type")) }
    }
}

/// A message inside an operation; what it lacks rolls the transaction back instead of refusing its body.
#[derive(Debug, Default)]
struct Item<'a>(push::Item<'a>);

impl<'de> Fields<'de> for Item<'de> {
    const NAME: &'static str = push::Item::NAME;
    const LIST_MAX: usize = ITEMS_MAX;

    fn field<A: MapAccess<'de>>(&mut self, name: &str, map: &mut A) -> Result<(), A::Error> {
        self.0.field(name, map)
    }

    fn is_whole(&self) -> bool {
        self.0.is_whole()
    }

    fn check<E: Error>(&self) -> Result<(), E> {
        push::check_id(self.0.transaction_id.as_ref())
    }
}

impl Operation<'_> {
    fn lease(&self) -> Option<&str> {
        self.lease.as_ref().map(|lease| &*lease.0)
    }

    fn ack_count(&self) -> usize {
        usize::from(self.kind == Kind::Ack)
    }

    fn item_count(&self) -> usize {
        match (self.kind, &self.items) {
            (Kind::Ack, _) => 0,
            (Kind::Push, Some(items)) => items.items.len(),
            (Kind::Push, None) => 1,
        }
    }

    fn ack(&self) -> Result<(&str, TransactionAck), String> {
        let Some(id) = &self.transaction_id else {
            return Err("an ack has no transactionId".to_owned());
        };
        let item = ack::Item {
            transaction_id: Some(lent(id)),
            partition_id: self.partition_id,
            lease: self.lease.as_ref().map(lent),
            status: self.status.as_ref().map(lent),
            error: self.error,
        };
        let group = shared::group(self.group.as_ref().map(|group| &*group.0));
        Ok((&id.0, TransactionAck { group, item: item.into_item() }))
    }

    fn put_items<'t>(&'t self, to: &mut Vec<PushItem<'t>>) -> Result<(), String> {
        let missing = || "a push has no queue or no payload".to_owned();
        if let Some(items) = &self.items {
            for item in &items.items {
                to.push(item.0.of_transaction().ok_or_else(missing)?);
            }
            return Ok(());
        }
        let inline = self.inline.as_ref().and_then(|item| item.of_transaction());
        let mut item = inline.ok_or_else(missing)?;
        let own = self.transaction_id.as_ref().map(|id| &*id.0);
        item.transaction_id = own.filter(|id| !id.is_empty());
        to.push(item);
        Ok(())
    }
}

/// The same text, lent.
fn lent<'t>(text: &'t Text<'_>) -> Text<'t> {
    Text(Cow::Borrowed(&text.0))
}

#[derive(Debug, Default)]
struct Position<'a> {
    queue: Option<Text<'a>>,
    partition: Option<Text<'a>>,
    group: Option<Text<'a>>,
    offset: Option<Raw<'a>>,
    metadata: Option<Text<'a>>,
    mode: Option<Text<'a>>,
}

impl<'de> Fields<'de> for Position<'de> {
    const NAME: &'static str = "a position with \"queue\", \"consumerGroup\" and \"offset\"";
    const LIST_MAX: usize = POSITIONS_MAX;

    fn field<A: MapAccess<'de>>(&mut self, name: &str, map: &mut A) -> Result<(), A::Error> {
        match name {
            "queue" => self.queue = map.next_value()?,
            "partition" => self.partition = map.next_value()?,
            "consumerGroup" => self.group = map.next_value()?,
            "offset" => self.offset = Some(map.next_value()?),
            "metadata" => self.metadata = map.next_value()?,
            "subscriptionMode" => self.mode = map.next_value()?,
            _ => skip(map)?,
        }
        Ok(())
    }

    fn is_whole(&self) -> bool {
        push::filled(self.queue.as_ref()).is_some() && self.offset.is_some()
    }
}

impl Position<'_> {
    fn set(&self) -> Result<PositionSet, String> {
        use push::filled;

        let queue = filled(self.queue.as_ref()).ok_or("a position names no queue")?;
        let raw = self.offset.ok_or("a position has no offset; null forgets the group's place")?;
        let offset: Option<u64> = serde_json::from_str(raw.0)
            .map_err(|_| format!("offset {} is not a whole number from 0 or null", raw.0))?;
        let mode = filled(self.mode.as_ref()).map(SubscribeDefault::parse);
        Ok(PositionSet {
            queue: queue.to_owned(),
            partition: filled(self.partition.as_ref()).unwrap_or(PARTITION_DEFAULT).to_owned(),
            group: shared::group(filled(self.group.as_ref())),
            offset: offset.map(Offset),
            note: self.metadata.as_ref().map(|text| text.0.to_string()),
            subscribe: mode.map(|mode| match mode {
                SubscribeDefault::New => Subscribe::New,
                SubscribeDefault::All => Subscribe::All,
            }),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_kept_behind_what_rolls_back_anyway() {
        for (list, kept) in [
            (r#"{"type":"ack"}"#, 1),
            (r#"{"type":"push"}"#, 1),
            (r#"{"type":"push","items":[{},{},{}]}"#, 1),
            (r#"{"type":"push","items":[{"queue":"q"},{},{}]}"#, 1),
            (r#"{"type":"ack","transactionId":""}"#, 100),
            (r#"{"type":"push","items":[]}"#, 100),
            (r#"{"type":"push","items":[{"queue":"q","payload":1}]}"#, 100),
            (r#"{"type":"push","queue":"q","data":null}"#, 100),
        ] {
            let body = format!("{{\"operations\":[{}]}}", vec![list; 100].join(","));
            let bundle = Bundle::read(body.as_bytes()).unwrap();
            assert_eq!(bundle.operations.len(), kept, "{list}");
            let items = bundle.operations.iter().filter_map(|operation| operation.items.as_ref());
            assert!(items.map(|items| items.items.len()).max() <= Some(1), "{list}");
            assert_eq!(bundle.shape().is_err(), kept == 1 || list.contains("[]"), "{list}");
        }
        let positions = Bundle::read(br#"{"positions":[{"queue":"q"},{},{}]}"#).unwrap().positions;
        assert_eq!(positions.len(), 1);
        // What follows is JSON all the same.
        assert!(Bundle::read(br#"{"operations":[{"type":"ack"},{"type"}]}"#).is_err());
    }

    #[test]
    fn no_more_positions_are_kept_than_there_may_be() {
        let position = r#"{"queue":"q","offset":0}"#;
        let body =
            |count: usize| format!("{{\"positions\":[{}]}}", vec![position; count].join(","));
        let read = |count| Bundle::read(body(count).as_bytes()).map(|read| read.positions.len());
        assert_eq!(read(POSITIONS_MAX).ok(), Some(POSITIONS_MAX));
        assert!(read(POSITIONS_MAX + 1).is_err());
    }
}
