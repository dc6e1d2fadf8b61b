//! The durable point: what every log held when the store recorded an index as durable.
//!
//! At the next start each recorded file must still be there with at least its recorded bytes. Without this a
//! deleted file would be a hole that nobody notices. What reclaim is about to take away is recorded before it goes:
//! only that may be there or not.
//!
//! ```text
//! point   = version u8 (2) | index | layout: 0, or 1 lanes shards | log count | log*
//! log     = id u64 | tail index | files | doomed | rewriting | retired u8
//! files   = count | (number - previous number, len)*
//! doomed  = count | (number - previous number)*
//! rewriting = count | (number - previous number, new len)*
//! ```
//! Numbers without a width are varints. The store seals the bytes, so they carry no checksum. Version 1, still read,
//! ends each log with its files.

use queen_record::ids::{EntryIndex, LogId};
use queen_record::le::{Reader, put_varint};

const VERSION: u8 = 2;
/// Of builds that never took a file away.
const VERSION_WHOLE: u8 = 1;

/// Every log as of an entry index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DurablePoint {
    /// All entries up to this one are synced in all their logs.
    pub index: EntryIndex,
    /// Lanes and shards; `None` before the first point.
    pub layout: Option<(u32, u32)>,
    /// Every log that holds a record at or below `index`, ascending.
    pub logs: Vec<LogTail>,
}

/// One log as of an entry index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogTail {
    /// The log.
    pub log: LogId,
    /// Its highest entry at or below the index.
    pub tail_index: EntryIndex,
    /// All its files as of then but the doomed ones, ascending; the newest is never doomed.
    pub files: Vec<FileTail>,
    /// Numbers of files that are being removed, ascending: they may be there, and go.
    pub doomed: Vec<u64>,
    /// Files, all among `files`, that are being replaced by a shorter one, ascending.
    pub rewriting: Vec<Rewriting>,
    /// Whether the whole log is being removed: without a record above `tail_index` it goes.
    pub retired: bool,
}

/// A file that is being replaced by one that holds its live messages: either may be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rewriting {
    /// Its number.
    pub number: u64,
    /// Bytes of the new one; less than those of the old one.
    pub len: u64,
}

/// One file as of an entry index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileTail {
    /// Its number.
    pub number: u64,
    /// Bytes up to the end of the last record at or below the index; the whole file unless it is the newest.
    pub len: u64,
}

/// Bytes that are no durable point, or one of a newer build.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PointError {
    /// A version this build does not know.
    #[error("durable point of version {0}")]
    Version(u8),
    /// Cut short, or followed by something.
    #[error("not a durable point")]
    Malformed,
}

impl DurablePoint {
    /// Appends the point's bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(VERSION);
        put_varint(out, self.index.0);
        match self.layout {
            None => out.push(0),
            Some((lanes, shards)) => {
                out.push(1);
                put_varint(out, u64::from(lanes));
                put_varint(out, u64::from(shards));
            }
        }
        put_varint(out, self.logs.len() as u64);
        for log in &self.logs {
            out.extend_from_slice(&log.log.0.to_le_bytes());
            put_varint(out, log.tail_index.0);
            put_numbers(out, log.files.iter().map(|file| (file.number, Some(file.len))));
            put_numbers(out, log.doomed.iter().map(|number| (*number, None)));
            put_numbers(out, log.rewriting.iter().map(|file| (file.number, Some(file.len))));
            out.push(u8::from(log.retired));
        }
    }

    /// Reads what `encode` wrote.
    ///
    /// # Errors
    /// [`PointError`]: a newer build's, or damaged in a way its seal did not show.
    pub fn decode(bytes: &[u8]) -> Result<Self, PointError> {
        let mut reader = Reader::new(bytes);
        let version = reader.u8().ok_or(PointError::Malformed)?;
        if !(VERSION_WHOLE..=VERSION).contains(&version) {
            return Err(PointError::Version(version));
        }
        let point = Self::read(&mut reader, version).ok_or(PointError::Malformed)?;
        if reader.rest().is_empty() { Ok(point) } else { Err(PointError::Malformed) }
    }

    fn read(reader: &mut Reader<'_>, version: u8) -> Option<Self> {
        let index = EntryIndex(reader.varint()?);
        let layout = match reader.u8()? {
            0 => None,
            1 => {
                Some((u32::try_from(reader.varint()?).ok()?, u32::try_from(reader.varint()?).ok()?))
            }
            _ => return None,
        };
        let mut logs = Vec::new();
        for _ in 0..reader.varint()? {
            let log = LogId(reader.u64()?);
            let tail_index = EntryIndex(reader.varint()?);
            let mut tail = LogTail { log, tail_index, ..LogTail::default() };
            tail.files = read_numbers(reader, |reader, number| {
                Some(FileTail { number, len: reader.varint()? })
            })?;
            if version != VERSION_WHOLE {
                tail.doomed = read_numbers(reader, |_, number| Some(number))?;
                tail.rewriting = read_numbers(reader, |reader, number| {
                    Some(Rewriting { number, len: reader.varint()? })
                })?;
                tail.retired = match reader.u8()? {
                    0 => false,
                    1 => true,
                    _ => return None,
                };
            }
            logs.push(tail);
        }
        Some(Self { index, layout, logs })
    }

    /// The recorded tail of `log`.
    #[must_use]
    pub fn log(&self, log: LogId) -> Option<&LogTail> {
        self.logs.iter().find(|tail| tail.log == log)
    }
}

/// A count, then ascending numbers as differences, each with its length if it has one.
fn put_numbers(out: &mut Vec<u8>, items: impl ExactSizeIterator<Item = (u64, Option<u64>)>) {
    put_varint(out, items.len() as u64);
    let mut previous = 0;
    for (number, len) in items {
        put_varint(out, number.wrapping_sub(previous));
        if let Some(len) = len {
            put_varint(out, len);
        }
        previous = number;
    }
}

fn read_numbers<T>(
    reader: &mut Reader<'_>,
    read: impl Fn(&mut Reader<'_>, u64) -> Option<T>,
) -> Option<Vec<T>> {
    let mut items = Vec::new();
    let mut number = 0u64;
    for _ in 0..reader.varint()? {
        number = number.wrapping_add(reader.varint()?);
        items.push(read(reader, number)?);
    }
    Some(items)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point() -> DurablePoint {
        DurablePoint {
            index: EntryIndex(1000),
            layout: Some((1, 4)),
            logs: vec![
                LogTail { log: LogId(0), tail_index: EntryIndex(9), ..LogTail::default() },
                LogTail {
                    log: LogId(u64::MAX),
                    tail_index: EntryIndex(1000),
                    files: vec![
                        FileTail { number: 3, len: 64 << 20 },
                        FileTail { number: 6, len: 32 },
                    ],
                    doomed: vec![1, 4, 5],
                    rewriting: vec![Rewriting { number: 3, len: 500 }],
                    retired: true,
                },
            ],
        }
    }

    #[test]
    fn a_point_reads_back_and_its_pieces_do_not() {
        let point = point();
        let mut bytes = Vec::new();
        point.encode(&mut bytes);
        assert_eq!(DurablePoint::decode(&bytes), Ok(point));
        for end in 0..bytes.len() {
            assert!(DurablePoint::decode(&bytes[..end]).is_err());
        }
        bytes.push(0);
        assert_eq!(DurablePoint::decode(&bytes), Err(PointError::Malformed));
        assert_eq!(DurablePoint::decode(&[3]), Err(PointError::Version(3)));
        assert_eq!(DurablePoint::decode(&[0]), Err(PointError::Version(0)));
    }

    /// Bytes of both versions that are in stores.
    #[test]
    fn both_versions_are_pinned() {
        let mut bytes = Vec::new();
        point().encode(&mut bytes);
        let golden: [&[u8]; 5] = [
            &[2, 0xe8, 7, 1, 1, 4, 2],
            &[0, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0],
            &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xe8, 7],
            &[2, 3, 0x80, 0x80, 0x80, 0x20, 3, 32],
            &[3, 1, 3, 1, 1, 3, 0xf4, 3, 1],
        ];
        assert_eq!(bytes, golden.concat());
        let whole: [&[u8]; 4] = [
            &[1, 0xe8, 7, 1, 1, 4, 2],
            &[0, 0, 0, 0, 0, 0, 0, 0, 9, 0],
            &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xe8, 7],
            &[2, 3, 0x80, 0x80, 0x80, 0x20, 3, 32],
        ];
        let mut known = point();
        for log in &mut known.logs {
            (log.doomed, log.rewriting, log.retired) = (vec![], vec![], false);
        }
        assert_eq!(DurablePoint::decode(&whole.concat()), Ok(known));
    }
}
