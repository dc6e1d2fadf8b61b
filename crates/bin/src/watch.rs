//! Long work that says on standard error how far it is.

use std::io::{IsTerminal, Write};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Between two looks at a terminal, and between two lines elsewhere.
const TERMINAL_EVERY: Duration = Duration::from_millis(200);
const LINE_EVERY: Duration = Duration::from_secs(10);

/// Does `work` on another thread; `line` is asked now and then how far it is.
pub(crate) fn watched<T: Send>(
    line: impl Fn(Duration) -> String,
    work: impl FnOnce() -> T + Send,
) -> T {
    let started = Instant::now();
    std::thread::scope(|scope| {
        let (done, waiting) = channel::<()>();
        let worker = scope.spawn(move || {
            // Dropped at the end, however it comes: that wakes the watcher.
            let _done = done;
            work()
        });
        let is_terminal = std::io::stderr().is_terminal();
        let every = if is_terminal { TERMINAL_EVERY } else { LINE_EVERY };
        let mut shown = 0;
        while waiting.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
            let line = line(started.elapsed());
            let width = line.len();
            // Nobody reads standard error: then there is nobody to tell.
            let text = if is_terminal { format!("\r{line:shown$}") } else { format!("{line}\n") };
            std::io::stderr().write_all(text.as_bytes()).unwrap_or_default();
            shown = width;
        }
        if is_terminal && shown > 0 {
            let blank = format!("\r{:shown$}\r", "");
            std::io::stderr().write_all(blank.as_bytes()).unwrap_or_default();
        }
        worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// How far a copy of a known number of bytes is: `12 s: copying, 40 of 96 MiB`.
pub(crate) fn copying(progress: &queen_archive::Progress, elapsed: Duration) -> String {
    let (done, total) = (progress.done() >> 20, progress.total() >> 20);
    match total {
        0 => format!("{} s: waiting", elapsed.as_secs()),
        total => format!("{} s: copying, {done} of {total} MiB", elapsed.as_secs()),
    }
}
