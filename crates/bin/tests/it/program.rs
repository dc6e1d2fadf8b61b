//! A running program: its log, its address, its answers.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};

/// A node over a directory. Killed when it is dropped.
#[derive(Debug)]
pub(crate) struct Program {
    child: Child,
    lines: Receiver<String>,
    /// What it logged so far.
    pub(crate) log: Vec<String>,
    address: String,
}

impl Program {
    /// Starts a node and waits until it serves.
    ///
    /// Errors: all it logged, when it ends before that.
    pub(crate) fn start(dir: &Path, variables: &[(&str, &str)]) -> Result<Self, String> {
        let mut child = Command::new(env!("CARGO_BIN_EXE_queen"))
            .env_clear()
            .envs([("PORT", "0"), ("QUEEN_BIND_ADDR", "127.0.0.1")])
            // A machine that runs tests may be fuller than one that runs a broker.
            .envs([("QUEEN_RAFT_DISK_HIGH_PCT", "100"), ("QUEEN_RAFT_DISK_LOW_PCT", "100")])
            .env("QUEEN_RAFT_DIR", dir)
            .envs(variables.iter().copied())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("queen does not run: {error}"));
        let stderr = child.stderr.take().unwrap();
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines() {
                drop(sender.send(line.unwrap()));
            }
        });
        let mut program = Self { child, lines, log: Vec::new(), address: String::new() };
        loop {
            let Ok(line) = program.lines.recv() else { return Err(program.log.join("\n")) };
            if let Some((_, rest)) = line.split_once("serving address=") {
                program.address.push_str(rest.split(' ').next().unwrap());
            } else if line.starts_with('{') && line.contains("\"serving\"") {
                program.address.push_str(field(&line, "address"));
            }
            program.log.push(line);
            if !program.address.is_empty() {
                return Ok(program);
            }
        }
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Asks it; the status and the body.
    pub(crate) fn call(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        self.call_as("", method, path, body)
    }

    /// Asks it with more headers, each a whole line.
    pub(crate) fn call_as(
        &self,
        headers: &str,
        method: &str,
        path: &str,
        body: &str,
    ) -> (u16, String) {
        call_at(&self.address, headers, (method, path, body))
    }

    /// Asks it for something that must succeed.
    pub(crate) fn ask(&self, method: &str, path: &str, body: &str) -> String {
        let (status, answer) = self.call(method, path, body);
        assert!((200..300).contains(&status), "{method} {path}: {status} {answer}");
        answer
    }

    /// Stops it as an operator does; everything it logged.
    pub(crate) fn stop(self) -> (ExitStatus, Vec<String>) {
        let id = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(id, rustix::process::Signal::TERM).unwrap();
        self.end()
    }

    /// Waits until it logs a line with this text, or ends.
    pub(crate) fn wait_for_line(&mut self, text: &str) {
        while let Ok(line) = self.lines.recv() {
            let is_found = line.contains(text);
            self.log.push(line);
            if is_found {
                return;
            }
        }
        panic!("{text} is not in {}", self.log.join("\n"));
    }

    /// Ends it at once; everything it logged.
    pub(crate) fn kill(mut self) -> Vec<String> {
        // It may have ended by itself.
        let _ended = self.child.kill();
        self.end().1
    }

    /// Waits until it ends by itself; everything it logged.
    pub(crate) fn end(mut self) -> (ExitStatus, Vec<String>) {
        let status = self.child.wait().unwrap();
        self.log.extend(self.lines.iter());
        (status, std::mem::take(&mut self.log))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It has ended already when it was stopped.
        let _ended = self.child.kill();
        let _ended = self.child.wait();
    }
}

/// Asks whoever listens there; the status and the body.
pub(crate) fn call_at(address: &str, headers: &str, request: (&str, &str, &str)) -> (u16, String) {
    try_call_at(address, headers, request).unwrap()
}

/// The same of somebody who may be gone before the answer is whole.
pub(crate) fn try_call_at(
    address: &str,
    headers: &str,
    (method, path, body): (&str, &str, &str),
) -> std::io::Result<(u16, String)> {
    let mut stream = TcpStream::connect(address)?;
    let len = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Length: {len}\r\n{headers}\r\n"
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let cut = || std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
    let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(cut)?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or_else(cut)?;
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().ok())?
    });
    if length.is_some_and(|length: usize| body.len() < length) {
        return Err(cut());
    }
    Ok((status, body.to_owned()))
}

/// The text of a field in a JSON answer: the first of its name.
pub(crate) fn field<'a>(answer: &'a str, name: &str) -> &'a str {
    let (_, rest) = answer
        .split_once(&format!("\"{name}\":\""))
        .unwrap_or_else(|| panic!("{name} in {answer}"));
    rest.split('"').next().unwrap()
}
