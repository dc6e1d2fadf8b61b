//! Published bytes decode, mean what they should, and encode to the same bytes again.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test may fail loudly"
)]

use queen_record::frame::{FrameRef, Frames};
use queen_record::hash::{checksum, queue_id, tx_hash};
use queen_record::header::{FileHeader, HEADER_LEN};
use queen_record::ids::{
    EntryIndex, LogId, Micros, Offset, PartitionId, QueueId, Tenant, TxHash, Uuid,
};
use queen_record::layout::{Layout, Shards};
use queen_record::qidx::{self, QidxRecord};
use queen_record::record::{EntryBody, EntryPart, Kind, MessageRecord, decode, encode_entry_part};
use queen_record::scan::{Scanner, Step};
use queen_record::seal::{keyspace_seed, seal};

const T1: &str =
    "6e000000 da25b6dc1ed0878c 0b00000000000000 0100000000000000 0000000000000000 01000000
    75e7b953935e0600 00 b97eb77dcc2db6dcbcff49435480b3c8
    2d000000 00 01a16d654e4f7001bf27b56a9334d445 0a00 6f726465722d38383931
    7b226f726465724964223a383839317d";
const T2: &str =
    "a8000000 3a341ad59fe5b933 0c00000000000000 0100000000000000 0100000000000000 02000000
    80e8b953935e0600 00 115abab354551acb38f760f4187037a0 361d5add5f02c45d4bfe87ab6cf5ac6c
    2d000000 01 01a16d654e4f70018000000000000001 00112233445566778899aabbccddeeff 0300 612d31
    7b226e223a317d
    26000000 02 01a16d654e4f70018000000000000002 0300 612d32 0700 62696c6c696e67 7b226e223a327d";
const T3: &str = "26000000 48e137867dc2aa31 0100 03000000 80e8b953935e0600 0200000000000000
    0100000000000000 00000000 00000000";
const T4_HEAD: &str = "5f000000 35e54102f3ce7726 0d00000000000000 0200000000000000 0100000000000000
    00000000 80e8b953935e0600 02";
const T5: &str =
    "39000000 40c4c49c93f40afa 0d00000000000000 0200000000000000 0100000000000000 00000000
    80e8b953935e0600 03 5b1b56d8011c43bb 32000000";
const T6: &str = "5151494458310000 0100000000000000 02000000 30000000 a101000000000000
    4c45b180972b3721 e08b1aae9b897e68
    0100000000000000 0000000000000000 0100000000000000 75e7b953935e0600 2000000000000000 01000000 72000000
    0100000000000000 0100000000000000 0300000000000000 80e8b953935e0600 9200000000000000 02000000 ac000000";
/// The first 160 bytes of a real file, from seed `002_68f7b2f3dec52511.txt`.
const DUMP: &str = "514e514c4f4731000100000000000000 0b000000000000000000000000000000
    6e000000da25b6dc1ed0878c0b000000 00000000010000000000000000000000
    000000000100000075e7b953935e0600 00b97eb77dcc2db6dcbcff49435480b3
    c82d0000000001a16d654e4f7001bf27 b56a9334d4450a006f726465722d3838
    39317b226f726465724964223a383839 317dda0100006b0825f117ae81e20b00";

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text
        .chars()
        .filter(|c| !c.is_whitespace())
        .map(|c| u8::try_from(c.to_digit(16).unwrap()).unwrap())
        .collect();
    digits.chunks(2).map(|pair| (pair[0] << 4) | pair[1]).collect()
}

fn frames(list: &[FrameRef<'_>]) -> Vec<u8> {
    let mut out = Vec::new();
    for frame in list {
        frame.encode(&mut out).unwrap();
    }
    out
}

fn t1() -> Vec<u8> {
    let payload = frames(&[FrameRef {
        flags: 0,
        id: Uuid::parse("01a16d65-4e4f-7001-bf27-b56a9334d445").unwrap(),
        trace: None,
        transaction_id: "order-8891",
        producer_sub: None,
        data: br#"{"orderId":8891}"#,
        encrypted: false,
    }]);
    let mut out = Vec::new();
    let record = MessageRecord {
        seq: EntryIndex(11),
        partition: PartitionId(1),
        base: Offset(0),
        created: Micros(1_792_836_718_159_733),
        compressed: false,
        hashes: &[tx_hash("order-8891")],
        payload: &payload,
    };
    assert_eq!(record.encode(&mut out).unwrap(), 114);
    out
}

fn t2() -> Vec<u8> {
    let first = FrameRef {
        flags: 1,
        id: Uuid::parse("01a16d65-4e4f-7001-8000-000000000001").unwrap(),
        trace: Some(Uuid::parse("00112233-4455-6677-8899-aabbccddeeff").unwrap()),
        transaction_id: "a-1",
        producer_sub: None,
        data: br#"{"n":1}"#,
        encrypted: false,
    };
    let second = FrameRef {
        flags: 2,
        id: Uuid::parse("01a16d65-4e4f-7001-8000-000000000002").unwrap(),
        trace: None,
        transaction_id: "a-2",
        producer_sub: Some("billing"),
        data: br#"{"n":2}"#,
        encrypted: false,
    };
    let payload = frames(&[first, second]);
    let read: Vec<_> = Frames::new(&payload).map(Result::unwrap).collect();
    assert_eq!(read, [first, second]);
    let mut out = Vec::new();
    MessageRecord {
        seq: EntryIndex(12),
        partition: PartitionId(1),
        base: Offset(1),
        created: Micros(1_792_836_718_160_000),
        compressed: false,
        hashes: &[tx_hash("a-1"), tx_hash("a-2")],
        payload: &payload,
    }
    .encode(&mut out)
    .unwrap();
    out
}

fn part(body: EntryBody<'_>) -> EntryPart<'_> {
    EntryPart {
        index: EntryIndex(13),
        copies: 2,
        term: 1,
        now: Micros(1_792_836_718_160_000),
        body,
    }
}

fn t4() -> Vec<u8> {
    let entry = hex(T3);
    let mut out = Vec::new();
    encode_entry_part(&part(EntryBody::Whole(&entry)), &mut out).unwrap();
    out
}

#[test]
fn t1_the_message_record_of_the_dump() {
    assert_eq!(t1(), hex(T1));
    let bytes = hex(T1);
    let record = decode(&bytes).unwrap();
    assert_eq!(record.head.kind, Kind::Message);
    assert_eq!(record.head.checksum, 0x8c87_d01e_dcb6_25da);
    assert_eq!(record.tx_hashes().collect::<Vec<_>>(), [tx_hash("order-8891")]);
    let mut again = Vec::new();
    record.encode(&mut again);
    assert_eq!(again, bytes);
}

#[test]
fn the_dump_reads_from_header_to_the_next_record() {
    let dump = hex(DUMP);
    let header = FileHeader::decode(&dump).unwrap();
    assert_eq!(header, FileHeader { number: 1, first_seq: EntryIndex(11) });
    assert_eq!(header.encode(), dump[..HEADER_LEN]);
    let mut scanner = Scanner::new(&dump, HEADER_LEN);
    let Step::Record { at: 0x20, record } = scanner.step() else { panic!("no record at 0x20") };
    let frame = Frames::new(record.payload).next().unwrap().unwrap();
    assert_eq!(frame.transaction_id, "order-8891");
    assert_eq!(frame.data, br#"{"orderId":8891}"#);
    assert_eq!(frame.id.to_string(), "01a16d65-4e4f-7001-bf27-b56a9334d445");
    assert!(matches!(scanner.step(), Step::Bad { at: 0x92, .. }));
}

#[test]
fn t2_two_messages_with_trace_and_producer() {
    assert_eq!(t2(), hex(T2));
    assert_eq!(decode(&hex(T2)).unwrap().head.checksum, 0x33b9_e59f_d51a_343a);
}

#[test]
fn t3_t4_t5_entry_record_and_stub() {
    let entry = hex(T3);
    assert_eq!(entry.len(), 50);
    assert_eq!(checksum(&entry), 0xbb43_1c01_d856_1b5b);
    assert_eq!(checksum(&entry[12..]).to_le_bytes(), entry[4..12]);
    let mut whole = hex(T4_HEAD);
    whole.extend_from_slice(&entry);
    assert_eq!(t4(), whole);
    let read = decode(&whole).unwrap().entry_part().unwrap();
    assert_eq!(read, part(EntryBody::Whole(&entry)));
    let stub_body = EntryBody::Stub { digest: checksum(&entry), len: 50 };
    let mut stub = Vec::new();
    encode_entry_part(&part(stub_body), &mut stub).unwrap();
    assert_eq!(stub, hex(T5));
    assert_eq!(decode(&stub).unwrap().entry_part().unwrap(), part(stub_body));
}

#[test]
fn t6_index_of_a_sealed_file() {
    let mut file = FileHeader { number: 1, first_seq: EntryIndex(11) }.encode().to_vec();
    for record in [t1(), t2(), t4()] {
        file.extend_from_slice(&record);
    }
    assert_eq!(file.len(), 417);
    let mut records = Vec::new();
    let mut scanner = Scanner::new(&file, HEADER_LEN);
    while let Step::Record { at, record } = scanner.step() {
        if record.head.kind.is_message() {
            records.push(QidxRecord {
                partition: record.head.partition,
                base: record.head.base,
                end: record.head.end().unwrap(),
                created: record.head.created,
                at: at as u64,
                count: record.head.count,
                len: u32::try_from(record.total_len()).unwrap(),
            });
        }
    }
    assert_eq!(scanner.step(), Step::End { at: 417 });
    let encoded = qidx::encode(1, 417, &records);
    assert_eq!(encoded, hex(T6));
    let (header, read) = qidx::decode(&encoded).unwrap();
    assert_eq!(read, records);
    assert!(header.belongs_to(1, 417).is_ok());
    assert!(header.belongs_to(1, 418).is_err());
}

#[test]
fn t7_plain_hashes_and_routing() {
    assert_eq!(checksum(b""), 0x2d06_8005_38d3_94c2);
    assert_eq!(checksum(b"abc"), 0x78af_5f94_892f_3950);
    assert_eq!(tx_hash("").0[..], hex("99aa06d3014798d86001c324468d497f"));
    assert_eq!(
        tx_hash("order-8891"),
        TxHash(hex("b97eb77dcc2db6dcbcff49435480b3c8").try_into().unwrap())
    );
    let queue = queue_id(Tenant::DEFAULT, "orders");
    assert_eq!(queue, QueueId(9_530_493_778_072_035_634));
    let shared = Layout::new(1, Shards::Count(4)).unwrap();
    assert_eq!(shared.log_of(queue, None), LogId(4));
}

#[test]
fn t8_store_value_seal() {
    assert_eq!(keyspace_seed("kv"), 0x53f3_ee13_9695_3a75);
    assert_eq!(keyspace_seed("meta"), 0x0b5a_59ee_b420_6db6);
    assert_eq!(keyspace_seed("partitions"), 0x72bb_6c67_1e75_1374);
    assert_eq!(keyspace_seed("cursors"), 0x984e_74dc_701c_25f4);
    assert_eq!(seal("kv", b"\x01k", b"hello").to_le_bytes()[..], hex("2113c347fdd1c316"));
    assert_eq!(
        seal("meta", b"store_format", &[1, 0, 0, 0]).to_le_bytes()[..],
        hex("396629557750e39e")
    );
}
