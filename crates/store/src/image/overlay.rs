//! The rows of the delta, laid over those of the tables while a file is walked.

use queen_state::Keyspace;

use crate::delta::{DeltaRow, KeySet, Place, order, row_at};

/// The batches that count, and where the walk is in them.
#[derive(Default)]
pub(super) struct Overlay {
    batches: Vec<Vec<u8>>,
    order: Vec<Place>,
    at: usize,
}

impl Overlay {
    /// `None` when a batch is none.
    pub(super) fn new(batches: Vec<Vec<u8>>) -> Option<Self> {
        let slices: Vec<&[u8]> = batches.iter().map(Vec::as_slice).collect();
        let order = order(&slices)?;
        // Rows of meta are never put off, and were handed out before.
        let is_late = |place: &Place| place.keyspace != Keyspace::Meta;
        order.first().is_none_or(is_late).then_some(())?;
        Some(Self { batches, order, at: 0 })
    }

    /// Which rows it has.
    pub(super) fn keys(&self) -> KeySet {
        let mut keys = KeySet::default();
        for (at, place) in self.order.iter().enumerate() {
            if let Some(row) = self.row(at) {
                keys.insert(place.keyspace, row.key);
            }
        }
        keys
    }

    /// The next row of this table whose key is below `key`, or any without a key.
    pub(super) fn next_below(
        &mut self,
        keyspace: Keyspace,
        key: Option<&[u8]>,
    ) -> Option<DeltaRow<'_>> {
        self.peek(keyspace).filter(|row| key.is_none_or(|key| row.key < key))?;
        self.at += 1;
        self.row(self.at - 1)
    }

    /// The row of exactly this key.
    pub(super) fn next_at(&mut self, keyspace: Keyspace, key: &[u8]) -> Option<DeltaRow<'_>> {
        self.peek(keyspace).filter(|row| row.key == key)?;
        self.at += 1;
        self.row(self.at - 1)
    }

    fn peek(&self, keyspace: Keyspace) -> Option<DeltaRow<'_>> {
        self.order.get(self.at).filter(|place| place.keyspace == keyspace)?;
        self.row(self.at)
    }

    fn row(&self, at: usize) -> Option<DeltaRow<'_>> {
        let place = self.order.get(at)?;
        let batch = self.batches.get(place.batch as usize)?;
        row_at(batch, place.at as usize).map(|(row, _)| row)
    }
}
