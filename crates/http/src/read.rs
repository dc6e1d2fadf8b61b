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
use serde::de::{Deserializer, Error, MapAccess, SeqAccess, Visitor};
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

/// A string, or a number read as its decimal text.
#[derive(Debug)]
pub(crate) struct Name<'a>(pub(crate) Cow<'a, str>);

impl<'de> Deserialize<'de> for Name<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = Raw::deserialize(deserializer)?.0;
        match raw.as_bytes().first() {
            Some(b'"') => {
                let text: Text<'de> = serde_json::from_str(raw).map_err(Error::custom)?;
                Ok(Self(text.0))
            }
            Some(b'-' | b'0'..=b'9') => Ok(Self(Cow::Borrowed(raw))),
            _ => Err(Error::custom("expected a string or a number")),
        }
    }
}

/// An integer; one beyond 64 bits saturates, so that it is clamped like any other large one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Integer(pub(crate) i64);

impl<'de> Deserialize<'de> for Integer {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = Raw::deserialize(deserializer)?.0;
        integer(raw).map(Self).ok_or_else(|| Error::custom("expected an integer"))
    }
}

/// The integer that a JSON number spells without fraction and exponent.
pub(crate) fn integer(raw: &str) -> Option<i64> {
    let digits = raw.strip_prefix('-').unwrap_or(raw);
    let is_integer = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let limit = if digits.len() < raw.len() { i64::MIN } else { i64::MAX };
    is_integer.then(|| raw.parse().unwrap_or(limit))
}

/// An array of which no more than `MAX` elements are kept.
#[derive(Debug)]
pub(crate) struct List<T, const MAX: usize> {
    pub(crate) items: Vec<T>,
    pub(crate) is_too_long: bool,
}

impl<'de, T: Deserialize<'de>, const MAX: usize> Deserialize<'de> for List<T, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(ListVisitor(PhantomData))
    }
}

struct ListVisitor<T, const MAX: usize>(PhantomData<T>);

impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for ListVisitor<T, MAX> {
    type Value = List<T, MAX>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut array: A) -> Result<Self::Value, A::Error> {
        let mut items = Vec::new();
        while items.len() < MAX {
            match array.next_element()? {
                Some(item) => items.push(item),
                None => return Ok(List { items, is_too_long: false }),
            }
        }
        let mut is_too_long = false;
        while array.next_element::<&RawValue>()?.is_some() {
            is_too_long = true;
        }
        Ok(List { items, is_too_long })
    }
}

/// An array of objects, kept up to the first that lacks something: that one says what is wrong, and what follows it
/// costs nothing and is only checked to be JSON.
#[derive(Debug)]
pub(crate) struct Leading<T> {
    pub(crate) items: Vec<T>,
    /// Whether more follow that lack nothing than may be kept.
    pub(crate) is_too_long: bool,
}

impl<T> Default for Leading<T> {
    fn default() -> Self {
        Self { items: Vec::new(), is_too_long: false }
    }
}

impl<'de, T: Fields<'de>> Deserialize<'de> for Leading<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(LeadingVisitor(PhantomData))
    }
}

struct LeadingVisitor<T>(PhantomData<T>);

impl<'de, T: Fields<'de>> Visitor<'de> for LeadingVisitor<T> {
    type Value = Leading<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut array: A) -> Result<Self::Value, A::Error> {
        let mut items = Vec::new();
        let mut is_whole = true;
        while is_whole && items.len() < T::LIST_MAX {
            match array.next_element::<Object<T>>()? {
                Some(Object(item)) => {
                    is_whole = item.is_whole();
                    items.push(item);
                }
                None => return Ok(Leading { items, is_too_long: false }),
            }
        }
        let mut is_too_long = false;
        while array.next_element::<&RawValue>()?.is_some() {
            is_too_long = is_whole;
        }
        Ok(Leading { items, is_too_long })
    }
}

/// The fields that one kind of object takes.
pub(crate) trait Fields<'de>: Default {
    /// What an object of this kind is called in an error.
    const NAME: &'static str;

    /// Takes the value of a field, or leaves it to `skip`.
    fn field<A: MapAccess<'de>>(&mut self, name: &str, map: &mut A) -> Result<(), A::Error>;

    /// Elements that a [`Leading`] of these keeps at most.
    const LIST_MAX: usize = usize::MAX;

    /// Whether the object has what it needs; in a [`Leading`], nothing is kept behind one that has not.
    fn is_whole(&self) -> bool {
        true
    }

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
    fn names_and_integers() {
        let name =
            |json: &str| serde_json::from_str::<Name<'_>>(json).map(|name| name.0.into_owned());
        assert_eq!(name("42").unwrap(), "42");
        assert_eq!(name("-1.50e3").unwrap(), "-1.50e3");
        assert_eq!(name(r#""a\"b""#).unwrap(), "a\"b");
        for other in ["null", "true", "[1]", "{}"] {
            assert!(name(other).is_err(), "{other}");
        }
        let whole = |json: &str| serde_json::from_str::<Integer>(json).ok().map(|found| found.0);
        assert_eq!(whole("-7"), Some(-7));
        assert_eq!(whole("99999999999999999999"), Some(i64::MAX));
        assert_eq!(whole("-99999999999999999999"), Some(i64::MIN));
        for other in ["1.0", "1e3", r#""1""#, "null", "true"] {
            assert_eq!(whole(other), None, "{other}");
        }
    }

    #[test]
    fn a_list_keeps_no_more_than_it_may() {
        let list = |json: &str| serde_json::from_str::<List<u8, 2>>(json);
        let found = list("[1,2]").unwrap();
        assert_eq!((found.items, found.is_too_long), (vec![1, 2], false));
        let found = list("[1,2,{},[3]]").unwrap();
        assert_eq!((found.items, found.is_too_long), (vec![1, 2], true));
        assert!(list("{}").is_err() && list("[1,2,3").is_err());
    }

    #[test]
    fn blanks_are_an_empty_body() {
        assert!(is_empty(b" \r\n\t"));
        assert!(!is_empty(b" {} "));
    }
}
