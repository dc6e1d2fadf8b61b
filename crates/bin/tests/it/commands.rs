//! The command line for people, against a running node.

mod pop;
mod push;
mod reads;
mod relay;
mod tail;
mod trouble;

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use serde_json::Value;

use crate::program::Program;

/// Far beyond what anything here takes; then the test has failed.
const LIMIT: Duration = Duration::from_mins(1);

/// What a command did.
#[derive(Debug)]
struct Done {
    code: Option<i32>,
    out: String,
    /// Standard error.
    said: String,
}

impl Done {
    /// It succeeded and had nothing to remark.
    #[track_caller]
    fn printed(&self) -> &str {
        assert_eq!((self.code, &*self.said), (Some(0), ""), "{self:?}");
        &self.out
    }

    /// It failed and said why, in one line.
    #[track_caller]
    fn failed(&self) -> &str {
        assert_eq!(self.code, Some(1), "{self:?}");
        assert_eq!(self.said.lines().count(), 1, "{self:?}");
        self.said.strip_prefix("queen: ").unwrap_or_else(|| panic!("{self:?}"))
    }

    #[track_caller]
    fn json(&self) -> Value {
        serde_json::from_str(self.printed()).unwrap()
    }
}

/// A command on its way.
struct Running {
    child: Child,
    input: Option<ChildStdin>,
    out: Receiver<String>,
    said: Receiver<String>,
}

impl Running {
    fn start(url: &str, arguments: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_queen"))
            .args(arguments)
            .env_clear()
            .env("QUEEN_URL", url)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let input = child.stdin.take();
        let out = lines(child.stdout.take().unwrap());
        let said = lines(child.stderr.take().unwrap());
        Self { child, input, out, said }
    }

    fn write(&mut self, text: &str) {
        self.input.as_mut().unwrap().write_all(text.as_bytes()).unwrap();
    }

    /// The next line of standard output.
    #[track_caller]
    fn line(&self) -> String {
        self.out.recv_timeout(LIMIT).unwrap()
    }

    /// The next line of standard error.
    #[track_caller]
    fn remark(&self) -> String {
        self.said.recv_timeout(LIMIT).unwrap()
    }

    /// The rest, when it has ended by itself.
    fn end(mut self) -> (ExitStatus, Vec<String>) {
        drop(self.input.take());
        let out = self.out.iter().collect();
        (self.child.wait().unwrap(), out)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It has ended already when the test went well.
        let _ended = self.child.kill();
        let _ended = self.child.wait();
    }
}

fn lines(input: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, lines) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(input).lines() {
            drop(sender.send(line.unwrap()));
        }
    });
    lines
}

/// Runs a command to its end.
fn run(url: &str, arguments: &[&str], input: &[u8]) -> Done {
    run_with(&[("QUEEN_URL", url)], arguments, input)
}

fn run_with(variables: &[(&str, &str)], arguments: &[&str], input: &[u8]) -> Done {
    let mut child = Command::new(env!("CARGO_BIN_EXE_queen"))
        .args(arguments)
        .env_clear()
        .envs(variables.iter().copied())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut stdin, input) = (child.stdin.take().unwrap(), input.to_vec());
    let writer = std::thread::spawn(move || {
        // It may end before it has read everything.
        stdin.write_all(&input).unwrap_or_default();
    });
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Done { code: output.status.code(), out: text(output.stdout), said: text(output.stderr) }
}

/// A fresh node.
struct Fresh {
    node: Program,
    _dir: tempfile::TempDir,
}

impl Fresh {
    fn new(variables: &[(&str, &str)]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self { node: Program::start(dir.path(), variables).unwrap(), _dir: dir }
    }

    fn url(&self) -> String {
        format!("http://{}", self.node.address())
    }

    fn run(&self, arguments: &[&str]) -> Done {
        run(&self.url(), arguments, b"")
    }

    /// Pushes payloads as they are.
    fn push(&self, queue: &str, partition: &str, payloads: &[&str]) {
        let items: Vec<String> = payloads
            .iter()
            .map(|payload| {
                format!(
                    r#"{{"queue":{},"partition":{},"payload":{payload}}}"#,
                    q(queue),
                    q(partition)
                )
            })
            .collect();
        self.node.ask("POST", "/api/v1/push", &format!(r#"{{"items":[{}]}}"#, items.join(",")));
    }

    /// Pushes a message and makes a dead letter of it.
    fn kill_message(&self, queue: &str, id: &str, payload: &str) {
        let options = format!(r#"{{"queue":{},"options":{{"retryLimit":0}}}}"#, q(queue));
        self.node.ask("POST", "/api/v1/configure", &options);
        let item = format!(
            r#"{{"items":[{{"queue":{},"transactionId":{},"payload":{payload}}}]}}"#,
            q(queue),
            q(id)
        );
        self.node.ask("POST", "/api/v1/push", &item);
        let path = format!("/api/v1/pop/queue/{queue}?consumerGroup=g&subscriptionMode=all");
        let popped: Value = serde_json::from_str(&self.node.ask("GET", &path, "")).unwrap();
        let message = &popped["messages"][0];
        let ack = serde_json::json!({"transactionId": id, "partitionId": message["partitionId"],
            "leaseId": message["leaseId"], "consumerGroup": "g", "status": "failed",
            "error": "bad \u{1b}[31mluck"});
        assert!(self.node.ask("POST", "/api/v1/ack", &ack.to_string()).contains(r#""dlq":true"#));
    }
}

/// A text as JSON.
fn q(text: &str) -> String {
    serde_json::to_string(text).unwrap()
}

/// The cells of a table's line.
fn cells(line: &str) -> Vec<&str> {
    line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect()
}
