//! The judge of a recovered directory.
//!
//! Its rules, as part 5 of the verification page has them:
//! - O1 the start does not refuse;
//! - O2 every entry whose answer had left is applied, and none that was not yet written;
//! - O3 what is applied is a prefix of what was sent: the digest is the one of the uncrashed run at that entry;
//! - O4 offsets have no gap, each message is where its answer said, with its bytes, and no log has more; only what lies
//!   below `txns_start` may be missing;
//! - O5 every statement of an answer holds;
//! - O6 a reported checkpoint is not older than it was;
//! - O7 a second start changes no byte.

use std::cell::RefCell;

use queen_broker::recover::warm_filter;
use queen_io::SimDisk;
use queen_qlog::{ReadLimit, StoredRecord};
use queen_record::compress::PayloadDecompressor;
use queen_record::frame::Frames;
use queen_record::hash::queue_id;
use queen_record::ids::{Micros, Offset, PartitionId, Tenant, Uuid};

use crate::history::{History, Stored};
use crate::node::{Bare, Setup, open};

/// Disk calls between which a cut fell.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Answers released by this call count.
    pub answered_by: u64,
    /// Entries begun before this call may be there.
    pub written_by: u64,
}

impl Bounds {
    /// A cut behind this call.
    pub fn at(call: u64) -> Self {
        Self { answered_by: call, written_by: call }
    }
}

/// A message as the log has it.
pub struct Found {
    /// Its id.
    pub id: Uuid,
    /// Its transactionId.
    pub transaction_id: String,
    pub(crate) payload: Vec<u8>,
}

impl Found {
    /// Whether it is what was stored.
    pub fn is(&self, stored: &Stored) -> bool {
        self.id == stored.id
            && self.transaction_id == stored.transaction_id
            && self.payload == stored.payload
    }
}

thread_local! {
    static DECOMPRESSOR: RefCell<Option<PayloadDecompressor>> = const { RefCell::new(None) };
}

/// The messages of records, with their offsets.
///
/// # Errors
/// When a payload does not decode.
pub fn messages_of(records: &[StoredRecord]) -> Result<Vec<(u64, Found)>, String> {
    let mut found = Vec::new();
    for record in records {
        let raw;
        let frames: &[u8] = if record.compressed {
            raw = DECOMPRESSOR.with_borrow_mut(|held| {
                if held.is_none() {
                    *held = PayloadDecompressor::new().ok();
                }
                held.as_mut().and_then(|held| held.decompress(&record.payload).ok())
            });
            raw.as_deref().ok_or("a payload does not decompress")?
        } else {
            &record.payload
        };
        let mut count = 0;
        for (offset, frame) in (record.base.0..).zip(Frames::new(frames)) {
            let frame = frame.map_err(|error| error.to_string())?;
            count += 1;
            found.push((
                offset,
                Found {
                    id: frame.id,
                    transaction_id: frame.transaction_id.to_owned(),
                    payload: frame.data.to_vec(),
                },
            ));
        }
        if count != record.count {
            return Err(format!("a record of {} messages has {count} frames", record.count));
        }
    }
    Ok(found)
}

/// Opens a disk and judges what recovery made of it.
///
/// # Errors
/// What is wrong.
pub fn open_and_check(
    disk: &SimDisk,
    setup: &Setup,
    history: &History,
    bounds: Bounds,
) -> Result<Bare, String> {
    let bare = open(disk, setup).map_err(|refusal| format!("O1 the start refuses: {refusal}"))?;
    check(&bare, history, bounds)?;
    Ok(bare)
}

/// Judges an opened directory.
///
/// # Errors
/// What is wrong.
pub fn check(bare: &Bare, history: &History, bounds: Bounds) -> Result<(), String> {
    let state = &bare.opened.state;
    let applied = state.applied().0;
    let (least, most) =
        (history.acknowledged(bounds.answered_by), history.written(bounds.written_by));
    if applied < least {
        return Err(format!("O2 entry {applied} is the last, {least} was acknowledged"));
    }
    if applied > most {
        return Err(format!("O2 entry {applied} is the last, {most} is the last that was written"));
    }
    let checkpointed = history.checkpointed(bounds.answered_by);
    if bare.opened.durable.0 < checkpointed {
        let durable = bare.opened.durable;
        return Err(format!("O6 the checkpoint is of {durable}, {checkpointed} was reported"));
    }
    match history.digests.get(&applied) {
        Some(digest) if *digest == state.digest() => {}
        Some(_) => return Err(format!("O3 the state at entry {applied} has another digest")),
        None => return Err(format!("O3 no entry {applied} was sent")),
    }
    for what in history.facts_at(applied) {
        if !what.holds(state) {
            return Err(format!("O5 at entry {applied} it does not hold that {what:?}"));
        }
    }
    check_messages(bare, history, applied)?;
    warm_filter(&bare.opened.qlog, Micros(0)).map_err(|error| format!("O4 {error}"))?;
    Ok(())
}

fn check_messages(bare: &Bare, history: &History, applied: u64) -> Result<(), String> {
    let state = &bare.opened.state;
    for (id, part) in &history.parts {
        let count = part.count_at(applied);
        let live = state.partition(*id).is_some();
        let required = count > 0 && part.until.is_none_or(|until| applied <= until);
        if required && !live {
            return Err(format!(
                "O4 partition {id} of {} with {count} messages is gone",
                part.queue
            ));
        }
    }
    for (id, row) in state.partitions() {
        if state.partition(id).is_none() {
            continue;
        }
        let part = history.parts.get(&id);
        let due = part.map_or(0, |part| part.count_at(applied));
        if row.next_offset().0 != due as u64 {
            let next = row.next_offset();
            return Err(format!("O4 partition {id} goes on at {next}, {due} messages were stored"));
        }
        let Some(part) = part else { continue };
        // Below, reclaim may have taken some files' records and not others'.
        let from = row.txns_start();
        let gone = usize::try_from(from.0).unwrap_or(usize::MAX);
        let found = read_from(bare, &part.queue, id, from)?;
        if found.len() != due.saturating_sub(gone) {
            let wanted = due.saturating_sub(gone);
            return Err(format!("O4 the log of {id} has {} messages of {wanted}", found.len()));
        }
        let messages = part.messages.iter().skip(gone);
        for ((at, (offset, found)), stored) in (from.0..).zip(&found).zip(messages) {
            if *offset != at || !found.is(stored) {
                return Err(format!("O4 partition {id} has another message at offset {at}"));
            }
        }
    }
    Ok(())
}

/// The messages at `from` and above.
fn read_from(
    bare: &Bare,
    queue: &str,
    id: PartitionId,
    from: Offset,
) -> Result<Vec<(u64, Found)>, String> {
    let qlog = &bare.opened.qlog;
    let log = qlog.log_of(queue_id(Tenant::DEFAULT, queue), Some(id));
    let all = ReadLimit { messages: u32::MAX, bytes: u64::MAX };
    let records = qlog.read(log, id, from, all);
    let records = records.map_err(|error| format!("O4 partition {id}: {error}"))?;
    let mut messages =
        messages_of(&records).map_err(|error| format!("O4 partition {id}: {error}"))?;
    // The first record may begin below.
    messages.retain(|(offset, _)| *offset >= from.0);
    Ok(messages)
}

/// O7: starts once more and compares every byte.
///
/// # Errors
/// What changed.
pub fn check_reopen(disk: &SimDisk, setup: &Setup, applied: u64) -> Result<(), String> {
    let before = disk.fingerprint();
    let again = open(disk, setup).map_err(|refusal| format!("O7 a second start: {refusal}"))?;
    if again.opened.state.applied().0 != applied {
        let found = again.opened.state.applied();
        return Err(format!("O7 a second start ends at {found}, the first at {applied}"));
    }
    if disk.fingerprint() != before {
        return Err("O7 a second start changed bytes".to_owned());
    }
    Ok(())
}
