//! `queen tail`: messages as they are pushed. No cursor moves, no group notices.
//!
//! ```text
//!   start: every partition and where to begin -> loop: which got messages since -> fetch those -> wait in a fetch
//! ```
//!
//! `partitions/changed` tells which partitions have messages behind the place that was read, new ones among them;
//! `fetch` reads them, and its long poll is the wait. With one partition the long poll alone does it.

mod follow;
mod read;
mod wire;

use super::failure::Failure;
use super::node::{Connection, Node};
use follow::Follow;

/// What to follow, and from where.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  queen tail orders
  queen tail orders --partition customer-42 --from start --count 10
  queen tail orders --from 2026-10-02T09:14:00Z --json

A line per message: partition, offset, transactionId, payload, with tabs between them; in order per partition, each once.
With --json one document per message: the API's row and its partition. It ends after --count messages, or with
Ctrl-C, and goes on when the node restarts. No consumer group is touched.")]
pub(crate) struct Args {
    /// The queue; it has to be there.
    #[arg(value_parser = clap::builder::NonEmptyStringValueParser::new())]
    queue: String,
    /// Only this partition; it may come later.
    #[arg(long, value_parser = clap::builder::NonEmptyStringValueParser::new())]
    partition: Option<String>,
    /// Where to begin: start (what is retained), end, or a time, in UTC unless it names another zone.
    #[arg(long, value_name = "start|end|TIME", default_value = "end")]
    from: From,
    /// Messages, then it ends.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Print the API's rows, one JSON document per line.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connection: Connection,
}

/// Where to begin.
#[derive(Clone, Debug, PartialEq, Eq)]
enum From {
    Start,
    End,
    /// A time in the API's form; the node reads it.
    Time(String),
}

impl std::str::FromStr for From {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "start" => Ok(Self::Start),
            "end" => Ok(Self::End),
            // A date begins like this; the node says whether the rest is right.
            _ if text.split('-').count() >= 3 && text.starts_with(|c: char| c.is_ascii_digit()) => {
                Ok(Self::Time(text.to_owned()))
            }
            _ => Err("it is start, end, or a time such as 2026-10-02 or 2026-10-02T09:14:03Z"),
        }
    }
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let node = Node::new(&args.connection)?;
    let mut follow = Follow::new(&node, args);
    follow.start()?;
    while !follow.is_done() {
        follow.step()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tail_begins_at_an_end_or_a_time() {
        assert_eq!("start".parse(), Ok(From::Start));
        assert_eq!("end".parse(), Ok(From::End));
        for time in ["2026-10-02", "2026-10-02T09:14:03.5+02:00"] {
            assert_eq!(time.parse(), Ok(From::Time(time.to_owned())));
        }
        for text in ["", "now", "-5", "10m", "1-2"] {
            assert!(text.parse::<From>().is_err(), "{text}");
        }
    }
}
