//! `GET /health`: from memory only; the body is there whatever the status.

use hyper::StatusCode;
use queen_broker::api::{Api, Health};
use queen_model::KINDS_VERSION;

use crate::app::Call;
use crate::error::{self, Answer};
use crate::json::Json;

/// 200 when the node serves, else 503 with the reason.
pub(crate) fn health<A: Api>(call: &Call<'_, A>) -> Answer {
    let health = call.gate.health();
    let (status, word) = if health.serving {
        (StatusCode::OK, "healthy")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "settling")
    };
    let mut json = Json::new();
    json.raw("{").field("status").string(word).field("engine").string("raft");
    json.field("version").string(call.options.version);
    if let Some(reason) = &health.reason {
        json.field("reason").string(reason);
    }
    node(json.field("raft").raw("{"), &health);
    // Every node of this build writes the newest format that it reads.
    json.field("clusterVersion").u64(KINDS_VERSION.into());
    json.field("kinds").u64(KINDS_VERSION.into());
    json.raw("}}");
    error::json(status, json)
}

/// The fields that `/metrics` shows too.
pub(crate) fn node(json: &mut Json, health: &Health) {
    json.field("role").string(health.role).field("leader").bool(health.role == "leader");
    json.field("term").u64(health.term).field("applied").u64(health.applied);
    json.field("commit")
        .u64(health.committed)
        .field("lag")
        .u64(health.committed.saturating_sub(health.applied));
    json.field("storageReady").bool(health.storage_ready);
}
