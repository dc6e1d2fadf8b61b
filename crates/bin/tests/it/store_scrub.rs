//! Damage that the store's file gets while a node runs ends the process with a line that names it.

use std::fs;
use std::os::unix::fs::FileExt;

use crate::program::Program;

const PUSH: &str =
    r#"{"items":[{"queue":"orders","partition":"find-this-partition","payload":1}]}"#;

#[test]
fn a_row_that_is_damaged_while_the_node_runs_ends_it() {
    let root = tempfile::tempdir().unwrap();
    let variables = [("QUEEN_STORE_SCRUB_EVERY_S", "1"), ("QUEEN_STORE_VERIFY", "1")];
    let program = Program::start(root.path(), &variables).unwrap();
    program.ask("POST", "/api/v1/push", PUSH);
    let path = root.path().join("store/data.mdb");
    let name = b"find-this-partition";
    let places = || -> Vec<usize> {
        let bytes = fs::read(&path).unwrap();
        bytes
            .windows(name.len())
            .enumerate()
            .filter(|(_, at)| at == name)
            .map(|(at, _)| at)
            .collect()
    };
    // The checkpoint comes within a second.
    while places().is_empty() {
        std::thread::yield_now();
    }
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    for place in places() {
        file.write_all_at(b"F", place as u64).unwrap();
    }
    let (status, log) = program.end();
    assert_eq!(status.code(), Some(1), "{log:#?}");
    let fatal: Vec<&String> = log.iter().filter(|line| line.contains("FATAL: ")).collect();
    let [fatal] = fatal.as_slice() else { panic!("{log:#?}") };
    let says =
        "data.mdb has a row that fails its checksum, keyspace partitions, key 0000000000000001";
    assert!(fatal.contains(says), "{fatal}");
    let refused = Program::start(root.path(), &[]).err().unwrap();
    assert!(refused.contains(says), "{refused}");
}
