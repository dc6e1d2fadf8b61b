//! The command line for people: what it asks of a running node goes over HTTP, as any client's calls do.
//!
//! ```text
//!   push, pop, tail, queues, groups, dlq, backup   one file each: its arguments, what it asks, what it prints
//!   node    calls and their failures        retry   what is asked again
//!   output  standard output                 table   aligned columns       escape   nothing drives a terminal
//! ```
//!
//! Rows and messages go to standard output, everything else to standard error.

pub(crate) mod backup;
mod dlq;
pub(crate) mod escape;
pub(crate) mod failure;
mod groups;
mod lines;
mod node;
pub(crate) mod output;
mod pop;
mod push;
mod queues;
mod retry;
pub(crate) mod table;
mod tail;

use std::io::Write;
use std::process::ExitCode;

use clap::Subcommand;

use failure::Failure;

/// What is done with a running node.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Push messages: one from the command line, or one per line of standard input.
    Push(push::Args),
    /// Take messages, print them and settle them.
    Pop(pop::Args),
    /// Print messages as they are pushed, without taking them from anybody.
    Tail(tail::Args),
    /// Show the queues, or the partitions of one.
    Queues(queues::Args),
    /// Show the consumer groups and how far behind they are, or one group by partition.
    Groups(groups::Args),
    /// Copy everything that a running node holds, with no pause.
    Backup(backup::Args),
    /// Show dead letters; push one again; delete them.
    Dlq(dlq::Args),
}

/// Does it; a failure is one line on standard error.
pub(crate) fn run(command: &Command) -> ExitCode {
    let done = match command {
        Command::Push(args) => push::run(args),
        Command::Pop(args) => pop::run(args),
        Command::Tail(args) => tail::run(args),
        Command::Queues(args) => queues::run(args),
        Command::Groups(args) => groups::run(args),
        Command::Backup(args) => backup::run(args),
        Command::Dlq(args) => dlq::run(args),
    };
    ended(done.map(|()| ExitCode::SUCCESS))
}

/// The exit code of a command; a failure is said.
pub(crate) fn ended(done: Result<ExitCode, Failure>) -> ExitCode {
    match done {
        Ok(code) => code,
        // The reader of standard output has seen enough.
        Err(Failure::ReaderGone) => ExitCode::SUCCESS,
        Err(Failure::Said(text)) => {
            note(&text);
            ExitCode::FAILURE
        }
    }
}

/// One line on standard error.
pub(crate) fn note(text: &str) {
    let line = format!("queen: {}\n", escape::text(text));
    // Nobody reads standard error: then there is nobody to tell.
    std::io::stderr().write_all(line.as_bytes()).unwrap_or_default();
}

/// A number of things: `1 message`, `2 messages`.
pub(crate) fn counted(count: u64, thing: &str) -> String {
    if count == 1 { format!("1 {thing}") } else { format!("{count} {thing}s") }
}
