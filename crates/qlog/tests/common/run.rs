//! Logs that are written to, and the entries that they are to give back.

use std::sync::Arc;

use bytes::Bytes;
use queen_io::{Disk, SimDisk};
use queen_qlog::{DurablePoint, EntryReader, Options, Qlog, ReadError, StoredEntry, StoredMessage};
use queen_record::ids::{EntryIndex, LogId, Micros, Offset};

use super::{DIR, Entry, Model, options, reopen, write_in_term};

pub(crate) const ALL: usize = usize::MAX;

pub(crate) fn settings() -> Options {
    Options { prealloc_min_syncs: 1, prealloc_kb: 1, ..options(DIR, 700) }
}

pub(crate) fn handle(sim: &SimDisk) -> Arc<dyn Disk> {
    Arc::new(sim.clone())
}

/// The entry as it is to be read.
pub(crate) fn stored(entry: &Entry, term: u64) -> StoredEntry {
    let mut appends: Vec<_> = entry.appends.iter().collect();
    appends.sort_by_key(|append| append.log);
    let messages = appends.into_iter().map(|append| StoredMessage {
        log: append.log,
        partition: append.partition,
        base: Offset(append.base),
        count: u32::try_from(append.texts.len()).unwrap(),
        created: Micros(append.created),
        compressed: append.base % 2 == 1,
        payload: Bytes::copy_from_slice(&append.payload),
    });
    StoredEntry {
        index: entry.index,
        term,
        now: Micros(i64::try_from(entry.index.0).unwrap()),
        bytes: entry.bytes.clone(),
        messages: messages.collect(),
    }
}

/// An entry to make: logs and partitions that get two messages each, the bytes of each append, logs that are touched.
pub(crate) type Shape<'a> = (&'a [(u64, u64)], usize, &'a [u64]);

/// Logs that are written to, and what they are to say.
pub(crate) struct Run {
    pub(crate) sim: SimDisk,
    pub(crate) qlog: Qlog,
    pub(crate) model: Model,
    pub(crate) wanted: Vec<StoredEntry>,
    pub(crate) durable: DurablePoint,
}

impl Run {
    pub(crate) fn new() -> Self {
        let sim = SimDisk::new();
        let durable = DurablePoint::default();
        let (qlog, _, _) = reopen(&handle(&sim), settings(), &durable).unwrap();
        Self { sim, qlog, model: Model::default(), wanted: Vec::new(), durable }
    }

    /// Appends a group without a sync.
    pub(crate) fn append(&mut self, group: &[Shape<'_>], term: u64) -> Vec<LogId> {
        let mut entries = Vec::new();
        for (targets, size, extra) in group {
            let mut entry = self.model.entry(targets, 2, *size, extra);
            entry.bytes.extend(format!("in term {term}").into_bytes());
            self.wanted.push(stored(&entry, term));
            entries.push(entry);
        }
        write_in_term(&self.qlog, &entries, term).unwrap()
    }

    pub(crate) fn write(&mut self, group: &[Shape<'_>], term: u64) {
        let logs = self.append(group, term);
        self.qlog.sync(&logs).unwrap();
    }

    pub(crate) fn background(&self) {
        while self.qlog.background().unwrap() {}
    }

    pub(crate) fn point(&mut self, index: EntryIndex) {
        self.durable = self.qlog.durable_point(index);
        self.qlog.point_written(&self.durable);
    }

    pub(crate) fn truncate(&mut self, last: EntryIndex) {
        self.qlog.truncate_after(last).unwrap();
        self.model.truncate(last);
        self.wanted.retain(|entry| entry.index <= last);
    }

    pub(crate) fn last(&self) -> EntryIndex {
        self.model.last()
    }

    /// Entries over four logs and the system log: rolls, stubs, whole groups, a log that begins late.
    pub(crate) fn fill(&mut self, rounds: u64, term: u64) {
        for round in 0..rounds {
            self.write(&[(&[(10_002, 2), (10_000, 1), (10_002, 3)], 60, &[])], term);
            let mut group: Vec<Shape<'_>> = vec![(&[], 0, &[0])];
            if round % 2 == 0 {
                group.push((&[(10_001, 4)], 130, &[10_000, 10_002]));
            }
            if round >= rounds / 2 {
                group.push((&[(10_003, 5), (10_000, 1)], 20, &[]));
                group.push((&[], 0, &[10_001, 10_003]));
            }
            self.write(&group, term);
            if round % 3 == 0 {
                self.background();
            }
        }
    }

    pub(crate) fn assert_all(&self) {
        assert_reads(&self.qlog, &self.wanted);
    }
}

pub(crate) fn read(
    qlog: &Qlog,
    reader: &mut EntryReader,
    from: u64,
    to: u64,
    max: usize,
) -> Result<Vec<StoredEntry>, ReadError> {
    qlog.entries(reader, EntryIndex(from), EntryIndex(to), max)
}

/// Reads all, in one piece, in pieces of several sizes, and from every place with a new reader.
pub(crate) fn assert_reads(qlog: &Qlog, wanted: &[StoredEntry]) {
    let first = wanted[0].index.0;
    let end = first + wanted.len() as u64;
    let all = read(qlog, &mut EntryReader::default(), first, u64::MAX, ALL).unwrap();
    assert_eq!(all, wanted);
    for max in [0, 1, 150, 700, 5000] {
        assert_eq!(catch_up(qlog, first, end, max), wanted, "pieces of {max} bytes");
    }
    for from in first..end {
        let at = usize::try_from(from - first).unwrap();
        let found = read(qlog, &mut EntryReader::default(), from, from + 3, ALL).unwrap();
        assert_eq!(found, wanted[at..(at + 3).min(wanted.len())]);
    }
    assert_not_there(qlog, &mut EntryReader::default(), end);
    assert!(read(qlog, &mut EntryReader::default(), end, end, ALL).unwrap().is_empty());
}

/// Call after call; every answer but one of a single entry keeps to its size.
pub(crate) fn catch_up(qlog: &Qlog, first: u64, end: u64, max: usize) -> Vec<StoredEntry> {
    let mut reader = EntryReader::default();
    let mut all: Vec<StoredEntry> = Vec::new();
    let mut next = first;
    while next < end {
        let found = read(qlog, &mut reader, next, end, max).unwrap();
        let len: usize = found.iter().map(StoredEntry::len_bytes).sum();
        assert!(found.len() == 1 || len <= max, "{} entries of {len} bytes", found.len());
        next = found.last().unwrap().index.0 + 1;
        all.extend(found);
    }
    all
}

pub(crate) fn assert_not_there(qlog: &Qlog, reader: &mut EntryReader, at: u64) {
    match read(qlog, reader, at, at + 2, ALL) {
        Err(ReadError::NotThere { index, lowest, last }) => {
            assert_eq!(index, EntryIndex(at));
            assert!(index < lowest || index > last, "{lowest} to {last}");
            assert_eq!(last, qlog.last_entry().0);
        }
        other => unreachable!("entry {at}: {other:?}"),
    }
}
