//! The calls of a tail.

use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::From;
use super::wire::{
    Changed, ChangedEntry, FetchEntry, Offsets, Partition, Request, TimeEntry, UNKNOWN,
};
use crate::client::failure::Failure;
use crate::client::node::{Call, CallError, Node, Reply};
use crate::client::{queues, retry};

/// Partitions whose place in time one call asks for.
const TIMES_MAX: usize = 1000;
/// Payload bytes of one answer.
const BYTES_MAX: u64 = 8 * 1024 * 1024;

/// Reads one queue by offset.
pub(super) struct Reader<'a> {
    pub(super) node: &'a Node,
    pub(super) queue: &'a str,
}

impl Reader<'_> {
    /// The partitions that were written since a time, and the time to ask with next; all of them without one.
    pub(super) fn changed(
        &self,
        since: Option<&str>,
    ) -> Result<(Vec<Partition>, Option<String>), Failure> {
        let (mut rows, mut after, mut next_since) = (Vec::new(), None::<String>, None);
        loop {
            let after_text = after.as_deref();
            let entry = ChangedEntry { queue: self.queue, since, after: after_text };
            let changed: Changed =
                self.ask(&["api", "v1", "partitions", "changed"], vec![entry])??;
            // That of the first page: what is written during the pass is seen by the next one.
            if !changed.safe_time_degraded {
                next_since.get_or_insert(changed.safe_time);
            }
            let Some(page) = changed.entries.into_iter().next() else { break };
            if let Some(error) = page.error {
                return Err(self.refused(&error));
            }
            rows.extend(page.partitions);
            if page.next.is_none() {
                break;
            }
            after = page.next;
        }
        Ok((rows, next_since))
    }

    /// The offsets where a tail of these partitions begins.
    pub(super) fn begins(&self, names: &[&str], from: &From) -> Result<Vec<u64>, Failure> {
        let timestamp = match from {
            From::Time(time) => time,
            // Only the bounds are looked at.
            From::Start | From::End => "1970-01-01",
        };
        let mut begins = Vec::with_capacity(names.len());
        for some in names.chunks(TIMES_MAX) {
            let queue = self.queue;
            let entries = some.iter().map(|partition| TimeEntry { queue, partition, timestamp });
            let found =
                self.ask::<_, Offsets>(&["api", "v1", "fetch", "offsets"], entries.collect())?;
            let found = found.map_err(|error| match (from, error.status) {
                (From::Time(time), Some(400)) => {
                    Failure::said(format!("--from {time}: {}", error.text))
                }
                _ => error.into(),
            })?;
            for found in found.entries {
                if let Some(error) = found.error {
                    return Err(self.refused(&error));
                }
                begins.push(match from {
                    From::Start => found.log_start_offset,
                    From::End => found.high_watermark,
                    From::Time(_) => found.offset.unwrap_or(found.high_watermark),
                });
            }
        }
        Ok(begins)
    }

    /// Messages of these partitions from these offsets on; waits for the first.
    pub(super) fn fetch(&self, places: &[(&str, u64)], wait: Duration) -> Result<Reply, Failure> {
        let queue = self.queue;
        let entries = places.iter();
        let entries =
            entries.map(|(partition, offset)| FetchEntry { queue, partition, offset: *offset });
        let request = Request {
            max_bytes: Some(BYTES_MAX),
            max_wait_ms: Some(u64::try_from(wait.as_millis()).unwrap_or(0)),
            ..Request::of(entries.collect())
        };
        let call = Call::post(&["api", "v1", "fetch"], &request)?.waiting(wait);
        Ok(retry::patiently(|| self.node.call(&call))?)
    }

    /// What an entry's error means.
    pub(super) fn refused(&self, error: &str) -> Failure {
        match error {
            UNKNOWN => queues::no_queue(self.queue),
            error => {
                let queue = self.queue;
                Failure::said(format!("the node cannot read queue {queue} by offset: {error}"))
            }
        }
    }

    /// A call; the inner error is the node's.
    fn ask<E: Serialize, T: DeserializeOwned>(
        &self,
        route: &[&str],
        entries: Vec<E>,
    ) -> Result<Result<T, CallError>, Failure> {
        let call = Call::post(route, &Request::of(entries))?;
        match retry::patiently(|| self.node.call(&call)) {
            Ok(reply) => reply.read().map(Ok),
            Err(error) => Ok(Err(error)),
        }
    }
}
