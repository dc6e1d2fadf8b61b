//! The pages of an LMDB file: reading one, and taking a tree page apart.
//!
//! ```text
//! tree page   header 16 | offset of node k, u16, for each node | unused | nodes, up to the page's end
//! node        lo u16 | hi u16 | flags u16 | key length u16 | key | value, padded to an even length
//! leaf node   value length = lo | hi << 16; flag 1: the value is the number of an overflow page; flag 2: it is
//!             a tree record
//! branch node page number = lo | hi << 16 | flags << 32; no value
//! ```

use std::path::PathBuf;
use std::sync::Arc;

use queen_io::DiskFile;

use super::bytes::{u16_at, u32_at, u64_at};
use super::meta::page_len;
use crate::error::StoreError;

const HEADER: usize = 16;
const NODE: usize = 8;
const BRANCH: u16 = 1;
const LEAF: u16 = 2;
const OVERFLOW: u16 = 4;
/// The value lies on overflow pages.
pub(super) const BIG: u16 = 1;
/// The value is a tree record.
pub(super) const SUBTREE: u16 = 2;

/// The file, and which of its pages have been met.
pub(super) struct Pages {
    pub(super) path: PathBuf,
    file: Arc<dyn DiskFile>,
    page_len: usize,
    /// Whole pages in the file.
    count: u64,
    met: Vec<u64>,
    pub(super) met_count: u64,
}

impl Pages {
    pub(super) fn new(path: PathBuf, file: Arc<dyn DiskFile>) -> Result<Self, StoreError> {
        let len = file.len().map_err(StoreError::fault(&path, "length"))?;
        let page_len = page_len();
        let count = len / page_len as u64;
        let words = usize::try_from(count.div_ceil(64)).unwrap_or(usize::MAX);
        Ok(Self { path, file, page_len, count, met: vec![0; words], met_count: 0 })
    }

    pub(super) fn damage(&self, reason: impl Into<String>) -> StoreError {
        StoreError::damage(&self.path, reason)
    }

    /// Reads one page of a tree or of meta data, and notes that it was met.
    pub(super) fn read(&mut self, number: u64, last: u64) -> Result<Vec<u8>, StoreError> {
        let mut page = vec![0; self.page_len];
        self.read_into(number, last, &mut page)?;
        Ok(page)
    }

    /// The value of `len` bytes that starts on overflow page `first`, and how many pages it takes.
    pub(super) fn read_big(
        &mut self,
        first: u64,
        last: u64,
        len: usize,
    ) -> Result<(Vec<u8>, u64), StoreError> {
        let count = (HEADER - 1 + len) / self.page_len + 1;
        if first.checked_add(count as u64).is_none_or(|end| end - 1 > last || end > self.count) {
            return Err(self.damage("has a value that is longer than the file"));
        }
        let mut bytes = vec![0; count * self.page_len];
        for (number, page) in (first..).zip(bytes.chunks_exact_mut(self.page_len)) {
            self.read_into(number, last, page)?;
        }
        let right = u64_at(&bytes, 0) == Some(first)
            && u16_at(&bytes, 10) == Some(OVERFLOW)
            && u32_at(&bytes, 12).map(|pages| pages as usize) == Some(count);
        if !right {
            return Err(self.damage(format!("has a damaged overflow page {first}")));
        }
        bytes.drain(..HEADER);
        bytes.truncate(len);
        Ok((bytes, count as u64))
    }

    /// Notes a page that is listed as free; it may lie behind the file's end.
    pub(super) fn meet_free(&mut self, number: u64, last: u64) -> Result<(), StoreError> {
        if number < 2 || number > last {
            return Err(self.damage(format!("lists page {number} as free, which it does not have")));
        }
        if number < self.count {
            return self.meet(number);
        }
        self.met_count += 1;
        Ok(())
    }

    fn read_into(&mut self, number: u64, last: u64, page: &mut [u8]) -> Result<(), StoreError> {
        if number > last {
            return Err(self.damage(format!("refers to page {number} behind its last one, {last}")));
        }
        if number >= self.count {
            return Err(self.damage("is shorter than its last page"));
        }
        self.meet(number)?;
        let offset = number * self.page_len as u64;
        match self.file.read_at(page, offset) {
            Ok(count) if count == page.len() => Ok(()),
            Ok(_) => Err(self.damage("is shorter than its last page")),
            Err(error) => Err(StoreError::fault(&self.path, "read")(error)),
        }
    }

    fn meet(&mut self, number: u64) -> Result<(), StoreError> {
        let word = usize::try_from(number / 64).ok().and_then(|word| self.met.get_mut(word));
        let bit = 1 << (number % 64);
        match word {
            Some(word) if *word & bit == 0 => {
                *word |= bit;
                self.met_count += 1;
                Ok(())
            }
            _ => Err(self.damage(format!("uses page {number} twice"))),
        }
    }
}

/// One node of a tree page.
pub(super) struct Node<'p> {
    pub(super) flags: u16,
    pub(super) key: &'p [u8],
    /// Length of the value; on a branch the number of the page below.
    pub(super) number: u64,
    /// The value in the page; empty on a branch.
    pub(super) value: &'p [u8],
}

/// A tree page taken apart.
pub(super) struct TreePage<'p> {
    pub(super) is_leaf: bool,
    pub(super) nodes: Vec<Node<'p>>,
}

impl<'p> TreePage<'p> {
    /// `None` when the page is not a tree page with this number.
    pub(super) fn decode(page: &'p [u8], number: u64) -> Option<Self> {
        let flags = u16_at(page, 10)?;
        let is_leaf = flags == LEAF;
        if u64_at(page, 0)? != number || !(is_leaf || flags == BRANCH) || u16_at(page, 8)? != 0 {
            return None;
        }
        let (lower, upper) = (usize::from(u16_at(page, 12)?), usize::from(u16_at(page, 14)?));
        if lower < HEADER || lower % 2 != 0 || lower > upper || upper > page.len() {
            return None;
        }
        let mut nodes = Vec::with_capacity((lower - HEADER) / 2);
        let mut spans = Vec::with_capacity(nodes.capacity());
        for at in (HEADER..lower).step_by(2) {
            let start = usize::from(u16_at(page, at)?);
            if start < upper || start % 2 != 0 {
                return None;
            }
            let (node, len) = Node::decode(page.get(start..)?, is_leaf)?;
            nodes.push(node);
            spans.push((start, start + len));
        }
        // The nodes fill the used part without a gap: LMDB moves them by these lengths.
        spans.sort_unstable();
        let mut end = upper;
        for (start, next) in spans {
            if start != end {
                return None;
            }
            end = next;
        }
        (end == page.len()).then_some(Self { is_leaf, nodes })
    }
}

impl<'p> Node<'p> {
    /// The node at the start of `bytes`, and its length with padding.
    fn decode(bytes: &'p [u8], is_leaf: bool) -> Option<(Self, usize)> {
        let low = u64::from(u16_at(bytes, 0)?) | u64::from(u16_at(bytes, 2)?) << 16;
        let flags = u16_at(bytes, 4)?;
        let key_len = usize::from(u16_at(bytes, 6)?);
        let key = bytes.get(NODE..NODE + key_len)?;
        let (number, value_len) = match (is_leaf, flags) {
            (false, _) => (low | u64::from(flags) << 32, 0),
            (true, 0 | SUBTREE) => (low, usize::try_from(low).ok()?),
            (true, BIG) => (low, 8),
            _ => return None,
        };
        let end = NODE + key_len + value_len;
        let value = bytes.get(NODE + key_len..end)?;
        let padded = end.next_multiple_of(2);
        (padded <= bytes.len()).then_some((Self { flags, key, number, value }, padded))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A leaf page 9 with nodes of the given offsets and value lengths, and keys of one byte.
    fn page(lower: u16, upper: u16, nodes: &[(u16, u16)]) -> Vec<u8> {
        let mut page = vec![0; 4096];
        page[0] = 9;
        page[10..12].copy_from_slice(&LEAF.to_le_bytes());
        page[12..14].copy_from_slice(&lower.to_le_bytes());
        page[14..16].copy_from_slice(&upper.to_le_bytes());
        for (number, (offset, value_len)) in nodes.iter().enumerate() {
            let slot = HEADER + 2 * number;
            page[slot..slot + 2].copy_from_slice(&offset.to_le_bytes());
            let Some(node) = page.get_mut(usize::from(*offset)..) else { continue };
            if node.len() >= NODE {
                node[0..2].copy_from_slice(&value_len.to_le_bytes());
                node[6] = 1;
            }
        }
        page
    }

    fn check(lower: u16, upper: u16, nodes: &[(u16, u16)], nodes_found: Option<usize>) {
        let page = page(lower, upper, nodes);
        let found = TreePage::decode(&page, 9).map(|page| page.nodes.len());
        assert_eq!(found, nodes_found, "{lower} {upper} {nodes:?}");
        assert!(TreePage::decode(&page, 8).is_none(), "another page");
    }

    #[test]
    fn nodes_fill_the_used_part_exactly() {
        // 8 + 1 + 7 bytes are 16; 8 + 1 + 6 are padded to 16.
        check(20, 4064, &[(4080, 7), (4064, 7)], Some(2));
        check(20, 4064, &[(4064, 6), (4080, 7)], Some(2));
        check(16, 4096, &[], Some(0));
        check(20, 4062, &[(4080, 7), (4064, 7)], None);
        check(20, 4064, &[(4080, 7), (4064, 5)], None);
        check(20, 4064, &[(4080, 5), (4064, 7)], None);
        check(20, 4064, &[(4064, 7), (4064, 7)], None);
        check(20, 4064, &[(4064, 23), (4080, 7)], None);
        check(20, 4064, &[(4080, 9), (4064, 7)], None);
        check(18, 4081, &[(4081, 6)], None);
        check(18, 4090, &[(4090, 0)], None);
        check(18, 4080, &[(5000, 7)], None);
        check(14, 4096, &[], None);
        check(17, 4096, &[], None);
        check(20, 18, &[], None);
        check(20, 4097, &[], None);
    }
}
