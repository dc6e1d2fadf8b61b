//! Shapes written the way people read them, turned into JSON Schema.
//!
//! ```text
//! shape  = choice ('|' choice)*
//! choice = item '[]'*
//! item   = '{' fields '}' | '{' '*' ':' shape '}' | '(' shape ')' | "'text'" | name
//! fields = (field (',' field)*)?        field = name '?'? ':' shape
//! names  = string int number bool any null uuid time digits nat, and the components by their own
//! ```

use serde_json::{Map, Value, json};

/// A shape that does not follow the notation: where, and what was due.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Malformed(String);

/// The JSON Schema of a shape.
pub(crate) fn schema(text: &str) -> Result<Value, Malformed> {
    let mut parser = Parser { text, at: 0 };
    let schema = parser.shape()?;
    parser.blanks();
    if parser.at == text.len() { Ok(schema) } else { Err(parser.expected("the end")) }
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Parser<'a> {
    fn shape(&mut self) -> Result<Value, Malformed> {
        let mut choices = vec![self.choice()?];
        while self.take("|") {
            choices.push(self.choice()?);
        }
        Ok(one_of(choices))
    }

    fn choice(&mut self) -> Result<Value, Malformed> {
        let mut item = self.item()?;
        while self.take("[]") {
            item = json!({"type": "array", "items": item});
        }
        Ok(item)
    }

    fn item(&mut self) -> Result<Value, Malformed> {
        if self.take("(") {
            let shape = self.shape()?;
            return if self.take(")") { Ok(shape) } else { Err(self.expected(")")) };
        }
        if self.take("{") {
            return self.object();
        }
        if self.take("'") {
            let rest = self.rest();
            let end = rest.find('\'').ok_or_else(|| self.expected("'"))?;
            let text = rest.get(..end).unwrap_or_default();
            self.at += end + 1;
            return Ok(json!({"type": "string", "const": text}));
        }
        let name = self.name().ok_or_else(|| self.expected("a shape"))?;
        Ok(named(name))
    }

    fn object(&mut self) -> Result<Value, Malformed> {
        let (mut properties, mut required) = (Map::new(), Vec::new());
        if self.take("*") {
            let values =
                if self.take(":") { self.shape()? } else { return Err(self.expected(":")) };
            let object = json!({"type": "object", "additionalProperties": values});
            return if self.take("}") { Ok(object) } else { Err(self.expected("}")) };
        }
        while !self.take("}") {
            if !properties.is_empty() && !self.take(",") {
                return Err(self.expected(", or }"));
            }
            let name = self.name().ok_or_else(|| self.expected("a field"))?;
            if !self.take("?") {
                required.push(json!(name));
            }
            if !self.take(":") {
                return Err(self.expected(":"));
            }
            properties.insert(name.to_owned(), self.shape()?);
        }
        let mut object = json!({"type": "object", "properties": properties});
        if !required.is_empty()
            && let Some(object) = object.as_object_mut()
        {
            object.insert("required".to_owned(), Value::Array(required));
        }
        Ok(object)
    }

    fn name(&mut self) -> Option<&'a str> {
        self.blanks();
        let rest = self.rest();
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
        let name = rest.get(..end).filter(|name| !name.is_empty())?;
        self.at += end;
        Some(name)
    }

    fn take(&mut self, token: &str) -> bool {
        self.blanks();
        let found = self.rest().starts_with(token);
        if found {
            self.at += token.len();
        }
        found
    }

    fn blanks(&mut self) {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_start().len();
    }

    fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn expected(&self, what: &str) -> Malformed {
        Malformed(format!("{what} is expected at byte {} of {:?}", self.at, self.text))
    }
}

fn named(name: &str) -> Value {
    match name {
        "string" => json!({"type": "string"}),
        "int" => json!({"type": "integer", "format": "int64"}),
        "nat" => json!({"type": "integer", "minimum": 0}),
        "number" => json!({"type": "number"}),
        "bool" => json!({"type": "boolean"}),
        "null" => json!({"type": "null"}),
        "any" => json!({}),
        "uuid" => json!({"type": "string", "format": "uuid"}),
        "time" => json!({"type": "string", "format": "date-time"}),
        "digits" => json!({"type": "string", "pattern": "^[0-9]+$"}),
        component => json!({"$ref": format!("#/components/schemas/{component}")}),
    }
}

/// Several constants of one type are an enumeration; anything else is a choice.
fn one_of(mut choices: Vec<Value>) -> Value {
    if choices.len() == 1 {
        return choices.pop().unwrap_or_default();
    }
    let constants: Vec<&Value> = choices.iter().filter_map(|choice| choice.get("const")).collect();
    if constants.len() == choices.len() {
        return json!({"type": "string", "enum": constants});
    }
    json!({"anyOf": choices})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_become_schemas() {
        for (text, expected) in [
            ("string", json!({"type":"string"})),
            ("nat[]", json!({"type":"array","items":{"type":"integer","minimum":0}})),
            ("'a'|'b'", json!({"type":"string","enum":["a","b"]})),
            ("string|null", json!({"anyOf":[{"type":"string"},{"type":"null"}]})),
            ("{*: bool}", json!({"type":"object","additionalProperties":{"type":"boolean"}})),
            ("{}", json!({"type":"object","properties":{}})),
            (
                "{ a: Message[], b?: {c: (uuid|null)[]} }",
                json!({"type":"object","required":["a"],"properties":{
                    "a":{"type":"array","items":{"$ref":"#/components/schemas/Message"}},
                    "b":{"type":"object","required":["c"],"properties":{"c":{"type":"array",
                        "items":{"anyOf":[{"type":"string","format":"uuid"},{"type":"null"}]}}}}}}),
            ),
        ] {
            assert_eq!(schema(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn what_is_no_shape_says_where() {
        for text in ["", "{a}", "{a:}", "{a:int", "[]", "'a", "int int", "(int", "{*int}"] {
            assert!(schema(text).is_err(), "{text}");
        }
    }
}
