//! The directory that a store lives in.

use std::path::Path;

use queen_io::{Disk, site};

use crate::error::StoreError;

/// Name of the directory in which a file is made.
pub(crate) const MAKING: &str = "new";

/// Makes the directory of an LMDB store ready: there, and without a file in the making.
pub(crate) fn prepare(disk: &dyn Disk, directory: &Path) -> Result<(), StoreError> {
    make_directory(disk, directory)?;
    let making = directory.join(MAKING);
    let fault = |operation| StoreError::fault(&making, operation);
    if disk.exists(&making).map_err(fault("look for"))? {
        for entry in disk.list(&making).map_err(fault("list"))? {
            disk.remove_file(&making.join(entry.name)).map_err(fault("clear"))?;
        }
        disk.remove_dir(&making).map_err(fault("remove"))?;
    }
    Ok(())
}

/// Makes a store's directory where it is missing. Its name is durable before anything in it is.
pub(crate) fn make_directory(disk: &dyn Disk, directory: &Path) -> Result<(), StoreError> {
    let _site = site("store_directory");
    disk.create_dir(directory).map_err(StoreError::fault(directory, "create directory"))?;
    let parent = directory.parent().unwrap_or(directory);
    disk.sync_dir(parent).map_err(StoreError::fault(parent, "sync"))
}
