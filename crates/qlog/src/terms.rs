//! The terms of the entries above the last written point, as the places where they begin.

use std::collections::VecDeque;

use queen_record::ids::EntryIndex;

/// Entry and term, both ascending: each entry has the term that begins at or before it.
#[derive(Default)]
pub(crate) struct Terms(VecDeque<(EntryIndex, u64)>);

impl Terms {
    /// Adds an entry above all others.
    pub(crate) fn add(&mut self, index: EntryIndex, term: u64) {
        if self.0.back().is_none_or(|(_, last)| *last != term) {
            self.0.push_back((index, term));
        }
    }

    /// The term of an entry; `None` below the first that is known.
    pub(crate) fn of(&self, index: EntryIndex) -> Option<u64> {
        let behind = self.0.partition_point(|(first, _)| *first <= index);
        self.0.get(behind.checked_sub(1)?).map(|(_, term)| *term)
    }

    /// Forgets the entries above `last`.
    pub(crate) fn cut(&mut self, last: EntryIndex) {
        self.0.retain(|(first, _)| *first <= last);
    }

    /// Forgets what only entries below `index` need.
    pub(crate) fn forget_below(&mut self, index: EntryIndex) {
        while self.0.get(1).is_some_and(|(first, _)| *first <= index) {
            self.0.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_entry_has_its_term() {
        let mut terms = Terms::default();
        let of = |terms: &Terms, index| terms.of(EntryIndex(index));
        assert_eq!(of(&terms, 7), None);
        for (index, term) in [(3, 0), (4, 0), (5, 2), (6, 2), (7, 9)] {
            terms.add(EntryIndex(index), term);
        }
        let all: Vec<_> = (2..9).map(|index| of(&terms, index)).collect();
        assert_eq!(all, [None, Some(0), Some(0), Some(2), Some(2), Some(9), Some(9)]);
        terms.forget_below(EntryIndex(5));
        assert_eq!((of(&terms, 4), of(&terms, 5)), (None, Some(2)));
        terms.forget_below(EntryIndex(6));
        terms.cut(EntryIndex(6));
        assert_eq!((of(&terms, 5), of(&terms, 6), of(&terms, 9)), (Some(2), Some(2), Some(2)));
        terms.add(EntryIndex(7), 3);
        assert_eq!(of(&terms, 7), Some(3));
    }
}
