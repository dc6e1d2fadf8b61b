//! `ENCRYPTION` in the data directory: by which key its payloads are sealed, so that a start with another key, or with
//! none, is refused before anybody is shown an envelope.
//!
//! ```text
//!   queen-encryption 1
//!   <fingerprint, 32 hex digits>
//!   <checksum of the two lines above, 16 hex digits>
//! ```
//!
//! It is written beside and renamed, so a crash leaves all of it or nothing, and it is durable before the node serves
//! (X3). A directory without it has no envelope in it, unless somebody removed the file.

use std::fmt::Write;
use std::io;
use std::path::{Path, PathBuf};

use queen_io::{Disk, OpenMode};
use queen_record::hash::checksum;

use super::{EncryptionKey, FINGERPRINT_LEN};

pub(crate) const NAME: &str = "ENCRYPTION";
const HEAD: &str = "queen-encryption 1";
/// Far above what the file holds.
const LEN_MAX: u64 = 1024;

/// What a start knows of the directory's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// No key was ever used with it.
    Nothing,
    /// The key at hand is the one it was used with.
    SameKey,
}

/// Why the directory is not served with this key, or without one. The text is the operator's line.
#[derive(Debug, thiserror::Error)]
pub enum FingerprintError {
    /// It was used with a key, and there is none now.
    #[error(
        "QUEEN_ENCRYPTION_KEY is not set, but this directory was used with a key ({0}): set the same key again"
    )]
    NoKey(PathBuf),
    /// It was used with another key.
    #[error(
        "QUEEN_ENCRYPTION_KEY is not the key that this directory was used with ({0}): set the former key again"
    )]
    OtherKey(PathBuf),
    /// The file is not what was written.
    #[error(
        "{0} is damaged, so QUEEN_ENCRYPTION_KEY cannot be checked: put a copy of this file back, from a backup or \
         from another directory with the same key"
    )]
    Damaged(PathBuf),
    /// The disk refuses.
    #[error("{path}: {operation}: {error}")]
    Disk {
        /// The file or directory.
        path: PathBuf,
        /// What was tried.
        operation: &'static str,
        /// The operating system's error.
        error: io::Error,
    },
}

impl FingerprintError {
    /// The file or directory that it is about.
    pub fn path(&self) -> &Path {
        match self {
            Self::NoKey(path)
            | Self::OtherKey(path)
            | Self::Damaged(path)
            | Self::Disk { path, .. } => path,
        }
    }
}

/// Compares the key at hand with the directory's. Changes nothing.
///
/// # Errors
/// Any: the node must not start.
pub fn check(
    disk: &dyn Disk,
    dir: &Path,
    key: Option<&EncryptionKey>,
) -> Result<Found, FingerprintError> {
    let path = dir.join(NAME);
    if !disk.exists(&path).map_err(failed(&path, "look for"))? {
        return Ok(Found::Nothing);
    }
    let stored = read(disk, &path)?;
    match key {
        None => Err(FingerprintError::NoKey(path)),
        Some(key) if stored != render(key.fingerprint()).as_bytes() => {
            Err(FingerprintError::OtherKey(path))
        }
        Some(_) => Ok(Found::SameKey),
    }
}

/// Whether the directory was used with a key; its file is verified without one.
///
/// # Errors
/// [`FingerprintError::Damaged`], [`FingerprintError::Disk`]: no node starts on it.
pub fn verify(disk: &dyn Disk, dir: &Path) -> Result<bool, FingerprintError> {
    let path = dir.join(NAME);
    if !disk.exists(&path).map_err(failed(&path, "look for"))? {
        return Ok(false);
    }
    read(disk, &path).map(|_| true)
}

/// Makes the key's fingerprint durable. Nothing may be sealed before this has returned.
///
/// # Errors
/// [`FingerprintError::Disk`]: the node must not start.
pub fn keep(
    disk: &dyn Disk,
    dir: &Path,
    key: &EncryptionKey,
    found: Found,
) -> Result<(), FingerprintError> {
    if found == Found::Nothing {
        let (path, tmp) = (dir.join(NAME), dir.join(format!("{NAME}.tmp")));
        let file = disk.open(&tmp, OpenMode::Truncate).map_err(failed(&tmp, "create"))?;
        let text = render(key.fingerprint());
        file.write_all_at(text.as_bytes(), 0).map_err(failed(&tmp, "write"))?;
        file.sync_data().map_err(failed(&tmp, "sync"))?;
        disk.rename(&tmp, &path).map_err(failed(&path, "rename to"))?;
    }
    // Also when it was there: the process that made it may have ended between the rename and this.
    disk.sync_dir(dir).map_err(failed(dir, "sync"))
}

/// The file's bytes, once they are known to be what was written.
fn read(disk: &dyn Disk, path: &Path) -> Result<Vec<u8>, FingerprintError> {
    let file = disk.open(path, OpenMode::Read).map_err(failed(path, "open"))?;
    let len = file.len().map_err(failed(path, "read"))?;
    let damaged = || FingerprintError::Damaged(path.to_path_buf());
    let len = usize::try_from(len).ok().filter(|_| len <= LEN_MAX).ok_or_else(damaged)?;
    let mut bytes = vec![0; len];
    let count = file.read_at(&mut bytes, 0).map_err(failed(path, "read"))?;
    bytes.truncate(count);
    let mark = std::str::from_utf8(&bytes).ok().and_then(|text| text.lines().nth(1));
    let is_whole = mark.is_some_and(|mark| {
        mark.len() == FINGERPRINT_LEN * 2 && with_checksum(mark).as_bytes() == bytes
    });
    if is_whole { Ok(bytes) } else { Err(damaged()) }
}

fn render(fingerprint: [u8; FINGERPRINT_LEN]) -> String {
    let mut mark = String::new();
    for byte in fingerprint {
        // Writing into a string cannot fail.
        write!(mark, "{byte:02x}").unwrap_or_default();
    }
    with_checksum(&mark)
}

fn with_checksum(mark: &str) -> String {
    let text = format!("{HEAD}\n{mark}\n");
    let sum = checksum(text.as_bytes());
    format!("{text}{sum:016x}\n")
}

fn failed<'a>(
    path: &'a Path,
    operation: &'static str,
) -> impl FnOnce(io::Error) -> FingerprintError + 'a {
    move |error| FingerprintError::Disk { path: path.to_path_buf(), operation, error }
}

#[cfg(test)]
mod tests {
    use queen_io::SimDisk;
    use queen_io::sim::{Explorer, Image};

    use super::*;

    fn key(digit: u8) -> EncryptionKey {
        EncryptionKey([digit; super::super::KEY_LEN])
    }

    fn disk() -> SimDisk {
        let disk = SimDisk::new();
        disk.create_dir(Path::new("/d")).unwrap();
        disk.sync_dir(Path::new("/")).unwrap();
        disk
    }

    fn start(disk: &SimDisk, key: Option<&EncryptionKey>) -> Result<Found, FingerprintError> {
        let found = check(disk, Path::new("/d"), key)?;
        if let Some(key) = key {
            keep(disk, Path::new("/d"), key, found)?;
        }
        Ok(found)
    }

    #[test]
    fn the_first_key_stays_the_only_one() {
        let disk = disk();
        assert_eq!(start(&disk, None).unwrap(), Found::Nothing);
        assert_eq!(start(&disk, Some(&key(1))).unwrap(), Found::Nothing);
        assert_eq!(start(&disk, Some(&key(1))).unwrap(), Found::SameKey);
        for (key, wanted) in [(Some(&key(2)), "is not the key"), (None, "is not set")] {
            let text = start(&disk, key).unwrap_err().to_string();
            assert!(text.contains(wanted), "{text}");
            assert!(text.contains("QUEEN_ENCRYPTION_KEY") && text.contains("/d/ENCRYPTION"));
        }
    }

    #[test]
    fn the_file_does_not_show_the_key() {
        let disk = disk();
        start(&disk, Some(&key(0xab))).unwrap();
        let text = String::from_utf8(disk.contents(Path::new("/d/ENCRYPTION")).unwrap()).unwrap();
        assert!(text.starts_with("queen-encryption 1\n") && text.len() == 69, "{text}");
        assert!(!text.contains("abab"), "{text}");
    }

    #[test]
    fn a_changed_file_is_refused() {
        let path = Path::new("/d/ENCRYPTION");
        let disk = disk();
        start(&disk, Some(&key(1))).unwrap();
        let good = disk.contents(path).unwrap();
        let mut bad: Vec<Vec<u8>> = (0..good.len()).map(|len| good[..len].to_vec()).collect();
        for at in 0..good.len() {
            let mut bytes = good.clone();
            bytes[at] ^= 1;
            bad.push(bytes);
        }
        bad.push([&*good, b"\n"].concat());
        bad.push(vec![b'0'; 2000]);
        for bytes in bad {
            disk.set_contents(path, &bytes);
            assert!(matches!(verify(&disk, Path::new("/d")), Err(FingerprintError::Damaged(_))));
            for key in [Some(&key(1)), None] {
                let error = start(&disk, key).unwrap_err();
                assert!(matches!(error, FingerprintError::Damaged(_)), "{error} {bytes:?}");
            }
        }
    }

    /// Whatever a power cut leaves, the next start finds nothing or the key, and after it the key is there for good.
    #[test]
    fn a_power_cut_leaves_all_of_it_or_nothing() {
        let disk = disk();
        start(&disk, Some(&key(1))).unwrap();
        let (done, mut images) = (disk.calls(), 0);
        for Image { call, choice, disk, .. } in Explorer::new(&disk, 1) {
            if !disk.exists(Path::new("/d")).unwrap() {
                continue;
            }
            images += 1;
            let found = start(&disk, Some(&key(1))).unwrap();
            assert!(call < done || found == Found::SameKey, "{choice:?} behind {call}");
            for later in disk.choices(call) {
                let disk = disk.crash_now(&later);
                assert!(start(&disk, None).is_err(), "{choice:?} behind {call}, then {later:?}");
                assert_eq!(start(&disk, Some(&key(1))).unwrap(), Found::SameKey);
            }
        }
        assert!(images > 10, "{images}");
    }
}
