//! The one table of failures: status, code, headers and body shape.

use bytes::Bytes;
use hyper::header::{CONNECTION, CONTENT_TYPE, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use hyper::{Response, StatusCode};
use queen_broker::api::CallError;
use queen_model::Refusal;

use crate::answer::AnswerBody;
use crate::auth::Denied;
use crate::budget::Room;
use crate::forward;
use crate::json::Json;
use crate::query::BadQuery;

/// Every answer.
pub(crate) type Answer = Response<AnswerBody>;

/// How the body of a failure is written.
#[derive(Debug, PartialEq, Eq)]
enum Shape {
    /// `{"error","code"}`.
    Coded(&'static str),
    /// `{"error"}`.
    Bare,
    /// The text alone.
    Plain,
    /// `{"success":false,"error","messages":[]}`.
    Pop,
    /// `{"success":false,"error"}`.
    Unsuccessful,
    /// `{"ok":false,"code","error"}`.
    NotOk(&'static str),
    /// `{"code":"no_such_route","error","path"}`.
    NoRoute(String),
}

/// A request that is not carried out.
#[derive(Debug)]
pub(crate) struct ApiError {
    status: StatusCode,
    shape: Shape,
    text: String,
    retry_after_s: Option<u32>,
    /// The rest of the request was not read, so the connection cannot be used again.
    close: bool,
    /// Nothing was done, and another member may do it.
    unplaced: bool,
}

impl ApiError {
    fn new(status: StatusCode, shape: Shape, text: impl Into<String>) -> Self {
        Self {
            status,
            shape,
            text: text.into(),
            retry_after_s: None,
            close: false,
            unplaced: false,
        }
    }

    /// 400: the body is not this route's shape.
    pub(crate) fn bad_body(text: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, Shape::Coded("bad_body"), text)
    }

    /// 400: a field or parameter is missing or invalid.
    pub(crate) fn bad_request(text: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, Shape::Coded("bad_request"), text)
    }

    /// 400 without a code.
    pub(crate) fn bare_bad_request(text: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, Shape::Bare, text)
    }

    /// 400 of a pop that is refused for its parameters.
    pub(crate) fn bad_pop(text: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, Shape::Pop, text)
    }

    /// 400 with `success`.
    pub(crate) fn unsuccessful(text: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, Shape::Unsuccessful, text)
    }

    /// 404 with `success`.
    pub(crate) fn unsuccessful_missing(text: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, Shape::Unsuccessful, text)
    }

    /// Any failure of a route about the membership.
    pub(crate) fn not_ok(status: StatusCode, code: &'static str, text: impl Into<String>) -> Self {
        let error = Self::new(status, Shape::NotOk(code), text);
        if status == StatusCode::SERVICE_UNAVAILABLE { error.retry_after(1) } else { error }
    }

    /// The same of a failure that any route may have, in the words of those about the membership.
    pub(crate) fn into_not_ok(mut self) -> Self {
        let Shape::Coded(code) = self.shape else { return self };
        self.shape = Shape::NotOk(if code == "bad_body" { "bad_request" } else { code });
        self
    }

    /// A call that was handed on and has no answer, in those words.
    pub(crate) fn into_leader_silent(mut self) -> Self {
        match self.shape {
            Shape::Coded("retry" | "outcome_unknown") => {
                self.shape = Shape::NotOk("leader_unreachable");
            }
            Shape::Coded("timeout") => {
                self.shape = Shape::NotOk("timeout");
                self.status = StatusCode::GATEWAY_TIMEOUT;
            }
            _ => {}
        }
        self
    }

    /// 403: a page of another site asked a browser for this.
    pub(crate) fn cross_site() -> Self {
        let text = "requests that change something are not taken from another origin";
        Self::new(StatusCode::FORBIDDEN, Shape::Bare, text)
    }

    /// 404 of a read route.
    pub(crate) fn not_found(text: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, Shape::Bare, text)
    }

    /// 404 of a path that is no route.
    pub(crate) fn no_such_route(path: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, Shape::NoRoute(path.to_owned()), "not found")
    }

    /// 405 of a route that exists for other methods.
    pub(crate) fn method_not_allowed() -> Self {
        let shape = Shape::Coded("method_not_allowed");
        Self::new(StatusCode::METHOD_NOT_ALLOWED, shape, "this path has no such method")
    }

    /// 413 in plain text: the body is or would be longer than the limit.
    pub(crate) fn body_too_large(bytes_max: usize) -> Self {
        let text = format!("the request body is larger than {bytes_max} bytes");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, Shape::Plain, text).closing()
    }

    /// 408: the body did not arrive in time.
    pub(crate) fn body_too_slow() -> Self {
        let text = "timeout: the request body did not arrive in time";
        Self::new(StatusCode::REQUEST_TIMEOUT, Shape::Coded("timeout"), text).closing()
    }

    /// 429: bodies in flight leave no room for this one.
    pub(crate) fn bodies_overloaded() -> Self {
        let shape = Shape::Coded("overloaded");
        let text = "overloaded: too many request bodies are in flight";
        Self::new(StatusCode::TOO_MANY_REQUESTS, shape, text).retry_after(1).closing()
    }

    /// 413: a call with more elements than it may have.
    pub(crate) fn too_many(what: &str, max: usize) -> Self {
        let text = format!("at most {max} {what} in one call: send the rest in another");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, Shape::Coded("too_large"), text)
    }

    /// 413: the answer would have an element for each of the request, and be too large.
    pub(crate) fn answer_too_large(bytes: u64, max: u64) -> Self {
        let text = format!(
            "nothing was done: the answer could have {bytes} bytes, and {max} are the most: send fewer at a time"
        );
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, Shape::Coded("too_large"), text)
    }

    /// 429: answers that their clients do not take leave no room for another.
    pub(crate) fn answers_overloaded() -> Self {
        Self::overloaded("too many large answers wait for clients that do not read them")
    }

    /// 429 for another lack of memory.
    pub(crate) fn overloaded(text: &str) -> Self {
        let shape = Shape::Coded("overloaded");
        Self::new(StatusCode::TOO_MANY_REQUESTS, shape, format!("overloaded: {text}"))
            .retry_after(1)
    }

    /// 503: a stop does not wait for a body; nothing of the request was accepted.
    pub(crate) fn stopping() -> Self {
        let text = "the node is stopping; nothing of the request was accepted";
        Self::unavailable("retry", text.to_owned()).closing()
    }

    /// 400: the body broke off or its framing is wrong.
    pub(crate) fn body_broken(text: impl Into<String>) -> Self {
        Self::bad_body(text).closing()
    }

    /// 500: a handler panicked.
    pub(crate) fn panicked() -> Self {
        let shape = Shape::Coded("internal");
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, shape, "internal error")
    }

    /// A refusal for a parameter, in the shape that a pop has for it; anything else as it is.
    pub(crate) fn of_pop(error: CallError) -> Self {
        match error {
            CallError::Refused(Refusal::BadRequest(text)) => Self::bad_pop(text),
            error => Self::from(error),
        }
    }

    /// Ends the connection with this answer: the rest of the request was not read.
    pub(crate) fn closing(mut self) -> Self {
        self.close = true;
        self
    }

    /// Tells a member that handed the call on that it may hand it to another: nothing was done here.
    pub(crate) fn unplaced(mut self) -> Self {
        self.unplaced = true;
        self
    }

    fn retry_after(mut self, seconds: u32) -> Self {
        self.retry_after_s = Some(seconds);
        self
    }

    pub(crate) fn unavailable(code: &'static str, text: String) -> Self {
        // H4: without this word a consumer of the released clients stops.
        let text = if text.contains("timeout") { text } else { format!("timeout: {text}") };
        Self::new(StatusCode::SERVICE_UNAVAILABLE, Shape::Coded(code), text).retry_after(1)
    }

    fn body(&self) -> Bytes {
        let mut json = Json::with_capacity(self.text.len() + 64);
        json.raw("{");
        match &self.shape {
            Shape::Plain => return Bytes::from(self.text.clone()),
            Shape::Bare => json.field("error").string(&self.text),
            Shape::Coded(code) => json.field("error").string(&self.text).field("code").string(code),
            Shape::Pop => {
                json.field("success").bool(false).field("error").string(&self.text);
                json.field("messages").raw("[]")
            }
            Shape::Unsuccessful => {
                json.field("success").bool(false).field("error").string(&self.text)
            }
            Shape::NotOk(code) => {
                json.field("ok").bool(false).field("code").string(code);
                json.field("error").string(&self.text)
            }
            Shape::NoRoute(path) => {
                json.field("code").string("no_such_route").field("error").string(&self.text);
                json.field("path").string(path)
            }
        };
        json.raw("}");
        json.bytes()
    }

    pub(crate) fn into_answer(self) -> Answer {
        let body = self.body();
        let kind = if self.shape == Shape::Plain { "text/plain; charset=utf-8" } else { JSON };
        let mut answer = answer(self.status, kind, body);
        if let Some(seconds) = self.retry_after_s {
            answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            answer.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if self.close {
            answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        if self.unplaced {
            answer.headers_mut().insert(forward::UNPLACED, HeaderValue::from_static("1"));
        }
        answer
    }
}

impl From<BadQuery> for ApiError {
    fn from(error: BadQuery) -> Self {
        Self::bad_request(error.0)
    }
}

impl From<Denied> for ApiError {
    fn from(denied: Denied) -> Self {
        Self::new(denied.status(), Shape::Bare, denied.text())
    }
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> Self {
        let status = match refusal {
            Refusal::NameTooLong { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Refusal::TooLarge { .. } | Refusal::BadRequest(_) => StatusCode::BAD_REQUEST,
        };
        Self::new(status, Shape::Coded(refusal.code()), refusal.to_string())
    }
}

impl From<CallError> for ApiError {
    fn from(error: CallError) -> Self {
        let text = error.to_string();
        match error {
            CallError::Refused(refusal) => Self::from(refusal),
            CallError::Timeout(_) => Self::unavailable("timeout", text),
            CallError::NoLeader => Self::unavailable("no_leader", text),
            CallError::LeadLost => Self::unavailable("outcome_unknown", text),
            // The code for "this node could not bring the call to a leader": ask another, or again.
            CallError::NotServing(_) => Self::unavailable("retry", text),
            CallError::Overloaded { retry_after_s } => {
                let status = StatusCode::TOO_MANY_REQUESTS;
                let seconds = retry_after_s.clamp(1, 5);
                Self::new(status, Shape::Coded("overloaded"), text).retry_after(seconds)
            }
            CallError::BackupRunning => {
                Self::new(StatusCode::CONFLICT, Shape::Coded("backup_running"), text)
            }
            CallError::StorageFull => {
                Self::new(StatusCode::INSUFFICIENT_STORAGE, Shape::Coded("storage_full"), text)
            }
            CallError::Internal(_) => {
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, Shape::Coded("internal"), text)
            }
        }
    }
}

pub(crate) const JSON: &str = "application/json";

/// A JSON answer.
pub(crate) fn json(status: StatusCode, body: Json) -> Answer {
    answer(status, JSON, body.bytes())
}

/// 200 with a JSON body.
pub(crate) fn ok(body: Json) -> Answer {
    json(StatusCode::OK, body)
}

/// 200 with a JSON body for which room was reserved.
pub(crate) fn ok_in(room: Option<Room>, body: Json) -> Answer {
    json_in(StatusCode::OK, room, body)
}

/// A JSON answer for which room was reserved.
pub(crate) fn json_in(status: StatusCode, room: Option<Room>, body: Json) -> Answer {
    let mut answer = json(status, body);
    answer.body_mut().set_room(room);
    answer
}

/// 204: no body, no length, no content type.
pub(crate) fn no_content() -> Answer {
    let mut answer = Response::new(AnswerBody::default());
    *answer.status_mut() = StatusCode::NO_CONTENT;
    answer
}

/// An answer with a body of this content type.
pub(crate) fn answer(status: StatusCode, content_type: &'static str, body: Bytes) -> Answer {
    of_body(status, content_type, body.into())
}

/// An answer made of slices.
pub(crate) fn chunked(
    status: StatusCode,
    content_type: &'static str,
    chunks: Vec<Bytes>,
) -> Answer {
    of_body(status, content_type, AnswerBody::chunks(chunks))
}

/// An answer of this many bytes that is made while it is sent.
pub(crate) fn streamed(content_type: &'static str, body: AnswerBody) -> Answer {
    of_body(StatusCode::OK, content_type, body)
}

fn of_body(status: StatusCode, content_type: &'static str, body: AnswerBody) -> Answer {
    let mut answer = Response::new(body);
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    answer
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn check(error: CallError, status: u16, code: &str, retry_after: Option<&str>) {
        let error = ApiError::from(error);
        let body = String::from_utf8(error.body().to_vec()).unwrap();
        assert!(body.ends_with(&format!("\"code\":\"{code}\"}}")), "{body}");
        assert_eq!(body.contains("timeout"), status == 503, "{body}");
        let answer = error.into_answer();
        assert_eq!(answer.status().as_u16(), status);
        let header = answer.headers().get(RETRY_AFTER).map(|value| value.to_str().unwrap());
        assert_eq!(header, retry_after);
    }

    #[test]
    fn every_call_error_has_its_row() {
        let name = Refusal::NameTooLong { bytes: 500, max: 447 };
        check(name.into(), 413, "name_too_long", None);
        check(Refusal::TooLarge { bytes: 9, max: 8 }.into(), 400, "too_large", None);
        check(Refusal::BadRequest("no".into()).into(), 400, "bad_request", None);
        check(CallError::Timeout(Duration::from_secs(30)), 503, "timeout", Some("1"));
        check(CallError::Overloaded { retry_after_s: 0 }, 429, "overloaded", Some("1"));
        check(CallError::Overloaded { retry_after_s: 9 }, 429, "overloaded", Some("5"));
        check(CallError::StorageFull, 507, "storage_full", None);
        check(CallError::NotServing("loading".into()), 503, "retry", Some("1"));
        check(CallError::Internal("x".into()), 500, "internal", None);
    }

    #[test]
    fn an_unavailable_text_always_says_timeout() {
        let error = ApiError::unavailable("no_leader", "no leader".into());
        assert_eq!(error.text, "timeout: no leader");
    }
}
