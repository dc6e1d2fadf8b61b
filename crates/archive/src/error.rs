//! Why a backup is not written or not taken.

use std::io;
use std::path::{Path, PathBuf};

/// A backup that is not unpacked. The text says what to do.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// The backup itself could not be read.
    #[error("the backup cannot be read: {0}")]
    Read(#[source] io::Error),
    /// A file could not be read or written.
    #[error("{}: {operation}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What was tried.
        operation: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// The input ended before the sums.
    #[error("the backup ends early, in {0}: it was cut off on its way; take it again")]
    EndsEarly(String),
    /// Something else than a backup.
    #[error("this is no backup of queen: {0}")]
    Foreign(String),
    /// Written by a newer build.
    #[error(
        "the backup has format {0}, this build reads 1: restore it with the build that wrote it"
    )]
    TooNew(String),
    /// A name that no data directory has.
    #[error(
        "the backup holds {0:?}, which is no file of a data directory; nothing of it was written"
    )]
    Name(String),
    /// A member that the list does not have at this place.
    #[error(
        "the backup holds {found:?} where {expected:?} is due; it was put together by something else"
    )]
    Unexpected {
        /// Its name.
        found: String,
        /// The name that was due.
        expected: String,
    },
    /// A member of another length than its list says.
    #[error("{name} has {found} bytes, the backup's list says {expected}: take the backup again")]
    Length {
        /// The file.
        name: String,
        /// Its length.
        found: u64,
        /// The length that was due.
        expected: u64,
    },
    /// Bytes that are not those that were sent.
    #[error("{0} is not what was backed up: its checksum differs; use another copy of the backup")]
    Sum(String),
    /// The two lists differ.
    #[error("the first and the last list of the backup differ: use another copy of the backup")]
    Lists,
    /// A file in the way.
    #[error(
        "{} is there already and is not of this backup: it was begun from another one; remove the directory around it",
        .0.display()
    )]
    InTheWay(PathBuf),
    /// The volume is too small.
    #[error("{} has room for {available} bytes, and {needed} are needed", path.display())]
    NoRoom {
        /// A directory on the volume.
        path: PathBuf,
        /// Bytes that are still to be written.
        needed: u64,
        /// Bytes that the volume has.
        available: u64,
    },
}

impl ArchiveError {
    pub(crate) fn io<'p>(
        path: &'p Path,
        operation: &'static str,
    ) -> impl FnOnce(io::Error) -> Self + use<'p> {
        move |source| Self::Io { path: path.to_path_buf(), operation, source }
    }
}

/// Why an archive was not written to its end.
#[derive(Debug, thiserror::Error)]
pub enum PackError {
    /// Who takes it wants no more.
    #[error("nobody takes the backup any more")]
    Stopped,
    /// A file could not be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file is shorter than it was.
    #[error("{} ends at byte {len}, {expected} were there", path.display())]
    Short {
        /// The file.
        path: PathBuf,
        /// Where it ends.
        len: u64,
        /// Where it ended before.
        expected: u64,
    },
    /// A name that no data directory has: nothing was written.
    #[error("{0:?} is no file of a data directory")]
    Name(String),
}
