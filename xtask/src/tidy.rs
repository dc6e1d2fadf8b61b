//! `cargo xtask tidy`: what neither the compiler nor clippy checks. Every finding names its file and line.

mod files;
mod layers;
mod traps;
mod words;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, bail};

use crate::args::Args;
use crate::{node, shell};

/// A rule broken somewhere.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Finding {
    /// Relative to the workspace.
    pub(crate) file: String,
    /// From 1; 0 for the file as a whole.
    pub(crate) line: usize,
    pub(crate) text: String,
}

impl Finding {
    /// A finding in a file.
    pub(crate) fn new(file: &str, line: usize, text: impl Into<String>) -> Self {
        Self { file: file.to_owned(), line, text: text.into() }
    }
}

/// The command.
pub(crate) fn tidy(mut args: Args) -> anyhow::Result<()> {
    let with_docs = args.flag("--docs");
    args.end()?;
    check()?;
    if with_docs {
        check_generated(&node::build()?)?;
    }
    Ok(())
}

/// All checks that need no build.
pub(crate) fn check() -> anyhow::Result<()> {
    let files = files::read(&shell::root())?;
    let mut findings = layers::check(shell::metadata()?, &files)?;
    findings.extend(files::check(&files));
    findings.extend(words::check(&files));
    findings.extend(traps::check(&files));
    report(findings)
}

/// Pages that the program prints, and the command that prints each.
const GENERATED: [(&str, &str); 2] = [("docs/config.md", "config"), ("docs/http.md", "api")];

fn page(binary: &Path, command: &str) -> anyhow::Result<String> {
    let mut process = Command::new(binary);
    process.env_clear().args([command, "--markdown"]);
    shell::must(&mut process, Duration::from_mins(1))
}

/// Whether the generated pages are what the program prints.
pub(crate) fn check_generated(binary: &Path) -> anyhow::Result<()> {
    let mut findings = Vec::new();
    for (file, command) in GENERATED {
        let wanted = page(binary, command)?;
        let found = fs::read_to_string(shell::root().join(file)).unwrap_or_default();
        if wanted == found {
            continue;
        }
        let mut pairs = wanted.lines().zip(found.lines());
        let line = pairs.position(|(wanted, found)| wanted != found);
        let line = line.unwrap_or_else(|| wanted.lines().count().min(found.lines().count()));
        let text = "not what the program prints with `--markdown`; `cargo xtask fix` writes it";
        findings.push(Finding::new(file, line + 1, text));
    }
    report(findings)
}

/// Writes the generated pages.
pub(crate) fn write_generated(binary: &Path) -> anyhow::Result<()> {
    for (file, command) in GENERATED {
        fs::write(shell::root().join(file), page(binary, command)?)?;
    }
    Ok(())
}

fn report(findings: impl IntoIterator<Item = Finding>) -> anyhow::Result<()> {
    let mut findings: Vec<_> = findings.into_iter().collect();
    findings.sort();
    findings.dedup();
    if findings.is_empty() {
        return Ok(());
    }
    for Finding { file, line, text } in &findings {
        println!("{file}:{line}: {text}");
    }
    bail!("tidy: {} findings", findings.len());
}

/// Reads a table of a JSON object.
fn array<'a>(value: &'a serde_json::Value, name: &str) -> anyhow::Result<&'a [serde_json::Value]> {
    let found = value.get(name).and_then(serde_json::Value::as_array);
    Ok(found.with_context(|| format!("cargo metadata without {name}"))?)
}
