//! What a checkpoint of the store can do, whatever keeps it.

use std::path::Path;

use queen_state::{Keyspace, StoredRow};

use crate::error::StoreError;
use crate::image::ScrubPlace;

/// One changed row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The table.
    pub keyspace: Keyspace,
    /// 1 to 511 bytes. In `Keyspace::Meta` keys that begin with `store_` belong to the store.
    pub key: Vec<u8>,
    /// The row's bytes, without a seal; `None` deletes the row, which need not exist.
    pub value: Option<Vec<u8>>,
}

/// What a load found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loaded {
    /// Number of rows handed out.
    pub rows: u64,
    /// There was no checkpoint: an empty one has been made. Damage, when the logs say that there was one.
    pub fresh: bool,
}

/// What a write did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Number of changes.
    pub rows: u64,
    /// Bytes of their keys and stored values.
    pub bytes: u64,
    /// Time to put the rows into the transaction, µs.
    pub put_us: i64,
    /// Time to commit and sync, µs.
    pub commit_us: i64,
}

/// What a step of a merge did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Merged {
    /// Rows that reached their tables.
    pub rows: u64,
    /// More is to be done at once.
    pub more: bool,
}

/// Takes a loaded row: table, key, value without its seal. An error says why the row cannot be.
pub type OnRow<'r> = &'r mut dyn FnMut(Keyspace, &[u8], &[u8]) -> Result<(), String>;

/// Whether a stored value, if there is one, is that of a row.
pub type IsSame<'s> = &'s dyn Fn(&StoredRow, Option<&[u8]>) -> bool;

/// One durable image of all rows, replaced by a newer one as a whole.
///
/// After a crash at any moment the image is the last one that a `write` reported, or the one that was being
/// written: never a mix, and never neither.
pub trait Checkpoint: Send {
    /// Reads and verifies every row, in the order of `Keyspace::ALL` and of the keys, and hands it to `row`; an
    /// error from there is damage of that row. Verified are: the seal of each row; strictly ascending keys; the
    /// number of rows and the sum of their checksums against what the last write recorded; the format; and
    /// everything that the keeper's own layout lets it verify. Makes an empty checkpoint where there is none.
    ///
    /// # Errors
    /// `Damage`, `TooNew`: refuse to start. Rows that were handed out before must be thrown away.
    fn load(&mut self, row: OnRow<'_>) -> Result<Loaded, StoreError>;

    /// Writes all changes in one transaction, durable when this returns. Fastest with changes sorted by table and
    /// key; of two changes of one row the later one counts. Verifies the old value of each changed row.
    ///
    /// # Errors
    /// `KeyTooLong`, `KeyReserved`: nothing was written. Any other: the store is poisoned, and the process has
    /// to end.
    fn write(&mut self, changes: &mut dyn Iterator<Item = Change>) -> Result<Written, StoreError>;

    /// Makes `to` a copy of the image that the last write reported; returns the name that a store's directory has for
    /// it. `to` is a new file on the same file system, and is not synced. Reads as many bytes as the image has, or none.
    ///
    /// # Errors
    /// `Fault`: something may be left under this name. Poisons nothing.
    fn copy_image(&mut self, to: &Path) -> Result<&'static str, StoreError>;

    /// Goes on with what a `write` put off, in one small transaction, if it is time to. To be called now and then between
    /// writes, at a pace that leaves others the disk. What is durable stays the same.
    ///
    /// # Errors
    /// As `write`: the store is poisoned, and the process has to end.
    fn merge(&mut self) -> Result<Merged, StoreError> {
        Ok(Merged::default())
    }

    /// Verifies every row against the file again, as `load` does; returns their number.
    ///
    /// # Errors
    /// As `load`. Damage poisons nothing; the caller stops the process.
    fn verify(&mut self) -> Result<u64, StoreError>;

    /// Verifies up to `rows` rows behind `place`, which it moves, and returns how many those were: fewer than asked for at
    /// the end of a round, after which it begins again.
    ///
    /// # Errors
    /// As `verify`.
    fn scrub(&mut self, place: &mut ScrubPlace, rows: u64) -> Result<u64, StoreError> {
        *place = ScrubPlace::default();
        self.verify().map(|found| found.min(rows.saturating_sub(1)))
    }

    /// Compares rows that did not change since the last `write` with what is stored, by `is_same`, which gets a row and the
    /// stored value; returns how many were compared. A keeper may pass over rows that it cannot look up.
    ///
    /// # Errors
    /// `Damage` that names the row that differs: the file or the memory is not what was written.
    fn compare(&mut self, _rows: &[StoredRow], _is_same: IsSame<'_>) -> Result<u64, StoreError> {
        Ok(0)
    }
}
