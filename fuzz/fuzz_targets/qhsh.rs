//! Bytes as a `.qhsh`: refused, or encoded to the same bytes again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use queen_record::qhsh;

fuzz_target!(|bytes: &[u8]| {
    if let Ok((header, records)) = qhsh::decode(bytes) {
        let again = qhsh::encode(header.number, header.log_len, records);
        assert_eq!(again, bytes);
    }
});
