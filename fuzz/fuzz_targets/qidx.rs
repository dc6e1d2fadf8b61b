//! Bytes as a `.qidx`: refused, or encoded to the same bytes again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use queen_record::qidx;

fuzz_target!(|bytes: &[u8]| {
    if let Ok((header, records)) = qidx::decode(bytes) {
        let again = qidx::encode(header.number, header.log_len, &records);
        assert_eq!(again, bytes);
    }
});
