//! Walks the records of bytes in memory.

use crate::record::{Record, RecordError, decode};

/// What a walk met at one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step<'a> {
    /// A verified record.
    Record {
        /// Where it starts.
        at: usize,
        /// The record.
        record: Record<'a>,
    },
    /// The bytes end with the last record.
    End {
        /// Where they end.
        at: usize,
    },
    /// Only zeros are left: space written ahead of the end.
    Zeros {
        /// Where the zeros start.
        at: usize,
    },
    /// Something that is no record.
    Bad {
        /// Where it starts.
        at: usize,
        /// Why it is none.
        error: RecordError,
    },
}

/// Walks `bytes` from a given place; after anything but a record the walk stays where it is.
#[derive(Clone, Debug)]
pub struct Scanner<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Scanner<'a> {
    /// A walk over `bytes` that starts at `at`.
    #[must_use]
    pub fn new(bytes: &'a [u8], at: usize) -> Self {
        Self { bytes, at: at.min(bytes.len()) }
    }

    /// The next step.
    pub fn step(&mut self) -> Step<'a> {
        let at = self.at;
        let rest = self.bytes.get(at..).unwrap_or_default();
        if rest.is_empty() {
            return Step::End { at };
        }
        if rest.starts_with(&[0; 4]) && rest.iter().all(|byte| *byte == 0) {
            return Step::Zeros { at };
        }
        match decode(rest) {
            Ok(record) => {
                self.at += record.total_len();
                Step::Record { at, record }
            }
            Err(error) => Step::Bad { at, error },
        }
    }
}
