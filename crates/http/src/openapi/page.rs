//! The same description as a page for people.

use std::fmt::Write;

use super::FAILURES;
use super::components::COMPONENTS;
use super::describe::describe;
use super::notes::notes;
use crate::auth::Level;
use crate::routes::TABLE;

/// The reference of all routes as Markdown.
#[must_use]
pub fn markdown() -> String {
    let mut out = String::from(
        "# HTTP API\n\n\
         Made by `queen api --markdown` from the table of routes; the same as an OpenAPI document is at\n\
         `/api/v1/openapi.json`. Shapes are written like types: `name?` may be left out, `T[]` is an array,\n\
         `A|B` is either, `'a'` is that text, `{*: T}` has any names. `nat` is a whole number from 0, `digits` a\n\
         string of digits. `null` means absent in every request. Unknown fields and parameters are ignored. The\n\
         names on the wire, which are not all of one kind, are those that existing clients know.\n",
    );
    let mut tags: Vec<&str> = TABLE.iter().map(|spec| describe(spec.op).tag).collect();
    tags.sort_unstable();
    tags.dedup();
    for tag in tags {
        section(&mut out, tag);
    }
    out.push_str("\n## Failures of every route\n\n| status | when |\n| --- | --- |\n");
    for (status, meaning) in FAILURES {
        line(&mut out, format_args!("| {status} | {meaning} |"));
    }
    out.push_str("\nTheir body is an `Error`; a 413 for a body is plain text.\n\n## Shapes\n");
    for (name, shape) in COMPONENTS {
        line(&mut out, format_args!("\n`{name}`\n\n```text\n{}\n```", wrapped(shape)));
    }
    out
}

fn line(out: &mut String, text: std::fmt::Arguments<'_>) {
    // Writing to a string cannot fail.
    writeln!(out, "{text}").unwrap_or_default();
}

fn section(out: &mut String, tag: &str) {
    line(
        out,
        format_args!(
            "\n## {}{}",
            tag.get(..1).unwrap_or_default().to_uppercase(),
            tag.get(1..).unwrap_or_default()
        ),
    );
    for spec in TABLE {
        let described = describe(spec.op);
        if described.tag != tag {
            continue;
        }
        line(
            out,
            format_args!(
                "\n### `{} {}`\n\n{}. {}",
                spec.method,
                spec.path,
                described.summary,
                access(spec.level)
            ),
        );
        let text = notes(spec.op);
        if !text.is_empty() {
            line(out, format_args!("\n{text}"));
        }
        if !described.query.is_empty() {
            line(out, format_args!("\n| parameter | type | meaning |\n| --- | --- | --- |"));
            for (name, shape, meaning) in described.query {
                let shape = shape.replace('|', "\\|");
                line(out, format_args!("| `{name}` | `{shape}` | {meaning} |"));
            }
        }
        if let Some(body) = described.body {
            let optional = if body.optional { " (may be left out)" } else { "" };
            let binary = if body.binary { ", or a binary form" } else { "" };
            let shape = wrapped(body.shape);
            line(out, format_args!("\nBody{optional}{binary}:\n\n```text\n{shape}\n```"));
        }
        for (status, shape, meaning) in described.answers {
            if shape.is_empty() || matches!(*shape, "text" | "tar") {
                line(out, format_args!("\n{status}: {meaning}."));
            } else {
                line(
                    out,
                    format_args!("\n{status}: {meaning}.\n\n```text\n{}\n```", wrapped(shape)),
                );
            }
        }
    }
}

fn access(level: Level) -> &'static str {
    match level {
        Level::Public => "Open to everybody.",
        Level::ReadOnly => "Access: read-only.",
        Level::WriteOnly => "Access: write-only.",
        Level::ReadWrite => "Access: read-write.",
        Level::Admin => "Access: admin.",
    }
}

/// A long shape with a line per field of its outermost object.
fn wrapped(shape: &str) -> String {
    const WIDE: usize = 100;
    if shape.len() <= WIDE {
        return shape.to_owned();
    }
    let mut out = String::new();
    let mut depth = 0_usize;
    for c in shape.chars() {
        match c {
            '{' | '(' => depth += 1,
            '}' | ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        match (c, depth) {
            ('{', 1) => out.push_str("{\n  "),
            (',', 1) => out.push_str(",\n  "),
            ('}', 0) => out.push_str("\n}"),
            (' ', _) if out.ends_with("  ") => {}
            _ => out.push(c),
        }
    }
    out
}
