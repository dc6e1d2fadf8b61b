//! Logs: one event, one line, to standard error; text or JSON.

use std::io::{self, Write};

use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::{EnvFilter, fmt};

use crate::config::Settings;

/// Starts logging as the settings say.
///
/// # Errors
/// The filter does not parse, which the settings have checked.
pub(crate) fn start(settings: &Settings) -> anyhow::Result<()> {
    let filter = EnvFilter::try_new(with_library(&settings.log_filter.0))?;
    let builder = fmt().with_env_filter(filter).with_ansi(false).with_writer(Lines(io::stderr));
    let started = if settings.log_json { builder.json().try_init() } else { builder.try_init() };
    started.map_err(|error| anyhow::anyhow!("logging does not start: {error}"))
}

/// The consensus library tells of every vote and every heartbeat; what an operator needs of that the node says itself.
fn with_library(filter: &str) -> String {
    if filter.contains("openraft") { filter.to_owned() } else { format!("{filter},openraft=error") }
}

/// Starts logging with the defaults unless it runs already: for a start that is refused for its settings.
pub(crate) fn start_default() {
    let started = fmt().with_ansi(false).with_writer(Lines(io::stderr)).try_init();
    // It runs already: then the event goes where the settings said.
    started.unwrap_or_default();
}

/// Makes writers that keep an event on one line.
struct Lines<F>(F);

impl<'a, F: Fn() -> W, W: Write + 'a> MakeWriter<'a> for Lines<F> {
    type Writer = Line<W>;

    fn make_writer(&'a self) -> Line<W> {
        Line((self.0)())
    }
}

/// Writes one event per call, with every control character in it escaped: names and payload texts come from
/// clients, and must not forge a line or drive a terminal.
struct Line<W>(W);

impl<W: Write> Write for Line<W> {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let (text, end) = match event.split_last() {
            Some((b'\n', text)) => (text, "\n"),
            _ => (event, ""),
        };
        if !text.iter().any(|byte| byte.is_ascii_control() && *byte != b'\t') {
            self.0.write_all(event)?;
            return Ok(event.len());
        }
        let mut line = Vec::with_capacity(event.len() + 16);
        for byte in text {
            match byte {
                b'\t' => line.push(b'\t'),
                byte if byte.is_ascii_control() => line.extend(byte.escape_ascii()),
                byte => line.push(*byte),
            }
        }
        line.extend_from_slice(end.as_bytes());
        self.0.write_all(&line)?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(event: &str, expected: &str) {
        let mut out = Vec::new();
        Line(&mut out).write_all(event.as_bytes()).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }

    #[test]
    fn an_event_stays_on_one_line() {
        check("plain é queue=a\n", "plain é queue=a\n");
        check("queue=a\n2026 INFO forged\n", "queue=a\\n2026 INFO forged\n");
        check("a\r\u{1b}[31mred\n", "a\\r\\x1b[31mred\n");
        check("", "");
    }
}
