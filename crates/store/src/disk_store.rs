//! The checkpoint in a plain file on any disk, for simulations: LMDB's file is mapped, and a simulated disk has
//! no map.
//!
//! Each write makes the whole image anew: `image.tmp`, sync, rename to `image`, sync of the directory. So a power
//! cut leaves the old image or the new one, as with LMDB. All rows are kept in memory too: it is made for small
//! states.
//!
//! ```text
//! image = magic "QNSTORE1" | sums length u32 | sums row, sealed | row count u64 | rows | XXH3_64 of all before
//! row   = table seed u64 | key length u32 | stored length u32 | key | stored value
//! ```

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use queen_io::{Disk, OpenMode, site};
use queen_state::Keyspace;
use xxhash_rust::xxh3::xxh3_64;

use crate::checkpoint::{Change, Checkpoint, Loaded, OnRow, Written};
use crate::directory::make_directory;
use crate::error::StoreError;
use crate::seal::{Seals, keyspace_seed};
use crate::sums::{SUMS_KEY, Sums, check_key};

const MAGIC: &[u8; 8] = b"QNSTORE1";

type Rows = BTreeMap<(Keyspace, Vec<u8>), Vec<u8>>;

/// A checkpoint in a plain file.
pub struct DiskStore {
    disk: Arc<dyn Disk>,
    directory: PathBuf,
    /// As in the file; `None` before it was read.
    image: Option<Image>,
    poisoned: bool,
    seals: Seals,
}

#[derive(Clone)]
struct Image {
    rows: Rows,
    sums: Sums,
}

impl DiskStore {
    /// Takes the directory, which is made when it is missing (its parent must exist). Reads no row.
    ///
    /// # Errors
    /// `Fault` when the directory cannot be made.
    pub fn open(disk: Arc<dyn Disk>, directory: &Path) -> Result<Self, StoreError> {
        make_directory(disk.as_ref(), directory)?;
        let (directory, seals) = (directory.to_owned(), Seals::new());
        Ok(Self { disk, directory, image: None, poisoned: false, seals })
    }

    fn path(&self) -> PathBuf {
        self.directory.join("image")
    }

    /// The image in the file; an empty one is written where there is no file.
    fn read(&self) -> Result<(Image, bool), StoreError> {
        let path = self.path();
        let fault = |operation| StoreError::fault(&path, operation);
        if !self.disk.exists(&path).map_err(fault("look for"))? {
            let image = Image { rows: Rows::new(), sums: Sums::new() };
            self.replace(&image)?;
            return Ok((image, true));
        }
        let file = self.disk.open(&path, OpenMode::Read).map_err(fault("open"))?;
        let len = usize::try_from(file.len().map_err(fault("length"))?).unwrap_or(usize::MAX);
        let mut bytes = vec![0; len];
        let count = file.read_at(&mut bytes, 0).map_err(fault("read"))?;
        bytes.truncate(count);
        let damaged = || StoreError::damage(&path, "is not a whole image");
        let (body, checksum) = bytes.split_last_chunk::<8>().ok_or_else(damaged)?;
        if xxh3_64(body) != u64::from_le_bytes(*checksum) {
            return Err(damaged());
        }
        let image = decode(body, &self.seals).ok_or_else(damaged)?;
        let mut found = Sums::new();
        for ((keyspace, key), stored) in &image.rows {
            let opened = self.seals.open(*keyspace, key, stored);
            let (_, checksum) = opened.ok_or_else(|| self.row_damage(*keyspace, key))?;
            found.add(*keyspace, checksum);
        }
        match image.sums.difference(&found) {
            Some(table) => Err(self.row_damage(table.keyspace().unwrap_or(Keyspace::Meta), &[])),
            None => Ok((image, false)),
        }
    }

    fn row_damage(&self, keyspace: Keyspace, key: &[u8]) -> StoreError {
        let reason = "has a row that fails its checksum".to_owned();
        StoreError::Damage {
            path: self.path(),
            keyspace: Some(keyspace),
            key: key.to_vec(),
            reason,
        }
    }

    /// Writes the image aside, syncs it and moves it into place.
    fn replace(&self, image: &Image) -> Result<u64, StoreError> {
        let _site = site("checkpoint");
        let path = self.path();
        let aside = self.directory.join("image.tmp");
        let mut bytes = encode(image, &self.seals);
        let checksum = xxh3_64(&bytes);
        bytes.extend_from_slice(&checksum.to_le_bytes());
        let fault = |operation| StoreError::fault(&aside, operation);
        let file = self.disk.open(&aside, OpenMode::Truncate).map_err(fault("open"))?;
        file.write_all_at(&bytes, 0).map_err(fault("write"))?;
        file.sync_data().map_err(fault("sync"))?;
        self.disk.rename(&aside, &path).map_err(StoreError::fault(&path, "rename"))?;
        self.disk.sync_dir(&self.directory).map_err(StoreError::fault(&self.directory, "sync"))?;
        Ok(bytes.len() as u64)
    }

    fn change(&self, image: &mut Image, change: Change) -> Result<(), StoreError> {
        let Change { keyspace, key, value } = change;
        let place = (keyspace, key);
        if let Some(old) = image.rows.remove(&place) {
            let opened = self.seals.open(keyspace, &place.1, &old);
            let (_, checksum) = opened.ok_or_else(|| self.row_damage(keyspace, &place.1))?;
            image.sums.subtract(keyspace, checksum);
        }
        if let Some(mut stored) = value {
            let checksum = self.seals.seal(keyspace, &place.1, &mut stored);
            image.sums.add(keyspace, checksum);
            image.rows.insert(place, stored);
        }
        Ok(())
    }

    fn write_all(
        &mut self,
        changes: &mut dyn Iterator<Item = Change>,
    ) -> Result<Written, StoreError> {
        let mut image = match &self.image {
            Some(image) => image.clone(),
            None => self.read()?.0,
        };
        let mut written = Written::default();
        for change in changes {
            check_key(&change)?;
            written.rows += 1;
            self.change(&mut image, change)?;
        }
        image.sums.commit += 1;
        written.bytes = self.replace(&image)?;
        self.image = Some(image);
        Ok(written)
    }
}

impl Checkpoint for DiskStore {
    fn load(&mut self, row: OnRow<'_>) -> Result<Loaded, StoreError> {
        let (image, fresh) = self.read()?;
        {
            // The process before may have ended between the rename and its sync.
            let _site = site("checkpoint");
            let fault = StoreError::fault(&self.directory, "sync");
            self.disk.sync_dir(&self.directory).map_err(fault)?;
        }
        for keyspace in Keyspace::ALL {
            let rows = image.rows.iter().filter(|((table, _), _)| *table == keyspace);
            for ((_, key), stored) in rows {
                let opened = self.seals.open(keyspace, key, stored);
                let (value, _) = opened.ok_or_else(|| self.row_damage(keyspace, key))?;
                row(keyspace, key, value).map_err(|error| StoreError::Damage {
                    path: self.path(),
                    keyspace: Some(keyspace),
                    key: key.clone(),
                    reason: format!("has a row that is not valid: {error}"),
                })?;
            }
        }
        let rows = image.rows.len() as u64;
        self.image = Some(image);
        Ok(Loaded { rows, fresh })
    }

    fn write(&mut self, changes: &mut dyn Iterator<Item = Change>) -> Result<Written, StoreError> {
        if self.poisoned {
            return Err(StoreError::Poisoned);
        }
        let result = self.write_all(changes);
        self.poisoned = result.as_ref().is_err_and(StoreError::poisons);
        result
    }

    /// An image is replaced, never changed: a second name keeps it.
    fn copy_image(&mut self, to: &Path) -> Result<&'static str, StoreError> {
        if self.image.is_none() {
            self.read()?;
        }
        let path = self.path();
        self.disk.link(&path, to).map_err(StoreError::fault(&path, "link"))?;
        Ok("image")
    }

    fn verify(&mut self) -> Result<u64, StoreError> {
        Ok(self.read()?.0.rows.len() as u64)
    }
}

fn encode(image: &Image, seals: &Seals) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    let mut sums = image.sums.encode();
    seals.seal(Keyspace::Meta, SUMS_KEY, &mut sums);
    push_len(&mut bytes, &sums);
    bytes.extend_from_slice(&sums);
    bytes.extend_from_slice(&(image.rows.len() as u64).to_le_bytes());
    for ((keyspace, key), stored) in &image.rows {
        bytes.extend_from_slice(&keyspace_seed(keyspace.name()).to_le_bytes());
        push_len(&mut bytes, key);
        push_len(&mut bytes, stored);
        bytes.extend_from_slice(key);
        bytes.extend_from_slice(stored);
    }
    bytes
}

fn push_len(bytes: &mut Vec<u8>, part: &[u8]) {
    // Rows are far below 4 GiB; a longer one fails its seal when it is read.
    let len = u32::try_from(part.len()).unwrap_or(u32::MAX);
    bytes.extend_from_slice(&len.to_le_bytes());
}

fn decode(bytes: &[u8], seals: &Seals) -> Option<Image> {
    let mut rest = bytes.strip_prefix(MAGIC.as_slice())?;
    let sums_len = take_len(&mut rest)?;
    let stored = take(&mut rest, sums_len)?;
    let sums = Sums::decode(seals.open(Keyspace::Meta, SUMS_KEY, stored)?.0)?;
    let count = take_u64(&mut rest)?;
    let mut rows = Rows::new();
    for _ in 0..count {
        let seed = take_u64(&mut rest)?;
        let named = |keyspace: &Keyspace| keyspace_seed(keyspace.name()) == seed;
        let keyspace = Keyspace::ALL.into_iter().find(named)?;
        let (key_len, stored_len) = (take_len(&mut rest)?, take_len(&mut rest)?);
        let key = take(&mut rest, key_len)?.to_vec();
        let stored = take(&mut rest, stored_len)?.to_vec();
        let place = (keyspace, key);
        if rows.last_key_value().is_some_and(|(last, _)| *last >= place) {
            return None;
        }
        rows.insert(place, stored);
    }
    rest.is_empty().then_some(Image { rows, sums })
}

fn take<'b>(rest: &mut &'b [u8], len: usize) -> Option<&'b [u8]> {
    let (taken, later) = rest.split_at_checked(len)?;
    *rest = later;
    Some(taken)
}

fn take_len(rest: &mut &[u8]) -> Option<usize> {
    let bytes = take(rest, 4)?.first_chunk()?;
    usize::try_from(u32::from_le_bytes(*bytes)).ok()
}

fn take_u64(rest: &mut &[u8]) -> Option<u64> {
    take(rest, 8)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
}

#[cfg(test)]
mod tests;
