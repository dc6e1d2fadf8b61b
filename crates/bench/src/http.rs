//! The cheapest HTTP/1.1 client that serves: one connection, one request in flight, no parsing beyond status and length.

use std::io::{ErrorKind, Write};
use std::net::Ipv4Addr;

use anyhow::{Context, bail};
use tokio::net::TcpStream;

/// What one read from the socket may take.
const CHUNK_BYTES: usize = 32 << 10;

/// One keep-alive connection.
pub(crate) struct Client {
    stream: TcpStream,
    out: Vec<u8>,
    input: Vec<u8>,
    chunk: Vec<u8>,
}

/// An answer, valid until the next request on its connection.
pub(crate) struct Answer<'a> {
    pub(crate) status: u16,
    pub(crate) body: &'a [u8],
}

impl Answer<'_> {
    /// The start of the body, for an error message.
    pub(crate) fn excerpt(&self) -> String {
        String::from_utf8_lossy(self.body).chars().take(300).collect()
    }
}

/// Where the parts of an answer lie in the input.
struct Head {
    status: u16,
    body_start: usize,
    body_end: usize,
}

impl Client {
    /// Connects over loopback.
    pub(crate) async fn connect(port: u16) -> anyhow::Result<Self> {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
        stream.set_nodelay(true)?;
        let chunk = vec![0; CHUNK_BYTES];
        Ok(Self { stream, out: Vec::new(), input: Vec::new(), chunk })
    }

    /// `GET path`.
    pub(crate) async fn get(&mut self, path: &str) -> anyhow::Result<Answer<'_>> {
        self.out.clear();
        write!(self.out, "GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")?;
        self.exchange().await
    }

    /// `POST path` with a JSON body.
    pub(crate) async fn post(&mut self, path: &str, body: &[u8]) -> anyhow::Result<Answer<'_>> {
        self.out.clear();
        let length = body.len();
        write!(
            self.out,
            "POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n\
             content-length: {length}\r\n\r\n"
        )?;
        self.out.extend_from_slice(body);
        self.exchange().await
    }

    async fn exchange(&mut self) -> anyhow::Result<Answer<'_>> {
        self.send().await?;
        self.input.clear();
        let head = loop {
            self.fill().await?;
            if let Some(head) = Head::find(&self.input)? {
                break head;
            }
        };
        while self.input.len() < head.body_end {
            self.fill().await?;
        }
        let body = self.input.get(head.body_start..head.body_end).unwrap_or_default();
        Ok(Answer { status: head.status, body })
    }

    async fn send(&mut self) -> anyhow::Result<()> {
        let mut rest = self.out.as_slice();
        while !rest.is_empty() {
            match self.stream.try_write(rest) {
                Ok(count) => rest = rest.get(count..).unwrap_or_default(),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.stream.writable().await?;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    async fn fill(&mut self) -> anyhow::Result<()> {
        loop {
            self.stream.readable().await?;
            match self.stream.try_read(&mut self.chunk) {
                Ok(0) => bail!("the server closed the connection"),
                Ok(count) => {
                    self.input.extend_from_slice(self.chunk.get(..count).unwrap_or_default());
                    return Ok(());
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl Head {
    /// The head, once all of it is there.
    fn find(input: &[u8]) -> anyhow::Result<Option<Self>> {
        let Some(end) = input.windows(4).position(|window| window == b"\r\n\r\n") else {
            return Ok(None);
        };
        let text = std::str::from_utf8(input.get(..end).unwrap_or_default())?;
        let mut lines = text.split("\r\n");
        let status = lines.next().and_then(|line| line.split(' ').nth(1)).context("no status")?;
        let mut length = 0;
        for line in lines {
            let (name, value) = line.split_once(':').context("a header without a colon")?;
            if name.eq_ignore_ascii_case("content-length") {
                length = value.trim().parse()?;
            } else if name.eq_ignore_ascii_case("transfer-encoding") {
                bail!("an answer in chunks is not understood here");
            }
        }
        let body_start = end + 4;
        Ok(Some(Self { status: status.parse()?, body_start, body_end: body_start + length }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_found_once_it_is_whole() {
        let text = b"HTTP/1.1 201 Created\r\nContent-Length: 3\r\nx: y\r\n\r\nabc";
        assert!(Head::find(&text[..40]).unwrap().is_none());
        let head = Head::find(text).unwrap().unwrap();
        assert_eq!((head.status, &text[head.body_start..head.body_end]), (201, &b"abc"[..]));
    }

    #[test]
    fn an_answer_without_length_has_no_body() {
        let head = Head::find(b"HTTP/1.1 204 No Content\r\n\r\n").unwrap().unwrap();
        assert_eq!((head.status, head.body_start), (204, head.body_end));
    }
}
