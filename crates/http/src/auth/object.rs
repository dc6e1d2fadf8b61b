//! A JSON object of a token: no name may stand there twice.
//!
//! Two readers of one token that each take another of two equal names would see two different tokens.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, Visitor};
use serde_json::Value;

/// Names and values; a `null` is as good as absent.
#[derive(Debug)]
pub(super) struct Object(BTreeMap<String, Value>);

/// The bytes are no such object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NoObject;

impl Object {
    pub(super) fn read(bytes: &[u8]) -> Result<Self, NoObject> {
        serde_json::from_slice(bytes).map_err(|_| NoObject)
    }

    pub(super) fn value(&self, name: &str) -> Option<&Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    /// The text under a name.
    ///
    /// # Errors
    /// Another kind of value is there.
    pub(super) fn text(&self, name: &str) -> Result<Option<&str>, NoObject> {
        match self.value(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(NoObject),
        }
    }

    /// The number under a name; finite, since JSON has no other.
    ///
    /// # Errors
    /// Another kind of value is there.
    pub(super) fn number(&self, name: &str) -> Result<Option<f64>, NoObject> {
        match self.value(name) {
            None => Ok(None),
            Some(Value::Number(number)) => number.as_f64().map(Some).ok_or(NoObject),
            Some(_) => Err(NoObject),
        }
    }
}

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ObjectVisitor)
    }
}

struct ObjectVisitor;

impl<'de> Visitor<'de> for ObjectVisitor {
    type Value = Object;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Object, A::Error> {
        let mut object = BTreeMap::new();
        while let Some((name, value)) = map.next_entry::<String, Value>()? {
            if object.insert(name, value).is_some() {
                return Err(A::Error::custom("a name stands there twice"));
            }
        }
        Ok(Object(object))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_by_their_kind() {
        let object = Object::read(br#"{"a":"x","b":1.5,"c":null,"d":{"e":1,"e":2}}"#).unwrap();
        assert_eq!((object.text("a"), object.text("b")), (Ok(Some("x")), Err(NoObject)));
        assert_eq!((object.number("b"), object.number("a")), (Ok(Some(1.5)), Err(NoObject)));
        assert_eq!((object.text("c"), object.number("z")), (Ok(None), Ok(None)));
    }

    #[test]
    fn what_is_no_object() {
        for text in [
            "",
            "[]",
            "1",
            "{",
            "{} {}",
            r#"{"a":1,"a":1}"#,
            r#"{"a":1,"\u0061":2}"#,
            r#"{"exp":1e309}"#,
            r#"{"exp":NaN}"#,
        ] {
            assert!(Object::read(text.as_bytes()).is_err(), "{text}");
        }
        assert!(Object::read(b"{\"a\":\"\xff\"}").is_err());
        let deep = format!("{{\"a\":{}{}}}", "[".repeat(5000), "]".repeat(5000));
        assert!(Object::read(deep.as_bytes()).is_err());
    }
}
