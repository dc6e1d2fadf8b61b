//! The membership of a cluster: what is asked of the broker, and each answer.

use std::sync::atomic::Ordering;
use std::time::Duration;

use queen_broker::api::{Member, Members, MembersChange, MembersError, Place};
use queen_http::{AppOptions, ServeOptions};
use serde_json::{Value, json};

use crate::node::{Node, Reply, app_options, send};

const PATH: &str = "/api/v1/system/raft/membership";

fn member(node: u64, http: &str, matched: Option<u64>, ms: Option<u64>) -> Member {
    Member {
        node,
        is_voter: node < 4,
        raft: format!("h{node}:7400"),
        http: http.to_owned(),
        matched,
        answered: ms.map(Duration::from_millis),
    }
}

/// A leader's view of three voters and a learner, at entry 1055.
fn leading() -> Members {
    Members {
        node: 3,
        role: "leader",
        leads: true,
        leader: Some(3),
        term: 2,
        cluster_id: "00ff".to_owned(),
        voters: vec![vec![1, 2, 3]],
        membership: Some(7),
        is_committed: true,
        is_changing: false,
        last: 1055,
        committed: 1054,
        applied: 1053,
        durable: 900,
        logs: (4, 4096),
        heard: None,
        live_within: Duration::from_secs(2),
        promote_lag_max: 1000,
        members: vec![
            member(1, "h1:6632", Some(721), Some(2)),
            member(2, "h2:6632", Some(1055), Some(2001)),
            member(3, "h3:6632", Some(1055), Some(0)),
            member(4, "h4:6632", None, None),
        ],
    }
}

/// The same cluster as a node that does not lead knows it.
fn following() -> Members {
    let mut view = Members { node: 1, role: "follower", leads: false, ..leading() };
    view.heard = Some(Duration::from_millis(1234));
    for member in &mut view.members {
        (member.matched, member.answered) = (None, None);
    }
    view
}

impl Node {
    async fn of(view: Members) -> Self {
        let node = Self::start().await;
        *node.fake.members.lock().unwrap() = Some(view);
        node
    }
}

#[tokio::test]
async fn the_leader_shows_who_belongs_to_it() {
    let node = Node::of(leading()).await;
    let row = |node: u64, matched: Value, lag: Value, ack: Value, live: bool| {
        json!({"nodeId":node,"voter":node<4,"raft":format!("h{node}:7400"),
            "http":format!("h{node}:6632"),"matched":matched,"lag":lag,"lastAckMs":ack,"live":live})
    };
    assert_eq!(
        node.get(PATH).await.json(),
        json!({"engine":"raft","membership":{"nodeId":3,"source":"leader","viewAgeMs":0,"leader":3,
            "term":2,"voters":[1,2,3],"learners":[4],"joint":null,"membershipIndex":7,
            "membershipCommitted":true,"changeInFlight":false,"lastLogIndex":1055,
            "committedIndex":1054,"liveWithinMs":2000,"promoteMaxLag":1000,"members":[
                row(1, json!(721), json!(334), json!(2), true),
                row(2, json!(1055), json!(0), json!(2001), false),
                row(3, json!(1055), json!(0), json!(0), true),
                row(4, Value::Null, Value::Null, Value::Null, false)]}})
    );
    let mut view = leading();
    view.voters = vec![vec![1, 2, 3], vec![1, 2, 4]];
    *node.fake.members.lock().unwrap() = Some(view);
    let shown = node.get(PATH).await.json()["membership"].clone();
    assert_eq!(shown["joint"], json!([[1, 2, 3], [1, 2, 4]]));
    assert_eq!(shown["changeInFlight"], true);
}

#[tokio::test]
async fn a_follower_asks_the_leader_and_knows_little_itself() {
    let leader = Node::of(leading()).await;
    let node = Node::of(following()).await;
    *node.fake.place.lock().unwrap() = Some(Place::At(leader.address.to_string()));
    let shown = node.get(PATH).await.json()["membership"].clone();
    assert_eq!((&shown["source"], &shown["nodeId"]), (&json!("leader"), &json!(3)));

    // Nobody leads; nobody listens where the leader was; the leader is none any more.
    let gone = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let gone_at = gone.local_addr().unwrap().to_string();
    drop(gone);
    *leader.fake.place.lock().unwrap() = Some(Place::Nowhere);
    *leader.fake.members.lock().unwrap() = None;
    for place in [Place::Nowhere, Place::At(gone_at), Place::At(leader.address.to_string())] {
        *node.fake.place.lock().unwrap() = Some(place);
        let shown = node.get(PATH).await.json()["membership"].clone();
        assert_eq!((&shown["source"], &shown["nodeId"]), (&json!("follower"), &json!(1)));
        assert_eq!(shown["viewAgeMs"], 1234);
        for member in shown["members"].as_array().unwrap() {
            assert_eq!((&member["live"], &member["matched"]), (&json!(false), &Value::Null));
        }
    }
}

#[tokio::test]
async fn a_change_is_read_and_answered_with_what_is_then() {
    let node = Node::of(leading()).await;
    let set = |ids: &[u64]| ids.iter().copied().collect();
    let add = |id: u64| MembersChange::AddLearner {
        node: id,
        raft: "h:7400".to_owned(),
        http: "h:6632".to_owned(),
    };
    let promote = |ids: &[u64], force| MembersChange::Promote { nodes: set(ids), force };
    let voters = |ids: &[u64], force| MembersChange::SetVoters { nodes: set(ids), force };
    let learner = r#"{"id":5,"raft":"h:7400","http":"h:6632"}"#;
    let by_node_id = r#"{"nodeId":6,"raft":"h:7400","http":"h:6632","more":[1]}"#;
    for (method, path, body, change, ms) in [
        ("POST", "/learners", learner, add(5), 30_000),
        ("POST", "/learners?timeoutMs=9", by_node_id, add(6), 9),
        ("POST", "/promote", r#"{"ids":[4,4,5]}"#, promote(&[4, 5], false), 30_000),
        ("POST", "/promote?timeoutMs=0", r#"{"id":4,"force":true}"#, promote(&[4], true), 1),
        ("POST", "/promote?force=true", r#"{"nodeId":4}"#, promote(&[4], true), 30_000),
        (
            "PUT",
            "/voters?timeoutMs=999999",
            r#"{"voters":[1,2,4]}"#,
            voters(&[1, 2, 4], false),
            120_000,
        ),
        ("PUT", "/voters", r#"{"voters":[],"force":true}"#, voters(&[], true), 30_000),
        ("DELETE", "/members/3", "", MembersChange::Remove { node: 3 }, 30_000),
    ] {
        let reply = node.send(method, &format!("{PATH}{path}"), body).await;
        assert_eq!(reply.status, 200, "{method} {path} {body}: {reply:?}");
        let answer = reply.json();
        assert_eq!(
            (&answer["ok"], &answer["membership"]["voters"]),
            (&json!(true), &json!([1, 2, 3]))
        );
        let asked = node.fake.changes.lock().unwrap().pop().unwrap();
        assert_eq!(asked, (change, Duration::from_millis(ms)), "{method} {path} {body}");
    }
}

#[tokio::test]
async fn what_cannot_be_meant_is_refused_before_anything_is_asked() {
    let node = Node::of(leading()).await;
    let many = format!("{{\"ids\":[{}1]}}", "1,".repeat(64));
    for (method, path, body) in [
        ("POST", "/learners", ""),
        ("POST", "/learners", "{"),
        ("POST", "/learners", "[]"),
        ("POST", "/learners", r#"{"id":0,"raft":"h:1","http":"h:2"}"#),
        ("POST", "/learners", r#"{"id":-1,"raft":"h:1","http":"h:2"}"#),
        ("POST", "/learners", r#"{"id":"5","raft":"h:1","http":"h:2"}"#),
        ("POST", "/learners", r#"{"raft":"h:1","http":"h:2"}"#),
        ("POST", "/learners", r#"{"id":5,"raft":"h","http":"h:2"}"#),
        ("POST", "/learners", r#"{"id":5,"raft":"h:1"}"#),
        ("POST", "/promote", ""),
        ("POST", "/promote", r#"{"ids":[]}"#),
        ("POST", "/promote", r#"{"ids":[0]}"#),
        ("POST", "/promote", &many),
        ("POST", "/promote?force=maybe", r#"{"ids":[4]}"#),
        ("PUT", "/voters", "{}"),
        ("PUT", "/voters", r#"{"voters":[0,1]}"#),
        ("PUT", "/voters?timeoutMs=soon", r#"{"voters":[1]}"#),
        ("DELETE", "/members/three", ""),
        ("DELETE", "/members/0", ""),
        ("DELETE", "/members/99999999999999999999", ""),
    ] {
        let reply = node.send(method, &format!("{PATH}{path}"), body).await;
        assert_eq!(reply.status, 400, "{method} {path} {body}: {reply:?}");
        let answer = reply.json();
        assert_eq!((&answer["ok"], &answer["code"]), (&json!(false), &json!("bad_request")));
        assert!(!answer["error"].as_str().unwrap().is_empty());
    }
    assert!(node.fake.changes.lock().unwrap().is_empty());
}

#[tokio::test]
async fn each_code_has_its_status() {
    let node = Node::of(leading()).await;
    let check = async |code: &'static str, status: u16| {
        let refused = MembersError { code, text: "why".to_owned() };
        node.fake.changed.lock().unwrap().push_back(Err(refused));
        let reply = node.send("DELETE", &format!("{PATH}/members/3"), "").await;
        assert_eq!(reply.status, status, "{code}");
        assert_eq!(reply.json(), json!({"ok":false,"code":code,"error":"why"}));
    };
    for code in ["in_flight", "no_quorum", "last_voter", "learner_behind", "not_a_learner"] {
        check(code, 409).await;
    }
    for code in ["not_a_member", "already_voter", "address_mismatch", "membership_changed"] {
        check(code, 409).await;
    }
    for code in ["leader_changed", "membership_invalid", "busy"] {
        check(code, 409).await;
    }
    check("bad_request", 400).await;
    check("no_leader", 503).await;
    check("timeout", 504).await;
    check("unsupported", 501).await;
}

#[tokio::test]
async fn without_a_leader_a_change_is_refused_in_its_own_words() {
    let node = Node::of(following()).await;
    let refused = async |place: Place, code: &str| {
        *node.fake.place.lock().unwrap() = Some(place);
        let path = format!("{PATH}/members/3?timeoutMs=1");
        let reply = node.send("DELETE", &path, "").await;
        let answer = reply.json();
        assert_eq!((reply.status, &answer["code"]), (503, &json!(code)), "{answer}");
        assert_eq!(answer["ok"], false);
    };
    refused(Place::Nowhere, "no_leader").await;
    // It takes the call and ends.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = silent.local_addr().unwrap().to_string();
    let ends = tokio::spawn(async move { drop(silent.accept().await.unwrap()) });
    refused(Place::At(at), "leader_unreachable").await;
    ends.await.unwrap();
}

#[tokio::test]
async fn a_call_is_held_while_the_member_that_leads_does_not_yet_serve() {
    let leader = Node::of(leading()).await;
    let node = Node::of(following()).await;
    // As after an election of which one of the two has not heard.
    *leader.fake.place.lock().unwrap() = Some(Place::Nowhere);
    *node.fake.place.lock().unwrap() = Some(Place::At(leader.address.to_string()));
    let asked = || leader.fake.places_asked.load(Ordering::Relaxed);
    let answered = async {
        let body = r#"{"items":[{"queue":"q","payload":1}]}"#;
        node.post("/api/v1/push", body).await
    };
    let elected = async {
        while asked() < 2 {
            tokio::task::yield_now().await;
        }
        *leader.fake.place.lock().unwrap() = Some(Place::Here);
    };
    let (reply, ()) = tokio::join!(answered, elected);
    assert_eq!(reply.status, 201, "{reply:?}");
    assert_eq!(leader.fake.pushed.lock().unwrap().len(), 1);
    assert!(node.fake.pushed.lock().unwrap().is_empty());
    assert!(!reply.has_header("x-queen-unplaced: 1"));
}

/// A leader that takes a call, and ends without an answer or says nothing more; then another one leads.
async fn with_a_leader_that_is_lost(
    answers_never: bool,
    method: &str,
    path: &str,
    body: &str,
) -> (Reply, Node) {
    let next = Node::of(leading()).await;
    let node = Node::of(following()).await;
    let lost = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    *node.fake.place.lock().unwrap() = Some(Place::At(lost.local_addr().unwrap().to_string()));
    let elected = async {
        let taken = lost.accept().await.unwrap();
        *node.fake.place.lock().unwrap() = Some(Place::At(next.address.to_string()));
        // Held until the call is answered, or not.
        let _held = answers_never.then_some(taken);
        std::future::pending::<()>().await;
    };
    let reply = tokio::select! {
        reply = node.send(method, path, body) => reply,
        () = elected => unreachable!("it has no end"),
    };
    assert!(
        node.fake.popped.lock().unwrap().is_empty() && node.fake.pushed.lock().unwrap().is_empty()
    );
    (reply, next)
}

#[tokio::test]
async fn a_pop_whose_leader_is_lost_goes_on_at_the_next_one() {
    for answers_never in [false, true] {
        let path = "/api/v1/pop/queue/q?wait=true&timeout=20000";
        let (reply, next) = with_a_leader_that_is_lost(answers_never, "GET", path, "").await;
        assert_eq!(reply.status, 204, "{reply:?}");
        let waits: Vec<Duration> =
            next.fake.popped.lock().unwrap().iter().map(|popped| popped.timeout).collect();
        // What it has waited already is not waited again.
        assert!(waits.len() == 1 && waits[0] < Duration::from_secs(20), "{waits:?}");
        let (reply, _) =
            with_a_leader_that_is_lost(answers_never, "GET", "/api/v1/resources/queues", "").await;
        assert_eq!(reply.status, 200, "{reply:?}");
    }
}

#[tokio::test]
async fn a_push_whose_leader_is_lost_is_not_sent_again() {
    for answers_never in [false, true] {
        let body = r#"{"items":[{"queue":"q","payload":1}]}"#;
        let (reply, next) =
            with_a_leader_that_is_lost(answers_never, "POST", "/api/v1/push", body).await;
        assert_eq!((reply.status, &reply.json()["code"]), (503, &json!("outcome_unknown")));
        assert!(next.fake.pushed.lock().unwrap().is_empty());
    }
}

#[tokio::test]
async fn a_node_alone_has_no_members() {
    let node = Node::start().await;
    for path in [PATH, "/api/v1/raft/status", "/api/v1/raft/members", "/api/v1/raft/liveness"] {
        let reply = node.get(path).await;
        assert_eq!(reply.status, 501, "{path}");
        let answer = reply.json();
        assert_eq!((&answer["ok"], &answer["code"]), (&json!(false), &json!("unsupported")));
    }
}

#[tokio::test]
async fn the_membership_is_no_tenants_business() {
    let options = AppOptions { tenancy_header: true, ..app_options() };
    let node = Node::start_with(options, ServeOptions::default()).await;
    *node.fake.members.lock().unwrap() = Some(leading());
    let other = "x-queen-tenant: 7f1c0f6e-2d1b-4c7e-9a53-0b6f3e5d8c21\r\n";
    let default = "x-queen-tenant: 00000000-0000-0000-0000-000000000001\r\n";
    for (method, path) in [("GET", PATH.to_owned()), ("DELETE", format!("{PATH}/members/3"))] {
        let refused = send(node.address, method, &path, other, "").await;
        assert_eq!((refused.status, &refused.json()["code"]), (403, &json!("forbidden")));
        assert_eq!(send(node.address, method, &path, default, "").await.status, 200);
    }
}

#[tokio::test]
async fn every_member_tells_of_itself() {
    let leader = Node::of(leading()).await;
    let stranger = Node::of(leading()).await;
    let (asked, gone) =
        (Node::of(following()).await, tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap());
    let at = |node: &Node| node.address.to_string();
    let gone_at = gone.local_addr().unwrap().to_string();
    drop(gone);
    let mut view = following();
    view.members = vec![
        member(1, &at(&asked), None, None),
        member(2, &gone_at, None, None),
        member(3, &at(&leader), None, None),
        member(4, &at(&stranger), None, None),
    ];
    *asked.fake.members.lock().unwrap() = Some(view);
    // Whoever is asked answers, whoever leads.
    *asked.fake.place.lock().unwrap() = Some(Place::Nowhere);

    let shown = asked.get("/api/v1/raft/members").await.json();
    assert_eq!(
        (&shown["self"], &shown["leaderId"], &shown["voters"]),
        (&json!(1), &json!(3), &json!([1, 2, 3]))
    );
    let rows = shown["members"].as_array().unwrap();
    let of = |name: &str| rows.iter().map(|row| row[name].clone()).collect::<Vec<_>>();
    assert_eq!(of("nodeId"), [1, 2, 3, 4]);
    assert_eq!(of("state"), ["follower", "unreachable", "leader", "unreachable"]);
    assert_eq!(of("role"), ["voter", "voter", "voter", "learner"]);
    assert_eq!(of("local"), [true, false, false, false]);
    assert_eq!(of("reachable"), [true, false, true, false]);
    assert_eq!(of("matchIndex"), [json!(721), json!(1055), json!(1055), Value::Null]);
    assert_eq!(of("lagEntries"), [json!(334), json!(0), json!(0), Value::Null]);
    assert_eq!(of("heartbeatAgeMs"), [json!(2), json!(2001), json!(0), Value::Null]);
    assert_eq!(rows[3]["error"], format!("another node answers at {}", at(&stranger)));
    assert_eq!(
        (&rows[2]["log"], &rows[2]["durableIndex"]),
        (&json!({"files":4,"bytes":4096}), &json!(900))
    );
    assert!(rows.iter().all(|row| row.get("clusterId").is_none()));

    let status = leader.get("/api/v1/raft/status").await.json();
    assert_eq!((&status["singleNode"], &status["clusterId"]), (&json!(false), &json!("00ff")));
    assert_eq!(status["replication"][0], json!({"nodeId":1,"matchIndex":721,"heartbeatAgeMs":2}));
    assert_eq!(asked.get("/api/v1/raft/status").await.json()["replication"], Value::Null);

    let shown = leader.get("/api/v1/raft/liveness").await.json();
    let states: Vec<&str> = shown["members"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["state"].as_str().unwrap())
        .collect();
    assert_eq!(states, ["follower", "unreachable", "leader", "unreachable"]);
    assert_eq!((&shown["viewAgeMs"], &shown["viewLeaderId"]), (&json!(0), &json!(3)));
    let shown = asked.get("/api/v1/raft/liveness").await.json();
    assert_eq!((&shown["viewAgeMs"], &shown["viewLeaderId"]), (&json!(1234), &Value::Null));
    assert_eq!(shown["members"][1]["state"], Value::Null);
}
