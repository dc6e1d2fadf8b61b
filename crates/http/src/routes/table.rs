//! The one table of routes: method, path, what it does, and who may call it.
//!
//! A route has all four or it cannot be written down. Where a name and a fixed segment could both stand, the fixed one
//! is tried first, and the name when that leads nowhere: a group may be called `lagging`.

use std::sync::LazyLock;

use crate::auth::Level;
use Effect::{Changes, Reads};
use Level::{Admin, Public, ReadOnly, ReadWrite, WriteOnly};

/// What a route does; the names of its path come beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Push,
    PopQueue,
    PopPartition,
    PopLabels,
    Ack,
    Transaction,
    Extend,
    Configure,
    Queues,
    Queue,
    Depth,
    DeleteQueue,
    BusyPartitions,
    Namespaces,
    Tasks,
    Overview,
    RefreshStats,
    Backup,
    DeadLetters,
    Messages,
    Message,
    ReplayLetter,
    RetryMessage,
    PurgeLetters,
    DeleteMessageLetters,
    Resubscribe,
    Seek,
    SeekPartition,
    Groups,
    Lagging,
    Group,
    Positions,
    Fetch,
    Offsets,
    Changed,
    DeleteGroup,
    DeleteGroupOnQueue,
    Membership,
    AddLearner,
    Promote,
    SetVoters,
    RemoveMember,
    RaftStatus,
    RaftMembers,
    RaftLiveness,
    OpenApi,
    Health,
    Metrics,
    Prometheus,
    Status,
}

/// Whether carrying a request out changes something; a pop leases or commits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    Reads,
    Changes,
}

/// One row of the table.
#[derive(Debug)]
pub(crate) struct RouteSpec {
    pub(crate) method: &'static str,
    /// Names stand in braces.
    pub(crate) path: &'static str,
    pub(crate) op: Op,
    pub(crate) effect: Effect,
    pub(crate) level: Level,
}

const fn row(
    method: &'static str,
    path: &'static str,
    op: Op,
    effect: Effect,
    level: Level,
) -> RouteSpec {
    RouteSpec { method, path, op, effect, level }
}

/// Every route.
#[rustfmt::skip]
pub(crate) static TABLE: &[RouteSpec] = &[
    row("POST", "/api/v1/push", Op::Push, Changes, WriteOnly),
    row("GET", "/api/v1/pop/queue/{queue}", Op::PopQueue, Changes, ReadWrite),
    row("GET", "/api/v1/pop/queue/{queue}/partition/{partition}", Op::PopPartition, Changes, ReadWrite),
    row("GET", "/api/v1/pop", Op::PopLabels, Changes, ReadWrite),
    row("POST", "/api/v1/transaction", Op::Transaction, Changes, ReadWrite),
    row("POST", "/api/v1/ack", Op::Ack, Changes, ReadWrite),
    row("POST", "/api/v1/ack/batch", Op::Ack, Changes, ReadWrite),
    row("POST", "/api/v1/lease/{lease}/extend", Op::Extend, Changes, ReadWrite),
    row("POST", "/api/v1/configure", Op::Configure, Changes, ReadWrite),
    row("POST", "/api/v1/backup", Op::Backup, Changes, Admin),
    row("POST", "/api/v1/stats/refresh", Op::RefreshStats, Changes, Admin),
    row("GET", "/api/v1/resources/queues", Op::Queues, Reads, ReadOnly),
    row("GET", "/api/v1/resources/queues/{queue}", Op::Queue, Reads, ReadOnly),
    row("DELETE", "/api/v1/resources/queues/{queue}", Op::DeleteQueue, Changes, Admin),
    row("GET", "/api/v1/resources/queues/{queue}/depth", Op::Depth, Reads, ReadOnly),
    row("GET", "/api/v1/resources/partitions", Op::BusyPartitions, Reads, ReadOnly),
    row("GET", "/api/v1/resources/namespaces", Op::Namespaces, Reads, ReadOnly),
    row("GET", "/api/v1/resources/tasks", Op::Tasks, Reads, ReadOnly),
    row("GET", "/api/v1/resources/overview", Op::Overview, Reads, ReadOnly),
    row("GET", "/api/v1/dlq", Op::DeadLetters, Reads, ReadOnly),
    row("GET", "/api/v1/messages", Op::Messages, Reads, ReadOnly),
    row("GET", "/api/v1/messages/{partition}/{transactionId}", Op::Message, Reads, ReadOnly),
    row("DELETE", "/api/v1/dlq", Op::PurgeLetters, Changes, ReadWrite),
    row("POST", "/api/v1/dlq/{id}/replay", Op::ReplayLetter, Changes, ReadWrite),
    row("POST", "/api/v1/messages/{partition}/{transactionId}/retry", Op::RetryMessage, Changes, ReadWrite),
    row("DELETE", "/api/v1/messages/{partition}/{transactionId}", Op::DeleteMessageLetters, Changes, ReadWrite),
    row("POST", "/api/v1/consumer-groups/{group}/subscription", Op::Resubscribe, Changes, ReadWrite),
    row("POST", "/api/v1/consumer-groups/{group}/queues/{queue}/seek", Op::Seek, Changes, ReadWrite),
    row("POST", "/api/v1/consumer-groups/{group}/queues/{queue}/partitions/{partition}/seek", Op::SeekPartition, Changes, ReadWrite),
    row("GET", "/api/v1/consumer-groups", Op::Groups, Reads, ReadOnly),
    row("GET", "/api/v1/consumer-groups/lagging", Op::Lagging, Reads, ReadOnly),
    row("POST", "/api/v1/consumer-groups/positions", Op::Positions, Reads, ReadOnly),
    row("GET", "/api/v1/consumer-groups/{group}", Op::Group, Reads, ReadOnly),
    row("POST", "/api/v1/fetch", Op::Fetch, Reads, ReadOnly),
    row("POST", "/api/v1/fetch/offsets", Op::Offsets, Reads, ReadOnly),
    row("POST", "/api/v1/partitions/changed", Op::Changed, Reads, ReadOnly),
    row("DELETE", "/api/v1/consumer-groups/{group}", Op::DeleteGroup, Changes, Admin),
    row("DELETE", "/api/v1/consumer-groups/{group}/queues/{queue}", Op::DeleteGroupOnQueue, Changes, Admin),
    row("GET", "/api/v1/system/raft/membership", Op::Membership, Reads, Admin),
    row("POST", "/api/v1/system/raft/membership/learners", Op::AddLearner, Changes, Admin),
    row("POST", "/api/v1/system/raft/membership/promote", Op::Promote, Changes, Admin),
    row("PUT", "/api/v1/system/raft/membership/voters", Op::SetVoters, Changes, Admin),
    row("DELETE", "/api/v1/system/raft/membership/members/{id}", Op::RemoveMember, Changes, Admin),
    row("GET", "/api/v1/raft/status", Op::RaftStatus, Reads, ReadOnly),
    row("GET", "/api/v1/raft/members", Op::RaftMembers, Reads, ReadOnly),
    row("GET", "/api/v1/raft/liveness", Op::RaftLiveness, Reads, ReadOnly),
    row("GET", "/api/v1/openapi.json", Op::OpenApi, Reads, Public),
    row("GET", "/health", Op::Health, Reads, Public),
    row("GET", "/metrics", Op::Metrics, Reads, Public),
    row("GET", "/metrics/prometheus", Op::Prometheus, Reads, Public),
    row("GET", "/status", Op::Status, Reads, ReadOnly),
];

/// The table as a tree of segments.
#[derive(Debug, Default)]
struct Tree {
    fixed: Vec<(&'static str, Tree)>,
    name: Option<Box<Tree>>,
    routes: Vec<&'static RouteSpec>,
}

static TREE: LazyLock<Tree> = LazyLock::new(|| {
    let mut tree = Tree::default();
    for spec in TABLE {
        tree.insert(spec);
    }
    tree
});

impl Tree {
    fn insert(&mut self, spec: &'static RouteSpec) {
        let mut node = self;
        for segment in spec.path.trim_start_matches('/').split('/') {
            node = if segment.starts_with('{') {
                node.name.get_or_insert_default()
            } else {
                let at = node.fixed.iter().position(|(fixed, _)| *fixed == segment);
                let at = at.unwrap_or_else(|| {
                    node.fixed.push((segment, Self::default()));
                    node.fixed.len() - 1
                });
                match node.fixed.get_mut(at) {
                    Some((_, child)) => child,
                    None => unreachable!("it was just found or added"),
                }
            };
        }
        node.routes.push(spec);
    }

    /// The route under a path, and the segments that stand for names.
    fn find<'a>(
        &self,
        method: &str,
        segments: &[&'a str],
        names: &mut Vec<&'a str>,
    ) -> Option<&'static RouteSpec> {
        let Some((first, rest)) = segments.split_first() else {
            return self
                .routes
                .iter()
                .find(|spec| method.is_empty() || spec.method == method)
                .copied();
        };
        let fixed = self.fixed.iter().find(|(fixed, _)| fixed == first);
        if let Some((_, child)) = fixed
            && let Some(found) = child.find(method, rest, names)
        {
            return Some(found);
        }
        let child = self.name.as_ref()?;
        names.push(first);
        let found = child.find(method, rest, names);
        if found.is_none() {
            names.pop();
        }
        found
    }
}

/// The route of these segments, with the segments that stand for names, in order.
pub(super) fn find<'a>(
    method: &str,
    segments: &[&'a str],
) -> Option<(&'static RouteSpec, Vec<&'a str>)> {
    let mut names = Vec::new();
    TREE.find(method, segments, &mut names).map(|spec| (spec, names))
}

/// Whether a path is there for any method.
pub(super) fn exists(segments: &[&str]) -> bool {
    TREE.find("", segments, &mut Vec::new()).is_some()
}

/// Segments of the longest path.
pub(super) const SEGMENTS_MAX: usize = 9;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_found_under_its_own_path_and_no_two_are_the_same() {
        for spec in TABLE {
            let segments: Vec<&str> = spec.path.trim_start_matches('/').split('/').collect();
            assert!(segments.len() <= SEGMENTS_MAX, "{}", spec.path);
            let (found, names) = find(spec.method, &segments).unwrap();
            assert!(std::ptr::eq(found, spec), "{} {}", spec.method, spec.path);
            let expected = segments.iter().filter(|segment| segment.starts_with('{')).count();
            assert_eq!(names.len(), expected, "{}", spec.path);
        }
    }

    #[test]
    fn what_changes_something_asks_for_more_than_reading() {
        for spec in TABLE {
            let may_read = matches!(spec.level, Public | ReadOnly);
            // Who the members are is the operator's to know.
            let is_read = spec.effect == Reads && spec.op != Op::Membership;
            assert_eq!(may_read, is_read, "{} {}", spec.method, spec.path);
        }
    }
}
