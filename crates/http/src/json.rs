//! Answers written into one byte buffer, without a tree.

use bytes::Bytes;
use queen_record::ids::{Micros, Uuid};

use crate::time;

/// A JSON text under construction.
///
/// Shape: commas are set by looking at the last byte, which is sound because no complete JSON value ends
/// with `{`, `[` or `:`. Brackets are the caller's.
pub(crate) struct Json(Vec<u8>);

impl Json {
    pub(crate) fn with_capacity(bytes: usize) -> Self {
        Self(Vec::with_capacity(bytes))
    }

    pub(crate) fn new() -> Self {
        Self::with_capacity(512)
    }

    /// Appends the text as it is.
    pub(crate) fn raw(&mut self, text: &str) -> &mut Self {
        self.0.extend_from_slice(text.as_bytes());
        self
    }

    /// Appends bytes of complete JSON as they are; nothing renders `null`.
    pub(crate) fn verbatim(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(if bytes.is_empty() { b"null" } else { bytes });
        self
    }

    /// Starts the next element of an array or the next field of an object.
    pub(crate) fn next(&mut self) -> &mut Self {
        if !matches!(self.0.last(), None | Some(b'{' | b'[' | b':')) {
            self.0.push(b',');
        }
        self
    }

    /// Starts a field; `name` needs no escape.
    pub(crate) fn field(&mut self, name: &str) -> &mut Self {
        self.next();
        self.0.push(b'"');
        self.raw(name).raw("\":")
    }

    pub(crate) fn bool(&mut self, value: bool) -> &mut Self {
        self.raw(if value { "true" } else { "false" })
    }

    pub(crate) fn null(&mut self) -> &mut Self {
        self.raw("null")
    }

    pub(crate) fn u64(&mut self, mut value: u64) -> &mut Self {
        let start = self.0.len();
        loop {
            self.0.push(b'0' + u8::try_from(value % 10).unwrap_or(0));
            value /= 10;
            if value == 0 {
                break;
            }
        }
        if let Some(digits) = self.0.get_mut(start..) {
            digits.reverse();
        }
        self
    }

    pub(crate) fn i64(&mut self, value: i64) -> &mut Self {
        if value < 0 {
            self.0.push(b'-');
        }
        self.u64(value.unsigned_abs())
    }

    pub(crate) fn string(&mut self, text: &str) -> &mut Self {
        self.0.push(b'"');
        self.escaped(text);
        self.0.push(b'"');
        self
    }

    /// A string whose bytes should be UTF-8; what is not is replaced.
    pub(crate) fn text(&mut self, bytes: &[u8]) -> &mut Self {
        match std::str::from_utf8(bytes) {
            Ok(text) => self.string(text),
            Err(_) => self.string(&String::from_utf8_lossy(bytes)),
        }
    }

    pub(crate) fn uuid(&mut self, id: &Uuid) -> &mut Self {
        self.0.push(b'"');
        self.0.extend_from_slice(&id.text());
        self.0.push(b'"');
        self
    }

    /// A time with milliseconds.
    pub(crate) fn iso3(&mut self, at: Micros) -> &mut Self {
        self.0.push(b'"');
        time::iso3(&mut self.0, at);
        self.0.push(b'"');
        self
    }

    /// A time with microseconds.
    pub(crate) fn iso6(&mut self, at: Micros) -> &mut Self {
        self.0.push(b'"');
        time::iso6(&mut self.0, at);
        self.0.push(b'"');
        self
    }

    /// The value, or `null`.
    pub(crate) fn option<T>(
        &mut self,
        value: Option<T>,
        render: impl FnOnce(&mut Self, T) -> &mut Self,
    ) -> &mut Self {
        match value {
            Some(value) => render(self, value),
            None => self.null(),
        }
    }

    pub(crate) fn bytes(self) -> Bytes {
        Bytes::from(self.0)
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.0
    }

    /// Copies runs that need no escape in one piece.
    fn escaped(&mut self, text: &str) {
        const HEX: &[u8; 16] = b"0123456789abcdef";
        let mut rest = text.as_bytes();
        while let Some(at) = rest.iter().position(|byte| needs_escape(*byte)) {
            let (run, tail) = rest.split_at(at);
            self.0.extend_from_slice(run);
            let Some((byte, tail)) = tail.split_first() else { break };
            match byte {
                b'"' => self.0.extend_from_slice(b"\\\""),
                b'\\' => self.0.extend_from_slice(b"\\\\"),
                b'\n' => self.0.extend_from_slice(b"\\n"),
                b'\r' => self.0.extend_from_slice(b"\\r"),
                b'\t' => self.0.extend_from_slice(b"\\t"),
                byte => {
                    self.0.extend_from_slice(b"\\u00");
                    for nibble in [byte >> 4, byte & 15] {
                        self.0.push(HEX.get(usize::from(nibble)).copied().unwrap_or(b'0'));
                    }
                }
            }
            rest = tail;
        }
        self.0.extend_from_slice(rest);
    }
}

fn needs_escape(byte: u8) -> bool {
    byte < 0x20 || byte == b'"' || byte == b'\\'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_and_elements_get_their_commas() {
        let mut json = Json::new();
        json.raw("{").field("a").u64(0).field("b").raw("[");
        json.next().i64(i64::MIN).next().null().raw("]").field("c").verbatim(b"").raw("}");
        let text = String::from_utf8(json.bytes().to_vec()).unwrap();
        assert_eq!(text, r#"{"a":0,"b":[-9223372036854775808,null],"c":null}"#);
    }

    proptest::proptest! {
        #[test]
        fn a_string_reads_back(text in proptest::prelude::any::<String>()) {
            let mut json = Json::new();
            json.string(&text);
            let back: String = serde_json::from_slice(json.as_slice()).unwrap();
            proptest::prop_assert_eq!(back, text);
        }

        #[test]
        fn a_number_reads_back(number in proptest::prelude::any::<i64>()) {
            let mut json = Json::new();
            json.i64(number);
            let expected = number.to_string();
            proptest::prop_assert_eq!(json.as_slice(), expected.as_bytes());
        }
    }
}
