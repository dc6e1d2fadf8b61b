//! The command line: no argument starts the broker, everything else teaches.

use std::io::Write;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::config::{Environment, Settings, show};
use crate::{client, examine, logging, node, promote, relayout, restore, start};

const TEACH: &str = r#"Run one:

  QUEEN_RAFT_DIR=./data queen

Push a message, see the queues, take it:

  queen push orders '{"orderId":1}'
  queen queues
  queen pop orders

`queen help push` and so on say more. The same over HTTP, where taking and settling are two calls:

  curl -X POST localhost:6632/api/v1/push \
    -d '{"items":[{"queue":"orders","payload":{"orderId":1}}]}'
  curl 'localhost:6632/api/v1/pop/queue/orders?wait=true&timeout=5000'
  curl -X POST localhost:6632/api/v1/ack \
    -d '{"transactionId":"<transactionId>","partitionId":"<partitionId>","leaseId":"<leaseId>"}'

Look after it:

  curl localhost:6632/health
  curl localhost:6632/metrics/prometheus

Settings are environment variables, read once at start. Those that matter first:

  PORT                       HTTP port (6632)
  QUEEN_BIND_ADDR            address to listen on (0.0.0.0); 127.0.0.1 for this machine only
  QUEEN_RAFT_DIR             data directory (/var/lib/queen/raft)
  QUEEN_QLOG_SHARDS          shared logs instead of one per queue; chosen when the directory is made
  JWT_ENABLED, JWT_SECRET    ask callers for a token; without, everybody may do everything
  LOG_LEVEL, QUEEN_LOG_JSON  what is logged, and how; to standard error

`queen config` lists all of them with the values that a start would use now.

The directory belongs to one running broker and holds everything: queue logs in qlog/, the store in
store/. `queen backup --to FILE.tar` copies it while the broker runs, `queen restore` makes a
directory of that; any other copy only while it is stopped. `queen doctor DIR` examines it then, and changes
nothing; `queen log dump FILE` and `queen store dump DIR` show what is in it. `queen relayout` makes a
second directory of it with another number of shared logs, `queen promote-dir` makes a cluster of it. SIGTERM or SIGINT stops: allow a minute. Exit code 0 is a
requested stop, 1 a refused start, or the stop of a node that had failed before; one FATAL line says
why."#;

/// A message broker in one process: queues with partitions, consumer groups, leases and dead letters, over HTTP.
#[derive(Debug, Parser)]
#[command(name = "queen", version, after_help = TEACH)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Print every setting with its effective value, default, unit and meaning.
    Config {
        /// Print the reference page (docs/config.md) instead: defaults, no values.
        #[arg(long)]
        markdown: bool,
    },
    /// Print the description of the HTTP API, as the running broker has it at /api/v1/openapi.json.
    Api {
        /// Print the reference page (docs/http.md) instead.
        #[arg(long)]
        markdown: bool,
    },
    #[command(flatten)]
    Client(client::Command),
    /// Make a data directory of a backup, and examine it.
    Restore(restore::Args),
    /// Make a data directory of another one that is at rest, with its queues spread over another number of logs.
    Relayout(relayout::Args),
    /// Make the data directory of a node alone that of a cluster of one, to which others are then added.
    PromoteDir(promote::Args),
    #[command(flatten)]
    Examine(examine::Command),
}

/// Does what the command line says; an error is the text of the FATAL line.
pub(crate) fn run() -> anyhow::Result<ExitCode> {
    match Cli::parse().command {
        Some(Command::Client(command)) => return Ok(client::run(&command)),
        Some(Command::Examine(command)) => return Ok(examine::run(&command)),
        Some(Command::Restore(args)) => return Ok(restore::run(&args)),
        Some(Command::PromoteDir(args)) => return Ok(promote::run(&args)),
        Some(Command::Relayout(args)) => return Ok(relayout::run(&args)),
        None => {
            let environment = Environment::of_process();
            let settings = Settings::read(&environment)?;
            logging::start(&settings)?;
            return start::run(&settings, &environment, node::open);
        }
        Some(Command::Api { markdown: true }) => print(&queen_http::api_markdown())?,
        Some(Command::Api { markdown: false }) => print(&queen_http::api_document())?,
        Some(Command::Config { markdown: true }) => print(&show::markdown())?,
        Some(Command::Config { markdown: false }) => {
            print(&show::table(&Settings::read(&Environment::of_process())?))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn print(text: &str) -> anyhow::Result<()> {
    match std::io::stdout().write_all(text.as_bytes()) {
        // The reader has seen enough.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        result => Ok(result?),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
        assert!(Cli::try_parse_from(["queen"]).unwrap().command.is_none());
        assert!(Cli::try_parse_from(["queen", "config", "--markdown"]).is_ok());
        assert!(Cli::try_parse_from(["queen", "start"]).is_err());
        assert!(Cli::try_parse_from(["queen", "push", "q", "-1", "--id", "x"]).is_ok());
        assert!(Cli::try_parse_from(["queen", "push", "q", "--id", "x"]).is_err());
        assert!(Cli::try_parse_from(["queen", "dlq", "--url", "x", "purge", "q"]).is_ok());
        assert!(Cli::try_parse_from(["queen", "pop", "q", "--from", "start"]).is_err());
        let relayout = |shards: &str| {
            Cli::try_parse_from([
                "queen", "relayout", "--from", "a", "--to", "b", "--shards", shards,
            ])
        };
        assert!(relayout("0").is_ok() && relayout("4096").is_ok() && relayout("4097").is_err());
    }
}
