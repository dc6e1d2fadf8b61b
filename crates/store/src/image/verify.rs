//! The whole file: meta pages, the tables in order with their seals and sums, the free pages, every page once.

use std::path::Path;
use std::sync::Arc;

use queen_io::DiskFile;
use queen_state::Keyspace;

use super::bytes::{u32_at, u64_at};
use super::meta::{Meta, TREE_LEN, Tree};
use super::overlay::Overlay;
use super::page::Pages;
use super::walk::{KeyOrder, Row, walk};
use crate::checkpoint::OnRow;
use crate::delta::{DeltaRow, KeySet, PENDING_KEY, Pending, batch_number};
use crate::error::StoreError;
use crate::seal::Seals;
use crate::sums::{FORMAT, FORMAT_KEY, SUMS_KEY, Sums, is_own};
use crate::table::TableName;

/// What was found in a good file.
#[derive(Clone, Debug)]
pub(crate) struct Verified {
    /// Rows that were handed out.
    pub(crate) rows: u64,
    pub(crate) format: u32,
    pub(crate) pending: Pending,
    /// Bytes of the batches that count.
    pub(crate) delta_bytes: u64,
    /// The number after the last batch that is there, those that do not count included.
    pub(crate) batches_end: u64,
    /// The rows of the delta.
    pub(crate) deferred: KeySet,
}

/// Reads everything; rows go to `on_row` in order, before it is known that all of the file is good.
pub(crate) fn verify(
    path: &Path,
    file: &Arc<dyn DiskFile>,
    on_row: OnRow<'_>,
) -> Result<Verified, StoreError> {
    let (newest, older) = read_metas(path, file)?;
    let seals = Seals::new();
    check_older(path, file, &older, &seals)?;

    let mut pages = Pages::new(path.to_owned(), Arc::clone(file))?;
    read_meta(&mut pages, 0)?;
    read_meta(&mut pages, 1)?;
    let tables = tables(&mut pages, &newest)?;
    let (mut found, mut own) = (Sums::new(), Own::default());
    let mut out = HandOut { path, seals: &seals, on_row, rows: 0 };
    if let Some(tree) = table_of(&tables, Keyspace::Meta.into()) {
        walk(&mut pages, tree, newest.last_page, KeyOrder::Bytes, &mut |row| {
            let (value, checksum) = open_row(path, &seals, Keyspace::Meta, &row)?;
            if is_own(Keyspace::Meta, row.key) {
                return own.take(path, row.key, value);
            }
            found.add(Keyspace::Meta, checksum);
            out.row(Keyspace::Meta, row.key, value)
        })?;
    }
    let pending = own.pending.unwrap_or(Pending::NONE);
    let mut delta = Delta { pending, batches: Vec::new(), bytes: 0, next: pending.first };
    if let Some(tree) = table_of(&tables, TableName::Delta) {
        walk(&mut pages, tree, newest.last_page, KeyOrder::Bytes, &mut |row| {
            let (value, checksum) = open_row(path, &seals, TableName::Delta, &row)?;
            found.add(TableName::Delta, checksum);
            delta.take(path, row.key, value)
        })?;
    }
    let (delta_bytes, batches_end) = (delta.bytes, delta.next);
    let mut overlay = delta.finish(path)?;
    let deferred = overlay.keys();
    for keyspace in Keyspace::ALL.into_iter().filter(|keyspace| *keyspace != Keyspace::Meta) {
        if let Some(tree) = table_of(&tables, keyspace.into()) {
            walk(&mut pages, tree, newest.last_page, KeyOrder::Bytes, &mut |row| {
                let (value, checksum) = open_row(path, &seals, keyspace, &row)?;
                found.add(keyspace, checksum);
                while let Some(newer) = overlay.next_below(keyspace, Some(row.key)) {
                    out.newer(keyspace, newer)?;
                }
                match overlay.next_at(keyspace, row.key) {
                    Some(newer) => out.newer(keyspace, newer),
                    None => out.row(keyspace, row.key, value),
                }
            })?;
        }
        while let Some(newer) = overlay.next_below(keyspace, None) {
            out.newer(keyspace, newer)?;
        }
    }
    let rows = out.rows;
    // Only now: a newer build's file is too new before it is anything else.
    let known = |name: &[u8]| TableName::all().any(|known| known.name().as_bytes() == name);
    if let Some((name, _)) = tables.iter().find(|(name, _)| !known(name)) {
        let name = String::from_utf8_lossy(name);
        return Err(pages.damage(format!("has a table of unknown name {name:?}")));
    }
    let format = own.format.unwrap_or(FORMAT);
    let recorded = own.finish(path, newest.commit)?;
    if let Some(table) = recorded.difference(&found) {
        let (is, was) = (found.rows(table), recorded.rows(table));
        let reason = format!("does not hold the rows that its last commit counted ({is} of {was})");
        return Err(row_damage(path, table, &[], reason));
    }
    check_free(&mut pages, &newest)?;
    Ok(Verified { rows, format, pending, delta_bytes, batches_end, deferred })
}

/// Where rows go, and how many went there.
struct HandOut<'r> {
    path: &'r Path,
    seals: &'r Seals,
    on_row: OnRow<'r>,
    rows: u64,
}

impl HandOut<'_> {
    fn row(&mut self, keyspace: Keyspace, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        self.rows += 1;
        (self.on_row)(keyspace, key, value).map_err(|error| {
            row_damage(self.path, keyspace, key, format!("has a row that is not valid: {error}"))
        })
    }

    /// A row of the delta.
    fn newer(&mut self, keyspace: Keyspace, row: DeltaRow<'_>) -> Result<(), StoreError> {
        let Some(stored) = row.stored else { return Ok(()) };
        let opened = self.seals.open(keyspace, row.key, stored);
        let (value, _) = opened.ok_or_else(|| unsealed(self.path, keyspace, row.key))?;
        self.row(keyspace, row.key, value)
    }
}

/// The batches of the delta as they are walked. Rule D1.
struct Delta {
    pending: Pending,
    batches: Vec<Vec<u8>>,
    bytes: u64,
    /// The number that comes next.
    next: u64,
}

impl Delta {
    fn take(&mut self, path: &Path, key: &[u8], batch: &[u8]) -> Result<(), StoreError> {
        if batch_number(key) != Some(self.next) {
            let reason = format!("has no batch {} of changes", self.next);
            return Err(row_damage(path, TableName::Delta, key, reason));
        }
        if self.next < self.pending.next {
            self.batches.push(batch.to_vec());
            self.bytes += batch.len() as u64;
        }
        self.next += 1;
        Ok(())
    }

    fn finish(self, path: &Path) -> Result<Overlay, StoreError> {
        if self.next < self.pending.next {
            let reason = format!("has no batch {} of changes", self.next);
            return Err(row_damage(path, TableName::Delta, &[], reason));
        }
        let damaged = || {
            let reason = "has a batch of changes that is not valid".to_owned();
            row_damage(path, TableName::Delta, &[], reason)
        };
        Overlay::new(self.batches).ok_or_else(damaged)
    }
}

/// The value of a row and its checksum.
pub(super) fn open_row<'p>(
    path: &Path,
    seals: &Seals,
    table: impl Into<TableName>,
    row: &Row<'p>,
) -> Result<(&'p [u8], u64), StoreError> {
    let table = table.into();
    open(seals, table, row).ok_or_else(|| unsealed(path, table, row.key))
}

fn unsealed(path: &Path, table: impl Into<TableName>, key: &[u8]) -> StoreError {
    row_damage(path, table, key, "has a row that fails its checksum".to_owned())
}

fn open<'p>(seals: &Seals, table: TableName, row: &Row<'p>) -> Option<(&'p [u8], u64)> {
    if row.subtree { None } else { seals.open(table, row.key, row.value) }
}

fn row_damage(path: &Path, table: impl Into<TableName>, key: &[u8], reason: String) -> StoreError {
    StoreError::row_damage(path, table.into(), key, reason)
}

/// The newer meta page and the other one. Rule I1.
pub(super) fn read_metas(
    path: &Path,
    file: &Arc<dyn DiskFile>,
) -> Result<(Meta, Meta), StoreError> {
    let mut pages = Pages::new(path.to_owned(), Arc::clone(file))?;
    let first = read_meta(&mut pages, 0)?;
    let second = read_meta(&mut pages, 1)?;
    let (newest, older) =
        if first.commit > second.commit { (first, second) } else { (second, first) };
    if newest.commit - older.commit != 1 {
        return Err(pages.damage("has meta pages of commits that do not follow each other"));
    }
    Ok((newest, older))
}

fn read_meta(pages: &mut Pages, number: u64) -> Result<Meta, StoreError> {
    let page = pages.read(number, 1)?;
    Meta::decode(&page, number).map_err(|reason| pages.damage(reason))
}

/// Rule I7 for the older meta page. LMDB keeps the tree of the last commit but one whole: its pages are reused
/// only by the commit that replaces its meta page.
fn check_older(
    path: &Path,
    file: &Arc<dyn DiskFile>,
    older: &Meta,
    seals: &Seals,
) -> Result<(), StoreError> {
    let mut pages = Pages::new(path.to_owned(), Arc::clone(file))?;
    let tables = tables(&mut pages, older)?;
    let meta = table_of(&tables, Keyspace::Meta.into());
    let mut own = Own::default();
    if let Some(meta) = meta {
        walk(&mut pages, meta, older.last_page, KeyOrder::Bytes, &mut |row| match open(
            seals,
            Keyspace::Meta.into(),
            &row,
        ) {
            Some((value, _)) if is_own(Keyspace::Meta, row.key) => own.take(path, row.key, value),
            _ => Ok(()),
        })?;
    }
    own.finish(path, older.commit).map(drop)
}

/// The trees of all tables, by name.
pub(super) fn tables(pages: &mut Pages, meta: &Meta) -> Result<Vec<(Vec<u8>, Tree)>, StoreError> {
    let mut tables = Vec::new();
    let path = pages.path.clone();
    walk(pages, meta.main, meta.last_page, KeyOrder::Bytes, &mut |row| {
        let tree = Tree::decode(row.value, 0)
            .filter(|_| row.subtree && row.value.len() == TREE_LEN)
            .filter(|tree| (tree.flags, tree.pad) == (0, 0));
        let Some(tree) = tree else {
            return Err(StoreError::damage(&path, "has a table without a tree"));
        };
        tables.push((row.key.to_vec(), tree));
        Ok(())
    })?;
    Ok(tables)
}

pub(super) fn table_of(tables: &[(Vec<u8>, Tree)], table: TableName) -> Option<Tree> {
    tables.iter().find(|(name, _)| name == table.name().as_bytes()).map(|(_, tree)| *tree)
}

/// Rule I6. A free row is a count and the numbers of that many pages.
fn check_free(pages: &mut Pages, meta: &Meta) -> Result<(), StoreError> {
    let mut free = Vec::new();
    let mut right = true;
    walk(pages, meta.free, meta.last_page, KeyOrder::Numbers, &mut |row| {
        let count = u64_at(row.value, 0).and_then(|count| usize::try_from(count).ok());
        let numbers =
            count.and_then(|count| row.value.get(8..count.checked_mul(8)?.checked_add(8)?));
        let Some(numbers) = numbers else {
            right = false;
            return Ok(());
        };
        right &= !row.subtree && u64_at(row.key, 0).is_some_and(|commit| commit <= meta.commit);
        free.extend(numbers.as_chunks::<8>().0.iter().map(|number| u64::from_le_bytes(*number)));
        Ok(())
    })?;
    if !right {
        return Err(pages.damage("has a damaged list of free pages"));
    }
    for number in &free {
        pages.meet_free(*number, meta.last_page)?;
    }
    // A page behind the file's end has no place in the set of pages met.
    free.sort_unstable();
    if free.is_sorted_by(|a, b| a < b) && pages.met_count == meta.last_page.saturating_add(1) {
        return Ok(());
    }
    let (met, all) = (pages.met_count, meta.last_page.saturating_add(1));
    Err(pages.damage(format!("has lost track of its pages ({met} of {all})")))
}

/// The store's own rows.
#[derive(Default)]
struct Own {
    format: Option<u32>,
    sums: Option<Sums>,
    pending: Option<Pending>,
}

impl Own {
    fn take(&mut self, path: &Path, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        let damaged =
            || row_damage(path, Keyspace::Meta, key, "has a row that is not valid".into());
        if key == FORMAT_KEY {
            let format = u32_at(value, 0).filter(|_| value.len() == 4).ok_or_else(damaged)?;
            if format > FORMAT {
                return Err(StoreError::TooNew { path: path.to_owned(), format, readable: FORMAT });
            }
            self.format = Some(format);
        } else if key == SUMS_KEY {
            self.sums = Some(Sums::decode(value).ok_or_else(damaged)?);
        } else if key == PENDING_KEY {
            self.pending = Some(Pending::decode(value).ok_or_else(damaged)?);
        } else {
            return Err(damaged());
        }
        Ok(())
    }

    fn finish(self, path: &Path, commit: u64) -> Result<Sums, StoreError> {
        if self.format.is_none() {
            return Err(StoreError::damage(path, "has no format row"));
        }
        match self.sums {
            Some(sums) if sums.commit == commit => Ok(sums),
            Some(_) => {
                Err(StoreError::damage(path, "has a meta page with a changed commit number"))
            }
            None => Err(StoreError::damage(path, "has no row of counts")),
        }
    }
}
