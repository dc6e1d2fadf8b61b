//! The program: settings, boot, signals, exit codes. Everything that does work is in the other crates.

#![forbid(unsafe_code)]

mod auth;
mod cli;
mod client;
mod config;
mod descriptors;
mod examine;
mod fatal;
mod logging;
mod metrics;
mod node;
mod promote;
mod relayout;
mod restore;
mod runtime;
mod start;
mod watch;

use std::process::ExitCode;

use tracing::error;

fn main() -> ExitCode {
    match cli::run() {
        Ok(code) => code,
        Err(reason) => {
            // A start refused for its settings has no logging of its own yet.
            logging::start_default();
            error!("FATAL: {}", fatal::text(&reason));
            ExitCode::FAILURE
        }
    }
}
