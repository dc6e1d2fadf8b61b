//! What became of the messages of a push, and the count on a terminal.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use serde::Deserialize;

use crate::client::failure::Failure;

const PROGRESS_EVERY: Duration = Duration::from_millis(500);

/// What became of one.
#[derive(Debug, Deserialize)]
pub(super) struct Answer {
    pub(super) status: String,
    #[serde(default)]
    pub(super) error: Option<String>,
}

/// What became of all messages so far.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) pushed: u64,
    pub(super) duplicates: u64,
    refused: u64,
    /// What the node said to the first that it refused.
    refusal: Option<String>,
}

impl Tally {
    pub(super) fn count(&mut self, answers: Vec<Answer>) {
        for answer in answers {
            match &*answer.status {
                "queued" => self.pushed += 1,
                "duplicate" => self.duplicates += 1,
                _ => {
                    self.refused += 1;
                    self.refusal.get_or_insert(answer.error.unwrap_or(answer.status));
                }
            }
        }
    }

    /// # Errors
    /// The node refused messages.
    pub(super) fn refusals(&self) -> Result<(), Failure> {
        match &self.refusal {
            None => Ok(()),
            Some(reason) => {
                let count = self.refused;
                Err(Failure::said(format!("refused {count}, not in the queue: {reason}")))
            }
        }
    }
}

/// The count on a terminal, while a long input goes through.
pub(super) struct Progress {
    is_shown: bool,
    last: Instant,
    has_written: bool,
}

impl Progress {
    pub(super) fn new() -> Self {
        Self { is_shown: io::stderr().is_terminal(), last: Instant::now(), has_written: false }
    }

    pub(super) fn show(&mut self, tally: &Tally) {
        if self.is_shown && self.last.elapsed() >= PROGRESS_EVERY {
            write(&format!("\rpushed {}", tally.pushed + tally.duplicates));
            self.last = Instant::now();
            self.has_written = true;
        }
    }

    /// Clears the line for what comes.
    pub(super) fn end(&self) {
        if self.has_written {
            write("\r\u{1b}[K");
        }
    }
}

fn write(text: &str) {
    // It is there to be looked at; nobody is told when it cannot be.
    io::stderr().write_all(text.as_bytes()).unwrap_or_default();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_messages_are_a_failure() {
        let answer = |status: &str, error: Option<&str>| Answer {
            status: status.to_owned(),
            error: error.map(str::to_owned),
        };
        let mut tally = Tally::default();
        tally.count(vec![answer("queued", None), answer("duplicate", None)]);
        assert!(tally.refusals().is_ok());
        tally.count(vec![answer("error", Some("too large")), answer("error", None)]);
        assert_eq!((tally.pushed, tally.duplicates, tally.refused), (1, 1, 2));
        let Err(Failure::Said(text)) = tally.refusals() else { panic!("{tally:?}") };
        assert_eq!(text, "refused 2, not in the queue: too large");
    }
}
