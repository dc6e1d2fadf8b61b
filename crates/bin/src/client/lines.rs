//! Lines of an input, read in batches, each line with its number and within a bound.

use std::io::{self, BufRead, BufReader, Read};

/// The buffer: with files, how much is read at once.
const BUFFER_BYTES: usize = 1024 * 1024;
/// Payload bytes after which a batch is full, far below what a request may have.
const BATCH_BYTES: usize = 8 * 1024 * 1024;

/// One line without its end.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Line {
    /// From 1.
    pub(super) number: u64,
    pub(super) text: String,
}

/// Why reading ends early.
#[derive(Debug, thiserror::Error)]
pub(super) enum LineError {
    #[error("line {number} is longer than {max} bytes")]
    TooLong { number: u64, max: usize },
    #[error("line {0} is not UTF-8")]
    NotText(u64),
    #[error("standard input cannot be read: {0}")]
    Io(#[from] io::Error),
}

/// An input.
#[derive(Debug)]
pub(super) struct Lines<R> {
    input: BufReader<R>,
    number: u64,
    line_bytes_max: usize,
    /// Read, but too much for the batch before it.
    next: Option<Line>,
}

impl<R: Read> Lines<R> {
    pub(super) fn new(input: R, line_bytes_max: usize) -> Self {
        Self {
            input: BufReader::with_capacity(BUFFER_BYTES, input),
            number: 0,
            line_bytes_max,
            next: None,
        }
    }

    /// The next lines, at most `count_max` and none at the end, and why there are no more after them.
    ///
    /// Only the first is waited for: a slow input is passed on as it comes.
    pub(super) fn batch(&mut self, count_max: usize) -> (Vec<Line>, Option<LineError>) {
        let mut lines: Vec<Line> = self.next.take().into_iter().collect();
        let mut bytes = lines.iter().map(|line| line.text.len()).sum::<usize>();
        while lines.len() < count_max && bytes < BATCH_BYTES {
            if !lines.is_empty() && !self.input.buffer().contains(&b'\n') {
                break;
            }
            match self.line() {
                Ok(Some(line)) if !lines.is_empty() && bytes + line.text.len() > BATCH_BYTES => {
                    self.next = Some(line);
                    break;
                }
                Ok(Some(line)) => {
                    bytes += line.text.len();
                    lines.push(line);
                }
                Ok(None) => break,
                Err(error) => return (lines, Some(error)),
            }
        }
        (lines, None)
    }

    fn line(&mut self) -> Result<Option<Line>, LineError> {
        let max = self.line_bytes_max;
        let mut bytes = Vec::new();
        // Two more for the end of the line.
        let bound = u64::try_from(max).unwrap_or(u64::MAX).saturating_add(2);
        self.input.by_ref().take(bound).read_until(b'\n', &mut bytes)?;
        if bytes.is_empty() {
            return Ok(None);
        }
        self.number += 1;
        let number = self.number;
        if bytes.last() == Some(&b'\n') {
            bytes.pop();
            if bytes.last() == Some(&b'\r') {
                bytes.pop();
            }
        }
        if bytes.len() > max {
            return Err(LineError::TooLong { number, max });
        }
        let text = String::from_utf8(bytes).map_err(|_| LineError::NotText(number))?;
        Ok(Some(Line { number, text }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(lines: &[Line]) -> Vec<&str> {
        lines.iter().map(|line| &*line.text).collect()
    }

    /// An input that gives one part per read.
    struct Parts(Vec<&'static [u8]>);

    impl Read for Parts {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            if self.0.is_empty() {
                return Ok(0);
            }
            self.0.remove(0).read(buffer)
        }
    }

    #[test]
    fn a_batch_is_what_is_there() {
        let mut lines = Lines::new(Parts(vec![b"a\nb\r\nc", b"d\n", b"\n", b"e"]), 10);
        for expected in [&["a", "b"][..], &["cd"], &[""], &["e"], &[]] {
            let (found, error) = lines.batch(100);
            assert!(error.is_none());
            assert_eq!(texts(&found), expected);
        }
        let mut lines = Lines::new(&b"a\nb\nc\n"[..], 10);
        assert_eq!(texts(&lines.batch(2).0), ["a", "b"]);
        assert_eq!(lines.batch(2).0, [Line { number: 3, text: "c".into() }]);
    }

    #[test]
    fn a_batch_has_a_bound_unless_it_is_one_line() {
        let (small, large) = ("s".repeat(BUFFER_BYTES / 2), "l".repeat(BATCH_BYTES + 1));
        let input = [&*small, &small, &large, &small].join("\n") + "\n";
        let mut lines = Lines::new(input.as_bytes(), usize::MAX);
        let mut found = Vec::new();
        loop {
            let (batch, error) = lines.batch(100);
            assert!(error.is_none());
            if batch.is_empty() {
                break;
            }
            let bytes: usize = batch.iter().map(|line| line.text.len()).sum();
            assert!(bytes <= BATCH_BYTES || batch.len() == 1, "{bytes}");
            found.extend(batch);
        }
        assert_eq!(texts(&found), [&*small, &small, &large, &small]);
    }

    #[test]
    fn a_bad_line_is_named_after_the_good_ones() {
        let check = |input: &'static [u8], expected: &str| {
            let mut lines = Lines::new(input, 3);
            let (found, error) = lines.batch(10);
            assert_eq!(texts(&found), ["abc"]);
            // Without an end, the bad line is not looked at before it is waited for.
            let error = error.or_else(|| lines.batch(10).1);
            assert_eq!(error.unwrap().to_string(), expected);
        };
        check(b"abc\nabcd\nx\n", "line 2 is longer than 3 bytes");
        check(b"abc\r\nabcdefghijklm", "line 2 is longer than 3 bytes");
        check(b"abc\n\xff\n", "line 2 is not UTF-8");
    }
}
