//! The whole file: meta pages, the tables in order with their seals and sums, the free pages, every page once.

use std::path::Path;
use std::sync::Arc;

use queen_io::DiskFile;
use queen_state::Keyspace;

use super::bytes::{u32_at, u64_at};
use super::meta::{Meta, TREE_LEN, Tree};
use super::page::Pages;
use super::walk::{KeyOrder, Row, walk};
use crate::checkpoint::OnRow;
use crate::error::StoreError;
use crate::seal::Seals;
use crate::sums::{FORMAT, FORMAT_KEY, SUMS_KEY, Sums, is_own};

/// Reads everything; rows go to `on_row` in order, before it is known that all of the file is good. Returns how
/// many there are.
pub(crate) fn verify(
    path: &Path,
    file: &Arc<dyn DiskFile>,
    on_row: OnRow<'_>,
) -> Result<u64, StoreError> {
    let (newest, older) = read_metas(path, file)?;
    let seals = Seals::new();
    check_older(path, file, &older, &seals)?;

    let mut pages = Pages::new(path.to_owned(), Arc::clone(file))?;
    read_meta(&mut pages, 0)?;
    read_meta(&mut pages, 1)?;
    let tables = tables(&mut pages, &newest)?;
    let (mut found, mut own) = (Sums::new(), Own::default());
    for keyspace in Keyspace::ALL {
        let Some(tree) = table_of(&tables, keyspace) else { continue };
        let damaged = |key: &[u8], reason: String| row_damage(path, keyspace, key, reason);
        walk(&mut pages, tree, newest.last_page, KeyOrder::Bytes, &mut |row| {
            let Some((value, checksum)) = open(&seals, keyspace, &row) else {
                return Err(damaged(row.key, "has a row that fails its checksum".to_owned()));
            };
            if is_own(keyspace, row.key) {
                return own.take(path, row.key, value);
            }
            found.add(keyspace, checksum);
            on_row(keyspace, row.key, value)
                .map_err(|error| damaged(row.key, format!("has a row that is not valid: {error}")))
        })?;
    }
    // Only now: a newer build's file is too new before it is anything else.
    let known = |name: &[u8]| Keyspace::ALL.iter().any(|known| known.name().as_bytes() == name);
    if let Some((name, _)) = tables.iter().find(|(name, _)| !known(name)) {
        let name = String::from_utf8_lossy(name);
        return Err(pages.damage(format!("has a table of unknown name {name:?}")));
    }
    let recorded = own.finish(path, newest.commit)?;
    if let Some(keyspace) = recorded.difference(&found) {
        let (is, was) = (found.rows(keyspace), recorded.rows(keyspace));
        let reason = format!("does not hold the rows that its last commit counted ({is} of {was})");
        return Err(row_damage(path, keyspace, &[], reason));
    }
    check_free(&mut pages, &newest)?;
    Ok(Keyspace::ALL.into_iter().map(|keyspace| found.rows(keyspace)).sum())
}

fn open<'p>(seals: &Seals, keyspace: Keyspace, row: &Row<'p>) -> Option<(&'p [u8], u64)> {
    if row.subtree { None } else { seals.open(keyspace, row.key, row.value) }
}

fn row_damage(path: &Path, keyspace: Keyspace, key: &[u8], reason: String) -> StoreError {
    StoreError::Damage {
        path: path.to_owned(),
        keyspace: Some(keyspace),
        key: key.to_vec(),
        reason,
    }
}

/// The newer meta page and the other one. Rule I1.
fn read_metas(path: &Path, file: &Arc<dyn DiskFile>) -> Result<(Meta, Meta), StoreError> {
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
    let meta = table_of(&tables, Keyspace::Meta);
    let mut own = Own::default();
    if let Some(meta) = meta {
        walk(&mut pages, meta, older.last_page, KeyOrder::Bytes, &mut |row| match open(
            seals,
            Keyspace::Meta,
            &row,
        ) {
            Some((value, _)) if is_own(Keyspace::Meta, row.key) => own.take(path, row.key, value),
            _ => Ok(()),
        })?;
    }
    own.finish(path, older.commit).map(drop)
}

/// The trees of all tables, by name.
fn tables(pages: &mut Pages, meta: &Meta) -> Result<Vec<(Vec<u8>, Tree)>, StoreError> {
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

fn table_of(tables: &[(Vec<u8>, Tree)], keyspace: Keyspace) -> Option<Tree> {
    tables.iter().find(|(name, _)| name == keyspace.name().as_bytes()).map(|(_, tree)| *tree)
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
