//! `POST /api/v1/transaction`: acknowledgments, pushes and positions that happen together or not at all.

mod body;
pub(crate) mod framed;

use bytes::Bytes;
use hyper::StatusCode;
use queen_broker::api::{
    AckDone, Api, PushAnswer, PushBatch, PushItem, PushStatus, Rollback, RollbackReason,
    Transaction, TransactionAck, TransactionAnswer, escaped_len,
};
use queen_broker::offload::offload;
use queen_record::ids::Uuid;

use crate::app::Call;
use crate::binary::BinaryTransaction;
use crate::error::{self, Answer, ApiError};
use crate::json::Json;
use crate::routes::shared::wide;
pub(crate) use body::{Bundle, Shape};

/// Bytes of an answer's element, names aside.
const ELEMENT_BYTES: usize = 150;
/// Bytes of an answer's element at most, names aside.
const ELEMENT_JSON_MAX: u64 = 320;

/// Carries a transaction out.
pub(crate) async fn transaction<A: Api>(
    call: &Call<'_, A>,
    body: &Bytes,
) -> Result<Answer, ApiError> {
    call.count(|stats| &stats.transaction_requests, 1);
    if BinaryTransaction::is(body) {
        return framed::transaction(call, body).await;
    }
    let id = call_id();
    let bundle = offload(body.len(), || Bundle::read(body))?;
    let Shape { acks, ack_ids, mut items, positions, order } = match bundle.shape() {
        Ok(shape) => shape,
        Err(error) => {
            let rollback = Rollback { reason: RollbackReason::BadRequest, error };
            return Ok(rolled_back(&id, &rollback));
        }
    };
    for item in &mut items {
        item.producer_sub = call.sub.as_deref();
    }
    let position_count = positions.len();
    let named = items.iter().map(|item| (item.queue, item.transaction_id));
    let room = call.mirror_room(json_len(&acks, named, position_count)).await?;
    let pushes = PushBatch::Items(&items);
    let request = Transaction { tenant: call.tenant, acks, pushes, positions };
    let answer = call.api()?.transaction(request, call.deadline()).await?;
    Ok(match answer {
        TransactionAnswer::RolledBack(rollback) => rolled_back(&id, &rollback),
        TransactionAnswer::Committed { acks, pushes } => {
            call.count(|stats| &stats.push_messages, pushes.len());
            call.count(|stats| &stats.ack_messages, acks.len());
            let count = order.len() + position_count;
            let json = offload(count * ELEMENT_BYTES, || {
                let mut results = Results::new(&id, count);
                for slot in order {
                    match slot {
                        Slot::Ack(at) => results.ack(ack_ids.get(at).copied(), acks.get(at)),
                        Slot::Push(at) => results.push(items.get(at), pushes.get(at)),
                    }
                }
                for at in 0..position_count {
                    results.position(at);
                }
                results.finish()
            });
            error::ok_in(room, json)
        }
    })
}

/// Bytes of the answer at most, when it has an element for each part.
fn json_len<'a>(
    acks: &[TransactionAck],
    pushes: impl Iterator<Item = (&'a str, Option<&'a str>)>,
    positions: usize,
) -> u64 {
    let acks = acks.iter().map(|ack| ELEMENT_JSON_MAX + escaped_len(&ack.item.transaction_id));
    let pushes =
        pushes.map(|(queue, id)| ELEMENT_JSON_MAX + escaped_len(queue) + id.map_or(0, escaped_len));
    acks.sum::<u64>() + pushes.sum::<u64>() + ELEMENT_JSON_MAX * wide(positions)
}

/// What an element of `results` belongs to, by its place among its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slot {
    Ack(usize),
    Push(usize),
}

fn call_id() -> Uuid {
    Uuid(uuid::Uuid::now_v7().into_bytes())
}

fn rolled_back(id: &Uuid, rollback: &Rollback) -> Answer {
    let mut json = Json::new();
    json.raw("{").field("transactionId").uuid(id).field("success").bool(false);
    json.field("reason").string(rollback.reason.code());
    json.field("error").string(&rollback.error).field("results").raw("[]}");
    error::json(StatusCode::OK, json)
}

/// The answer of a committed transaction.
struct Results {
    json: Json,
    index: usize,
}

impl Results {
    fn new(id: &Uuid, count: usize) -> Self {
        let mut json = Json::with_capacity(128 + count * ELEMENT_BYTES);
        json.raw("{").field("transactionId").uuid(id).field("success").bool(true);
        json.field("results").raw("[");
        Self { json, index: 0 }
    }

    fn element(&mut self, kind: &str) -> &mut Json {
        self.json.next().raw("{").field("index").u64(wide(self.index));
        self.index += 1;
        self.json.field("type").string(kind).field("success").bool(true)
    }

    fn ack(&mut self, transaction_id: Option<&str>, done: Option<&AckDone>) {
        let dead = done.is_some_and(|done| done.dead_lettered);
        let json = self.element("ack").field("transactionId");
        json.option(transaction_id, Json::string);
        json.field("error").null().field("dlq").bool(dead).raw("}");
    }

    fn push(&mut self, item: Option<&PushItem<'_>>, answer: Option<&PushAnswer>) {
        let (Some(item), Some(answer)) = (item, answer) else { return };
        self.pushed(item.queue, item.transaction_id, answer);
    }

    fn pushed(&mut self, queue: &str, transaction_id: Option<&str>, answer: &PushAnswer) {
        let json = self.element("push").field("transactionId");
        match transaction_id {
            Some(id) => json.string(id),
            None => json.uuid(&answer.message_id),
        };
        json.field("messageId").uuid(&answer.message_id);
        json.field("queueName").string(queue);
        if matches!(answer.status, PushStatus::Duplicate(_)) {
            json.field("duplicate").bool(true);
        }
        json.raw("}");
    }

    fn position(&mut self, at: usize) {
        self.element("position").field("opIndex").u64(wide(at)).raw("}");
    }

    fn finish(mut self) -> Json {
        self.json.raw("]}");
        self.json
    }

    /// Ends with counts in place of the results that were left out.
    fn finish_counted(mut self, pushes: &[PushAnswer], acked: usize) -> Json {
        let is_duplicate = |answer: &&PushAnswer| matches!(answer.status, PushStatus::Duplicate(_));
        let duplicates = pushes.iter().filter(is_duplicate).count();
        self.json.raw("]").field("pushed").u64(wide(pushes.len() - duplicates));
        self.json.field("duplicate").u64(wide(duplicates)).field("acked").u64(wide(acked));
        self.json.raw("}");
        self.json
    }
}
