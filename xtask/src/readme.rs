//! The `curl` lines of README.md, run as they stand there against a fresh node on another port.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Context;

use crate::node::{Node, NodeOptions};
use crate::shell::{self, Scratch, capture};
use crate::test::Tally;

/// Where a node listens when nobody says otherwise, as README.md has it.
const ADDRESS: &str = "localhost:6632";

/// What the lines have to print, in this order.
const PRINTED: [&str; 4] = [
    r#""configured":true"#,
    r#""status":"queued""#,
    r#""data":{"orderId":1}"#,
    r#""success":true"#,
];

/// Runs them; counts what they printed.
pub(crate) fn run(binary: &Path) -> anyhow::Result<Tally> {
    let text = fs::read_to_string(shell::root().join("README.md"))?;
    let lines = script(&text).context("README.md has no shell block with curl lines")?;
    let scratch = Scratch::new("readme")?;
    let options = NodeOptions::below(scratch.path(), binary)?;
    let node = Node::start(&options)?;
    let lines = lines.replace(ADDRESS, &options.address.to_string());
    let done = capture(Command::new("sh").args(["-euc", &lines]), Duration::from_mins(2))?;
    node.stop()?;
    let (mut tally, mut rest) = (Tally::one(done.status.success()), &*done.text);
    for wanted in PRINTED {
        let after = rest.split_once(wanted).map(|(_, after)| after);
        tally.add(Tally::one(after.is_some()));
        rest = after.unwrap_or(rest);
    }
    if tally.failed > 0 {
        println!("{lines}\n---\n{}", done.text);
    }
    Ok(tally)
}

/// The shell block that talks to a node.
fn script(text: &str) -> Option<&str> {
    let blocks = text.split("```sh\n").skip(1).filter_map(|rest| rest.split("```").next());
    blocks.into_iter().find(|block| block.contains("curl "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_block_with_curl() {
        let text = "a\n```sh\ncargo\n```\nb\n```sh\ncurl x\n```\n```python\ncurl \n```\n";
        assert_eq!(script(text), Some("curl x\n"));
        assert_eq!(script("```sh\ncargo\n```"), None);
    }
}
