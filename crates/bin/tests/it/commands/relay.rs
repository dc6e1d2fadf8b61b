//! A relay between a command and its node that goes wrong on purpose.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use super::LIMIT;

/// What becomes of one request.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fate {
    /// The node's answer.
    Pass,
    /// The node carries it out; the answer is lost with the connection.
    Lost,
    /// The node carries it out; the answer is this status, to be tried again at once.
    Busy(u16),
    /// Not for a node: the answer is a page.
    Page(u16),
}

/// A request as it came.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) head: String,
    pub(super) body: String,
}

pub(super) struct Relay {
    address: String,
    to: Arc<Mutex<Option<String>>>,
    seen: Receiver<Seen>,
}

impl Relay {
    /// Relays to a node; the requests meet these fates in order, and then pass.
    pub(super) fn new(to: &str, fates: &[Fate]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let to = Arc::new(Mutex::new(Some(to.to_owned())));
        let (sender, seen) = channel();
        let (target, mut fates) = (Arc::clone(&to), VecDeque::from(fates.to_vec()));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let target = target.lock().unwrap().clone();
                serve(stream.unwrap(), target.as_deref(), &mut fates, &sender);
            }
        });
        Self { address, to, seen }
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Where requests go from now on; without a node they are dropped.
    pub(super) fn point_to(&self, to: Option<&str>) {
        *self.to.lock().unwrap() = to.map(str::to_owned);
    }

    /// The next request that came.
    #[track_caller]
    pub(super) fn next(&self) -> Seen {
        self.seen.recv_timeout(LIMIT).unwrap()
    }
}

/// One request, one connection.
fn serve(mut stream: TcpStream, to: Option<&str>, fates: &mut VecDeque<Fate>, seen: &Sender<Seen>) {
    let Some(request) = read(&stream) else { return };
    let Some(to) = to else { return };
    let fate = fates.pop_front().unwrap_or(Fate::Pass);
    let answer = match fate {
        Fate::Page(_) => Vec::new(),
        _ => forward(to, &request),
    };
    let made = |status: u16, body: &str| {
        let len = body.len();
        format!(
            "HTTP/1.1 {status} X\r\nRetry-After: 0\r\nConnection: close\r\nContent-Length: {len}\r\n\r\n{body}"
        )
        .into_bytes()
    };
    let answer = match fate {
        Fate::Pass => answer,
        Fate::Lost => Vec::new(),
        Fate::Busy(status) => made(status, r#"{"error":"timeout: busy","code":"retry"}"#),
        Fate::Page(status) => made(status, "<html>\u{1b}[2J</html>"),
    };
    // The command may be gone, and so may the test.
    stream.write_all(&answer).unwrap_or_default();
    seen.send(request).unwrap_or_default();
}

fn read(stream: &TcpStream) -> Option<Seen> {
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head).ok()? == 0 {
            return None;
        }
    }
    let lower = head.to_lowercase();
    let len = lower.split("content-length: ").nth(1);
    let len = len.map_or(0, |rest| rest.split("\r\n").next().unwrap().parse().unwrap());
    let mut body = vec![0; len];
    reader.read_exact(&mut body).ok()?;
    Some(Seen { head, body: String::from_utf8(body).unwrap() })
}

fn forward(to: &str, request: &Seen) -> Vec<u8> {
    // A node that was stopped meanwhile answers nothing, and so does the relay.
    let Ok(mut stream) = TcpStream::connect(to) else { return Vec::new() };
    let head = request.head.replacen("\r\n", "\r\nConnection: close\r\n", 1);
    let sent = stream.write_all(head.as_bytes());
    sent.and_then(|()| stream.write_all(request.body.as_bytes())).unwrap_or_default();
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        Ok(_) => answer,
        Err(_) => Vec::new(),
    }
}
