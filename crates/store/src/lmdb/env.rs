//! Environment, transaction and table handles that end by themselves.

use std::ffi::{CStr, CString};
use std::marker::PhantomData;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::{self, NonNull};
use std::{io, slice};

use super::ffi;

/// What LMDB answered.
#[derive(Debug)]
pub(crate) enum LmdbError {
    /// It found the file inconsistent.
    Damaged(String),
    /// The map is too small for the transaction.
    MapFull,
    /// The operating system failed, or a call was refused.
    System(io::Error),
}

impl LmdbError {
    fn of(code: i32) -> Self {
        match code {
            ffi::MDB_MAP_FULL => Self::MapFull,
            ffi::MDB_PAGE_NOTFOUND
            | ffi::MDB_CORRUPTED
            | ffi::MDB_PANIC
            | ffi::MDB_INVALID
            | ffi::MDB_VERSION_MISMATCH => Self::Damaged(text_of(code)),
            code if code > 0 => Self::System(io::Error::from_raw_os_error(code)),
            code => Self::System(io::Error::other(text_of(code))),
        }
    }
}

fn text_of(code: i32) -> String {
    // SAFETY: mdb_strerror takes any code and returns a NUL-terminated text that lives at least until the next
    // call on this thread; it is copied at once.
    let text = unsafe { CStr::from_ptr(ffi::mdb_strerror(code)) };
    text.to_string_lossy().into_owned()
}

fn check(code: i32) -> Result<(), LmdbError> {
    if code == 0 { Ok(()) } else { Err(LmdbError::of(code)) }
}

/// Sizes of an environment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EnvOptions {
    /// Address space for the file, in bytes.
    pub(crate) map_bytes: u64,
    /// Number of named tables.
    pub(crate) tables_max: u32,
}

/// An open environment: the file `data.mdb` of a directory, mapped.
pub(crate) struct Env {
    raw: NonNull<ffi::MDB_env>,
}

// SAFETY: with MDB_NOTLS and MDB_NOLOCK an environment is tied to no thread, and every use needs `&mut Env`.
unsafe impl Send for Env {}

impl Env {
    /// Opens or creates the file. The caller must be the only one that has it open, and must have verified it.
    pub(crate) fn open(directory: &Path, options: EnvOptions) -> Result<Self, LmdbError> {
        let path = CString::new(directory.as_os_str().as_bytes())
            .map_err(|error| LmdbError::System(error.into()))?;
        let mut raw = ptr::null_mut();
        // SAFETY: `raw` is a place for the pointer; it is set when the call succeeds.
        check(unsafe { ffi::mdb_env_create(&raw mut raw) })?;
        let raw = NonNull::new(raw)
            .ok_or_else(|| LmdbError::System(io::ErrorKind::OutOfMemory.into()))?;
        // From here on dropping it closes it, which LMDB asks for also when opening fails.
        let mut env = Self { raw };
        env.set_map_bytes(options.map_bytes)?;
        // SAFETY: the environment is created and not yet open.
        check(unsafe { ffi::mdb_env_set_maxdbs(env.raw.as_ptr(), options.tables_max) })?;
        // Each commit is synced by LMDB itself, data before meta page. MDB_NOSYNC with one sync afterwards would
        // save a sync, but a power cut between the two may leave a meta page without its data.
        let flags = ffi::MDB_NOTLS | ffi::MDB_NOLOCK | ffi::MDB_NORDAHEAD;
        // SAFETY: `path` is a NUL-terminated text that outlives the call.
        check(unsafe { ffi::mdb_env_open(env.raw.as_ptr(), path.as_ptr(), flags, 0o600) })?;
        Ok(env)
    }

    /// Changes the size of the map. No transaction is open: it would borrow the environment.
    pub(crate) fn set_map_bytes(&mut self, bytes: u64) -> Result<(), LmdbError> {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        // SAFETY: no transaction is open, and no slice of the map is alive, as both borrow `self`.
        check(unsafe { ffi::mdb_env_set_mapsize(self.raw.as_ptr(), bytes) })
    }

    /// Number of pages of the file up to its last one, free pages included.
    pub(crate) fn used_pages(&mut self) -> Result<u64, LmdbError> {
        let mut info = ffi::MDB_envinfo {
            me_mapaddr: ptr::null_mut(),
            me_mapsize: 0,
            me_last_pgno: 0,
            me_last_txnid: 0,
            me_maxreaders: 0,
            me_numreaders: 0,
        };
        // SAFETY: the environment is open, and `info` is a place for the answer.
        check(unsafe { ffi::mdb_env_info(self.raw.as_ptr(), &raw mut info) })?;
        Ok(info.me_last_pgno as u64 + 1)
    }

    /// Starts the transaction.
    pub(crate) fn begin(&mut self) -> Result<Txn<'_>, LmdbError> {
        let mut raw = ptr::null_mut();
        // SAFETY: the environment is open and has no other transaction, as that would borrow it.
        check(unsafe { ffi::mdb_txn_begin(self.raw.as_ptr(), ptr::null_mut(), 0, &raw mut raw) })?;
        let raw = NonNull::new(raw)
            .ok_or_else(|| LmdbError::System(io::ErrorKind::OutOfMemory.into()))?;
        Ok(Txn { raw, env: PhantomData })
    }
}

impl Drop for Env {
    fn drop(&mut self) {
        // SAFETY: created by `open`, closed only here; no transaction is open, as that would borrow it.
        unsafe { ffi::mdb_env_close(self.raw.as_ptr()) }
    }
}

/// A named table, for the transaction that opened it. LMDB checks the number, so in another one it is an error
/// or another table, but never a stray pointer.
#[derive(Clone, Copy)]
pub(crate) struct Table {
    handle: ffi::MDB_dbi,
}

/// The write transaction of an environment. Dropped without a commit it changes nothing.
pub(crate) struct Txn<'e> {
    raw: NonNull<ffi::MDB_txn>,
    env: PhantomData<&'e mut Env>,
}

impl Txn<'_> {
    /// The number that its commit will have.
    pub(crate) fn commit_number(&self) -> u64 {
        // SAFETY: the transaction is open.
        unsafe { ffi::mdb_txn_id(self.raw.as_ptr()) as u64 }
    }

    /// Opens a table, making it when it does not exist.
    pub(crate) fn table(&mut self, name: &CStr) -> Result<Table, LmdbError> {
        let mut handle = 0;
        // SAFETY: the transaction is open, the name is NUL-terminated, and `handle` is a place for the answer.
        check(unsafe {
            ffi::mdb_dbi_open(self.raw.as_ptr(), name.as_ptr(), ffi::MDB_CREATE, &raw mut handle)
        })?;
        Ok(Table { handle })
    }

    /// The stored bytes of a row; they end with the next change.
    pub(crate) fn get(&self, table: Table, key: &[u8]) -> Result<Option<&[u8]>, LmdbError> {
        let mut key = value_of(key);
        let mut value = value_of(&[]);
        // SAFETY: the transaction is open, the table is of its environment, and LMDB only reads the key.
        let code =
            unsafe { ffi::mdb_get(self.raw.as_ptr(), table.handle, &raw mut key, &raw mut value) };
        if code == ffi::MDB_NOTFOUND {
            return Ok(None);
        }
        check(code)?;
        if value.mv_size == 0 {
            return Ok(Some(&[]));
        }
        // SAFETY: LMDB has set pointer and length to bytes in the map or in a page of the transaction. They stay
        // until its next change or end, and both need the transaction mutably or by value.
        Ok(Some(unsafe { slice::from_raw_parts(value.mv_data.cast(), value.mv_size) }))
    }

    /// Puts a row, replacing one with the same key.
    pub(crate) fn put(&mut self, table: Table, key: &[u8], stored: &[u8]) -> Result<(), LmdbError> {
        let mut key = value_of(key);
        let mut value = value_of(stored);
        // SAFETY: the transaction is open, the table is of its environment, and without MDB_RESERVE LMDB only
        // reads key and value, which outlive the call.
        check(unsafe {
            ffi::mdb_put(self.raw.as_ptr(), table.handle, &raw mut key, &raw mut value, 0)
        })
    }

    /// Deletes a row that may be missing.
    pub(crate) fn delete(&mut self, table: Table, key: &[u8]) -> Result<(), LmdbError> {
        let mut key = value_of(key);
        // SAFETY: the transaction is open, the table is of its environment, LMDB only reads the key, and no
        // value is given since the table has none twice.
        let code =
            unsafe { ffi::mdb_del(self.raw.as_ptr(), table.handle, &raw mut key, ptr::null_mut()) };
        if code == ffi::MDB_NOTFOUND { Ok(()) } else { check(code) }
    }

    /// Makes all changes durable at once. On an error none of them counts.
    pub(crate) fn commit(self) -> Result<(), LmdbError> {
        let raw = self.raw;
        std::mem::forget(self);
        // SAFETY: the transaction is open; LMDB frees it whether it commits or not, so it is not dropped too.
        check(unsafe { ffi::mdb_txn_commit(raw.as_ptr()) })
    }
}

impl Drop for Txn<'_> {
    fn drop(&mut self) {
        // SAFETY: the transaction is open: `commit` does not drop it.
        unsafe { ffi::mdb_txn_abort(self.raw.as_ptr()) }
    }
}

/// Hands freed memory back to the system: the C library keeps it otherwise. Takes milliseconds, so it is for threads
/// that nobody waits for, after they let go of much.
pub fn trim_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: malloc_trim may be called at any time; it moves nothing that is in use.
    unsafe {
        ffi::malloc_trim(0);
    }
}

/// Fixes the size from which the C library takes an allocation from the system by itself and gives it back when it is
/// freed. Left alone it raises that size with every large allocation that is freed, and keeps such memory from then on.
/// To be called once, at the start of the process.
pub fn bound_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: mallopt takes two numbers and may be called at any time.
    unsafe {
        ffi::mallopt(ffi::M_MMAP_THRESHOLD, LARGE_BYTES);
        ffi::mallopt(ffi::M_TRIM_THRESHOLD, LARGE_BYTES);
    }
}

/// The C library's own first value.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const LARGE_BYTES: std::ffi::c_int = 128 * 1024;

/// LMDB's view of a slice that it will not write to.
fn value_of(bytes: &[u8]) -> ffi::MDB_val {
    ffi::MDB_val { mv_size: bytes.len(), mv_data: bytes.as_ptr().cast_mut().cast() }
}
