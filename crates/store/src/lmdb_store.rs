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
//! LMDB keeps the memory of its largest transaction until it is closed. A write that may have dirtied more than
//! `DIRTY_PAGES_KEPT` pages is therefore followed by closing it; the next write opens it again.

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use queen_io::{Clock, Disk, DiskFile, OpenMode, RealDisk, SystemClock};
use queen_state::Keyspace;

use crate::checkpoint::{Change, Checkpoint, Loaded, OnRow, Written};
use crate::directory::{MAKING, prepare};
use crate::error::StoreError;
use crate::image::{self, page_len};
use crate::lmdb::{Env, EnvOptions, LmdbError, Table, Txn, trim_memory};
use crate::seal::{SEAL_LEN, Seals};
use crate::sums::{FORMAT, FORMAT_KEY, SUMS_KEY, Sums, check_key};

const GIB: u64 = 1 << 30;
const TABLES_MAX: u32 = 64;
/// 16 MiB of memory with pages of 4 KiB.
const DIRTY_PAGES_KEPT: u64 = 4096;

/// How an LMDB store uses the machine.
#[derive(Clone, Copy, Debug)]
pub struct LmdbOptions {
    /// Address space for the file, in bytes. Grown between writes, see `headroom_bytes`.
    pub map_bytes: u64,
    /// The map is grown before a write until it has room for three times the file and this much: the most that
    /// one write can add.
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
            let meta = txn.table(&name_of(Keyspace::Meta)).map_err(failed)?;
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
        let rows = image::verify(&self.file_path, &file, on_row)?;
        self.verified = true;
        Ok((rows, fresh))
    }

    /// The environment with room for a write.
    fn env(&mut self) -> Result<&mut Env, StoreError> {
        let failed = |error| lmdb_error(&self.file_path, "map", None, error);
        let mut env = if let Some(env) = self.env.take() {
            env
        } else {
            let map_bytes = self.options.map_bytes;
            let options = EnvOptions { map_bytes, tables_max: TABLES_MAX };
            Env::open(&self.directory, options).map_err(failed)?
        };
        let used = env.used_pages().map_err(failed)?.saturating_mul(page_len() as u64);
        let needed = used.saturating_mul(4).saturating_add(self.options.headroom_bytes);
        if needed > self.options.map_bytes {
            let map_bytes = needed.max(self.options.map_bytes.saturating_mul(2));
            env.set_map_bytes(map_bytes).map_err(failed)?;
            tracing::info!(bytes = map_bytes, "checkpoint map grown");
            self.options.map_bytes = map_bytes;
        }
        Ok(self.env.insert(env))
    }

    fn write_all(
        &mut self,
        changes: &mut dyn Iterator<Item = Change>,
    ) -> Result<(Written, u64), StoreError> {
        if !self.verified {
            self.verify()?;
        }
        let began_us = self.clock.monotonic_us();
        let path = self.file_path.clone();
        self.env()?;
        let (Some(env), seals) = (&mut self.env, &self.seals) else {
            return Err(StoreError::Poisoned);
        };
        let failed = |error| lmdb_error(&path, "begin", None, error);
        let txn = env.begin().map_err(failed)?;
        let mut writer = Writer::begin(&path, txn, seals)?;
        for change in changes {
            writer.change(change)?;
        }
        let (mut written, dirty_pages, txn) = writer.finish()?;
        let put_us = self.clock.monotonic_us();
        txn.commit().map_err(|error| lmdb_error(&path, "commit", None, error))?;
        written.put_us = put_us - began_us;
        written.commit_us = self.clock.monotonic_us() - put_us;
        Ok((written, dirty_pages))
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
        match result {
            Ok((written, dirty_pages)) => {
                if dirty_pages > DIRTY_PAGES_KEPT {
                    self.env = None;
                    trim_memory();
                }
                Ok(written)
            }
            Err(error) => {
                if error.poisons() {
                    self.poisoned = true;
                    self.env = None;
                }
                Err(error)
            }
        }
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
}

/// One transaction's changes, with the counts that go with them.
struct Writer<'w> {
    path: &'w Path,
    txn: Txn<'w>,
    tables: Vec<(Keyspace, Table)>,
    seals: &'w Seals,
    sums: Sums,
    written: Written,
    /// At most this many, but for branch pages.
    dirty_pages: u64,
}

impl<'w> Writer<'w> {
    fn begin(path: &'w Path, mut txn: Txn<'w>, seals: &'w Seals) -> Result<Self, StoreError> {
        let mut tables = Vec::new();
        for keyspace in Keyspace::ALL {
            let table = txn.table(&name_of(keyspace));
            let failed = |error| lmdb_error(path, "open table", Some((keyspace, &[])), error);
            tables.push((keyspace, table.map_err(failed)?));
        }
        let (sums, written) = (Sums::new(), Written::default());
        let mut writer = Self { path, txn, tables, seals, sums, written, dirty_pages: 0 };
        let damaged = || writer.damaged(Keyspace::Meta, SUMS_KEY);
        let stored = writer.get(Keyspace::Meta, SUMS_KEY)?.ok_or_else(damaged)?;
        let value = seals.open(Keyspace::Meta, SUMS_KEY, stored).ok_or_else(damaged)?.0;
        writer.sums = Sums::decode(value).ok_or_else(damaged)?;
        Ok(writer)
    }

    fn change(&mut self, change: Change) -> Result<(), StoreError> {
        check_key(&change)?;
        let Change { keyspace, key, value } = change;
        if let Some(old) = self.get(keyspace, &key)? {
            let opened = self.seals.open(keyspace, &key, old);
            let (_, checksum) = opened.ok_or_else(|| self.damaged(keyspace, &key))?;
            self.sums.subtract(keyspace, checksum);
        }
        self.written.rows += 1;
        self.written.bytes += key.len() as u64;
        self.dirty_pages += 1;
        let table = self.table(keyspace)?;
        let path = self.path;
        let failed = |operation| {
            let place = Some((keyspace, key.as_slice()));
            move |error| lmdb_error(path, operation, place, error)
        };
        match value {
            Some(mut stored) => {
                stored.reserve_exact(SEAL_LEN);
                let checksum = self.seals.seal(keyspace, &key, &mut stored);
                self.sums.add(keyspace, checksum);
                self.written.bytes += stored.len() as u64;
                self.dirty_pages += (stored.len() / page_len()) as u64;
                self.txn.put(table, &key, &stored).map_err(failed("put"))
            }
            None => self.txn.delete(table, &key).map_err(failed("delete")),
        }
    }

    fn finish(mut self) -> Result<(Written, u64, Txn<'w>), StoreError> {
        self.sums.commit = self.txn.commit_number();
        let table = self.table(Keyspace::Meta)?;
        let put = put_sums(&mut self.txn, table, &self.sums, self.seals);
        put.map_err(|error| lmdb_error(self.path, "put", None, error))?;
        Ok((self.written, self.dirty_pages, self.txn))
    }

    fn get(&self, keyspace: Keyspace, key: &[u8]) -> Result<Option<&[u8]>, StoreError> {
        let got = self.txn.get(self.table(keyspace)?, key);
        got.map_err(|error| lmdb_error(self.path, "get", Some((keyspace, key)), error))
    }

    fn table(&self, keyspace: Keyspace) -> Result<Table, StoreError> {
        let found = self.tables.iter().find(|(known, _)| *known == keyspace);
        found.map(|(_, table)| *table).ok_or_else(|| self.damaged(keyspace, &[]))
    }

    fn damaged(&self, keyspace: Keyspace, key: &[u8]) -> StoreError {
        StoreError::Damage {
            path: self.path.to_owned(),
            keyspace: Some(keyspace),
            key: key.to_vec(),
            reason: "has a row that fails its checksum".to_owned(),
        }
    }
}

fn put_sums(txn: &mut Txn<'_>, meta: Table, sums: &Sums, seals: &Seals) -> Result<(), LmdbError> {
    let mut stored = sums.encode();
    seals.seal(Keyspace::Meta, SUMS_KEY, &mut stored);
    txn.put(meta, SUMS_KEY, &stored)
}

fn name_of(keyspace: Keyspace) -> CString {
    // A name with a zero byte would end there; none has one.
    CString::new(keyspace.name()).unwrap_or_default()
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
    place: Option<(Keyspace, &[u8])>,
    error: LmdbError,
) -> StoreError {
    let path = path.to_owned();
    match error {
        LmdbError::Damaged(text) => StoreError::Damage {
            path,
            keyspace: place.map(|(keyspace, _)| keyspace),
            key: place.map_or_else(Vec::new, |(_, key)| key.to_vec()),
            reason: format!("has a page that LMDB refuses: {text}"),
        },
        LmdbError::MapFull => {
            let source = std::io::Error::other("more than three times the file in one write");
            StoreError::Fault { path, operation, source }
        }
        LmdbError::System(source) => StoreError::Fault { path, operation, source },
    }
}

#[cfg(test)]
mod tests;
