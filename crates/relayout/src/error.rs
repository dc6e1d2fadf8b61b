//! Why no new directory was made, by what is to be done about it.

use std::io;
use std::path::{Path, PathBuf};

use queen_broker::StartError;
use queen_qlog::{Fault, ReadError};
use queen_store::StoreError;

/// The old directory is as it was after any of them.
#[derive(Debug, thiserror::Error)]
pub enum RelayoutError {
    /// A node would not start from the old directory either.
    #[error("a node would not start from {}, so it is not rewritten: {source}", dir.display())]
    Refused {
        /// The directory.
        dir: PathBuf,
        /// The FATAL line of the start.
        source: Box<StartError>,
    },
    /// The old directory is a member's: what its log holds above the checkpoint the other members decide.
    #[error(
        "{} is a member's of a cluster: take the node out of the members, start it empty with another QUEEN_QLOG_SHARDS, and add it again",
        dir.display()
    )]
    Member {
        /// The directory.
        dir: PathBuf,
    },
    /// A record of the old directory, or its index, is not what was written.
    #[error("{0}: a damaged directory is not rewritten; restore a backup")]
    Damaged(ReadError),
    /// The old directory lacks messages that its store knows.
    #[error(
        "{}: {what}: a directory with holes is not rewritten; restore a backup, or see what `queen doctor` says of it",
        dir.display()
    )]
    Missing {
        /// The log directory.
        dir: PathBuf,
        /// The partition, and what it lacks.
        what: String,
    },
    /// Lanes or shards are outside of what is allowed.
    #[error("lanes are 1 to 64 and shards 0 to 4096")]
    Layout,
    /// The new name is taken by something else.
    #[error(
        "{} is not empty, and {what}: name another directory, or move this one away first",
        dir.display()
    )]
    Taken {
        /// The directory.
        dir: PathBuf,
        /// In what it is not the result of this command.
        what: String,
    },
    /// The volume is too full.
    #[error(
        "{} needs {needed} bytes, and its volume has {available} left: free some, or name a directory on another volume",
        dir.display()
    )]
    NoRoom {
        /// The new directory.
        dir: PathBuf,
        /// Bytes that it needs at most.
        needed: u64,
        /// Bytes that are free.
        available: u64,
    },
    /// The operating system refused.
    #[error("{operation} {}: {source}; run the same command again when that is settled", path.display())]
    Io {
        /// File or directory.
        path: PathBuf,
        /// The call.
        operation: &'static str,
        /// Its error.
        source: io::Error,
    },
    /// The new logs could not be written.
    #[error("{0}; run the same command again when that is settled")]
    Logs(#[from] Fault),
    /// The new store could not be written.
    #[error("{0}; run the same command again when that is settled")]
    Store(#[from] StoreError),
    /// A node was started on the old directory while it was read.
    #[error("a node was started on {} meanwhile: stop it, and run the same command again", dir.display())]
    Started {
        /// The old directory.
        dir: PathBuf,
    },
    /// It failed, and what was begun could not be removed; the next run removes it.
    #[error("{first} (what was begun is left: {second})")]
    Left {
        /// Why it failed.
        first: Box<Self>,
        /// Why it is left.
        second: Box<Self>,
    },
    /// What was written is not what it should be.
    #[error("the new directory does not hold what the old one does: {what}; it is left in {}", dir.display())]
    Differs {
        /// Where it is.
        dir: PathBuf,
        /// The first difference.
        what: String,
    },
}

impl RelayoutError {
    pub(crate) fn io(path: &Path, operation: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { path: path.to_path_buf(), operation, source }
    }
}

impl From<ReadError> for RelayoutError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Io(fault) => Self::Logs(fault),
            other => Self::Damaged(other),
        }
    }
}
