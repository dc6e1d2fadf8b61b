//! Calls that another member serves: handed on as they came, once.
//!
//! F1. A call is handed on at most once: what comes from another member and cannot be served here is refused, so that two
//! nodes that take each other for the leader do not play ball.
//! F2. What was handed on and not answered may have been carried out: only what may be repeated is sent again from here, that
//! is reads and pops, and a pop says then how long it has waited.
//! F3. A member that cannot serve what was handed to it says so in a header, having done nothing: that is handed on again.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::header::{
    AUTHORIZATION, CONNECTION, CONTENT_LENGTH, EXPECT, HOST, HeaderName, HeaderValue, ORIGIN,
    REFERER, TRANSFER_ENCODING, UPGRADE,
};
use hyper::http::request::Parts;
use hyper::{HeaderMap, Request, Response, StatusCode, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;

use crate::answer::AnswerBody;
use crate::error::{Answer, ApiError};

/// What marks a call that was handed on.
const FORWARDED: HeaderName = HeaderName::from_static("x-queen-forwarded");
/// What marks the answer to such a call by a member that does not lead, or not yet.
pub(crate) const UNPLACED: HeaderName = HeaderName::from_static("x-queen-unplaced");
/// How long a call that is handed on has waited already.
const WAITED_MS: HeaderName = HeaderName::from_static("x-queen-waited-ms");
const CONNECT_MAX: Duration = Duration::from_secs(2);
/// A connection that was idle for longer is not used again: the other side may be closing it.
const IDLE_MAX: Duration = Duration::from_secs(30);
const ANSWER_MAX: Duration = Duration::from_mins(2);
/// Bytes of an answer that is handed back at most; the largest that a node makes are well below.
const ANSWER_BYTES_MAX: usize = 512 << 20;

/// Hands calls on to other members.
#[derive(Clone, Debug)]
pub(crate) struct Forwarder(Client<HttpConnector, Full<Bytes>>);

impl Default for Forwarder {
    fn default() -> Self {
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(CONNECT_MAX));
        connector.set_nodelay(true);
        let mut client = Client::builder(TokioExecutor::new());
        Self(client.pool_idle_timeout(IDLE_MAX).build(connector))
    }
}

/// Whether the call comes from another member.
pub(crate) fn is_forwarded(headers: &HeaderMap) -> bool {
    headers.contains_key(FORWARDED)
}

/// How long a call had waited at the member that handed it on.
pub(crate) fn waited(headers: &HeaderMap) -> Duration {
    let millis = headers.get(WAITED_MS).filter(|_| is_forwarded(headers));
    let millis = millis.and_then(|value| value.to_str().ok()?.parse().ok());
    Duration::from_millis(millis.unwrap_or(0))
}

impl Forwarder {
    /// Asks the member at `host:port` the same; `waited` is how long the call has been here.
    pub(crate) async fn forward(
        &self,
        parts: &Parts,
        body: Bytes,
        (address, waited): (&str, Duration),
    ) -> Result<Answer, NotForwarded> {
        let unsent = |reason: String| {
            let text = format!("the leader at {address} cannot be reached: {reason}");
            NotForwarded::Unsent(ApiError::unavailable("retry", text))
        };
        let unknown =
            |text: String| NotForwarded::Unknown(ApiError::unavailable("outcome_unknown", text));
        let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
        let uri = format!("http://{address}{path}").parse::<Uri>();
        let uri = uri.map_err(|error| unsent(error.to_string()))?;
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = parts.method.clone();
        *request.uri_mut() = uri;
        *request.headers_mut() = end_to_end(&parts.headers);
        // Where it comes from was held against this node's name, and is another's business from here on.
        for name in [ORIGIN, REFERER, HeaderName::from_static("sec-fetch-site")] {
            request.headers_mut().remove(name);
        }
        request.headers_mut().insert(FORWARDED, HeaderValue::from_static("1"));
        let millis = u64::try_from(waited.as_millis()).unwrap_or(u64::MAX);
        request.headers_mut().insert(WAITED_MS, HeaderValue::from(millis));
        let asked = async {
            let answer = self.0.request(request).await.map_err(|error| {
                if error.is_connect() {
                    return unsent(error.to_string());
                }
                unknown(format!("the leader at {address} does not answer: {error}"))
            })?;
            let (parts, body) = answer.into_parts();
            let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await.map_err(|error| {
                unknown(format!("the answer of the leader at {address} broke off: {error}"))
            })?;
            Ok((parts, body.to_bytes()))
        };
        let Ok(answered) = tokio::time::timeout(ANSWER_MAX, asked).await else {
            let text = format!("the leader at {address} has not answered within {ANSWER_MAX:?}");
            return Err(NotForwarded::Unknown(ApiError::unavailable("timeout", text)));
        };
        let (answered, body) = answered?;
        if answered.headers.contains_key(UNPLACED) {
            return Err(unsent("it does not lead, or not yet".to_owned()));
        }
        let mut answer = Response::new(AnswerBody::from(body));
        *answer.status_mut() = answered.status;
        *answer.headers_mut() = end_to_end(&answered.headers);
        Ok(answer)
    }
}

impl Forwarder {
    /// Asks the member at `host:port` for something of its own, with the right of whoever sent these headers.
    ///
    /// # Errors
    /// Why there is no answer, for a person.
    pub(crate) async fn ask(
        &self,
        headers: &HeaderMap,
        address: &str,
        path: &str,
        bytes_max: usize,
    ) -> Result<Bytes, String> {
        let mut request = Request::new(Full::default());
        let uri = format!("http://{address}{path}").parse::<Uri>();
        *request.uri_mut() = uri.map_err(|error| format!("{address} is no address: {error}"))?;
        if let Some(right) = headers.get(AUTHORIZATION) {
            request.headers_mut().insert(AUTHORIZATION, right.clone());
        }
        request.headers_mut().insert(FORWARDED, HeaderValue::from_static("1"));
        let answer = self.0.request(request).await;
        let answer = answer.map_err(|error| format!("{address} cannot be reached: {error}"))?;
        let (parts, body) = answer.into_parts();
        if parts.status != StatusCode::OK {
            return Err(format!("{address} answers {}", parts.status));
        }
        let body = Limited::new(body, bytes_max).collect().await;
        Ok(body.map_err(|error| format!("the answer of {address} broke off: {error}"))?.to_bytes())
    }
}

/// Why a call that was handed on has no answer.
#[derive(Debug)]
pub(crate) enum NotForwarded {
    /// Nothing was sent: it may be tried again.
    Unsent(ApiError),
    /// It may have been carried out.
    Unknown(ApiError),
}

/// The headers that are not about one connection.
fn end_to_end(headers: &HeaderMap) -> HeaderMap {
    const HOP: [HeaderName; 6] =
        [CONNECTION, CONTENT_LENGTH, EXPECT, HOST, TRANSFER_ENCODING, UPGRADE];
    let kept = headers.iter().filter(|(name, _)| !HOP.contains(name));
    kept.map(|(name, value)| (name.clone(), value.clone())).collect()
}
