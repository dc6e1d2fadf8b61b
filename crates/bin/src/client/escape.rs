//! Names and payloads come from others and must not drive a terminal: what could is escaped.
//!
//! Escaped are control characters (C0, DEL, C1), line separators, and the marks that turn the direction of a text
//! around. In JSON the escape is one of JSON's own, so the document means what it meant.

use std::borrow::Cow;
use std::fmt::Write;

/// A text on one line.
pub(crate) fn text(text: &str) -> Cow<'_, str> {
    replaced(text, |out, letter| out.extend(letter.escape_default()))
}

/// A JSON document on one line: white space between its parts becomes blanks.
pub(crate) fn json(document: &str) -> Cow<'_, str> {
    replaced(document, |out, letter| match letter {
        // In valid JSON these stand between the parts only.
        '\n' | '\r' | '\t' => out.push(' '),
        // Writing into a string cannot fail; all of these lie in the first plane.
        _ => write!(out, "\\u{:04x}", u32::from(letter)).unwrap_or_default(),
    })
}

fn replaced(text: &str, escape: impl Fn(&mut String, char)) -> Cow<'_, str> {
    if !text.contains(is_driving) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for letter in text.chars() {
        if is_driving(letter) { escape(&mut out, letter) } else { out.push(letter) }
    }
    Cow::Owned(out)
}

fn is_driving(letter: char) -> bool {
    letter.is_control()
        || matches!(letter,
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_stays_on_its_line() {
        let check = |given, expected: &str| assert_eq!(text(given), expected);
        check("plain é 漢 👩‍👩‍👧", "plain é 漢 👩‍👩‍👧");
        check("a\r\n\tb", "a\\r\\n\\tb");
        check("\u{1b}[31mred\u{7f}", "\\u{1b}[31mred\\u{7f}");
        check("\u{9b}31m \u{202e}txt.exe", "\\u{9b}31m \\u{202e}txt.exe");
        check("", "");
    }

    #[test]
    fn a_document_keeps_its_meaning() {
        let check = |given: &str, expected: &str| {
            assert_eq!(json(given), expected);
            let value = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
            assert_eq!(value(given), value(&json(given)));
        };
        check(r#"{"a":"\u001b[31m"}"#, r#"{"a":"\u001b[31m"}"#);
        check("{\r\n\t\"a\" : 1\n}", "{   \"a\" : 1 }");
        check("\"\u{9b}31m\u{7f}\u{2028}\u{2069}é\"", r#""\u009b31m\u007f\u2028\u2069é""#);
    }
}
