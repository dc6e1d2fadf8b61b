//! Reads over HTTP against a running node, as the published clients ask them.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::client::Client;
use crate::program::Program;

fn start() -> (TempDir, Program) {
    let directory = tempfile::tempdir().unwrap();
    let node = Program::start(&directory.path().join("data"), &[]).unwrap();
    (directory, node)
}

/// One push per item, many at once.
fn push_each(address: &str, queue: &str, items: &[(String, String, Value)]) {
    thread::scope(|scope| {
        for part in items.chunks(items.len().div_ceil(24)) {
            scope.spawn(move || {
                let mut client = Client::new(address);
                for (partition, id, data) in part {
                    push(&mut client, queue, partition, id, data);
                }
            });
        }
    });
}

fn push(client: &mut Client, queue: &str, partition: &str, id: &str, data: &Value) {
    let item = json!({"queue":queue,"partition":partition,"transactionId":id,"payload":data});
    let answer = client.post("/api/v1/push", &json!({"items":[item]}));
    assert_eq!(answer[0]["status"], "queued", "{answer}");
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap()
}

#[test]
fn fetch_reads_every_record_of_1200_partitions_by_offset() {
    const PARTITIONS: usize = 1200;
    let (_directory, node) = start();
    let address = node.address();
    let names: Vec<String> = (0..PARTITIONS).map(|n| format!("entity-{n}")).collect();
    for turn in 0..3 {
        let item =
            |name: &String| (name.clone(), format!("{name}-{turn}"), json!({"p":name,"n":turn}));
        push_each(address, "reads", &names.iter().map(item).collect::<Vec<_>>());
    }
    let mut client = Client::new(address);
    let entry =
        |name: &String| json!({"queue":"reads","partition":name,"offset":0,"maxBytes":8_388_608});
    for part in names.chunks(1000) {
        let entries: Vec<Value> = part.iter().map(entry).collect();
        let body = json!({"entries":entries,"maxBytes":8_388_608});
        let answer = client.post("/api/v1/fetch", &body);
        for (name, entry) in part.iter().zip(answer["entries"].as_array().unwrap()) {
            let record = |turn: usize| {
                let ts = &entry["records"][turn]["ts"];
                json!({"offset":turn,"transactionId":format!("{name}-{turn}"),
                    "payload":{"p":name,"n":turn},"ts":ts})
            };
            let expected = json!({"queue":"reads","partition":name,
                "records":[record(0), record(1), record(2)],"highWatermark":3,"logStartOffset":0});
            assert_eq!(*entry, expected);
        }
    }
    // From the next offset on there is only what came later.
    push(&mut client, "reads", "entity-7", "late", &json!({"late":true}));
    let later = |name: &str| json!({"queue":"reads","partition":name,"offset":3});
    let entries = json!([later("entity-7"), later("entity-8"), {"queue":"none","partition":"x"}]);
    let answer = client.post("/api/v1/fetch", &json!({"entries":entries}));
    let records = |at: usize| answer["entries"][at]["records"].as_array().unwrap();
    assert_eq!((records(0).len(), records(1).len(), records(2).len()), (1, 0, 0));
    assert_eq!(
        (&records(0)[0]["offset"], &records(0)[0]["payload"]),
        (&json!(3), &json!({"late":true}))
    );
    assert_eq!(answer["entries"][2]["error"], "UNKNOWN_TOPIC_OR_PARTITION");
    // No lease was taken and no cursor moved.
    let popped = client.get("/api/v1/pop/queue/reads/partition/entity-9?batch=10&wait=false");
    assert_eq!(popped["messages"].as_array().unwrap().len(), 3);
}

/// All partitions of a pass, and its smallest safe time.
fn pass(client: &mut Client, since: Option<&str>) -> (Vec<Value>, String) {
    let (mut rows, mut safe_time, mut after) = (Vec::new(), None::<String>, Value::Null);
    loop {
        let entry = json!({"queue":"changed","since":since,"after":after,"limit":1000});
        let answer = client.post("/api/v1/partitions/changed", &json!({"entries":[entry]}));
        let found = text(&answer["safeTime"]).to_owned();
        safe_time = Some(safe_time.map_or(found.clone(), |least| least.min(found)));
        assert_eq!(answer["safeTimeDegraded"], false);
        let page = &answer["entries"][0];
        rows.extend(page["partitions"].as_array().unwrap().iter().cloned());
        after = page["next"].clone();
        if after.is_null() {
            return (rows, safe_time.unwrap());
        }
    }
}

#[test]
fn changed_lists_the_written_partitions_of_1100() {
    const PARTITIONS: usize = 1100;
    let (_directory, node) = start();
    let address = node.address();
    let names: Vec<String> = (0..PARTITIONS).map(|n| format!("c-{n}")).collect();
    let item = |name: &String| (name.clone(), format!("{name}-0"), json!({"p":name}));
    push_each(address, "changed", &names.iter().map(item).collect::<Vec<_>>());
    let mut client = Client::new(address);
    let (rows, safe_time) = pass(&mut client, Some("2001-01-01T00:00:00.000001Z"));
    let mut listed: Vec<&str> = rows.iter().map(|row| text(&row["name"])).collect();
    listed.sort_unstable();
    let mut expected: Vec<&str> = names.iter().map(String::as_str).collect();
    expected.sort_unstable();
    assert_eq!(listed, expected);
    for row in &rows {
        assert_eq!((&row["lastOffset"], &row["logStart"]), (&json!(0), &json!(0)));
        assert!(text(&row["lastWriteAt"]) <= &*safe_time && text(&row["id"]).len() == 36, "{row}");
        assert_eq!(text(&row["lastWriteAt"]).len(), safe_time.len(), "one spelling");
    }
    push(&mut client, "changed", "c-42", "again", &json!(1));
    let (after, later) = pass(&mut client, Some(&safe_time));
    assert!(after.iter().any(|row| row["name"] == "c-42" && row["lastOffset"] == 1), "{after:?}");
    assert!(after.iter().all(|row| text(&row["lastWriteAt"]) >= &*safe_time), "{after:?}");
    assert!(later > safe_time);
    assert_eq!(pass(&mut client, None).0.len(), PARTITIONS);
    let entries = json!([{"queue":"none"}, {"queue":"changed","after":"made up"}]);
    let answer = client.post("/api/v1/partitions/changed", &json!({"entries":entries}));
    let errors = json!([{"queue":"none","error":"UNKNOWN_TOPIC_OR_PARTITION"},
        {"queue":"changed","error":"BAD_CURSOR"}]);
    assert_eq!(answer["entries"], errors);
    assert_eq!(answer["safeTime"], later, "it moves with writes only");
}

#[test]
fn a_waiting_fetch_is_answered_by_the_push_and_a_caller_may_leave() {
    let (_directory, node) = start();
    let address = node.address();
    let mut client = Client::new(address);
    push(&mut client, "q", "p", "1", &json!(1));
    let body = json!({"entries":[{"queue":"q","partition":"p","offset":1}],"maxWaitMs":30_000});
    let started = Instant::now();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| Client::new(address).post("/api/v1/fetch", &body));
        drop(Client::new(address));
        push(&mut client, "q", "other", "2", &json!(2));
        push(&mut client, "q", "p", "3", &json!(3));
        let answer = waiting.join().unwrap();
        assert_eq!(answer["entries"][0]["records"][0]["payload"], 3);
    });
    assert!(started.elapsed() < Duration::from_secs(30));
}

#[test]
fn every_read_answers_about_what_was_pushed_and_popped() {
    let (_directory, node) = start();
    let address = node.address();
    let mut client = Client::new(address);
    client.post("/api/v1/configure", &json!({"queue":"work.mail","namespace":"work","options":{}}));
    for n in 0..4 {
        push(&mut client, "work.mail", "a", &format!("a{n}"), &json!({"n":n}));
    }
    push(&mut client, "work.mail", "b", "b0", &json!(null));
    let pop = "/api/v1/pop/queue/work.mail/partition/a?consumerGroup=g&batch=2&wait=false&subscriptionMode=all";
    let popped = client.get(pop);
    let lease = text(&popped["messages"][0]["leaseId"]).to_owned();
    let ack = json!({"transactionId":"a0","partitionId":popped["messages"][0]["partitionId"],
        "leaseId":lease,"status":"completed","consumerGroup":"g"});
    assert_eq!(client.post("/api/v1/ack", &ack)[0]["success"], true);

    let depth = client.get("/api/v1/resources/queues/work.mail/depth?group=g");
    let numbers = ["pending", "processing", "ready", "partitionsPending", "partitionsReady"];
    let numbers: Vec<&Value> = numbers.iter().map(|name| &depth[name]).collect();
    assert_eq!(json!(numbers), json!([4, 1, 3, 2, 2]), "{depth}");
    let busy = client.get("/api/v1/resources/partitions?queue=work.mail");
    let row = &busy["partitions"][0];
    assert_eq!(json!([row["partition"], row["pending"], row["processing"]]), json!(["a", 2, 1]));
    let spaces = client.get("/api/v1/resources/namespaces");
    assert_eq!(spaces["namespaces"][0]["namespace"], "work");
    let overview = client.get("/api/v1/resources/overview");
    assert_eq!(json!([overview["queues"], overview["messages"]["total"]]), json!([1, 5]));
    let queues = client.get("/api/v1/resources/queues");
    assert_eq!(queues["queues"][0]["segments"], json!({"segments":1,"messages":5}));

    let groups = client.get("/api/v1/consumer-groups");
    let row = &groups[0];
    assert_eq!(
        json!([row["name"], row["totalLag"], row["subscriptionMode"], row["state"]]),
        json!(["g", 3, null, "Stable"]),
        "a pinned pop registers no subscription"
    );
    let group = client.get("/api/v1/consumer-groups/g");
    let row = &group["work.mail"]["partitions"][0];
    assert_eq!(json!([row["offsetLag"], row["workerId"]]), json!([3, lease]));
    let lagging = client.get("/api/v1/consumer-groups/lagging?minLagSeconds=0");
    assert_eq!(lagging[0]["offset_lag"], 3);
    let body = json!({"consumerGroup":"g","entries":[{"queue":"work.mail","partition":"a"},
        {"queue":"work.mail","partition":"b"}]});
    let positions = client.post("/api/v1/consumer-groups/positions", &body);
    let offsets: Vec<&Value> =
        positions["entries"].as_array().unwrap().iter().map(|entry| &entry["offset"]).collect();
    assert_eq!(json!(offsets), json!([1, null]));

    let page = client.get("/api/v1/messages?queue=work.mail&limit=3&offset=1");
    let found: Vec<Value> = page["messages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| json!([row["transactionId"], row["status"], row["payload"]]))
        .collect();
    let expected = json!([["a3", "processing", {"n":3}], ["a2", "processing", {"n":2}],
        ["a1", "processing", {"n":1}]]);
    assert_eq!(json!(found), expected);
    let page = client.get("/api/v1/messages?status=completed");
    assert_eq!((&page["total"], &page["messages"][0]["transactionId"]), (&json!(1), &json!("a0")));
    let at = &page["messages"][0]["createdAt"];
    let body = json!({"entries":[{"queue":"work.mail","partition":"a","timestamp":at}]});
    let offsets = client.post("/api/v1/fetch/offsets", &body);
    assert_eq!(offsets["entries"][0]["offset"], 0);
    let (status, refused) = client.send("GET", "/api/v1/messages?offset=9990&limit=11", "");
    assert_eq!((status, &refused["code"]), (400, &json!("bad_request")));
}
