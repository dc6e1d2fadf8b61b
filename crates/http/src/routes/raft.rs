//! `/api/v1/raft/*`: what the node that is asked knows of itself and of the others, leader or not.

use std::collections::BTreeMap;
use std::thread::available_parallelism;
use std::time::Duration;

use queen_broker::api::{Api, Member, Members};
use serde_json::{Map, Value, json};
use tokio::task::JoinSet;

use crate::app::Call;
use crate::error::{self, Answer, ApiError};
use crate::json::Json;
use crate::routes::members::{is_live, known, list, millis, view_age};

/// How long a member has to tell of itself.
const ASK_MAX: Duration = Duration::from_millis(1500);
/// Bytes that it has for it.
const BLOCK_BYTES_MAX: usize = 64 << 10;
const STATUS: &str = "/api/v1/raft/status";

/// This node.
pub(super) fn status<A: Api>(call: &Call<'_, A>) -> Result<Answer, ApiError> {
    let members = known(call)?;
    let mut json = Json::new();
    json.raw("{");
    block(&mut json, call, &members);
    head(&mut json, &members);
    json.field("singleNode").bool(members.members.len() < 2).raw("}");
    Ok(error::ok(json))
}

/// Every member as it tells of itself, asked now and at once.
pub(super) async fn members<A: Api>(call: &Call<'_, A>) -> Result<Answer, ApiError> {
    let members = known(call)?;
    let mut blocks = BTreeMap::from([(members.node, own(call, &members))]);
    let mut asked = JoinSet::new();
    for member in members.members.iter().filter(|member| member.node != members.node) {
        let (forwarder, headers, member) =
            (call.forwarder.clone(), call.headers.clone(), member.clone());
        asked.spawn(async move {
            let told = forwarder.ask(&headers, &member.http, STATUS, BLOCK_BYTES_MAX);
            let told = match tokio::time::timeout(ASK_MAX, told).await {
                Ok(told) => told.and_then(|told| told_block(&told, &member)),
                Err(_) => Err(format!("{} has not answered within {ASK_MAX:?}", member.http)),
            };
            (member.node, told.unwrap_or_else(|error| unreachable(&member, &error)))
        });
    }
    while let Some(told) = asked.join_next().await {
        let (node, block) = told.map_err(|_| ApiError::panicked())?;
        blocks.insert(node, block);
    }
    add_progress(&mut blocks);
    let mut json = Json::new();
    json.raw("{");
    head(&mut json, &members);
    json.field("leaderId").option(members.leader, Json::u64).field("term").u64(members.term);
    json.field("members").raw("[");
    for block in blocks.into_values() {
        json.next().raw(&Value::Object(block).to_string());
    }
    json.raw("]}");
    Ok(error::ok_in(call.room(json.as_slice().len() as u64).await?, json))
}

/// Who answered the leader when, from memory.
pub(super) fn liveness<A: Api>(call: &Call<'_, A>) -> Result<Answer, ApiError> {
    let members = known(call)?;
    let mut json = Json::new();
    json.raw("{").field("engine").string("raft").field("nodeId").u64(members.node);
    json.field("leaderId").option(members.leader, Json::u64).field("term").u64(members.term);
    json.field("viewAgeMs").option(view_age(&members), Json::u64);
    // Only the leader observes the others.
    json.field("viewLeaderId").option(members.leads.then_some(members.node), Json::u64);
    json.field("members").raw("[");
    for member in &members.members {
        json.next().raw("{").field("nodeId").u64(member.node).field("role").string(role(member));
        json.field("state").option(state_of(&members, member), Json::string);
        json.field("http").string(&member.http).field("raft").string(&member.raft);
        json.field("lastAckMs").option(member.answered.map(millis), Json::u64);
        json.field("matchIndex").option(member.matched, Json::u64);
        json.field("local").bool(member.node == members.node).raw("}");
    }
    json.raw("]}");
    Ok(error::ok(json))
}

fn role(member: &Member) -> &'static str {
    if member.is_voter { "voter" } else { "learner" }
}

/// What a node does, in the words of these views.
fn state(members: &Members) -> &'static str {
    if members.role == "stopped" { "shutdown" } else { members.role }
}

/// The same of any member, as far as this node knows.
fn state_of(members: &Members, member: &Member) -> Option<&'static str> {
    if member.node == members.node {
        return Some(state(members));
    }
    if members.leads {
        return Some(match (is_live(members, member), member.is_voter) {
            (false, _) => "unreachable",
            (true, true) => "follower",
            (true, false) => "learner",
        });
    }
    (members.leader == Some(member.node)).then_some("leader")
}

/// The fields that every view begins with.
fn head(json: &mut Json, members: &Members) {
    json.field("engine").string("raft").field("clusterId").string(&members.cluster_id);
    json.field("self").u64(members.node);
    let voters = members.members.iter().filter(|member| member.is_voter);
    list(json.field("voters"), voters.map(|member| member.node));
}

/// This node's own fields, without the braces; `null` is what this version does not measure.
fn block<A: Api>(json: &mut Json, call: &Call<'_, A>, members: &Members) {
    let own = members.members.iter().find(|member| member.node == members.node);
    json.field("nodeId").u64(members.node).field("hostname").null();
    json.field("raftAddr").option(own.map(|own| &*own.raft), Json::string);
    json.field("httpAddr").option(own.map(|own| &*own.http), Json::string);
    json.field("role").string(own.map_or("learner", role)).field("state").string(state(members));
    json.field("local").bool(true).field("reachable").bool(true);
    json.field("leaderId").option(members.leader, Json::u64).field("term").u64(members.term);
    json.field("lastLogIndex").u64(members.last).field("committedIndex").u64(members.committed);
    json.field("appliedIndex").u64(members.applied).field("durableIndex").u64(members.durable);
    json.field("inflight").null().field("proposals").null();
    let (files, bytes) = members.logs;
    json.field("log").raw("{").field("files").u64(files).field("bytes").u64(bytes).raw("}");
    json.field("store").raw("{");
    for name in ["mapBytes", "usedBytes", "mapUsedPct", "readersInUse", "maxReaders"] {
        json.field(name).null();
    }
    json.raw("}").field("version").string(call.options.version);
    json.field("uptimeSeconds").u64(call.options.stats.uptime().as_secs());
    json.field("replication").option(members.leads.then_some(members), replication);
    json.field("error").null();
    host((call.options.resident_bytes)(), json.field("host"));
}

/// How far the leader has brought the others.
fn replication<'a>(json: &'a mut Json, members: &Members) -> &'a mut Json {
    json.raw("[");
    for member in members.members.iter().filter(|member| member.node != members.node) {
        json.next().raw("{").field("nodeId").u64(member.node);
        json.field("matchIndex").option(member.matched, Json::u64);
        json.field("heartbeatAgeMs").option(member.answered.map(millis), Json::u64).raw("}");
    }
    json.raw("]")
}

fn host(resident_bytes: u64, json: &mut Json) {
    let cpus = available_parallelism().ok().and_then(|count| u64::try_from(count.get()).ok());
    json.raw("{").field("cpuPct").null().field("cpuWindowSeconds").null();
    json.field("cpus").option(cpus, Json::u64).field("rssBytes").u64(resident_bytes);
    json.field("anonBytes").null().field("memLimitBytes").null().field("disk").null().raw("}");
}

/// This node's fields as a tree: they stand among those of others, which came as text.
fn own<A: Api>(call: &Call<'_, A>, members: &Members) -> Map<String, Value> {
    let mut json = Json::new();
    json.raw("{");
    block(&mut json, call, members);
    json.raw("}");
    serde_json::from_slice(json.as_slice()).unwrap_or_default()
}

/// What a member tells of itself.
fn told_block(told: &[u8], member: &Member) -> Result<Map<String, Value>, String> {
    let mut told: Map<String, Value> = serde_json::from_slice(told)
        .map_err(|error| format!("{} answers something else: {error}", member.http))?;
    if told.get("nodeId") != Some(&json!(member.node)) {
        return Err(format!("another node answers at {}", member.http));
    }
    for name in ["engine", "clusterId", "self", "voters", "singleNode"] {
        told.remove(name);
    }
    told.insert("local".to_owned(), json!(false));
    Ok(told)
}

fn unreachable(member: &Member, error: &str) -> Map<String, Value> {
    let mut block = Map::new();
    for (name, value) in [
        ("nodeId", json!(member.node)),
        ("role", json!(role(member))),
        ("state", json!("unreachable")),
        ("local", json!(false)),
        ("reachable", json!(false)),
        ("raftAddr", json!(member.raft)),
        ("httpAddr", json!(member.http)),
        ("hostname", Value::Null),
        ("error", json!(error)),
    ] {
        block.insert(name.to_owned(), value);
    }
    block
}

/// Adds to every block how far the leader among them has brought that member.
fn add_progress(blocks: &mut BTreeMap<u64, Map<String, Value>>) {
    let is_leader = |block: &&Map<String, Value>| block.get("state") == Some(&json!("leader"));
    let Some(leader) = blocks.values().filter(is_leader).max_by_key(|block| number(block, "term"))
    else {
        return;
    };
    let (node, last) = (number(leader, "nodeId"), number(leader, "lastLogIndex").unwrap_or(0));
    let rows = leader.get("replication").and_then(Value::as_array).cloned().unwrap_or_default();
    let mut progress: BTreeMap<u64, (Option<u64>, Value)> = rows
        .iter()
        .filter_map(Value::as_object)
        .filter_map(|row| {
            let age = row.get("heartbeatAgeMs").cloned().unwrap_or_default();
            Some((number(row, "nodeId")?, (number(row, "matchIndex"), age)))
        })
        .collect();
    progress.extend(node.map(|node| (node, (Some(last), json!(0)))));
    for (node, block) in blocks {
        let (matched, age) = progress.remove(node).unwrap_or_default();
        block.insert("matchIndex".to_owned(), json!(matched));
        block.insert("heartbeatAgeMs".to_owned(), age);
        let lag = matched.map(|matched| last.saturating_sub(matched));
        block.insert("lagEntries".to_owned(), json!(lag));
    }
}

fn number(block: &Map<String, Value>, name: &str) -> Option<u64> {
    block.get(name).and_then(Value::as_u64)
}
