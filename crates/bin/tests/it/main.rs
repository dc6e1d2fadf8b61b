//! The program from outside: exit codes, the FATAL line, what it prints, and what it answers.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail loudly")]

mod acceptance;
mod auth;
mod backup;
mod client;
mod cluster;
mod commands;
mod contract;
mod deploy;
mod dirs;
mod encrypted;
mod examine;
mod program;
mod reads;
mod relayout;
mod security;
mod store_scrub;
mod tenants;

use std::process::{Command, Output};

fn queen(arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_queen"));
    command.args(arguments).env_clear().envs(variables.iter().copied());
    command.output().unwrap_or_else(|error| panic!("queen does not run: {error}"))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_bad_setting_is_one_fatal_line_and_exit_code_1() {
    for variable in [
        ("PORT", "x"),
        ("JWT_ENABLED", "true"),
        ("JWT_ENABLED", "maybe"),
        ("JWT_ALGORITHM", "none"),
        ("QUEEN_TENANCY_HEADER", "true"),
        ("QUEEN_ENCRYPTION_KEY", "s3cr3t"),
        ("QUEEN_TEST_FAULTS", ""),
    ] {
        let output = queen(&[], &[variable]);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let log = text(&output.stderr);
        assert_eq!(log.lines().count(), 1, "{log}");
        assert!(
            log.contains("ERROR") && log.contains("FATAL: ") && log.contains(variable.0),
            "{log}"
        );
        assert!(!log.contains("s3cr3t"), "{log}");
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn config_prints_what_a_start_would_use() {
    let output = queen(&["config"], &[("PORT", "7000")]);
    assert!(output.status.success(), "{output:?}");
    let table = text(&output.stdout);
    let row = table.lines().find(|line| line.starts_with("PORT ")).unwrap_or_default();
    assert!(row.contains("7000") && row.contains("6632"), "{table}");
    let page = text(&queen(&["config", "--markdown"], &[("PORT", "x")]).stdout);
    assert!(page.starts_with("# Settings") && page.contains("| `PORT` | `6632` |"), "{page}");
}

#[test]
fn help_teaches() {
    let help = text(&queen(&["--help"], &[]).stdout);
    for word in ["curl", "QUEEN_RAFT_DIR", "PORT", "/api/v1/push", "config", "push", "tail"] {
        assert!(help.contains(word), "{word} in {help}");
    }
    assert_eq!(queen(&["nonsense"], &[]).status.code(), Some(2));
}
