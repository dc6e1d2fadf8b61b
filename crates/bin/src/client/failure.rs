//! Why a command ends without success.

use std::io;

/// The end of a command.
#[derive(Debug)]
pub(crate) enum Failure {
    /// One line that says what is wrong and what to do.
    Said(String),
    /// Whoever read standard output has gone; that is no fault.
    ReaderGone,
}

impl Failure {
    pub(crate) fn said(text: impl Into<String>) -> Self {
        Self::Said(text.into())
    }

    /// A failed write to standard output.
    pub(crate) fn of_output(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::ReaderGone,
            _ => Self::Said(format!("standard output cannot be written: {error}")),
        }
    }
}
