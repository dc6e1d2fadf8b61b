//! What is done to three nodes under load, one fault after the other.
//!
//! Fault model: at most one fault is under way, but what it leaves behind (a member that recovers, catches up, or is read
//! its snapshot) may still be when the next begins. Losing unsynced data is done to any number of members at once, also to
//! the last that has an entry while the others are behind; losing synced data is not done. A wiped member was removed
//! before.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use rustix::process::{Pid, Signal, kill_process};

use super::image::{self, Disk};
use super::load::Shared;
use super::stalls::Fault;
use crate::cluster::{Cluster, MEMBERS};
use crate::network::Network;
use crate::rng::Rng;
use crate::shell::{Running, pause};

/// How long the cluster may take to be whole again once nothing is done to it.
const HEAL_MAX: Duration = Duration::from_mins(1);
/// How long a member may take to leave, come back empty and vote.
const MEMBER_MAX: Duration = Duration::from_secs(90);
/// How much longer a sync takes on a slow disk.
const SLOW_US: u32 = 200_000;

/// The kinds of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Kill,
    KillLeader,
    KillMajority,
    KillAll,
    Terminate,
    Pause,
    PauseLeader,
    Behind,
    Cut,
    CutOneWay,
    Deaf,
    Power,
    PowerAll,
    SlowDisk,
    Member,
}

impl Kind {
    pub(super) const ALL: [Self; 15] = [
        Self::Kill,
        Self::KillLeader,
        Self::KillMajority,
        Self::KillAll,
        Self::Terminate,
        Self::Pause,
        Self::PauseLeader,
        Self::Behind,
        Self::Cut,
        Self::CutOneWay,
        Self::Deaf,
        Self::Power,
        Self::PowerAll,
        Self::SlowDisk,
        Self::Member,
    ];

    /// What it is called on the command line and in the figures.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::KillLeader => "kill-leader",
            Self::KillMajority => "kill-majority",
            Self::KillAll => "kill-all",
            Self::Terminate => "terminate",
            Self::Pause => "pause",
            Self::PauseLeader => "pause-leader",
            Self::Behind => "behind",
            Self::Cut => "cut",
            Self::CutOneWay => "cut-one-way",
            Self::Deaf => "deaf",
            Self::Power => "power",
            Self::PowerAll => "power-all",
            Self::SlowDisk => "slow-disk",
            Self::Member => "member",
        }
    }
}

/// Three nodes and everything that can be done to them.
pub(super) struct Nemesis<'a> {
    pub(super) cluster: &'a mut Cluster,
    pub(super) network: Option<&'a Network>,
    pub(super) disks: Vec<Disk>,
    pub(super) shared: &'a Shared,
    pub(super) rng: Rng,
    pub(super) faults: Vec<Fault>,
    /// Members that were started again because they had been sent a snapshot.
    pub(super) snapshots: u64,
}

impl Nemesis<'_> {
    /// Does one thing to the cluster, ends it, and notes when.
    ///
    /// # Errors
    /// A member crashed, or what was done could not be.
    pub(super) fn strike(&mut self, kind: Kind) -> anyhow::Result<()> {
        let from = self.shared.now();
        self.act(kind).with_context(|| kind.name())?;
        let is_hasty = self.rng.chance(25);
        if is_hasty {
            // The next one meets members that are still on their way back.
            self.tend()?;
        } else {
            self.heal().with_context(|| format!("after {}", kind.name()))?;
        }
        let until = self.shared.now();
        self.faults.push(Fault { name: kind.name(), from, until });
        Ok(())
    }

    /// Waits until one member leads and all serve.
    pub(super) fn heal(&mut self) -> anyhow::Result<()> {
        self.cluster.launch_all()?;
        self.wait(HEAL_MAX, "all members serve", |cluster| {
            let healths = (0..MEMBERS).filter_map(|at| cluster.health(at).ok());
            let serving = healths.filter(|health| health.is_serving);
            (serving.count() == MEMBERS && cluster.leader_now().is_some()).then_some(())
        })
    }

    fn act(&mut self, kind: Kind) -> anyhow::Result<()> {
        let leader = self.leader()?;
        let any = self.below(MEMBERS);
        let follower = (leader + 1 + self.below(MEMBERS - 1)) % MEMBERS;
        let others = others_of(leader);
        let either = if self.rng.chance(60) { leader } else { follower };
        match kind {
            Kind::Kill => self.kill(&[any]),
            Kind::KillLeader => self.kill(&[leader]),
            Kind::KillMajority => self.kill(&[leader, follower]),
            Kind::KillAll => self.kill(&[0, 1, 2]),
            Kind::Terminate => self.terminate(either),
            Kind::Pause => self.suspend(follower),
            Kind::PauseLeader => self.suspend(leader),
            Kind::Behind => self.behind(follower),
            Kind::Cut => {
                let [one, two] = others_of(either);
                self.cut(&[(either, one), (one, either), (either, two), (two, either)])
            }
            Kind::CutOneWay => {
                let [one, two] = others;
                match self.below(4) {
                    0 => self.cut(&[(leader, one), (leader, two)]),
                    1 => self.cut(&[(one, leader), (two, leader)]),
                    2 => self.cut(&[(leader, follower)]),
                    _ => self.cut(&[(follower, leader)]),
                }
            }
            Kind::Deaf => self.deafen(leader),
            Kind::Power => self.cut_power(&[either]),
            Kind::PowerAll => self.cut_power(&[0, 1, 2]),
            Kind::SlowDisk => {
                self.slow(&if either == leader { vec![leader] } else { others.to_vec() })
            }
            Kind::Member => self.replace(follower, others_of(follower)),
        }
    }

    fn kill(&mut self, victims: &[usize]) -> anyhow::Result<()> {
        for victim in victims {
            self.cluster.kill(*victim);
        }
        self.rest(0, 3_000)?;
        for victim in victims {
            self.cluster.launch(*victim)?;
            if self.rng.chance(25) {
                // Again while it recovers.
                self.rest(0, 300)?;
                self.cluster.kill(*victim);
                self.cluster.launch(*victim)?;
            }
        }
        Ok(())
    }

    fn terminate(&mut self, victim: usize) -> anyhow::Result<()> {
        self.tend()?;
        self.cluster.stop(victim)?;
        self.rest(0, 1_000)?;
        self.cluster.launch(victim)
    }

    fn suspend(&mut self, victim: usize) -> anyhow::Result<()> {
        self.cluster.signal(victim, Signal::STOP)?;
        let rested = self.rest(200, 5_000);
        self.cluster.signal(victim, Signal::CONT)?;
        rested
    }

    /// One misses entries, another loses what it did not sync, and these two are to go on alone.
    fn behind(&mut self, behind: usize) -> anyhow::Result<()> {
        let [one, two] = others_of(behind);
        self.cluster.signal(behind, Signal::STOP)?;
        self.rest(500, 2_000)?;
        let (lost, gone) = if self.rng.chance(50) { (one, two) } else { (two, one) };
        self.lose_power(lost)?;
        self.cluster.kill(gone);
        self.cluster.signal(behind, Signal::CONT)?;
        self.cluster.launch(lost)?;
        self.rest(500, 4_000)?;
        self.cluster.launch(gone)
    }

    fn cut(&mut self, pairs: &[(usize, usize)]) -> anyhow::Result<()> {
        let network = self.network.context("no network of our own")?;
        pairs.iter().try_for_each(|(from, to)| network.cut(*from, *to))?;
        let rested = self.rest(200, 8_000);
        pairs.iter().try_for_each(|(from, to)| network.join(*from, *to))?;
        rested
    }

    fn deafen(&mut self, victim: usize) -> anyhow::Result<()> {
        let network = self.network.context("no network of our own")?;
        network.deafen(victim)?;
        let rested = self.rest(1_000, 8_000);
        network.undeafen(victim)?;
        rested
    }

    fn cut_power(&mut self, victims: &[usize]) -> anyhow::Result<()> {
        self.tend()?;
        // All at one moment, as far as their disks go.
        for victim in victims {
            self.cluster.signal(*victim, Signal::STOP)?;
        }
        victims.iter().try_for_each(|victim| self.lose_power(*victim))?;
        self.rest(0, 2_000)?;
        victims.iter().try_for_each(|victim| self.cluster.launch(*victim))
    }

    /// What was not synced lives only in the page cache above the image: stop the node, copy the image, kill. Without an
    /// image it is a kill.
    fn lose_power(&mut self, victim: usize) -> anyhow::Result<()> {
        let Some(disk) = self.disks.get_mut(victim).filter(|disk| disk.is_image()) else {
            self.cluster.kill(victim);
            return Ok(());
        };
        self.cluster.signal(victim, Signal::STOP)?;
        image::wait_stopped(self.cluster.node(victim)?.id());
        disk.copy()?;
        self.cluster.kill(victim);
        disk.swap()
    }

    /// Every sync of these members takes longer for a while.
    fn slow(&mut self, victims: &[usize]) -> anyhow::Result<()> {
        let mut tracers = Vec::new();
        for victim in victims {
            let mut command = Command::new("strace");
            command.args([
                "--follow-forks",
                "--quiet=all",
                "--output=/dev/null",
                "--trace=fdatasync",
            ]);
            command.arg(format!("--inject=fdatasync:delay_enter={SLOW_US}"));
            command.arg(format!("--attach={}", self.cluster.node(*victim)?.id()));
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            tracers.push(Running::start(&mut command)?);
        }
        let rested = self.rest(2_000, 8_000);
        for tracer in &mut tracers {
            ensure!(tracer.ended()?.is_none(), "strace ended by itself");
            let id = i32::try_from(tracer.child().id())?;
            // It lets go of the node first.
            kill_process(Pid::from_raw(id).context("no such process id")?, Signal::TERM)?;
            tracer.wait(HEAL_MAX)?;
        }
        rested
    }

    /// Removes a member, wipes it, and takes it in again: as a learner, then as a voter.
    fn replace(&mut self, victim: usize, others: [usize; 2]) -> anyhow::Result<()> {
        let [one, two] = others;
        let through = if self.rng.chance(50) { one } else { two };
        self.heal()?;
        self.until_done("removed", |cluster| cluster.remove(through, victim))?;
        self.rest(0, 500)?;
        self.cluster.kill(victim);
        let directory = self.cluster.options(victim)?.directory.clone();
        std::fs::remove_dir_all(&directory).with_context(|| directory.display().to_string())?;
        self.cluster.launch_with(victim, &[("QUEEN_RAFT_JOIN", "true")])?;
        let is_killed = self.rng.chance(40);
        self.until_done("added", |cluster| cluster.add(through, victim))?;
        if is_killed {
            // While it reads what it lacks.
            self.rest(0, 300)?;
            self.cluster.kill(victim);
            self.cluster.launch_with(victim, &[("QUEEN_RAFT_JOIN", "true")])?;
        }
        self.until_done("promoted", |cluster| cluster.promote(through, victim))
    }

    fn until_done(
        &mut self,
        what: &str,
        change: impl Fn(&Cluster) -> anyhow::Result<bool>,
    ) -> anyhow::Result<()> {
        // Every call can be sent again; one that is not answered may have been made.
        self.wait(MEMBER_MAX, what, |cluster| {
            change(cluster).is_ok_and(|is_done| is_done).then_some(())
        })
    }

    fn leader(&mut self) -> anyhow::Result<usize> {
        self.cluster.launch_all()?;
        self.wait(HEAL_MAX, "somebody leads", Cluster::leader_now)
    }

    fn wait<T>(
        &mut self,
        limit: Duration,
        what: &str,
        look: impl Fn(&Cluster) -> Option<T>,
    ) -> anyhow::Result<T> {
        let until = Instant::now() + limit;
        loop {
            if let Some(found) = look(self.cluster) {
                return Ok(found);
            }
            self.tend()?;
            ensure!(
                Instant::now() < until,
                "not within {limit:?}: {what}\n{}",
                self.cluster.log_tails()
            );
            pause(Duration::from_millis(20));
        }
    }

    /// Lets the load run for a time.
    pub(super) fn rest(&mut self, low_ms: u64, high_ms: u64) -> anyhow::Result<()> {
        pause(Duration::from_millis(self.rng.within(low_ms, high_ms)));
        self.tend()
    }

    fn tend(&mut self) -> anyhow::Result<()> {
        self.snapshots += self.cluster.tend()?;
        Ok(())
    }

    fn below(&mut self, count: usize) -> usize {
        usize::try_from(self.rng.next() % count as u64).unwrap_or_default()
    }
}

fn others_of(member: usize) -> [usize; 2] {
    [(member + 1) % MEMBERS, (member + 2) % MEMBERS]
}
