//! Transactions, dead letters and groups: what is read from a request and what is answered.

use queen_broker::api::{
    AckStatus, LetterRef, LetterSelect, PartitionRef, PushAnswer, PushStatus, Replay, ReplayEnd,
    Rollback, RollbackReason, Seek, SeekTo, Subscribe, TransactionAnswer,
};
use queen_record::ids::{Micros, Offset, PartitionId, Tenant, Uuid};
use serde_json::json;

use crate::fake::ID;
use crate::node::Node;

const ID_TEXT: &str = "01a0fcd5-2cdf-7000-a9bb-2f832df96c36";

#[tokio::test]
async fn results_stand_in_the_order_of_the_operations() {
    let node = Node::start().await;
    let body = format!(
        r#"{{"operations":[
            {{"type":"push","items":[{{"queue":"out","payload":1,"transactionId":"a","traceId":"{ID_TEXT}"}},
                                     {{"queue":"out","data":2,"traceId":"no"}}]}},
            {{"type":"ack","transactionId":"t","partitionId":"7","status":"FAILED","error":null}},
            {{"type":"push","queue":"other","partition":"p","payload":{{ "x" : 1 }},"transactionId":"b"}}],
          "requiredLeases":["L"],"kv":[],"timers":null,
          "positions":[{{"queue":"q","consumerGroup":"g","offset":null}},
                       {{"queue":"q","partition":"p","offset":4,"metadata":"m","subscriptionMode":"all"}}]}}"#
    );
    let reply = node.post("/api/v1/transaction", &body).await;
    assert_eq!(reply.status, 200, "{reply:?}");
    let answer = reply.json();
    assert_eq!(
        (&answer["success"], answer["transactionId"].as_str().unwrap().len()),
        (&json!(true), 36)
    );
    let push = |index: u64, id: &str, queue: &str| {
        json!({"index":index,"type":"push","success":true,"transactionId":id,"messageId":ID_TEXT,
            "queueName":queue})
    };
    let position =
        |index: u64, at: u64| json!({"index":index,"type":"position","success":true,"opIndex":at});
    assert_eq!(
        answer["results"],
        json!([push(0, "a", "out"), push(1, ID_TEXT, "out"),
            {"index":2,"type":"ack","success":true,"transactionId":"t","error":null,"dlq":false},
            push(3, "b", "other"), position(4, 0), position(5, 1)])
    );
    let asked = node.fake.transactions.lock().unwrap().pop().unwrap();
    assert_eq!(asked.traced, [Uuid::parse(ID_TEXT), None, None]);
    let ack = &asked.acks[0];
    assert_eq!((ack.item.status, ack.item.lease.as_deref()), (AckStatus::Failed, Some("L")));
    assert_eq!((&*ack.group, ack.item.partition_id), ("__QUEUE_MODE__", Some(PartitionId(7))));
    assert_eq!((&*asked.positions[0].partition, asked.positions[0].offset), ("Default", None));
    let second = &asked.positions[1];
    assert_eq!((second.offset, second.note.as_deref()), (Some(Offset(4)), Some("m")));
    assert_eq!(second.subscribe, Some(Subscribe::All));
}

#[tokio::test]
async fn a_lease_is_shared_only_when_the_body_names_one() {
    let node = Node::start().await;
    for (body, expected) in [
        (r#"[{"type":"ack","transactionId":"t","partitionId":"1"}]"#, vec![None]),
        (
            r#"[{"type":"ack","transactionId":"t","partitionId":"1","leaseId":"A"},
                {"type":"ack","transactionId":"u","partitionId":"2"}]"#,
            vec![Some("A"), Some("A")],
        ),
        (
            r#"[{"type":"ack","transactionId":"t","partitionId":"1","leaseId":"A"},
                {"type":"ack","transactionId":"u","partitionId":"2","leaseId":"B"},
                {"type":"ack","transactionId":"v","partitionId":"2","leaseId":""}]"#,
            vec![Some("A"), Some("B"), None],
        ),
    ] {
        let reply = node.post("/api/v1/transaction", &format!(r#"{{"operations":{body}}}"#)).await;
        assert_eq!(reply.status, 200, "{reply:?}");
        let asked = node.fake.transactions.lock().unwrap().pop().unwrap();
        let leases: Vec<_> = asked.acks.iter().map(|ack| ack.item.lease.as_deref()).collect();
        assert_eq!(leases, expected, "{body}");
    }
}

#[tokio::test]
async fn what_is_no_transaction_is_refused_and_what_lacks_a_part_is_rolled_back() {
    let node = Node::start().await;
    for (body, code) in [
        ("", "bad_body"),
        ("[]", "bad_body"),
        (r#"{"operations":{}}"#, "bad_request"),
        (r#"{"operations":[{}]}"#, "bad_request"),
        (r#"{"operations":[{"type":"kv"}]}"#, "bad_request"),
        (r#"{"operations":[{"type":"timers"}]}"#, "bad_request"),
        (r#"{"operations":[7]}"#, "bad_request"),
        (r#"{"requiredLeases":"L"}"#, "bad_request"),
        (r#"{"positions":1}"#, "bad_request"),
        (r#"{"kv":{}}"#, "bad_request"),
        (r#"{"kv":[{"op":"get"}]}"#, "bad_request"),
        (r#"{"timers":[1]}"#, "bad_request"),
    ] {
        let reply = node.post("/api/v1/transaction", body).await;
        assert_eq!((reply.status, &reply.json()["code"]), (400, &json!(code)), "{body}");
    }
    let long = format!(
        r#"{{"operations":[{{"type":"push","items":[{{"queue":"q","payload":1,"transactionId":"{}"}}]}}]}}"#,
        "t".repeat(65_536)
    );
    assert_eq!(node.post("/api/v1/transaction", &long).await.json()["code"], "bad_request");
    for body in [
        "{}",
        r#"{"operations":[],"positions":null}"#,
        r#"{"operations":[{"type":"push","queue":"q"}]}"#,
        r#"{"operations":[{"type":"push","payload":1}]}"#,
        r#"{"operations":[{"type":"push","items":[{"queue":"q"}]}]}"#,
        r#"{"operations":[{"type":"ack","partitionId":"1"}]}"#,
        r#"{"positions":[{"queue":"q"}]}"#,
        r#"{"positions":[{"offset":1}]}"#,
        r#"{"positions":[{"queue":"q","offset":-1}]}"#,
        r#"{"positions":[{"queue":"q","offset":"1"}]}"#,
        r#"{"positions":[{"queue":"q","offset":1.5}]}"#,
    ] {
        let reply = node.post("/api/v1/transaction", body).await;
        let answer = reply.json();
        assert_eq!((reply.status, &answer["success"]), (200, &json!(false)), "{body}");
        assert_eq!(
            (&answer["reason"], &answer["results"]),
            (&json!("bad_request"), &json!([])),
            "{body}"
        );
    }
    assert!(node.fake.transactions.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_rollback_is_answered_with_its_reason() {
    let node = Node::start().await;
    let error = "transaction rolled back: 1 of 1 acks refused: invalid or expired lease".to_owned();
    let rollback = Rollback { reason: RollbackReason::RejectedAck, error: error.clone() };
    node.fake.ends.lock().unwrap().push_back(TransactionAnswer::RolledBack(rollback));
    let body = r#"{"operations":[{"type":"ack","transactionId":"t","partitionId":"1"}]}"#;
    let reply = node.post("/api/v1/transaction", body).await;
    let mut answer = reply.json();
    answer.as_object_mut().unwrap().remove("transactionId").unwrap();
    let expected = json!({"success":false,"reason":"rejected_ack","error":error,"results":[]});
    assert_eq!((reply.status, answer), (200, expected));
}

fn replay(end: ReplayEnd) -> Replay {
    Replay {
        id: ID,
        queue: "orders".into(),
        partition: "p".into(),
        group: "billing".into(),
        transaction_id: "t".into(),
        copy_id: format!("dlq:{ID_TEXT}"),
        end,
    }
}

#[tokio::test]
async fn replays() {
    let node = Node::start().await;
    let path = format!("/api/v1/dlq/{ID_TEXT}/replay");
    let answer = |status| PushAnswer { message_id: ID, status };
    let rollback = Rollback { reason: RollbackReason::NameTooLong, error: "too long".into() };
    node.fake.replayed.lock().unwrap().extend([
        replay(ReplayEnd::Moved(answer(PushStatus::Queued(Offset(18))))),
        replay(ReplayEnd::Duplicate(answer(PushStatus::Duplicate(Offset(3))))),
        replay(ReplayEnd::Refused(rollback)),
    ]);
    let expected = |result: &str, status: &str, offset: u64| {
        json!({"success":true,"result":result,"queue":"orders","partition":"p",
            "consumerGroup":"billing","dlqId":ID_TEXT,"originalTransactionId":"t",
            "replayedAs":{"index":0,"message_id":ID_TEXT,"transaction_id":format!("dlq:{ID_TEXT}"),
                "queueName":"orders","status":status,"offset":offset},
            "dlqRowRemoved":result == "moved"})
    };
    assert_eq!(node.post(&path, "").await.json(), expected("moved", "queued", 18));
    let reply = node.post(&path, r#"{"queue":"q2","partition":null}"#).await;
    assert_eq!(reply.json(), expected("duplicate", "duplicate", 3));
    let reply = node.post("/api/v1/messages/7/t%2F1/retry", "{}").await;
    let refused = json!({"success":false,"error":"too long","reason":"name_too_long",
        "dlqRowRemoved":false});
    assert_eq!((reply.status, reply.json()), (409, refused));
    let gone = json!({"success":false,"result":"gone","error":"Message not found"});
    for path in [&*path, "/api/v1/dlq/nonsense/replay", "/api/v1/messages/x/t/retry"] {
        let reply = node.post(path, "").await;
        assert_eq!((reply.status, reply.json()), (404, gone.clone()), "{path}");
    }
    for body in [r#"{"queue":""}"#, r#"{"partition":""}"#] {
        let reply = node.post(&path, body).await;
        assert_eq!((reply.status, &reply.json()["success"]), (400, &json!(false)), "{body}");
    }
    let asked = node.fake.replays.lock().unwrap();
    assert_eq!(asked.len(), 4);
    assert_eq!(asked[1].1.queue.as_deref(), Some("q2"));
    let partition = PartitionRef::Number(PartitionId(7));
    assert_eq!(asked[2].0, LetterRef::Message { partition, transaction_id: "t/1".into() });
}

#[tokio::test]
async fn dead_letters_are_deleted_by_queue_or_by_message() {
    let node = Node::start().await;
    *node.fake.count.lock().unwrap() = 3;
    let reply = node.send("DELETE", "/api/v1/dlq?queue=q&consumerGroup=g", "").await;
    let expected = json!({"success":true,"queue":"q","consumerGroup":"g","deleted":3});
    assert_eq!((reply.status, reply.json()), (200, expected));
    let reply = node.send("DELETE", "/api/v1/dlq", "").await;
    assert_eq!((reply.status, &reply.json()["error"]), (400, &json!("queue is required")));
    assert!(reply.json()["message"].is_string());
    // A variable of a script that was not set must not stand for all groups.
    let reply = node.send("DELETE", "/api/v1/dlq?queue=q&consumerGroup=", "").await;
    let error = json!("consumerGroup must not be empty");
    assert_eq!((reply.status, &reply.json()["error"]), (400, &error));
    let reply = node.send("DELETE", "/api/v1/messages/7/t", "").await;
    let expected = json!({"success":true,"partitionId":"7","transactionId":"t","deleted":3});
    assert_eq!((reply.status, reply.json()), (200, expected));
    *node.fake.count.lock().unwrap() = 0;
    for path in ["/api/v1/messages/7/t", "/api/v1/messages/none/t"] {
        let reply = node.send("DELETE", path, "").await;
        let expected = json!({"success":false,"error":"Message not found"});
        assert_eq!((reply.status, reply.json()), (404, expected), "{path}");
    }
    let asked = node.fake.purges.lock().unwrap();
    assert_eq!(asked[0], LetterSelect::Queue { queue: "q".into(), group: Some("g".into()) });
    assert!(asked[1..].iter().all(|select| !matches!(select, LetterSelect::Queue { .. })));
}

#[tokio::test]
async fn a_group_is_resubscribed_to_a_time() {
    let node = Node::start().await;
    *node.fake.count.lock().unwrap() = 2;
    let path = "/api/v1/consumer-groups/a%20b/subscription";
    let reply = node.post(path, r#"{"subscriptionTimestamp":"1970-01-01T00:00:01.5Z"}"#).await;
    let expected = json!({"success":true,"consumerGroup":"a b",
        "newTimestamp":"1970-01-01T00:00:01.5Z","rowsUpdated":2});
    assert_eq!((reply.status, reply.json()), (200, expected));
    let asked = node.fake.resubscribed.lock().unwrap().pop();
    assert_eq!(asked, Some(("a b".to_owned(), Micros(1_500_000))));
    for body in ["", "{}", r#"{"subscriptionTimestamp":5}"#, r#"{"subscriptionTimestamp":"soon"}"#]
    {
        assert_eq!(node.post(path, body).await.status, 400, "{body}");
    }
}

#[tokio::test]
async fn seeks() {
    let node = Node::start().await;
    *node.fake.count.lock().unwrap() = 2;
    let path = "/api/v1/consumer-groups/g/queues/q/seek";
    let seek = |partition: Option<&str>, to| Seek {
        tenant: Tenant::DEFAULT,
        group: "g".into(),
        queue: "q".into(),
        partition: partition.map(str::to_owned),
        to,
    };
    let answer = json!({"success":true,"consumerGroup":"g","queueName":"q","partitionName":null,
        "seekToEnd":true,"targetTimestamp":null,"partitionsUpdated":2,"updated":true});
    for body in ["", r#"{"toEnd":true}"#, r#"{"toEnd":true,"timestamp":"x"}"#] {
        assert_eq!(node.post(path, body).await.json(), answer, "{body}");
        assert_eq!(node.fake.seeks.lock().unwrap().pop(), Some(seek(None, SeekTo::End)));
    }
    let pinned = "/api/v1/consumer-groups/g/queues/q/partitions/a%2Fb/seek";
    let reply = node.post(pinned, r#"{"timestamp":"1970-01-01T00:00:02"}"#).await.json();
    assert_eq!((&reply["partitionName"], &reply["seekToEnd"]), (&json!("a/b"), &json!(false)));
    assert_eq!(reply["targetTimestamp"], "1970-01-01T00:00:02");
    let asked = node.fake.seeks.lock().unwrap().pop();
    assert_eq!(asked, Some(seek(Some("a/b"), SeekTo::Time(Micros(2_000_000)))));
    let text = "Must specify toEnd=true or a timestamp";
    for body in ["{}", r#"{"position":4}"#, r#"{"toEnd":false}"#, r#"{"timestamp":5}"#] {
        let reply = node.post(path, body).await;
        let expected = json!({"success":false,"error":text});
        assert_eq!((reply.status, reply.json()), (400, expected), "{body}");
    }
    assert_eq!(node.post(path, r#"{"timestamp":"soon"}"#).await.status, 400);
    *node.fake.count.lock().unwrap() = 0;
    assert_eq!(node.post(path, "").await.status, 404);
}
