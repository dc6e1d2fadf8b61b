//! A file that is in use, read again a few rows at a time.
//!
//! Between two transactions the tree of the newest meta page stands still, so a part of it can be read with all the
//! checks of the whole walk but the counts, which are the load's.

use std::path::Path;
use std::sync::Arc;

use queen_io::DiskFile;

use super::page::Pages;
use super::verify::{open_row, read_metas, table_of, tables};
use super::walk::walk_some;
use crate::error::StoreError;
use crate::seal::Seals;
use crate::table::TableName;

/// Where a scrub is: rows up to this one were read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScrubPlace {
    /// Tables that are done.
    tables: usize,
    /// The last key read of the next one.
    key: Option<Vec<u8>>,
}

/// Reads up to `rows` rows behind `place` and moves it; returns how many there were. None are left when they are fewer.
pub(crate) fn scrub(
    path: &Path,
    file: &Arc<dyn DiskFile>,
    place: &mut ScrubPlace,
    rows: u64,
) -> Result<u64, StoreError> {
    let (newest, _) = read_metas(path, file)?;
    let mut pages = Pages::new(path.to_owned(), Arc::clone(file))?;
    let seals = Seals::new();
    let known = tables(&mut pages, &newest)?;
    let mut read = 0;
    for table in TableName::all().skip(place.tables) {
        if let Some(tree) = table_of(&known, table) {
            let (after, mut last) = (place.key.take(), None);
            walk_some(
                &mut pages,
                tree,
                newest.last_page,
                after.as_deref(),
                rows - read,
                &mut |row| {
                    open_row(path, &seals, table, &row)?;
                    last = Some(row.key.to_vec());
                    read += 1;
                    Ok(())
                },
            )?;
            if read == rows {
                place.key = last;
                return Ok(read);
            }
        }
        *place = ScrubPlace { tables: place.tables + 1, key: None };
    }
    *place = ScrubPlace::default();
    Ok(read)
}
