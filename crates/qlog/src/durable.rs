//! The durable point: what every log held when the store recorded an index as durable.
//!
//! At the next start each recorded file must still be there with at least its recorded bytes. Without this a
//! deleted file would be a hole that nobody notices.
//!
//! ```text
//! point = version u8 (1) | index | layout: 0, or 1 lanes shards | log count | log*
//! log   = id u64 | tail index | file count | (number - previous number, len)*
//! ```
//! Numbers without a width are varints. The store seals the bytes, so they carry no checksum.

use queen_record::ids::{EntryIndex, LogId};
use queen_record::le::{Reader, put_varint};

const VERSION: u8 = 1;

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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogTail {
    /// The log.
    pub log: LogId,
    /// Its highest entry at or below the index.
    pub tail_index: EntryIndex,
    /// All its files as of then, ascending.
    pub files: Vec<FileTail>,
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
            put_varint(out, log.files.len() as u64);
            let mut previous = 0;
            for file in &log.files {
                put_varint(out, file.number.wrapping_sub(previous));
                put_varint(out, file.len);
                previous = file.number;
            }
        }
    }

    /// Reads what `encode` wrote.
    ///
    /// # Errors
    /// [`PointError`]: a newer build's, or damaged in a way its seal did not show.
    pub fn decode(bytes: &[u8]) -> Result<Self, PointError> {
        let mut reader = Reader::new(bytes);
        let version = reader.u8().ok_or(PointError::Malformed)?;
        if version != VERSION {
            return Err(PointError::Version(version));
        }
        let point = Self::read(&mut reader).ok_or(PointError::Malformed)?;
        if reader.rest().is_empty() { Ok(point) } else { Err(PointError::Malformed) }
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
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
            let mut files = Vec::new();
            let mut number = 0u64;
            for _ in 0..reader.varint()? {
                number = number.wrapping_add(reader.varint()?);
                files.push(FileTail { number, len: reader.varint()? });
            }
            logs.push(LogTail { log, tail_index, files });
        }
        Some(Self { index, layout, logs })
    }

    /// The recorded tail of `log`.
    #[must_use]
    pub fn log(&self, log: LogId) -> Option<&LogTail> {
        self.logs.iter().find(|tail| tail.log == log)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_point_reads_back_and_its_pieces_do_not() {
        let point = DurablePoint {
            index: EntryIndex(1000),
            layout: Some((1, 4)),
            logs: vec![
                LogTail { log: LogId(0), tail_index: EntryIndex(9), files: vec![] },
                LogTail {
                    log: LogId(u64::MAX),
                    tail_index: EntryIndex(1000),
                    files: vec![
                        FileTail { number: 3, len: 64 << 20 },
                        FileTail { number: 4, len: 32 },
                    ],
                },
            ],
        };
        let mut bytes = Vec::new();
        point.encode(&mut bytes);
        assert_eq!(DurablePoint::decode(&bytes), Ok(point));
        for end in 0..bytes.len() {
            assert!(DurablePoint::decode(&bytes[..end]).is_err());
        }
        bytes.push(0);
        assert_eq!(DurablePoint::decode(&bytes), Err(PointError::Malformed));
        assert_eq!(DurablePoint::decode(&[2]), Err(PointError::Version(2)));
    }
}
