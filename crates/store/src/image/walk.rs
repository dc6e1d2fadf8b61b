//! The walk over one tree, from its record to its rows.

use std::cmp::Ordering;

use super::bytes::u64_at;
use super::meta::Tree;
use super::page::{BIG, Node, Pages, SUBTREE, TreePage};
use crate::error::StoreError;

/// LMDB's own limit.
const DEPTH_MAX: u16 = 32;

/// How a tree sorts its keys.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum KeyOrder {
    /// By their bytes.
    Bytes,
    /// As one 8-byte number each.
    Numbers,
}

/// A row as stored; `subtree` for a tree record.
pub(super) struct Row<'p> {
    pub(super) key: &'p [u8],
    pub(super) value: &'p [u8],
    pub(super) subtree: bool,
}

pub(super) type Visit<'v> = &'v mut dyn FnMut(Row<'_>) -> Result<(), StoreError>;

/// Walks a whole tree in the order of its keys. Shape: rules I2 to I5.
pub(super) fn walk(
    pages: &mut Pages,
    tree: Tree,
    last: u64,
    order: KeyOrder,
    visit: Visit<'_>,
) -> Result<(), StoreError> {
    let (from, left) = (None, u64::MAX);
    let mut walk = Walk { pages, last, order, from, left, before: None, found: Found::default() };
    if let Some(root) = tree.root {
        if tree.depth == 0 || tree.depth > DEPTH_MAX {
            return Err(walk.pages.damage("has a tree of impossible depth"));
        }
        walk.page(root, tree.depth, Bounds { low: None, high: None }, visit)?;
    } else if tree.depth != 0 {
        return Err(walk.pages.damage("has a tree without a root"));
    }
    let found = &walk.found;
    let same = found.branch_pages == tree.branch_pages
        && found.leaf_pages == tree.leaf_pages
        && found.overflow_pages == tree.overflow_pages;
    if !same {
        return Err(walk.pages.damage("has a tree with another number of pages than it says"));
    }
    if found.rows != tree.rows {
        let (found, says) = (found.rows, tree.rows);
        return Err(walk.pages.damage(format!("has a tree with {found} rows that says {says}")));
    }
    Ok(())
}

/// Walks up to `rows` rows of a tree whose keys are bytes, from the first one above `after`. Shape: rules I2 to I4 of the
/// pages that lie there.
pub(super) fn walk_some(
    pages: &mut Pages,
    tree: Tree,
    last: u64,
    after: Option<&[u8]>,
    rows: u64,
    visit: Visit<'_>,
) -> Result<(), StoreError> {
    let Some(root) = tree.root else { return Ok(()) };
    let (order, from, left) = (KeyOrder::Bytes, after.map(<[u8]>::to_vec), rows);
    let mut walk = Walk { pages, last, order, from, left, before: None, found: Found::default() };
    if tree.depth == 0 || tree.depth > DEPTH_MAX {
        return Err(walk.pages.damage("has a tree of impossible depth"));
    }
    walk.page(root, tree.depth, Bounds { low: None, high: None }, visit)
}

#[derive(Default)]
struct Found {
    branch_pages: u64,
    leaf_pages: u64,
    overflow_pages: u64,
    rows: u64,
}

struct Walk<'w> {
    pages: &'w mut Pages,
    last: u64,
    order: KeyOrder,
    /// Rows up to this key are passed over.
    from: Option<Vec<u8>>,
    /// Rows that are still wanted.
    left: u64,
    before: Option<Vec<u8>>,
    found: Found,
}

/// Keys are at or above `low` and below `high`.
#[derive(Clone, Copy)]
struct Bounds<'p> {
    low: Option<&'p [u8]>,
    high: Option<&'p [u8]>,
}

impl Walk<'_> {
    fn page(
        &mut self,
        number: u64,
        depth: u16,
        bounds: Bounds<'_>,
        visit: Visit<'_>,
    ) -> Result<(), StoreError> {
        let bytes = self.pages.read(number, self.last)?;
        let Some(page) = TreePage::decode(&bytes, number) else {
            return Err(self.bad_page(number));
        };
        if page.is_leaf != (depth == 1) {
            return Err(self.bad_page(number));
        }
        if page.is_leaf {
            self.found.leaf_pages += 1;
            if page.nodes.is_empty() {
                return Err(self.bad_page(number));
            }
            page.nodes.iter().try_for_each(|node| self.row(number, node, bounds, visit))
        } else {
            self.found.branch_pages += 1;
            self.branch(number, &page.nodes, depth, bounds, visit)
        }
    }

    /// The first key of a branch stands for "anything below the second" and is not looked at.
    fn branch(
        &mut self,
        number: u64,
        nodes: &[Node<'_>],
        depth: u16,
        bounds: Bounds<'_>,
        visit: Visit<'_>,
    ) -> Result<(), StoreError> {
        // LMDB asserts two in every tree but its list of free pages.
        let least = if self.order == KeyOrder::Numbers { 1 } else { 2 };
        if nodes.len() < least {
            return Err(self.bad_page(number));
        }
        let mut low = bounds.low;
        for (index, node) in nodes.iter().enumerate() {
            let next = nodes.get(index + 1).map(|next| next.key);
            let high = next.or(bounds.high);
            if let (Some(low), Some(high)) = (low, high)
                && self.compare(low, high) != Some(Ordering::Less)
            {
                return Err(self.bad_page(number));
            }
            if next.is_some_and(|next| self.outside(next, bounds)) {
                return Err(self.bad_page(number));
            }
            if self.left == 0 {
                return Ok(());
            }
            if next.is_some_and(|next| self.is_passed(next)) {
                low = next;
                continue;
            }
            self.page(node.number, depth - 1, Bounds { low, high }, visit)?;
            low = next;
        }
        Ok(())
    }

    fn row(
        &mut self,
        number: u64,
        node: &Node<'_>,
        bounds: Bounds<'_>,
        visit: Visit<'_>,
    ) -> Result<(), StoreError> {
        let first = self.before.is_none();
        let ascends = self.before.as_deref().map(|before| self.compare(before, node.key));
        let ordered = first || ascends == Some(Some(Ordering::Less));
        let whole = self.order == KeyOrder::Bytes || node.key.len() == 8;
        if !ordered || !whole || node.key.is_empty() || self.outside(node.key, bounds) {
            return Err(self.bad_page(number));
        }
        if self.left == 0 || self.is_passed(node.key) {
            return Ok(());
        }
        self.left -= 1;
        self.found.rows += 1;
        let before = self.before.get_or_insert_default();
        before.clear();
        before.extend_from_slice(node.key);
        if node.flags == BIG {
            let first = u64_at(node.value, 0).unwrap_or(u64::MAX);
            let len = usize::try_from(node.number).unwrap_or(usize::MAX);
            let (value, pages) = self.pages.read_big(first, self.last, len)?;
            self.found.overflow_pages += pages;
            return visit(Row { key: node.key, value: &value, subtree: false });
        }
        visit(Row { key: node.key, value: node.value, subtree: node.flags == SUBTREE })
    }

    fn is_passed(&self, key: &[u8]) -> bool {
        self.from.as_deref().is_some_and(|from| key <= from)
    }

    fn outside(&self, key: &[u8], bounds: Bounds<'_>) -> bool {
        let below = bounds.low.is_some_and(|low| {
            !matches!(self.compare(low, key), Some(Ordering::Less | Ordering::Equal))
        });
        let above = bounds.high.is_some_and(|high| self.compare(key, high) != Some(Ordering::Less));
        below || above
    }

    /// `None` for a number that is none.
    fn compare(&self, a: &[u8], b: &[u8]) -> Option<Ordering> {
        match self.order {
            KeyOrder::Bytes => Some(a.cmp(b)),
            KeyOrder::Numbers if a.len() == 8 && b.len() == 8 => {
                Some(u64_at(a, 0)?.cmp(&u64_at(b, 0)?))
            }
            KeyOrder::Numbers => None,
        }
    }

    fn bad_page(&self, number: u64) -> StoreError {
        self.pages.damage(format!("has a damaged page {number}"))
    }
}
