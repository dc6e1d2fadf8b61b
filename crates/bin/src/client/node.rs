//! A running node over HTTP: where it is, calls to it, and what a failed one means to a person.

mod address;
mod error;

use std::cell::Cell;
use std::fmt::{self, Display};
use std::io::{self, Read};
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use ureq::http::header::{AUTHORIZATION, CONTENT_TYPE, EXPECT, HeaderValue, RETRY_AFTER};
use ureq::http::{Method, Request, Response};
use ureq::tls::{Certificate, RootCerts, TlsConfig};
use ureq::{Agent, Body};

use super::failure::Failure;
pub(super) use error::CallError;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// A node answers within a minute, by its own deadlines; the rest is for the way.
const CALL_TIMEOUT: Duration = Duration::from_secs(90);
/// Bytes of an answer at most: far above what a node puts into one.
const REPLY_BYTES_MAX: u64 = 512 * 1024 * 1024;

/// Bodies above this are announced first: a node that refuses one closes before it has read it, and its answer would
/// be lost in the broken connection.
const EXPECT_BYTES: usize = 1024 * 1024;

/// Where the node is, and who asks; before a subcommand or behind it.
#[derive(Debug, clap::Args)]
pub(super) struct Connection {
    /// Where the node listens; https is spoken with the system's certificates.
    #[arg(long, global = true, env = "QUEEN_URL", value_name = "URL",
        default_value = address::DEFAULT)]
    url: String,
    /// A bearer token, for a node that asks for one; better in the variable than on the command line.
    #[arg(long, global = true, env = "QUEEN_TOKEN", value_name = "TOKEN", hide_env_values = true)]
    token: Option<Token>,
}

/// A token; it is never shown.
#[derive(Clone)]
struct Token(String);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

impl FromStr for Token {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self(text.to_owned()))
    }
}

/// A node.
pub(super) struct Node {
    agent: Agent,
    base: String,
    authorization: Option<HeaderValue>,
    /// Whether anything was ever answered: before that a lost connection is a wrong address.
    has_answered: Cell<bool>,
}

impl Node {
    /// Nothing is sent yet.
    ///
    /// # Errors
    /// The address is none, the token no header may hold, or this machine has no certificates for https.
    pub(super) fn new(connection: &Connection) -> Result<Self, Failure> {
        let base = address::base(&connection.url)?;
        let token = connection.token.as_ref().filter(|token| !token.0.is_empty());
        let mut config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .proxy(None)
            .user_agent(concat!("queen/", env!("CARGO_PKG_VERSION")))
            .timeout_connect(Some(CONNECT_TIMEOUT));
        if base.starts_with("https:") {
            config = config.tls_config(TlsConfig::builder().root_certs(roots()?).build());
        }
        Ok(Self {
            agent: config.build().new_agent(),
            base,
            authorization: token.map(header).transpose()?,
            has_answered: Cell::new(false),
        })
    }

    /// Makes a call.
    ///
    /// # Errors
    /// There is no answer, or one that is no success.
    pub(super) fn call(&self, call: &Call) -> Result<Reply, CallError> {
        let answer = self.send(call).and_then(|mut answer| {
            let body = answer.body_mut().with_config().limit(REPLY_BYTES_MAX).read_to_vec()?;
            Ok((answer, body))
        });
        let (answer, body) = answer.map_err(|error| self.no_answer(&error))?;
        self.has_answered.set(true);
        if answer.status().is_success() {
            return Ok(Reply { base: self.base.clone(), body });
        }
        let retry_after = answer.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok());
        let retry_after = retry_after.and_then(|text| text.trim().parse().ok());
        let asked_with_token = self.authorization.is_some();
        let mut error =
            CallError::of_status(&self.base, answer.status().as_u16(), &body, asked_with_token);
        error.retry_after = retry_after.map(Duration::from_secs);
        Err(error)
    }

    /// Makes a call without a body whose answer is read as it comes, however long that takes; its first byte may take
    /// as long as `waiting` says.
    ///
    /// # Errors
    /// As [`Node::call`].
    pub(super) fn stream(&self, call: &Call) -> Result<impl Read + Send + use<>, CallError> {
        let answer = self.request(call).body(()).map_err(ureq::Error::from).and_then(|request| {
            let request = self.agent.configure_request(request);
            self.agent.run(request.timeout_recv_response(Some(CALL_TIMEOUT + call.wait)).build())
        });
        let mut answer = answer.map_err(|error| self.no_answer(&error))?;
        self.has_answered.set(true);
        if answer.status().is_success() {
            return Ok(answer.into_body().into_with_config().limit(u64::MAX).reader());
        }
        let body = answer.body_mut().with_config().limit(REPLY_BYTES_MAX).read_to_vec();
        let body = body.map_err(|error| self.no_answer(&error))?;
        let with_token = self.authorization.is_some();
        Err(CallError::of_status(&self.base, answer.status().as_u16(), &body, with_token))
    }

    fn request(&self, call: &Call) -> ureq::http::request::Builder {
        let request =
            Request::builder().method(&call.method).uri(format!("{}{}", self.base, call.target));
        match &self.authorization {
            Some(token) => request.header(AUTHORIZATION, token),
            None => request,
        }
    }

    fn send(&self, call: &Call) -> Result<Response<Body>, ureq::Error> {
        let mut request = self.request(call);
        let limit = Some(CALL_TIMEOUT + call.wait);
        match &call.body {
            None => {
                let request = self.agent.configure_request(request.body(())?);
                self.agent.run(request.timeout_global(limit).build())
            }
            Some(body) => {
                if body.len() > EXPECT_BYTES {
                    request = request.header(EXPECT, "100-continue");
                }
                let request = request.header(CONTENT_TYPE, "application/json").body(&**body)?;
                let request = self.agent.configure_request(request);
                self.agent.run(request.timeout_global(limit).build())
            }
        }
    }

    fn no_answer(&self, error: &ureq::Error) -> CallError {
        CallError::no_answer(&self.base, error, self.has_answered.get())
    }
}

/// The header of a token.
fn header(token: &Token) -> Result<HeaderValue, Failure> {
    let mut header = HeaderValue::from_str(&format!("Bearer {}", token.0)).map_err(|_| {
        Failure::said("the token (--token, QUEEN_TOKEN) has characters that no token has")
    })?;
    header.set_sensitive(true);
    Ok(header)
}

/// The certificates of this machine.
fn roots() -> Result<RootCerts, Failure> {
    let found = rustls_native_certs::load_native_certs();
    if found.certs.is_empty() {
        return Err(Failure::said(
            "https needs root certificates and this machine has none: install them, or name a file of them in SSL_CERT_FILE",
        ));
    }
    let certs = found.certs.iter().map(|der| Certificate::from_der(der).to_owned());
    Ok(RootCerts::from(certs))
}

/// A request.
#[derive(Debug)]
pub(super) struct Call {
    method: Method,
    target: String,
    body: Option<Vec<u8>>,
    wait: Duration,
}

impl Call {
    /// A call of the route with these segments, each a text as it is.
    fn new(method: Method, segments: &[&str]) -> Self {
        let mut target = String::new();
        for segment in segments {
            target.push('/');
            target.extend(address::encoded(segment));
        }
        Self { method, target, body: None, wait: Duration::ZERO }
    }

    pub(super) fn get(segments: &[&str]) -> Self {
        Self::new(Method::GET, segments)
    }

    /// A call that asks for something to be done and says nothing more.
    pub(super) fn bare_post(segments: &[&str]) -> Self {
        Self::new(Method::POST, segments)
    }

    pub(super) fn delete(segments: &[&str]) -> Self {
        Self::new(Method::DELETE, segments)
    }

    /// # Errors
    /// The body cannot be written as JSON.
    pub(super) fn post(segments: &[&str], body: &impl Serialize) -> Result<Self, Failure> {
        let body = serde_json::to_vec(body);
        let body = body.map_err(|error| Failure::said(format!("no JSON: {error}")))?;
        Ok(Self { body: Some(body), ..Self::new(Method::POST, segments) })
    }

    /// With a parameter.
    pub(super) fn query(mut self, name: &str, value: impl Display) -> Self {
        self.target.push(if self.target.contains('?') { '&' } else { '?' });
        self.target.push_str(name);
        self.target.push('=');
        self.target.extend(address::encoded(&value.to_string()));
        self
    }

    /// With a parameter that may be absent.
    pub(super) fn query_some(self, name: &str, value: Option<impl Display>) -> Self {
        match value {
            Some(value) => self.query(name, value),
            None => self,
        }
    }

    /// The node may take this much longer.
    pub(super) fn waiting(self, wait: Duration) -> Self {
        Self { wait, ..self }
    }
}

/// A successful answer.
#[derive(Debug)]
pub(super) struct Reply {
    base: String,
    body: Vec<u8>,
}

impl Reply {
    /// Whether the answer has no body.
    pub(super) fn is_empty(&self) -> bool {
        self.body.is_empty()
    }

    /// The body.
    ///
    /// # Errors
    /// It is not what this route answers.
    pub(super) fn read<'a, T: Deserialize<'a>>(&'a self) -> Result<T, Failure> {
        serde_json::from_slice(&self.body).map_err(|error| self.foreign(&error))
    }

    /// A part of the body.
    ///
    /// # Errors
    /// As [`Reply::read`].
    pub(super) fn part<'a, T: Deserialize<'a>>(&self, part: &'a RawValue) -> Result<T, Failure> {
        serde_json::from_str(part.get()).map_err(|error| self.foreign(&error))
    }

    fn foreign(&self, error: &serde_json::Error) -> Failure {
        let base = &self.base;
        Failure::said(format!("{base} does not answer as a queen node does: {error}"))
    }
}

/// An error below HTTP in a person's words.
fn transport(error: &ureq::Error) -> String {
    match error {
        ureq::Error::Io(error) => match error.kind() {
            io::ErrorKind::ConnectionRefused => "connection refused".to_owned(),
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => {
                "the connection was closed before an answer".to_owned()
            }
            _ => error.to_string(),
        },
        ureq::Error::HostNotFound => "there is no host of this name".to_owned(),
        ureq::Error::Timeout(_) => "no answer in time".to_owned(),
        ureq::Error::BodyExceedsLimit(bytes) => format!("the answer has more than {bytes} bytes"),
        error => error.to_string(),
    }
}
