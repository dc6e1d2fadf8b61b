//! A scripted writer over a few logs, and the list of what it wrote.
#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test may fail loudly, and each test binary uses its own part of this"
)]

pub(crate) mod run;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use queen_io::Disk;
use queen_qlog::{
    Cut, DurablePoint, EntryWrite, Fault, FoundHash, MessageWrite, OpenError, Options, Qlog,
    ReadLimit, RecoveredEntry, SeqRange,
};
use queen_record::hash::tx_hash;
use queen_record::ids::{EntryIndex, LogId, Micros, Offset, PartitionId, TxHash};

pub(crate) const DIR: &str = "/qlog";
pub(crate) const ALL: ReadLimit = ReadLimit { messages: u32::MAX, bytes: u64::MAX };

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Append {
    pub(crate) log: LogId,
    pub(crate) partition: PartitionId,
    pub(crate) base: u64,
    pub(crate) created: i64,
    pub(crate) texts: Vec<String>,
    pub(crate) payload: Vec<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) index: EntryIndex,
    pub(crate) bytes: Vec<u8>,
    pub(crate) logs: Vec<LogId>,
    pub(crate) appends: Vec<Append>,
}

/// Makes entries with gapless offsets per partition.
#[derive(Clone, Default)]
pub(crate) struct Model {
    pub(crate) entries: Vec<Entry>,
    next: BTreeMap<(LogId, PartitionId), u64>,
}

impl Model {
    /// An entry that appends `messages` messages of `size` bytes to each of `targets`; `extra` logs are only touched.
    pub(crate) fn entry(
        &mut self,
        targets: &[(u64, u64)],
        messages: usize,
        size: usize,
        extra: &[u64],
    ) -> Entry {
        let index = self.last().next();
        let created = 1_000_000 * i64::try_from(index.0).unwrap();
        let mut appends = Vec::new();
        for (log, partition) in targets {
            let key = (LogId(*log), PartitionId(*partition));
            let next = self.next.entry(key).or_default();
            let base = *next;
            *next += messages as u64;
            let texts = (base..*next).map(|m| format!("t-{log}-{partition}-{m}")).collect();
            let payload = (0..size as u64)
                .map(|b| (b * 7 + index.0 * 31 + partition).to_le_bytes()[0] | 1)
                .collect();
            appends.push(Append { log: key.0, partition: key.1, base, created, texts, payload });
        }
        let touched = appends.iter().map(|a| a.log);
        let mut logs: Vec<LogId> = touched.chain(extra.iter().map(|l| LogId(*l))).collect();
        logs.sort_unstable();
        logs.dedup();
        let bytes = format!("entry {index} ").repeat(3).into_bytes();
        let entry = Entry { index, bytes, logs, appends };
        self.entries.push(entry.clone());
        entry
    }

    pub(crate) fn last(&self) -> EntryIndex {
        self.entries.last().map_or(EntryIndex(0), |entry| entry.index)
    }

    /// Forgets everything above `index`.
    pub(crate) fn truncate(&mut self, index: EntryIndex) {
        self.entries.retain(|entry| entry.index <= index);
        self.next.clear();
        for append in self.entries.iter().flat_map(|entry| &entry.appends) {
            let end = append.base + append.texts.len() as u64;
            self.next.insert((append.log, append.partition), end);
        }
    }
}

pub(crate) fn write(qlog: &Qlog, group: &[Entry]) -> Result<Vec<LogId>, Fault> {
    write_in_term(qlog, group, 7)
}

pub(crate) fn write_in_term(qlog: &Qlog, group: &[Entry], term: u64) -> Result<Vec<LogId>, Fault> {
    let hash = |a: &Append| a.texts.iter().map(|t| tx_hash(t)).collect::<Vec<TxHash>>();
    let hashes: Vec<Vec<Vec<TxHash>>> =
        group.iter().map(|e| e.appends.iter().map(hash).collect()).collect();
    let mut messages: Vec<Vec<MessageWrite<'_>>> = Vec::new();
    for (entry, hashes) in group.iter().zip(&hashes) {
        let list = entry.appends.iter().zip(hashes).map(|(a, hashes)| MessageWrite {
            log: a.log,
            partition: a.partition,
            base: Offset(a.base),
            created: Micros(a.created),
            hashes,
            payload: &a.payload,
            compressed: a.base % 2 == 1,
        });
        messages.push(list.collect());
    }
    let mut writes: Vec<EntryWrite<'_>> = Vec::new();
    for (entry, messages) in group.iter().zip(&messages) {
        writes.push(EntryWrite {
            index: entry.index,
            term,
            now: Micros(i64::try_from(entry.index.0).unwrap()),
            bytes: &entry.bytes,
            logs: &entry.logs,
            messages,
        });
    }
    qlog.append(&writes)
}

pub(crate) fn options(dir: impl AsRef<Path>, segment_bytes: u64) -> Options {
    Options { segment_bytes, fsync_threads: 0, ..Options::new(dir.as_ref()) }
}

pub(crate) type Opening = Result<(Qlog, Vec<RecoveredEntry>, Cut), OpenError>;

pub(crate) fn reopen(disk: &Arc<dyn Disk>, options: Options, durable: &DurablePoint) -> Opening {
    let (qlog, recovery) = Qlog::open(disk.clone(), options, durable)?;
    let mut entries = Vec::new();
    let cut = recovery.for_each(&mut |entry| {
        entries.push(entry);
        Ok(())
    })?;
    Ok((qlog, entries, cut))
}

/// Whether `found` are the model's entries from `first` on, with all their messages.
pub(crate) fn assert_entries(model: &Model, first: EntryIndex, found: &[RecoveredEntry]) {
    let wanted = model.entries.iter().filter(|entry| entry.index >= first);
    for (entry, found) in wanted.zip(found) {
        assert_eq!((entry.index, &entry.bytes, 7), (found.index, &found.bytes, found.term));
        let mut wanted: Vec<_> = entry
            .appends
            .iter()
            .map(|a| (a.log, a.partition, Offset(a.base), a.texts.len() as u64))
            .collect();
        wanted.sort_unstable();
        let heads = found.messages.iter();
        let mut got: Vec<_> =
            heads.map(|m| (m.log, m.partition, m.base, u64::from(m.count))).collect();
        got.sort_unstable();
        assert_eq!(wanted, got, "entry {}", entry.index);
    }
}

/// Every message of every partition reads back; nothing above the model's end does.
pub(crate) fn assert_reads(qlog: &Qlog, model: &Model) {
    let mut partitions: BTreeMap<(LogId, PartitionId), Vec<(EntryIndex, &Append)>> =
        BTreeMap::new();
    for entry in &model.entries {
        for append in &entry.appends {
            let key = (append.log, append.partition);
            partitions.entry(key).or_default().push((entry.index, append));
        }
    }
    for ((log, partition), appends) in &partitions {
        let found = qlog.read(*log, *partition, Offset(0), ALL).unwrap();
        assert_eq!(found.len(), appends.len(), "log {log} partition {partition}");
        for (record, (index, append)) in found.iter().zip(appends) {
            assert_eq!((record.base, record.index), (Offset(append.base), *index));
            assert_eq!(record.payload, append.payload);
            assert_eq!(record.compressed, append.base % 2 == 1);
            assert_eq!(record.created, Micros(append.created));
            let hashes: Vec<u8> = append.texts.iter().flat_map(|t| tx_hash(t).0).collect();
            assert_eq!(record.hashes, hashes);
        }
        for (index, append) in appends {
            assert_append(qlog, *index, append);
        }
        let last = appends.last().unwrap().1;
        let end = Offset(last.base + last.texts.len() as u64);
        assert_eq!(qlog.read(*log, *partition, end, ALL).unwrap(), []);
        let after = Micros(last.created + 1);
        assert_eq!(qlog.first_at_or_after(*log, *partition, after).unwrap(), None);
        assert_eq!(qlog.place_of(*log, *partition, end).unwrap(), None);
        assert_places(qlog, (*log, *partition), appends, end.0);
    }
    let mut seen = 0;
    qlog.hashes_since(Micros(0), &mut |_, _, _, hashes, _| seen += hashes.len()).unwrap();
    let wrote: usize = partitions.values().flatten().map(|(_, append)| append.texts.len()).sum();
    assert_eq!(seen, wrote);
}

/// Runs of records from any end backwards are what a walk finds.
fn assert_places(
    qlog: &Qlog,
    (log, partition): (LogId, PartitionId),
    appends: &[(EntryIndex, &Append)],
    end: u64,
) {
    for (from, until, max) in
        [(0, end, usize::MAX), (0, end, 2), (end / 2, end, 3), (1, end / 2, 9)]
    {
        let wanted: Vec<(u64, u64, i64)> = appends
            .iter()
            .rev()
            .map(|(_, append)| {
                (append.base, append.base + append.texts.len() as u64, append.created)
            })
            .filter(|(base, ends, _)| *base < until && *ends > from)
            .take(max)
            .collect();
        let found = qlog.places_back(log, partition, &(Offset(from)..Offset(until)), max).unwrap();
        let found: Vec<(u64, u64, i64)> =
            found.iter().map(|place| (place.base.0, place.end.0, place.created.0)).collect();
        assert_eq!(found, wanted, "{from}..{until}, at most {max}");
    }
}

fn assert_append(qlog: &Qlog, index: EntryIndex, append: &Append) {
    let (log, partition) = (append.log, append.partition);
    for (offset, text) in (append.base..).zip(&append.texts) {
        let one = ReadLimit { messages: 1, bytes: 1 };
        let found = qlog.read(log, partition, Offset(offset), one).unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].base, Offset(append.base));
        let place = qlog.place_of(log, partition, Offset(offset)).unwrap().unwrap();
        assert_eq!((place.base, place.created), (found[0].base, found[0].created));
        let within = SeqRange { from: index, to: index };
        let range = Offset(0)..Offset(u64::MAX);
        let hit = qlog.find_hash(log, partition, tx_hash(text), within, range).unwrap();
        assert_eq!(hit, [FoundHash { offset: Offset(offset), created: Micros(append.created) }]);
        let below = Offset(0)..Offset(offset);
        assert_eq!(qlog.find_hash(log, partition, tx_hash(text), within, below).unwrap(), []);
    }
    let at = qlog.first_at_or_after(log, partition, Micros(append.created - 1)).unwrap();
    assert_eq!(at, Some((Offset(append.base), Micros(append.created))));
}
