//! Every C name that the binding uses.

#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub(super) use libc::{M_MMAP_THRESHOLD, M_TRIM_THRESHOLD, malloc_trim, mallopt};
pub(super) use lmdb_master_sys::{
    MDB_CORRUPTED, MDB_CREATE, MDB_INVALID, MDB_MAP_FULL, MDB_NOLOCK, MDB_NORDAHEAD, MDB_NOTFOUND,
    MDB_NOTLS, MDB_PAGE_NOTFOUND, MDB_PANIC, MDB_VERSION_MISMATCH, MDB_dbi, MDB_env, MDB_envinfo,
    MDB_txn, MDB_val, mdb_dbi_open, mdb_del, mdb_env_close, mdb_env_create, mdb_env_info,
    mdb_env_open, mdb_env_set_mapsize, mdb_env_set_maxdbs, mdb_get, mdb_put, mdb_strerror,
    mdb_txn_abort, mdb_txn_begin, mdb_txn_commit, mdb_txn_id,
};
