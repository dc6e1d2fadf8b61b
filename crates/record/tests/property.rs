//! Whatever is encoded reads back the same, and no bytes make a reader panic.
#![allow(clippy::unwrap_used, reason = "a test may fail loudly")]

use proptest::collection::vec;
use proptest::prelude::*;
use queen_record::frame::{FrameRef, Frames};
use queen_record::ids::{EntryIndex, Micros, Offset, PartitionId, TxHash, Uuid};
use queen_record::qhsh::{self, QhshHead, QhshRecord};
use queen_record::qidx;
use queen_record::record::{self, Head, MessageRecord};
use queen_record::scan::{Scanner, Step};
use queen_record::{compress, header, layout};

proptest! {
    #[test]
    fn any_bytes_are_read_without_panic(bytes in vec(any::<u8>(), 0..400)) {
        if let Ok(found) = record::decode(&bytes) {
            let mut again = Vec::new();
            found.encode(&mut again);
            prop_assert_eq!(&again[..], &bytes[..again.len()]);
        }
        let head = Head::decode(&bytes);
        prop_assert!(head.is_err() || bytes.len() >= 49);
        let file = header::FileHeader::decode(&bytes);
        prop_assert!(file.is_err() || bytes.len() >= 32);
        drop(qidx::decode(&bytes));
        drop(qhsh::decode(&bytes));
        let number = layout::parse(&bytes);
        prop_assert!(number.is_none() || bytes.len() <= 11);
        drop(compress::content_size(&bytes));
        let mut scanner = Scanner::new(&bytes, 0);
        while let Step::Record { .. } = scanner.step() {}
        for frame in Frames::new(&bytes).flatten() {
            let mut again = Vec::new();
            prop_assert!(frame.encode(&mut again).is_ok());
            prop_assert!(bytes.windows(again.len()).any(|window| window == again));
        }
    }

    #[test]
    fn a_record_reads_back(
        seq in any::<u64>(), partition in any::<u64>(), base in 0..u64::MAX / 2, created in any::<i64>(),
        compressed in any::<bool>(), hashes in vec(any::<[u8; 16]>(), 0..20), payload in vec(any::<u8>(), 0..300),
    ) {
        let hashes: Vec<TxHash> = hashes.into_iter().map(TxHash).collect();
        let mut out = Vec::new();
        MessageRecord {
            seq: EntryIndex(seq), partition: PartitionId(partition), base: Offset(base), created: Micros(created),
            compressed, hashes: &hashes, payload: &payload,
        }.encode(&mut out).unwrap();
        let read = record::decode(&out).unwrap();
        prop_assert_eq!(read.tx_hashes().collect::<Vec<_>>(), hashes);
        prop_assert_eq!(read.payload, &payload[..]);
        prop_assert_eq!((read.head.seq.0, read.head.base.0, read.head.created.0), (seq, base, created));
        prop_assert_eq!(read.head.compressed, compressed);
    }

    #[test]
    fn frames_read_back(
        list in vec((any::<[u8; 16]>(), any::<Option<[u8; 16]>>(), ".{0,20}", proptest::option::of(".{0,9}"),
            vec(any::<u8>(), 0..50), any::<bool>()), 0..10),
    ) {
        let mut out = Vec::new();
        for (id, trace, transaction_id, producer, data, encrypted) in &list {
            FrameRef {
                flags: 0, id: Uuid(*id), trace: trace.map(Uuid), transaction_id,
                producer_sub: producer.as_deref(), data, encrypted: *encrypted,
            }.encode(&mut out).unwrap();
        }
        let read: Vec<_> = Frames::new(&out).map(Result::unwrap).collect();
        prop_assert_eq!(read.len(), list.len());
        for (frame, (id, trace, transaction_id, producer, data, encrypted)) in read.iter().zip(&list) {
            prop_assert_eq!((frame.id, frame.trace), (Uuid(*id), trace.map(Uuid)));
            prop_assert_eq!(frame.transaction_id, transaction_id);
            prop_assert_eq!(frame.producer_sub, producer.as_deref());
            prop_assert_eq!((frame.data, frame.encrypted), (&data[..], *encrypted));
        }
    }

    #[test]
    fn hash_files_read_back(keys in proptest::collection::btree_map(any::<(u64, u64)>(), vec(any::<[u8; 16]>(), 0..5), 0..12)) {
        let flat: Vec<(QhshHead, Vec<u8>)> = keys.into_iter().map(|((partition, base), hashes)| {
            let count = u32::try_from(hashes.len()).unwrap();
            (QhshHead { partition: PartitionId(partition), base: Offset(base), created: Micros(3), count }, hashes.concat())
        }).collect();
        let file = qhsh::encode(4, 99, flat.iter().map(|(head, hashes)| QhshRecord { head: *head, hashes }));
        let (side, read) = qhsh::decode(&file).unwrap();
        prop_assert!(side.belongs_to(4, 99).is_ok());
        prop_assert_eq!(read.len(), flat.len());
        for (record, (head, hashes)) in read.iter().zip(&flat) {
            prop_assert_eq!((record.head, record.hashes), (*head, &hashes[..]));
        }
        for at in 0..file.len() {
            let mut bad = file.clone();
            if let Some(byte) = bad.get_mut(at) { *byte ^= 0x10; }
            prop_assert!(qhsh::decode(&bad).is_err());
        }
    }
}
