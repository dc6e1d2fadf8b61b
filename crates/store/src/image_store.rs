//! The checkpoint of an LMDB file that is only read: with the plain reads of the load, on any disk, without LMDB.
//!
//! It accepts and refuses exactly what [`crate::LmdbStore`] does, because it verifies by the same function and makes the
//! directory ready by the same one; only an empty directory stays empty. For examining a directory.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use queen_io::{Disk, OpenMode};

use crate::checkpoint::{Change, Checkpoint, Loaded, OnRow, Written};
use crate::directory::prepare;
use crate::error::StoreError;
use crate::image;

/// An LMDB file that is read and never written.
pub struct ImageStore {
    disk: Arc<dyn Disk>,
    path: PathBuf,
}

impl ImageStore {
    /// Makes the directory ready as a start does. Reads no row.
    ///
    /// # Errors
    /// `Fault` when the directory cannot be made ready.
    pub fn open(disk: Arc<dyn Disk>, directory: &Path) -> Result<Self, StoreError> {
        prepare(&*disk, directory)?;
        let lock = directory.join("lock.mdb");
        let fault = |operation| StoreError::fault(&lock, operation);
        let there = disk.exists(&lock).map_err(fault("look for"))?;
        let mode = if there { OpenMode::Write } else { OpenMode::CreateNew };
        disk.open(&lock, mode).map_err(fault("open"))?;
        Ok(Self { disk, path: directory.join("data.mdb") })
    }

    /// The file below a directory that is left as it is.
    pub fn of_file(disk: Arc<dyn Disk>, path: &Path) -> Self {
        Self { disk, path: path.to_path_buf() }
    }
}

impl Checkpoint for ImageStore {
    fn load(&mut self, row: OnRow<'_>) -> Result<Loaded, StoreError> {
        let fault = |operation| StoreError::fault(&self.path, operation);
        if !self.disk.exists(&self.path).map_err(fault("look for"))? {
            return Ok(Loaded { rows: 0, fresh: true });
        }
        let file = self.disk.open(&self.path, OpenMode::Read).map_err(fault("open"))?;
        let rows = image::verify(&self.path, &file, row)?.rows;
        Ok(Loaded { rows, fresh: false })
    }

    /// Always fails.
    fn write(&mut self, _: &mut dyn Iterator<Item = Change>) -> Result<Written, StoreError> {
        Err(StoreError::fault(&self.path, "write")(std::io::ErrorKind::ReadOnlyFilesystem.into()))
    }

    fn copy_image(&mut self, to: &Path) -> Result<&'static str, StoreError> {
        self.disk.link(&self.path, to).map_err(StoreError::fault(&self.path, "link"))?;
        Ok("data.mdb")
    }

    fn verify(&mut self) -> Result<u64, StoreError> {
        Ok(self.load(&mut |_, _, _| Ok(()))?.rows)
    }
}

#[cfg(test)]
mod tests {
    use queen_io::{RealDisk, ScratchDisk};
    use queen_state::Keyspace;

    use super::*;
    use crate::{LmdbOptions, LmdbStore};

    type Row = (Keyspace, Vec<u8>, Vec<u8>);

    fn rows(store: &mut dyn Checkpoint) -> Result<Vec<Row>, String> {
        let mut rows = Vec::new();
        let loaded = store.load(&mut |keyspace, key, value| {
            rows.push((keyspace, key.to_vec(), value.to_vec()));
            Ok(())
        });
        loaded.map(|_| rows).map_err(|error| error.to_string())
    }

    /// Both read the same rows, and refuse the same file with the same text; reading leaves nothing behind.
    #[test]
    fn it_reads_what_the_store_reads() {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join("store");
        let options = LmdbOptions { map_bytes: 1 << 24, headroom_bytes: 1 << 20 };
        let disk = || ScratchDisk::new(Arc::new(RealDisk), root.path());
        let image = || ImageStore::open(Arc::new(disk()), &directory).unwrap();
        assert_eq!(image().load(&mut |_, _, _| Ok(())).unwrap(), Loaded { rows: 0, fresh: true });
        assert!(!directory.exists());

        let mut store = LmdbStore::open(&directory, options).unwrap();
        let change = |n: u8| Change {
            keyspace: Keyspace::Queues,
            key: vec![n],
            value: Some(vec![n; usize::from(n)]),
        };
        store.write(&mut (1..200).map(change)).unwrap();
        drop(store);
        let read = || rows(&mut LmdbStore::open(&directory, options).unwrap());
        assert_eq!(rows(&mut image()), read());
        assert_eq!(rows(&mut image()).unwrap().len(), 199);
        assert!(image().write(&mut std::iter::empty()).is_err());

        let path = directory.join("data.mdb");
        let good = std::fs::read(&path).unwrap();
        let mut refused = 0;
        for at in (0..good.len()).step_by(1009) {
            let mut bad = good.clone();
            bad[at] ^= 4;
            std::fs::write(&path, bad).unwrap();
            assert_eq!(rows(&mut image()), read(), "byte {at}");
            refused += u32::from(read().is_err());
        }
        assert!(refused > 10, "{refused}");
    }
}
