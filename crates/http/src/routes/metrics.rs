//! `/metrics` (for people), `/metrics/prometheus`, `/status`, and the refresh that has nothing to do.

use bytes::Bytes;
use hyper::StatusCode;
use queen_broker::api::Api;

use crate::app::Call;
use crate::error::{self, Answer};
use crate::json::Json;
use crate::routes::health;

/// Counts since the process started; the fields without a source here are 0 by contract.
pub(crate) fn json<A: Api>(call: &Call<'_, A>) -> Answer {
    let stats = &call.options.stats;
    let mut json = Json::new();
    json.raw("{").field("uptime").u64(stats.uptime().as_secs());
    for (name, total) in [("requests", stats.requests()), ("messages", stats.messages())] {
        json.field(name).raw("{").field("total").u64(total).field("rate").u64(0).raw("}");
    }
    json.field("memory").raw("{").field("rss").u64((call.options.resident_bytes)());
    for name in ["heapTotal", "heapUsed", "external", "arrayBuffers"] {
        json.field(name).u64(0);
    }
    json.raw("}").field("cpu").raw("{").field("user").u64(0).field("system").u64(0).raw("}");
    json.field("engine").string("raft").field("raft").raw("{");
    health::node(&mut json, &call.gate.health());
    json.field("quorumAckMs").null().raw("}}");
    error::ok(json)
}

/// The text that the program makes of its recorder.
pub(crate) fn prometheus<A: Api>(call: &Call<'_, A>) -> Answer {
    let text = (call.options.prometheus)();
    error::answer(StatusCode::OK, "text/plain; version=0.0.4", Bytes::from(text))
}

/// The process runs.
pub(crate) fn status() -> Answer {
    let mut json = Json::new();
    json.raw("{").field("status").string("ok").field("engine").string("raft").raw("}");
    error::ok(json)
}

/// Statistics are always fresh here; client libraries call this route.
pub(crate) fn refresh() -> Answer {
    let mut json = Json::new();
    json.raw("{").field("success").bool(true).field("refreshed").bool(false);
    json.field("engine").string("raft").raw("}");
    error::ok(json)
}
