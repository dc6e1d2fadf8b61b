//! Where to begin in a sealed file whose entries nobody remembers: records that its index names are bisected.
//!
//! The index is ordered by partition and offset. The records of a few of its blocks lie all over the file when partitions are
//! small; within a large partition places ascend, so its blocks can be bisected. Only what the index names is known to be
//! the start of a record: any other byte may be in a payload that looks like one.

use std::ops::Range;

use queen_record::ids::EntryIndex;

use crate::file::{FileIndex, LogFile};
use crate::read::Wait;
use crate::side::SideIndex;

use super::Failure;
use super::cursor::Look;
use super::window::Window;

/// Index blocks that are read.
const BLOCKS: usize = 8;
/// A file shorter than this is read from its start: it costs about what looking does.
const WORTH_IT: u64 = 512 * 1024;

/// A place in a file whose records are `start..end`: a record of an entry before `from` of which the index knows, the last
/// one as far as that is cheap, or `start`. The caller sees whether the file is still the same.
pub(super) fn narrow(
    look: &Look<'_>,
    file: &LogFile,
    (start, end): (u64, u64),
    from: EntryIndex,
) -> Result<u64, Failure> {
    let FileIndex::Side(side) = &file.index else { return Ok(start) };
    if end.saturating_sub(start) < WORTH_IT {
        return Ok(start);
    }
    let mut search = Search { look, file, side, end, from, window: Window::default() };
    let count = side.index_block_count();
    let mut places = Vec::new();
    for block in (0..count).step_by(count.div_ceil(BLOCKS).max(1)) {
        places.extend(search.block(block)?);
    }
    let spread = search.last_before(places)?;
    let mut run = longest_run(side);
    let mut block = None;
    while run.start < run.end {
        let middle = run.start.midpoint(run.end);
        let first = search.block(middle)?.into_iter().next();
        if first.map_or(Ok(false), |at| search.is_before(at))? {
            block = Some(middle);
            run.start = middle + 1;
        } else {
            run.end = middle;
        }
    }
    let places = block.map_or(Ok(Vec::new()), |block| search.block(block))?;
    let within = search.last_before(places)?;
    Ok(spread.max(within).unwrap_or(start))
}

/// The blocks of the partition that begins most of them.
fn longest_run(side: &SideIndex) -> Range<usize> {
    let mut longest = 0..0;
    let mut run = 0..0;
    let mut partition = None;
    for block in 0..side.index_block_count() {
        let begins = side.index_key(block).map(|key| key.0);
        if begins != partition {
            partition = begins;
            run = block..block;
        }
        run.end = block + 1;
        if run.len() > longest.len() {
            longest = run.clone();
        }
    }
    longest
}

struct Search<'a> {
    look: &'a Look<'a>,
    file: &'a LogFile,
    side: &'a SideIndex,
    end: u64,
    from: EntryIndex,
    window: Window,
}

impl Search<'_> {
    /// The places in a block of the index, in its order.
    fn block(&self, block: usize) -> Result<Vec<u64>, Failure> {
        let read = self.look.shared.index_block(self.file, self.side, block, Wait::Yes);
        let records = read.map_err(Failure::Error)?.unwrap_or_default();
        Ok(records.iter().map(|record| record.at).filter(|at| *at < self.end).collect())
    }

    fn is_before(&mut self, at: u64) -> Result<bool, Failure> {
        let record = self.window.record(self.look.shared, self.file, (at, self.end), 0)?;
        Ok(record.head.seq < self.from)
    }

    /// The last of the places whose record is of an entry before the one that is looked for.
    fn last_before(&mut self, mut places: Vec<u64>) -> Result<Option<u64>, Failure> {
        places.sort_unstable();
        let (mut low, mut high) = (0, places.len());
        let mut found = None;
        while low < high {
            let middle = low.midpoint(high);
            let Some(at) = places.get(middle).copied() else { break };
            if self.is_before(at)? {
                found = Some(at);
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Ok(found)
    }
}
