//! Networks of our own: a namespace for each member of a cluster, and one in the middle that their packets go through.
//!
//! ```text
//!   member 1: 10.77.1.2 ── 10.77.1.1 ┐
//!   member 2: 10.77.2.2 ── 10.77.2.1 ┼ hub: routes, drops, and is where the load runs
//!   member 3: 10.77.3.2 ── 10.77.3.1 ┘
//! ```
//!
//! A namespace has no name: a process that waits for the end of its input holds it, so that it goes with us, however we
//! end. Nothing outside of these namespaces is changed.
//!
//! Fault model: a *cut* drops every packet from one member to another, in one direction or both, without a word to either.
//! A *deaf* member gets no packet of 64 bytes or more from other members: their kernels go on acknowledging what it sends,
//! so its messages arrive, and nobody's answer does.

use std::fs::{self, File};
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::ensure;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::shell::{self, Running, must};

/// How long a call of `ip` may take.
const CALL_LIMIT: Duration = Duration::from_secs(20);
/// A pure acknowledgment has 52 bytes with the usual time stamps.
const DEAF_FROM_BYTES: u32 = 64;

/// A network namespace without a name.
pub(crate) struct Namespace {
    holder: u32,
    /// Ends when its input does, which is when we do.
    _process: Running,
}

impl Namespace {
    /// Makes an empty one.
    fn new() -> anyhow::Result<Self> {
        let mut command = Command::new("unshare");
        command.args(["--net", "cat"]).stdin(Stdio::piped());
        let mut process = Running::start(command.stdout(Stdio::null()).stderr(Stdio::null()))?;
        let holder = process.child().id();
        let until = Instant::now() + CALL_LIMIT;
        let own = fs::read_link("/proc/thread-self/ns/net")?;
        // It begins in our own.
        while fs::read_link(place(holder)).is_ok_and(|its| its == own) {
            ensure!(process.ended()?.is_none(), "a network namespace needs root");
            ensure!(Instant::now() < until, "`unshare --net` does not begin");
            shell::pause(Duration::from_millis(2));
        }
        ensure!(process.ended()?.is_none(), "a network namespace needs root");
        Ok(Self { holder, _process: process })
    }

    /// Does something on a thread inside; what the thread starts is inside too.
    pub(crate) fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> anyhow::Result<T> {
        let entered = || -> anyhow::Result<T> {
            let file = File::open(place(self.holder))?;
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))?;
            Ok(work())
        };
        let done = thread::scope(|scope| scope.spawn(entered).join());
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    fn ip(&self, line: &str) -> anyhow::Result<()> {
        self.must(Command::new("ip").args(line.split(' ')))
    }

    fn must(&self, command: &mut Command) -> anyhow::Result<()> {
        self.run(|| must(command, CALL_LIMIT))??;
        Ok(())
    }
}

fn place(holder: u32) -> String {
    format!("/proc/{holder}/ns/net")
}

/// The networks of a cluster.
pub(crate) struct Network {
    hub: Namespace,
    members: Vec<Arc<Namespace>>,
}

impl Network {
    /// Makes the networks of so many members.
    ///
    /// # Errors
    /// Without the right to, or without `ip` and `unshare`.
    pub(crate) fn new(count: usize) -> anyhow::Result<Self> {
        let hub = Namespace::new()?;
        hub.ip("link set lo up")?;
        let mut forward = Command::new("sh");
        forward.args(["-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"]);
        hub.must(&mut forward)?;
        let mut members = Vec::new();
        for at in 0..count {
            let (member, number) = (Namespace::new()?, at + 1);
            let holder = member.holder;
            hub.ip(&format!("link add to{number} type veth peer name eth0 netns {holder}"))?;
            hub.ip(&format!("addr add 10.77.{number}.1/24 dev to{number}"))?;
            hub.ip(&format!("link set to{number} up"))?;
            member.ip("link set lo up")?;
            member.ip(&format!("addr add {}/24 dev eth0", address(at)))?;
            member.ip("link set eth0 up")?;
            member.ip(&format!("route add default via 10.77.{number}.1"))?;
            members.push(Arc::new(member));
        }
        Ok(Self { hub, members })
    }

    /// Where the load runs.
    pub(crate) fn hub(&self) -> &Namespace {
        &self.hub
    }

    /// A member's own.
    pub(crate) fn member(&self, at: usize) -> Option<Arc<Namespace>> {
        self.members.get(at).cloned()
    }

    /// Drops what one member sends to another.
    pub(crate) fn cut(&self, from: usize, to: usize) -> anyhow::Result<()> {
        self.rule("add", from, to)
    }

    /// Ends [`Network::cut`].
    pub(crate) fn join(&self, from: usize, to: usize) -> anyhow::Result<()> {
        self.rule("del", from, to)
    }

    /// Whether members can be made deaf here: `iptables` is there and works.
    pub(crate) fn can_deafen(&self) -> bool {
        self.call_deaf("--append", 0, 0).and_then(|()| self.call_deaf("--delete", 0, 0)).is_ok()
    }

    /// Lets nothing of what other members say reach a member.
    pub(crate) fn deafen(&self, to: usize) -> anyhow::Result<()> {
        self.each_other(to, |from| self.call_deaf("--append", from, to))
    }

    /// Ends [`Network::deafen`].
    pub(crate) fn undeafen(&self, to: usize) -> anyhow::Result<()> {
        self.each_other(to, |from| self.call_deaf("--delete", from, to))
    }

    fn each_other(
        &self,
        to: usize,
        mut call: impl FnMut(usize) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        (0..self.members.len()).filter(|from| *from != to).try_for_each(&mut call)
    }

    fn rule(&self, verb: &str, from: usize, to: usize) -> anyhow::Result<()> {
        let (from, to) = (address(from), address(to));
        self.hub.ip(&format!("rule {verb} from {from} to {to} blackhole"))
    }

    fn call_deaf(&self, verb: &str, from: usize, to: usize) -> anyhow::Result<()> {
        let (from, to) = (address(from), address(to));
        let line = format!(
            "--wait {verb} FORWARD --source {from} --destination {to} --match length --length \
             {DEAF_FROM_BYTES}:65535 --jump DROP"
        );
        self.hub.must(Command::new("iptables").args(line.split(' ')))
    }
}

/// A member's address in networks of our own.
pub(crate) fn address(at: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, u8::try_from(at + 1).unwrap_or(u8::MAX), 2)
}

/// An address of loopback that belongs to this process as long as its id does.
pub(crate) fn own_loopback() -> Ipv4Addr {
    let [low, middle, high, _] = std::process::id().to_le_bytes();
    Ipv4Addr::new(127, 64 + high % 128, middle, low)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_members_and_of_this_process() {
        assert_eq!(address(0).to_string(), "10.77.1.2");
        assert_eq!(address(2).to_string(), "10.77.3.2");
        assert!(own_loopback().is_loopback());
        assert_ne!(own_loopback(), Ipv4Addr::LOCALHOST);
    }
}
