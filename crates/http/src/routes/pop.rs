//! `GET /api/v1/pop/queue/:queue`, `…/partition/:partition`, and `GET /api/v1/pop` by labels.

use std::time::Duration;

use queen_broker::api::{
    Api, BATCH_MAX, Chosen, Claim, FramedClaim, MESSAGE_JSON_MAX, PopAnswer, PopRequest, PopTarget,
    QUEUE_MODE, Subscribe, escaped_len,
};
use queen_broker::offload::offload;
use queen_record::ids::Uuid;

use crate::app::Call;
use crate::binary::framed_answer;
use crate::error::{self, Answer, ApiError};
use crate::json::Json;
use crate::options::SubscribeDefault;
use crate::query::{BadQuery, Query};
use crate::routes::shared::{self, wide};
use crate::time;

const PARTITIONS_MAX: i64 = 64;
/// Milliseconds.
const TIMEOUT_MAX: i64 = 60_000;
/// Bytes of a message in the answer, names and payload aside.
const MESSAGE_BYTES: usize = 330;

/// Takes messages; parked until there are some with `wait=true`.
pub(crate) async fn pop<A: Api>(call: &Call<'_, A>, target: PopTarget) -> Result<Answer, ApiError> {
    call.count(|stats| &stats.pop_requests, 1);
    let request = request(call, target).map_err(|error| ApiError::bad_pop(error.0))?;
    let queue = match &request.target {
        PopTarget::Queue(queue) | PopTarget::Partition { queue, .. } => queue.clone(),
        PopTarget::Labels { .. } => String::new(),
    };
    let (group, asked) = (request.group.clone(), request.conflation);
    call.some_room().await?;
    let answer = call.api()?.pop(request).await.map_err(ApiError::of_pop)?;
    let policy = Policy::of(asked, &answer);
    if !answer.records.is_empty() {
        let taken = |claim: &FramedClaim| claim.last.0 + 1 - claim.first.0;
        let messages: u64 = answer.records.iter().map(taken).sum();
        call.count(|stats| &stats.pop_messages, usize::try_from(messages).unwrap_or(usize::MAX));
        let mut own = Json::new();
        own.raw("{").field("frames").bool(true);
        own_keys(&mut own, &answer, policy).raw("}");
        let room = call.room_for_done(framed_len(&answer)).await;
        let mut framed = framed_answer(&queue, &group, &answer, &answer.records, own);
        framed.body_mut().set_room(room);
        return Ok(framed);
    }
    if answer.claims.is_empty() && policy == Policy::default() {
        return Ok(error::no_content());
    }
    let messages = answer.claims.iter().map(|claim| claim.messages.len()).sum();
    call.count(|stats| &stats.pop_messages, messages);
    let bytes = json_len(&queue, &group, &answer);
    let room = call.room_for_done(bytes).await;
    Ok(error::ok_in(room, offload(bytes, || render(&queue, &group, &answer, policy))))
}

/// Bytes of an answer at most.
fn json_len(queue: &str, group: &str, answer: &PopAnswer) -> u64 {
    let group_len = escaped_len(group);
    let claim = |claim: &Claim| {
        let fields = MESSAGE_JSON_MAX + escaped_len(&*claim.partition) + group_len;
        let texts: u64 = claim.messages.iter().map(shared::message_json_len).sum();
        wide(claim.messages.len()) * fields + texts
    };
    let first = answer.claims.first().map_or(0, |claim| escaped_len(&*claim.partition));
    let head = MESSAGE_JSON_MAX + escaped_len(queue) + group_len + first;
    head + answer.claims.iter().map(claim).sum::<u64>()
}

/// Bytes of the records of a framed answer.
fn framed_len(answer: &PopAnswer) -> u64 {
    let records = answer.records.iter().flat_map(|claim| &claim.records);
    records.map(|record| wide(record.payload.len()) + 32).sum()
}

/// What an answer says beside its messages.
fn own_keys<'j>(json: &'j mut Json, answer: &PopAnswer, policy: Policy) -> &'j mut Json {
    if policy.conflates {
        json.field("conflation").bool(true);
    }
    if policy.conflicts {
        json.field("conflationConflict").bool(true);
    }
    if let Some(Chosen { batch, partitions }) = answer.chosen {
        json.field("autopilot").raw("{").field("partitions").u64(partitions.into());
        json.field("batch").u64(batch.into()).raw("}");
    }
    json
}

/// Takes messages of every queue with the labels of the query.
pub(crate) async fn pop_labels<A: Api>(call: &Call<'_, A>) -> Result<Answer, ApiError> {
    let label = |name| {
        let text = call.query.filled(name).map_err(|error| ApiError::bad_pop(error.0))?;
        Ok::<_, ApiError>(text.map(std::borrow::Cow::into_owned))
    };
    let (namespace, task) = (label("namespace")?, label("task")?);
    if namespace.is_none() && task.is_none() {
        return Err(ApiError::bad_pop("namespace or task is required"));
    }
    pop(call, PopTarget::Labels { namespace, task }).await
}

/// What an answer says about delivering only the newest message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Policy {
    conflates: bool,
    /// The request named another policy than the stored one.
    conflicts: bool,
}

impl Policy {
    fn of(asked: Option<bool>, answer: &PopAnswer) -> Self {
        let conflates = answer.conflates;
        Self { conflates, conflicts: asked.is_some_and(|asked| asked != conflates) }
    }
}

fn request<A>(call: &Call<'_, A>, target: PopTarget) -> Result<PopRequest, BadQuery> {
    let query = &call.query;
    let clamped = |value: i64, max: i64| u32::try_from(value.clamp(1, max)).unwrap_or(u32::MAX);
    let batch = query.integer("batch")?.map(|value| clamped(value, i64::from(BATCH_MAX)));
    let partitions = query.integer("partitions")?.map(|value| clamped(value, PARTITIONS_MAX));
    let lease_seconds = query.integer("leaseSeconds")?.filter(|seconds| *seconds > 0);
    let commits = [query.boolean("commitOnDelivery")?, query.boolean("autoAck")?];
    let commit_on_delivery = commits.contains(&Some(true));
    let group = shared::group(query.text("consumerGroup")?.as_deref());
    let conflation = query.boolean("conflation")?;
    if conflation == Some(true) && group == QUEUE_MODE {
        return Err(BadQuery("conflation needs a consumerGroup".to_owned()));
    }
    if conflation == Some(true) && commit_on_delivery {
        return Err(BadQuery("conflation cannot be combined with commit at delivery".to_owned()));
    }
    let subscribe = subscribe(query, &group, call.options.subscribe_default)?;
    Ok(PopRequest {
        tenant: call.tenant,
        wait: query.boolean("wait")?.unwrap_or(false)
            && !matches!(target, PopTarget::Labels { .. }),
        autopilot: query.boolean("autopilot")?.unwrap_or(false),
        target,
        group,
        batch,
        partitions,
        timeout: timeout(query.integer("timeout")?, call.options.default_timeout)
            .saturating_sub(call.waited)
            .max(Duration::from_millis(1)),
        lease_seconds: lease_seconds.map(|seconds| i32::try_from(seconds).unwrap_or(i32::MAX)),
        commit_on_delivery,
        subscribe,
        conflation,
        frames: query.boolean("frames")?.unwrap_or(false),
    })
}

fn timeout(millis: Option<i64>, default: Duration) -> Duration {
    let millis = millis.unwrap_or_else(|| i64::try_from(default.as_millis()).unwrap_or(i64::MAX));
    Duration::from_millis(u64::try_from(millis.clamp(1, TIMEOUT_MAX)).unwrap_or(1))
}

/// Where a group that this pop registers starts: a time that parses, then `now`, then the mode.
fn subscribe(
    query: &Query<'_>,
    group: &str,
    default: SubscribeDefault,
) -> Result<Subscribe, BadQuery> {
    // Queue mode has no subscription and ignores both parameters.
    if group == QUEUE_MODE {
        return Ok(Subscribe::All);
    }
    if let Some(from) = query.filled("subscriptionFrom")? {
        if let Some(at) = time::parse(&from) {
            return Ok(Subscribe::At(at));
        }
        if from.eq_ignore_ascii_case("now") {
            return Ok(Subscribe::New);
        }
    }
    let mode = query.filled("subscriptionMode")?;
    let mode = mode.map_or(default, |mode| SubscribeDefault::parse(&mode));
    Ok(match mode {
        SubscribeDefault::New => Subscribe::New,
        SubscribeDefault::All => Subscribe::All,
    })
}

fn render(queue: &str, group: &str, answer: &PopAnswer, policy: Policy) -> Json {
    let mut json = Json::with_capacity(256 + answer.claims.iter().map(claim_bytes).sum::<usize>());
    json.raw("{").field("success").bool(true).field("queue").string(queue);
    if let Some(first) = answer.claims.first() {
        json.field("partition").string(&first.partition);
        partition_id(json.field("partitionId"), first);
    }
    lease(json.field("leaseId"), answer.lease.as_ref());
    json.field("consumerGroup").string(group).field("messages").raw("[");
    for claim in &answer.claims {
        render_claim(&mut json, claim, answer.lease.as_ref(), group);
    }
    json.raw("]").field("partitionsClaimed").u64(wide(answer.claims.len()));
    own_keys(&mut json, answer, policy);
    json.raw("}");
    json
}

fn render_claim(json: &mut Json, claim: &Claim, leased: Option<&Uuid>, group: &str) {
    // The same for every message of the claim: written once, copied for each.
    let mut common = Json::new();
    common.raw("\"partitionId\":");
    partition_id(&mut common, claim).field("partition").string(&claim.partition);
    lease(common.field("leaseId"), leased);
    common.field("consumerGroup").string(group);
    common.field("deliveryAttempt").u64(claim.attempt.into());
    for message in &claim.messages {
        json.next().raw("{").field("id").uuid(&message.id);
        json.field("transactionId").text(&message.transaction_id);
        json.field("traceId").option(message.trace_id.as_ref(), Json::uuid);
        json.field("data").verbatim(&message.data);
        json.field("producerSub").option(message.producer_sub.as_deref(), Json::text);
        json.field("createdAt").iso3(message.created);
        json.next().verbatim(common.as_slice());
        json.field("offset").u64(message.offset.0).raw("}");
    }
}

fn claim_bytes(claim: &Claim) -> usize {
    let data: usize = claim
        .messages
        .iter()
        .map(|message| message.data.len() + message.transaction_id.len())
        .sum();
    data + claim.messages.len() * (MESSAGE_BYTES + claim.partition.len())
}

/// A partition's number is a string of digits on the wire.
fn partition_id<'j>(json: &'j mut Json, claim: &Claim) -> &'j mut Json {
    json.raw("\"").u64(claim.partition_id.0).raw("\"")
}

fn lease<'j>(json: &'j mut Json, lease: Option<&Uuid>) -> &'j mut Json {
    match lease {
        Some(lease) => json.uuid(lease),
        None => json.raw("\"\""),
    }
}

#[cfg(test)]
mod tests {
    use queen_record::ids::Micros;

    use super::*;

    fn check(query: &str, expected: Subscribe) {
        let found = subscribe(&Query::new(Some(query)), "g", SubscribeDefault::New);
        assert_eq!(found, Ok(expected), "{query}");
    }

    #[test]
    fn a_time_goes_before_now_and_now_before_the_mode() {
        check("", Subscribe::New);
        check("subscriptionMode=all", Subscribe::All);
        check("subscriptionMode=New_Only", Subscribe::New);
        check("subscriptionMode=all&subscriptionFrom=NOW", Subscribe::New);
        check("subscriptionMode=all&subscriptionFrom=yesterday", Subscribe::All);
        check("subscriptionFrom=yesterday", Subscribe::New);
        check(
            "subscriptionMode=new&subscriptionFrom=1970-01-01T00:00:01.000002Z",
            Subscribe::At(Micros(1_000_002)),
        );
        let query = Query::new(Some("subscriptionFrom=now"));
        let queue_mode = subscribe(&query, QUEUE_MODE, SubscribeDefault::New);
        assert_eq!(queue_mode, Ok(Subscribe::All));
        let server_default = subscribe(&Query::new(None), "g", SubscribeDefault::All);
        assert_eq!(server_default, Ok(Subscribe::All));
    }

    #[test]
    fn timeouts_are_clamped() {
        let default = Duration::from_secs(30);
        assert_eq!(timeout(None, default), default);
        assert_eq!(timeout(Some(-1), default), Duration::from_millis(1));
        assert_eq!(timeout(Some(i64::MAX), default), Duration::from_mins(1));
    }
}
