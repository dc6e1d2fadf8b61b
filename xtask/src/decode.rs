//! The independent decoder against directories that a real node wrote, one per layout.

use std::path::Path;
use std::time::Duration;

use anyhow::Context;

use crate::node::{Node, NodeOptions};
use crate::python::{self, Python};
use crate::shell::{self, Scratch, capture};
use crate::test::{Parts, Tally};

const LIMIT: Duration = Duration::from_mins(10);

/// Layouts: what they are called, and the setting that makes them.
const LAYOUTS: [(&str, &str, &str); 3] = [
    ("a log per queue", "QUEEN_QLOG_LANES", "1"),
    ("shared logs", "QUEEN_QLOG_SHARDS", "3"),
    ("lanes", "QUEEN_QLOG_LANES", "4"),
];

/// Runs every layout as a part of its own.
pub(crate) fn parts(parts: &mut Parts, binary: &Path, python: &Python) {
    for (name, setting, value) in LAYOUTS {
        parts.run(&format!("decoder, {name}"), || run(binary, python, setting, value));
    }
}

fn run(binary: &Path, python: &Python, setting: &str, value: &str) -> anyhow::Result<Tally> {
    let scratch = Scratch::new("decode")?;
    // The smallest files, so that some are sealed.
    let options = NodeOptions::below(scratch.path(), binary)?
        .set("QUEEN_RAFT_SEGMENT_BYTES", "65536")
        .set(setting, value);
    let node = Node::start(&options)?;
    let expected = scratch.path().join("expected.json");
    let mut pusher = python.command();
    pusher.arg(python::directory().join("workload.py")).arg(options.url()).arg(&expected);
    let pushed = shell::must(&mut pusher, LIMIT)?;
    node.stop()?;
    let mut decoder = python.command();
    decoder.arg(python::directory().join("decode.py")).arg(&options.directory).arg(&expected);
    let done = capture(&mut decoder, LIMIT)?;
    print!("{pushed}");
    let tally = closing_tally(&done.text).with_context(|| done.text.clone())?;
    print!("{}", if tally.failed > 0 { &done.text } else { first_line(&done.text) });
    Ok(tally)
}

fn first_line(text: &str) -> &str {
    text.split_inclusive('\n').next().unwrap_or_default()
}

/// Reads `N passed, M failed`, the last line.
pub(crate) fn closing_tally(text: &str) -> Option<Tally> {
    let (passed, failed) = text.trim_end().lines().next_back()?.split_once(" passed, ")?;
    let failed = failed.strip_suffix(" failed")?;
    Some(Tally { passed: passed.parse().ok()?, failed: failed.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_closing_line() {
        let text = "1 files, 2 records\n7 passed, 1 failed\n";
        assert_eq!(closing_tally(text), Some(Tally { passed: 7, failed: 1 }));
        assert_eq!(closing_tally("Traceback"), None);
        assert_eq!(first_line(text), "1 files, 2 records\n");
    }
}
