//! The description of the API, made of the table of routes: as an OpenAPI document and as a page for people.

mod components;
mod describe;
mod notation;
mod notes;
mod page;

use std::sync::LazyLock;

use bytes::Bytes;
use serde_json::{Map, Value, json};

use crate::auth::Level;
use crate::routes::{RouteSpec, TABLE};
use components::COMPONENTS;
use describe::{Body, Described, describe};
use notation::schema;
use notes::notes;

pub use page::markdown;

/// Failures that every route may answer, and what they mean.
const FAILURES: &[(u16, &str)] = &[
    (400, "the request is not this route's shape"),
    (401, "no token, or one that is not accepted"),
    (403, "the token's role does not reach this route, or the page that asks is another site's"),
    (405, "the path has no such method"),
    (413, "a body, a name or the number of elements over its limit"),
    (
        429,
        "too many bytes of writes wait, or of answers that nobody reads; Retry-After says when to come again",
    ),
    (500, "a fault of the broker"),
    (503, "the node is not serving, or no answer came in time"),
    (507, "the disk is full for writes that grow storage"),
];

static DOCUMENT: LazyLock<Bytes> = LazyLock::new(|| Bytes::from(document().to_string()));

/// The OpenAPI document as text.
pub(crate) fn text() -> Bytes {
    DOCUMENT.clone()
}

/// The OpenAPI document for people, with line breaks.
#[must_use]
pub fn document_text() -> String {
    format!("{:#}\n", document())
}

/// The OpenAPI document.
fn document() -> Value {
    let mut paths = Map::new();
    for spec in TABLE {
        let methods = paths.entry(spec.path).or_insert_with(|| json!({}));
        if let Some(methods) = methods.as_object_mut() {
            methods.insert(spec.method.to_ascii_lowercase(), operation(spec));
        }
    }
    let components: Map<String, Value> =
        COMPONENTS.iter().map(|(name, shape)| ((*name).to_owned(), shape_of(shape))).collect();
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Queen",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "A partitioned, transactional message broker.",
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}},
        },
    })
}

/// The tests hold that every shape follows the notation.
fn shape_of(text: &str) -> Value {
    schema(text).unwrap_or_else(|malformed| json!({"description": format!("{malformed:?}")}))
}

fn operation(spec: &RouteSpec) -> Value {
    let described = describe(spec.op);
    let mut operation = json!({
        "operationId": operation_id(spec),
        "tags": [described.tag],
        "summary": described.summary,
        "description": notes(spec.op),
        "parameters": parameters(spec, &described),
        "responses": responses(spec, &described),
    });
    let Some(fields) = operation.as_object_mut() else { return operation };
    if let Some(body) = described.body {
        fields.insert("requestBody".to_owned(), request_body(body));
    }
    if spec.level != Level::Public {
        fields.insert("security".to_owned(), json!([{}, {"bearer": []}]));
    }
    operation
}

/// The operation's name; a path that shares it with another gets its own.
fn operation_id(spec: &RouteSpec) -> String {
    let first = TABLE.iter().find(|other| other.op == spec.op);
    let name = format!("{:?}", spec.op);
    if first.is_some_and(|first| first.path == spec.path) { name } else { format!("{name}Batch") }
}

fn parameters(spec: &RouteSpec, described: &Described) -> Vec<Value> {
    let names = spec.path.split('/').filter_map(|segment| {
        let name = segment.strip_prefix('{')?.strip_suffix('}')?;
        let text = json!({"type": "string", "minLength": 1});
        Some(json!({"name": name, "in": "path", "required": true, "schema": text}))
    });
    let query = described.query.iter().map(|(name, shape, meaning)| {
        json!({"name": name, "in": "query", "required": false,
            "description": meaning, "schema": shape_of(shape)})
    });
    names.chain(query).collect()
}

fn request_body(Body { shape, optional, binary }: Body) -> Value {
    let mut content = json!({"application/json": {"schema": shape_of(shape)}});
    if binary && let Some(content) = content.as_object_mut() {
        content.insert("application/x-queen-push".to_owned(), json!({}));
    }
    json!({"required": !optional, "content": content})
}

fn responses(spec: &RouteSpec, described: &Described) -> Value {
    let mut responses = Map::new();
    for (status, shape, meaning) in described.answers {
        let answer = match *shape {
            "" => json!({"description": meaning}),
            "tar" => json!({"description": meaning, "content": {"application/x-tar": {}}}),
            "text" => json!({"description": meaning, "content": {"text/plain": {}}}),
            shape => {
                let mut content = json!({"application/json": {"schema": shape_of(shape)}});
                if shape == "Popped"
                    && let Some(content) = content.as_object_mut()
                {
                    content.insert("application/x-queen-pop".to_owned(), json!({}));
                }
                json!({"description": meaning, "content": content})
            }
        };
        responses.insert(status.to_string(), answer);
    }
    for (status, meaning) in FAILURES {
        if spec.level == Level::Public && matches!(status, 401 | 403) {
            continue;
        }
        responses.entry(status.to_string()).or_insert_with(|| {
            let mut content = json!({"application/json": {"schema": shape_of("Error")}});
            if *status == 413
                && let Some(content) = content.as_object_mut()
            {
                content.insert("text/plain".to_owned(), json!({}));
            }
            json!({"description": meaning, "content": content})
        });
    }
    Value::Object(responses)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_shape_follows_the_notation_and_names_what_is_there() {
        let known: BTreeSet<&str> = COMPONENTS.iter().map(|(name, _)| *name).collect();
        let check = |shape: &str| {
            let schema = schema(shape).unwrap_or_else(|malformed| panic!("{malformed:?}"));
            for part in schema.to_string().split("#/components/schemas/").skip(1) {
                let name = part.split('"').next().unwrap();
                assert!(known.contains(name), "{name} in {shape}");
            }
        };
        for (_, shape) in COMPONENTS {
            check(shape);
        }
        for spec in TABLE {
            let described = describe(spec.op);
            described.query.iter().for_each(|(_, shape, _)| check(shape));
            described.body.iter().for_each(|body| check(body.shape));
            for (_, shape, _) in described.answers {
                if !matches!(*shape, "" | "text" | "tar") {
                    check(shape);
                }
            }
        }
    }

    #[test]
    fn operation_ids_are_distinct() {
        let ids: Vec<String> = TABLE.iter().map(operation_id).collect();
        let distinct: BTreeSet<&String> = ids.iter().collect();
        assert_eq!(distinct.len(), ids.len(), "{ids:?}");
    }

    #[test]
    fn the_document_has_every_route() {
        let document = document();
        for spec in TABLE {
            let operation = &document["paths"][spec.path][spec.method.to_ascii_lowercase()];
            assert!(operation["summary"].is_string(), "{} {}", spec.method, spec.path);
        }
    }
}
