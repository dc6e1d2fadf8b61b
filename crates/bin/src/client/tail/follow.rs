//! The places of one tail, and the loop that moves them.
//!
//! F1: a place only moves forward, and only over what was printed or is gone. F2: every turn prints, or waits.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use serde::Serialize;

use super::read::Reader;
use super::wire::{Fetched, FetchedEntry, OUT_OF_RANGE, Partition, Record};
use super::{Args, From};
use crate::client::failure::Failure;
use crate::client::node::Node;
use crate::client::output::{Message, Output};
use crate::client::{note, retry};

/// Partitions of one fetch.
const ENTRIES_MAX: usize = 256;
/// How long a fetch waits: with all partitions, how late the first message of a new one may be seen.
const WAIT: Duration = Duration::from_secs(1);
/// The same with one partition, where nothing else is looked for.
const WAIT_PINNED: Duration = Duration::from_secs(20);
/// What is waited for in a queue without partitions: the one where pushes go that name none.
const FIRST: &str = "Default";

/// Where a partition is read.
#[derive(Debug, Default)]
struct Place {
    /// The next offset.
    next: u64,
    /// How far there are messages, as far as known.
    end: u64,
    /// Known once the node listed it; another id is another partition of the same name.
    id: Option<String>,
    /// The node said that `next` lies behind the end.
    is_ahead: bool,
}

/// A tail.
pub(super) struct Follow<'a> {
    reader: Reader<'a>,
    /// The only partition, if there is only one.
    pinned: Option<&'a str>,
    from: &'a From,
    as_json: bool,
    places: BTreeMap<String, Place>,
    /// Partitions with messages behind their places.
    behind: BTreeSet<String>,
    /// Partitions that were last written before this time have nothing new.
    since: Option<String>,
    /// Those that were written last, newest first: the wait looks at these.
    lively: Vec<String>,
    left: Option<u64>,
    output: Output,
}

impl<'a> Follow<'a> {
    pub(super) fn new(node: &'a Node, args: &'a Args) -> Self {
        Self {
            reader: Reader { node, queue: &args.queue },
            pinned: args.partition.as_deref(),
            from: &args.from,
            as_json: args.json,
            places: BTreeMap::new(),
            behind: BTreeSet::new(),
            since: None,
            lively: Vec::new(),
            left: args.count,
            output: Output::new(),
        }
    }

    /// Finds where to begin in every partition.
    pub(super) fn start(&mut self) -> Result<(), Failure> {
        if let Some(name) = self.pinned {
            let next = self.reader.begins(&[name], self.from)?.first().copied().unwrap_or(0);
            self.places.insert(name.to_owned(), Place { next, ..Place::default() });
            self.lively.push(name.to_owned());
            return Ok(());
        }
        let mut rows = self.changed()?;
        rows.sort_by(|a, b| b.last_write_at.cmp(&a.last_write_at));
        self.lively = rows.iter().take(ENTRIES_MAX).map(|row| row.name.clone()).collect();
        let begins: Vec<u64> = match self.from {
            From::Start => rows.iter().map(|row| row.log_start).collect(),
            From::End => rows.iter().map(Partition::end).collect(),
            From::Time(_) => {
                let names: Vec<&str> = rows.iter().map(|row| &*row.name).collect();
                self.reader.begins(&names, self.from)?
            }
        };
        for (row, next) in rows.into_iter().zip(begins) {
            let end = row.end();
            if next < end {
                self.behind.insert(row.name.clone());
            }
            self.places.insert(row.name, Place { next, end, id: Some(row.id), is_ahead: false });
        }
        Ok(())
    }

    /// One turn: what is there, or a wait for it.
    pub(super) fn step(&mut self) -> Result<(), Failure> {
        if self.pinned.is_none() {
            while !self.is_done() && !self.behind.is_empty() {
                let some: Vec<String> = self.behind.iter().take(ENTRIES_MAX).cloned().collect();
                if self.fetch(&some, Duration::ZERO)? == 0 {
                    break;
                }
            }
        }
        if self.is_done() {
            return Ok(());
        }
        self.wait()?;
        if self.pinned.is_none() { self.news() } else { Ok(()) }
    }

    pub(super) fn is_done(&self) -> bool {
        self.left == Some(0)
    }

    /// Waits for messages in the partitions that got some last.
    fn wait(&mut self) -> Result<(), Failure> {
        let is_pinned = self.pinned.is_some();
        let is_ahead = |name: &str| self.places.get(name).is_some_and(|place| place.is_ahead);
        let ready = self.lively.iter().filter(|name| is_pinned || !is_ahead(name));
        let mut names: Vec<String> = ready.cloned().collect();
        if self.places.is_empty() {
            names.push(FIRST.to_owned());
        }
        let wait = if is_pinned { WAIT_PINNED } else { WAIT };
        let started = Instant::now();
        let moves = if names.is_empty() { 0 } else { self.fetch(&names, wait)? };
        // F2: the node answered at once and had nothing.
        if moves == 0 && started.elapsed() < WAIT / 2 {
            retry::pause(WAIT);
        }
        Ok(())
    }

    /// Looks for messages behind the places, and for new partitions.
    fn news(&mut self) -> Result<(), Failure> {
        let mut lively = Vec::new();
        for row in self.changed()? {
            let end = row.end();
            // One that came after the start is new from its beginning.
            let begin = Place { next: row.log_start, ..Place::default() };
            let place = self.places.entry(row.name.clone()).or_insert(begin);
            if place.id.as_ref().is_some_and(|id| *id != row.id) {
                // The queue was deleted and made again.
                *place = Place { next: row.log_start, ..Place::default() };
            }
            place.id = Some(row.id);
            place.end = end;
            if place.next < end {
                place.is_ahead = false;
                lively.push(row.name.clone());
                self.behind.insert(row.name);
            }
        }
        // The last to change first, each once.
        lively.reverse();
        lively.append(&mut self.lively);
        let mut seen = BTreeSet::new();
        let is_new: Vec<bool> = lively.iter().map(|name| seen.insert(&**name)).collect();
        let once = lively.iter().zip(is_new).filter(|(_, is_new)| *is_new).map(|(name, _)| name);
        self.lively = once.take(ENTRIES_MAX).cloned().collect();
        Ok(())
    }

    fn changed(&mut self) -> Result<Vec<Partition>, Failure> {
        let (rows, since) = self.reader.changed(self.since.as_deref())?;
        self.since = since.or(self.since.take());
        Ok(rows)
    }

    /// Reads and prints; how many messages its places moved over.
    fn fetch(&mut self, names: &[String], wait: Duration) -> Result<u64, Failure> {
        let next = |name: &str| self.places.get(name).map_or(0, |place| place.next);
        let places: Vec<(&str, u64)> = names.iter().map(|name| (&**name, next(name))).collect();
        let reply = self.reader.fetch(&places, wait)?;
        let mut moves = 0;
        for entry in reply.read::<Fetched<'_>>()?.entries {
            moves += self.print(&entry)?;
        }
        self.output.flush()?;
        Ok(moves)
    }

    /// Prints what was read of one partition and moves its place over it.
    fn print(&mut self, entry: &FetchedEntry<'_>) -> Result<u64, Failure> {
        let name = &*entry.partition;
        let place = self.places.entry(name.to_owned()).or_default();
        let before = place.next;
        match entry.error.as_deref() {
            Some(OUT_OF_RANGE) if place.next < entry.log_start_offset => {
                let (from, to) = (place.next, entry.log_start_offset);
                note(&format!("partition {name}: offsets {from} to {} are gone", to - 1));
                place.next = to;
            }
            Some(OUT_OF_RANGE) => {
                if !place.is_ahead {
                    note(&format!(
                        "partition {name} ends before offset {}: waiting (the queue was made again, or this node is behind)",
                        place.next
                    ));
                }
                place.is_ahead = true;
            }
            Some(error) => return Err(self.reader.refused(error)),
            None => place.is_ahead = false,
        }
        for record in &entry.records {
            if self.left == Some(0) {
                break;
            }
            // F1.
            if record.offset >= place.next {
                show(&mut self.output, self.as_json, name, record)?;
                place.next = record.offset + 1;
                self.left = self.left.map(|left| left - 1);
            }
        }
        if place.is_ahead || place.next >= place.end {
            self.behind.remove(name);
        }
        Ok(place.next - before)
    }
}

fn show(
    output: &mut Output,
    as_json: bool,
    partition: &str,
    record: &Record<'_>,
) -> Result<(), Failure> {
    #[derive(Serialize)]
    struct Row<'a> {
        partition: &'a str,
        #[serde(flatten)]
        record: &'a Record<'a>,
    }
    if as_json {
        return output.json_of(&Row { partition, record });
    }
    output.message(&Message {
        partition,
        offset: record.offset,
        transaction_id: &record.transaction_id,
        payload: record.payload,
    })
}
