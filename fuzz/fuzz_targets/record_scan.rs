//! Bytes as a log file: the walk ends, and a verified record encodes to the same bytes again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use queen_record::header::{FileHeader, HEADER_LEN};
use queen_record::scan::{Scanner, Step};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(header) = FileHeader::decode(bytes) {
        assert_eq!(header.encode()[..], bytes[..HEADER_LEN]);
    }
    let mut scanner = Scanner::new(bytes, HEADER_LEN);
    while let Step::Record { at, record } = scanner.step() {
        let mut again = Vec::new();
        record.encode(&mut again);
        assert_eq!(again, bytes[at..at + record.total_len()]);
    }
});
