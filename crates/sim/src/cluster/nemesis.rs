//! What happens to a cluster while clients work: faults of every class, drawn from the seed.

use std::collections::BTreeSet;
use std::time::Duration;

use queen_io::sim::SimFault;
use queen_raft::Change;
use tokio::time::{Instant, sleep};

use super::Faults;
use super::node::member_of;
use super::world::{End, World};
use crate::rng::Rng;

/// A class of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    Kill,
    KillAll,
    Power,
    PowerInCall,
    PowerAll,
    BehindThenPower,
    CutPair,
    CutNode,
    CutLeader,
    OneWay,
    DeafLeader,
    SlowLink,
    SlowDisk,
    Pause,
    Clock,
    DiskError,
    DiskFull,
    Transfer,
    Member,
}

impl Fault {
    const ALL: [Self; 19] = [
        Self::Kill,
        Self::KillAll,
        Self::Power,
        Self::PowerInCall,
        Self::PowerAll,
        Self::BehindThenPower,
        Self::CutPair,
        Self::CutNode,
        Self::CutLeader,
        Self::OneWay,
        Self::DeafLeader,
        Self::SlowLink,
        Self::SlowDisk,
        Self::Pause,
        Self::Clock,
        Self::DiskError,
        Self::DiskFull,
        Self::Transfer,
        Self::Member,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Kill => "fault kill",
            Self::KillAll => "fault kill all",
            Self::Power => "fault power",
            Self::PowerInCall => "fault power in a call",
            Self::PowerAll => "fault power all",
            Self::BehindThenPower => "fault behind, then power",
            Self::CutPair => "fault cut pair",
            Self::CutNode => "fault cut node",
            Self::CutLeader => "fault cut leader",
            Self::OneWay => "fault cut one way",
            Self::DeafLeader => "fault deaf leader",
            Self::SlowLink => "fault slow link",
            Self::SlowDisk => "fault slow disk",
            Self::Pause => "fault pause",
            Self::Clock => "fault clock",
            Self::DiskError => "fault disk error",
            Self::DiskFull => "fault disk full",
            Self::Transfer => "fault transfer",
            Self::Member => "fault member replaced",
        }
    }
}

/// How long a change of the membership may take.
const CHANGE_MAX: Duration = Duration::from_secs(5);
/// How long a wiped node is tried to be made a voter before other faults come.
const ADMITTED_WITHIN: Duration = Duration::from_secs(10);

/// Whether whoever leads carries a change of the membership out, and says so.
async fn change(world: &World, change: Change) -> bool {
    let Some(leader) = world.leader() else { return false };
    world.watchers.trace.note(format_args!("node {} is asked for {change:?}", leader.node));
    let cluster = leader.cluster.clone();
    let changed = leader.tasks.spawn(async move { cluster.change(change, CHANGE_MAX).await }).await;
    let is_done = matches!(changed, Ok(Ok(())));
    match changed {
        Ok(Ok(())) => world.watchers.trace.note(format_args!("the membership is changed")),
        Ok(Err(not)) => world.watchers.trace.note(format_args!("it is not: {} {not}", not.code)),
        Err(_) => world.watchers.trace.note(format_args!("it ended meanwhile")),
    }
    if is_done {
        world.watchers.judge.count("membership changed");
    }
    is_done
}

/// Makes a node a voter if it is none, until then; whether it is one.
pub(crate) async fn admit(world: &World, node: u64, until: Instant) -> bool {
    while Instant::now() < until {
        if let Some(leader) = world.leader() {
            let view = leader.cluster.view();
            let known = view.members.iter().find(|member| member.node == node);
            match known {
                Some(member) if member.is_voter && view.voters.len() == 1 => return true,
                Some(_) => {
                    let ids = BTreeSet::from([node]);
                    change(world, Change::Promote { ids, force: false }).await;
                }
                None => {
                    let at = member_of(node);
                    change(world, Change::AddLearner { id: node, at }).await;
                }
            }
        }
        sleep(Duration::from_millis(200)).await;
    }
    false
}

/// The names of all classes, as they are counted.
pub(crate) fn classes() -> impl Iterator<Item = &'static str> {
    Fault::ALL.into_iter().map(Fault::name)
}

/// Brings the faults.
pub(crate) struct Nemesis {
    world: World,
    rng: Rng,
    /// Classes of this run.
    classes: Vec<Fault>,
    /// Rest between two faults, at most.
    rest_ms: u64,
}

impl Nemesis {
    /// Faults of these classes; `None` without any.
    pub(crate) fn new(world: World, seed: u64, faults: &Faults) -> Option<Self> {
        let mut rng = Rng::new(seed);
        let mut drawn: Vec<Fault> = Fault::ALL.into_iter().filter(|_| rng.below(2) == 0).collect();
        if drawn.is_empty() {
            drawn.push(Fault::Power);
        }
        let classes = match faults {
            Faults::None => return None,
            Faults::Drawn => drawn,
            Faults::Only(word) => {
                Fault::ALL.into_iter().filter(|fault| fault.name().contains(&**word)).collect()
            }
        };
        let rest_ms = 1000 + rng.below(4000);
        Some(Self { world, rng, classes, rest_ms })
    }

    /// Brings faults until then, and heals everything.
    pub(crate) async fn run(mut self, until: Instant) {
        // Most runs begin with a cluster that serves.
        sleep(Duration::from_millis(self.rng.below(4000))).await;
        while Instant::now() < until {
            let at = self.rng.below(self.classes.len() as u64);
            if let Some(fault) = self.classes.get(usize::try_from(at).unwrap_or(0)).copied() {
                self.world.watchers.judge.count(fault.name());
                self.world.watchers.trace.note(format_args!("fault {fault:?}"));
                self.bring(fault).await;
            }
            let rest = 200 + self.rng.below(self.rest_ms);
            sleep(Duration::from_millis(rest)).await;
        }
        self.heal();
    }

    fn heal(&self) {
        self.world.watchers.net.heal(|_, _| true);
        for node in self.world.nodes() {
            self.world.pause(node, false);
            self.world.slow_disk(node, 0);
            self.world.begin(node);
        }
    }

    async fn bring(&mut self, fault: Fault) {
        match fault {
            Fault::Kill => {
                let node = self.any();
                self.world.end(node, &End::Kill);
                self.away(&[node]).await;
            }
            Fault::KillAll => {
                let nodes = self.world.nodes();
                for node in &nodes {
                    self.world.end(*node, &End::Kill);
                }
                self.away(&nodes).await;
            }
            Fault::Power => {
                let node = self.any();
                self.cut_power(node);
                self.away(&[node]).await;
            }
            Fault::PowerInCall => {
                let node = self.any();
                if let (Some(power), Some(disk)) = (self.world.power(node), self.world.disk(node)) {
                    power.cut_behind(disk.calls() + self.rng.below(60));
                }
            }
            Fault::PowerAll => {
                let nodes = self.world.nodes();
                for node in &nodes {
                    self.cut_power(*node);
                }
                self.away(&nodes).await;
            }
            Fault::BehindThenPower => self.behind_then_power().await,
            Fault::CutPair => {
                let (one, other) = (self.any(), self.any());
                self.cut(&[(one, other), (other, one)]).await;
            }
            Fault::CutNode => {
                let node = self.any();
                self.cut(&self.around(node)).await;
            }
            Fault::CutLeader => {
                let node = self.leader_or_any();
                self.cut(&self.around(node)).await;
            }
            Fault::OneWay => {
                let (one, other) = (self.any(), self.any());
                self.cut(&[(one, other)]).await;
            }
            Fault::DeafLeader => {
                let node = self.leader_or_any();
                let to = self.around(node).into_iter().filter(|(_, to)| *to == node);
                self.cut(&to.collect::<Vec<_>>()).await;
            }
            Fault::SlowLink => {
                let (one, other) = (self.any(), self.any());
                let by = Duration::from_millis(50 + self.rng.below(600));
                self.world.watchers.net.slow(one, other, by);
                self.a_while().await;
                self.world.watchers.net.heal(|from, to| (from, to) == (one, other));
            }
            Fault::SlowDisk => {
                let node = self.any();
                self.world.slow_disk(node, 50 + self.rng.below(500));
                self.a_while().await;
                self.world.slow_disk(node, 0);
            }
            Fault::Pause => {
                let node = self.leader_or_any();
                self.world.pause(node, true);
                self.a_while().await;
                self.world.pause(node, false);
            }
            Fault::Clock => {
                let node = self.leader_or_any();
                // Leases go by it: mostly a little, so that the run goes on.
                let most = if self.rng.below(4) == 0 { 300_000_000 } else { 3_000_000 };
                let drawn = i64::try_from(self.rng.below(2 * most)).unwrap_or(0);
                self.world.set_clock(node, drawn - i64::try_from(most).unwrap_or(0));
            }
            Fault::DiskError => self.fail_call(SimFault::Eio),
            Fault::DiskFull => {
                let fault =
                    if self.rng.below(2) == 0 { SimFault::Enospc } else { SimFault::ShortWrite };
                self.fail_call(fault);
            }
            Fault::Transfer => self.transfer().await,
            Fault::Member => self.replace_member().await,
        }
    }

    async fn transfer(&mut self) {
        if let Some(leader) = self.world.leader() {
            let (to, cluster) = (self.any(), leader.cluster.clone());
            let given = async move { cluster.give_lead(to).await };
            // It may end meanwhile.
            drop(leader.tasks.spawn(given).await);
        }
    }

    /// Removes a voter, wipes it, and adds it again.
    async fn replace_member(&mut self) {
        let node = self.any();
        if change(&self.world, Change::Remove { id: node }).await {
            self.world.end(node, &End::Kill);
            self.world.wipe(node);
            self.away(&[node]).await;
            admit(&self.world, node, Instant::now() + ADMITTED_WITHIN).await;
        }
    }

    /// A minority misses writes, then one of the others loses its power, and the minority is back.
    async fn behind_then_power(&mut self) {
        let node = self.any();
        let ways = self.around(node);
        for (from, to) in &ways {
            self.world.watchers.net.cut(*from, *to);
        }
        self.a_while().await;
        let other = self.leader_or_any();
        if other != node {
            self.cut_power(other);
        }
        self.world.watchers.net.heal(|from, to| ways.contains(&(from, to)));
        self.away(&[other]).await;
    }

    fn cut_power(&mut self, node: u64) {
        let choice = self.world.draw_choice(node);
        self.world.end(node, &End::Power(choice));
    }

    fn fail_call(&mut self, fault: SimFault) {
        let node = self.any();
        if let Some(disk) = self.world.disk(node) {
            self.world.excuse(node);
            disk.fail_call(disk.calls() + 1 + self.rng.below(30), fault);
        }
    }

    /// Begins nodes again, each after a while of its own.
    async fn away(&mut self, nodes: &[u64]) {
        for node in nodes {
            let most = if self.rng.below(4) == 0 { 6000 } else { 1500 };
            let ms = self.rng.below(most);
            sleep(Duration::from_millis(ms)).await;
            self.world.begin(*node);
        }
    }

    async fn cut(&mut self, ways: &[(u64, u64)]) {
        for (from, to) in ways {
            self.world.watchers.net.cut(*from, *to);
        }
        self.a_while().await;
        self.world.watchers.net.heal(|from, to| ways.contains(&(from, to)));
    }

    async fn a_while(&mut self) {
        let ms = 100 + self.rng.below(4000);
        sleep(Duration::from_millis(ms)).await;
    }

    fn any(&mut self) -> u64 {
        let nodes = self.world.nodes();
        let at = self.rng.below(nodes.len() as u64);
        nodes.get(usize::try_from(at).unwrap_or(0)).copied().unwrap_or(1)
    }

    fn leader_or_any(&mut self) -> u64 {
        let leader = self
            .world
            .nodes()
            .into_iter()
            .find(|node| self.world.node(*node).is_some_and(|node| node.leads()));
        leader.unwrap_or_else(|| self.any())
    }

    /// Both ways between a node and all others.
    fn around(&self, node: u64) -> Vec<(u64, u64)> {
        let others = self.world.nodes().into_iter().filter(|other| *other != node);
        others.flat_map(|other| [(node, other), (other, node)]).collect()
    }
}
