//! What a JSON answer takes up: counted where it is decided what the answer holds, and reserved before it is rendered.

/// Bytes of a delivered message in a JSON answer at most, its payload, its texts and the names around it aside.
pub const MESSAGE_JSON_MAX: u64 = 384;

/// Bytes of a text inside a JSON string: control characters take six, quotes and backslashes two.
#[must_use]
pub fn escaped_len(text: impl AsRef<[u8]>) -> u64 {
    let of = |byte: &u8| match byte {
        b'"' | b'\\' | b'\n' | b'\r' | b'\t' => 2,
        0..0x20 => 6,
        _ => 1_u64,
    };
    text.as_ref().iter().map(of).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_counted() {
        assert_eq!(escaped_len("plain é"), 8);
        assert_eq!(escaped_len("\"\\\n\r\t"), 10);
        assert_eq!(escaped_len("\u{0}\u{1f}\u{7f}"), 13);
    }
}
