//! The two pages at the start of an LMDB file, and the record that describes one tree.
//!
//! ```text
//! page header   16 bytes: number u64, pad u16, flags u16, lower u16, upper u16
//! meta, at 16   magic u32 | version u32 | address u64 | map size u64 | free tree 48 | main tree 48
//!               | last page u64 | commit u64
//! tree record   pad u32 | flags u16 | depth u16 | branch pages u64 | leaf pages u64 | overflow pages u64
//!               | rows u64 | root page u64
//! ```
//!
//! The pad of the free tree is the page size, its flags say that keys are numbers (8).

use super::bytes::{u16_at, u32_at, u64_at};

const MAGIC: u32 = 0xBEEF_C0DE;
const VERSION: u32 = 1;
const META_FLAG: u16 = 0x08;
const NUMBER_KEYS: u16 = 0x08;
/// Root of an empty tree.
const NO_PAGE: u64 = u64::MAX;

/// LMDB takes the system's page size, up to its own limit; a file from a system with another one is refused.
pub(crate) fn page_len() -> usize {
    rustix::param::page_size().min(0x8000)
}

/// Length of a tree record.
pub(super) const TREE_LEN: usize = 48;

/// What a tree says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tree {
    pub(super) pad: u32,
    pub(super) flags: u16,
    pub(super) depth: u16,
    pub(super) branch_pages: u64,
    pub(super) leaf_pages: u64,
    pub(super) overflow_pages: u64,
    pub(super) rows: u64,
    /// `None` for an empty tree.
    pub(super) root: Option<u64>,
}

impl Tree {
    pub(super) fn decode(bytes: &[u8], at: usize) -> Option<Self> {
        let root = u64_at(bytes, at + 40)?;
        Some(Self {
            pad: u32_at(bytes, at)?,
            flags: u16_at(bytes, at + 4)?,
            depth: u16_at(bytes, at + 6)?,
            branch_pages: u64_at(bytes, at + 8)?,
            leaf_pages: u64_at(bytes, at + 16)?,
            overflow_pages: u64_at(bytes, at + 24)?,
            rows: u64_at(bytes, at + 32)?,
            root: (root != NO_PAGE).then_some(root),
        })
    }
}

/// One meta page.
#[derive(Clone, Copy, Debug)]
pub(super) struct Meta {
    pub(super) free: Tree,
    pub(super) main: Tree,
    pub(super) last_page: u64,
    pub(super) commit: u64,
}

impl Meta {
    /// Reads the meta page with the number `number`; the error is the rest of a sentence.
    pub(super) fn decode(page: &[u8], number: u64) -> Result<Self, &'static str> {
        let field = |found: Option<u32>, want: u32| found == Some(want);
        if !field(u32_at(page, 16), MAGIC) {
            return Err("is not an LMDB file");
        }
        if !field(u32_at(page, 20), VERSION) {
            return Err("has an LMDB version that this build does not read");
        }
        if u64_at(page, 0) != Some(number) || u16_at(page, 10) != Some(META_FLAG) {
            return Err("has a damaged meta page");
        }
        let meta = (|| {
            Some(Self {
                free: Tree::decode(page, 40)?,
                main: Tree::decode(page, 88)?,
                last_page: u64_at(page, 136)?,
                commit: u64_at(page, 144)?,
            })
        })();
        let meta = meta.ok_or("has a damaged meta page")?;
        if meta.free.pad as usize != page_len() {
            return Err("has another page size than this system");
        }
        let right = meta.free.flags == NUMBER_KEYS
            && (meta.main.flags, meta.main.pad) == (0, 0)
            && meta.commit & 1 == number;
        if right { Ok(meta) } else { Err("has a damaged meta page") }
    }
}
