//! Side files against the sealed file that they were made from.

use std::io;
use std::path::Path;

use queen_io::{Disk, OpenMode};
use queen_record::ids::{EntryIndex, TxHash};
use queen_record::qhsh::{self, QhshHead, QhshRecord};
use queen_record::qidx::{self, QidxRecord};
use queen_record::record::Record;

use crate::report::{Findings, Severity};

/// The message records of a sealed file, as its side files should have them. Memory: below that of the file.
#[derive(Default)]
pub(crate) struct Sides {
    records: Vec<(QidxRecord, Vec<u8>)>,
}

impl Sides {
    pub(crate) fn add(&mut self, at: u64, record: &Record<'_>) {
        let head = &record.head;
        let (Some(end), Ok(len)) = (head.end(), u32::try_from(record.total_len())) else { return };
        if !head.kind.is_message() {
            return;
        }
        let place = QidxRecord {
            partition: head.partition,
            base: head.base,
            end,
            created: head.created,
            at,
            count: head.count,
            len,
        };
        self.records.push((place, record.hashes.to_vec()));
    }

    /// Compares both files, which may be missing, with what they should be.
    pub(crate) fn compare(
        mut self,
        disk: &dyn Disk,
        path: &Path,
        number: u64,
        len: u64,
        findings: &mut Findings,
    ) -> io::Result<()> {
        self.records.sort_by_key(|(place, _)| place.key());
        let index = path.with_extension("qidx");
        if disk.exists(&index)? {
            let places: Vec<QidxRecord> = self.records.iter().map(|(place, _)| *place).collect();
            let right = qidx::encode(number, len, &places);
            differ(&index, &read(disk, &index, right.len())?, &right, findings);
        }
        let hashes = path.with_extension("qhsh");
        if disk.exists(&hashes)? {
            let records = self.records.iter().map(|(place, hashes)| {
                let QidxRecord { partition, base, created, count, .. } = *place;
                QhshRecord { head: QhshHead { partition, base, created, count }, hashes }
            });
            let right = qhsh::encode(number, len, records);
            differ(&hashes, &read(disk, &hashes, right.len())?, &right, findings);
        }
        Ok(())
    }
}

/// As many bytes of a file as it should have, and one more when it has more: a length that is wrong is not allocated.
fn read(disk: &dyn Disk, path: &Path, right: usize) -> io::Result<Vec<u8>> {
    let file = disk.open(path, OpenMode::Read)?;
    let len = usize::try_from(file.len()?).unwrap_or(usize::MAX);
    let mut bytes = vec![0; len.min(right + 1)];
    let count = file.read_at(&mut bytes, 0)?;
    bytes.truncate(count);
    Ok(bytes)
}

/// A side file whose own checksums hold but whose content is not that of its log is believed by a start.
fn differ(path: &Path, found: &[u8], right: &[u8], findings: &mut Findings) {
    if found == right {
        return;
    }
    let common = found.iter().zip(right).position(|(a, b)| a != b);
    let at = common.unwrap_or(found.len().min(right.len())) as u64;
    if !findings.has(path, at) {
        let what = "is not what its log file gives; remove it, and a start makes it again";
        findings.add(Severity::Repaired, path, Some(at), what);
    }
}

/// The first hash that is not that of its message's transactionId.
pub(crate) fn wrong_hash(found: TxHash, stored: Option<TxHash>, seq: EntryIndex) -> Option<String> {
    (stored != Some(found))
        .then(|| format!("a message of entry {seq} has another hash than its transactionId"))
}
