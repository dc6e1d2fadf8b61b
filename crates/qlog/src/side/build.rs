//! Making side files: one scan verifies the sealed file, then each side file is written in key order.
//!
//! Nothing is kept of the scan but a fingerprint. The order comes from the index in RAM, else from a list made by a
//! second scan; the hashes are read again. What is written must have the fingerprint of what was verified.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::RwLock;
use queen_io::{Disk, DiskFile, OpenMode};
use queen_record::hash::Checksum;
use queen_record::header::HEADER_LEN;
use queen_record::ids::{EntryIndex, Micros, Offset};
use queen_record::qhsh::{self, QhshHead};
use queen_record::qidx::{self, QIDX_RECORD_LEN, QidxRecord};
use queen_record::record::{HASH_LEN, HEAD_LEN, Head, Kind, Record};
use queen_record::side::{SIDE_HEADER_LEN, SideHeader};

use super::window::{PIECE, WINDOW, Window};
use super::{Blocks, Key, Ranges, SideIndex, index_record};
use crate::error::Fault;
use crate::file::RamIndex;
use crate::names::{Ext, file_path, rewrite_path};
use crate::scan::{CHUNK_MERGE, FileScan, Step};

/// Records taken from the order at once.
const BATCH: usize = 256;
/// Hashes with fewer bytes than this between them are read by one call.
const GAP_MAX: u64 = 4096;
/// Bytes of a transaction's id and its number of participants, and where the number is.
const TRANSACTION_HEAD: u64 = 18;
const PARTICIPANTS_AT: usize = 16;

/// What a scan of a sealed file found to be wrong.
pub(crate) struct Flaw {
    pub(crate) at: u64,
    pub(crate) reason: String,
}

/// Why no side files were made.
pub(crate) enum BuildError {
    /// The operating system refused.
    Fault(Fault),
    /// The sealed file is damaged.
    Flaw(Flaw),
}

impl From<Fault> for BuildError {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

fn flaw(at: u64, reason: impl Into<String>) -> BuildError {
    BuildError::Flaw(Flaw { at, reason: reason.into() })
}

/// A sealed file that needs side files.
pub(crate) struct SealedFile<'a> {
    pub(crate) disk: &'a dyn Disk,
    /// Directory of its log.
    pub(crate) dir: &'a Path,
    pub(crate) path: &'a Path,
    pub(crate) file: Arc<dyn DiskFile>,
    pub(crate) number: u64,
    pub(crate) len: u64,
    /// Lowest and highest seq its records may have.
    pub(crate) seqs: (EntryIndex, EntryIndex),
    pub(crate) place: SidePlace,
}

/// Where side files go.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum SidePlace {
    /// To their own names.
    Own,
    /// To the names under which a rewritten file waits.
    Waiting,
}

/// What stays of the message records that a scan verified: sums that do not depend on the order.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Seen {
    records: usize,
    hash_bytes: u64,
    places: u64,
    hashes: u64,
}

impl Seen {
    fn place(&mut self, print: &Checksum) {
        self.records += 1;
        self.places = self.places.wrapping_add(print.value());
    }

    fn hashes(&mut self, print: &Checksum, record: &QidxRecord) {
        self.hash_bytes += HASH_LEN as u64 * u64::from(record.count);
        self.hashes = self.hashes.wrapping_add(print.value());
    }
}

/// The checksum of a record's place, to which its hashes are added.
fn fingerprint(record: &QidxRecord, scratch: &mut Vec<u8>) -> Checksum {
    scratch.clear();
    record.encode(scratch);
    let mut print = Checksum::new();
    print.update(scratch);
    print
}

/// A [`QidxRecord`] without its end: 40 bytes.
struct Place {
    key: Key,
    created: Micros,
    at: u64,
    count: u32,
    len: u32,
}

const _: () = assert!(size_of::<Place>() == 40);

impl Place {
    fn new(record: &QidxRecord) -> Self {
        let QidxRecord { at, count, len, created, .. } = *record;
        Self { key: record.key(), created, at, count, len }
    }

    fn record(&self) -> QidxRecord {
        QidxRecord {
            partition: self.key.0,
            base: self.key.1,
            end: Offset(self.key.1.0.saturating_add(u64::from(self.count))),
            created: self.created,
            at: self.at,
            count: self.count,
            len: self.len,
        }
    }
}

/// The message records by key.
enum Order<'a> {
    Ram(&'a RwLock<RamIndex>),
    List(&'a [Place]),
}

impl Order<'_> {
    /// Hands over all records in batches. No lock is held meanwhile (Q6).
    fn batches(&self, f: &mut dyn FnMut(&[QidxRecord]) -> Result<(), Fault>) -> Result<(), Fault> {
        let mut batch = Vec::with_capacity(BATCH);
        match self {
            Self::Ram(index) => loop {
                let last = batch.last().map(QidxRecord::key);
                index.read().after(last, BATCH, &mut batch);
                if batch.is_empty() {
                    return Ok(());
                }
                f(&batch)?;
            },
            Self::List(list) => list.chunks(BATCH).try_for_each(|places| {
                batch.clear();
                batch.extend(places.iter().map(Place::record));
                f(&batch)
            }),
        }
    }
}

impl SealedFile<'_> {
    /// Verifies the whole file and writes its side files. `ram` is the index the file had while it was written, if it
    /// is there; the file itself decides.
    ///
    /// Every record's seq must lie in `seqs`, both ends included, and none may be lower than the one before it.
    pub(crate) fn build(&self, ram: Option<&RwLock<RamIndex>>) -> Result<SideIndex, BuildError> {
        let seen = self.verify()?;
        if let Some(ram) = ram
            && let Some(side) = self.write(&Order::Ram(ram), &seen)?
        {
            return Ok(side);
        }
        let list = self.list(&seen)?;
        self.write(&Order::List(&list), &seen)?
            .ok_or_else(|| flaw(HEADER_LEN as u64, "the file changed while it was read"))
    }

    fn verify(&self) -> Result<Seen, BuildError> {
        let mut seen = Seen::default();
        let mut scratch = Vec::with_capacity(QIDX_RECORD_LEN);
        self.scan(&mut |entry, record| {
            let mut print = fingerprint(&entry, &mut scratch);
            seen.place(&print);
            print.update(record.hashes);
            seen.hashes(&print, &entry);
        })?;
        Ok(seen)
    }

    /// The places of the `seen` records, sorted; no two may be of the same offset.
    fn list(&self, seen: &Seen) -> Result<Vec<Place>, BuildError> {
        let mut list = Vec::with_capacity(seen.records);
        self.scan(&mut |entry, _| list.push(Place::new(&entry)))?;
        list.sort_unstable_by_key(|place| (place.key, place.at));
        let twice = list.windows(2).find_map(|pair| match pair {
            [a, b] if a.key == b.key => Some(b.at),
            _ => None,
        });
        match twice {
            Some(at) => Err(flaw(at, "a second record of the same offset")),
            None => Ok(list),
        }
    }

    /// Reads and verifies every record; `f` gets those with messages.
    fn scan(&self, f: &mut dyn FnMut(QidxRecord, &Record<'_>)) -> Result<(), BuildError> {
        let mut scan = FileScan::new(self.file.clone(), HEADER_LEN as u64, self.len, CHUNK_MERGE);
        let mut last = self.seqs.0;
        loop {
            let here = scan.at();
            let (at, record) = match scan.step().map_err(Fault::io(self.path, "read"))? {
                Step::Record(at, record) => (at, record),
                Step::End if here == self.len => return Ok(()),
                Step::End => return Err(flaw(here, "zeros inside a sealed file")),
                Step::Bad(error) => return Err(flaw(here, error.to_string())),
            };
            let seq = record.head.seq;
            if seq < last || seq > self.seqs.1 {
                return Err(flaw(at, format!("seq {seq} does not belong here")));
            }
            last = seq;
            if let Some(entry) = index_record(at, &record) {
                f(entry, &record);
            }
        }
    }

    /// Writes both side files; `None` when the records are not the `seen` ones. Unsynced: what a crash leaves of them
    /// is checked and made again.
    fn write(&self, order: &Order<'_>, seen: &Seen) -> Result<Option<SideIndex>, Fault> {
        let mut found = Seen::default();
        let mut ranges = Ranges::nothing();
        let mut scratch = Vec::with_capacity(QIDX_RECORD_LEN);
        let body = (seen.records * QIDX_RECORD_LEN) as u64;
        let mut index = Output::new(self, Ext::Index, Blocks::of_index(body))?;
        order.batches(&mut |batch| {
            batch.iter().try_for_each(|record| {
                found.place(&fingerprint(record, &mut scratch));
                ranges.add(record);
                index.blocks.begin(record.key());
                index.put(&scratch)?;
                index.blocks.end();
                Ok(())
            })
        })?;
        if (found.records, found.places) != (seen.records, seen.places) {
            return Ok(None);
        }
        let index = index.finish(self, qidx::encode_header)?;
        let body = seen.hash_bytes + (seen.records * qhsh::QHSH_HEAD_LEN) as u64;
        let mut hashes = Output::new(self, Ext::Hashes, Blocks::of_hashes(body))?;
        let mut window = Window::new(&*self.file, self.len);
        order.batches(&mut |batch| {
            for run in batch.chunk_by(close) {
                let until = run.last().map_or(0, hashes_end);
                for record in run {
                    let mut print = fingerprint(record, &mut scratch);
                    self.copy_hashes(&mut window, record, until, &mut hashes, &mut print)?;
                    found.hashes(&print, record);
                }
            }
            Ok(())
        })?;
        if found != *seen {
            return Ok(None);
        }
        let hashes = hashes.finish(self, qhsh::encode_header)?;
        Ok(Some(ranges.index(index, hashes)))
    }

    /// Copies one record's hashes and adds them to its fingerprint; a record that is not there has none.
    fn copy_hashes(
        &self,
        window: &mut Window<'_>,
        record: &QidxRecord,
        until: u64,
        out: &mut Output,
        print: &mut Checksum,
    ) -> Result<(), Fault> {
        let QidxRecord { partition, base, created, count, .. } = *record;
        let wrong = |error| Fault::io(self.path, "read")(error);
        out.blocks.begin(record.key());
        out.put(&QhshHead { partition, base, created, count }.encode())?;
        let from = hashes_start(window, record.at, until).map_err(wrong)?;
        let mut at = from.unwrap_or(u64::MAX);
        let end = at.saturating_add(HASH_LEN as u64 * u64::from(count));
        while at < end {
            let len = (end - at).min(PIECE);
            let Some(bytes) = window.get(at, len, until.max(end)).map_err(wrong)? else { break };
            print.update(bytes);
            out.put(bytes)?;
            at += len;
        }
        out.blocks.end();
        Ok(())
    }
}

/// Where the hashes of the message record at `at` start.
fn hashes_start(window: &mut Window<'_>, at: u64, until: u64) -> io::Result<Option<u64>> {
    let start = at + HEAD_LEN as u64;
    let Some(head) = window.get(at, HEAD_LEN as u64, until)? else { return Ok(None) };
    if !Head::decode(head).is_ok_and(|head| head.kind == Kind::Transaction) {
        return Ok(Some(start));
    }
    let Some(bytes) = window.get(start, TRANSACTION_HEAD, until)? else { return Ok(None) };
    let participants = bytes.get(PARTICIPANTS_AT..).and_then(|rest| rest.first_chunk::<2>());
    let count = participants.map_or(0, |raw| u64::from(u16::from_le_bytes(*raw)));
    Ok(Some(start + TRANSACTION_HEAD + 8 * count))
}

/// Where a record's hashes end, unless it is part of a transaction.
fn hashes_end(record: &QidxRecord) -> u64 {
    record.at + HEAD_LEN as u64 + HASH_LEN as u64 * u64::from(record.count)
}

fn close(a: &QidxRecord, b: &QidxRecord) -> bool {
    let end = hashes_end(a);
    b.at >= end && b.at - end <= GAP_MAX
}

/// A side file that is being written, its header last.
struct Output {
    ext: Ext,
    tmp: PathBuf,
    file: Arc<dyn DiskFile>,
    buf: Vec<u8>,
    /// Where the buffer goes.
    at: u64,
    blocks: Blocks,
}

impl Output {
    fn new(sealed: &SealedFile<'_>, ext: Ext, blocks: Blocks) -> Result<Self, Fault> {
        let tmp = match sealed.place {
            SidePlace::Own => file_path(sealed.dir, sealed.number, ext).with_extension("tmp"),
            SidePlace::Waiting => rewrite_path(sealed.dir, sealed.number, ext),
        };
        let file = sealed.disk.open(&tmp, OpenMode::Truncate).map_err(Fault::io(&tmp, "create"))?;
        let buf = Vec::with_capacity(WINDOW);
        Ok(Self { ext, tmp, file, buf, at: SIDE_HEADER_LEN as u64, blocks })
    }

    /// Adds bytes of a record, at most [`WINDOW`].
    fn put(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        self.blocks.add(bytes);
        if self.buf.len() + bytes.len() > WINDOW {
            self.flush()?;
        }
        self.buf.extend_from_slice(bytes);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Fault> {
        if !self.buf.is_empty() {
            self.file.write_all_at(&self.buf, self.at).map_err(Fault::io(&self.tmp, "write"))?;
            self.at += self.buf.len() as u64;
            self.buf.clear();
        }
        Ok(())
    }

    /// Writes what is left and the header, and gives the file its name.
    fn finish(
        mut self,
        sealed: &SealedFile<'_>,
        encode: impl Fn(&SideHeader) -> [u8; SIDE_HEADER_LEN],
    ) -> Result<Blocks, Fault> {
        self.flush()?;
        let header = encode(&SideHeader {
            number: sealed.number,
            records: self.blocks.records,
            log_len: sealed.len,
            body_checksum: self.blocks.total.value(),
        });
        self.file.write_all_at(&header, 0).map_err(Fault::io(&self.tmp, "write"))?;
        if sealed.place == SidePlace::Waiting {
            return Ok(self.blocks);
        }
        let path = file_path(sealed.dir, sealed.number, self.ext);
        sealed.disk.rename(&self.tmp, &path).map_err(Fault::io(&path, "rename to"))?;
        Ok(self.blocks)
    }
}
