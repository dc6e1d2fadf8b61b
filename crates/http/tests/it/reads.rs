//! Queue reads, dead letters, messages, health and metrics.

use bytes::Bytes;
use queen_broker::api::{
    Counts, DeadLetter, DeadLetterPage, Message, MessageDetail, MessageGroup, MessageStatus,
    PartitionRef, PartitionSummary, QUEUE_MODE, QueueDetail, QueueSummary,
};
use queen_model::QueueOptions;
use queen_record::ids::{Micros, Offset, PartitionId};
use serde_json::json;

use crate::fake::ID;
use crate::node::Node;

const ID_TEXT: &str = "01a0fcd5-2cdf-7000-a9bb-2f832df96c36";
const AT: Micros = Micros(1_790_932_443_512_887);
const AT_TEXT: &str = "2026-10-02T09:14:03.512887Z";
const COUNTS: Counts =
    Counts { total: 10, pending: 6, processing: 2, completed: 3, dead_letter: 1 };

fn summary() -> QueueSummary {
    QueueSummary {
        id: ID,
        name: "orders".into(),
        partitions: 3,
        options: QueueOptions::implicit("billing.invoices"),
        created: AT,
        counts: Some(COUNTS),
        retained_bytes: 512,
        log_files: 7,
    }
}

#[tokio::test]
async fn the_queue_list_shows_pending_without_what_is_leased() {
    let node = Node::start().await;
    node.fake.reads.queues.lock().unwrap().push(summary());
    let answer = node.get("/api/v1/resources/queues?limit=0&search=x").await.json();
    let row = &answer["queues"][0];
    assert_eq!((&row["name"], &row["queue"]), (&json!("orders"), &json!("orders")));
    assert_eq!((&row["namespace"], &row["task"]), (&json!("billing"), &json!("invoices")));
    assert_eq!(
        row["messages"],
        json!({"total":10,"pending":4,"processing":2,"completed":3,"deadLetter":1})
    );
    assert_eq!(row["segments"], json!({"segments":7,"messages":10}));
    assert_eq!((&answer["kvRows"], &answer["timerBytes"]), (&json!(0), &json!(0)));
    assert_eq!((&row["createdAt"], &row["retainedBytes"]), (&json!(AT_TEXT), &json!(512)));
    assert_eq!(row["options"]["retentionSinkHoldMaxSeconds"], 604_800);
    let answer = node.get("/api/v1/resources/queues?stats=lanes").await.json();
    assert_eq!(
        answer,
        json!({"queues":[{"id":ID_TEXT,"name":"orders","queue":"orders","partitions":3,
            "createdAt":AT_TEXT}],"stats":"lanes"})
    );
}

#[tokio::test]
async fn the_queue_detail_shows_pending_gross() {
    let node = Node::start().await;
    let reply = node.get("/api/v1/resources/queues/orders").await;
    assert_eq!((reply.status, reply.json()), (404, json!({"error":"Queue not found"})));
    let partition = PartitionSummary {
        uuid: ID,
        id: PartitionId(4),
        name: "p".into(),
        created: AT,
        counts: COUNTS,
        total_consumed: 5,
        newest: Some(AT),
        oldest: None,
        retained_bytes: 512,
    };
    let detail = QueueDetail { summary: summary(), partitions: vec![partition], truncated: true };
    *node.fake.reads.queue.lock().unwrap() = Some(detail);
    let answer = node.get("/api/v1/resources/queues/orders").await.json();
    let counts = json!({"total":10,"pending":6,"processing":2,"completed":3,"failed":null,
        "deadLetter":1});
    assert_eq!(answer["totals"], counts);
    assert_eq!(answer["partitionsTruncated"], true);
    assert_eq!(
        answer["partitions"][0],
        json!({"id":ID_TEXT,"name":"p","createdAt":AT_TEXT,"messages":counts,"stats":counts,
            "cursor":{"totalConsumed":5,"batchesConsumed":0},"lastActivity":AT_TEXT,
            "oldestMessage":null,"newestMessage":AT_TEXT,"retainedBytes":512})
    );
}

#[tokio::test]
async fn dead_letters() {
    let node = Node::start().await;
    let letter = DeadLetter {
        id: ID,
        queue: "orders".into(),
        partition: "Default".into(),
        partition_id: PartitionId(4),
        group: "g".into(),
        offset: 17,
        message_id: None,
        transaction_id: "t".into(),
        payload: Bytes::from_static(b"{ }"),
        error: "boom\n".into(),
        retries: 2,
        failed: AT,
        created: None,
    };
    *node.fake.reads.letters.lock().unwrap() = DeadLetterPage { rows: vec![letter], total: 9 };
    let path = "/api/v1/dlq?queue=orders&consumerGroup=g&partition=&limit=5000&offset=-1\
                &from=2026-10-02&to=2026-10-02T09:14:03.512887Z";
    let answer = node.get(path).await.json();
    assert_eq!(
        answer,
        json!({"messages":[{"id":ID_TEXT,"queue":"orders","partition":"Default",
            "partitionId":"4","createdAt":null,"failedAt":AT_TEXT,"consumerGroup":"g",
            "offset":17,"messageId":null,"transactionId":"t","data":{},"payload":{},
            "errorMessage":"boom\n","retryCount":2}],
            "total":9,"pagination":{"limit":1000,"offset":0}})
    );
    let query = node.fake.reads.letter_queries.lock().unwrap().pop().unwrap();
    assert_eq!((query.limit, query.offset, query.partition), (1000, 0, None));
    assert_eq!((query.queue.as_deref(), query.group.as_deref()), (Some("orders"), Some("g")));
    assert_eq!((query.from, query.to), (Some(Micros(1_790_899_200_000_000)), Some(AT)));
    assert_eq!(node.get("/api/v1/dlq?from=yesterday").await.status, 400);
}

#[tokio::test]
async fn a_message_with_its_groups() {
    let node = Node::start().await;
    let path = "/api/v1/messages/4/t%2F1";
    let reply = node.get(path).await;
    assert_eq!((reply.status, reply.json()), (404, json!({"error":"Message not found"})));
    assert_eq!(node.get("/api/v1/messages/four/t").await.status, 404);
    let calls = node.fake.reads.messages.lock().unwrap().clone();
    assert_eq!(calls, [(PartitionRef::Number(PartitionId(4)), "t/1".to_owned())]);

    let message = Message {
        offset: Offset(1),
        id: ID,
        transaction_id: Bytes::from_static(b"t/1"),
        trace_id: None,
        producer_sub: None,
        data: Bytes::from_static(b"null"),
        created: AT,
    };
    let group =
        MessageGroup { name: QUEUE_MODE.into(), committed: 1, consumed: true, lease_expires: None };
    *node.fake.reads.message.lock().unwrap() = Some(MessageDetail {
        message,
        encrypted: true,
        partition_uuid: ID,
        partition: "p".into(),
        queue: "q".into(),
        options: QueueOptions::configured(),
        status: MessageStatus::Completed,
        error: None,
        retries: 0,
        groups: vec![group],
    });
    let answer = node.get(path).await.json();
    assert_eq!(
        answer["consumerGroups"],
        json!([{"name":QUEUE_MODE,"committed":1,"consumed":true,"leaseExpiresAt":null}])
    );
    assert_eq!(answer["mode"], json!({"hasQueueMode":true,"busGroupsCount":0,"type":"queue"}));
    assert_eq!((&answer["status"], &answer["queuePath"]), (&json!("completed"), &json!("q/p")));
    assert_eq!((&answer["createdAt"], &answer["data"]), (&json!(AT_TEXT), &json!(null)));
    assert_eq!(answer["queueConfig"]["leaseTime"], 300);
    assert_eq!(answer["isEncrypted"], true);
}

#[tokio::test]
async fn health_always_has_a_body() {
    let node = Node::start().await;
    let reply = node.get("/health").await;
    assert_eq!(reply.status, 200);
    assert_eq!(
        reply.json(),
        json!({"status":"healthy","engine":"raft","version":"1.2.3","raft":{"role":"leader",
            "leader":true,"term":1,"applied":7,"commit":8,"lag":1,"storageReady":true,
            "clusterVersion":6,"kinds":6}})
    );
    *node.fake.is_stopped.lock().unwrap() = true;
    let reply = node.get("/health").await;
    assert_eq!((reply.status, &reply.json()["status"]), (503, &json!("settling")));
    assert_eq!(reply.json()["raft"]["role"], "stopped");
    assert_eq!(reply.json()["reason"], "No space left on device");
    let reply = node.send("HEAD", "/health", "").await;
    assert_eq!((reply.status, &*reply.body), (503, ""));
}

#[tokio::test]
async fn the_small_routes() {
    let node = Node::start().await;
    let reply = node.get("/metrics/prometheus").await;
    assert_eq!((reply.status, &*reply.body), (200, "queen_up 1\n"));
    assert!(reply.has_header("content-type: text/plain; version=0.0.4"), "{reply:?}");
    assert_eq!(node.get("/status").await.json(), json!({"status":"ok","engine":"raft"}));
    let answer = node.post("/api/v1/stats/refresh", "").await.json();
    assert_eq!(answer, json!({"success":true,"refreshed":false,"engine":"raft"}));
}
