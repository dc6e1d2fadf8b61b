//! Commands on a data directory at rest. None of them writes a byte into it.
//!
//! ```text
//!   doctor   what a start would make of it, and every byte    log   the records of one file    store   the rows
//!   lock     no node may be at work                            lines   fields as text or JSON
//! ```

pub(crate) mod doctor;
mod lines;
pub(crate) mod lock;
mod log;
mod store;

use std::process::ExitCode;

use clap::{Args, Subcommand};

/// What is done with a directory.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Examine a data directory: would a node start, what would it cut or make again, and is every byte right?
    Doctor(doctor::Args),
    /// Look into the queue logs.
    Log(LogArgs),
    /// Look into the store.
    Store(StoreArgs),
}

#[derive(Debug, Args)]
pub(crate) struct LogArgs {
    #[command(subcommand)]
    command: LogCommand,
}

#[derive(Debug, Subcommand)]
enum LogCommand {
    /// Print the records of a file: .qlog, .qidx or .qhsh.
    Dump(log::Args),
}

#[derive(Debug, Args)]
pub(crate) struct StoreArgs {
    #[command(subcommand)]
    command: StoreCommand,
}

#[derive(Debug, Subcommand)]
enum StoreCommand {
    /// Print the rows of the last checkpoint.
    Dump(store::Args),
}

/// Does it.
pub(crate) fn run(command: &Command) -> ExitCode {
    crate::client::ended(match command {
        Command::Doctor(args) => doctor::run(args),
        Command::Log(LogArgs { command: LogCommand::Dump(args) }) => log::run(args),
        Command::Store(StoreArgs { command: StoreCommand::Dump(args) }) => store::run(args),
    })
}
