//! What is left to do, sums over queues, and the message list.

use bytes::Bytes;
use queen_broker::api::{
    Backlog, BusyPartition, BusyPartitions, ConsumeMode, Counts, LabelSummary, Message,
    MessagePage, MessageRow, MessageStatus, Overview, QueueDepth, Spread,
};
use queen_record::ids::{EntryIndex, Micros, Offset, TxHash};
use serde_json::json;

use crate::fake::ID;
use crate::node::Node;

const ID_TEXT: &str = "01a0fcd5-2cdf-7000-a9bb-2f832df96c36";
const AT: Micros = Micros(1_790_932_443_512_887);

#[tokio::test]
async fn depth_of_a_group_that_conflates_is_counted_in_partitions() {
    let node = Node::start().await;
    let reply = node.get("/api/v1/resources/queues/orders/depth").await;
    assert_eq!((reply.status, reply.json()), (404, json!({"error":"Queue not found"})));
    let backlog = Backlog { pending: 9, processing: 4 };
    let depth = QueueDepth {
        total: backlog,
        partitions_pending: 2,
        partitions_ready: 1,
        conflation: false,
        partitions: vec![("p".into(), backlog)],
        truncated: false,
    };
    *node.fake.reads.depth.lock().unwrap() = Some(depth.clone());
    let answer = node.get("/api/v1/resources/queues/orders/depth?group=").await.json();
    let partitions = json!([{"partition":"p","pending":9,"processing":4,"ready":5}]);
    assert_eq!(
        answer,
        json!({"queue":"orders","group":null,"pending":9,"processing":4,"ready":5,
            "partitionsPending":2,"partitionsReady":1,"conflation":false,"effectivePending":9,
            "effectiveReady":5,"partitions":partitions})
    );
    let conflating = QueueDepth { conflation: true, truncated: true, ..depth };
    *node.fake.reads.depth.lock().unwrap() = Some(conflating);
    let answer = node.get("/api/v1/resources/queues/a%2Fb/depth?group=g+1").await.json();
    assert_eq!((&answer["effectivePending"], &answer["effectiveReady"]), (&json!(2), &json!(1)));
    assert_eq!((&answer["group"], &answer["partitionsTruncated"]), (&json!("g 1"), &json!(true)));
    let asked = node.fake.reads.depth_queries.lock().unwrap().pop().unwrap();
    assert_eq!(asked, ("a/b".to_owned(), Some("g 1".to_owned())));
}

#[tokio::test]
async fn the_busiest_partitions() {
    let node = Node::start().await;
    let row = BusyPartition {
        queue: "orders".into(),
        partition: "p".into(),
        uuid: ID,
        backlog: Backlog { pending: 9, processing: 4 },
        lag_seconds: None,
    };
    *node.fake.reads.busy.lock().unwrap() =
        BusyPartitions { rows: vec![row], walked: 12, truncated: true };
    let answer = node.get("/api/v1/resources/partitions?queue=orders&limit=99999").await.json();
    assert_eq!(
        answer,
        json!({"partitions":[{"queue":"orders","partition":"p","id":ID_TEXT,"pending":5,
            "processing":4,"lagSeconds":null}],"walked":12,"truncated":true})
    );
    node.get("/api/v1/resources/partitions?limit=0").await;
    node.get("/api/v1/resources/partitions").await;
    let asked = node.fake.reads.busy_queries.lock().unwrap().clone();
    assert_eq!(asked, [(Some("orders".into()), 5000), (None, 1), (None, 610)]);
    assert_eq!(node.get("/api/v1/resources/partitions?limit=x").await.status, 400);
}

#[tokio::test]
async fn sums_by_label_and_over_all() {
    let node = Node::start().await;
    let counts = Counts { total: 10, pending: 6, processing: 2, completed: 3, dead_letter: 1 };
    *node.fake.reads.labels.lock().unwrap() =
        vec![LabelSummary { label: "billing".into(), queues: 2, partitions: 5, counts }];
    for (path, list, name) in
        [("namespaces", "namespaces", "namespace"), ("tasks", "tasks", "task")]
    {
        let answer = node.get(&format!("/api/v1/resources/{path}")).await.json();
        assert_eq!(
            answer,
            json!({list:[{name:"billing","queues":2,"partitions":5,
                "messages":{"total":10,"pending":4}}]})
        );
    }
    *node.fake.reads.overview.lock().unwrap() = Overview {
        queues: 2,
        partitions: 5,
        namespaces: 1,
        tasks: 0,
        counts,
        lag_seconds: Spread { mean: 3, max: 4 },
        lag_messages: Spread { mean: 5, max: 6 },
        now: AT,
        age_seconds: 7,
    };
    assert_eq!(
        node.get("/api/v1/resources/overview").await.json(),
        json!({"queues":2,"partitions":5,"namespaces":1,"tasks":0,
            "messages":{"total":10,"pending":4,"processing":2,"completed":3,"failed":0,
                "deadLetter":1},
            "lag":{"time":{"avg":3,"median":0,"min":0,"max":4},
                "offset":{"avg":5,"median":0,"min":0,"max":6}},
            "timestamp":"2026-10-02T09:14:03.512Z","statsAge":7})
    );
}

#[tokio::test]
async fn the_message_list() {
    let node = Node::start().await;
    let message = Message {
        offset: Offset(17),
        id: ID,
        transaction_id: Bytes::from_static(b"t"),
        trace_id: None,
        producer_sub: Some(Bytes::from_static(b"sub")),
        data: Bytes::from_static(b"{ }"),
        created: AT,
    };
    let row = MessageRow {
        message,
        encrypted: false,
        hash: TxHash([0xab; 16]),
        entry: EntryIndex(9),
        frame: 3,
        queue: "q".into(),
        labels: ("n".into(), String::new()),
        priority: -1,
        partition: "p".into(),
        partition_uuid: ID,
        status: MessageStatus::Processing,
        queue_status: None,
        consumed_by: 1,
        groups: 2,
        lease_expires: Some(AT),
    };
    *node.fake.reads.page.lock().unwrap() =
        MessagePage { rows: vec![row], mode: ConsumeMode { queue_mode: true, groups: 2 } };
    let path = "/api/v1/messages?queue=q&partition=&status=dead_letter&limit=5000&offset=-3\
                &from=2026-10-02&namespace=n";
    assert_eq!(
        node.get(path).await.json(),
        json!({"messages":[{"id":ID_TEXT,"transactionId":"t","txnHash":"ab".repeat(16),"data":{},
            "payload":{},"traceId":null,"producerSub":"sub","createdAt":"2026-10-02T09:14:03.512Z",
            "offset":17,"queue":"q","partition":"p","partitionId":ID_TEXT,"status":"processing",
            "queueStatus":null,"busStatus":{"consumedBy":1,"totalGroups":2},"queuePath":"q/p",
            "namespace":"n","task":"","queuePriority":-1,"payloadAvailable":true,
            "leaseExpiresAt":"2026-10-02T09:14:03.512887Z","segment":{"seq":9,"frameIdx":3},
            "isEncrypted":false}],
            "total":1,"pagination":{"limit":1000,"offset":0},
            "mode":{"hasQueueMode":true,"busGroupsCount":2,"type":"hybrid"}})
    );
    let query = node.fake.reads.page_queries.lock().unwrap().pop().unwrap();
    assert_eq!((query.queue.as_deref(), query.partition, query.task), (Some("q"), None, None));
    assert_eq!(query.status, Some(MessageStatus::DeadLetter));
    assert_eq!((query.from, query.to), (Some(Micros(1_790_899_200_000_000)), None));
    assert_eq!((query.limit, query.offset, query.namespace.as_deref()), (1000, 0, Some("n")));
    node.get("/api/v1/messages").await;
    assert_eq!(node.fake.reads.page_queries.lock().unwrap().pop().unwrap().limit, 200);
    for bad in ["status=done", "from=soon", "limit=1.5", "queue=%FF"] {
        let reply = node.get(&format!("/api/v1/messages?{bad}")).await;
        assert_eq!((reply.status, &reply.json()["code"]), (400, &json!("bad_request")), "{bad}");
    }
}
