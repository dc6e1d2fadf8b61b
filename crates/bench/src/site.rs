//! Where a load goes: a server alone, or one of three brokers that are one.

use std::ops::Deref;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use serde_json::Value;

use crate::http::Client;
use crate::measure::Line;
use crate::node::{Metrics, Node, Program, free_port};
use crate::usage;
use crate::wire::PAYLOAD_BYTES;

const MEMBERS: usize = 3;
const LIMIT: Duration = Duration::from_mins(1);
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// The member that a load talks to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Through {
    Leader,
    Follower,
}

/// Running servers; as a node it is the one that the load talks to.
pub(crate) struct Site {
    nodes: Vec<Node>,
    /// Of each member, where the others reach it.
    raft_ports: Vec<u16>,
    front: usize,
    leader: usize,
}

/// What a member says of itself.
struct Health {
    is_serving: bool,
    is_leader: bool,
    applied: u64,
    commit: u64,
}

impl Site {
    /// A server alone.
    pub(crate) async fn alone(program: &Program<'_>, scratch: &Path) -> anyhow::Result<Self> {
        let nodes = vec![Node::start(program, scratch).await?];
        Ok(Self { nodes, raft_ports: Vec::new(), front: 0, leader: 0 })
    }

    /// Three brokers that have elected.
    pub(crate) async fn three(
        binary: &Path,
        settings: &[(String, String)],
        scratch: &Path,
        through: Through,
    ) -> anyhow::Result<Self> {
        let mut ports = Vec::new();
        for _ in 0..MEMBERS {
            ports.push((free_port()?, free_port()?));
        }
        let peers = (1..).zip(&ports);
        let peers: Vec<String> = peers
            .map(|(id, (http, raft))| format!("{id}=127.0.0.1:{raft}/127.0.0.1:{http}"))
            .collect();
        let mut nodes = Vec::new();
        for (id, (http, raft)) in (1..).zip(&ports) {
            let mut settings = settings.to_vec();
            let mut set = |name: &str, value: String| settings.push((name.to_owned(), value));
            set("QUEEN_RAFT_REPLICATOR", "openraft".to_owned());
            set("QUEEN_RAFT_NODE_ID", id.to_string());
            set("QUEEN_RAFT_PEERS", peers.join(","));
            set("QUEEN_RAFT_LISTEN", format!("127.0.0.1:{raft}"));
            let home = scratch.join(format!("node{id}"));
            std::fs::create_dir_all(&home)?;
            let program = Program::Broker { binary, settings: &settings };
            nodes.push(Node::launch_at(&program, &home, *http)?);
        }
        let raft_ports = ports.into_iter().map(|(_, raft)| raft).collect();
        let mut site = Self { nodes, raft_ports, front: 0, leader: 0 };
        site.leader = site.equal().await?;
        site.front = match through {
            Through::Leader => site.leader,
            Through::Follower => (site.leader + 1) % MEMBERS,
        };
        Ok(site)
    }

    /// Waits until all serve and have the same entries; who leads.
    async fn equal(&mut self) -> anyhow::Result<usize> {
        let until = Instant::now() + LIMIT;
        loop {
            let mut healths = Vec::new();
            for node in &mut self.nodes {
                node.check_running()?;
                healths.extend(health(node).await.ok());
            }
            let is_equal = healths.len() == MEMBERS
                && healths.iter().all(|health| {
                    health.is_serving
                        && health.applied == health.commit
                        && health.applied == healths[0].applied
                });
            if is_equal && let Some(leader) = healths.iter().position(|health| health.is_leader) {
                return Ok(leader);
            }
            ensure!(Instant::now() < until, "three brokers do not become one");
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Takes the leader out of the cluster, to be ended in some way.
    pub(crate) fn take_leader(&mut self) -> anyhow::Result<Node> {
        ensure!(self.front != self.leader, "the load talks to the leader");
        let node = self.nodes.remove(self.leader);
        if self.front > self.leader {
            self.front -= 1;
        }
        Ok(node)
    }

    /// Stops all; each must end well.
    pub(crate) fn stop(self) -> anyhow::Result<()> {
        let (mut nodes, leader) = (self.nodes, self.leader);
        // Who leads goes last, so that nobody is elected meanwhile.
        if leader + 1 < nodes.len() {
            let node = nodes.remove(leader);
            nodes.push(node);
        }
        nodes.into_iter().try_for_each(Node::stop)
    }

    /// Begins to count what all members do; nothing for a server alone.
    pub(crate) async fn watch(&self) -> anyhow::Result<Option<Watch>> {
        if self.raft_ports.is_empty() {
            return Ok(None);
        }
        let mut members = Vec::new();
        for (node, port) in self.nodes.iter().zip(&self.raft_ports) {
            members.push(Seen {
                metrics: node.metrics().await?,
                cpu_s: usage::usage(node.pid()).cpu_s,
                received: sent_to(*port)?,
            });
        }
        Ok(Some(Watch(members)))
    }

    /// Adds what all members did since; `payloads` messages went through the log.
    pub(crate) async fn report(
        &self,
        watch: Option<Watch>,
        payloads: u64,
        line: &mut Line,
    ) -> anyhow::Result<()> {
        let Some(Watch(before)) = watch else {
            if self.is_broker {
                line.add("through", "one node");
            }
            return Ok(());
        };
        let is_leader = self.front == self.leader;
        line.add("through", if is_leader { "leader of three" } else { "follower of three" });
        let mut cpu_s = 0.0;
        let (payload_bytes, mut followers) = (payloads.max(1) as f64 * PAYLOAD_BYTES as f64, 0);
        for (at, before) in before.iter().enumerate() {
            let node = &self.nodes[at];
            let name = if at == self.leader {
                "leader".to_owned()
            } else {
                followers += 1;
                format!("follower_{followers}")
            };
            let metrics = node.metrics().await?;
            let since = |name: &str| metrics.value(name) - before.metrics.value(name);
            let groups = since("queen_raft_log_groups_total");
            line.number(&format!("{name}_groups"), groups);
            let syncs = since("queen_raft_log_syncs_total");
            line.number(&format!("{name}_syncs_per_group"), syncs / groups.max(1.0));
            if at != self.leader {
                let received = sent_to(self.raft_ports[at])? - before.received;
                line.number(
                    &format!("{name}_wire_bytes_per_payload_byte"),
                    received as f64 / payload_bytes,
                );
            }
            cpu_s += usage::usage(node.pid()).cpu_s - before.cpu_s;
        }
        line.number("cluster_cpu_us_per_msg", cpu_s * 1e6 / payloads.max(1) as f64);
        Ok(())
    }
}

impl Deref for Site {
    type Target = Node;

    fn deref(&self) -> &Node {
        &self.nodes[self.front]
    }
}

/// Counters of all members when a window was opened.
pub(crate) struct Watch(Vec<Seen>);

struct Seen {
    metrics: Metrics,
    cpu_s: f64,
    /// Bytes that others sent to its raft port.
    received: u64,
}

async fn health(node: &Node) -> anyhow::Result<Health> {
    let mut client = Client::connect(node.port).await?;
    let answer = client.get("/health").await?;
    let (text, is_serving) = (serde_json::from_slice::<Value>(answer.body)?, answer.status == 200);
    let raft = text.get("raft").context("no raft in the health")?;
    let number = |name: &str| raft.get(name).and_then(Value::as_u64).unwrap_or_default();
    let is_leader = raft.get("role").and_then(Value::as_str) == Some("leader");
    Ok(Health { is_serving, is_leader, applied: number("applied"), commit: number("commit") })
}

/// Bytes that were sent over connections that are open now to a port of this machine, as the kernel counts them: with the
/// frames around entries, without the headers of packets.
fn sent_to(port: u16) -> anyhow::Result<u64> {
    let mut command = Command::new("ss");
    command.args(["--no-header", "--tcp", "--info", "--numeric", "state", "established"]);
    let output = command.arg(format!("( dport = :{port} )")).output();
    let output = output.context("`ss` (Debian package iproute2) counts bytes on the wire")?;
    if !output.status.success() {
        bail!("ss: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(bytes_sent(&String::from_utf8_lossy(&output.stdout)))
}

fn bytes_sent(text: &str) -> u64 {
    let words = text.split_whitespace().filter_map(|word| word.strip_prefix("bytes_sent:"));
    words.filter_map(|count| count.parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_counted_is_summed() {
        let text = "0 0 127.0.0.1:4 127.0.0.1:7\n\t cubic bytes_sent:120 bytes_acked:121 segs_out:3\n\
                    0 0 127.0.0.1:5 127.0.0.1:7\n\t cubic bytes_sent:7 bytes_retrans:9\n";
        assert_eq!(bytes_sent(text), 127);
        assert_eq!(bytes_sent(""), 0);
    }
}
