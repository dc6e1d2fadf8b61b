//! The scripted workload: about 400 disk calls that reach what a log, a checkpoint and a queue can do so far.
//!
//! The order is fixed, the sizes and the choices inside come from the seed.

use std::path::Path;

use queen_archive::{Place, Progress, read_archive};
use queen_broker::api::AckStatus;
use queen_io::sim::Choice;
use queen_model::{OptionsPatch, Patch};
use queen_reclaim::Pass;

use crate::client::{Client, Item};
use crate::history::History;
use crate::node::{DATA, EPOCH, Sent, Setup, SimNode, Start, new_disk, open};
use crate::oracle::{Bounds, check};
use crate::rng::Rng;
use queen_io::SimDisk;
use queen_record::ids::Tenant;
use queen_state::{Queue, State};

/// A finished run.
pub struct Run {
    /// What happened.
    pub history: History,
    /// The entries, for a run that groups them.
    pub sent: Sent,
    /// The clock at its end, µs.
    pub now: i64,
    /// Why it stopped early: a fault, or an answer that is wrong.
    pub stopped: Option<String>,
    /// What reclaim did.
    pub reclaimed: Total,
    /// What it did while a backup was on its way.
    pub during_backup: Total,
}

/// Opens an empty directory and works through the script.
///
/// # Errors
/// Why the node does not start.
pub fn run(disk: &SimDisk, setup: &Setup, seed: u64) -> Result<Run, String> {
    let bare = open(disk, setup)?;
    let start = Start { now: EPOCH, seed };
    let mut node = SimNode::start(disk, bare, start, History::new())?;
    let mut script = Script::new(seed, 0);
    let all = script.all(&mut node).and_then(|()| script.back_up(&mut node, setup));
    let stopped = all.err();
    let (sent, now) = (node.take_sent(), node.now());
    let Script { reclaimed, during_backup, .. } = script;
    Ok(Run { sent, now, stopped, reclaimed, during_backup, history: node.history })
}

/// Works a little on a node that recovered: every path that a restart could have left broken.
///
/// # Errors
/// Why the node stopped, or what is wrong with an answer.
pub fn after_recovery(node: &mut SimNode, seed: u64) -> Result<(), String> {
    let mut script = Script::new(seed, seed << 16);
    script.repeat_some(node)?;
    let queue = ["mail", "orders", "t3"];
    for (step, name) in queue.into_iter().enumerate() {
        let item = script.item(name, 40 + step * 200);
        script.push(node, vec![item])?;
    }
    let items = queue.map(|name| script.item(name, 90)).to_vec();
    script.push(node, items)?;
    script.client.pop(node, "orders", "later", 3);
    script.client.settle(node)?;
    script.client.ack(node, &[AckStatus::Completed]);
    script.client.settle(node)?;
    while node.background()? {}
    node.begin_checkpoint();
    let item = script.item("orders", 700);
    script.push(node, vec![item])?;
    node.write_checkpoint()?;
    node.reclaim()?;
    let item = script.item("mail", 30);
    script.push(node, vec![item])?;
    node.begin_checkpoint();
    node.write_checkpoint()?;
    node.reclaim()?;
    let item = script.item("t7", 30);
    script.push(node, vec![item])
}

struct Script {
    client: Client,
    rng: Rng,
    numbers: u64,
    reclaimed: Total,
    during_backup: Total,
}

/// What reclaim did in a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Total {
    /// Files removed.
    pub files: u64,
    /// Files replaced.
    pub rewrites: u64,
    /// Logs removed.
    pub logs: u64,
    /// Files sealed early.
    pub sealed: u64,
}

impl Total {
    fn add(&mut self, pass: &Pass) {
        self.files += pass.reclaimed.files;
        self.rewrites += pass.reclaimed.rewrites;
        self.logs += pass.reclaimed.logs;
        self.sealed += pass.sealed;
    }
}

impl Script {
    fn new(seed: u64, numbers: u64) -> Self {
        let (client, rng) = (Client::default(), Rng::new(seed));
        let none = Total::default();
        Self { client, rng, numbers, reclaimed: none, during_backup: none }
    }

    /// A message whose bytes cannot be compressed.
    fn item(&mut self, queue: &str, len: usize) -> Item {
        self.numbers += 1;
        Item {
            queue: queue.to_owned(),
            partition: format!("p{}", self.rng.below(2)),
            transaction_id: format!("t-{:x}", self.numbers),
            payload: self.rng.bytes(len),
        }
    }

    /// A message whose bytes can be compressed.
    fn text(&mut self, queue: &str, len: usize) -> Item {
        let mut item = self.item(queue, 8);
        item.payload = format!("{{\"n\":{}}}", self.numbers).into_bytes().repeat(len / 8);
        item
    }

    fn push(&mut self, node: &mut SimNode, items: Vec<Item>) -> Result<(), String> {
        self.client.push(node, items)?;
        self.client.settle(node)
    }

    /// Pushes up to three stored messages again: each must be answered with its first offset.
    fn repeat_some(&mut self, node: &mut SimNode) -> Result<(), String> {
        let known = node.history.repeatable(node.applied());
        let before = self.client.duplicates;
        let mut sent = 0;
        for _ in 0..known.len().min(3) {
            let at = usize::try_from(self.rng.below(known.len() as u64)).unwrap_or(0);
            let Some((partition, offset)) = known.get(at) else { continue };
            let Some(part) = node.history.parts.get(partition) else { continue };
            let at = usize::try_from(offset.0).unwrap_or(usize::MAX);
            let Some(stored) = part.messages.get(at) else { continue };
            let item = Item {
                queue: part.queue.clone(),
                partition: part.name.clone(),
                transaction_id: stored.transaction_id.clone(),
                payload: b"again".to_vec(),
            };
            sent += 1;
            self.push(node, vec![item])?;
        }
        match self.client.duplicates - before {
            found if found == sent => Ok(()),
            found => Err(format!("{found} of {sent} repeats were answered as such")),
        }
    }

    fn all(&mut self, node: &mut SimNode) -> Result<(), String> {
        self.first_entries(node)?;
        self.consume(node)?;
        self.checkpoint_between(node)?;
        self.fill(node, 14)?;
        self.repeats(node)?;
        self.transact(node)?;
        self.delete_and_remake(node)?;
        self.settle_failures(node)?;
        self.retain(node)?;
        self.fill(node, 10)?;
        self.checkpoint_between(node)?;
        self.give_back(node)?;
        self.fill(node, 4)
    }

    /// A backup, while what its point plans to remove and to rewrite is carried out and everything goes on: what is
    /// restored from it is the node as of that point, and durable.
    fn back_up(&mut self, node: &mut SimNode, setup: &Setup) -> Result<(), String> {
        for queue in ["t0", "t6"] {
            self.client.delete_queue(node, queue);
        }
        self.client.settle(node)?;
        Self::checkpoint(node)?;
        node.advance_us(6_000_000);
        while node.background()? {}
        node.reclaim()?;
        let item = self.item("orders", 300);
        self.push(node, vec![item])?;
        let taken = node.applied();
        let pack = node.stage_backup()?;
        let mut meanwhile = Total::default();
        meanwhile.add(&node.reclaim()?);
        let items = vec![self.item("mail", 900), self.item("orders", 800), self.item("new", 9)];
        self.push(node, items)?;
        while node.background()? {}
        Self::checkpoint(node)?;
        meanwhile.add(&node.reclaim()?);
        self.during_backup = meanwhile;
        let item = self.item("orders", 20);
        self.push(node, vec![item])?;
        let archive = node.pack_backup(&pack)?;
        let disk = new_disk();
        let mut place = Place::new(&disk, Path::new(DATA));
        let unpacked = read_archive(&mut &*archive, &mut place, &Progress::new());
        unpacked.map_err(|error| format!("the backup is refused: {error}"))?;
        let copy = disk.crash_now(&Choice::AllLost);
        let bare =
            open(&copy, setup).map_err(|error| format!("the backup does not open: {error}"))?;
        let found = bare.opened.state.applied().0;
        if found != taken {
            return Err(format!("the backup of entry {taken} ends at {found}"));
        }
        let all = Bounds { answered_by: 0, written_by: node.disk.calls() };
        check(&bare, &node.history, all).map_err(|error| format!("the backup is wrong: {error}"))
    }

    /// A checkpoint with nothing in between.
    fn checkpoint(node: &mut SimNode) -> Result<(), String> {
        node.begin_checkpoint();
        node.write_checkpoint()
    }

    /// Queues go for good, come back before or after their logs went, and share files with others: files are sealed early,
    /// removed and rewritten, whole logs go.
    fn give_back(&mut self, node: &mut SimNode) -> Result<(), String> {
        for queue in ["mail", "t5", "t7", "t8", "t9"] {
            self.client.delete_queue(node, queue);
        }
        self.client.settle(node)?;
        // Live messages behind dead ones in one file.
        let item = self.item("mail", 40);
        self.push(node, vec![item])?;
        Self::checkpoint(node)?;
        node.advance_us(6_000_000);
        while node.background()? {}
        let mut done = node.reclaim()?;
        let mut total = Total::default();
        for round in 0..6 {
            while node.background()? {}
            node.begin_checkpoint();
            let queue = ["mail", "t8", "orders", "t7", "t1", "t9"].get(round).copied();
            let item = self.item(queue.unwrap_or("orders"), 50 + 150 * round);
            if round % 2 == 0 {
                self.push(node, vec![item.clone()])?;
            }
            node.write_checkpoint()?;
            if round % 2 == 1 {
                // Between the record and the deed.
                self.push(node, vec![item])?;
            }
            total.add(&done);
            done = node.reclaim()?;
            if round == 2 {
                node.advance_us(6_000_000);
            }
        }
        total.add(&done);
        Self::checkpoint(node)?;
        self.reclaimed = total;
        Ok(())
    }

    /// First files; entries over one, two and ten logs; raw and compressed payloads.
    fn first_entries(&mut self, node: &mut SimNode) -> Result<(), String> {
        let patch = OptionsPatch {
            lease_time: Patch::Set(30),
            retry_limit: Patch::Set(1),
            ..OptionsPatch::default()
        };
        self.client.configure(node, "orders", patch);
        self.client.settle(node)?;
        let item = self.item("orders", 20);
        self.push(node, vec![item])?;
        let items = vec![self.item("orders", 33), self.item("mail", 50)];
        self.push(node, items)?;
        let items = (0..10).map(|at| self.item(&format!("t{at}"), 16)).collect();
        self.push(node, items)?;
        let items = (0..3).map(|_| self.text("orders", 900)).collect();
        self.push(node, items)?;
        let item = self.item("mail", 1300);
        self.push(node, vec![item])?;
        while node.background()? {}
        Ok(())
    }

    /// Leases, acks, one nack, one dead letter, commit at delivery.
    fn consume(&mut self, node: &mut SimNode) -> Result<(), String> {
        self.client.pop(node, "orders", "g1", 2);
        self.client.settle(node)?;
        self.client.extend(node, 60);
        self.client.settle(node)?;
        self.client.ack(node, &[AckStatus::Completed]);
        self.client.settle(node)?;
        self.client.ack(node, &[AckStatus::Completed, AckStatus::Failed]);
        self.client.settle(node)?;
        node.disk.set_cold(true);
        self.client.pop(node, "mail", "g1", 1);
        self.client.pop(node, "orders", "g2", 3);
        self.client.settle(node)?;
        node.disk.set_cold(false);
        self.client.ack(node, &[AckStatus::DeadLetter]);
        self.client.settle(node)?;
        self.client.pop_committed(node, "t1", "g3", 5);
        self.client.pop_committed(node, "orders", "g3", 1);
        self.client.settle(node)
    }

    /// A checkpoint whose rows are taken and written while entries go on.
    fn checkpoint_between(&mut self, node: &mut SimNode) -> Result<(), String> {
        node.begin_checkpoint();
        let items = vec![self.item("orders", 60), self.item("t2", 44)];
        self.push(node, items)?;
        node.pull_rows(5);
        self.client.pop(node, "t2", "g1", 4);
        self.client.settle(node)?;
        self.client.ack(node, &[AckStatus::Completed]);
        self.client.settle(node)?;
        node.pull_rows(3);
        let item = self.item("t4", 600);
        self.push(node, vec![item])?;
        node.write_checkpoint()
    }

    /// Files roll, also in the middle of an entry's logs; side files and next files are made now and then.
    fn fill(&mut self, node: &mut SimNode, rounds: usize) -> Result<(), String> {
        for round in 0..rounds {
            let len = usize::try_from(self.rng.below(900)).unwrap_or(0);
            let items = match self.rng.below(5) {
                0 => vec![self.item("orders", len)],
                1 => vec![self.text("mail", len + 600)],
                2 => vec![self.item("orders", len), self.item("mail", len / 2)],
                3 => vec![self.item("t0", 700), self.item("t1", len), self.text("orders", 1200)],
                _ => vec![self.item("t0", len), self.item("t0", 30), self.item("mail", 20)],
            };
            self.client.push(node, items)?;
            if self.rng.below(3) == 0 {
                // A second command in the same entry.
                let item = self.item("t1", 25);
                self.client.push(node, vec![item])?;
            }
            self.client.settle(node)?;
            node.advance_us(7_000);
            if round % 3 == 2 {
                while node.background()? {}
            }
        }
        Ok(())
    }

    /// The same id in one request, in a second request of one round, and long after.
    fn repeats(&mut self, node: &mut SimNode) -> Result<(), String> {
        let item = self.item("orders", 70);
        self.push(node, vec![item.clone(), item.clone()])?;
        self.client.push(node, vec![item])?;
        let item = self.item("mail", 70);
        self.client.push(node, vec![item.clone()])?;
        self.client.push(node, vec![item])?;
        self.client.settle(node)?;
        self.repeat_some(node)
    }

    /// A transaction over three logs, one that is refused whole, and a cursor that is put back.
    fn transact(&mut self, node: &mut SimNode) -> Result<(), String> {
        self.client.held.clear();
        self.client.pop(node, "orders", "g5", 2);
        self.client.pop(node, "t1", "g5", 1);
        self.client.settle(node)?;
        let items = vec![self.item("t6", 50), self.item("mail", 400), self.item("t6", 20)];
        self.client.transact(node, 2, items, false)?;
        self.client.settle(node)?;
        self.client.pop(node, "t2", "g5", 1);
        self.client.settle(node)?;
        let mut items = vec![self.item("never", 30), self.item("t6", 30)];
        let known = node.history.repeatable(node.applied());
        if let Some((partition, offset)) = known.first()
            && let Some(part) = node.history.parts.get(partition)
            && let Some(stored) = part.messages.get(usize::try_from(offset.0).unwrap_or(0))
            && let Some(item) = items.last_mut()
        {
            (item.queue, item.partition) = (part.queue.clone(), part.name.clone());
            item.transaction_id.clone_from(&stored.transaction_id);
            self.client.transact(node, 1, items, true)?;
            self.client.settle(node)?;
        }
        if node.with_state(|state| state.queue(Tenant::DEFAULT, "never").is_some()) {
            return Err("a refused transaction left its queue".to_owned());
        }
        self.client.ack(node, &[AckStatus::Completed]);
        self.client.settle(node)?;
        let first = node.history.parts.iter().find(|(_, part)| part.queue == "orders");
        if let Some(partition) = first.map(|(id, _)| *id) {
            self.client.rewind(node, "orders", "g5", partition);
            self.client.settle(node)?;
        }
        Ok(())
    }

    /// A queue with cursors and dead letters goes and comes back, a group goes and comes back.
    fn delete_and_remake(&mut self, node: &mut SimNode) -> Result<(), String> {
        self.client.delete_group(node, "orders", "g3");
        self.client.settle(node)?;
        self.client.delete_queue(node, "mail");
        self.client.settle(node)?;
        let items = vec![self.item("mail", 80), self.item("t5", 10)];
        self.push(node, items)?;
        self.client.pop(node, "mail", "g1", 1);
        self.client.pop(node, "orders", "g3", 2);
        self.client.settle(node)?;
        self.client.ack(node, &[AckStatus::Completed]);
        self.client.settle(node)
    }

    /// Messages that are too old go, under a lease and under a checkpoint, and those that every group has done; then
    /// partitions that nobody uses.
    fn retain(&mut self, node: &mut SimNode) -> Result<(), String> {
        let kept = |seconds: i32| Patch::Set(seconds);
        let base = OptionsPatch {
            retention_enabled: Patch::Set(true),
            dedup_window_seconds: kept(10),
            lease_time: kept(8),
            ..OptionsPatch::default()
        };
        let aging = OptionsPatch { retention_seconds: kept(20), ..base.clone() };
        self.client.configure(node, "aging", aging);
        let settled = OptionsPatch { completed_retention_seconds: kept(20), ..base };
        self.client.configure(node, "settled", settled);
        self.client.settle(node)?;
        self.push_aging(node, 4)?;
        self.client.held.clear();
        self.client.pop(node, "settled", "g1", 9);
        self.client.settle(node)?;
        let all = [AckStatus::Completed; 9];
        while !self.client.held.is_empty() {
            self.client.ack(node, &all);
            self.client.settle(node)?;
        }
        // Never settled: it holds what comes after its first message.
        self.client.pop(node, "settled", "slow", 1);
        self.client.pop(node, "aging", "g1", 1);
        self.client.settle(node)?;
        node.advance_us(15_000_000);
        self.push_aging(node, 3)?;
        node.advance_us(9_000_000);
        self.remove_old(node)?;
        node.begin_checkpoint();
        node.pull_rows(2);
        self.client.held.clear();
        // The first lease is over: the group goes on where the log starts.
        self.client.pop(node, "aging", "g1", 2);
        self.client.pop(node, "settled", "slow", 9);
        self.client.settle(node)?;
        while !self.client.held.is_empty() {
            self.client.ack(node, &all);
            self.client.settle(node)?;
        }
        self.remove_old(node)?;
        node.pull_rows(2);
        node.write_checkpoint()?;
        node.advance_us(25_000_000);
        self.remove_old(node)?;
        self.push_aging(node, 1)?;
        node.advance_us(70_000_000);
        self.remove_old(node)?;
        node.advance_us(70_000_000);
        self.remove_old(node)?;
        let left =
            |state: &State| state.queue(Tenant::DEFAULT, "aging").map(Queue::partition_count);
        if node.with_state(left) != Some(0) {
            return Err("partitions that nobody uses were not removed".to_owned());
        }
        self.push_aging(node, 2)
    }

    fn push_aging(&mut self, node: &mut SimNode, rounds: usize) -> Result<(), String> {
        for round in 0..rounds {
            let len = 30 + round * 170;
            let items = vec![self.item("aging", len), self.text("settled", 700)];
            self.push(node, items)?;
            while node.background()? {}
        }
        Ok(())
    }

    /// Retention comes by; what it may not remove must be there.
    fn remove_old(&mut self, node: &mut SimNode) -> Result<(), String> {
        let before = node.applied();
        node.retain()?;
        self.client.retained(node, before)
    }

    /// Failed twice with one retry: dead letter; some leases stay open to the end.
    fn settle_failures(&mut self, node: &mut SimNode) -> Result<(), String> {
        for _ in 0..3 {
            self.client.pop(node, "t0", "g4", 1);
            self.client.settle(node)?;
            self.client.held.rotate_right(1);
            self.client.ack(node, &[AckStatus::Failed]);
            self.client.settle(node)?;
        }
        let patch = OptionsPatch { lease_time: Patch::Set(90), ..OptionsPatch::default() };
        self.client.configure(node, "orders", patch);
        self.client.configure(node, "made", OptionsPatch::default());
        self.client.settle(node)
    }
}
