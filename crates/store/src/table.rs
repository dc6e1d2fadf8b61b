//! The tables of a checkpoint's file: one for each keyspace, and one of the store's own.

use queen_state::Keyspace;

/// One table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TableName {
    /// The rows of a keyspace.
    Rows(Keyspace),
    /// Changes that are not yet in their tables.
    Delta,
}

impl TableName {
    /// Every table.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        Keyspace::ALL.into_iter().map(Self::Rows).chain([Self::Delta])
    }

    /// Its name in the file; part of every value's checksum.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Rows(keyspace) => keyspace.name(),
            Self::Delta => "delta",
        }
    }

    /// The keyspace whose rows it has.
    pub(crate) fn keyspace(self) -> Option<Keyspace> {
        match self {
            Self::Rows(keyspace) => Some(keyspace),
            Self::Delta => None,
        }
    }
}

impl From<Keyspace> for TableName {
    fn from(keyspace: Keyspace) -> Self {
        Self::Rows(keyspace)
    }
}
