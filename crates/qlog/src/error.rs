//! What can go wrong, by what the caller must do about it.

use std::io;
use std::path::{Path, PathBuf};

use queen_record::ids::{EntryIndex, LogId};
use queen_record::record::RecordTooLarge;

/// An operation failed while serving. After any of them but `TooLarge` the node must stop.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// The operating system refused.
    #[error("{operation} {}: {source}", path.display())]
    Io {
        /// File or directory.
        path: PathBuf,
        /// The call.
        operation: &'static str,
        /// The error.
        source: io::Error,
    },
    /// An earlier write or sync failed: what is durable is unknown.
    #[error("the logs accept nothing after an earlier failure: {cause}")]
    Poisoned {
        /// The first failure.
        cause: String,
    },
    /// A record that was just written does not read back.
    #[error("damaged record at byte {offset} of {}: {reason}", file.display())]
    Damage {
        /// The file.
        file: PathBuf,
        /// Where in it.
        offset: u64,
        /// What is wrong.
        reason: String,
    },
    /// A record above the format's limit. Nothing was written.
    #[error(transparent)]
    TooLarge(#[from] RecordTooLarge),
}

impl Fault {
    pub(crate) fn io(path: &Path, operation: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { path: path.to_path_buf(), operation, source }
    }

    /// Whether the disk, or the quota on it, is full.
    pub(crate) fn is_full(&self) -> bool {
        let Self::Io { source, .. } = self else { return false };
        matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
    }
}

/// A read failed.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The bytes on disk are not what was written. Never served; the node must say so.
    #[error("damaged record at byte {offset} of {}: {reason}", file.display())]
    Damage {
        /// The file.
        file: PathBuf,
        /// Where in it.
        offset: u64,
        /// What is wrong.
        reason: String,
    },
    /// An entry that was not appended, or that reclaim took. Above `last` it may come; below `lowest` it never does: whoever
    /// needs it takes a copy of the state instead.
    #[error(
        "entry {index} is not in the logs: {last} is the last that was appended, and what is below {lowest} may have been \
         reclaimed; whoever needs an older entry takes a copy of the state instead"
    )]
    NotThere {
        /// The entry.
        index: EntryIndex,
        /// Above what reclaim may take: entries from here to `last` are there.
        lowest: EntryIndex,
        /// Highest entry appended.
        last: EntryIndex,
    },
    /// The operating system refused.
    #[error(transparent)]
    Io(#[from] Fault),
}

/// Why a directory is refused at start; one variant per rule. Nothing was repaired.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The operating system refused.
    #[error(transparent)]
    Io(#[from] Fault),
    /// `LANES` or `SHARDS` cannot be read as a permitted number.
    #[error("{} is not a valid layout file", file.display())]
    LayoutUnreadable {
        /// The file.
        file: PathBuf,
    },
    /// `LANES` or `SHARDS` is gone beside the logs it describes.
    #[error("{} is missing although logs exist", file.display())]
    LayoutMissing {
        /// The file.
        file: PathBuf,
    },
    /// The directory's layout is not the one its records were written under.
    #[error("{} says {found}, but the records were written under {recorded}", file.display())]
    LayoutChanged {
        /// The file.
        file: PathBuf,
        /// Number in the file.
        found: u32,
        /// Number that was recorded.
        recorded: u32,
    },
    /// A log directory that cannot exist under the layout.
    #[error("{} does not belong to this layout", dir.display())]
    LogForeign {
        /// The directory.
        dir: PathBuf,
    },
    /// A recorded log has no directory.
    #[error("acknowledged records are missing: {} is gone", dir.display())]
    LogMissing {
        /// The directory.
        dir: PathBuf,
    },
    /// A log that the durable point does not name although it holds an older entry.
    #[error("{} was not there at the last durable point, but holds older entries", dir.display())]
    LogUnexpected {
        /// The directory.
        dir: PathBuf,
    },
    /// There is no durable point, but what was removed under one is needed without.
    #[error(
        "cannot re-apply logs: the store has no checkpoint, and {} says that files were reclaimed",
        file.display()
    )]
    Reclaimed {
        /// The file that says so.
        file: PathBuf,
    },
    /// There is no durable point, and the record of the files cannot be read.
    #[error(
        "cannot re-apply logs: the store has no checkpoint, and {} cannot be read; restore the store from a backup, or \
         remove the file to apply what logs there are",
        file.display()
    )]
    InventoryUnreadable {
        /// The record.
        file: PathBuf,
    },
    /// There is no durable point, and a file that there was is gone.
    #[error(
        "cannot re-apply logs: the store has no checkpoint, and {} is gone; restore the directory from a backup",
        file.display()
    )]
    NotWhole {
        /// The file.
        file: PathBuf,
    },
    /// A recorded file, or one between two others, is gone.
    #[error("acknowledged records are missing: {} is gone", file.display())]
    FileMissing {
        /// The file.
        file: PathBuf,
    },
    /// A file that was not there at the durable point, with a number below the newest one then.
    #[error("{} was not part of the log at the last durable point", file.display())]
    FileUnexpected {
        /// The file.
        file: PathBuf,
    },
    /// A file ends before what was recorded.
    #[error("acknowledged records are missing: {} ends at byte {len}, {recorded} were durable", file.display())]
    FileShort {
        /// The file.
        file: PathBuf,
        /// Its length.
        len: u64,
        /// The recorded length.
        recorded: u64,
    },
    /// A sealed file is longer than what was recorded.
    #[error("{} is sealed at byte {recorded} but has {len}", file.display())]
    FileLong {
        /// The file.
        file: PathBuf,
        /// Its length.
        len: u64,
        /// The recorded length.
        recorded: u64,
    },
    /// A header that no writer made, or of another file.
    #[error("the header of {} is wrong: {reason}", file.display())]
    Header {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A sealed file was synced before the next one began: this is no torn tail.
    #[error("damaged record at byte {offset} of {}: {reason}", file.display())]
    SealedDamage {
        /// The file.
        file: PathBuf,
        /// Where in it.
        offset: u64,
        /// What is wrong.
        reason: String,
    },
    /// A bad record in the active file lies before something durable.
    #[error("corruption inside acknowledged data: byte {offset} of {}: {reason}", file.display())]
    ActiveDamage {
        /// The file.
        file: PathBuf,
        /// Where the bad record starts.
        offset: u64,
        /// What is wrong, and what makes the place acknowledged.
        reason: String,
    },
    /// A log ends before its recorded tail.
    #[error("acknowledged records are missing: {} ends at entry {found}, {recorded} was durable", dir.display())]
    TailShort {
        /// The log's directory.
        dir: PathBuf,
        /// Highest entry found.
        found: EntryIndex,
        /// Highest entry recorded.
        recorded: EntryIndex,
    },
    /// All logs end before the durable index.
    #[error(
        "acknowledged records are missing: the logs end at entry {found}, {durable} was durable"
    )]
    LogsShort {
        /// Highest entry found.
        found: EntryIndex,
        /// The durable index.
        durable: EntryIndex,
    },
    /// Records of a log are not in the order they are written in.
    #[error("records out of order at byte {offset} of {}: {reason}", file.display())]
    OutOfOrder {
        /// The file.
        file: PathBuf,
        /// Where in it.
        offset: u64,
        /// What is wrong.
        reason: String,
    },
    /// The parts of one entry contradict each other.
    #[error("the parts of entry {index} disagree on {what} (log {log})")]
    PartsDisagree {
        /// The entry.
        index: EntryIndex,
        /// What differs.
        what: &'static str,
        /// The log whose part differs from the others.
        log: LogId,
    },
    /// The receiver of recovered entries refused one.
    #[error("entry {index} was refused: {reason}")]
    Rejected {
        /// The entry.
        index: EntryIndex,
        /// The receiver's reason.
        reason: String,
    },
}

impl OpenError {
    /// The file or directory that it names, and the byte in it.
    pub fn place(&self) -> Option<(&Path, Option<u64>)> {
        match self {
            Self::Io(Fault::Damage { file, offset, .. })
            | Self::SealedDamage { file, offset, .. }
            | Self::ActiveDamage { file, offset, .. }
            | Self::OutOfOrder { file, offset, .. } => Some((file, Some(*offset))),
            Self::FileShort { file, len, .. } => Some((file, Some(*len))),
            Self::FileLong { file, recorded, .. } => Some((file, Some(*recorded))),
            Self::LayoutUnreadable { file }
            | Self::LayoutMissing { file }
            | Self::LayoutChanged { file, .. }
            | Self::Reclaimed { file }
            | Self::InventoryUnreadable { file }
            | Self::NotWhole { file }
            | Self::FileMissing { file }
            | Self::FileUnexpected { file } => Some((file, None)),
            Self::Header { file, .. } => Some((file, Some(0))),
            Self::LogForeign { dir } | Self::LogMissing { dir } | Self::TailShort { dir, .. } => {
                Some((dir, None))
            }
            Self::Io(Fault::Io { path, .. }) => Some((path, None)),
            _ => None,
        }
    }
}
