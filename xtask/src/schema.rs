//! `cargo xtask schema`: calls made up from the description of the API, against a real node.
//!
//! Every answer must have a status and a shape that the description names, and none may be a fault of the node.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use serde_json::json;

use crate::args::Args;
use crate::http::Client;
use crate::node::{self, Node, NodeOptions};
use crate::python::Python;
use crate::shell::{Scratch, capture, tail};
use crate::test::Tally;

/// How long the calls go on when nothing else is said.
const SECONDS: u64 = 300;
/// Phases that have begun are finished, whatever the time.
const OVERTIME: Duration = Duration::from_mins(10);
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance";

/// What a node alone answers to calls about a cluster is no fault of it; where the description does not name it, the other
/// checks find it.
const CONFIG: &str = r#"[checks]
not_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", "501"]
"#;

/// The command.
pub(crate) fn schema(mut args: Args) -> anyhow::Result<()> {
    let seconds = args.value("--seconds")?.unwrap_or(SECONDS);
    args.end()?;
    let Tally { passed, failed } = run(&node::build()?, seconds)?;
    println!("{passed} generated calls passed, {failed} failed");
    ensure!(failed == 0, "the node and its description disagree");
    Ok(())
}

/// Generates calls for this long.
pub(crate) fn run(binary: &Path, seconds: u64) -> anyhow::Result<Tally> {
    let python = Python::from_list("schema-requirements.txt", "venv-schema")?;
    let scratch = Scratch::new("schema")?;
    let options = NodeOptions::below(scratch.path(), binary)?;
    let mut node = Node::start(&options)?;
    something_to_find(&options)?;
    let config = scratch.path().join("schemathesis.toml");
    std::fs::write(&config, CONFIG).with_context(|| config.display().to_string())?;
    let mut command = python.command();
    command
        .current_dir(scratch.path())
        .args(["-m", "schemathesis.cli"])
        .arg("--config-file")
        .arg(&config)
        .args(["run", "--no-color", "--continue-on-failure"])
        .args(["--request-timeout", "70", "--checks", CHECKS, "--max-time", &seconds.to_string()])
        .arg(format!("{}/api/v1/openapi.json", options.url()));
    let done = capture(&mut command, Duration::from_secs(seconds) + OVERTIME)?;
    node.check_running()?;
    node.stop()?;
    let tally = tally(&done.text).with_context(|| tail(&done.text, 80).to_owned())?;
    println!("{}", tail(&done.text, 24));
    if tally.failed > 0 || !done.status.success() {
        println!("{}", tail(&done.text, 200));
    }
    ensure!(done.status.success() || tally.failed > 0, "it ended with {}", done.status);
    Ok(tally)
}

/// A queue, a group, messages and a dead letter, so that some calls find what they name.
fn something_to_find(options: &NodeOptions) -> anyhow::Result<()> {
    let mut client = Client::new(options.address, Duration::from_secs(20));
    let items = json!([{"queue": "0", "partition": "0", "payload": {"n": 1}, "transactionId": "0"},
        {"queue": "0", "partition": "0", "payload": [2]}, {"queue": "orders", "payload": null}]);
    let pushed = client.post("/api/v1/push", &json!({ "items": items }))?;
    ensure!(pushed.status == 201, "the push was answered {}", pushed.status);
    let path = "/api/v1/pop/queue/0?consumerGroup=0&subscriptionMode=all&batch=1";
    let popped = client.get(path)?.json();
    let Some(message) = popped.pointer("/messages/0") else {
        bail!("nothing was popped: {popped}")
    };
    let letter = json!({"transactionId": message["transactionId"], "status": "dlq",
        "partitionId": message["partitionId"], "leaseId": message["leaseId"], "consumerGroup": "0"});
    let acked = client.post("/api/v1/ack", &letter)?.json();
    ensure!(acked.pointer("/0/dlq") == Some(&json!(true)), "no dead letter: {acked}");
    Ok(())
}

/// The counts of the line `N generated, M passed`, with what else it says counted as failed.
fn tally(text: &str) -> anyhow::Result<Tally> {
    let line = text.lines().rfind(|line| line.contains(" generated")).context("no summary")?;
    let count = |word: &str| {
        let part = line.split(',').find(|part| part.contains(word));
        part.and_then(|part| part.split_whitespace().next()?.parse::<u64>().ok())
    };
    let generated = count("generated").context("no count of calls")?;
    let passed = count("passed").unwrap_or(0);
    let skipped = count("skipped").unwrap_or(0);
    Ok(Tally { passed, failed: generated.saturating_sub(passed + skipped) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_did_not_pass_failed() {
        let of = |text: &str| tally(text).unwrap();
        assert_eq!(of("a\n  3166 generated, 3166 passed\n"), Tally { passed: 3166, failed: 0 });
        let text = "  10 generated, 2 found 1 unique failures, 7 passed, 1 skipped";
        assert_eq!(of(text), Tally { passed: 7, failed: 2 });
        assert!(tally("nothing").is_err());
    }
}
