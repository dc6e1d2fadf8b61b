//! Consumer groups and their positions.

use queen_broker::api::{
    GroupOnQueue, GroupPartition, GroupSummary, LaggingCursor, Position, SubscriptionView,
};
use queen_model::SubscriptionMode;
use queen_record::ids::Micros;
use serde_json::json;

use crate::fake::ID;
use crate::node::Node;

const ID_TEXT: &str = "01a0fcd5-2cdf-7000-a9bb-2f832df96c36";
const AT: Micros = Micros(1_790_932_443_512_887);
const AT_TEXT: &str = "2026-10-02T09:14:03.512887Z";

fn summary(group: &str, lag_seconds: u64, consumed: u64) -> GroupSummary {
    GroupSummary {
        group: group.into(),
        queue: "orders".into(),
        cursors: 3,
        with_lag: 2,
        lag: 40,
        lag_seconds,
        consumed,
        subscription: None,
    }
}

#[tokio::test]
async fn the_group_list_is_a_bare_array() {
    let node = Node::start().await;
    assert_eq!(node.get("/api/v1/consumer-groups").await.json(), json!([]));
    let stored = |mode| SubscriptionView { mode, at: AT, registered: AT, conflation: true };
    let mut rows = vec![
        summary("a", 301, 0),
        summary("b", 300, 1),
        summary("c", 300, 0),
        summary("d", 0, 1),
        summary("e", 0, 1),
    ];
    rows[3].subscription = Some(stored(SubscriptionMode::All));
    rows[4].subscription = Some(stored(SubscriptionMode::Timestamp));
    *node.fake.reads.groups.lock().unwrap() = rows;
    let answer = node.get("/api/v1/consumer-groups").await.json();
    assert_eq!(
        answer[0],
        json!({"name":"a","topics":["orders"],"queueName":"orders","members":3,
            "partitionCursors":3,"partitionsWithLag":2,"totalLag":40,"maxTimeLag":301,
            "state":"Lagging","storage":"segments","kind":"queen","subscriptionMode":null,
            "subscriptionTimestamp":null,"subscriptionCreatedAt":null,"conflation":false})
    );
    assert_eq!((&answer[1]["state"], &answer[2]["state"]), (&json!("Stable"), &json!("Dead")));
    let subscription = |row: usize| {
        let row = &answer[row];
        json!([
            row["subscriptionMode"],
            row["subscriptionTimestamp"],
            row["subscriptionCreatedAt"],
            row["conflation"]
        ])
    };
    assert_eq!(subscription(3), json!(["all", null, AT_TEXT, true]));
    assert_eq!(subscription(4), json!(["new", AT_TEXT, AT_TEXT, true]));
}

#[tokio::test]
async fn a_group_by_its_queues() {
    let node = Node::start().await;
    let reply = node.get("/api/v1/consumer-groups/g").await;
    assert_eq!((reply.status, reply.json()), (404, json!({"error":"Consumer group not found"})));
    let partition = GroupPartition {
        partition: "p".into(),
        lease: Some(ID),
        consumed: 5,
        lag: 2,
        lag_seconds: 9,
    };
    let idle = GroupPartition { lease: None, ..partition.clone() };
    *node.fake.reads.group.lock().unwrap() = vec![GroupOnQueue {
        queue: "q\"1".into(),
        conflation: true,
        partitions: vec![partition, idle],
    }];
    let answer = node.get("/api/v1/consumer-groups/g").await.json();
    let row = json!({"partition":"p","workerId":ID_TEXT,"lastConsumedAt":null,"totalConsumed":5,
        "offsetLag":2,"timeLagSeconds":9,"leaseActive":true});
    assert_eq!(answer["q\"1"]["partitions"][0], row);
    assert_eq!(answer["q\"1"]["partitions"][1]["workerId"], json!(null));
    assert_eq!(answer["q\"1"]["partitions"][1]["leaseActive"], json!(false));
    assert_eq!(
        (&answer["q\"1"]["conflation"], &answer["q\"1"]["kind"]),
        (&json!(true), &json!("queen"))
    );
}

#[tokio::test]
async fn lagging_cursors_have_other_spellings() {
    let node = Node::start().await;
    *node.fake.reads.lagging.lock().unwrap() = vec![LaggingCursor {
        group: "g".into(),
        queue: "q".into(),
        partition: "p".into(),
        partition_uuid: ID,
        lease: None,
        lag: 3,
        oldest: AT,
        lag_seconds: 5400,
    }];
    assert_eq!(
        node.get("/api/v1/consumer-groups/lagging").await.json(),
        json!([{"consumer_group":"g","queue_name":"q","partition_name":"p","partition_id":ID_TEXT,
            "worker_id":null,"kind":"queen","offset_lag":3,"time_lag_seconds":5400,
            "lag_hours":1.5,"oldest_unconsumed_at":AT_TEXT,"last_consumed_at":null}])
    );
    for query in ["?minLagSeconds=60", "?minLagSeconds=-1", "?minLagSeconds=99999999999999999999"] {
        node.get(&format!("/api/v1/consumer-groups/lagging{query}")).await;
    }
    let asked = node.fake.reads.lagging_queries.lock().unwrap().clone();
    assert_eq!(asked, [3600, 60, 0, i64::MAX]);
    assert_eq!(node.get("/api/v1/consumer-groups/lagging?minLagSeconds=1h").await.status, 400);
    // A group may have that name, too.
    let reply = node.send("DELETE", "/api/v1/consumer-groups/lagging", "").await;
    assert_eq!(reply.json()["consumerGroup"], "lagging");
}

#[tokio::test]
async fn positions_with_and_without_entries() {
    let node = Node::start().await;
    let path = "/api/v1/consumer-groups/positions";
    let position = |next| Position { queue: "orders".into(), partition: "3".into(), next };
    *node.fake.reads.positions.lock().unwrap() =
        vec![position(Some((42, String::new()))), position(None)];
    let body = r#"{"consumerGroup":"g","entries":[{"queue":"orders","partition":3,"x":[]},
        {"queue":"a","partition":""},{"queue":"b","partition":null}]}"#;
    assert_eq!(
        node.post(path, body).await.json(),
        json!({"consumerGroup":"g","entries":[
            {"queue":"orders","partition":"3","offset":42,"metadata":""},
            {"queue":"orders","partition":"3","offset":null}]})
    );
    let pair = |queue: &str, partition: &str| (queue.to_owned(), partition.to_owned());
    let asked = node.fake.reads.position_queries.lock().unwrap().pop().unwrap();
    let entries = vec![pair("orders", "3"), pair("a", "Default"), pair("b", "Default")];
    assert_eq!(asked, ("g".to_owned(), Some(entries)));
    for body in [r#"{"consumerGroup":"g"}"#, r#"{"consumerGroup":"g","entries":null}"#] {
        assert_eq!(node.post(path, body).await.status, 200);
        let asked = node.fake.reads.position_queries.lock().unwrap().pop().unwrap();
        assert_eq!(asked, ("g".to_owned(), None));
    }
    let many = format!(
        r#"{{"consumerGroup":"g","entries":[{}]}}"#,
        vec![r#"{"queue":"q"}"#; 65_537].join(",")
    );
    for body in [
        "",
        "{}",
        r#"{"consumerGroup":""}"#,
        r#"{"consumerGroup":null,"entries":[]}"#,
        r#"{"consumerGroup":"g","entries":{}}"#,
        r#"{"consumerGroup":"g","entries":[{"partition":"p"}]}"#,
        r#"{"consumerGroup":"g","entries":[{"queue":7}]}"#,
        r#"{"consumerGroup":"g","entries":[{"queue":"q","partition":true}]}"#,
        r#"{"consumerGroup":"g","entries":["q"]}"#,
        &many,
    ] {
        let reply = node.post(path, body).await;
        assert_eq!(
            (reply.status, &reply.json()["code"]),
            (400, &json!("bad_request")),
            "{body:.80}"
        );
    }
    for body in ["[]", r#"{"consumerGroup":7}"#, r#"{"consumerGroup":"g""#] {
        let reply = node.post(path, body).await;
        assert_eq!((reply.status, &reply.json()["code"]), (400, &json!("bad_body")), "{body}");
    }
    assert!(node.fake.reads.position_queries.lock().unwrap().is_empty());
}
