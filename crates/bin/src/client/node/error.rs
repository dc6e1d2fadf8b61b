//! A call that failed: what it says to a person, and whether asking again can help.

use std::time::Duration;

use serde::Deserialize;

use super::transport;
use crate::client::failure::Failure;

/// Letters of a foreign body that are worth showing.
const SHOWN_MAX: usize = 200;

/// The code of a path that is no route.
const NO_ROUTE: &str = "no_such_route";

/// A call without success.
#[derive(Debug)]
pub(in crate::client) struct CallError {
    /// One line: what is wrong and what to do.
    pub(in crate::client) text: String,
    /// None when there was no answer.
    pub(in crate::client) status: Option<u16>,
    pub(in crate::client) code: Option<String>,
    /// Whether the same call may succeed a little later.
    pub(in crate::client) is_passing: bool,
    /// When, if the node said so.
    pub(in crate::client) retry_after: Option<Duration>,
}

/// What a node says when it refuses; any of its shapes.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Refusal {
    error: Option<String>,
    code: Option<String>,
}

impl CallError {
    /// Nothing came back. That passes if this node has answered before.
    pub(super) fn no_answer(base: &str, error: &ureq::Error, has_answered: bool) -> Self {
        let reason = transport(error);
        let text = if has_answered {
            format!("{base} does not answer any more ({reason})")
        } else {
            format!(
                "{base} cannot be reached ({reason}): start a node there, or name another with --url or QUEEN_URL"
            )
        };
        Self { text, status: None, code: None, is_passing: has_answered, retry_after: None }
    }

    /// An answer that is no success.
    pub(super) fn of_status(base: &str, status: u16, body: &[u8], with_token: bool) -> Self {
        let refusal: Refusal = serde_json::from_slice(body).unwrap_or_default();
        // A node says what it does not find; this one answers for something else.
        let is_foreign = status == 404 && refusal.error.is_none();
        let code = if is_foreign { Some(NO_ROUTE.to_owned()) } else { refusal.code };
        let shown = || String::from_utf8_lossy(body).chars().take(SHOWN_MAX).collect();
        let error = refusal.error.unwrap_or_else(shown);
        let text = match (status, code.as_deref()) {
            (300..=399, _) => format!(
                "{base} answers with a redirect ({status}): give --url the address it leads to"
            ),
            (401, _) if !with_token => {
                format!("{base} asks for a token ({error}): give one with QUEEN_TOKEN or --token")
            }
            (401, _) => format!(
                "{base} does not accept the token ({error}): give another with QUEEN_TOKEN or --token"
            ),
            (403, _) => format!(
                "{base} does not allow this ({error}): use a token whose role does, with QUEEN_TOKEN or --token"
            ),
            (404, Some(NO_ROUTE)) | (405, _) => format!(
                "{base} does not have this route ({status}): it is no queen node, or one of another version"
            ),
            (429 | 503, _) => format!("{base} cannot do this now ({status}: {error})"),
            (507, _) => {
                format!("{base} has no disk space left ({error}): free some on its machine")
            }
            (500, _) => format!("{base} failed ({error}): see its log"),
            _ => format!("{base} refuses this ({status}: {error})"),
        };
        let is_passing = matches!(status, 429 | 503);
        Self { text, status: Some(status), code, is_passing, retry_after: None }
    }

    /// Whether the object that the route names does not exist.
    pub(in crate::client) fn is_missing(&self) -> bool {
        self.status == Some(404) && self.code.is_none()
    }
}

impl From<CallError> for Failure {
    fn from(error: CallError) -> Self {
        let advice = if error.is_passing { ": try again later" } else { "" };
        Self::said(format!("{}{advice}", error.text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(status: u16, body: &str, with_token: bool, expected: &str) -> CallError {
        let error = CallError::of_status("http://h", status, body.as_bytes(), with_token);
        assert!(error.text.starts_with("http://h ") && error.text.contains(expected), "{error:?}");
        error
    }

    #[test]
    fn every_refusal_says_what_to_do() {
        let bare = r#"{"error":"E"}"#;
        check(401, bare, false, "(E): give one with QUEEN_TOKEN");
        check(401, bare, true, "(E): give another with");
        check(403, bare, true, "(E): use a token whose role does");
        check(413, "the request body is larger", false, "(413: the request body is larger");
        check(500, r#"{"error":"E","code":"internal"}"#, false, "failed (E): see its log");
        check(507, bare, false, "no disk space left (E): free some");
        check(302, "", false, "redirect (302)");
        let route = r#"{"code":"no_such_route","error":"not found","path":"/x"}"#;
        assert!(!check(404, route, false, "no queen node").is_missing());
        assert!(check(404, bare, false, "(404: E)").is_missing());
        assert!(!check(404, "<html>", false, "no queen node").is_missing());
        for status in [429, 503] {
            assert!(check(status, bare, false, "cannot do this now").is_passing);
        }
    }
}
