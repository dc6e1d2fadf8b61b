//! Standard output: rows, messages, one-line answers.

use std::io::{self, BufWriter, StdoutLock, Write};

use serde::Serialize;
use serde_json::value::RawValue;

use super::escape;
use super::failure::Failure;
use super::table::Table;

/// Standard output.
pub(crate) struct Output(BufWriter<StdoutLock<'static>>);

impl Output {
    pub(crate) fn new() -> Self {
        Self(BufWriter::new(io::stdout().lock()))
    }

    /// A line that holds no text of others, or holds it escaped.
    ///
    /// # Errors
    /// Standard output does not take it; so do the others here.
    pub(crate) fn line(&mut self, line: &str) -> Result<(), Failure> {
        let written = self.0.write_all(line.as_bytes()).and_then(|()| self.0.write_all(b"\n"));
        written.map_err(|error| Failure::of_output(&error))
    }

    /// A JSON document as the node wrote it.
    pub(crate) fn json(&mut self, document: &RawValue) -> Result<(), Failure> {
        self.line(&escape::json(document.get()))
    }

    /// A row that is put together here.
    pub(crate) fn json_of(&mut self, row: &impl Serialize) -> Result<(), Failure> {
        match serde_json::to_string(row) {
            Ok(document) => self.line(&escape::json(&document)),
            Err(error) => Err(Failure::said(format!("a row cannot be written as JSON: {error}"))),
        }
    }

    /// A message for a person: partition, offset, transactionId and payload with tabs between them.
    pub(crate) fn message(&mut self, message: &Message<'_>) -> Result<(), Failure> {
        let Message { partition, offset, transaction_id, payload } = message;
        let (partition, id) = (escape::text(partition), escape::text(transaction_id));
        let payload = escape::json(payload.get());
        self.line(&format!("{partition}\t{offset}\t{id}\t{payload}"))
    }

    /// A table, or the sentence that stands for an empty one.
    pub(crate) fn table(&mut self, table: &Table, empty: &str) -> Result<(), Failure> {
        if table.is_empty() {
            return self.line(empty);
        }
        table.lines().iter().try_for_each(|line| self.line(line))
    }

    /// Hands over what was written.
    pub(crate) fn flush(&mut self) -> Result<(), Failure> {
        self.0.flush().map_err(|error| Failure::of_output(&error))
    }
}

/// What a person sees of a message.
pub(crate) struct Message<'a> {
    pub(crate) partition: &'a str,
    pub(crate) offset: u64,
    pub(crate) transaction_id: &'a str,
    pub(crate) payload: &'a RawValue,
}
