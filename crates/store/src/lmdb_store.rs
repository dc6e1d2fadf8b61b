//! The checkpoint in an LMDB file.
//!
//! ```text
//! store/data.mdb   one table per keyspace
//! store/lock.mdb   empty; locked while a process has the store open
//! store/new/       a file in the making: removed at open
//! ```
//!
//! The file is made aside, synced and renamed into place, so a `data.mdb` is never short or half made: one that
//! is, is damaged. LMDB maps it only after `load` or `verify` has found no fault in it with plain reads.
//!
//! LMDB's commit syncs the data, then writes and syncs the meta page, which lies in one sector: a power cut
//! leaves the old tree or the new one.
//!
//! A write is cut into small transactions (`defer`), so neither its size in memory nor its burst on the disk grows with the
//! number of changes. The map is grown between transactions, to what the next one can need at most.
//!
//! LMDB keeps the memory of its largest transaction until it is closed. After a write of many transactions, a merge, and
//! one transaction that may have dirtied more than `DIRTY_PAGES_KEPT` pages, which takes a row of many megabytes, it is
//! therefore closed; the next transaction opens it again.

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use queen_io::{Clock, Disk, DiskFile, OpenMode, RealDisk, SystemClock};
use queen_state::{Keyspace, StoredRow};

use crate::checkpoint::{Change, Checkpoint, IsSame, Loaded, Merged, OnRow, Written};
use crate::directory::{MAKING, prepare};
use crate::error::StoreError;
use crate::image::{self, ScrubPlace, page_len};
use crate::lmdb::{Env, EnvOptions, LmdbError, Table, Txn, trim_memory};
use crate::seal::Seals;
use crate::sums::{FORMAT, FORMAT_KEY, SUMS_KEY, Sums};
use crate::table::TableName;
use defer::{Deferred, Room, Tuning};
use writer::Writer;

mod defer;
mod writer;

const GIB: u64 = 1 << 30;
const TABLES_MAX: u32 = 64;
/// 16 MiB of memory with pages of 4 KiB.
const DIRTY_PAGES_KEPT: u64 = 4096;

/// How an LMDB store uses the machine.
#[derive(Clone, Copy, Debug)]
pub struct LmdbOptions {
    /// Address space for the file, in bytes. Grown between writes, see `headroom_bytes`.
    pub map_bytes: u64,
    /// The map is grown before a transaction until it has room for the file, the most that the transaction can add, and
    /// this much.
    pub headroom_bytes: u64,
}

impl LmdbOptions {
    /// A map of 64 GiB or a quarter of the disk that holds `path`, whichever is less, at least 1 GiB.
    ///
    /// # Errors
    /// `Fault` when the disk's size cannot be read.
    pub fn for_disk(path: &Path) -> Result<Self, StoreError> {
        let disk = rustix::fs::statvfs(path)
            .map_err(|error| StoreError::fault(path, "statvfs")(error.into()))?;
        let quarter = disk.f_blocks.saturating_mul(disk.f_frsize) / 4;
        Ok(Self { map_bytes: quarter.clamp(GIB, 64 * GIB), headroom_bytes: GIB })
    }
}

/// A checkpoint in an LMDB file.
pub struct LmdbStore {
    directory: PathBuf,
    file_path: PathBuf,
    options: LmdbOptions,
    /// Locked for as long as the store lives.
    _lock: File,
    file: Option<Arc<dyn DiskFile>>,
    /// Only over a verified file.
    env: Option<Env>,
    verified: bool,
    poisoned: bool,
    /// As of the last commit.
    format: u32,
    deferred: Deferred,
    /// Length of the file as of the last transaction, free pages included.
    used_bytes: u64,
    tuning: Tuning,
    seals: Seals,
    clock: SystemClock,
}

impl LmdbStore {
    /// Takes the directory, which is made when it is missing (its parent must exist). Reads no row.
    ///
    /// # Errors
    /// `Fault` with `WouldBlock` when another store has it open.
    pub fn open(directory: &Path, options: LmdbOptions) -> Result<Self, StoreError> {
        prepare(&RealDisk, directory)?;
        let lock = lock(&directory.join("lock.mdb"))?;
        let file_path = directory.join("data.mdb");
        Ok(Self {
            directory: directory.to_owned(),
            file_path,
            options,
            _lock: lock,
            file: None,
            env: None,
            verified: false,
            poisoned: false,
            format: FORMAT,
            deferred: Deferred::default(),
            used_bytes: 0,
            tuning: Tuning::default(),
            seals: Seals::new(),
            clock: SystemClock::new(),
        })
    }

    /// The file, opened once; made when it is missing. The second value says whether it was made.
    fn file(&mut self) -> Result<(Arc<dyn DiskFile>, bool), StoreError> {
        if let Some(file) = &self.file {
            return Ok((Arc::clone(file), false));
        }
        let fault = |operation| StoreError::fault(&self.file_path, operation);
        let fresh = !RealDisk.exists(&self.file_path).map_err(fault("look for"))?;
        if fresh {
            self.make()?;
        }
        let file = RealDisk.open(&self.file_path, OpenMode::Read).map_err(fault("open"))?;
        self.file = Some(Arc::clone(&file));
        Ok((file, fresh))
    }

    /// Makes the file aside and moves it into place. Two commits, so that both meta pages have a tree.
    fn make(&self) -> Result<(), StoreError> {
        let disk = RealDisk;
        let making = self.directory.join(MAKING);
        let fault = |operation| StoreError::fault(&making, operation);
        disk.create_dir(&making).map_err(fault("create directory"))?;
        let map_bytes = self.options.map_bytes;
        let options = EnvOptions { map_bytes, tables_max: TABLES_MAX };
        let failed = |error| lmdb_error(&making.join("data.mdb"), "make", None, error);
        let mut env = Env::open(&making, options).map_err(failed)?;
        for _ in 0..2 {
            let mut txn = env.begin().map_err(failed)?;
            let meta = txn.table(&name_of(Keyspace::Meta.into())).map_err(failed)?;
            let mut format = FORMAT.to_le_bytes().to_vec();
            self.seals.seal(Keyspace::Meta, FORMAT_KEY, &mut format);
            txn.put(meta, FORMAT_KEY, &format).map_err(failed)?;
            let mut sums = Sums::new();
            sums.commit = txn.commit_number();
            put_sums(&mut txn, meta, &sums, &self.seals).map_err(failed)?;
            txn.commit().map_err(failed)?;
        }
        drop(env);
        let moved = disk.rename(&making.join("data.mdb"), &self.file_path);
        moved.map_err(StoreError::fault(&self.file_path, "rename"))?;
        // The name must be durable before the first write is: a checkpoint that nobody finds is none.
        disk.sync_dir(&self.directory).map_err(StoreError::fault(&self.directory, "sync"))?;
        disk.remove_dir(&making).map_err(fault("remove"))
    }

    fn verify_file(&mut self, on_row: OnRow<'_>) -> Result<(u64, bool), StoreError> {
        let (file, fresh) = self.file()?;
        let found = image::verify(&self.file_path, &file, on_row)?;
        self.format = found.format;
        self.used_bytes = file.len().map_err(StoreError::fault(&self.file_path, "length"))?;
        let rows = found.rows;
        self.deferred.found(found);
        self.verified = true;
        Ok((rows, fresh))
    }

    /// The environment with room for a transaction that adds so many bytes at most.
    fn env(&mut self, room: u64) -> Result<&mut Env, StoreError> {
        let failed = |error| lmdb_error(&self.file_path, "map", None, error);
        let mut env = if let Some(env) = self.env.take() {
            env
        } else {
            let map_bytes = self.options.map_bytes;
            let options = EnvOptions { map_bytes, tables_max: TABLES_MAX };
            Env::open(&self.directory, options).map_err(failed)?
        };
        let used = env.used_pages().map_err(failed)?.saturating_mul(page_len() as u64);
        self.used_bytes = used;
        let needed = used.saturating_add(room).saturating_add(self.options.headroom_bytes);
        if needed > self.options.map_bytes && !self.tuning.is_map_fixed {
            let map_bytes = needed.max(self.options.map_bytes.saturating_mul(2));
            env.set_map_bytes(map_bytes).map_err(failed)?;
            tracing::info!(bytes = map_bytes, "checkpoint map grown");
            self.options.map_bytes = map_bytes;
        }
        Ok(self.env.insert(env))
    }

    /// Runs `work` in a transaction of its own, which is durable when this returns. Returns the time of the commit too.
    fn transact<T>(
        &mut self,
        room: Room,
        work: impl FnOnce(&mut Writer<'_>) -> Result<T, StoreError>,
    ) -> Result<(T, i64), StoreError> {
        self.env(room.bytes())?;
        let (Some(env), seals, path) = (&mut self.env, &self.seals, &self.file_path) else {
            return Err(StoreError::Poisoned);
        };
        let txn = env.begin().map_err(|error| lmdb_error(path, "begin", None, error))?;
        let mut writer = Writer::begin(path, txn, seals)?;
        if self.format != FORMAT {
            writer.put_format()?;
        }
        let done = work(&mut writer)?;
        let dirty_pages = writer.dirty_pages();
        let txn = writer.finish()?;
        let began_us = self.clock.monotonic_us();
        txn.commit().map_err(|error| lmdb_error(path, "commit", None, error))?;
        self.format = FORMAT;
        let took_us = self.clock.monotonic_us() - began_us;
        if dirty_pages > DIRTY_PAGES_KEPT {
            self.give_back_memory();
        }
        Ok((done, took_us))
    }

    fn give_back_memory(&mut self) {
        self.env = None;
        trim_memory();
    }

    /// What a failed call leaves behind.
    fn settle<T>(&mut self, result: Result<T, StoreError>) -> Result<T, StoreError> {
        if result.as_ref().is_err_and(StoreError::poisons) {
            self.poisoned = true;
            self.env = None;
        }
        result
    }
}

impl Checkpoint for LmdbStore {
    fn load(&mut self, row: OnRow<'_>) -> Result<Loaded, StoreError> {
        let (rows, fresh) = self.verify_file(row)?;
        Ok(Loaded { rows, fresh })
    }

    fn write(&mut self, changes: &mut dyn Iterator<Item = Change>) -> Result<Written, StoreError> {
        if self.poisoned {
            return Err(StoreError::Poisoned);
        }
        let result = self.write_all(changes);
        self.settle(result)
    }

    fn merge(&mut self) -> Result<Merged, StoreError> {
        if self.poisoned {
            return Err(StoreError::Poisoned);
        }
        let result = self.merge_some();
        self.settle(result)
    }

    /// Copied by the system, which shares the blocks where the file system can. LMDB writes with plain writes and only
    /// inside of [`Checkpoint::write`], so the file stands still meanwhile.
    fn copy_image(&mut self, to: &Path) -> Result<&'static str, StoreError> {
        self.file()?;
        let mut from =
            File::open(&self.file_path).map_err(StoreError::fault(&self.file_path, "open"))?;
        let mut options = OpenOptions::new();
        let copy = options.write(true).create_new(true).mode(0o600).open(to);
        let mut copy = copy.map_err(StoreError::fault(to, "create"))?;
        std::io::copy(&mut from, &mut copy).map_err(StoreError::fault(to, "write"))?;
        Ok("data.mdb")
    }

    fn verify(&mut self) -> Result<u64, StoreError> {
        Ok(self.verify_file(&mut |_, _, _| Ok(()))?.0)
    }

    fn scrub(&mut self, place: &mut ScrubPlace, rows: u64) -> Result<u64, StoreError> {
        let (file, _) = self.file()?;
        image::scrub(&self.file_path, &file, place, rows)
    }

    fn compare(&mut self, rows: &[StoredRow], is_same: IsSame<'_>) -> Result<u64, StoreError> {
        if self.poisoned || !self.verified {
            return Err(StoreError::Poisoned);
        }
        let deferred = &self.deferred;
        let is_in_table = |row: &&StoredRow| !deferred.has(row.keyspace, &row.key);
        let rows: Vec<&StoredRow> = rows.iter().filter(is_in_table).collect();
        self.env(0)?;
        let (Some(env), seals, path) = (&mut self.env, &self.seals, &self.file_path) else {
            return Err(StoreError::Poisoned);
        };
        let txn = env.begin().map_err(|error| lmdb_error(path, "begin", None, error))?;
        let reader = Writer::begin(path, txn, seals)?;
        for row in &rows {
            if !is_same(row, reader.value(row.keyspace, &row.key)?) {
                let reason = "has a row that differs from the one in memory, so one of the two is \
                              damaged; a start verifies the file and makes memory from it";
                let table = row.keyspace.into();
                return Err(StoreError::row_damage(path, table, &row.key, reason.to_owned()));
            }
        }
        Ok(rows.len() as u64)
    }
}

fn put_sums(txn: &mut Txn<'_>, meta: Table, sums: &Sums, seals: &Seals) -> Result<(), LmdbError> {
    let mut stored = sums.encode();
    seals.seal(Keyspace::Meta, SUMS_KEY, &mut stored);
    txn.put(meta, SUMS_KEY, &stored)
}

fn name_of(table: TableName) -> CString {
    // A name with a zero byte would end there; none has one.
    CString::new(table.name()).unwrap_or_default()
}

fn lock(path: &Path) -> Result<File, StoreError> {
    let fault = |operation| StoreError::fault(path, operation);
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    let flags = rustix::fs::OFlags::RDWR
        | rustix::fs::OFlags::CREATE
        | rustix::fs::OFlags::NOFOLLOW
        | rustix::fs::OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, mode).map_err(|error| fault("open")(error.into()))?;
    let operation = rustix::fs::FlockOperation::NonBlockingLockExclusive;
    rustix::fs::flock(&file, operation).map_err(|error| fault("lock")(error.into()))?;
    Ok(file.into())
}

fn lmdb_error(
    path: &Path,
    operation: &'static str,
    place: Option<(TableName, &[u8])>,
    error: LmdbError,
) -> StoreError {
    let path = path.to_owned();
    match error {
        LmdbError::Damaged(text) => StoreError::Damage {
            path,
            keyspace: place.and_then(|(table, _)| table.keyspace()),
            key: place.map_or_else(Vec::new, |(_, key)| key.to_vec()),
            reason: format!("has a page that LMDB refuses: {text}"),
        },
        LmdbError::MapFull => {
            let source = std::io::Error::other("a transaction outgrew the map made for it");
            StoreError::Fault { path, operation, source }
        }
        LmdbError::System(source) => StoreError::Fault { path, operation, source },
    }
}

#[cfg(test)]
mod tests;
