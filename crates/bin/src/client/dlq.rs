//! `queen dlq`: dead letters, one pushed again, or all of a queue deleted.

use std::borrow::Cow;

use clap::Subcommand;
use clap::builder::NonEmptyStringValueParser;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::failure::Failure;
use super::node::{Call, Connection, Node};
use super::output::Output;
use super::table::{Column, Table};
use super::{counted, note};

const LETTERS: &[Column] = &[
    Column::Text("ID"),
    Column::Text("FAILED"),
    Column::Text("QUEUE"),
    Column::Text("PARTITION"),
    Column::Text("GROUP"),
    Column::Number("OFFSET"),
    Column::Number("RETRIES"),
    Column::Text("TRANSACTION"),
    Column::Text("ERROR"),
];

/// List, replay or purge.
#[derive(Debug, clap::Args)]
#[command(
    disable_help_subcommand = true,
    after_help = "Examples:
  queen dlq orders --group billing
  queen dlq orders --json | jq -c '.[].payload'
  queen dlq replay 01a0fcc5-7656-7000-8144-b8981abf548a
  queen dlq purge orders --yes

The newest failure is on top. Payloads are in --json only. The dead letters of a queue that is called replay or purge:
queen dlq -- replay."
)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Option<Action>,
    #[command(flatten)]
    list: List,
    #[command(flatten)]
    connection: Connection,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Push a copy of a dead letter to the end of a partition, and remove the letter.
    Replay(Replay),
    /// Delete the dead letters of a queue, or of one group on it.
    Purge(Purge),
}

#[derive(Debug, clap::Args)]
struct List {
    /// Only of this queue.
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    queue: Option<String>,
    /// Only of this consumer group.
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    group: Option<String>,
    /// Rows at most.
    #[arg(long, value_name = "N", default_value_t = 100,
        value_parser = clap::value_parser!(u32).range(1..=1000))]
    limit: u32,
    /// Print the API's rows as a JSON array.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
struct Replay {
    /// The dead letter, as `queen dlq` shows it.
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    id: String,
    /// Send it to this queue instead of its own.
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    queue: Option<String>,
    /// Send it to this partition instead of its own.
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    partition: Option<String>,
}

#[derive(Debug, clap::Args)]
struct Purge {
    /// The queue.
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    queue: String,
    /// Only those of this consumer group.
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    group: Option<String>,
    /// Do it; without this it says how many there are.
    #[arg(long)]
    yes: bool,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let node = Node::new(&args.connection)?;
    let List { queue, group, json, .. } = &args.list;
    match &args.action {
        None => list(&args.list, &node),
        Some(_) if queue.is_some() || group.is_some() || *json => Err(Failure::said(
            "what belongs to replay or purge stands behind it: see `queen dlq --help`",
        )),
        Some(Action::Replay(args)) => replay(args, &node),
        Some(Action::Purge(args)) => purge(args, &node),
    }
}

/// A page of dead letters.
#[derive(Debug, Deserialize)]
struct Page<'a> {
    #[serde(borrow)]
    messages: &'a RawValue,
    total: u64,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Letter<'a> {
    #[serde(borrow)]
    id: Cow<'a, str>,
    #[serde(borrow)]
    failed_at: Cow<'a, str>,
    #[serde(borrow)]
    queue: Cow<'a, str>,
    #[serde(borrow)]
    partition: Cow<'a, str>,
    #[serde(borrow)]
    consumer_group: Cow<'a, str>,
    offset: i64,
    retry_count: u64,
    #[serde(borrow)]
    transaction_id: Cow<'a, str>,
    #[serde(borrow)]
    error_message: Cow<'a, str>,
}

fn page_of(queue: Option<&str>, group: Option<&str>, limit: u32) -> Call {
    let call = Call::get(&["api", "v1", "dlq"]);
    call.query_some("queue", queue).query_some("consumerGroup", group).query("limit", limit)
}

fn list(args: &List, node: &Node) -> Result<(), Failure> {
    let call = page_of(args.queue.as_deref(), args.group.as_deref(), args.limit);
    let reply = node.call(&call)?;
    let page: Page<'_> = reply.read()?;
    let rows: Vec<Letter<'_>> = reply.part(page.messages)?;
    let mut output = Output::new();
    if args.json {
        output.json(page.messages)?;
    } else {
        let mut table = Table::new(LETTERS);
        for row in &rows {
            table.row(&[
                &row.id,
                &row.failed_at,
                &row.queue,
                &row.partition,
                &row.consumer_group,
                &row.offset,
                &row.retry_count,
                &row.transaction_id,
                &row.error_message,
            ]);
        }
        output.table(&table, "no dead letters")?;
    }
    output.flush()?;
    let (shown, total) = (rows.len(), page.total);
    if u64::try_from(shown).is_ok_and(|shown| shown < total) {
        note(&format!("{shown} of {total} shown; --limit shows up to 1000"));
    }
    Ok(())
}

fn replay(args: &Replay, node: &Node) -> Result<(), Failure> {
    #[derive(Debug, Serialize)]
    struct To<'a> {
        queue: Option<&'a str>,
        partition: Option<&'a str>,
    }
    #[derive(Debug, Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Answer {
        result: String,
        queue: String,
        partition: String,
        replayed_as: Copy,
    }
    #[derive(Debug, Deserialize)]
    struct Copy {
        transaction_id: String,
        offset: u64,
    }
    let to = To { queue: args.queue.as_deref(), partition: args.partition.as_deref() };
    let call = Call::post(&["api", "v1", "dlq", &args.id, "replay"], &to)?;
    let reply = node.call(&call).map_err(|error| {
        if error.is_missing() {
            let id = &args.id;
            Failure::said(format!("there is no dead letter {id}: `queen dlq` lists them"))
        } else {
            error.into()
        }
    })?;
    let Answer { result, queue, partition, replayed_as } = reply.read()?;
    let Copy { transaction_id, offset } = replayed_as;
    let place = format!("queue {queue}, partition {partition}, offset {offset}");
    if result != "moved" {
        return Err(Failure::said(format!(
            "a copy lies there already ({place}), so none was made and the dead letter was kept"
        )));
    }
    let mut output = Output::new();
    let line = format!("replayed to {place}, transactionId {transaction_id}");
    output.line(&super::escape::text(&line))?;
    output.flush()
}

fn purge(args: &Purge, node: &Node) -> Result<(), Failure> {
    #[derive(Debug, Deserialize)]
    struct Answer {
        deleted: u64,
    }
    let (queue, group) = (&*args.queue, args.group.as_deref());
    if !args.yes {
        let reply = node.call(&page_of(Some(queue), group, 1))?;
        let total = reply.read::<Page<'_>>()?.total;
        let of = group.map_or_else(String::new, |group| format!(" of group {group}"));
        return Err(Failure::said(format!(
            "{} of queue {queue}{of} would be deleted for good: --yes does it",
            counted(total, "dead letter")
        )));
    }
    let call = Call::delete(&["api", "v1", "dlq"]).query("queue", queue);
    let reply = node.call(&call.query_some("consumerGroup", group))?;
    let mut output = Output::new();
    output.line(&format!("deleted {}", reply.read::<Answer>()?.deleted))?;
    output.flush()
}
