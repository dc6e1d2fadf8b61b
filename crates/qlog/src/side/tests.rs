//! Side files: streamed bytes equal encoded ones, and what does not fit is found.

use std::path::Path;
use std::sync::Arc;

use parking_lot::RwLock;
use queen_io::{Disk, OpenMode, SimDisk};
use queen_record::header::{FileHeader, HEADER_LEN};
use queen_record::ids::{EntryIndex, Micros, Offset, PartitionId, TxHash};
use queen_record::qhsh::{self, QhshHead, QhshRecord};
use queen_record::qidx::{self, QidxRecord};
use queen_record::record::{Head, Kind, MessageRecord, Record, decode};

use super::{BuildError, SealedFile, SideIndex, SidePlace, index_record};
use crate::file::RamIndex;

const LOG: &str = "/r00000001.qlog";

/// A sealed file, and its records with their hashes in key order.
struct Fixture {
    sim: SimDisk,
    len: u64,
    records: Vec<(QidxRecord, Vec<u8>)>,
}

fn message(partition: u64, base: u64, count: u64, payload: usize) -> Vec<u8> {
    let hash = |n: u64| {
        let mut hash = [partition.to_le_bytes()[0]; 16];
        hash[..8].copy_from_slice(&n.to_le_bytes());
        TxHash(hash)
    };
    let hashes: Vec<TxHash> = (base..base + count).map(hash).collect();
    let payload = vec![7; payload];
    let mut out = Vec::new();
    let record = MessageRecord {
        seq: EntryIndex(5),
        partition: PartitionId(partition),
        base: Offset(base),
        created: Micros(i64::try_from(base).unwrap()),
        compressed: false,
        hashes: &hashes,
        payload: &payload,
    };
    record.encode(&mut out).unwrap();
    out
}

/// The record of a transaction with three participants.
fn transaction(message: &[u8]) -> Vec<u8> {
    let record = decode(message).unwrap();
    let mut transaction = vec![9; 16];
    transaction.extend_from_slice(&3u16.to_le_bytes());
    transaction.extend_from_slice(&[8; 24]);
    let len = record.head.len + u32::try_from(transaction.len()).unwrap();
    let head = Head { len, kind: Kind::Transaction, ..record.head };
    let mut out = Vec::new();
    Record { head, transaction: &transaction, ..record }.encode(&mut out);
    out
}

fn fixture(messages: &[Vec<u8>]) -> Fixture {
    let mut bytes = FileHeader { number: 1, first_seq: EntryIndex(5) }.encode().to_vec();
    assert_eq!(bytes.len(), HEADER_LEN);
    let mut records = Vec::new();
    for message in messages {
        let record = decode(message).unwrap();
        let entry = index_record(bytes.len() as u64, &record).unwrap();
        records.push((entry, record.hashes.to_vec()));
        bytes.extend_from_slice(message);
    }
    records.sort_by_key(|(record, _)| record.key());
    let sim = SimDisk::new();
    sim.open(Path::new(LOG), OpenMode::CreateNew).unwrap().write_all_at(&bytes, 0).unwrap();
    Fixture { sim, len: bytes.len() as u64, records }
}

fn mixed() -> Fixture {
    let mut messages = vec![message(70, 0, 9000, 10), transaction(&message(70, 9000, 5000, 1))];
    for round in 0..40 {
        for partition in (0..60).rev() {
            let size = if partition == 3 { 70_000 } else { 30 };
            messages.push(message(partition, round * 2, 2, size));
        }
    }
    messages.push(transaction(&message(80, 0, 2, 0)));
    fixture(&messages)
}

impl Fixture {
    fn ram(&self, take: usize) -> RwLock<RamIndex> {
        let mut ram = RamIndex::default();
        self.records.iter().take(take).for_each(|(record, _)| ram.insert(record));
        RwLock::new(ram)
    }

    fn build(&self, ram: Option<&RwLock<RamIndex>>) -> Result<SideIndex, BuildError> {
        let job = SealedFile {
            disk: &self.sim,
            dir: Path::new("/"),
            path: Path::new(LOG),
            file: self.sim.open(Path::new(LOG), OpenMode::Read).unwrap(),
            number: 1,
            len: self.len,
            seqs: (EntryIndex(5), EntryIndex(5)),
            place: SidePlace::Own,
        };
        job.build(ram)
    }

    /// Both files, as the whole-file encoders make them.
    fn wanted(&self) -> (Vec<u8>, Vec<u8>) {
        let places: Vec<QidxRecord> = self.records.iter().map(|(record, _)| *record).collect();
        let hashes = self.records.iter().map(|(record, hashes)| {
            let QidxRecord { partition, base, created, count, .. } = *record;
            QhshRecord { head: QhshHead { partition, base, created, count }, hashes }
        });
        (qidx::encode(1, self.len, &places), qhsh::encode(1, self.len, hashes))
    }

    fn check(&self, built: &SideIndex) {
        let contents = |ext| self.sim.contents(&Path::new(LOG).with_extension(ext)).unwrap();
        let found = (contents("qidx"), contents("qhsh"));
        assert!(found == self.wanted());
        let open = |ext| {
            let path = Path::new(LOG).with_extension(ext);
            self.sim.open(&path, OpenMode::Read).unwrap()
        };
        let loaded = SideIndex::load(1, self.len, &*open("qidx"), &*open("qhsh")).ok().unwrap();
        assert!(loaded == *built);
        assert!(SideIndex::load(1, self.len + 1, &*open("qidx"), &*open("qhsh")).is_err());
        // The blocks tile each body, and each has the checksum of its bytes.
        for (bytes, blocks, end) in
            [(found.0, &built.index, built.index_end), (found.1, &built.hashes, built.hashes_end)]
        {
            assert_eq!(end, bytes.len() as u64);
            let mut at = 48;
            for place in 0..blocks.len() {
                let (from, until, sum) = super::range(blocks, place, end).unwrap();
                assert_eq!(from, at);
                let range = usize::try_from(from).unwrap()..usize::try_from(until).unwrap();
                assert_eq!(queen_record::hash::checksum(&bytes[range]), sum);
                at = until;
            }
            assert_eq!(at, end);
        }
    }
}

#[test]
fn both_orders_make_the_bytes_of_the_whole_file_encoders() {
    for fixture in [fixture(&[]), fixture(&[message(1, 0, 1, 5)]), mixed()] {
        let from_ram = fixture.build(Some(&fixture.ram(usize::MAX))).ok().unwrap();
        fixture.check(&from_ram);
        let from_file = fixture.build(None).ok().unwrap();
        fixture.check(&from_file);
    }
}

#[test]
fn an_index_that_is_not_the_file_s_is_not_used() {
    let fixture = mixed();
    let built = fixture.build(Some(&fixture.ram(100))).ok().unwrap();
    fixture.check(&built);
    let ram = fixture.ram(usize::MAX);
    let mut moved = fixture.records[50].0;
    moved.at += 1;
    ram.write().insert(&moved);
    fixture.check(&fixture.build(Some(&ram)).ok().unwrap());
}

#[test]
fn a_second_record_of_an_offset_is_a_flaw() {
    let first = message(1, 0, 2, 5);
    let at = (HEADER_LEN + first.len()) as u64;
    let fixture = fixture(&[first, message(1, 0, 2, 6)]);
    for ram in [None, Some(&fixture.ram(usize::MAX))] {
        match fixture.build(ram) {
            Err(BuildError::Flaw(flaw)) => assert_eq!(flaw.at, at, "{}", flaw.reason),
            _ => panic!("it was taken"),
        }
    }
    let disk: Arc<dyn Disk> = Arc::new(fixture.sim.clone());
    assert!(!disk.exists(&Path::new(LOG).with_extension("qidx")).unwrap());
}
