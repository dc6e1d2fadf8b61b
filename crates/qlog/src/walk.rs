//! A walk over one record file for whoever examines a directory: every record, and every stretch that is none.
//!
//! It opens nothing else, believes no side file, and goes on behind damage at the next bytes that verify.

use std::path::Path;
use std::sync::Arc;

use queen_io::{Disk, DiskFile, OpenMode};
use queen_record::header::{FileHeader, HEADER_LEN, HeaderError};
use queen_record::ids::{EntryIndex, LogId};
use queen_record::record::Record;

use crate::error::Fault;
use crate::names;
use crate::scan::{CHUNK_MERGE, FileScan, Step, find_record_behind, read_exact_at};

/// Entries by which a record behind damage may lead what stands before it; more is no record but chance.
const LEAD_MAX: u64 = 1 << 32;

/// The log that a directory name stands for; `None` for any other name.
pub fn log_of_name(name: &str) -> Option<LogId> {
    names::parse_log_dir(name)
}

/// The number in a record file's name; `None` for any other name.
pub fn number_of_name(name: &str) -> Option<u64> {
    names::parse_file(name)
}

/// The number in the name of a side file, `.qidx` or `.qhsh`; `None` for any other name.
pub fn number_of_side(name: &str) -> Option<u64> {
    let stem = name.strip_suffix(".qidx").or_else(|| name.strip_suffix(".qhsh"))?;
    names::parse_file(&format!("{stem}.qlog"))
}

/// Whether a name in the log directories stands for unfinished work that a start removes.
pub fn is_leftover(name: &str) -> bool {
    names::is_leftover(name) || names::is_dead_dir(name)
}

/// What a walk met.
#[derive(Debug)]
pub enum Walked<'a> {
    /// A verified record.
    Record {
        /// Where it starts.
        at: u64,
        /// The record.
        record: Record<'a>,
    },
    /// Bytes that are no record.
    Bad {
        /// Where they start.
        at: u64,
        /// Where the next record starts, or the file ends.
        until: u64,
        /// Why there is no record at `at`.
        reason: String,
    },
    /// The end: nothing is left, or only zeros written ahead.
    End {
        /// Where the records end.
        at: u64,
    },
}

/// A walk over one record file.
pub struct FileWalk {
    file: Arc<dyn DiskFile>,
    len: u64,
    header: Result<FileHeader, HeaderError>,
    scan: FileScan,
}

impl FileWalk {
    /// Opens a file and reads its header.
    ///
    /// # Errors
    /// The operating system's.
    pub fn open(disk: &dyn Disk, path: &Path) -> Result<Self, Fault> {
        let file = disk.open(path, OpenMode::Read).map_err(Fault::io(path, "open"))?;
        let len = file.len().map_err(Fault::io(path, "read"))?;
        let mut bytes = vec![0; HEADER_LEN.min(usize::try_from(len).unwrap_or(HEADER_LEN))];
        read_exact_at(&*file, &mut bytes, 0).map_err(Fault::io(path, "read"))?;
        let header = FileHeader::decode(&bytes);
        let from = (HEADER_LEN as u64).min(len);
        let scan = FileScan::new(file.clone(), from, len, CHUNK_MERGE);
        Ok(Self { file, len, header, scan })
    }

    /// The header, or what is wrong with it. The records behind it are walked all the same.
    pub fn header(&self) -> &Result<FileHeader, HeaderError> {
        &self.header
    }

    /// Bytes of the file.
    pub fn file_len(&self) -> u64 {
        self.len
    }

    /// Hands everything to `f`, in order, until it says `false` or the end was handed over.
    ///
    /// # Errors
    /// The operating system's.
    pub fn each(self, path: &Path, f: &mut dyn FnMut(Walked<'_>) -> bool) -> Result<(), Fault> {
        let Self { file, len, mut scan, .. } = self;
        let mut last = EntryIndex(0);
        loop {
            let at = scan.at();
            let reason = match scan.step().map_err(Fault::io(path, "read"))? {
                Step::Record(at, record) => {
                    last = last.max(record.head.seq);
                    if f(Walked::Record { at, record }) {
                        continue;
                    }
                    return Ok(());
                }
                Step::End => {
                    f(Walked::End { at });
                    return Ok(());
                }
                Step::Bad(error) => error.to_string(),
            };
            let seqs = (last, EntryIndex(last.0.saturating_add(LEAD_MAX)));
            let behind = find_record_behind(&*file, at, len, seqs);
            let until = behind.map_err(Fault::io(path, "read"))?.map_or(len, |(next, _)| next);
            if !f(Walked::Bad { at, until, reason }) {
                return Ok(());
            }
            scan = FileScan::new(file.clone(), until, len, CHUNK_MERGE);
        }
    }
}

#[cfg(test)]
mod tests {
    use queen_io::SimDisk;
    use queen_record::ids::{Micros, Offset, PartitionId, TxHash};
    use queen_record::record::MessageRecord;

    use super::*;

    fn file(records: u64) -> (Vec<u8>, Vec<u64>) {
        let mut bytes = FileHeader { number: 3, first_seq: EntryIndex(7) }.encode().to_vec();
        let mut starts = Vec::new();
        for n in 0..records {
            starts.push(bytes.len() as u64);
            let record = MessageRecord {
                seq: EntryIndex(7 + n),
                partition: PartitionId(1),
                base: Offset(n),
                created: Micros(5),
                compressed: false,
                hashes: &[TxHash([9; 16])],
                payload: &[u8::try_from(n).unwrap(); 40],
            };
            record.encode(&mut bytes).unwrap();
        }
        (bytes, starts)
    }

    fn walked(bytes: &[u8]) -> Vec<(char, u64, u64)> {
        let disk = SimDisk::new();
        let path = Path::new("/r00000003.qlog");
        disk.set_contents(path, bytes);
        let mut seen = Vec::new();
        let walk = FileWalk::open(&disk, path).unwrap();
        walk.each(path, &mut |step| {
            seen.push(match step {
                Walked::Record { at, record } => ('r', at, record.head.seq.0),
                Walked::Bad { at, until, .. } => ('b', at, until),
                Walked::End { at } => ('e', at, 0),
            });
            true
        })
        .unwrap();
        seen
    }

    #[test]
    fn damage_is_passed_over_and_the_rest_is_seen() {
        let (good, starts) = file(4);
        let end = good.len() as u64;
        let all: Vec<_> = starts.iter().zip(7..).map(|(at, seq)| ('r', *at, seq)).collect();
        let whole = [&*all, &[('e', end, 0)]].concat();
        assert_eq!(walked(&good), whole);
        let zeros = [&*good, &[0; 99]].concat();
        assert_eq!(walked(&zeros), whole);
        for at in starts[1]..starts[2] {
            let mut bad = good.clone();
            bad[usize::try_from(at).unwrap()] ^= 0x10;
            let want = [all[0], ('b', starts[1], starts[2]), all[2], all[3], ('e', end, 0)];
            assert_eq!(walked(&bad), want, "byte {at}");
        }
        let short = &good[..good.len() - 1];
        assert_eq!(walked(short)[3..], [('b', starts[3], end - 1), ('e', end - 1, 0)]);
        for len in 0..HEADER_LEN {
            assert_eq!(walked(&good[..len]), [('e', len as u64, 0)]);
        }
    }

    #[test]
    fn names_are_read() {
        assert_eq!(number_of_side("r00000012.qidx"), Some(12));
        assert_eq!(number_of_side("r00000012.qhsh"), Some(12));
        assert_eq!(number_of_side("r00000012.qlog"), None);
        assert_eq!(number_of_side("r12.qidx"), None);
        assert!(is_leftover("q7.dead") && is_leftover("LANES.tmp") && !is_leftover("q7"));
    }
}
