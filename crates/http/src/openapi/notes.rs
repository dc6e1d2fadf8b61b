//! What a shape cannot say: the meaning of fields and what they do, with an example where one helps.

use crate::routes::Op;

/// A paragraph or more about an operation, in Markdown; empty where the shape says it all.
#[expect(clippy::too_many_lines, reason = "a table of texts")]
pub(crate) const fn notes(op: Op) -> &'static str {
    match op {
        Op::Push => {
            "A queue and a partition are made by the first push that names them; an item without `partition` goes to \
`Default`. An item whose `transactionId` its partition has seen within the queue's `dedupWindowSeconds` is answered \
`duplicate` with the first one's id and offset, and not stored again. A payload is any JSON value of at most 124 levels. \
A `traceId` of an item is not kept: pushes inside a transaction carry one. Items of one partition are stored together, those of \
different partitions each on their own. At most 131,072 items and an answer of 64 MiB: more is refused with 413 before any is \
stored.\n\n\
The binary form begins with `QPB1`, has the content type `application/x-queen-push`, and may be compressed.\n\n\
```json\n\
{\"items\":[{\"queue\":\"orders\",\"partition\":\"customer-42\",\"transactionId\":\"order-9137-paid\",\"payload\":{\"orderId\":9137}}]}\n\
```"
        }
        Op::PopQueue => {
            "The messages are held for `leaseSeconds` (the queue's `leaseTime` without it) and come again when nobody \
acknowledges them. A pop of a queue that is not there makes it, so that a named group can register and wait. The first pop \
of a group stores where it starts (`subscriptionMode`, `subscriptionFrom`: from now on without either) and whether it \
delivers only the newest message of a partition (`conflation`); later pops change neither. An answer has at most 8 MiB, escapes \
and names counted, and one message beyond: the rest is there for the next pop. Parameters beyond their range are moved to the nearer \
end; one that is no number, or neither true nor false, is refused."
        }
        Op::Ack => {
            "`status` is `completed`, `failed`, `retry` or `dlq`, in any case; **any other word counts as `completed`**, as \
with the system whose clients this API serves. An acknowledgment is a commit: everything before it in the batch is done. \
`failed` brings the message and all above it back, and after `retryLimit` of them files it as a dead letter; `retry` brings \
it back without charge; `dlq` files it at once. Of an `error` the first 8 KiB are kept with a dead letter. **Without `leaseId` nothing is checked against a lease**: it settles \
whatever lease is there. Look at `success` of every element: a refused one is answered 200 as well, and `error` says why. At most 131,072 \
in a call: more are refused with 413 before any is settled."
        }
        Op::Extend => {
            "An empty body means 60 seconds. Nothing extended (expired, settled, unknown) is `success:false`."
        }
        Op::Transaction => {
            "Decided in the order acks, pushes, positions; the first that fails rolls everything back, and nothing of it is \
visible, not for a moment. `reason` is then `rejected_ack`, `duplicate`, `queue_not_found`, `too_large`, `name_too_long` or \
`bad_request`. A transaction whose acks of a partition only name messages that were done before is refused as well \
(`rejected_ack`): so one that committed and is sent again pushes nothing twice, even while its lease lives. **`requiredLeases` demands nothing by itself**: an ack without `leaseId` takes the one lease id that the body \
names, when it names exactly one, and every ack that has a lease is checked against it. A `position` sets the offset that a \
group reads next, or forgets its place with `null`, and ends its lease there; its `metadata` is at most 4,096 bytes. `kv` and `timers` must be empty: this version \
does not serve them. At most 131,072 acks and pushes, 16,384 positions and an answer of 64 MiB: more is refused, 413 or 400, \
before any of it is done.\n\n\
The binary form begins with `QTB1`: the JSON body without its pushes, and framed groups.\n\n\
```json\n\
{\"operations\":[\n\
  {\"type\":\"ack\",\"transactionId\":\"order-7-paid\",\"partitionId\":\"42\",\"consumerGroup\":\"billing\",\"leaseId\":\"01a0fcc5-7656-7000-8144-b8981abf548a\"},\n\
  {\"type\":\"push\",\"items\":[{\"queue\":\"receipts\",\"partition\":\"c-1\",\"transactionId\":\"r-7\",\"payload\":{\"total\":120.5}}]}]}\n\
```"
        }
        Op::Configure => {
            "`merge` (the default) keeps every option that is not named, `replace` puts it back to its default; `null` does \
so in both. Unknown options are ignored: look at the answer, which has all of them.\n\n\
| option | default | meaning |\n\
| --- | --- | --- |\n\
| `leaseTime` | 300 s (60 for a queue born from its first use) | how long a pop holds messages |\n\
| `retryLimit` | 3 | `failed` acknowledgments that bring a message back before the next one files it |\n\
| `deadLetterQueue`, `dlqAfterMaxRetries` | true | file what is exhausted when either is true; else it is dropped |\n\
| `dedupWindowSeconds` | 3600 | how long a `transactionId` is remembered; 0 is off |\n\
| `delayedProcessing` | 0 s | a message can be popped this long after its push |\n\
| `windowBuffer` | 0 s | a partition delivers only after it was quiet this long |\n\
| `encryptionEnabled` | false | payloads are encrypted on the disk, on a node that has a key |\n\
| `namespace`, `task` | the first two dotted parts of the name, or none | labels for pops by labels |\n\
| `retentionEnabled` | false | switch for the next two |\n\
| `retentionSeconds` | 0 (off) | messages older than this are removed, consumed or not |\n\
| `completedRetentionSeconds` | 0 (off) | messages older than this are removed once every group has passed them; a group that is subscribed and has not read a partition holds it, and without any group none goes |\n\
| `maxWaitTimeSeconds` | 0 (off) | messages older than this are removed, whatever `retentionEnabled` says |\n\
| `retentionSinkHold`, `retentionSinkHoldMaxSeconds` | none, one week | with a name, the two retentions remove nothing that is younger than the maximum |\n\
| `priority`, `retryDelay`, `ttl`, `maxSize`, `minPopWaitTime` | | stored and shown only |"
        }
        Op::Depth => {
            "With `group`: what that group has left, partitions it has never read included. Without: the most that any named \
group with a cursor has left in each partition; queue mode counts where no named group has a cursor."
        }
        Op::Groups => {
            "One row for each group that has a cursor on the queue. `totalLag` and `partitionsWithLag` count the partitions it \
has a cursor in; `depth?group=` counts all. `Lagging` is more than 300 seconds behind, `Stable` has consumed something, \
`Dead` has not yet."
        }
        Op::Seek | Op::SeekPartition => {
            "**Without a body the group goes to the end and everything unread is passed over**; `{}` is refused. A time goes \
before the first message at or after it, never below what is retained. Live leases end, and waiting pops look again.\n\n\
```json\n{\"timestamp\":\"2026-10-02T09:14:03.512887Z\"}\n```"
        }
        Op::DeadLetters => {
            "A page is shorter than `limit` when its letters are large (16 MiB as JSON): go on at `offset` plus the letters that came."
        }
        Op::ReplayLetter | Op::RetryMessage => {
            "The copy goes to the end of its partition, or of the queue and partition that the body names, with the \
`transactionId` `dlq:<dead letter id>`. `duplicate` means that such a copy is there already: nothing was written and the \
letter stays."
        }
        Op::Fetch => {
            "Takes no lease and moves no cursor. `maxWaitMs` (up to 30000) waits until `minBytes` can be read. A partition \
that nobody wrote to has no records; a queue that is not there is `UNKNOWN_TOPIC_OR_PARTITION`, an offset outside the \
bounds `OFFSET_OUT_OF_RANGE`."
        }
        Op::Changed => {
            "Partitions in the order they were made; `next` goes on where a page ended. `safeTime` is read before anything \
else: every message at or below it is in what this node can show, so the next pass may begin with it as `since`. A page may be \
shorter than `limit` and have a `next` all the same: the rows of an answer have 8 MiB."
        }
        Op::Positions => {
            "An answer has at most 65,536 positions and 16 MiB: what would be more is refused, and fewer `entries` are to be \
asked for at a time."
        }
        Op::Messages => {
            "A page is shorter than `limit` when its messages are large (16 MiB as JSON): go on at `offset` plus the messages that \
came."
        }
        Op::Membership => {
            "Any node answers: one that does not lead asks the leader. When that cannot be done the node answers what it knows \
itself, `source` is `follower`, nobody is `live` and `viewAgeMs` is the time since a leader called: the sign of a lost \
majority. `matched` is the last entry that the leader knows a member to hold, `lag` how many it is behind, `live` whether it \
answered the leader within `liveWithinMs`. `joint` is null, or the sets of voters that must agree while they change."
        }
        Op::AddLearner => {
            "One change at a time, decided by the leader; what is so already is answered 200 and changes nothing. The codes of \
a refusal are in `docs/cluster.md`.\n\n\
```json\n{\"id\":3,\"raft\":\"10.0.0.13:7400\",\"http\":\"10.0.0.13:6632\"}\n```"
        }
        Op::Promote => {
            "A learner that is more than `promoteMaxLag` entries behind, holds nothing or does not answer is refused, \
`learner_behind`; `force` passes over this check and no other.\n\n```json\n{\"ids\":[3]}\n```"
        }
        Op::SetVoters => {
            "Also finishes a change that was left half done (`joint` is set): name the voters that the refusal names."
        }
        Op::RaftStatus => {
            "`state` is `leader`, `follower`, `candidate`, `learner` or `shutdown`. What this version does not measure is `null`."
        }
        Op::RaftMembers => {
            "Answered by the node that is asked, leader or not. A member that does not answer has the `state` `unreachable`, and \
`error` says why. `matchIndex`, `heartbeatAgeMs` and `lagEntries` are the leader's, `null` without one."
        }
        _ => "",
    }
}
