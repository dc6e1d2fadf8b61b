//! Three nodes on an address of this process's own.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use crate::program::{Program, call_at};

/// A condition that a cluster does not reach in this time, it never does.
const WAIT_MAX: Duration = Duration::from_mins(1);
const LOOK_EVERY: Duration = Duration::from_millis(20);

pub(crate) struct Trio {
    home: Option<TempDir>,
    ip: String,
    settings: Vec<(String, String)>,
    nodes: [Option<Program>; 3],
}

/// An address of the loopback network that no other process of the tests uses.
fn own_ip() -> String {
    let id = std::process::id();
    format!("127.{}.{}.{}", 64 + (id >> 16) % 128, (id >> 8) & 255, id & 255)
}

/// A node that is no member of the three.
pub(crate) fn start_alone(dir: &Path, settings: &[(&str, &str)]) -> Result<Program, String> {
    Program::start(dir, settings)
}

pub(crate) fn wait_healthy(address: &str) {
    wait(
        || call_at(address, "", ("GET", "/health", "")).0 == 200,
        || "the node is not healthy".to_owned(),
    );
}

pub(crate) fn wait(mut holds: impl FnMut() -> bool, otherwise: impl Fn() -> String) {
    let until = Instant::now() + WAIT_MAX;
    while !holds() {
        assert!(Instant::now() < until, "{}", otherwise());
        std::thread::park_timeout(LOOK_EVERY);
    }
}

impl Trio {
    /// Three nodes that were never started.
    pub(crate) fn new(settings: &[(&str, &str)]) -> Self {
        let settings =
            settings.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Self {
            home: Some(tempfile::tempdir().unwrap()),
            ip: own_ip(),
            settings: settings.collect(),
            nodes: [None, None, None],
        }
    }

    /// A new cluster of three, with a leader.
    pub(crate) fn start(settings: &[(&str, &str)]) -> Self {
        let mut trio = Self::new(settings);
        trio.restart_stopped();
        trio.leader();
        trio
    }

    pub(crate) fn dir(&self, node: usize) -> PathBuf {
        self.home.as_ref().unwrap().path().join(format!("node{}", node + 1))
    }

    pub(crate) fn http(&self, node: usize) -> String {
        format!("{}:{}", self.ip, 17_001 + node)
    }

    pub(crate) fn raft(&self, node: usize) -> String {
        format!("{}:{}", self.ip, 17_101 + node)
    }

    fn is_running(&self, node: usize) -> bool {
        self.nodes[node].is_some()
    }

    /// One of those that run.
    pub(crate) fn any_running(&self, choice: usize) -> usize {
        (0..3).map(|add| (choice + add) % 3).find(|node| self.is_running(*node)).unwrap()
    }

    pub(crate) fn restart_with(&mut self, node: usize, settings: &[(&str, &str)]) {
        let started = self.try_start(node, settings);
        self.nodes[node] = Some(started.unwrap_or_else(|log| panic!("{log}")));
    }

    /// Starts a node that is stopped; all it logged when it ends instead.
    pub(crate) fn try_start(
        &self,
        node: usize,
        settings: &[(&str, &str)],
    ) -> Result<Program, String> {
        let peers: Vec<String> =
            (0..3).map(|id| format!("{}={}/{}", id + 1, self.raft(id), self.http(id))).collect();
        let (peers, id) = (peers.join(","), (node + 1).to_string());
        let (port, listen) = ((17_001 + node).to_string(), self.raft(node));
        let mut all = vec![
            ("QUEEN_RAFT_REPLICATOR", "openraft"),
            ("QUEEN_RAFT_NODE_ID", &*id),
            ("QUEEN_RAFT_PEERS", &*peers),
            ("QUEEN_RAFT_LISTEN", &*listen),
            ("QUEEN_RAFT_TOKEN", "one of three"),
            ("QUEEN_BIND_ADDR", &*self.ip),
            ("PORT", &*port),
        ];
        all.extend(self.settings.iter().map(|(name, value)| (&**name, &**value)));
        all.extend(settings);
        Program::start(&self.dir(node), &all)
    }

    pub(crate) fn restart(&mut self, node: usize) {
        self.restart_with(node, &[]);
    }

    pub(crate) fn restart_stopped(&mut self) {
        for node in 0..3 {
            if !self.is_running(node) {
                self.restart(node);
            }
        }
    }

    /// Ends a node at once, as a lost machine does.
    pub(crate) fn kill(&mut self, node: usize) {
        if let Some(program) = self.nodes[node].take() {
            program.kill();
        }
    }

    /// Waits until a node logs a line with this text.
    pub(crate) fn wait_for_line(&mut self, node: usize, text: &str) {
        let program = self.nodes[node].as_mut().unwrap();
        if !program.log.iter().any(|line| line.contains(text)) {
            program.wait_for_line(text);
        }
    }

    /// Waits until a node ends by itself; its exit code and what it logged.
    pub(crate) fn wait_for_end(&mut self, node: usize) -> (Option<i32>, String) {
        let (status, log) = self.nodes[node].take().unwrap().end();
        (status.code(), log.join("\n"))
    }

    /// The last entry that a node has purged, as the library counts.
    pub(crate) fn purged(&self, node: usize) -> u64 {
        let text = std::fs::read_to_string(self.dir(node).join("raft/state.json")).unwrap();
        let state: Value = serde_json::from_str(&text).unwrap();
        state["purged"]["index"].as_u64().unwrap_or(0)
    }

    pub(crate) fn applied(&self, node: usize) -> u64 {
        self.health(node).1["raft"]["applied"].as_u64().unwrap()
    }

    /// Bytes of all files of a node's logs.
    pub(crate) fn log_bytes(&self, node: usize) -> u64 {
        fn below(dir: &Path) -> u64 {
            // A file may go while it is looked at.
            let Ok(names) = std::fs::read_dir(dir) else { return 0 };
            names
                .filter_map(Result::ok)
                .map(|name| match name.metadata() {
                    Ok(found) if found.is_dir() => below(&name.path()),
                    Ok(found) => found.len(),
                    Err(_) => 0,
                })
                .sum()
        }
        below(&self.dir(node).join("qlog"))
    }

    /// Stops a node in order; what it logged.
    pub(crate) fn terminate(&mut self, node: usize) -> String {
        let (status, log) = self.nodes[node].take().unwrap().stop();
        let log = log.join("\n");
        assert!(status.success(), "{log}");
        log
    }

    pub(crate) fn call(&self, node: usize, method: &str, path: &str, body: &str) -> (u16, String) {
        call_at(&self.http(node), "", (method, path, body))
    }

    /// Asks until the cluster takes it. Only for what may be done twice.
    pub(crate) fn ask_until_taken(
        &self,
        node: usize,
        method: &str,
        path: &str,
        body: &str,
    ) -> String {
        until_taken(&self.http(node), method, path, body)
    }

    pub(crate) fn health(&self, node: usize) -> (u16, Value) {
        let (status, body) = self.call(node, "GET", "/health", "");
        (status, serde_json::from_str(&body).unwrap())
    }

    pub(crate) fn wait_for_health(&self, node: usize, status: u16) {
        wait(|| self.health(node).0 == status, || format!("health of node {node} is not {status}"));
    }

    /// Who leads, once exactly one of those that run says so and is healthy.
    pub(crate) fn leader(&self) -> usize {
        let mut leader = None;
        wait(
            || {
                let running = (0..3).filter(|node| self.is_running(*node));
                let leads = |node: &usize| {
                    let (status, health) = self.health(*node);
                    status == 200 && health["raft"]["role"] == "leader"
                };
                let leaders: Vec<usize> = running.filter(leads).collect();
                leader = leaders.first().copied().filter(|_| leaders.len() == 1);
                leader.is_some()
            },
            || "there is no leader".to_owned(),
        );
        leader.unwrap()
    }

    /// Waits until all three have applied the same entries.
    pub(crate) fn wait_until_equal(&self) {
        wait(
            || {
                let healths: Vec<(u16, Value)> = (0..3).map(|node| self.health(node)).collect();
                let applied = |health: &(u16, Value)| {
                    (
                        health.0,
                        health.1["raft"]["applied"].clone(),
                        health.1["raft"]["commit"].clone(),
                    )
                };
                let first = applied(&healths[0]);
                first.0 == 200 && first.1 == first.2 && healths.iter().all(|h| applied(h) == first)
            },
            || {
                let healths: Vec<_> =
                    (0..3).map(|node| self.call(node, "GET", "/health", "")).collect();
                format!("the nodes do not come to the same entry: {healths:?}")
            },
        );
    }

    /// Stops all that run in order; the directories stay as long as what is returned.
    pub(crate) fn stop(mut self) -> Vec<Kept> {
        for node in 0..3 {
            if self.is_running(node) {
                self.terminate(node);
            }
        }
        let home = std::rc::Rc::new(self.home.take().unwrap());
        (0..3)
            .map(|node| Kept {
                dir: home.path().join(format!("node{}", node + 1)),
                _home: home.clone(),
            })
            .collect()
    }
}

/// Asks whoever listens there until the cluster takes it. Only for what may be done twice.
pub(crate) fn until_taken(address: &str, method: &str, path: &str, body: &str) -> String {
    let until = Instant::now() + WAIT_MAX;
    loop {
        let (status, answer) = call_at(address, "", (method, path, body));
        if (200..300).contains(&status) {
            return answer;
        }
        assert!(status == 503 && Instant::now() < until, "{method} {path}: {status} {answer}");
        std::thread::park_timeout(LOOK_EVERY);
    }
}

/// A directory of a node that ended.
pub(crate) struct Kept {
    dir: PathBuf,
    _home: std::rc::Rc<TempDir>,
}

impl std::ops::Deref for Kept {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.dir
    }
}
