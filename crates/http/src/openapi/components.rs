//! The shapes that several operations share, by name, in the notation of shapes.

/// Shapes that several operations share.
pub(crate) const COMPONENTS: &[(&str, &str)] = &[
    ("Error", "{error: string, code?: string, path?: string, leader?: string}"),
    ("NotOk", "{ok: bool, code: string, error: string}"),
    (
        "Membership",
        "{nodeId: nat, source: 'leader'|'follower', viewAgeMs: nat|null, leader: nat|null, term: nat, voters: nat[], learners: nat[], joint: nat[][]|null, membershipIndex: nat|null, membershipCommitted: bool, changeInFlight: bool, lastLogIndex: nat, committedIndex: nat, liveWithinMs: nat, promoteMaxLag: nat, members: {nodeId: nat, voter: bool, raft: string, http: string, matched: nat|null, lag: nat|null, lastAckMs: nat|null, live: bool}[]}",
    ),
    (
        "MemberStatus",
        "{nodeId: nat, hostname: string|null, raftAddr: string|null, httpAddr: string|null, role: 'voter'|'learner', state: string, local: bool, reachable: bool, error: string|null, leaderId?: nat|null, term?: nat, lastLogIndex?: nat, committedIndex?: nat, appliedIndex?: nat, durableIndex?: nat, inflight?: nat|null, proposals?: nat|null, log?: {files: nat, bytes: nat}, store?: {*: any}, version?: string, uptimeSeconds?: nat, replication?: {nodeId: nat, matchIndex: nat|null, heartbeatAgeMs: nat|null}[]|null, host?: {*: any}, matchIndex?: nat|null, heartbeatAgeMs?: nat|null, lagEntries?: nat|null}",
    ),
    ("Unsuccessful", "{success: bool, error: string}"),
    ("PopRefused", "{success: bool, error: string, messages: any[]} | Error"),
    (
        "PushItem",
        "{queue: string, payload: any, partition?: string|null, transactionId?: string|null, traceId?: any}",
    ),
    (
        "Pushed",
        "{index: nat, message_id: uuid, transaction_id: string, queueName: string, status: 'queued'|'duplicate'|'error', offset?: nat, error?: string, code?: string}",
    ),
    ("PushCounts", "{count: nat, queued: nat, duplicate: nat, error: nat}"),
    (
        "Message",
        "{id: uuid, transactionId: string, traceId: uuid|null, data: any, producerSub: string|null, createdAt: time, partitionId: digits, partition: string, leaseId: string, consumerGroup: string, deliveryAttempt: nat, offset: nat}",
    ),
    (
        "Popped",
        "{success: bool, queue: string, partition?: string, partitionId?: digits, leaseId: string, consumerGroup: string, messages: Message[], partitionsClaimed: nat, conflation?: bool, conflationConflict?: bool, autopilot?: {partitions: nat, batch: nat}}",
    ),
    (
        "Acknowledgment",
        "{transactionId: string, partitionId: digits|nat, leaseId?: string|null, status?: string|null, error?: any}",
    ),
    (
        "Acknowledged",
        "{index: nat, transactionId: string, success: bool, error: string|null, leaseReleased: bool, dlq: bool, noop: bool}",
    ),
    (
        "Operation",
        "{type: 'ack', transactionId: string, partitionId: digits|nat, consumerGroup?: string|null, leaseId?: string|null, status?: string|null, error?: any} | {type: 'push', items: PushItem[]} | {type: 'push', queue: string, payload: any, partition?: string|null, transactionId?: string|null, traceId?: any}",
    ),
    (
        "SetPosition",
        "{queue: string, consumerGroup?: string|null, partition?: string|null, offset: nat|null, metadata?: string|null, subscriptionMode?: string|null}",
    ),
    (
        "Committed",
        "{transactionId: uuid, success: bool, results: {index: nat, type: string, success: bool, transactionId?: string|null, messageId?: uuid, queueName?: string, duplicate?: bool, error?: string|null, dlq?: bool, opIndex?: nat}[], pushed?: nat, duplicate?: nat, acked?: nat}",
    ),
    (
        "RolledBack",
        "{transactionId: uuid, success: bool, reason: string, error: string, results: any[]}",
    ),
    (
        "Replayed",
        "{success: bool, result: 'moved'|'duplicate', queue: string, partition: string, consumerGroup: string, dlqId: uuid, originalTransactionId: string, replayedAs: Pushed, dlqRowRemoved: bool}",
    ),
    ("Options", "{*: any}"),
    ("Pagination", "{limit: nat, offset: nat}"),
    (
        "Counts",
        "{total: nat, pending: nat, processing: nat, completed: nat, deadLetter: nat, failed?: null}",
    ),
    ("Mode", "{hasQueueMode: bool, busGroupsCount: nat, type: 'none'|'queue'|'bus'|'hybrid'}"),
    ("Segments", "{segments: nat, messages: nat}"),
    (
        "QueueRow",
        "{id: uuid, name: string, queue: string, partitions: nat, createdAt: time, namespace?: string, task?: string, storage?: string, segments?: Segments, messages?: Counts, retainedBytes?: int, options?: Options}",
    ),
    (
        "QueueDetail",
        "{id: uuid, name: string, namespace: string, task: string, createdAt: time, options: Options, partitions: {id: uuid, name: string, createdAt: time, messages: Counts, stats: Counts, cursor: {totalConsumed: nat, batchesConsumed: nat}, lastActivity: time|null, oldestMessage: time|null, newestMessage: time|null, retainedBytes: int}[], segments: Segments, totals: Counts, retainedBytes: int, partitionsTruncated?: bool}",
    ),
    (
        "DeadLetter",
        "{id: uuid, queue: string, partition: string, partitionId: digits, createdAt: time|null, failedAt: time, consumerGroup: string, offset: int, messageId: uuid|null, transactionId: string, data: any, payload: any, errorMessage: string, retryCount: nat}",
    ),
    (
        "MessageRow",
        "{id: uuid, transactionId: string, txnHash: string, data: any, payload: any, traceId: uuid|null, producerSub: string|null, createdAt: time, offset: nat, queue: string, partition: string, partitionId: uuid, status: string, queueStatus: string|null, busStatus: {consumedBy: nat, totalGroups: nat}, queuePath: string, namespace: string, task: string, queuePriority: int, payloadAvailable: bool, leaseExpiresAt: time|null, segment: {seq: nat, frameIdx: nat}, isEncrypted: bool}",
    ),
    (
        "MessageDetail",
        "{id: uuid, transactionId: string, data: any, payload: any, traceId: uuid|null, producerSub: string|null, createdAt: time, partitionId: uuid, partition: string, queue: string, queuePath: string, namespace: string, task: string, status: string, errorMessage: string|null, retryCount: nat, isEncrypted: bool, queueConfig: Options, mode: Mode, consumerGroups: {name: string, committed: int, consumed: bool, leaseExpiresAt: time|null}[]}",
    ),
    (
        "GroupRow",
        "{name: string, topics: string[], queueName: string, members: nat, partitionCursors: nat, partitionsWithLag: nat, totalLag: nat, maxTimeLag: nat, state: 'Lagging'|'Stable'|'Dead', storage: string, kind: string, subscriptionMode: string|null, subscriptionTimestamp: time|null, subscriptionCreatedAt: time|null, conflation: bool}",
    ),
    (
        "GroupDeleted",
        "{success: bool, consumerGroup: string, queueName: string|null, deletedPartitions: nat, metadataDeleted: bool, queues: string[]}",
    ),
];
