//! The directory that a store lives in.

use std::path::Path;

use queen_io::{Disk, site};

use crate::error::StoreError;

/// Makes a store's directory where it is missing. Its name is durable before anything in it is.
pub(crate) fn make_directory(disk: &dyn Disk, directory: &Path) -> Result<(), StoreError> {
    let _site = site("store_directory");
    disk.create_dir(directory).map_err(StoreError::fault(directory, "create directory"))?;
    let parent = directory.parent().unwrap_or(directory);
    disk.sync_dir(parent).map_err(StoreError::fault(parent, "sync"))
}
