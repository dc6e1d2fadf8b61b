//! The layers: who may know whom, and that every dependency is declared once.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Context;
use serde_json::Value;

use super::files::SourceFile;
use super::{Finding, array};

/// Each directory below `crates/` and the directories it may depend on, lowest layer first.
const LAYERS: &[(&str, &[&str])] = &[
    ("record", &[]),
    ("model", &["record"]),
    ("state", &["model", "record"]),
    ("planner", &["state", "model", "record"]),
    ("io", &[]),
    ("archive", &["io"]),
    ("qlog", &["record", "io"]),
    ("store", &["state", "io"]),
    ("reclaim", &["qlog", "state", "model", "record", "io"]),
    ("raft", &["qlog", "store", "archive", "model", "record", "io"]),
    (
        "broker",
        &[
            "raft", "reclaim", "qlog", "store", "archive", "planner", "state", "model", "record",
            "io",
        ],
    ),
    ("doctor", &["broker", "raft", "qlog", "store", "state", "model", "record", "io"]),
    ("relayout", &["doctor", "broker", "qlog", "store", "state", "record", "io"]),
    ("http", &["broker", "model", "record"]),
    ("dash", &[]),
    ("bin", EVERYTHING),
    ("sim", UP_TO_DOCTOR),
    ("bench", &[]),
];

/// What the program may know.
const EVERYTHING: &[&str] = &[
    "http", "dash", "relayout", "doctor", "broker", "raft", "reclaim", "qlog", "store", "archive",
    "planner", "state", "model", "record", "io",
];

/// What the simulation may know.
const UP_TO_DOCTOR: &[&str] = &[
    "doctor", "broker", "raft", "reclaim", "qlog", "store", "archive", "planner", "state", "model",
    "record", "io",
];

/// The pure core: no clock, environment, thread or file, not even in tests of another layer.
const CORE: &[&str] = &["record", "model", "state", "planner"];

/// What the core must not know even in its tests.
const ABOVE_CORE: &[&str] = &[
    "io", "archive", "qlog", "store", "reclaim", "raft", "broker", "doctor", "http", "dash", "bin",
];

/// What each core crate's `clippy.toml` must name.
const CORE_BANS: &[&str] = &[
    "std::collections::HashMap",
    "std::collections::HashSet",
    "std::time::Instant::now",
    "std::time::SystemTime::now",
    "std::env::var",
    "std::thread::spawn",
    "std::fs::File::open",
    "std::fs::read",
];

/// All checks of this file.
pub(super) fn check(metadata: &Value, files: &[SourceFile]) -> anyhow::Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for package in array(metadata, "packages")? {
        package_edges(package, &mut findings)?;
    }
    for file in files.iter().filter(|file| is_member_manifest(&file.name)) {
        declared_once(file, &mut findings);
    }
    core_bans(files, &mut findings);
    architecture(files, &mut findings);
    Ok(findings)
}

fn is_member_manifest(name: &str) -> bool {
    name.ends_with("/Cargo.toml") && !name.starts_with("fuzz/")
}

/// `queen` is the program; the others carry their directory's name.
fn directory(package: &str) -> &str {
    if package == "queen" { "bin" } else { package.strip_prefix("queen-").unwrap_or(package) }
}

fn package_edges(package: &Value, findings: &mut Vec<Finding>) -> anyhow::Result<()> {
    let text =
        |value: &Value, name: &str| value.get(name).and_then(Value::as_str).map(str::to_owned);
    let name = text(package, "name").context("a package without a name")?;
    let here = directory(&name);
    let manifest = if here == "xtask" {
        "xtask/Cargo.toml".into()
    } else {
        format!("crates/{here}/Cargo.toml")
    };
    let allowed = if here == "xtask" {
        Some([].as_slice())
    } else {
        LAYERS.iter().find(|(layer, _)| *layer == here).map(|(_, allowed)| *allowed)
    };
    let Some(allowed) = allowed else {
        findings.push(Finding::new(&manifest, 1, "a crate that the layer table does not have"));
        return Ok(());
    };
    for dependency in array(package, "dependencies")? {
        if dependency.get("path").is_none_or(Value::is_null) {
            continue;
        }
        let target = text(dependency, "name").context("a dependency without a name")?;
        let there = directory(&target);
        let is_wrong = match text(dependency, "kind").as_deref() {
            Some("dev") => CORE.contains(&here) && ABOVE_CORE.contains(&there),
            _ => !allowed.contains(&there),
        };
        if is_wrong {
            let text = format!("{here} must not know {there}: no such edge in the layer table");
            findings.push(Finding::new(&manifest, 1, text));
        }
    }
    Ok(())
}

/// Versions stand in the workspace's table only, and the workspace's lints hold everywhere.
fn declared_once(file: &SourceFile, findings: &mut Vec<Finding>) {
    let (mut section, mut has_lints) = (String::new(), false);
    for (number, line) in file.text.lines().enumerate() {
        let line = line.trim();
        if let Some(name) = line.strip_prefix('[') {
            name.trim_end_matches(']').clone_into(&mut section);
            continue;
        }
        has_lints |= section == "lints" && line == "workspace = true";
        let is_dependency =
            section.ends_with("dependencies") && line.contains('=') && !line.starts_with('#');
        if is_dependency && !line.contains("workspace = true") {
            let text = "a dependency that is not taken from the workspace's table";
            findings.push(Finding::new(&file.name, number + 1, text));
        }
        if section.contains("dependencies.") && line.starts_with("version") {
            findings.push(Finding::new(
                &file.name,
                number + 1,
                "a version outside the workspace's table",
            ));
        }
    }
    if !has_lints {
        findings.push(Finding::new(&file.name, 1, "without the workspace's lints"));
    }
}

fn core_bans(files: &[SourceFile], findings: &mut Vec<Finding>) {
    let by_name: BTreeMap<&str, &SourceFile> =
        files.iter().map(|file| (&*file.name, file)).collect();
    for crate_name in CORE {
        let name = format!("crates/{crate_name}/clippy.toml");
        let Some(file) = by_name.get(&*name) else {
            findings.push(Finding::new(&name, 0, "a core crate without its own ban list"));
            continue;
        };
        for ban in CORE_BANS.iter().filter(|ban| !file.text.contains(&format!("\"{ban}\""))) {
            findings.push(Finding::new(&name, 1, format!("{ban} is not banned")));
        }
    }
}

/// The code map has one item per crate, and no other: `- **name**: ...`.
fn architecture(files: &[SourceFile], findings: &mut Vec<Finding>) {
    let name = "ARCHITECTURE.md";
    let Some(page) = files.iter().find(|file| file.name == name) else {
        findings.push(Finding::new(name, 0, "missing"));
        return;
    };
    let mut missing: BTreeSet<&str> =
        files.iter().filter_map(|file| crate_of(&file.name)).collect();
    let (mut is_map, mut heading) = (false, 0);
    for (number, line) in page.text.lines().enumerate() {
        if line.starts_with("## ") {
            is_map = line.to_lowercase().contains("code map");
            heading = if is_map { number + 1 } else { heading };
        }
        let item = line.strip_prefix("- **").and_then(|rest| rest.split_once("**"));
        if let (true, Some((item, _))) = (is_map, item)
            && !missing.remove(item)
        {
            let text = format!("{item} is no crate, or is named twice");
            findings.push(Finding::new(name, number + 1, text));
        }
    }
    for lacking in missing {
        findings.push(Finding::new(name, heading, format!("the code map lacks {lacking}")));
    }
}

fn crate_of(name: &str) -> Option<&str> {
    let (name, rest) = name.strip_prefix("crates/")?.split_once('/')?;
    (rest == "Cargo.toml").then_some(name)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn package(name: &str, dependency: &str, kind: &Value) -> Vec<Finding> {
        let dependency = json!({"name": dependency, "path": "somewhere", "kind": kind});
        let metadata = json!({"packages": [{"name": name, "dependencies": [dependency]}]});
        let mut findings = check(&metadata, &[]).unwrap();
        findings.retain(|finding| finding.text.contains("must not know"));
        findings
    }

    #[test]
    fn edges_up_are_found_and_edges_down_are_not() {
        assert_eq!(package("queen-record", "queen-io", &Value::Null).len(), 1);
        assert_eq!(package("queen-http", "queen-qlog", &Value::Null).len(), 1);
        assert_eq!(package("queen-qlog", "queen-io", &Value::Null).len(), 0);
        assert_eq!(package("queen", "queen-http", &Value::Null).len(), 0);
        assert_eq!(package("xtask", "queen-record", &Value::Null).len(), 1);
    }

    #[test]
    fn development_edges_are_free_above_the_core_only() {
        assert_eq!(package("queen-raft", "queen-io", &json!("dev")).len(), 0);
        assert_eq!(package("queen-state", "queen-io", &json!("dev")).len(), 1);
    }

    #[test]
    fn a_version_in_a_member_is_found() {
        let text =
            "[lints]\nworkspace = true\n[dependencies]\nbytes = \"1\"\nlibc.workspace = true\n";
        let file = SourceFile { name: "crates/x/Cargo.toml".into(), text: text.into() };
        let mut findings = Vec::new();
        declared_once(&file, &mut findings);
        assert_eq!(findings.iter().map(|finding| finding.line).collect::<Vec<_>>(), [4]);
    }

    #[test]
    fn the_code_map_names_every_crate_and_no_other() {
        let file = |name: &str, text: &str| SourceFile { name: name.into(), text: text.into() };
        let map = "\n## Code map\n- **a**: x\n- **b**: y\n## Rest\n- **c**\n";
        let crates = ["crates/a/Cargo.toml", "crates/d/Cargo.toml"].map(|name| file(name, ""));
        let files = [file("ARCHITECTURE.md", map)].into_iter().chain(crates).collect::<Vec<_>>();
        let mut findings = Vec::new();
        architecture(&files, &mut findings);
        assert_eq!(findings.iter().map(|finding| finding.line).collect::<Vec<_>>(), [4, 2]);
    }
}
