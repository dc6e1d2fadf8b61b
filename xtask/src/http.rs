//! The little of HTTP/1.1 that a load needs: one connection, one request at a time.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

/// Bytes of an answer at most.
const BODY_MAX: usize = 256 << 20;

/// What came back.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    /// The body as JSON; null if it is none.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or(Value::Null)
    }
}

/// A connection to one address, made when needed and again after any failure.
pub(crate) struct Client {
    address: SocketAddr,
    timeout: Duration,
    stream: Option<BufReader<TcpStream>>,
}

impl Client {
    /// Connects to nobody yet.
    pub(crate) fn new(address: SocketAddr, timeout: Duration) -> Self {
        Self { address, timeout, stream: None }
    }

    /// Sends a GET.
    pub(crate) fn get(&mut self, path: &str) -> io::Result<Answer> {
        self.call("GET", path, &[])
    }

    /// Sends a POST with JSON.
    pub(crate) fn post(&mut self, path: &str, body: &Value) -> io::Result<Answer> {
        self.call("POST", path, body.to_string().as_bytes())
    }

    /// Sends one request; an error leaves unknown whether it was carried out.
    pub(crate) fn call(&mut self, method: &str, path: &str, body: &[u8]) -> io::Result<Answer> {
        let mut stream = match self.stream.take() {
            Some(stream) => stream,
            None => self.connect()?,
        };
        let mut request = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\n").into_bytes();
        if !body.is_empty() || method != "GET" {
            let length = body.len();
            write!(request, "Content-Type: application/json\r\nContent-Length: {length}\r\n")?;
        }
        request.extend_from_slice(b"\r\n");
        request.extend_from_slice(body);
        stream.get_mut().write_all(&request)?;
        let (answer, is_reusable) = read_answer(&mut stream)?;
        if is_reusable {
            self.stream = Some(stream);
        }
        Ok(answer)
    }

    fn connect(&self) -> io::Result<BufReader<TcpStream>> {
        let stream = TcpStream::connect_timeout(&self.address, self.timeout)?;
        stream.set_read_timeout(Some(self.timeout))?;
        stream.set_write_timeout(Some(self.timeout))?;
        stream.set_nodelay(true)?;
        Ok(BufReader::new(stream))
    }
}

fn bad(what: &'static str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, what)
}

fn line(stream: &mut impl BufRead) -> io::Result<String> {
    let mut text = String::new();
    if stream.take(65_536).read_line(&mut text)? == 0 {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    Ok(text.trim_end().to_owned())
}

/// Reads one answer, and whether the connection can take another request.
fn read_answer(stream: &mut impl BufRead) -> io::Result<(Answer, bool)> {
    let first = line(stream)?;
    let status = first.split(' ').nth(1).and_then(|word| word.parse().ok());
    let status: u16 = status.ok_or_else(|| bad("no status line"))?;
    let (mut length, mut is_chunked, mut is_reusable) = (None, false, true);
    loop {
        let header = line(stream)?.to_ascii_lowercase();
        if header.is_empty() {
            break;
        }
        let (name, value) = header.split_once(':').ok_or_else(|| bad("no header"))?;
        match (name, value.trim()) {
            ("content-length", value) => {
                length = Some(value.parse::<usize>().map_err(|_| bad("content-length"))?);
            }
            ("transfer-encoding", value) => is_chunked = value.contains("chunked"),
            ("connection", value) => is_reusable = value != "close",
            _ => {}
        }
    }
    let mut body = Vec::new();
    if is_chunked {
        loop {
            let size = usize::from_str_radix(&line(stream)?, 16).map_err(|_| bad("chunk size"))?;
            read_exactly(stream, size, &mut body)?;
            line(stream)?;
            if size == 0 {
                break;
            }
        }
    } else if let Some(length) = length {
        read_exactly(stream, length, &mut body)?;
    }
    Ok((Answer { status, body }, is_reusable))
}

fn read_exactly(stream: &mut impl BufRead, length: usize, body: &mut Vec<u8>) -> io::Result<()> {
    if length + body.len() > BODY_MAX {
        return Err(bad("an answer too large"));
    }
    let read = stream.take(length as u64).read_to_end(body)?;
    if read == length { Ok(()) } else { Err(ErrorKind::UnexpectedEof.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(mut bytes: &[u8], status: u16, body: &str, is_reusable: bool) {
        let (answer, reusable) = read_answer(&mut bytes).unwrap();
        assert_eq!((answer.status, reusable), (status, is_reusable));
        assert_eq!(String::from_utf8_lossy(&answer.body), body);
        assert!(bytes.is_empty());
    }

    #[test]
    fn the_three_kinds_of_body() {
        check(b"HTTP/1.1 204 No Content\r\n\r\n", 204, "", true);
        check(
            b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}",
            200,
            "{}",
            false,
        );
        let chunked =
            b"HTTP/1.1 201 C\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n[\r\n1\r\n]\r\n0\r\n\r\n";
        check(chunked, 201, "[]", true);
    }

    #[test]
    fn an_answer_cut_short_is_an_error() {
        for bytes in [&b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{"[..], b"HTTP/1.1 200", b""] {
            assert!(read_answer(&mut &*bytes).is_err());
        }
    }
}
