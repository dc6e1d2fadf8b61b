//! A log's newest file: whether it was ever used, and how far its records reach.

use std::sync::Arc;

use queen_io::DiskFile;
use queen_record::header::{FIRST_SEQ_UNUSED, FileHeader, HEADER_LEN};
use queen_record::ids::{EntryIndex, Micros};

use crate::file::RamIndex;
use crate::points::Points;
use crate::scan::{CHUNK_WHOLE, FileScan, Step, all_zero, read_exact_at};
use crate::side::index_record;

/// What a walk over the active file saw.
pub(crate) struct ActiveScan {
    pub(crate) index: RamIndex,
    /// End of the last verified record.
    pub(crate) end: u64,
    /// Seq of the last record; 0 without one.
    pub(crate) last: EntryIndex,
    /// Why the walk ended there, unless the rest is zero or nothing.
    pub(crate) bad: Option<String>,
    /// A verified record that breaks the order: no torn write looks like that.
    pub(crate) disorder: Option<String>,
    /// Seq and time of the first record.
    pub(crate) first: Option<(EntryIndex, Micros)>,
    /// Places in it.
    pub(crate) points: Points,
}

/// Whether a newest file was made ahead and never used, or not even finished.
pub(crate) fn unused(file: &dyn DiskFile) -> std::io::Result<bool> {
    let len = file.len()?;
    if len < HEADER_LEN as u64 {
        return Ok(true);
    }
    let mut bytes = [0; HEADER_LEN];
    read_exact_at(file, &mut bytes, 0)?;
    if bytes == [0; HEADER_LEN] {
        return all_zero(file, 0, len);
    }
    Ok(FileHeader::decode(&bytes).is_ok_and(|header| header.first_seq == FIRST_SEQ_UNUSED))
}

/// Walks a file that may end in a torn record.
pub(crate) fn scan_file(
    file: Arc<dyn DiskFile>,
    end: u64,
    first_seq: EntryIndex,
) -> std::io::Result<ActiveScan> {
    let mut scan = FileScan::new(file, HEADER_LEN as u64, end, CHUNK_WHOLE);
    let mut index = RamIndex::default();
    let mut last = EntryIndex(0);
    let mut lowest = first_seq;
    let mut first = None;
    let mut points = Points::default();
    let bad = loop {
        let here = scan.at();
        match scan.step()? {
            Step::Record(at, record) => {
                let seq = record.head.seq;
                if seq < lowest {
                    let reason = format!("entry {seq} after entry {lowest}");
                    let disorder = Some(reason);
                    let end = here;
                    return Ok(ActiveScan { index, end, last, bad: None, disorder, first, points });
                }
                last = seq;
                lowest = seq;
                first.get_or_insert((seq, record.head.created));
                if let Some(entry) = index_record(at, &record) {
                    index.insert(&entry);
                } else {
                    points.add(seq, at + record.total_len() as u64);
                }
            }
            Step::End => break None,
            Step::Bad(error) => break Some(error.to_string()),
        }
    };
    Ok(ActiveScan { index, end: scan.at(), last, bad, disorder: None, first, points })
}
