//! What each operation takes and answers, in the notation of shapes.

use crate::routes::Op;

/// One operation for a reader.
#[derive(Debug)]
pub(crate) struct Described {
    /// The area that it belongs to.
    pub(crate) tag: &'static str,
    pub(crate) summary: &'static str,
    pub(crate) query: &'static [Param],
    /// The shape of its JSON body.
    pub(crate) body: Option<Body>,
    /// Status, shape (empty for no body) and when.
    pub(crate) answers: &'static [(u16, &'static str, &'static str)],
}

/// One parameter of the query: name, shape, meaning.
pub(crate) type Param = (&'static str, &'static str, &'static str);

/// A JSON body.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Body {
    pub(crate) shape: &'static str,
    /// Whether the request may come without one.
    pub(crate) optional: bool,
    /// A binary form that the route takes too.
    pub(crate) binary: bool,
}

const fn body(shape: &'static str) -> Body {
    Body { shape, optional: false, binary: false }
}

const fn optional(shape: &'static str) -> Body {
    Body { shape, optional: true, binary: false }
}

const fn or_binary(shape: &'static str) -> Body {
    Body { shape, optional: false, binary: true }
}

const POP: &[Param] = &[
    ("consumerGroup", "string", "who consumes; without it queue mode, one shared cursor"),
    ("batch", "int", "messages at most, 1 to 10000, 200 by default"),
    ("partitions", "int", "partitions at most, 1 to 64, 1 by default"),
    ("wait", "bool", "stay open until there is a message"),
    ("timeout", "int", "milliseconds of that wait, 1 to 60000"),
    ("leaseSeconds", "int", "how long the messages are held; the queue's leaseTime by default"),
    ("commitOnDelivery", "bool", "nothing to acknowledge: delivered is done"),
    ("autoAck", "bool", "an older name of commitOnDelivery"),
    ("subscriptionMode", "string", "where a group that does not exist yet starts: new or all"),
    ("subscriptionFrom", "string", "the same as a time, or now"),
    ("conflation", "bool", "deliver only the newest message of a partition"),
    ("autopilot", "bool", "let the broker choose batch and partitions where they are left out"),
    ("frames", "bool", "answer with stored records, application/x-queen-pop"),
];

const LABELS: &[Param] = &[
    ("namespace", "string", "only queues of this namespace"),
    ("task", "string", "only queues of this task"),
    ("consumerGroup", "string", "who consumes"),
    ("batch", "int", "messages at most, 1 to 10000"),
    ("partitions", "int", "partitions at most, 1 to 64"),
    ("leaseSeconds", "int", "how long the messages are held, 60 by default"),
    ("commitOnDelivery", "bool", "nothing to acknowledge"),
    ("autoAck", "bool", "an older name of commitOnDelivery"),
    ("subscriptionMode", "string", "where a new group starts"),
    ("subscriptionFrom", "string", "the same as a time, or now"),
    ("conflation", "bool", "deliver only the newest message of a partition"),
    ("autopilot", "bool", "let the broker choose batch and partitions where they are left out"),
    ("frames", "bool", "answer with stored records, application/x-queen-pop"),
];

const POPPED: &[(u16, &str, &str)] = &[
    (200, "Popped", "messages, held under one lease; or none where the group's policy is shown"),
    (204, "", "nothing there"),
    (400, "PopRefused", "a parameter that cannot be meant"),
];

const REPLAYED: &[(u16, &str, &str)] = &[
    (200, "Replayed", "moved, or found there already"),
    (400, "Unsuccessful|Error", "an empty name"),
    (404, "{success: bool, result: 'gone', error: string}", "no such dead letter"),
    (409, "{success: bool, error: string, reason: string, dlqRowRemoved: bool}", "refused"),
];

const SOUGHT: &[(u16, &str, &str)] = &[
    (
        200,
        "{success: bool, consumerGroup: string, queueName: string, partitionName: string|null, seekToEnd: bool, targetTimestamp: string|null, partitionsUpdated: nat, updated: bool}",
        "moved",
    ),
    (400, "Unsuccessful|Error", "neither the end nor a time"),
    (404, "Unsuccessful", "no such queue or partition"),
];

const CHANGE: &[Param] = &[
    ("timeoutMs", "int", "milliseconds for the change, 1 to 120000, 30000 by default"),
    ("force", "bool", "the same as in the body"),
];

const REMOVAL: &[Param] =
    &[("timeoutMs", "int", "milliseconds for the change, 1 to 120000, 30000 by default")];

const CHANGED: &[(u16, &str, &str)] = &[
    (200, "{ok: bool, membership: Membership}", "changed, or so already"),
    (400, "NotOk", "`bad_request`"),
    (
        403,
        "NotOk|Error",
        "`forbidden`: the request names a tenant; or the token's role does not reach",
    ),
    (409, "NotOk", "refused for what the membership is: the code says why"),
    (501, "NotOk", "`unsupported`: a node alone"),
    (503, "NotOk", "`no_leader`, `leader_unreachable` or `retry`"),
    (504, "NotOk", "`timeout`: the change may still be made"),
];

const NO_CLUSTER: (u16, &str, &str) = (501, "NotOk", "`unsupported`: a node alone");

const SEEK: &str = "{toEnd?: bool, timestamp?: string}";
const REPLAY: &str = "{queue?: string|null, partition?: string|null}";
const ACK: &str = "{transactionId: string, partitionId: digits|nat, leaseId?: string|null, consumerGroup?: string|null, status?: string|null, error?: any} | {acknowledgments: Acknowledgment[], consumerGroup?: string|null}";
const NOT_FOUND: (u16, &str, &str) = (404, "Error", "not there");

const fn described(
    tag: &'static str,
    summary: &'static str,
    query: &'static [Param],
    body: Option<Body>,
    answers: &'static [(u16, &'static str, &'static str)],
) -> Described {
    Described { tag, summary, query, body, answers }
}

/// The description of an operation.
#[expect(clippy::too_many_lines, reason = "one row per operation")]
pub(crate) const fn describe(op: Op) -> Described {
    match op {
        Op::Push => described(
            "messages",
            "Stores messages; each item has its own verdict",
            &[],
            Some(or_binary("{items: PushItem[]}")),
            &[(201, "Pushed[]|PushCounts", "one element per item in order, or counts")],
        ),
        Op::PopQueue => described("messages", "Takes messages of a queue", POP, None, POPPED),
        Op::PopPartition => {
            described("messages", "Takes messages of one partition", POP, None, POPPED)
        }
        Op::PopLabels => described(
            "messages",
            "Takes messages of every queue with these labels",
            LABELS,
            None,
            POPPED,
        ),
        Op::Ack => described(
            "messages",
            "Settles messages",
            &[],
            Some(body(ACK)),
            &[(200, "Acknowledged[]", "one element per acknowledgment in order")],
        ),
        Op::Transaction => described(
            "messages",
            "Acknowledges, pushes and sets positions, all or nothing",
            &[],
            Some(or_binary(
                "{operations?: Operation[]|null, requiredLeases?: string[]|null, positions?: SetPosition[]|null, kv?: any[]|null, timers?: any[]|null}",
            )),
            &[(200, "Committed|RolledBack", "the end of the transaction; look at success")],
        ),
        Op::Extend => described(
            "messages",
            "Extends every partition lease of a pop",
            &[],
            Some(optional("{seconds?: int|null}")),
            &[(
                200,
                "{leaseId: string, success: bool, renewed: nat, newExpiresAt: time|null, expiresAt: time|null, lease_expires_at: time|null}",
                "extended, or success false",
            )],
        ),
        Op::Configure => described(
            "queues",
            "Makes a queue or changes its options",
            &[],
            Some(body(
                "{queue: string, namespace?: string|null, task?: string|null, mode?: 'merge'|'replace'|null, options?: any}",
            )),
            &[(
                200,
                "{configured: bool, queueId: uuid, partitionId: null, queue: string, namespace: string, task: string, storage: string, options: Options}",
                "as it is now",
            )],
        ),
        Op::Queues => described(
            "queues",
            "All queues, newest first",
            &[("stats", "string", "lanes: names and sizes only")],
            None,
            &[(
                200,
                "{queues: QueueRow[], stats?: string, kvRows?: nat, kvBytes?: nat, timerRows?: nat, timerBytes?: nat}",
                "the whole set",
            )],
        ),
        Op::Queue => described(
            "queues",
            "One queue with its partitions",
            &[],
            None,
            &[(200, "QueueDetail", "the queue"), NOT_FOUND],
        ),
        Op::Depth => described(
            "queues",
            "What is left to do on a queue",
            &[("group", "string", "for this group; without it for the slowest of each partition")],
            None,
            &[
                (
                    200,
                    "{queue: string, group: string|null, pending: nat, processing: nat, ready: nat, partitionsPending: nat, partitionsReady: nat, conflation: bool, effectivePending: nat, effectiveReady: nat, partitions: {partition: string, pending: nat, processing: nat, ready: nat}[], partitionsTruncated?: bool}",
                    "the backlog",
                ),
                NOT_FOUND,
            ],
        ),
        Op::DeleteQueue => described(
            "queues",
            "Removes a queue with everything in it",
            &[],
            None,
            &[(200, "{deleted: bool, existed: bool, queue: string, message?: string}", "gone")],
        ),
        Op::BusyPartitions => described(
            "queues",
            "The partitions with the most pending messages",
            &[("queue", "string", "only of this queue"), ("limit", "int", "rows at most")],
            None,
            &[(
                200,
                "{partitions: {queue: string, partition: string, id: uuid, pending: nat, processing: nat, lagSeconds: nat|null}[], walked: nat, truncated: bool}",
                "most pending first",
            )],
        ),
        Op::Namespaces => described(
            "queues",
            "Sums by namespace",
            &[],
            None,
            &[(
                200,
                "{namespaces: {namespace: string, queues: nat, partitions: nat, messages: {total: nat, pending: nat}}[]}",
                "sums",
            )],
        ),
        Op::Tasks => described(
            "queues",
            "Sums by task",
            &[],
            None,
            &[(
                200,
                "{tasks: {task: string, queues: nat, partitions: nat, messages: {total: nat, pending: nat}}[]}",
                "sums",
            )],
        ),
        Op::Overview => described(
            "queues",
            "Everything in one view",
            &[],
            None,
            &[(
                200,
                "{queues: nat, partitions: nat, namespaces: nat, tasks: nat, messages: {*: nat}, lag: {time: {*: nat}, offset: {*: nat}}, timestamp: time, statsAge: nat}",
                "sums",
            )],
        ),
        Op::RefreshStats => described(
            "queues",
            "Does nothing: figures are always fresh",
            &[],
            Some(optional("any")),
            &[(200, "{success: bool, refreshed: bool, engine: string}", "done")],
        ),
        Op::Backup => described(
            "node",
            "Streams a backup of everything that was answered before, as a tar whose last member holds the sums; `queen backup` takes it",
            &[],
            None,
            &[
                (200, "tar", "all of it; cut short, it is none"),
                (409, "Error", "`backup_running`: one at a time"),
            ],
        ),
        Op::DeadLetters => described(
            "dead letters",
            "A page of dead letters, newest failure first",
            &[
                ("queue", "string", "only of this queue"),
                ("consumerGroup", "string", "only of this group"),
                ("partition", "string", "only of this partition"),
                ("from", "string", "only failed at or after this time"),
                ("to", "string", "only failed before this time"),
                ("limit", "int", "rows at most, 1 to 1000, 100 by default"),
                ("offset", "int", "rows to skip"),
            ],
            None,
            &[(200, "{messages: DeadLetter[], total: nat, pagination: Pagination}", "a page")],
        ),
        Op::ReplayLetter => described(
            "dead letters",
            "Pushes a copy of a dead letter and removes the letter, in one step",
            &[],
            Some(optional(REPLAY)),
            REPLAYED,
        ),
        Op::RetryMessage => described(
            "dead letters",
            "The same, named by the message",
            &[],
            Some(optional(REPLAY)),
            REPLAYED,
        ),
        Op::PurgeLetters => described(
            "dead letters",
            "Removes the dead letters of a queue",
            &[("queue", "string", "required"), ("consumerGroup", "string", "only of this group")],
            None,
            &[
                (
                    200,
                    "{success: bool, queue: string, consumerGroup: string|null, deleted: nat}",
                    "gone",
                ),
                (
                    400,
                    "{success: bool, error: string, message: string}|Error",
                    "no queue is named, or an empty group",
                ),
            ],
        ),
        Op::DeleteMessageLetters => described(
            "dead letters",
            "Removes the dead letters of one message; a live message stays",
            &[],
            None,
            &[
                (
                    200,
                    "{success: bool, partitionId: string, transactionId: string, deleted: nat}",
                    "gone",
                ),
                (404, "Unsuccessful", "no dead letter of such a message"),
            ],
        ),
        Op::Messages => described(
            "messages",
            "A page of messages, newest first",
            &[
                ("queue", "string", "only of this queue"),
                ("partition", "string", "only of this partition"),
                ("namespace", "string", "only of queues with this label"),
                ("task", "string", "only of queues with this label"),
                ("status", "'pending'|'processing'|'completed'|'dead_letter'", "only these"),
                ("from", "string", "at or after this time; one hour ago by default"),
                ("to", "string", "before this time; now by default"),
                ("limit", "int", "rows at most, 1 to 1000, 200 by default"),
                ("offset", "int", "rows to skip"),
            ],
            None,
            &[(
                200,
                "{messages: MessageRow[], total: nat, pagination: Pagination, mode: Mode}",
                "a page",
            )],
        ),
        Op::Message => described(
            "messages",
            "One message with everything around it",
            &[],
            None,
            &[(200, "MessageDetail", "the message"), NOT_FOUND],
        ),
        Op::Groups => described(
            "consumer groups",
            "Every group on every queue",
            &[],
            None,
            &[(200, "GroupRow[]", "one row per group and queue")],
        ),
        Op::Group => described(
            "consumer groups",
            "One group's cursors",
            &[],
            None,
            &[
                (
                    200,
                    "{*: {conflation: bool, kind: string, partitions: {partition: string, workerId: uuid|null, lastConsumedAt: null, totalConsumed: nat, offsetLag: nat, timeLagSeconds: nat, leaseActive: bool}[]}}",
                    "by queue",
                ),
                NOT_FOUND,
            ],
        ),
        Op::Lagging => described(
            "consumer groups",
            "Cursors that are far behind",
            &[("minLagSeconds", "int", "how far, 3600 by default")],
            None,
            &[(
                200,
                "{consumer_group: string, queue_name: string, partition_name: string, partition_id: uuid, worker_id: uuid|null, kind: string, offset_lag: nat, time_lag_seconds: nat, lag_hours: number, oldest_unconsumed_at: time, last_consumed_at: null}[]",
                "oldest first",
            )],
        ),
        Op::DeleteGroup => described(
            "consumer groups",
            "Removes a group's cursors on every queue, and its subscription",
            &[("deleteMetadata", "bool", "false keeps the subscription")],
            None,
            &[(200, "GroupDeleted", "gone; a group that is not there is gone too")],
        ),
        Op::DeleteGroupOnQueue => described(
            "consumer groups",
            "The same on one queue",
            &[("deleteMetadata", "bool", "false keeps the subscription")],
            None,
            &[(200, "GroupDeleted", "gone")],
        ),
        Op::Resubscribe => described(
            "consumer groups",
            "Sets where a registered group starts, on every queue",
            &[],
            Some(body("{subscriptionTimestamp: string}")),
            &[(
                200,
                "{success: bool, consumerGroup: string, newTimestamp: string, rowsUpdated: nat}",
                "set",
            )],
        ),
        Op::Seek => described(
            "consumer groups",
            "Moves a group's cursors to the end or to a time",
            &[],
            Some(optional(SEEK)),
            SOUGHT,
        ),
        Op::SeekPartition => described(
            "consumer groups",
            "The same for one partition",
            &[],
            Some(optional(SEEK)),
            SOUGHT,
        ),
        Op::Positions => described(
            "consumer groups",
            "Where a group reads next",
            &[],
            Some(body(
                "{consumerGroup: string, entries?: {queue: string, partition?: string|nat|null}[]|null}",
            )),
            &[(
                200,
                "{consumerGroup: string, entries: {queue: string, partition: string, offset: nat|null, metadata?: string}[]}",
                "one entry per entry; all positions without entries",
            )],
        ),
        Op::Fetch => described(
            "reads by offset",
            "Reads messages by offset, without lease or cursor",
            &[],
            Some(body(
                "{entries: {queue: string, partition?: string|nat|null, offset?: nat, maxBytes?: int}[], maxBytes?: int, maxWaitMs?: int, minBytes?: int}",
            )),
            &[(
                200,
                "{entries: {queue: string, partition: string, records: {offset: nat, transactionId: string, payload: any, ts: time}[], highWatermark: nat, logStartOffset: nat, error?: string}[]}",
                "one result per entry",
            )],
        ),
        Op::Offsets => described(
            "reads by offset",
            "The first offset at or after a time",
            &[],
            Some(body(
                "{entries: {queue: string, partition?: string|nat|null, timestamp: int|string}[]}",
            )),
            &[(
                200,
                "{entries: {queue: string, partition: string, offset: nat|null, ts: time|null, highWatermark: nat, logStartOffset: nat, error?: string}[]}",
                "one result per entry",
            )],
        ),
        Op::Changed => described(
            "reads by offset",
            "Partitions that were written lately",
            &[],
            Some(body(
                "{entries: {queue: string, since?: string|null, after?: string|null, limit?: int|null}[]}",
            )),
            &[(
                200,
                "{safeTime: time, safeTimeDegraded: bool, entries: {queue: string, partitions?: {name: string, id: uuid, lastOffset: int, logStart: nat, lastWriteAt: time}[], next?: string|null, error?: string}[]}",
                "one page per entry",
            )],
        ),
        Op::Membership => described(
            "cluster",
            "Who belongs to the cluster, as the leader knows it",
            &[],
            None,
            &[
                (
                    200,
                    "{engine: string, membership: Membership}",
                    "the leader's view, or this node's own",
                ),
                (
                    403,
                    "NotOk|Error",
                    "`forbidden`: the request names a tenant; or the token's role does not reach",
                ),
                NO_CLUSTER,
            ],
        ),
        Op::AddLearner => described(
            "cluster",
            "Adds a node that gets the log and does not vote",
            REMOVAL,
            Some(body("{id?: nat, nodeId?: nat, raft: string, http: string}")),
            CHANGED,
        ),
        Op::Promote => described(
            "cluster",
            "Makes learners voters",
            CHANGE,
            Some(body("{ids?: nat[], id?: nat, nodeId?: nat, force?: bool}")),
            CHANGED,
        ),
        Op::SetVoters => described(
            "cluster",
            "Sets who votes; whoever did and is not named leaves",
            CHANGE,
            Some(body("{voters: nat[], force?: bool}")),
            CHANGED,
        ),
        Op::RemoveMember => {
            described("cluster", "Removes a voter or a learner", REMOVAL, None, CHANGED)
        }
        Op::RaftStatus => described(
            "cluster",
            "The node that is asked",
            &[],
            None,
            &[
                (
                    200,
                    "{*: any}",
                    "its MemberStatus, and engine, clusterId, self, voters, singleNode",
                ),
                NO_CLUSTER,
            ],
        ),
        Op::RaftMembers => described(
            "cluster",
            "Every member as it tells of itself, asked at once",
            &[],
            None,
            &[
                (
                    200,
                    "{engine: string, clusterId: string, leaderId: nat|null, term: nat, self: nat, voters: nat[], members: MemberStatus[]}",
                    "by number; one that does not answer within 1.5 s is unreachable",
                ),
                NO_CLUSTER,
            ],
        ),
        Op::RaftLiveness => described(
            "cluster",
            "Who answered the leader when",
            &[],
            None,
            &[
                (
                    200,
                    "{engine: string, nodeId: nat, leaderId: nat|null, term: nat, viewAgeMs: nat|null, viewLeaderId: nat|null, members: {nodeId: nat, role: 'voter'|'learner', state: string|null, http: string, raft: string, lastAckMs: nat|null, matchIndex: nat|null, local: bool}[]}",
                    "from memory; null is what this node does not know",
                ),
                NO_CLUSTER,
            ],
        ),
        Op::OpenApi => described(
            "node",
            "This description",
            &[],
            None,
            &[(200, "{*: any}", "an OpenAPI 3.1 document")],
        ),
        Op::Health => described(
            "node",
            "Whether the node serves",
            &[],
            None,
            &[(200, "{*: any}", "it does"), (503, "{*: any}", "it does not; reason says why")],
        ),
        Op::Metrics => {
            described("node", "Counts for people", &[], None, &[(200, "{*: any}", "counts")])
        }
        Op::Prometheus => described(
            "node",
            "Metrics in the Prometheus text format",
            &[],
            None,
            &[(200, "text", "metrics")],
        ),
        Op::Status => described(
            "node",
            "Whether the process runs",
            &[],
            None,
            &[(200, "{status: string, engine: string}", "it runs")],
        ),
    }
}
