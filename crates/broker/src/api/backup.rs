//! A backup on its way.

use bytes::Bytes;
use tokio::sync::mpsc;

/// An archive of the whole node, as of one entry.
#[derive(Debug)]
pub struct Backup {
    /// The last entry in it.
    pub index: u64,
    /// Its bytes.
    pub bytes: u64,
    /// Its pieces, in order; an error, or an end before `bytes`, says that it is none. Dropped, it ends the backup.
    pub pieces: mpsc::Receiver<Result<Bytes, String>>,
}
