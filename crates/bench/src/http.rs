//! The cheapest HTTP/1.1 client that serves: one connection, one request in flight, no parsing beyond status and length.

use std::io::{ErrorKind, Write};
use std::net::Ipv4Addr;

use anyhow::{Context, bail, ensure};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// Room for one read from the socket, before the length of the answer is known. Ten thousand connections are held at
/// once, so it is small.
const READ_BYTES: usize = 2 << 10;
/// Connections that are opened at once: fewer than a listener keeps waiting, beyond which the kernel drops some for a
/// second.
const OPENED_AT_ONCE: usize = 100;
const JSON: &str = "application/json";

/// One keep-alive connection, opened again after an answer that ends it.
pub(crate) struct Client {
    port: u16,
    stream: TcpStream,
    is_ended: bool,
    out: Vec<u8>,
    input: Vec<u8>,
}

/// An answer, valid until the next request on its connection.
pub(crate) struct Answer<'a> {
    pub(crate) status: u16,
    /// After how many seconds the server wants to be asked again.
    pub(crate) retry_after_s: Option<u64>,
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
    retry_after_s: Option<u64>,
    /// The server ends the connection after this answer.
    is_last: bool,
    body_start: usize,
    body_end: usize,
}

impl Client {
    /// Connects over loopback.
    pub(crate) async fn connect(port: u16) -> anyhow::Result<Self> {
        let stream = open(port).await?;
        Ok(Self { port, stream, is_ended: false, out: Vec::new(), input: Vec::new() })
    }

    /// Opens many connections; each has had an answer of this status to a `GET path`.
    pub(crate) async fn connect_many(
        port: u16,
        count: usize,
        (path, status): (&'static str, u16),
    ) -> anyhow::Result<Vec<Self>> {
        let mut clients = Vec::with_capacity(count);
        while clients.len() < count {
            let mut opening = JoinSet::new();
            for _ in 0..OPENED_AT_ONCE.min(count - clients.len()) {
                opening.spawn(async move {
                    let mut client = Self::connect(port).await?;
                    let answer = client.get(path).await?;
                    ensure!(answer.status == status, "{} {}", answer.status, answer.excerpt());
                    Ok(client)
                });
            }
            while let Some(client) = opening.join_next().await {
                clients.push(client??);
            }
        }
        Ok(clients)
    }

    /// `GET path`.
    pub(crate) async fn get(&mut self, path: &str) -> anyhow::Result<Answer<'_>> {
        self.ask(path).await?;
        self.answer().await
    }

    /// Sends `GET path`; [`Client::answer`] waits for what comes back.
    pub(crate) async fn ask(&mut self, path: &str) -> anyhow::Result<()> {
        self.bare("GET", path).await
    }

    /// `DELETE path`.
    pub(crate) async fn delete(&mut self, path: &str) -> anyhow::Result<Answer<'_>> {
        self.bare("DELETE", path).await?;
        self.answer().await
    }

    async fn bare(&mut self, method: &str, path: &str) -> anyhow::Result<()> {
        self.out.clear();
        write!(self.out, "{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")?;
        self.send().await
    }

    /// `POST path` with a JSON body.
    pub(crate) async fn post(&mut self, path: &str, body: &[u8]) -> anyhow::Result<Answer<'_>> {
        self.post_as(JSON, path, body).await
    }

    /// `POST path` with a body of some type.
    pub(crate) async fn post_as(
        &mut self,
        content_type: &str,
        path: &str,
        body: &[u8],
    ) -> anyhow::Result<Answer<'_>> {
        self.out.clear();
        let length = body.len();
        write!(
            self.out,
            "POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: {content_type}\r\n\
             content-length: {length}\r\n\r\n"
        )?;
        self.out.extend_from_slice(body);
        self.send().await?;
        self.answer().await
    }

    /// Waits for the answer to what was sent.
    pub(crate) async fn answer(&mut self) -> anyhow::Result<Answer<'_>> {
        self.input.clear();
        let head = loop {
            self.fill(READ_BYTES).await?;
            if let Some(head) = Head::find(&self.input)? {
                break head;
            }
        };
        while let Some(left) = head.body_end.checked_sub(self.input.len()).filter(|left| *left > 0)
        {
            self.fill(left).await?;
        }
        let Head { status, retry_after_s, is_last, body_start, body_end } = head;
        self.is_ended = is_last;
        let body = self.input.get(body_start..body_end).unwrap_or_default();
        Ok(Answer { status, retry_after_s, body })
    }

    async fn send(&mut self) -> anyhow::Result<()> {
        if std::mem::take(&mut self.is_ended) {
            self.stream = open(self.port).await?;
        }
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

    /// Reads something; there is room for at least `bytes`.
    async fn fill(&mut self, bytes: usize) -> anyhow::Result<()> {
        self.input.reserve(bytes);
        loop {
            self.stream.readable().await?;
            match self.stream.try_read_buf(&mut self.input) {
                Ok(0) => bail!("the server closed the connection"),
                Ok(_) => return Ok(()),
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
        let mut retry_after_s = None;
        let mut is_last = false;
        for line in lines {
            let (name, value) = line.split_once(':').context("a header without a colon")?;
            if name.eq_ignore_ascii_case("content-length") {
                length = value.trim().parse()?;
            } else if name.eq_ignore_ascii_case("retry-after") {
                retry_after_s = Some(value.trim().parse()?);
            } else if name.eq_ignore_ascii_case("connection") {
                is_last = value.trim().eq_ignore_ascii_case("close");
            } else if name.eq_ignore_ascii_case("transfer-encoding") {
                bail!("an answer in chunks is not understood here");
            }
        }
        let body_start = end + 4;
        let (status, body_end) = (status.parse()?, body_start + length);
        Ok(Some(Self { status, retry_after_s, is_last, body_start, body_end }))
    }
}

async fn open(port: u16) -> anyhow::Result<TcpStream> {
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
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
        assert_eq!((head.retry_after_s, head.is_last), (None, false));
    }

    #[test]
    fn a_refusal_says_when_to_come_back() {
        let text = b"HTTP/1.1 429 Too Many Requests\r\nretry-after: 2\r\nconnection: close\r\n\r\n";
        let head = Head::find(text).unwrap().unwrap();
        assert_eq!((head.status, head.retry_after_s, head.is_last), (429, Some(2), true));
    }

    #[test]
    fn an_answer_without_length_has_no_body() {
        let head = Head::find(b"HTTP/1.1 204 No Content\r\n\r\n").unwrap().unwrap();
        assert_eq!((head.status, head.body_start), (204, head.body_end));
    }
}
