//! A client that keeps its connection, as the published ones do.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use serde_json::Value;

/// One connection.
pub(crate) struct Client {
    reader: BufReader<TcpStream>,
    writer: TcpStream,
}

impl Client {
    pub(crate) fn new(address: &str) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { reader: BufReader::new(stream.try_clone().unwrap()), writer: stream }
    }

    pub(crate) fn get(&mut self, path: &str) -> Value {
        let (status, answer) = self.send("GET", path, "");
        assert!((200..300).contains(&status), "{status} {path} {answer}");
        answer
    }

    pub(crate) fn post(&mut self, path: &str, body: &Value) -> Value {
        let (status, answer) = self.send("POST", path, &body.to_string());
        assert!((200..300).contains(&status), "{status} {path} {answer}");
        answer
    }

    /// Sends a request and reads its answer; an empty body is `null`.
    pub(crate) fn send(&mut self, method: &str, path: &str, body: &str) -> (u16, Value) {
        let length = body.len();
        let head =
            format!("{method} {path} HTTP/1.1\r\nHost: q\r\nContent-Length: {length}\r\n\r\n");
        self.writer.write_all(format!("{head}{body}").as_bytes()).unwrap();
        let mut line = String::new();
        self.reader.read_line(&mut line).unwrap();
        let status = line.split(' ').nth(1).unwrap().parse().unwrap();
        let mut length = 0;
        loop {
            line.clear();
            self.reader.read_line(&mut line).unwrap();
            match line.trim_end().to_ascii_lowercase().split_once(':') {
                None => break,
                Some(("content-length", value)) => length = value.trim().parse().unwrap(),
                Some(_) => {}
            }
        }
        let mut body = vec![0; length];
        self.reader.read_exact(&mut body).unwrap();
        let answer =
            if body.is_empty() { Value::Null } else { serde_json::from_slice(&body).unwrap() };
        (status, answer)
    }
}
