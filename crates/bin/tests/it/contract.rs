//! What the published clients' own tests ask of a node, asked here without them: one test for each of theirs.

mod bounds;
mod consume;
mod messages;
mod queues;
mod retention;
mod settle;
mod transactions;

use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::client::Client;
use crate::program::Program;

/// A node of a test's own, and a connection to it.
struct Rig {
    client: Client,
    node: Program,
    dir: TempDir,
}

impl Rig {
    fn new() -> Self {
        Self::with(&[])
    }

    fn with(variables: &[(&str, &str)]) -> Self {
        Self::over(tempfile::tempdir().unwrap(), variables)
    }

    fn over(dir: TempDir, variables: &[(&str, &str)]) -> Self {
        let node = Program::start(Path::new(dir.path()), variables).unwrap();
        Self { client: Client::new(node.address()), node, dir }
    }

    /// The same directory under another process.
    fn restarted(self, variables: &[(&str, &str)]) -> Self {
        let Self { dir, node, .. } = self;
        let (status, log) = node.stop();
        assert!(status.success(), "{log:?}");
        Self::over(dir, variables)
    }

    /// Another connection, for another thread.
    fn another(&self) -> Client {
        Client::new(self.node.address())
    }

    fn configure(&mut self, queue: &str, options: &Value) -> Value {
        self.client.post("/api/v1/configure", &json!({"queue": queue, "options": options}))
    }

    /// Pushes payloads that number themselves, under their number as transactionId.
    fn push(&mut self, queue: &str, partition: &str, ids: std::ops::Range<u32>) -> Value {
        let items: Vec<Value> = ids
            .map(|n| {
                json!({"queue": queue, "partition": partition, "payload": {"id": n},
                    "transactionId": format!("{partition}-{n}")})
            })
            .collect();
        self.client.post("/api/v1/push", &json!({ "items": items }))
    }

    fn push_payload(&mut self, queue: &str, payload: &Value) -> Value {
        let items = json!([{"queue": queue, "payload": payload}]);
        self.client.post("/api/v1/push", &json!({ "items": items }))
    }

    /// The messages of a pop; none for 204.
    fn pop(&mut self, queue: &str, query: &str) -> Vec<Value> {
        pop(&mut self.client, queue, query)
    }

    fn ack(&mut self, group: Option<&str>, messages: &[Value], status: &str) -> Vec<Value> {
        let statuses = vec![status; messages.len()];
        self.ack_each(group, messages, &statuses)
    }

    /// One call with a status for each message.
    fn ack_each(
        &mut self,
        group: Option<&str>,
        messages: &[Value],
        statuses: &[&str],
    ) -> Vec<Value> {
        let acks: Vec<Value> = messages
            .iter()
            .zip(statuses)
            .map(|(message, status)| {
                json!({"transactionId": message["transactionId"], "error": "boom", "status": status,
                    "partitionId": message["partitionId"], "leaseId": message["leaseId"]})
            })
            .collect();
        let body = json!({"acknowledgments": acks, "consumerGroup": group});
        self.client.post("/api/v1/ack/batch", &body).as_array().unwrap().clone()
    }

    fn letters(&mut self, queue: &str) -> Vec<Value> {
        let page = self.client.get(&format!("/api/v1/dlq?queue={queue}"));
        page["messages"].as_array().unwrap().clone()
    }
}

fn pop(client: &mut Client, queue: &str, query: &str) -> Vec<Value> {
    let answer = client.get(&format!("/api/v1/pop/queue/{queue}?{query}"));
    answer["messages"].as_array().cloned().unwrap_or_default()
}

/// The numbers of messages pushed by [`Rig::push`].
fn numbers(messages: &[Value]) -> Vec<u64> {
    messages.iter().map(|message| message["data"]["id"].as_u64().unwrap()).collect()
}

fn all_succeed(results: &[Value]) -> bool {
    results.iter().all(|result| result["success"] == true)
}
