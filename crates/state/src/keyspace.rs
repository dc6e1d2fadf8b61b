//! The tables of the store, by the names they have in the checkpoint.

/// One table of stored rows. Keys sort bytewise in the order that the table is walked in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Keyspace {
    /// Scalars: applied index, next partition id, the durable point of the logs.
    Meta,
    /// Queue rows: options and totals.
    Queues,
    /// Consumer group rows: subscription.
    Groups,
    /// Partition rows with their first cursor.
    Partitions,
    /// Cursors beyond a partition's first.
    Cursors,
    /// Dead letters.
    DeadLetters,
}

impl Keyspace {
    /// Every table, in the order that a load walks them: a row only refers to tables before its own.
    pub const ALL: [Self; 6] = [
        Self::Meta,
        Self::Queues,
        Self::Groups,
        Self::Partitions,
        Self::Cursors,
        Self::DeadLetters,
    ];

    /// The database name in the checkpoint file; part of every value's checksum.
    pub fn name(self) -> &'static str {
        match self {
            Self::Meta => "meta",
            Self::Queues => "queues",
            Self::Groups => "groups",
            Self::Partitions => "partitions",
            Self::Cursors => "cursors",
            Self::DeadLetters => "dlq",
        }
    }
}
