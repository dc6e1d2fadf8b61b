//! `queen queues`: the queues, or the partitions of one.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::failure::Failure;
use super::node::{Call, CallError, Connection, Node};
use super::note;
use super::output::Output;
use super::table::{Column, Table, or_dash};

const QUEUES: &[Column] = &[
    Column::Text("QUEUE"),
    Column::Number("PARTITIONS"),
    Column::Number("MESSAGES"),
    Column::Number("PENDING"),
    Column::Number("PROCESSING"),
    Column::Number("COMPLETED"),
    Column::Number("DEAD"),
];

const PARTITIONS: &[Column] = &[
    Column::Text("PARTITION"),
    Column::Number("MESSAGES"),
    Column::Number("PENDING"),
    Column::Number("PROCESSING"),
    Column::Number("COMPLETED"),
    Column::Number("DEAD"),
    Column::Text("NEWEST"),
];

/// Which.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  queen queues
  queen queues orders
  queen queues --json | jq -r '.[] | select(.messages.pending > 1000) | .name'

PENDING is what the group that is furthest behind has yet to take; in a queue's partitions it includes what is being
processed.")]
pub(crate) struct Args {
    /// Show the partitions of this queue.
    #[arg(value_parser = clap::builder::NonEmptyStringValueParser::new())]
    queue: Option<String>,
    /// Print the API's rows as a JSON array.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connection: Connection,
}

/// Numbers of messages.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Counts {
    total: i64,
    pending: i64,
    processing: i64,
    completed: i64,
    dead_letter: i64,
}

#[derive(Debug, Deserialize)]
struct Queue<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    partitions: u64,
    messages: Counts,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Partition<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    messages: Counts,
    #[serde(borrow)]
    newest_message: Option<Cow<'a, str>>,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let node = Node::new(&args.connection)?;
    let mut output = Output::new();
    match args.queue.as_deref() {
        None => queues(args, &node, &mut output)?,
        Some(queue) => partitions(args, &node, queue, &mut output)?,
    }
    output.flush()
}

fn queues(args: &Args, node: &Node, output: &mut Output) -> Result<(), Failure> {
    #[derive(Deserialize)]
    struct Answer<'a> {
        #[serde(borrow)]
        queues: &'a RawValue,
    }
    let reply = node.call(&Call::get(&["api", "v1", "resources", "queues"]))?;
    let answer: Answer<'_> = reply.read()?;
    if args.json {
        return output.json(answer.queues);
    }
    let mut rows: Vec<Queue<'_>> = reply.part(answer.queues)?;
    rows.sort_by(|a, b| a.name.cmp(&b.name));
    let mut table = Table::new(QUEUES);
    for Queue { name, partitions, messages: counts } in &rows {
        let Counts { total, pending, processing, completed, dead_letter } = counts;
        table.row(&[name, partitions, total, pending, processing, completed, dead_letter]);
    }
    output.table(&table, "no queues")
}

fn partitions(args: &Args, node: &Node, queue: &str, output: &mut Output) -> Result<(), Failure> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Answer<'a> {
        #[serde(borrow)]
        partitions: &'a RawValue,
        #[serde(default)]
        partitions_truncated: bool,
    }
    let reply = node.call(&Call::get(&["api", "v1", "resources", "queues", queue]));
    let reply = reply.map_err(|error| missing(error, queue))?;
    let answer: Answer<'_> = reply.read()?;
    if answer.partitions_truncated {
        note("the queue has more partitions than the node shows at once");
    }
    if args.json {
        return output.json(answer.partitions);
    }
    let rows: Vec<Partition<'_>> = reply.part(answer.partitions)?;
    let mut table = Table::new(PARTITIONS);
    for Partition { name, messages: counts, newest_message } in &rows {
        let Counts { total, pending, processing, completed, dead_letter } = counts;
        let newest = or_dash(newest_message.as_ref());
        table.row(&[name, total, pending, processing, completed, dead_letter, &newest]);
    }
    output.table(&table, "no partitions")
}

/// A failure that may be the queue's absence.
pub(super) fn missing(error: CallError, queue: &str) -> Failure {
    if error.is_missing() { no_queue(queue) } else { error.into() }
}

/// There is no such queue.
pub(super) fn no_queue(queue: &str) -> Failure {
    Failure::said(format!(
        "there is no queue {queue}: `queen queues` lists them, and the first push makes one"
    ))
}
