//! The table of routes. A path that is not here answers 404 `no_such_route`.
//!
//! Paths are split at `/` first and each name is percent-decoded once afterwards, so a name may hold any
//! character. An empty segment is no name: `//` and a slash at the end lead nowhere.

mod ack;
mod configure;
mod dead_letters;
mod groups;
mod health;
mod lease;
mod messages;
mod metrics;
mod pop;
mod push;
mod queues;
mod shared;

use bytes::Bytes;
use hyper::Method;
use percent_encoding::percent_decode_str;
use queen_broker::api::{Api, PopTarget};

use crate::app::Call;
use crate::error::{Answer, ApiError};

/// A route with its names.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Route {
    Push,
    Pop(PopTarget),
    Ack,
    Extend { lease: String },
    Configure,
    DeleteQueue { queue: String },
    Queues,
    Queue { queue: String },
    RefreshStats,
    DeadLetters,
    Message { partition: String, transaction_id: String },
    DeleteGroup { group: String, queue: Option<String> },
    Health,
    Metrics,
    Prometheus,
    Status,
}

/// Segments of the longest path.
const SEGMENTS_MAX: usize = 7;

impl Route {
    /// The route of a request.
    ///
    /// # Errors
    /// 404 for a path that is no route, 405 for a method it does not have, 400 for a name that is not UTF-8.
    pub(crate) fn find(method: &Method, path: &str) -> Result<Self, ApiError> {
        let mut segments = [""; SEGMENTS_MAX];
        let Some(rest) = path.strip_prefix('/') else {
            return Err(ApiError::no_such_route(path));
        };
        let mut count = 0;
        for segment in rest.split('/') {
            match segments.get_mut(count) {
                Some(slot) if !segment.is_empty() => *slot = segment,
                _ => return Err(ApiError::no_such_route(path)),
            }
            count += 1;
        }
        let segments = segments.get(..count).unwrap_or_default();
        // HEAD is GET without the body, but a pop changes something and has no HEAD.
        let wanted = if method == Method::HEAD { "GET" } else { method.as_str() };
        match Self::lookup(wanted, segments)? {
            Some(route) if method == Method::HEAD && route.is_change() => {
                Err(ApiError::method_not_allowed())
            }
            Some(route) => Ok(route),
            None => {
                for other in ["GET", "POST", "DELETE"] {
                    if Self::lookup(other, segments)?.is_some() {
                        return Err(ApiError::method_not_allowed());
                    }
                }
                Err(ApiError::no_such_route(path))
            }
        }
    }

    fn lookup(method: &str, segments: &[&str]) -> Result<Option<Self>, ApiError> {
        let route = match (method, segments) {
            ("POST", ["api", "v1", "push"]) => Self::Push,
            ("GET", ["api", "v1", "pop", "queue", queue]) => {
                Self::Pop(PopTarget::Queue(name(queue)?))
            }
            ("GET", ["api", "v1", "pop", "queue", queue, "partition", partition]) => {
                Self::Pop(PopTarget::Partition { queue: name(queue)?, partition: name(partition)? })
            }
            ("POST", ["api", "v1", "ack"] | ["api", "v1", "ack", "batch"]) => Self::Ack,
            ("POST", ["api", "v1", "lease", lease, "extend"]) => {
                Self::Extend { lease: name(lease)? }
            }
            ("POST", ["api", "v1", "configure"]) => Self::Configure,
            ("POST", ["api", "v1", "stats", "refresh"]) => Self::RefreshStats,
            ("GET", ["api", "v1", "resources", "queues"]) => Self::Queues,
            ("GET", ["api", "v1", "resources", "queues", queue]) => {
                Self::Queue { queue: name(queue)? }
            }
            ("DELETE", ["api", "v1", "resources", "queues", queue]) => {
                Self::DeleteQueue { queue: name(queue)? }
            }
            ("GET", ["api", "v1", "dlq"]) => Self::DeadLetters,
            ("GET", ["api", "v1", "messages", partition, transaction_id]) => {
                let (partition, transaction_id) = (name(partition)?, name(transaction_id)?);
                Self::Message { partition, transaction_id }
            }
            ("DELETE", ["api", "v1", "consumer-groups", group]) => {
                Self::DeleteGroup { group: name(group)?, queue: None }
            }
            ("DELETE", ["api", "v1", "consumer-groups", group, "queues", queue]) => {
                Self::DeleteGroup { group: name(group)?, queue: Some(name(queue)?) }
            }
            ("GET", ["health"]) => Self::Health,
            ("GET", ["metrics"]) => Self::Metrics,
            ("GET", ["metrics", "prometheus"]) => Self::Prometheus,
            ("GET", ["status"]) => Self::Status,
            _ => return Ok(None),
        };
        Ok(Some(route))
    }

    /// Whether carrying it out changes something; a pop leases or commits.
    pub(crate) fn is_change(&self) -> bool {
        match self {
            Self::Push
            | Self::Pop(_)
            | Self::Ack
            | Self::Extend { .. }
            | Self::Configure
            | Self::DeleteQueue { .. }
            | Self::RefreshStats
            | Self::DeleteGroup { .. } => true,
            Self::Queues
            | Self::Queue { .. }
            | Self::DeadLetters
            | Self::Message { .. }
            | Self::Health
            | Self::Metrics
            | Self::Prometheus
            | Self::Status => false,
        }
    }
}

/// Carries a request out.
pub(crate) async fn dispatch<A: Api>(
    call: &Call<'_, A>,
    route: Route,
    body: Bytes,
) -> Result<Answer, ApiError> {
    match route {
        Route::Push => push::push(call, &body).await,
        Route::Pop(target) => pop::pop(call, target).await,
        Route::Ack => ack::ack(call, &body).await,
        Route::Extend { lease } => lease::extend(call, lease, &body).await,
        Route::Configure => configure::configure(call, &body).await,
        Route::DeleteQueue { queue } => queues::delete(call, queue).await,
        Route::Queues => queues::list(call).await,
        Route::Queue { queue } => queues::detail(call, queue).await,
        Route::RefreshStats => Ok(metrics::refresh()),
        Route::DeadLetters => dead_letters::list(call).await,
        Route::Message { partition, transaction_id } => {
            messages::detail(call, &partition, transaction_id).await
        }
        Route::DeleteGroup { group, queue } => groups::delete(call, group, queue).await,
        Route::Health => Ok(health::health(call)),
        Route::Metrics => Ok(metrics::json(call)),
        Route::Prometheus => Ok(metrics::prometheus(call)),
        Route::Status => Ok(metrics::status()),
    }
}

/// The name in a path segment.
fn name(segment: &str) -> Result<String, ApiError> {
    match percent_decode_str(segment).decode_utf8() {
        Ok(name) => Ok(name.into_owned()),
        Err(_) => Err(ApiError::bad_request("a name in the path is not UTF-8")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(method: &Method, path: &str, expected: &Result<Route, u16>) {
        let found = Route::find(method, path);
        let found = found.map_err(|error| error.into_answer().status().as_u16());
        assert_eq!(&found, expected, "{method} {path}");
    }

    #[test]
    fn names_are_decoded_once_after_the_split() {
        let queue = |name: &str| Ok(Route::Queue { queue: name.to_owned() });
        check(&Method::GET, "/api/v1/resources/queues/a%2Fb%20c+d", &queue("a/b c+d"));
        check(&Method::GET, "/api/v1/resources/queues/%252F", &queue("%2F"));
        check(&Method::GET, "/api/v1/resources/queues/..%2f..%2fetc", &queue("../../etc"));
        check(&Method::GET, "/api/v1/resources/queues/%00;x", &queue("\0;x"));
        check(&Method::GET, "/api/v1/resources/queues/%FF", &Err(400));
        check(&Method::GET, "/api/v1/resources/queues/.", &queue("."));
    }

    #[test]
    fn a_path_has_one_spelling() {
        for path in [
            "/api/v1//push",
            "/api/v1/push/",
            "//health",
            "/",
            "*",
            "/api/v1/%70ush",
            "/API/v1/push",
        ] {
            check(&Method::POST, path, &Err(404));
        }
        check(&Method::GET, "/api/v1/pop", &Err(404));
        check(&Method::GET, "/a/b/c/d/e/f/g/h/i/j", &Err(404));
    }

    #[test]
    fn methods() {
        check(&Method::HEAD, "/health", &Ok(Route::Health));
        check(&Method::HEAD, "/api/v1/pop/queue/q", &Err(405));
        check(&Method::GET, "/api/v1/push", &Err(405));
        check(&Method::PUT, "/api/v1/resources/queues/q", &Err(405));
        check(&Method::from_bytes(b"get").unwrap(), "/health", &Err(405));
    }
}
