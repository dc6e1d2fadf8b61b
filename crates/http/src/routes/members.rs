//! `/api/v1/system/raft/membership`: who belongs to the cluster, and changes of it.
//!
//! Both are the leader's business. A call is handed on to it like any other; only the question who the members are is
//! answered by the node that was asked when no leader can be, since that is when people ask.

use std::collections::BTreeSet;
use std::time::Duration;

use hyper::StatusCode;
use queen_broker::api::{Api, Member, Members, MembersChange, MembersError};
use queen_record::ids::Tenant;
use serde::de::MapAccess;

use crate::app::Call;
use crate::error::{self, Answer, ApiError};
use crate::json::Json;
use crate::query::Query;
use crate::read::{self, Fields, List, Object, Text, skip};
use crate::routes::Op;

/// Members of one call at most.
const IDS_MAX: usize = 64;
/// Bytes of a host's name at most.
const HOST_BYTES_MAX: usize = 255;
const CHANGE_DEFAULT: i64 = 30_000;
const CHANGE_MAX: i64 = 120_000;

/// What the node knows of its cluster.
pub(super) async fn view<A: Api>(call: &Call<'_, A>) -> Result<Answer, ApiError> {
    let members = known(call)?;
    let mut json = Json::new();
    json.raw("{").field("engine").string("raft");
    membership(json.field("membership"), &members);
    json.raw("}");
    Ok(error::ok_in(call.room(json.as_slice().len() as u64).await?, json))
}

/// The view, on a node that is a member of a cluster.
///
/// # Errors
/// 501 on a node alone, 503 while the node loads.
pub(super) fn known<A: Api>(call: &Call<'_, A>) -> Result<Members, ApiError> {
    call.api()?.members().ok_or_else(|| {
        let text = "this node is no member of a cluster (QUEEN_RAFT_REPLICATOR=openraft)";
        ApiError::not_ok(StatusCode::NOT_IMPLEMENTED, "unsupported", text)
    })
}

/// Adds a learner.
pub(super) async fn add<A: Api>(call: &Call<'_, A>, body: &[u8]) -> Result<Answer, ApiError> {
    let body: Body<'_> = read(body)?;
    let node = body.id.ok_or_else(|| bad("\"id\" is missing: the number of the node"))?;
    let raft = address("raft", body.raft)?;
    let http = address("http", body.http)?;
    change(call, MembersChange::AddLearner { node: number(node)?, raft, http }).await
}

/// Makes learners voters.
pub(super) async fn promote<A: Api>(call: &Call<'_, A>, body: &[u8]) -> Result<Answer, ApiError> {
    let body: Body<'_> = read(body)?;
    let mut nodes = numbers("ids", body.ids)?;
    if let Some(id) = body.id {
        nodes.insert(number(id)?);
    }
    if nodes.is_empty() {
        return Err(bad("nothing to promote: name the learners in \"ids\""));
    }
    let force = force(call, body.force)?;
    change(call, MembersChange::Promote { nodes, force }).await
}

/// Sets who votes.
pub(super) async fn set<A: Api>(call: &Call<'_, A>, body: &[u8]) -> Result<Answer, ApiError> {
    let body: Body<'_> = read(body)?;
    if body.voters.is_none() {
        return Err(bad("\"voters\" is missing: the numbers of all that are to vote"));
    }
    let nodes = numbers("voters", body.voters)?;
    let force = force(call, body.force)?;
    change(call, MembersChange::SetVoters { nodes, force }).await
}

/// Removes a member.
pub(super) async fn remove<A: Api>(call: &Call<'_, A>, id: &str) -> Result<Answer, ApiError> {
    let node = id.parse().map_err(|_| bad("the member's number in the path is none"))?;
    change(call, MembersChange::Remove { node: number(node)? }).await
}

async fn change<A: Api>(call: &Call<'_, A>, change: MembersChange) -> Result<Answer, ApiError> {
    let limit = limit(&call.query)?;
    call.api()?.change_members(change, limit).await.map_err(refused)?;
    let members = known(call)?;
    let mut json = Json::new();
    json.raw("{").field("ok").bool(true);
    membership(json.field("membership"), &members);
    json.raw("}");
    Ok(error::ok(json))
}

/// How long a change may take.
fn limit(query: &Query<'_>) -> Result<Duration, ApiError> {
    let millis = query.integer("timeoutMs")?.unwrap_or(CHANGE_DEFAULT).clamp(1, CHANGE_MAX);
    Ok(Duration::from_millis(millis.unsigned_abs()))
}

/// How long a call waits for a leader: a change no longer than it may take itself.
pub(crate) fn leader_wait(op: Op, query: Option<&str>, most: Duration) -> Duration {
    match op {
        // What cannot be read is refused when there is a leader, or not at all.
        op if is_change(op) => limit(&Query::new(query)).unwrap_or(most).min(most),
        _ => most,
    }
}

fn is_change(op: Op) -> bool {
    matches!(op, Op::AddLearner | Op::Promote | Op::SetVoters | Op::RemoveMember)
}

/// Whether the route is about the membership, for the whole cluster and whoever its tenants are.
pub(crate) fn is_about(op: Op) -> bool {
    op == Op::Membership || is_change(op)
}

/// Refuses a tenant what is the operator's.
pub(crate) fn check_tenant(op: Op, tenant: Tenant) -> Result<(), ApiError> {
    if is_about(op) && tenant != Tenant::DEFAULT {
        let text = "the membership is the operator's: ask without x-queen-tenant";
        return Err(ApiError::not_ok(StatusCode::FORBIDDEN, "forbidden", text));
    }
    Ok(())
}

fn refused(error: MembersError) -> ApiError {
    let MembersError { code, text } = error;
    let status = match code {
        "bad_request" => StatusCode::BAD_REQUEST,
        "unsupported" => StatusCode::NOT_IMPLEMENTED,
        "no_leader" => StatusCode::SERVICE_UNAVAILABLE,
        "timeout" => StatusCode::GATEWAY_TIMEOUT,
        "internal" => StatusCode::INTERNAL_SERVER_ERROR,
        _ => StatusCode::CONFLICT,
    };
    ApiError::not_ok(status, code, text)
}

fn bad(text: impl Into<String>) -> ApiError {
    ApiError::not_ok(StatusCode::BAD_REQUEST, "bad_request", text)
}

fn read(body: &[u8]) -> Result<Body<'_>, ApiError> {
    if read::is_empty(body) {
        return Ok(Body::default());
    }
    Ok(read::body::<Object<_>>(body)?.0)
}

fn force<A>(call: &Call<'_, A>, given: Option<bool>) -> Result<bool, ApiError> {
    Ok(call.query.boolean("force")?.or(given).unwrap_or(false))
}

fn number(id: u64) -> Result<u64, ApiError> {
    if id == 0 { Err(bad("members are numbered from 1")) } else { Ok(id) }
}

fn numbers(name: &str, ids: Option<List<u64, IDS_MAX>>) -> Result<BTreeSet<u64>, ApiError> {
    let Some(ids) = ids else { return Ok(BTreeSet::new()) };
    if ids.is_too_long {
        return Err(bad(format!("{name}: at most {IDS_MAX}")));
    }
    ids.items.into_iter().map(number).collect()
}

/// `host:port`, as it may stand in `QUEEN_RAFT_PEERS`.
fn address(name: &str, given: Option<Text<'_>>) -> Result<String, ApiError> {
    let given = given.map(|text| text.0.into_owned()).unwrap_or_default();
    let is_address = given.rsplit_once(':').is_some_and(|(host, port)| {
        let is_bare = !host.contains(':') || (host.starts_with('[') && host.ends_with(']'));
        let is_part = |byte: u8| byte.is_ascii_graphic() && !b"/=,@?#\"\\".contains(&byte);
        let is_host = (1..=HOST_BYTES_MAX).contains(&host.len()) && host.bytes().all(is_part);
        let is_port = port.bytes().all(|byte| byte.is_ascii_digit());
        is_bare && is_host && is_port && port.parse::<u16>().is_ok_and(|port| port > 0)
    });
    if is_address { Ok(given) } else { Err(bad(format!("\"{name}\" must be host:port"))) }
}

/// The body of any change.
#[derive(Debug, Default)]
struct Body<'a> {
    id: Option<u64>,
    raft: Option<Text<'a>>,
    http: Option<Text<'a>>,
    ids: Option<List<u64, IDS_MAX>>,
    voters: Option<List<u64, IDS_MAX>>,
    force: Option<bool>,
}

impl<'de> Fields<'de> for Body<'de> {
    const NAME: &'static str = "an object";

    fn field<A: MapAccess<'de>>(&mut self, name: &str, map: &mut A) -> Result<(), A::Error> {
        match name {
            "id" | "nodeId" => self.id = map.next_value()?,
            "raft" => self.raft = map.next_value()?,
            "http" => self.http = map.next_value()?,
            "ids" => self.ids = map.next_value()?,
            "voters" => self.voters = map.next_value()?,
            "force" => self.force = map.next_value()?,
            _ => skip(map)?,
        }
        Ok(())
    }
}

/// The membership as the leader knows it, or as a node without one remembers it.
fn membership(json: &mut Json, members: &Members) {
    let source = if members.leads { "leader" } else { "follower" };
    json.raw("{").field("nodeId").u64(members.node).field("source").string(source);
    json.field("viewAgeMs").option(view_age(members), Json::u64);
    json.field("leader").option(members.leader, Json::u64);
    json.field("term").u64(members.term);
    let joint = members.voters.len() > 1;
    let of = |voter| members.members.iter().filter(move |member| member.is_voter == voter);
    list(json.field("voters"), of(true).map(|member| member.node));
    list(json.field("learners"), of(false).map(|member| member.node));
    json.field("joint").option(joint.then_some(&members.voters), sets);
    json.field("membershipIndex").option(members.membership, Json::u64);
    json.field("membershipCommitted").bool(members.is_committed);
    let in_flight = members.is_changing || joint || !members.is_committed;
    json.field("changeInFlight").bool(in_flight);
    json.field("lastLogIndex").u64(members.last).field("committedIndex").u64(members.committed);
    json.field("liveWithinMs").u64(millis(members.live_within));
    json.field("promoteMaxLag").u64(members.promote_lag_max);
    json.field("members").raw("[");
    for member in &members.members {
        row(json, members, member);
    }
    json.raw("]}");
}

fn row(json: &mut Json, members: &Members, member: &Member) {
    let lag = member.matched.map(|matched| members.last.saturating_sub(matched));
    json.next().raw("{").field("nodeId").u64(member.node).field("voter").bool(member.is_voter);
    json.field("raft").string(&member.raft).field("http").string(&member.http);
    json.field("matched").option(member.matched, Json::u64);
    json.field("lag").option(lag, Json::u64);
    json.field("lastAckMs").option(member.answered.map(millis), Json::u64);
    json.field("live").bool(is_live(members, member)).raw("}");
}

/// Whether a member answered the leader lately.
pub(super) fn is_live(members: &Members, member: &Member) -> bool {
    members.leads && member.answered.is_some_and(|age| age <= members.live_within)
}

/// How old what the node knows is, in milliseconds; none before a leader called.
pub(super) fn view_age(members: &Members) -> Option<u64> {
    if members.leads { Some(0) } else { members.heard.map(millis) }
}

pub(super) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

pub(super) fn list(json: &mut Json, numbers: impl Iterator<Item = u64>) -> &mut Json {
    json.raw("[");
    for number in numbers {
        json.next().u64(number);
    }
    json.raw("]")
}

fn sets<'a>(json: &'a mut Json, sets: &Vec<Vec<u64>>) -> &'a mut Json {
    json.raw("[");
    for set in sets {
        list(json.next(), set.iter().copied());
    }
    json.raw("]")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_host_and_a_port() {
        let check = |text: &str, expected: bool| {
            let given = Text(text.into());
            assert_eq!(address("raft", Some(given)).is_ok(), expected, "{text}");
        };
        for good in ["h:1", "10.0.0.13:7400", "queen-2.queen:65535", "[::1]:7400"] {
            check(good, true);
        }
        for bad in ["", "h", "h:", ":7400", "h:0", "h:65536", "h:+1", "::1:7400", "a b:1", "a/b:1"]
        {
            check(bad, false);
        }
        for bad in ["1=h:1", "h:1/g:2", "h,g:1", "u@h:1", "h\n:1", "é:1", "h:1 "] {
            check(bad, false);
        }
        check(&format!("{}:1", "h".repeat(256)), false);
        assert!(address("raft", None).is_err());
    }
}
