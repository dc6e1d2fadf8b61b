//! Three real broker processes that are one broker, on addresses of their own.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::http::{Answer, Client};
use crate::network::{self, Network};
use crate::node::{Node, NodeOptions};
use crate::shell;

/// How many there are.
pub(crate) const MEMBERS: usize = 3;
/// A condition that a cluster does not reach in this time, it never does.
const WAIT_MAX: Duration = Duration::from_mins(2);
/// How long a member may take to say how it is.
const ASK_LIMIT: Duration = Duration::from_secs(3);
/// A change of the membership may wait for the log to be copied.
const CHANGE_LIMIT: Duration = Duration::from_secs(20);
const HTTP_PORT: u16 = 17_001;
const RAFT_PORT: u16 = 17_101;
/// What a node ends with when it has to load the snapshot that it was sent.
const RESTART_CODE: i32 = 75;
const MEMBERSHIP: &str = "/api/v1/system/raft/membership";

/// The members, running or not.
pub(crate) struct Cluster {
    options: Vec<NodeOptions>,
    nodes: Vec<Option<Node>>,
}

/// A member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Health {
    pub(crate) is_serving: bool,
    pub(crate) is_leader: bool,
    pub(crate) term: u64,
    pub(crate) applied: u64,
    pub(crate) commit: u64,
}

impl Cluster {
    /// Three members below `base` that do not run yet: in `network`, or on addresses of loopback.
    pub(crate) fn new(
        base: &Path,
        binary: &Path,
        network: Option<&Network>,
    ) -> anyhow::Result<Self> {
        let ips: [Ipv4Addr; MEMBERS] = std::array::from_fn(|at| match network {
            Some(_) => network::address(at),
            None => network::own_loopback(),
        });
        // On one address ports tell members apart.
        let ports = |first: u16| (first..).zip(ips).map(|(port, ip)| SocketAddr::from((ip, port)));
        let (http, raft): (Vec<_>, Vec<_>) =
            (ports(HTTP_PORT).collect(), ports(RAFT_PORT).collect());
        let peers = (1..).zip(raft.iter().zip(&http));
        let peers: Vec<String> =
            peers.map(|(id, (raft, http))| format!("{id}={raft}/{http}")).collect();
        let mut options = Vec::new();
        for (at, (http, raft)) in http.iter().zip(&raft).enumerate() {
            let home = base.join(format!("node{}", at + 1));
            std::fs::create_dir_all(&home)?;
            let mut node = NodeOptions::at(*http, &home, binary)
                .set("QUEEN_RAFT_REPLICATOR", "openraft")
                .set("QUEEN_RAFT_NODE_ID", &(at + 1).to_string())
                .set("QUEEN_RAFT_PEERS", &peers.join(","))
                .set("QUEEN_RAFT_LISTEN", &raft.to_string())
                .set("QUEEN_RAFT_TOKEN", "one of three");
            node.namespace = network.and_then(|network| network.member(at));
            options.push(node);
        }
        Ok(Self { options, nodes: (0..MEMBERS).map(|_| None).collect() })
    }

    /// Gives every member a setting; those that run have it after their next start.
    pub(crate) fn set(&mut self, name: &str, value: &str) {
        self.options.iter_mut().for_each(|options| *options = options.clone().set(name, value));
    }

    /// Replaces where a member keeps its data.
    pub(crate) fn move_data(&mut self, at: usize, directory: PathBuf) {
        if let Some(options) = self.options.get_mut(at) {
            options.directory = directory;
        }
    }

    /// What a member was started with.
    pub(crate) fn options(&self, at: usize) -> anyhow::Result<&NodeOptions> {
        self.options.get(at).context("no such member")
    }

    /// Where members answer.
    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        self.options.iter().map(|options| options.address).collect()
    }

    /// Starts every member that does not run.
    pub(crate) fn launch_all(&mut self) -> anyhow::Result<()> {
        (0..MEMBERS).try_for_each(|at| self.launch(at))
    }

    /// Starts a member without waiting.
    pub(crate) fn launch(&mut self, at: usize) -> anyhow::Result<()> {
        self.launch_with(at, &[])
    }

    /// The same with settings for this time.
    pub(crate) fn launch_with(&mut self, at: usize, more: &[(&str, &str)]) -> anyhow::Result<()> {
        let mut options = self.options(at)?.clone();
        for (name, value) in more {
            options = options.set(name, value);
        }
        let place = self.nodes.get_mut(at).context("no such member")?;
        if place.is_none() {
            *place = Some(Node::launch(&options)?);
        }
        Ok(())
    }

    /// The process of a member that runs.
    pub(crate) fn node(&mut self, at: usize) -> anyhow::Result<&mut Node> {
        self.nodes.get_mut(at).and_then(Option::as_mut).context("the member does not run")
    }

    /// Whether a member runs.
    pub(crate) fn is_running(&self, at: usize) -> bool {
        self.nodes.get(at).is_some_and(Option::is_some)
    }

    /// Ends a member as a crash does.
    pub(crate) fn kill(&mut self, at: usize) {
        if let Some(node) = self.nodes.get_mut(at).and_then(Option::take) {
            node.kill();
        }
    }

    /// Asks a member to stop and requires exit code 0 in time.
    pub(crate) fn stop(&mut self, at: usize) -> anyhow::Result<()> {
        match self.nodes.get_mut(at).and_then(Option::take) {
            Some(node) => node.stop().with_context(|| format!("node {}", at + 1)),
            None => Ok(()),
        }
    }

    /// Sends a signal to a member.
    pub(crate) fn signal(&mut self, at: usize, signal: Signal) -> anyhow::Result<()> {
        self.node(at)?.signal(signal)
    }

    /// Looks whether members ended by themselves: one that was sent a snapshot is started again, which is counted.
    ///
    /// # Errors
    /// One ended for another reason.
    pub(crate) fn tend(&mut self) -> anyhow::Result<u64> {
        let mut restarts = 0;
        for at in 0..MEMBERS {
            let Some(node) = self.nodes.get_mut(at).and_then(Option::as_mut) else { continue };
            let Some(status) = node.ended()? else { continue };
            if status.code() != Some(RESTART_CODE) {
                let tail = self.options(at)?.log_tail();
                bail!("node {} ended with {status}\n{tail}", at + 1);
            }
            self.kill(at);
            self.launch(at)?;
            restarts += 1;
        }
        Ok(restarts)
    }

    /// Asks a member.
    pub(crate) fn ask(
        &self,
        at: usize,
        method: &str,
        path: &str,
        body: &Value,
        limit: Duration,
    ) -> anyhow::Result<Answer> {
        let mut client = Client::new(self.options(at)?.address, limit);
        let body = if body.is_null() { String::new() } else { body.to_string() };
        Ok(client.call(method, path, body.as_bytes())?)
    }

    /// How a member says it is.
    pub(crate) fn health(&self, at: usize) -> anyhow::Result<Health> {
        let answer = self.ask(at, "GET", "/health", &Value::Null, ASK_LIMIT)?;
        let text = answer.json();
        let raft = text.get("raft").unwrap_or(&Value::Null);
        let number = |name: &str| raft.get(name).and_then(Value::as_u64).unwrap_or_default();
        Ok(Health {
            is_serving: answer.status == 200,
            is_leader: raft.get("role").and_then(Value::as_str) == Some("leader"),
            term: number("term"),
            applied: number("applied"),
            commit: number("commit"),
        })
    }

    /// The member that leads, by what those that run say now; of two the one with the higher term.
    pub(crate) fn leader_now(&self) -> Option<usize> {
        let healths = (0..MEMBERS).filter(|at| self.is_running(*at));
        let leaders = healths.filter_map(|at| {
            let health = self.health(at).ok()?;
            (health.is_serving && health.is_leader).then_some((health.term, at))
        });
        leaders.max().map(|(_, at)| at)
    }

    /// Waits for a leader.
    pub(crate) fn leader(&mut self) -> anyhow::Result<usize> {
        let mut found = None;
        self.wait("a leader", |cluster| {
            found = cluster.leader_now();
            found.is_some()
        })?;
        found.context("no leader")
    }

    /// Waits until every member serves and all have applied the same entries.
    pub(crate) fn wait_equal(&mut self) -> anyhow::Result<()> {
        self.wait("the same entries everywhere", |cluster| {
            let healths: Vec<Option<Health>> =
                (0..MEMBERS).map(|at| cluster.health(at).ok()).collect();
            let Some(Some(first)) = healths.first().copied() else { return false };
            healths.iter().flatten().count() == MEMBERS
                && healths.iter().flatten().all(|health| {
                    health.is_serving
                        && health.applied == first.applied
                        && health.commit == health.applied
                })
        })
    }

    /// Waits until something holds.
    pub(crate) fn wait(
        &mut self,
        what: &str,
        mut holds: impl FnMut(&Self) -> bool,
    ) -> anyhow::Result<()> {
        let until = Instant::now() + WAIT_MAX;
        while !holds(self) {
            self.tend()?;
            ensure!(Instant::now() < until, "not in {WAIT_MAX:?}: {what}\n{}", self.log_tails());
            shell::pause(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Stops all, those that follow first, so that nobody is elected meanwhile.
    pub(crate) fn stop_all(mut self) -> anyhow::Result<()> {
        self.stop_members()
    }

    /// The same, to start them again.
    pub(crate) fn stop_members(&mut self) -> anyhow::Result<()> {
        let leader = self.leader_now();
        let mut order: Vec<usize> = (0..MEMBERS).filter(|at| Some(*at) != leader).collect();
        order.extend(leader);
        order.into_iter().try_for_each(|at| self.stop(at))
    }

    /// The ends of all logs.
    pub(crate) fn log_tails(&self) -> String {
        let tails = (1..).zip(&self.options);
        let tails: Vec<String> =
            tails.map(|(id, options)| format!("--- node {id}\n{}", options.log_tail())).collect();
        tails.join("\n")
    }

    /// Removes a member through another; `false` when that is refused now.
    pub(crate) fn remove(&self, through: usize, at: usize) -> anyhow::Result<bool> {
        self.change(through, "DELETE", &format!("/members/{}", at + 1), &Value::Null)
    }

    /// Adds a member as a learner; `false` when that is refused now.
    pub(crate) fn add(&self, through: usize, at: usize) -> anyhow::Result<bool> {
        let options = self.options(at)?;
        let raft = options.settings.iter().find(|(name, _)| name == "QUEEN_RAFT_LISTEN");
        let raft = raft.map(|(_, raft)| raft).context("no raft address")?;
        let body = json!({"id": at + 1, "raft": raft, "http": options.address.to_string()});
        self.change(through, "POST", "/learners", &body)
    }

    /// Makes a learner a voter; `false` when that is refused now.
    pub(crate) fn promote(&self, through: usize, at: usize) -> anyhow::Result<bool> {
        self.change(through, "POST", "/promote", &json!({"ids": [at + 1]}))
    }

    fn change(
        &self,
        through: usize,
        method: &str,
        path: &str,
        body: &Value,
    ) -> anyhow::Result<bool> {
        let path = format!("{MEMBERSHIP}{path}");
        let answer = self.ask(through, method, &path, body, CHANGE_LIMIT)?;
        match answer.status {
            200 => Ok(true),
            // Another change, too few that are well, or one that is still reading: to be asked again.
            409 | 503 | 504 => Ok(false),
            status => bail!("{method} {path}: {status} {}", answer.json()),
        }
    }
}
