//! Query strings: `+` is a space, one percent-decoding, the last of several equal names counts.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;
use queen_record::ids::Micros;

use crate::time;

/// A parameter that cannot be read; the text names it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct BadQuery(pub(crate) String);

/// The parameters of one request; names that nobody asks for are never decoded.
pub(crate) struct Query<'a>(Vec<(Cow<'a, str>, &'a str)>);

impl<'a> Query<'a> {
    pub(crate) fn new(raw: Option<&'a str>) -> Self {
        let pairs = raw.unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
        let pairs = pairs.map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            // A name that is not UTF-8 is none of ours.
            (decode(name).unwrap_or_default(), value)
        });
        Self(pairs.collect())
    }

    /// The text of a parameter.
    pub(crate) fn text(&self, name: &str) -> Result<Option<Cow<'a, str>>, BadQuery> {
        let Some((_, raw)) = self.0.iter().rev().find(|(found, _)| found == name) else {
            return Ok(None);
        };
        let value = decode(raw).ok_or_else(|| BadQuery(format!("{name} is not UTF-8")))?;
        Ok(Some(value))
    }

    /// The text of a parameter; an empty one counts as absent.
    pub(crate) fn filled(&self, name: &str) -> Result<Option<Cow<'a, str>>, BadQuery> {
        Ok(self.text(name)?.filter(|value| !value.is_empty()))
    }

    /// An integer; one beyond 64 bits saturates, so that it is clamped like any other large one.
    pub(crate) fn integer(&self, name: &str) -> Result<Option<i64>, BadQuery> {
        let Some(value) = self.text(name)? else { return Ok(None) };
        let (negative, digits) = match value.strip_prefix('-') {
            Some(digits) => (true, digits),
            None => (false, value.strip_prefix('+').unwrap_or(&value)),
        };
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(BadQuery(format!("{name} must be an integer")));
        }
        let limit = if negative { i64::MIN } else { i64::MAX };
        Ok(Some(value.parse().unwrap_or(limit)))
    }

    /// `true` or `false`.
    pub(crate) fn boolean(&self, name: &str) -> Result<Option<bool>, BadQuery> {
        match self.text(name)?.as_deref() {
            None => Ok(None),
            Some("true") => Ok(Some(true)),
            Some("false") => Ok(Some(false)),
            Some(_) => Err(BadQuery(format!("{name} must be true or false"))),
        }
    }

    /// A time in any accepted form.
    pub(crate) fn time(&self, name: &str) -> Result<Option<Micros>, BadQuery> {
        let Some(value) = self.filled(name)? else { return Ok(None) };
        let at = time::parse(&value).ok_or_else(|| BadQuery(format!("{name} is not a time")))?;
        Ok(Some(at))
    }
}

fn decode(raw: &str) -> Option<Cow<'_, str>> {
    if !raw.contains(['%', '+']) {
        return Some(Cow::Borrowed(raw));
    }
    let spaced = raw.replace('+', " ");
    let text = percent_decode_str(&spaced).decode_utf8().ok()?;
    Some(Cow::Owned(text.into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_decoded_once_and_the_last_wins() {
        let query = Query::new(Some("a=1&b=x+y%2B%2520&a=2&=&c&%FF=1&d=%FF&e="));
        assert_eq!(query.text("a").unwrap().unwrap(), "2");
        assert_eq!(query.text("b").unwrap().unwrap(), "x y+%20");
        assert_eq!(query.text("c").unwrap().unwrap(), "");
        assert_eq!(query.text("z").unwrap(), None);
        assert_eq!(query.text("d"), Err(BadQuery("d is not UTF-8".into())));
        assert_eq!(query.filled("e").unwrap(), None);
    }

    #[test]
    fn integers_saturate_and_refuse_other_text() {
        let query = Query::new(Some("a=9223372036854775808&b=-5&c=1e18&d=&e=%2B7&f=0x1&g=1.0"));
        assert_eq!(query.integer("a"), Ok(Some(i64::MAX)));
        assert_eq!(query.integer("b"), Ok(Some(-5)));
        assert_eq!(query.integer("e"), Ok(Some(7)));
        for name in ["c", "d", "f", "g"] {
            assert!(query.integer(name).is_err(), "{name}");
        }
    }

    #[test]
    fn booleans_are_two_words() {
        let query = Query::new(Some("a=true&b=false&c=1&d=TRUE&e="));
        assert_eq!(query.boolean("a"), Ok(Some(true)));
        assert_eq!(query.boolean("b"), Ok(Some(false)));
        for name in ["c", "d", "e"] {
            assert!(query.boolean(name).is_err(), "{name}");
        }
    }
}
