//! The files of `deploy/` name settings that there are, with values that a start takes.

use std::path::PathBuf;

use crate::{queen, text};

fn file(name: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../deploy").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// `NAME=value` or `NAME: value` of each line that sets something, also of those that wait behind a `#`.
fn set(text: &str, between: &str) -> Vec<(String, String)> {
    let of_line = |line: &str| {
        let line = line.trim().trim_start_matches('#');
        let (name, value) = line.split_once(between)?;
        let is_name = name.starts_with("QUEEN_") || name.starts_with("JWT_");
        is_name.then(|| (name.to_owned(), value.trim().trim_matches('"').to_owned()))
    };
    text.lines().filter_map(of_line).collect()
}

fn is_taken(settings: &[(String, String)]) {
    let variables: Vec<(&str, &str)> =
        settings.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let output = queen(&["config"], &variables);
    assert!(output.status.success(), "{settings:?}: {}", text(&output.stderr));
    let known = text(&queen(&["config", "--markdown"], &[]).stdout);
    for (name, _) in settings {
        assert!(known.contains(&format!("| `{name}` |")), "{name} is no setting");
    }
}

#[test]
fn the_settings_of_the_compose_file_are_taken() {
    let compose = file("compose.yaml");
    let all = set(&compose, ": ");
    let (own, mut shared): (Vec<_>, Vec<_>) =
        all.into_iter().partition(|(name, _)| name == "QUEEN_RAFT_NODE_ID");
    assert_eq!((own.len(), shared.len()), (3, 3), "three nodes, three shared settings");
    for (name, value) in &mut shared {
        if name == "QUEEN_RAFT_TOKEN" {
            "a-secret".clone_into(value);
        }
    }
    for id in own {
        is_taken(&[&shared[..], &[id]].concat());
    }
    // As many volumes and ports as nodes, and each its own.
    for node in 1..=3 {
        assert!(compose.contains(&format!("[\"queen-{node}:/var/lib/queen/raft\"]")));
        assert!(compose.contains(&format!("127.0.0.1:663{node}:6632")));
    }
}

#[test]
fn the_settings_of_the_unit_are_taken() {
    let settings = set(&file("queen.env"), "=");
    assert!(settings.len() >= 6, "{settings:?}");
    let given: Vec<_> = settings
        .into_iter()
        .map(|(name, value)| match name.as_str() {
            "QUEEN_RAFT_TOKEN" => (name, "a-secret".to_owned()),
            "JWT_SECRET" | "QUEEN_ENCRYPTION_KEY" => (name, "ab".repeat(32)),
            _ => (name, value),
        })
        .collect();
    is_taken(&given);
    let unit = file("queen.service");
    for line in ["RestartForceExitStatus=75", "EnvironmentFile=/etc/queen/queen.env"] {
        assert!(unit.lines().any(|found| found == line), "{line}");
    }
}
