//! From a path to a handler. A path that is no route answers 404 `no_such_route`.
//!
//! Paths are split at `/` first and each name is percent-decoded once afterwards, so a name may hold any
//! character. An empty segment is no name: `//` and a slash at the end lead nowhere.

pub(crate) mod ack;
mod backup;
mod browse;
mod changed;
pub(crate) mod configure;
mod dead_letters;
mod depth;
pub(crate) mod fetch;
mod group_reads;
mod groups;
mod health;
mod lease;
pub(crate) mod members;
mod messages;
mod metrics;
mod overview;
mod pop;
mod positions;
pub(crate) mod push;
mod queues;
mod raft;
mod shared;
mod table;
mod transaction;

use bytes::Bytes;
use hyper::{Method, StatusCode};
use percent_encoding::percent_decode_str;
use queen_broker::api::{Api, Label, LetterRef, PopTarget};
use queen_record::ids::Uuid;

use crate::app::Call;
use crate::error::{self, Answer, ApiError};
use crate::openapi;
pub(crate) use push::PARTITION_DEFAULT;
pub(crate) use shared::wide;
use table::{Effect, SEGMENTS_MAX};
pub(crate) use table::{Op, RouteSpec, TABLE};
pub(crate) use transaction::{Bundle, Shape, framed};

/// A route of the table with the names of one request.
#[derive(Debug)]
pub(crate) struct Route {
    pub(crate) spec: &'static RouteSpec,
    names: Vec<String>,
}

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
        let is_head = method == Method::HEAD;
        let wanted = if is_head { "GET" } else { method.as_str() };
        match table::find(wanted, segments) {
            Some((spec, _)) if is_head && spec.effect == Effect::Changes => {
                Err(ApiError::method_not_allowed())
            }
            Some((spec, names)) => {
                let names = names.into_iter().map(name).collect::<Result<_, _>>()?;
                Ok(Self { spec, names })
            }
            None if table::exists(segments) => Err(ApiError::method_not_allowed()),
            None => Err(ApiError::no_such_route(path)),
        }
    }

    /// Whether it is about the node that is asked, not about what the cluster holds.
    pub(crate) fn is_local(&self) -> bool {
        matches!(
            self.spec.op,
            Op::Health | Op::Metrics | Op::Prometheus | Op::Status | Op::OpenApi | Op::Backup
        ) || matches!(self.spec.op, Op::RaftStatus | Op::RaftMembers | Op::RaftLiveness)
    }

    /// Whether it may be asked again when it is not known whether it was carried out: a read, and a pop, which gives what it
    /// leased back with time.
    pub(crate) fn may_repeat(&self) -> bool {
        let is_pop = matches!(self.spec.op, Op::PopQueue | Op::PopPartition | Op::PopLabels);
        is_pop || !self.is_change()
    }

    /// Whether carrying it out changes something.
    pub(crate) fn is_change(&self) -> bool {
        self.spec.effect == Effect::Changes
    }
}

/// Carries a request out.
pub(crate) async fn dispatch<A: Api>(
    call: &Call<'_, A>,
    route: Route,
    body: Bytes,
) -> Result<Answer, ApiError> {
    let mut names = route.names.into_iter();
    // The table's own test holds that a path has the names that its handler takes.
    let mut name = || names.next().unwrap_or_default();
    match route.spec.op {
        Op::Push => push::push(call, &body).await,
        Op::PopQueue => pop::pop(call, PopTarget::Queue(name())).await,
        Op::PopPartition => {
            pop::pop(call, PopTarget::Partition { queue: name(), partition: name() }).await
        }
        Op::PopLabels => pop::pop_labels(call).await,
        Op::Transaction => transaction::transaction(call, &body).await,
        Op::Ack => ack::ack(call, &body).await,
        Op::Extend => lease::extend(call, name(), &body).await,
        Op::Configure => configure::configure(call, &body).await,
        Op::DeleteQueue => queues::delete(call, name()).await,
        Op::Queues => queues::list(call).await,
        Op::Queue => queues::detail(call, name()).await,
        Op::Depth => depth::depth(call, name()).await,
        Op::BusyPartitions => depth::busy(call).await,
        Op::Namespaces => overview::labels(call, Label::Namespace).await,
        Op::Tasks => overview::labels(call, Label::Task).await,
        Op::Overview => overview::overview(call).await,
        Op::Backup => backup::take(call).await,
        Op::RefreshStats => Ok(metrics::refresh()),
        Op::DeadLetters => dead_letters::list(call).await,
        Op::Messages => browse::list(call).await,
        Op::Groups => group_reads::list(call).await,
        Op::Lagging => group_reads::lagging(call).await,
        Op::Group => group_reads::detail(call, name()).await,
        Op::Positions => positions::positions(call, &body).await,
        Op::Fetch => fetch::fetch(call, &body).await,
        Op::Offsets => fetch::offsets(call, &body).await,
        Op::Changed => changed::changed(call, &body).await,
        Op::Message => {
            let partition = name();
            messages::detail(call, &partition, name()).await
        }
        Op::ReplayLetter => {
            let letter = Uuid::parse(&name()).map(LetterRef::Id);
            dead_letters::replay(call, letter, &body).await
        }
        Op::RetryMessage => {
            let (partition, transaction_id) = (messages::partition_ref(&name()), name());
            let of = |partition| LetterRef::Message { partition, transaction_id };
            dead_letters::replay(call, partition.map(of), &body).await
        }
        Op::PurgeLetters => dead_letters::purge(call).await,
        Op::DeleteMessageLetters => {
            let partition = name();
            dead_letters::delete_of_message(call, &partition, name()).await
        }
        Op::Resubscribe => groups::resubscribe(call, name(), &body).await,
        Op::Seek => groups::seek(call, (name(), name(), None), &body).await,
        Op::SeekPartition => groups::seek(call, (name(), name(), Some(name())), &body).await,
        Op::DeleteGroup => groups::delete(call, name(), None).await,
        Op::DeleteGroupOnQueue => {
            let group = name();
            groups::delete(call, group, Some(name())).await
        }
        Op::Membership => members::view(call).await,
        Op::AddLearner => members::add(call, &body).await,
        Op::Promote => members::promote(call, &body).await,
        Op::SetVoters => members::set(call, &body).await,
        Op::RemoveMember => members::remove(call, &name()).await,
        Op::RaftStatus => raft::status(call),
        Op::RaftMembers => raft::members(call).await,
        Op::RaftLiveness => raft::liveness(call),
        Op::OpenApi => Ok(error::answer(StatusCode::OK, error::JSON, openapi::text())),
        Op::Health => Ok(health::health(call)),
        Op::Metrics => Ok(metrics::json(call)),
        Op::Prometheus => Ok(metrics::prometheus(call)),
        Op::Status => Ok(metrics::status()),
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

    fn check(method: &Method, path: &str, expected: Result<(Op, &[&str]), u16>) {
        let found = Route::find(method, path);
        let found = match &found {
            Ok(route) => Ok((route.spec.op, route.names.iter().map(String::as_str).collect())),
            Err(_) => Err(()),
        };
        match (found, expected) {
            (Ok(found), Ok((op, names))) => {
                assert_eq!(found, (op, names.to_vec()), "{method} {path}");
            }
            (Err(()), Err(status)) => {
                let error = Route::find(method, path).unwrap_err();
                assert_eq!(error.into_answer().status().as_u16(), status, "{method} {path}");
            }
            (found, expected) => panic!("{method} {path}: {found:?}, expected {expected:?}"),
        }
    }

    #[test]
    fn names_are_decoded_once_after_the_split() {
        let find = |path: &str, name: &str| check(&Method::GET, path, Ok((Op::Queue, &[name])));
        find("/api/v1/resources/queues/a%2Fb%20c+d", "a/b c+d");
        find("/api/v1/resources/queues/%252F", "%2F");
        find("/api/v1/resources/queues/..%2f..%2fetc", "../../etc");
        find("/api/v1/resources/queues/%00;x", "\0;x");
        find("/api/v1/resources/queues/.", ".");
        check(&Method::GET, "/api/v1/resources/queues/%FF", Err(400));
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
            check(&Method::POST, path, Err(404));
        }
        check(&Method::GET, "/a/b/c/d/e/f/g/h/i/j", Err(404));
    }

    #[test]
    fn methods() {
        check(&Method::HEAD, "/health", Ok((Op::Health, &[])));
        check(&Method::HEAD, "/api/v1/pop/queue/q", Err(405));
        check(&Method::GET, "/api/v1/push", Err(405));
        check(&Method::PUT, "/api/v1/resources/queues/q", Err(405));
        check(&Method::from_bytes(b"get").unwrap(), "/health", Err(405));
    }
}
