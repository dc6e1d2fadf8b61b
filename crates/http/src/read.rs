//! Request bodies read without a tree: borrowed strings, payloads as slices of the body.
//!
//! One rule for every object of every route: unknown fields are skipped, and the last of several equal names
//! counts. `null` is absence wherever a field's type is an `Option`.
//!
//! Depth. The parser skips raw values without recursion, so it has no depth limit of its own for them. A
//! payload is delivered three levels down (`{"messages":[{"data":…}]}`), and clients parse answers with the
//! limit of 128 levels, which refuses the 128th: so a payload may have 124 levels.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::error::ApiError;

/// Levels of nesting that a raw value may have.
pub(crate) const RAW_DEPTH_MAX: usize = 124;

/// Reads a whole body as one `T`.
pub(crate) fn body<'de, T: Deserialize<'de>>(bytes: &'de [u8]) -> Result<T, ApiError> {
    // Checked once here, so that values taken over unread are known to be text too.
    let text = std::str::from_utf8(bytes)
        .map_err(|error| ApiError::bad_body(format!("the body is not UTF-8: {error}")))?;
    serde_json::from_str(text).map_err(|error| {
        ApiError::bad_body(format!("the body is not what this route takes: {error}"))
    })
}

/// Whether a body holds nothing but blanks.
pub(crate) fn is_empty(bytes: &[u8]) -> bool {
    bytes.iter().all(u8::is_ascii_whitespace)
}

/// A string, borrowed from the body unless it has escapes.
#[derive(Debug)]
pub(crate) struct Text<'a>(pub(crate) Cow<'a, str>);

impl<'de> Deserialize<'de> for Text<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(TextVisitor).map(Text)
    }
}

struct TextVisitor;

impl<'de> Visitor<'de> for TextVisitor {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Cow::Borrowed(text))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Cow::Owned(text.to_owned()))
    }
}

/// Any value as its bytes, with the depth limit; `null` is a value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Raw<'a>(pub(crate) &'a str);

impl<'de> Deserialize<'de> for Raw<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = <&'de RawValue>::deserialize(deserializer)?.get();
        if is_too_deep(raw.as_bytes()) {
            return Err(Error::custom(format_args!("nested deeper than {RAW_DEPTH_MAX} levels")));
        }
        Ok(Self(raw))
    }
}

/// The fields that one kind of object takes.
pub(crate) trait Fields<'de>: Default {
    /// What an object of this kind is called in an error.
    const NAME: &'static str;

    /// Takes the value of a field, or leaves it to `skip`.
    fn field<A: MapAccess<'de>>(&mut self, name: &str, map: &mut A) -> Result<(), A::Error>;

    /// Checks the object once it is complete.
    fn check<E: Error>(&self) -> Result<(), E> {
        Ok(())
    }
}

/// Passes over the value of an unknown field.
pub(crate) fn skip<'de, A: MapAccess<'de>>(map: &mut A) -> Result<(), A::Error> {
    map.next_value::<Raw<'de>>().map(|_| ())
}

/// An object read by its [`Fields`].
#[derive(Debug)]
pub(crate) struct Object<T>(pub(crate) T);

impl<'de, T: Fields<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ObjectVisitor(PhantomData)).map(Object)
    }
}

struct ObjectVisitor<T>(PhantomData<T>);

impl<'de, T: Fields<'de>> Visitor<'de> for ObjectVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", T::NAME)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<T, A::Error> {
        let mut fields = T::default();
        while let Some(name) = map.next_key::<Text<'de>>()? {
            fields.field(&name.0, &mut map)?;
        }
        fields.check()?;
        Ok(fields)
    }
}

/// Whether a valid JSON text nests deeper than the limit.
fn is_too_deep(json: &[u8]) -> bool {
    // Counting openers is branch-free and quick; only a text with many of them is walked.
    let openers = json.iter().filter(|byte| matches!(byte, b'[' | b'{')).count();
    openers > RAW_DEPTH_MAX && depth(json) > RAW_DEPTH_MAX
}

fn depth(json: &[u8]) -> usize {
    let (mut now, mut most) = (0_usize, 0);
    let (mut in_string, mut escaped) = (false, false);
    for byte in json {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = in_string,
            b'"' => in_string = !in_string,
            b'[' | b'{' if !in_string => {
                now += 1;
                most = most.max(now);
            }
            b']' | b'}' if !in_string => now = now.saturating_sub(1),
            _ => {}
        }
    }
    most
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depth_ignores_strings() {
        assert_eq!(depth(br#"{"a":["[[[\"[[",{}]}"#), 3);
        assert_eq!(depth(br#""[[[[""#), 0);
        let fits = format!("{}{}", "[".repeat(124), "]".repeat(124));
        assert!(!is_too_deep(fits.as_bytes()));
        let deep = format!("{}{}", "[".repeat(125), "]".repeat(125));
        assert!(is_too_deep(deep.as_bytes()));
        let wide = format!("[{}0]", "[],".repeat(1000));
        assert!(!is_too_deep(wide.as_bytes()));
    }

    #[test]
    fn blanks_are_an_empty_body() {
        assert!(is_empty(b" \r\n\t"));
        assert!(!is_empty(b" {} "));
    }
}
