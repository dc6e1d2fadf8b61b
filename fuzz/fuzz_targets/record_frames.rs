//! Bytes as a payload: frames encode to the same bytes again; as a compressed one: bounded.
#![no_main]

use libfuzzer_sys::fuzz_target;
use queen_record::compress::PayloadDecompressor;
use queen_record::frame::Frames;

fuzz_target!(|bytes: &[u8]| {
    let mut frames = Frames::new(bytes);
    let mut again = Vec::new();
    while let Some(Ok(frame)) = frames.next() {
        frame.encode(&mut again).expect("it was read from as many bytes");
    }
    assert_eq!(again, bytes[..frames.at()]);
    if bytes.len() < 4096 {
        let mut reader = PayloadDecompressor::new().expect("memory for a context");
        drop(reader.decompress(bytes));
    }
});
