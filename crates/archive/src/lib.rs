//! The form of a backup: a tar whose last member says what it holds.
//!
//! ```text
//! queen-backup            what will follow: entry, time, names and lengths
//! ENCRYPTION              the files of a data directory, by name
//! qlog/q7/r00000001.qlog
//! store/data.mdb
//! queen-backup.sums       the same as the first member, with a checksum for each file
//! ```
//!
//! Any tar reads it. It is written in one pass, with a length that is known before, and read in one pass.
//!
//! - A1: what ended early, or is not what was sent, is refused: the sums come last and name everything.
//! - A2: unpacking writes names of a data directory below the directory it was given, and nothing else.
//! - A3: nothing is allocated from a length that was not checked; memory is one piece and the list of names.
//! - A4: unpacking again goes on where it was interrupted: what is there already is compared, not written.
#![forbid(unsafe_code)]

mod error;
mod manifest;
mod name;
mod pack;
mod place;
mod progress;
mod tar;
mod unpack;

pub use error::{ArchiveError, PackError};
pub use manifest::{Manifest, Member};
pub use pack::{Pack, Source, Stopped, Take};
pub use place::{Place, remove_unpacked};
pub use progress::Progress;
pub use unpack::{Sink, Verify, read_archive, read_directory};

/// First member of an archive.
pub const MANIFEST: &str = "queen-backup";
/// Last member of an archive, and a file beside those of an unpacked one.
pub const SUMS: &str = "queen-backup.sums";

/// Bytes read and written at once.
const PIECE: usize = 256 << 10;
