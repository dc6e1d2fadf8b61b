//! `queen doctor` and the dumps on real directories: the doctor says what a real start then does, and writes nothing.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::dirs::{copy, files, sealed, settle};
use crate::program::Program;
use crate::{queen, text};

const KEY: &str = "0f1e2d3c4b5a69788796a5b4c3d2e1f00f1e2d3c4b5a69788796a5b4c3d2e1f0";
/// The lowest that the program takes.
const SEGMENT: (&str, &str) = ("QUEEN_RAFT_SEGMENT_BYTES", "65536");

/// A stopped node's directory: a sealed file and an active one, an encrypted queue, a compressed record.
fn directory() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let node = Program::start(dir.path(), &[SEGMENT, ("QUEEN_ENCRYPTION_KEY", KEY)]).unwrap();
    let options = r#"{"queue":"secret","options":{"encryptionEnabled":true}}"#;
    node.ask("POST", "/api/v1/configure", options);
    for n in 0..8 {
        // Letters that do not repeat, so that a file fills up.
        let long: String = (0..16_000u32).map(|at| letter(at * 31 + n)).collect();
        for queue in ["orders", "secret"] {
            let item = format!(
                r#"{{"items":[{{"queue":"{queue}","partition":"p","transactionId":"id-{n}","payload":{{"text":"{long}"}}}}]}}"#
            );
            assert!(node.ask("POST", "/api/v1/push", &item).contains("queued"));
        }
        let item = format!(
            r#"{{"items":[{{"queue":"orders","partition":"p","transactionId":"n-{n}","payload":{{"n":"{}"}}}}]}}"#,
            "same".repeat(400)
        );
        node.ask("POST", "/api/v1/push", &item);
    }
    settle(&node, dir.path());
    let (status, log) = node.stop();
    assert!(status.success(), "{log:?}");
    dir
}

fn letter(seed: u32) -> char {
    let mixed = seed.wrapping_mul(2_654_435_761) ^ seed.wrapping_mul(seed).rotate_left(11);
    char::from_digit((mixed >> 13) % 36, 36).unwrap()
}

fn doctor(dir: &Path, with_key: bool) -> (i32, Value) {
    let key = [("QUEEN_ENCRYPTION_KEY", KEY)];
    let variables: &[(&str, &str)] = if with_key { &key } else { &[] };
    let output = queen(&["doctor", "--json", dir.to_str().unwrap()], variables);
    let report = text(&output.stdout);
    let report =
        serde_json::from_str(&report).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    (output.status.code().unwrap(), report)
}

#[test]
fn a_good_directory_is_clean_and_stays_as_it_is() {
    let dir = directory();
    let before = files(dir.path());
    for with_key in [true, false] {
        let (code, report) = doctor(dir.path(), with_key);
        assert_eq!(
            (code, &report["starts"], &report["clean"]),
            (0, &true.into(), &true.into()),
            "{report}"
        );
        assert_eq!(report["figures"]["messages"], 24, "{report}");
        assert_eq!(report["figures"]["encrypted"], 8, "{report}");
    }
    let output = queen(&["doctor", dir.path().to_str().unwrap()], &[]);
    assert!(
        text(&output.stdout).contains("a node would start: 2 queues, 2 partitions"),
        "{output:?}"
    );
    let other = [("QUEEN_ENCRYPTION_KEY", &*"11".repeat(32))];
    let output = queen(&["doctor", dir.path().to_str().unwrap()], &other);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stdout).contains("is not the key that this directory was used with"));
    assert_eq!(files(dir.path()), before);
    std::fs::remove_file(dir.path().join("ENCRYPTION")).unwrap();
    let (code, report) = doctor(dir.path(), true);
    let found = &report["findings"][0];
    assert_eq!((code, &found["severity"]), (3, &"damage".into()), "{report}");
    assert!(found["what"].as_str().unwrap().contains("8 messages are encrypted"), "{report}");
}

#[test]
fn a_directory_in_use_and_one_that_is_none_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let node = Program::start(dir.path(), &[]).unwrap();
    let path = dir.path().to_str().unwrap();
    for arguments in [["doctor", path].as_slice(), &["store", "dump", path]] {
        let output = queen(arguments, &[]);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(text(&output.stderr).contains("is in use by another process"), "{output:?}");
    }
    drop(node);
    let output = queen(&["doctor", "/nowhere/at/all"], &[]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(text(&output.stderr), "queen: /nowhere/at/all is not a directory\n");
    assert_eq!(queen(&["doctor"], &[]).status.code(), Some(2));
}

/// Bytes and files of a real directory are damaged; the doctor's verdict is that of the start that follows.
#[test]
fn the_doctor_says_what_a_start_does() {
    let good = directory();
    let mut damages: Vec<(PathBuf, Option<usize>)> = Vec::new();
    for (path, bytes) in files(good.path()) {
        let name = path.strip_prefix(good.path()).unwrap().to_path_buf();
        damages.push((name.clone(), None));
        let len = bytes.len();
        let places = [40, len / 2, len.saturating_sub(9)];
        damages
            .extend(places.into_iter().filter(|at| *at < len).map(|at| (name.clone(), Some(at))));
    }
    let (mut refused, mut served) = (0, 0);
    for (name, at) in &damages {
        let dir = tempfile::tempdir().unwrap();
        copy(good.path(), dir.path());
        let path = dir.path().join(name);
        match at {
            None => std::fs::remove_file(&path).unwrap(),
            Some(at) => {
                let mut bytes = std::fs::read(&path).unwrap();
                bytes[*at] ^= 1;
                std::fs::write(&path, bytes).unwrap();
            }
        }
        let (code, report) = doctor(dir.path(), true);
        let started = Program::start(dir.path(), &[SEGMENT, ("QUEEN_ENCRYPTION_KEY", KEY)]);
        let place = format!("{} {at:?}: {report}", name.display());
        match started {
            Ok(node) => {
                served += 1;
                assert!(report["starts"] == true && (code == 0 || code == 3), "{place}");
                drop(node);
            }
            Err(log) => {
                refused += 1;
                let fatal = report["fatal"].as_str().unwrap_or_else(|| panic!("{place}\n{log}"));
                assert_eq!(code, 1, "{place}");
                assert!(log.contains(&format!("FATAL: {fatal}")), "{place}\n{log}");
            }
        }
    }
    assert!(refused > 10 && served > 10, "{refused} refused, {served} served");
}

#[test]
fn what_only_reading_finds_has_its_own_exit_code() {
    let dir = directory();
    let sealed = sealed(dir.path()).remove(0);
    let mut bytes = std::fs::read(&sealed).unwrap();
    bytes[200] ^= 1;
    std::fs::write(&sealed, &bytes).unwrap();
    let (code, report) = doctor(dir.path(), false);
    assert_eq!((code, &report["starts"]), (3, &true.into()), "{report}");
    let damage = |found: &&Value| found["severity"] == "damage" && found["offset"].is_u64();
    let found = report["findings"].as_array().unwrap().iter().find(damage).unwrap();
    assert_eq!(found["file"], sealed.to_str().unwrap());

    let output = queen(&["log", "dump", sealed.to_str().unwrap()], &[]);
    assert_eq!(output.status.code(), Some(1));
    let said = format!("queen: damage at byte {} of {}: ", found["offset"], sealed.display());
    assert!(text(&output.stderr).starts_with(&said), "{output:?}");
    assert!(text(&output.stdout).starts_with("header file=1 firstEntry="), "{output:?}");
}

#[test]
fn a_length_that_cannot_be_is_a_finding_and_no_allocation() {
    let dir = directory();
    let sealed = sealed(dir.path()).remove(0);
    for ext in ["qidx", "qhsh"] {
        let side = sealed.with_extension(ext);
        // Sparse: it takes no room.
        std::fs::OpenOptions::new().write(true).open(&side).unwrap().set_len(60 << 30).unwrap();
        let output = queen(&["log", "dump", side.to_str().unwrap()], &[]);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(text(&output.stderr).contains("bytes are too many to be shown"), "{output:?}");
    }
    let (code, report) = doctor(dir.path(), false);
    assert_eq!((code, &report["starts"]), (3, &true.into()), "{report}");
    let findings = report["findings"].as_array().unwrap();
    for ext in ["qidx", "qhsh"] {
        let side = sealed.with_extension(ext);
        assert!(findings.iter().any(|found| found["file"] == side.to_str().unwrap()), "{report}");
    }
}

#[test]
fn dumps_show_records_and_rows() {
    let dir = directory();
    let all = files(dir.path());
    let dump = |path: &Path, more: &[&str]| {
        let arguments = [&["log", "dump", path.to_str().unwrap()], more].concat();
        let output = queen(&arguments, &[]);
        assert!(output.status.success(), "{output:?}");
        text(&output.stdout)
    };
    let (mut lines, mut json) = (String::new(), Vec::new());
    for path in all.keys() {
        let ext = path.extension().and_then(|ext| ext.to_str()).unwrap_or_default();
        if ["qlog", "qidx", "qhsh"].contains(&ext) {
            lines += &dump(path, &["--frames"]);
            for line in dump(path, &["--frames", "--json"]).lines() {
                json.push(serde_json::from_str::<Value>(line).unwrap());
            }
            assert_eq!(
                dump(path, &["--limit", "1", "--json"]).lines().count(),
                2,
                "{}",
                path.display()
            );
        }
    }
    for word in [
        "header file=1 firstEntry=",
        "    queue upsert ",
        "    append partition=1 base=0 count=1 ",
        "compressed=yes",
        "transactionId=id-3",
        "encrypted=yes\n",
        "samesame",
        "\nend at=",
        "record partition=1 base=0 end=1 ",
        " hashes=",
    ] {
        assert!(lines.contains(word), "{word:?} in {lines}");
    }
    let messages: usize =
        json.iter().filter_map(|row| row["messages"].as_array()).map(Vec::len).sum();
    assert_eq!(messages, 24);
    let encrypted = json.iter().filter_map(|row| row["messages"].as_array()).flatten();
    assert!(encrypted.filter(|m| m["encrypted"] == true).all(|m| m["payload"].is_null()));

    let store = |more: &[&str]| {
        let arguments = [&["store", "dump", dir.path().to_str().unwrap()], more].concat();
        let output = queen(&arguments, &[]);
        assert!(output.status.success(), "{output:?}");
        text(&output.stdout)
    };
    let rows = store(&[]);
    for word in [
        "meta row=scalars applied=",
        "meta row=logs ",
        "queue=orders",
        "name=p ",
        "rows: meta 2, queues 2, ",
    ] {
        assert!(rows.contains(word), "{word:?} in {rows}");
    }
    let one = store(&["--keyspace", "partitions", "--limit", "1", "--json"]);
    let one: Value = serde_json::from_str(one.trim()).unwrap();
    assert_eq!((&one["kind"], &one["partition"]), (&"partitions".into(), &1.into()));
    assert_eq!(files(dir.path()), all);
    let wrong = queen(&["store", "dump", "x", "--keyspace", "y"], &[]);
    assert_eq!(wrong.status.code(), Some(2));
}

/// LMDB maps its file, and what it meets in a bad page may be a signal: no start may get that far.
#[test]
fn trap_t9_a_bad_page_of_the_store_is_a_line_and_exit_code_1() {
    const PAGE: usize = 4096;
    let good = directory();
    let bytes = std::fs::read(good.path().join("store/data.mdb")).unwrap();
    let mut refused = 0;
    for page in 0..bytes.len() / PAGE {
        for (at, len) in [(0, 16), (16, 64), (2048, 512), (0, PAGE)] {
            let dir = tempfile::tempdir().unwrap();
            copy(good.path(), dir.path());
            let file = dir.path().join("store/data.mdb");
            let mut bad = bytes.clone();
            let from = page * PAGE + at;
            bad[from..from + len].iter_mut().for_each(|byte| *byte = !*byte);
            std::fs::write(&file, &bad).unwrap();
            let variables = [("QUEEN_ENCRYPTION_KEY", KEY)];
            match Program::start(dir.path(), &variables) {
                // A page of an older commit, or a part of one that holds nothing.
                Ok(node) => {
                    let (status, log) = node.stop();
                    assert!(status.success(), "page {page} byte {at}: {log:?}");
                }
                Err(log) => {
                    refused += 1;
                    let fatal = log.lines().find(|line| line.contains("FATAL"));
                    let named = fatal.is_some_and(|line| line.contains("data.mdb"));
                    assert!(named, "page {page} byte {at}: {log}");
                    let again = queen(&[], &variables_of(dir.path()));
                    assert_eq!(again.status.code(), Some(1), "page {page} byte {at}: {again:?}");
                }
            }
        }
    }
    assert!(refused > 0);
}

/// What a node needs to start over a directory.
fn variables_of(dir: &Path) -> Vec<(&str, &str)> {
    vec![
        ("QUEEN_RAFT_DIR", dir.to_str().unwrap()),
        ("QUEEN_ENCRYPTION_KEY", KEY),
        ("PORT", "0"),
        ("QUEEN_BIND_ADDR", "127.0.0.1"),
    ]
}
