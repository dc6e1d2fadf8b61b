//! One node, one voter: committed means synced in the node's own logs.

use queen_model::Effect;
use queen_qlog::{EntryWrite, Fault, MessageWrite, Qlog};
use queen_record::ids::{EntryIndex, LogId};
use queen_record::layout::SYSTEM_LOG;

use crate::payloads::{message, without_payloads};
use crate::{Committed, Proposal, Replicator, Step};

/// The term that committed entries carry on one node; records store 0.
const TERM: u64 = 1;

/// The replicator of a single node.
pub struct LocalReplicator {
    qlog: Qlog,
    last: EntryIndex,
    proposed: Vec<Committed>,
    touched: Vec<LogId>,
    bytes: Vec<u8>,
}

impl LocalReplicator {
    /// A replicator that continues after `last`, the highest entry in the logs.
    pub fn new(qlog: Qlog, last: EntryIndex) -> Self {
        Self { qlog, last, proposed: Vec::new(), touched: Vec::new(), bytes: Vec::new() }
    }
}

impl Replicator for LocalReplicator {
    fn leads_at_start(&self) -> bool {
        true
    }

    fn propose(&mut self, proposal: Proposal) -> Result<(), Fault> {
        let Proposal { entry, logs } = proposal;
        assert!(logs.len() == entry.effects.len(), "every effect has a log");
        let index = self.last.next();
        self.bytes.clear();
        entry.encode(&mut self.bytes);
        let messages: Vec<MessageWrite<'_>> = entry
            .effects
            .iter()
            .zip(&logs)
            .filter_map(|(effect, log)| match effect {
                Effect::Append(append) => Some(message(append, *log)),
                _ => None,
            })
            .collect();
        let mut touched = logs.clone();
        touched.sort_unstable();
        touched.dedup();
        // An entry that touches no queue still needs a place.
        if touched.is_empty() {
            touched.push(SYSTEM_LOG);
        }
        let write = EntryWrite {
            index,
            term: 0,
            now: entry.now,
            bytes: &self.bytes,
            logs: &touched,
            messages: &messages,
        };
        let written = self.qlog.append(&[write])?;
        self.touched.extend(written);
        self.last = index;
        self.proposed.push(Committed { index, term: TERM, entry: without_payloads(entry) });
        Ok(())
    }

    fn commit(&mut self, steps: &mut Vec<Step>) -> Result<(), Fault> {
        if self.proposed.is_empty() {
            return Ok(());
        }
        self.touched.sort_unstable();
        self.touched.dedup();
        self.qlog.sync(&self.touched)?;
        self.touched.clear();
        let own = |committed| Step::Committed { committed, is_own: true };
        steps.extend(self.proposed.drain(..).map(own));
        Ok(())
    }

    fn begin_round(&mut self, _: &mut Vec<Step>) -> Result<(), Fault> {
        Ok(())
    }

    fn end_round(&mut self) {}

    fn applied(&mut self, _: EntryIndex) {}
}
