//! Named fields as a line for people, or as a JSON object.

use queen_doctor::Described;
use queen_state::{Field, FieldValue};
use serde_json::{Map, Value, json};

use crate::client::escape;

/// `kind name=value name=value`; texts that could be mistaken are quoted.
pub(super) fn line(described: &Described) -> String {
    let mut line = described.kind.to_owned();
    for (name, value) in &described.fields {
        line.push(' ');
        line.push_str(name);
        line.push('=');
        match value {
            FieldValue::Number(number) => line.push_str(&number.to_string()),
            FieldValue::Flag(flag) => line.push_str(if *flag { "yes" } else { "no" }),
            FieldValue::Text(text) if is_plain(text) => line.push_str(text),
            FieldValue::Text(text) => line.push_str(&escape::text(&format!("{text:?}"))),
        }
    }
    line
}

fn is_plain(text: &str) -> bool {
    let is_word = |letter: char| letter.is_ascii_alphanumeric() || "-_.:/".contains(letter);
    !text.is_empty() && text.chars().all(is_word)
}

/// The same as a JSON object, `kind` first.
pub(super) fn object(described: &Described) -> Map<String, Value> {
    let mut object = Map::new();
    object.insert("kind".to_owned(), json!(described.kind));
    for (name, value) in &described.fields {
        object.insert((*name).to_owned(), json_of(value));
    }
    object
}

fn json_of(value: &FieldValue) -> Value {
    match value {
        FieldValue::Flag(flag) => json!(flag),
        FieldValue::Text(text) => json!(text),
        FieldValue::Number(number) => match (u64::try_from(*number), i64::try_from(*number)) {
            (Ok(number), _) => json!(number),
            (_, Ok(number)) => json!(number),
            // No field has such a number.
            _ => json!(number.to_string()),
        },
    }
}

/// A field that holds a number.
pub(super) fn number(name: &'static str, value: impl Into<i128>) -> Field {
    (name, FieldValue::Number(value.into()))
}

/// A field that holds a text.
#[expect(clippy::needless_pass_by_value, reason = "whatever can be shown, by value or not")]
pub(super) fn text(name: &'static str, value: impl ToString) -> Field {
    (name, FieldValue::Text(value.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_read_as_a_line_and_as_json() {
        let fields = vec![
            number("a", -1),
            number("b", u64::MAX),
            ("c", FieldValue::Flag(true)),
            text("d", "plain-1"),
            text("e", "two words \"\u{1b}\""),
            text("f", ""),
        ];
        let described = Described { kind: "k", fields };
        let expected =
            r#"k a=-1 b=18446744073709551615 c=yes d=plain-1 e="two words \"\u{1b}\"" f="""#;
        assert_eq!(line(&described), expected);
        let object = Value::Object(object(&described));
        assert_eq!(object["b"], json!(u64::MAX));
        assert_eq!(object["kind"], "k");
        assert_eq!(object["e"], "two words \"\u{1b}\"");
    }
}
