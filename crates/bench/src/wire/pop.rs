//! What a pop answers in JSON, and what acknowledges it.

use std::io::Write;

use serde::Deserialize;

/// A pop's answer.
#[derive(Default, Deserialize)]
pub(crate) struct Popped<'a> {
    #[serde(borrow)]
    pub(crate) messages: Vec<Message<'a>>,
    #[serde(default)]
    pub(crate) autopilot: Option<Autopilot>,
}

/// What the broker chose for a pop.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub(crate) struct Autopilot {
    pub(crate) partitions: u32,
    pub(crate) batch: u32,
}

impl Autopilot {
    pub(crate) fn add(&mut self, other: Self) {
        self.partitions += other.partitions;
        self.batch += other.batch;
    }
}

/// A delivered message.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Message<'a> {
    pub(super) transaction_id: &'a str,
    pub(super) partition_id: &'a str,
    pub(super) lease_id: &'a str,
    pub(crate) data: Data,
}

/// The part of a payload that is checked.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct Data {
    #[serde(rename = "l")]
    pub(crate) lane: u32,
    #[serde(rename = "s")]
    pub(crate) seq: u64,
    #[serde(rename = "t")]
    pub(crate) made_us: u64,
}

/// The body that acknowledges these messages of a group in one call.
pub(crate) fn ack_body(out: &mut Vec<u8>, messages: &[Message<'_>], group: Option<&str>) {
    out.clear();
    out.push(b'{');
    if let Some(group) = group {
        write!(out, "\"consumerGroup\":\"{group}\",").unwrap();
    }
    out.extend_from_slice(b"\"acknowledgments\":[");
    acks(out, messages, "");
    out.extend_from_slice(b"]}");
}

/// Appends an acknowledgment for each message; `more` are further members of each.
pub(crate) fn acks(out: &mut Vec<u8>, messages: &[Message<'_>], more: &str) {
    for message in messages {
        if !out.ends_with(b"[") {
            out.push(b',');
        }
        let Message { transaction_id, partition_id, lease_id, .. } = message;
        write!(
            out,
            "{{{more}\"transactionId\":\"{transaction_id}\",\"partitionId\":\"{partition_id}\",\
             \"leaseId\":\"{lease_id}\",\"status\":\"completed\"}}"
        )
        .unwrap();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_acknowledgment_names_what_was_popped() {
        let text =
            br#"{"success":true,"messages":[{"transactionId":"t","partitionId":"4","leaseId":"L",
            "data":{"l":1,"s":2,"t":3,"p":"x"}}],"autopilot":{"partitions":3,"batch":100}}"#;
        let popped: Popped<'_> = serde_json::from_slice(text).unwrap();
        assert_eq!(popped.autopilot.unwrap().batch, 100);
        let mut out = Vec::new();
        ack_body(&mut out, &popped.messages, Some("g"));
        let body: serde_json::Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(body["consumerGroup"], "g");
        assert_eq!(body["acknowledgments"][0]["partitionId"], "4");
        assert_eq!(body["acknowledgments"][0]["leaseId"], "L");
    }
}
