//! `queen groups`: the consumer groups and how far behind they are, or one by partition.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::failure::Failure;
use super::node::{Call, Connection, Node};
use super::output::Output;
use super::table::{Column, Table, or_dash};

const GROUPS: &[Column] = &[
    Column::Text("GROUP"),
    Column::Text("QUEUE"),
    Column::Text("STATE"),
    Column::Number("LAG"),
    Column::Number("SECONDS"),
    Column::Number("PARTITIONS"),
    Column::Number("LAGGING"),
    Column::Text("MODE"),
];

const CURSORS: &[Column] = &[
    Column::Text("QUEUE"),
    Column::Text("PARTITION"),
    Column::Number("CONSUMED"),
    Column::Number("LAG"),
    Column::Number("SECONDS"),
    Column::Text("LEASED"),
];

/// Which.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  queen groups
  queen groups billing
  queen groups --json | jq '.[] | select(.totalLag > 1000)'

LAG counts messages that the group has yet to settle, SECONDS is the age of the oldest of them. A group appears with its
first pop; __QUEUE_MODE__ is the one of pops that name no group.")]
pub(crate) struct Args {
    /// Show this group by partition.
    #[arg(value_parser = clap::builder::NonEmptyStringValueParser::new())]
    group: Option<String>,
    /// Print the API's rows as a JSON array; a group's own with the queue in each row.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connection: Connection,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Group<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow)]
    queue_name: Cow<'a, str>,
    #[serde(borrow)]
    state: Cow<'a, str>,
    total_lag: i64,
    max_time_lag: i64,
    partition_cursors: i64,
    partitions_with_lag: i64,
    #[serde(borrow)]
    subscription_mode: Option<Cow<'a, str>>,
}

/// A group's place in one partition.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct Cursor<'a> {
    #[serde(borrow)]
    partition: Cow<'a, str>,
    #[serde(borrow)]
    worker_id: Option<Cow<'a, str>>,
    #[serde(borrow)]
    last_consumed_at: Option<Cow<'a, str>>,
    total_consumed: i64,
    offset_lag: i64,
    time_lag_seconds: i64,
    lease_active: bool,
}

/// One with the name that the API has it under.
#[derive(Debug, Serialize)]
struct Row<'a> {
    queue: &'a str,
    #[serde(flatten)]
    cursor: &'a Cursor<'a>,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let node = Node::new(&args.connection)?;
    let mut output = Output::new();
    match args.group.as_deref() {
        None => groups(args, &node, &mut output)?,
        Some(group) => cursors(args, &node, group, &mut output)?,
    }
    output.flush()
}

fn groups(args: &Args, node: &Node, output: &mut Output) -> Result<(), Failure> {
    let reply = node.call(&Call::get(&["api", "v1", "consumer-groups"]))?;
    if args.json {
        return output.json(reply.read()?);
    }
    let mut rows: Vec<Group<'_>> = reply.read()?;
    rows.sort_by(|a, b| (&a.name, &a.queue_name).cmp(&(&b.name, &b.queue_name)));
    let mut table = Table::new(GROUPS);
    for row in &rows {
        let mode = or_dash(row.subscription_mode.as_ref());
        table.row(&[
            &row.name,
            &row.queue_name,
            &row.state,
            &row.total_lag,
            &row.max_time_lag,
            &row.partition_cursors,
            &row.partitions_with_lag,
            &mode,
        ]);
    }
    output.table(&table, "no groups")
}

fn cursors(args: &Args, node: &Node, group: &str, output: &mut Output) -> Result<(), Failure> {
    #[derive(Deserialize)]
    struct OnQueue<'a> {
        #[serde(borrow)]
        partitions: Vec<Cursor<'a>>,
    }
    let reply = node.call(&Call::get(&["api", "v1", "consumer-groups", group]));
    let reply = reply.map_err(|error| {
        if error.is_missing() {
            Failure::said(format!("there is no group {group}: `queen groups` lists them"))
        } else {
            error.into()
        }
    })?;
    let queues: BTreeMap<String, OnQueue<'_>> = reply.read()?;
    let rows = queues
        .iter()
        .flat_map(|(queue, on)| on.partitions.iter().map(move |cursor| Row { queue, cursor }));
    let rows: Vec<Row<'_>> = rows.collect();
    if args.json {
        return output.json_of(&rows);
    }
    let mut table = Table::new(CURSORS);
    for Row { queue, cursor } in &rows {
        let leased = if cursor.lease_active { "yes" } else { "no" };
        table.row(&[
            queue,
            &cursor.partition,
            &cursor.total_consumed,
            &cursor.offset_lag,
            &cursor.time_lag_seconds,
            &leased,
        ]);
    }
    output.table(&table, "no partitions")
}
