//! `queen push`: one message, or one per line of standard input.
//!
//! Every message has its transactionId before the first try, so a batch that is sent again stores nothing twice.

mod tally;

use std::io::{self, IsTerminal};

use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};
use uuid::Uuid;

use super::failure::Failure;
use super::lines::{Line, Lines};
use super::node::{Call, Connection, Node};
use super::output::Output;
use super::{note, retry};
use tally::{Answer, Progress, Tally};

/// Messages of one request.
const BATCH: usize = 100;
/// What a node takes as one request, less what stands around a payload.
const PAYLOAD_BYTES_MAX: usize = 63 * 1024 * 1024;

/// What to push, and where.
#[derive(Debug, clap::Args)]
#[command(after_help = r#"Examples:
  queen push orders '{"orderId":1}'
  queen push orders '{"orderId":1}' --partition customer-42 --id order-1-paid
  queen push orders < orders.jsonl
  tail -F app.log | queen push logs --text

The queue and the partition come into being with the first message. With --id the message is stored once, however
often this is repeated, within the queue's dedupWindowSeconds (an hour unless configured). Lines go out in batches of 100,
or fewer when the input is slower. A node that is busy or restarts is asked again for two minutes with the same ids; a
message that an earlier try had stored then counts as a duplicate. The exit code is 0 when every message is in the
queue."#)]
pub(crate) struct Args {
    /// The queue.
    #[arg(value_parser = clap::builder::NonEmptyStringValueParser::new())]
    queue: String,
    /// One JSON document; without it, standard input is read: one document per line, empty lines aside.
    #[arg(allow_hyphen_values = true)]
    payload: Option<String>,
    /// The partition; `Default` without it.
    #[arg(long, value_parser = clap::builder::NonEmptyStringValueParser::new())]
    partition: Option<String>,
    /// The message's transactionId: the partition stores each of them once.
    #[arg(long, value_name = "TRANSACTION_ID", requires = "payload",
        value_parser = clap::builder::NonEmptyStringValueParser::new())]
    id: Option<String>,
    /// The payload, or every line, is a text and no JSON: it is pushed as a JSON string.
    #[arg(long)]
    text: bool,
    #[command(flatten)]
    connection: Connection,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let node = Node::new(&args.connection)?;
    let mut push = Push { node: &node, args, tally: Tally::default(), progress: Progress::new() };
    let pushed = match &args.payload {
        Some(payload) => push.one(payload),
        None => push.lines(),
    };
    push.progress.end();
    let Tally { pushed: count, duplicates, .. } = push.tally;
    // A bad argument has sent nothing and has nothing to count.
    if args.payload.is_none() || pushed.is_ok() {
        let mut output = Output::new();
        output.line(&format!("pushed {count}, duplicates {duplicates}"))?;
        output.flush()?;
    }
    match (pushed, push.tally.refusals()) {
        (Err(error), Err(Failure::Said(refusals))) => {
            note(&refusals);
            Err(error)
        }
        (pushed, refusals) => pushed.and(refusals),
    }
}

/// A message on its way.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Item<'a> {
    queue: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    partition: Option<&'a str>,
    transaction_id: String,
    payload: Box<RawValue>,
}

#[derive(Debug, Serialize)]
struct Body<'a> {
    items: &'a [Item<'a>],
}

/// A push on its way through its input.
struct Push<'a> {
    node: &'a Node,
    args: &'a Args,
    tally: Tally,
    progress: Progress,
}

impl<'a> Push<'a> {
    fn one(&mut self, payload: &str) -> Result<(), Failure> {
        let payload = document(payload, self.args.text).map_err(|reason| {
            Failure::said(format!("the payload is no JSON ({reason}): --text pushes it as a text"))
        })?;
        let item = self.item(payload, self.args.id.clone());
        self.send(&[item], 1)
    }

    fn lines(&mut self) -> Result<(), Failure> {
        let input = io::stdin().lock();
        if input.is_terminal() {
            note("reading messages from the terminal, one per line; Ctrl-D ends");
        }
        let mut lines = Lines::new(input, PAYLOAD_BYTES_MAX);
        loop {
            let (batch, end) = lines.batch(BATCH);
            let is_last = batch.is_empty();
            self.batch(&batch)?;
            match end {
                Some(error) => return Err(Failure::said(format!("{error}: it was not pushed"))),
                None if is_last => return Ok(()),
                None => {}
            }
        }
    }

    /// Sends the lines of a batch up to the first bad one.
    fn batch(&mut self, lines: &[Line]) -> Result<(), Failure> {
        let (mut items, mut bad) = (Vec::with_capacity(lines.len()), None);
        let is_text = self.args.text;
        for line in lines.iter().filter(|line| is_text || !line.text.trim().is_empty()) {
            match document(&line.text, is_text) {
                Ok(payload) => items.push(self.item(payload, None)),
                Err(reason) => {
                    bad = Some(format!(
                        "line {} is no JSON ({reason}): it and what follows was not pushed; --text takes every line as a text",
                        line.number
                    ));
                    break;
                }
            }
        }
        let first = lines.first().map_or(0, |line| line.number);
        if !items.is_empty() {
            self.send(&items, first)?;
        }
        bad.map_or(Ok(()), |text| Err(Failure::Said(text)))
    }

    fn item(&self, payload: Box<RawValue>, id: Option<String>) -> Item<'a> {
        Item {
            queue: &self.args.queue,
            partition: self.args.partition.as_deref(),
            transaction_id: id.unwrap_or_else(|| Uuid::now_v7().to_string()),
            payload,
        }
    }

    /// Sends items, the first of which is this line.
    fn send(&mut self, items: &[Item<'_>], first: u64) -> Result<(), Failure> {
        let call = Call::post(&["api", "v1", "push"], &Body { items })?;
        let reply = retry::patiently(|| self.node.call(&call)).map_err(|error| {
            let from = if self.args.payload.is_some() {
                String::new()
            } else {
                format!("; the lines from {first} on may not be in the queue")
            };
            Failure::said(format!("{}{from}", error.text))
        })?;
        let answers: Vec<Answer> = reply.read()?;
        if answers.len() != items.len() {
            return Err(Failure::said(format!(
                "{} answers came for {} messages: this is no queen node",
                answers.len(),
                items.len()
            )));
        }
        self.tally.count(answers);
        self.progress.show(&self.tally);
        Ok(())
    }
}

/// The payload that a line or an argument stands for; the error is what is wrong with it.
fn document(text: &str, is_text: bool) -> Result<Box<RawValue>, String> {
    let made =
        if is_text { to_raw_value(text) } else { RawValue::from_string(text.trim().to_owned()) };
    made.map_err(|error| match error.column() {
        0 => error.to_string(),
        // It is always line 1 for the parser, which would contradict the line of the input.
        column => {
            let text = error.to_string();
            let reason = text.split(" at line ").next().unwrap_or_default();
            format!("{reason} at column {column}")
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_is_json_as_it_stands_or_a_text() {
        let check = |given, is_text, expected: &str| {
            assert_eq!(document(given, is_text).unwrap().get(), expected);
        };
        check(" {\"a\" : 1e400}\r", false, "{\"a\" : 1e400}");
        check("null", false, "null");
        check(" a\t\"b\"", true, r#"" a\t\"b\"""#);
        check("", true, r#""""#);
        assert_eq!(
            document("{\"a\":", false).unwrap_err(),
            "EOF while parsing a value at column 5"
        );
        assert_eq!(document("1 2", false).unwrap_err(), "trailing characters at column 3");
    }
}
