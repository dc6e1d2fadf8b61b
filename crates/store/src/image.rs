//! Reads an LMDB file with plain reads, and believes nothing in it.
//!
//! LMDB maps its file and trusts every byte: a flipped bit in a page is a signal, an endless walk or silence. So
//! the file is walked here first, with bounds on everything, and LMDB maps it only when that found no fault.
//!
//! What holds for a good file, and is checked:
//! - I1: both meta pages are LMDB's, of consecutive commits, each in the place of its number.
//! - I2: every page of every tree carries its own number and kind, and is in one tree, once.
//! - I3: the nodes of a page fill its used part exactly, without overlap.
//! - I4: keys ascend in each tree, and lie within the bounds that the branch above gives.
//! - I5: each tree has the depth and the numbers of pages and rows that its record says.
//! - I6: meta pages, tree pages and free pages are together all pages up to the last one, each once.
//! - I7: the tree of either meta page holds a sealed row with that meta page's commit number, so neither number
//!   can be changed to bring an older tree back.
//!
//! What is handed out are the rows of the tables under those of the delta (`crate::delta`, rules D1 and D2).

mod bytes;
mod meta;
mod overlay;
mod page;
mod scrub;
mod verify;
mod walk;

pub use scrub::ScrubPlace;

pub(crate) use meta::page_len;
pub(crate) use scrub::scrub;
pub(crate) use verify::{Verified, verify};
