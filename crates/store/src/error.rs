//! What can go wrong with a checkpoint, by what the caller must do about it.

use std::fmt::Write;
use std::io;
use std::path::PathBuf;

use queen_state::Keyspace;

use crate::table::TableName;

/// A failed call on a checkpoint.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The file is not what was written. Refuse to start, or stop: nothing read from it may be used.
    #[error("{}", damage_text(.path, *.keyspace, .key, .reason))]
    Damage {
        /// The damaged file.
        path: PathBuf,
        /// The table, where one can be named.
        keyspace: Option<Keyspace>,
        /// The row's key, where one can be named.
        key: Vec<u8>,
        /// What is wrong, as the rest of a sentence that starts with the file.
        reason: String,
    },
    /// The operating system refused. Nothing of the failed write counts; what is on disk is the checkpoint before
    /// or the one that failed, whole.
    #[error("{operation} of {path}: {source}", path = .path.display())]
    Fault {
        /// The file or directory.
        path: PathBuf,
        /// What was asked for.
        operation: &'static str,
        /// The system's answer.
        source: io::Error,
    },
    /// An earlier write has failed. The process has to end.
    #[error("an earlier checkpoint write has failed")]
    Poisoned,
    /// A key is empty or longer than 511 bytes. Nothing was written; the store can be used on.
    #[error("a key of {len} bytes in {}: 1 to 511 are allowed", .keyspace.name())]
    KeyTooLong {
        /// The table.
        keyspace: Keyspace,
        /// The key's length in bytes.
        len: usize,
    },
    /// The key belongs to the store's own rows. Nothing was written; the store can be used on.
    #[error("the key {key} in meta belongs to the store itself")]
    KeyReserved {
        /// The key.
        key: String,
    },
    /// Written by a newer build. Refuse to start.
    #[error("{path} has store format {format}, this build reads up to {readable}", path = .path.display())]
    TooNew {
        /// The file.
        path: PathBuf,
        /// Its format.
        format: u32,
        /// The newest format of this build.
        readable: u32,
    },
}

impl StoreError {
    /// Damage of the file as a whole.
    pub(crate) fn damage(path: impl Into<PathBuf>, reason: impl Into<String>) -> Self {
        Self::Damage { path: path.into(), keyspace: None, key: Vec::new(), reason: reason.into() }
    }

    /// Damage of a row, or of its table when the key is empty.
    pub(crate) fn row_damage(
        path: &std::path::Path,
        table: TableName,
        key: &[u8],
        reason: String,
    ) -> Self {
        let keyspace = table.keyspace();
        Self::Damage { path: path.to_owned(), keyspace, key: key.to_vec(), reason }
    }

    /// The file or directory that it names.
    pub fn path(&self) -> Option<&std::path::Path> {
        match self {
            Self::Damage { path, .. } | Self::Fault { path, .. } | Self::TooNew { path, .. } => {
                Some(path)
            }
            _ => None,
        }
    }

    /// Whether a write that failed so leaves a store that takes no other.
    pub(crate) fn poisons(&self) -> bool {
        !matches!(self, Self::KeyTooLong { .. } | Self::KeyReserved { .. })
    }

    pub(crate) fn fault(
        path: impl Into<PathBuf>,
        operation: &'static str,
    ) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Fault { path, operation, source }
    }
}

fn damage_text(
    path: &std::path::Path,
    keyspace: Option<Keyspace>,
    key: &[u8],
    reason: &str,
) -> String {
    let mut text = format!("{} {reason}", path.display());
    if let Some(keyspace) = keyspace {
        push(&mut text, format_args!(", keyspace {}", keyspace.name()));
    }
    if !key.is_empty() {
        push(&mut text, format_args!(", key "));
        for byte in key {
            push(&mut text, format_args!("{byte:02x}"));
        }
    }
    text
}

fn push(text: &mut String, part: std::fmt::Arguments<'_>) {
    // Writing to a string cannot fail.
    text.write_fmt(part).unwrap_or(());
}
