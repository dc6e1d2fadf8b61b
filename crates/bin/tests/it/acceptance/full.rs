//! Promise 5: a volume that fills. At 86 % pushes are refused and consumers go on, below 80 % pushes are taken again; at
//! 100 % the node stops serving, and with more room it starts with everything that was acknowledged.
//!
//! The whole node behind its real HTTP server, in this process, over a [`Volume`].

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use metrics::NoopRecorder;
use queen_broker::cycle::CycleLimits;
use queen_broker::{
    BrokerOptions, Node, NodeOptions, NodeParts, ScrubPace, SpaceLimits, StoreScrubPace,
};
use queen_http::{App, AppOptions, Gate, HttpStats, ServeOptions, SubscribeDefault, serve};
use queen_io::{Disk, SystemClock};
use queen_store::DiskStore;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;

use super::volume::Volume;
use crate::program::call_at;

const MIB: u64 = 1 << 20;
/// How often the node looks at the volume.
const EVERY: Duration = Duration::from_millis(2);

/// A node that serves HTTP.
struct Served {
    node: Node,
    address: SocketAddr,
    runtime: Runtime,
    stop: oneshot::Sender<()>,
}

impl Served {
    fn start(volume: &Volume, space: SpaceLimits) -> Self {
        let dir = PathBuf::from("/data");
        let disk: Arc<dyn Disk> = Arc::new(volume.clone());
        disk.create_dir(&dir).unwrap();
        let store = Box::new(DiskStore::open(disk.clone(), &dir.join("store")).unwrap());
        let parts = NodeParts { disk, clock: Arc::new(SystemClock::new()), store, ids: None };
        let node = Node::open(&node_options(dir, space), parts, &NoopRecorder).unwrap();
        let runtime = Runtime::new().unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let gate = Arc::new(Gate::new());
        gate.open(node.api());
        let (stop, stopped) = oneshot::channel();
        let app = Arc::new(App::new(gate, app_options()));
        runtime.spawn(serve(listener, app, ServeOptions::default(), async {
            stopped.await.ok();
        }));
        Self { node, address, runtime, stop }
    }

    fn ask(&self, method: &str, path: &str, body: &str) -> (u16, Value) {
        let (status, body) = call_at(&self.address.to_string(), "", (method, path, body));
        let body = if body.is_empty() { Value::Null } else { serde_json::from_str(&body).unwrap() };
        (status, body)
    }

    fn push(&self, id: &str, text: &str) -> (u16, Value) {
        let item = json!({"queue": "q", "partition": "p", "transactionId": id, "payload": text});
        self.ask("POST", "/api/v1/push", &json!({ "items": [item] }).to_string())
    }

    /// Pushes small messages under this name until one is answered so; the ids that were taken.
    fn push_until(&self, name: &str, status: u16) -> Vec<String> {
        let mut taken = Vec::new();
        for number in 0.. {
            let id = format!("{name}-{number}");
            let (found, answer) = self.push(&id, "small");
            match found {
                201 => taken.push(id),
                507 => assert_eq!(answer["code"], "storage_full", "{answer}"),
                503 => {}
                _ => panic!("{found} {answer}"),
            }
            if found == status {
                break;
            }
        }
        taken
    }

    /// Pops one message of the partition; its id and what acknowledges it. A lease that a stopped node left ends while it
    /// waits.
    fn pop(&self) -> (u16, Option<(String, String)>) {
        let path = "/api/v1/pop/queue/q/partition/p?batch=1&leaseSeconds=1&wait=true&timeout=3000";
        let (status, answer) = self.ask("GET", path, "");
        let message = &answer["messages"][0];
        let popped = message["transactionId"].as_str().map(|id| {
            let ack = json!({"transactionId": id, "partitionId": message["partitionId"],
                "leaseId": message["leaseId"]});
            (id.to_owned(), ack.to_string())
        });
        (status, popped)
    }

    /// Pops and acknowledges; the id, and the first status that is not 200.
    fn consume(&self) -> Result<String, u16> {
        let (status, popped) = self.pop();
        let Some((id, ack)) = popped else { return Err(status) };
        match self.ask("POST", "/api/v1/ack", &ack) {
            (200, answer) => {
                assert_eq!(answer[0]["success"], true, "{answer}");
                Ok(id)
            }
            (status, _) => Err(status),
        }
    }

    /// Everything that the queue still has for its consumers, in order.
    fn drain(&self) -> Vec<String> {
        std::iter::from_fn(|| match self.consume() {
            Ok(id) => Some(id),
            Err(204) => None,
            Err(status) => panic!("{status}"),
        })
        .collect()
    }

    /// Ends it; why it had failed, if it had.
    fn stop(self) -> Result<(), String> {
        drop(self.stop);
        let done = self.node.stop();
        self.runtime.shutdown_timeout(Duration::from_secs(10));
        done
    }
}

fn node_options(dir: PathBuf, space: SpaceLimits) -> NodeOptions {
    NodeOptions {
        cluster: None,
        reclaim: queen_reclaim::Options::new(MIB),
        encryption_key: None,
        qlog: queen_qlog::Options {
            segment_bytes: MIB,
            prealloc_kb: 0,
            precreate: false,
            ..queen_qlog::Options::new(dir.join("qlog"))
        },
        dir,
        cycle: CycleLimits::default(),
        retention: None,
        broker: BrokerOptions {
            zstd_level: 0,
            admit_bytes_max: 0,
            admit_hold: Duration::from_secs(1),
        },
        commands_max: 1000,
        // The store is no part of this: with a checkpoint it might be the one that finds no room.
        durable_every: Duration::from_hours(1),
        durable_every_bytes: 1 << 30,
        lookup_threads: 1,
        scrub: ScrubPace::default(),
        store_scrub: StoreScrubPace::default(),
        space,
    }
}

fn app_options() -> AppOptions {
    AppOptions {
        version: "test",
        body_bytes_max: 4 << 20,
        body_timeout: Duration::from_secs(30),
        default_timeout: Duration::from_secs(30),
        statement_timeout: Duration::from_secs(30),
        subscribe_default: SubscribeDefault::All,
        auth: None,
        tenancy_header: false,
        partitions_max: 10,
        stats: Arc::new(HttpStats::new()),
        prometheus: Arc::new(String::new),
        resident_bytes: Arc::new(|| 0),
    }
}

/// Waits until the node has looked at the volume as it is now.
fn looked(volume: &Volume) {
    // One look may be under way.
    let until = volume.looks() + 2;
    while volume.looks() < until {
        std::thread::yield_now();
    }
}

#[test]
fn acceptance_5_a_volume_that_fills_refuses_pushes_and_takes_them_again() {
    let volume = Volume::new(64 * MIB);
    let node = Served::start(&volume, SpaceLimits { every: EVERY, ..SpaceLimits::default() });
    let mut taken: Vec<String> = Vec::new();
    for number in 0..20 {
        let id = format!("first-{number}");
        assert_eq!(node.push(&id, "some text").0, 201);
        taken.push(id);
    }
    volume.fill_to(840);
    looked(&volume);
    assert_eq!(node.push("at-84", "x").0, 201);
    taken.push("at-84".to_owned());

    volume.fill_to(860);
    taken.extend(node.push_until("until-86", 507));
    let mut consumed: Vec<String> = (0..3).map(|_| node.consume().unwrap()).collect();
    let (status, health) = node.ask("GET", "/health", "");
    assert_eq!((status, &health["status"]), (200, &json!("healthy")), "{health}");

    // Between the two marks it stays as it is.
    volume.fill_to(820);
    looked(&volume);
    assert_eq!(node.push("at-82", "x").0, 507);
    consumed.push(node.consume().unwrap());

    volume.fill_to(790);
    taken.extend(node.push_until("below-80", 201));
    consumed.extend(node.drain());
    assert_eq!(consumed, taken);
    assert_eq!(volume.refused(), 0);
    node.stop().unwrap();
}

/// What clients know.
#[derive(Default)]
struct Known {
    /// Ids whose push was acknowledged.
    taken: BTreeSet<String>,
    /// Ids whose ack was.
    consumed: BTreeSet<String>,
    /// Of a push without an acknowledgment: stored or not.
    unsure: Option<String>,
}

/// Lets `fill` bring the volume to its last byte under a node, which then stops serving, and starts another with more room.
fn filled(space: SpaceLimits, fill: impl FnOnce(&Served, &Volume, &mut Known) -> u16) {
    // A multiple of a thousand, so that shares are whole bytes.
    let volume = Volume::new(64_000_000);
    let node = Served::start(&volume, space);
    let mut known = Known::default();
    for number in 0..50 {
        let id = format!("first-{number}");
        assert_eq!(node.push(&id, "some text").0, 201);
        known.taken.insert(id);
    }
    known.consumed.extend((0..5).map(|_| node.consume().unwrap()));
    assert_eq!(fill(&node, &volume, &mut known), 503);
    assert!(volume.refused() > 0);
    let (status, health) = node.ask("GET", "/health", "");
    assert_eq!((status, &health["raft"]["role"]), (503, &json!("stopped")), "{health}");
    // It stays up, and says no to everybody.
    assert_eq!(node.push("late", "x").0, 503);
    assert_eq!(node.pop().0, 503);
    let failed = node.stop().unwrap_err();
    assert!(failed.contains("os error 28"), "{failed}");

    volume.resize(256_000_000);
    let node = Served::start(&volume, space);
    let rest = node.drain();
    let Known { taken, consumed, unsure } = known;
    let expected: BTreeSet<String> = taken.difference(&consumed).cloned().collect();
    let mut found: BTreeSet<String> = rest.iter().cloned().collect();
    assert_eq!(found.len(), rest.len(), "{rest:?}");
    found.retain(|id| Some(id) != unsure.as_ref());
    assert_eq!(found, expected);
    assert_eq!(node.push("again", "x").0, 201);
    assert_eq!(node.drain(), ["again"]);
    node.stop().unwrap();
}

#[test]
fn acceptance_5_a_volume_filled_by_others_stops_the_node_and_room_brings_all_back() {
    let space = SpaceLimits { every: EVERY, ..SpaceLimits::default() };
    filled(space, |node, volume, known| {
        volume.fill_to(1000);
        looked(volume);
        assert_eq!(node.push("refused", "x").0, 507);
        loop {
            match node.consume() {
                Ok(id) => assert!(known.consumed.insert(id)),
                Err(status) => return status,
            }
        }
    });
}

#[test]
fn acceptance_5_a_volume_filled_by_pushes_stops_the_node_and_room_brings_all_back() {
    // Nobody closes the gate: the write itself finds no room.
    let space = SpaceLimits { high_percent: 100, low_percent: 100, every: Duration::from_hours(1) };
    let large = "0123456789abcdef".repeat(6000);
    filled(space, |node, volume, known| {
        volume.fill_to(990);
        for number in 0.. {
            let id = format!("large-{number}");
            let (status, _) = node.push(&id, &large);
            if status != 201 {
                assert!(number > 0);
                known.unsure = Some(id);
                return status;
            }
            known.taken.insert(id);
        }
        unreachable!("the numbers do not end");
    });
}
