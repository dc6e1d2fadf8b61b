//! `queen pop`: takes messages, prints them, settles them.
//!
//! They are settled after they were printed: what could not be printed comes again when its lease runs out.

use std::borrow::Cow;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::failure::Failure;
use super::node::{Call, Connection, Node, Reply};
use super::output::{Message, Output};
use super::{counted, note, retry};

/// One long poll; a longer wait is several.
const POLL_MAX: Duration = Duration::from_secs(30);
/// What one pop may take from at most, by the API.
const PARTITIONS_MAX: u32 = 64;

/// What to take, and for whom.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  queen pop orders
  queen pop orders --group billing --batch 100 --wait 60
  queen pop orders --keep --json

A line per message: partition, offset, transactionId, payload, with tabs between them. Popped messages are done for the
group, as if a worker had processed them; to look without taking, use `queen tail` or --keep. A group that the queue has
not met starts at what is pushed from then on; with --from start, at its oldest message.")]
pub(crate) struct Args {
    /// The queue.
    #[arg(value_parser = clap::builder::NonEmptyStringValueParser::new())]
    queue: String,
    /// The consumer group; without it, the queue's own.
    #[arg(long, value_parser = clap::builder::NonEmptyStringValueParser::new())]
    group: Option<String>,
    /// Only this partition.
    #[arg(long, value_parser = clap::builder::NonEmptyStringValueParser::new())]
    partition: Option<String>,
    /// Messages at most.
    #[arg(long, value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=10_000))]
    batch: u32,
    /// Seconds to wait for a message when there is none.
    #[arg(long, value_name = "SECONDS", default_value_t = 0,
        value_parser = clap::value_parser!(u32).range(..=604_800))]
    wait: u32,
    /// Leave them leased: they come again when the lease runs out.
    #[arg(long)]
    keep: bool,
    /// Where a group starts that the queue has not met.
    #[arg(long, value_enum, requires = "group")]
    from: Option<Origin>,
    /// Print the API's rows, one JSON document per line.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connection: Connection,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Origin {
    Start,
    End,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let node = Node::new(&args.connection)?;
    let until = Instant::now() + Duration::from_secs(args.wait.into());
    loop {
        let wait = until.saturating_duration_since(Instant::now()).min(POLL_MAX);
        let call = call(args, wait);
        let reply = retry::patiently(|| node.call(&call))?;
        let messages = messages(&reply)?;
        if !messages.is_empty() {
            print(args, &messages)?;
            return if args.keep { Ok(()) } else { settle(args, &node, &messages) };
        }
        if Instant::now() >= until {
            note(match args {
                Args { group: Some(_), from: None, .. } => {
                    "no messages: none are there, or other consumers of the group hold them; a new group starts at what comes from now on, or with --from start at the oldest message"
                }
                _ => "no messages",
            });
            return Ok(());
        }
    }
}

fn call(args: &Args, wait: Duration) -> Call {
    let queue = &*args.queue;
    let call = match args.partition.as_deref() {
        Some(partition) => Call::get(&["api", "v1", "pop", "queue", queue, "partition", partition]),
        None => Call::get(&["api", "v1", "pop", "queue", queue])
            .query("partitions", args.batch.min(PARTITIONS_MAX)),
    };
    let mode = args.from.map(|from| match from {
        Origin::Start => "all",
        Origin::End => "new",
    });
    call.query("batch", args.batch)
        .query("wait", !wait.is_zero())
        .query("timeout", wait.as_millis().max(1))
        .query_some("consumerGroup", args.group.as_deref())
        .query_some("subscriptionMode", mode)
        .waiting(wait)
}

/// A popped message and the row it came as.
#[derive(Debug)]
struct Popped<'a> {
    row: &'a RawValue,
    fields: Fields<'a>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Fields<'a> {
    #[serde(borrow)]
    transaction_id: Cow<'a, str>,
    #[serde(borrow)]
    partition: Cow<'a, str>,
    #[serde(borrow)]
    partition_id: Cow<'a, str>,
    #[serde(borrow)]
    lease_id: Cow<'a, str>,
    offset: u64,
    #[serde(borrow)]
    data: &'a RawValue,
}

fn messages<'a>(reply: &'a Reply) -> Result<Vec<Popped<'a>>, Failure> {
    #[derive(Deserialize)]
    struct Answer<'a> {
        #[serde(borrow)]
        messages: Vec<&'a RawValue>,
    }
    // 204: nothing.
    if reply.is_empty() {
        return Ok(Vec::new());
    }
    let answer: Answer<'_> = reply.read()?;
    let fields = |row: &'a RawValue| Ok(Popped { row, fields: reply.part(row)? });
    answer.messages.into_iter().map(fields).collect()
}

fn print(args: &Args, messages: &[Popped<'_>]) -> Result<(), Failure> {
    let mut output = Output::new();
    for Popped { row, fields } in messages {
        if args.json {
            output.json(row)?;
        } else {
            output.message(&Message {
                partition: &fields.partition,
                offset: fields.offset,
                transaction_id: &fields.transaction_id,
                payload: fields.data,
            })?;
        }
    }
    output.flush()
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Acks<'a> {
    acknowledgments: Vec<Ack<'a>>,
    consumer_group: Option<&'a str>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Ack<'a> {
    transaction_id: &'a str,
    partition_id: &'a str,
    lease_id: &'a str,
    status: &'static str,
}

/// Settles them as completed.
fn settle(args: &Args, node: &Node, messages: &[Popped<'_>]) -> Result<(), Failure> {
    #[derive(Deserialize)]
    struct Settled {
        success: bool,
        error: Option<String>,
    }
    let acks = messages.iter().map(|Popped { fields, .. }| Ack {
        transaction_id: &fields.transaction_id,
        partition_id: &fields.partition_id,
        lease_id: &fields.lease_id,
        status: "completed",
    });
    let acks = Acks { acknowledgments: acks.collect(), consumer_group: args.group.as_deref() };
    let call = Call::post(&["api", "v1", "ack", "batch"], &acks)?;
    let again = "printed but not settled, so they come again";
    let reply = retry::patiently(|| node.call(&call));
    let reply = reply.map_err(|error| Failure::said(format!("{}: {again}", error.text)))?;
    let settled: Vec<Settled> = reply.read()?;
    let mut failed = settled.into_iter().filter(|settled| !settled.success);
    match failed.next() {
        None => Ok(()),
        Some(first) => {
            let count = u64::try_from(failed.count()).unwrap_or(u64::MAX).saturating_add(1);
            let reason = first.error.unwrap_or_default();
            Err(Failure::said(format!("{} {again}: {reason}", counted(count, "message"))))
        }
    }
}
