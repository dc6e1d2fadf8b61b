//! All power cuts of a run: behind every call, under every choice.
//!
//! The journal is walked once; between two calls the durable part is shared by all images, so an image costs
//! what its unsynced changes cost.

use std::collections::{HashSet, VecDeque};

use super::pending::{Choice, Op, Pending};
use super::random::Random;
use super::{Node, SimDisk};

/// One power cut and the disk it leaves.
pub struct Image {
    /// Number of calls before the cut.
    pub call: u64,
    /// What it kept.
    pub choice: Choice,
    /// What is left. Independent of every other image.
    pub disk: SimDisk,
    /// Of `disk`. Equal images behind different calls are all given: a later one owes more.
    pub fingerprint: u128,
}

/// Walks over the power cuts of the calls that a disk had made when this was made. Needs the disk's journal.
///
/// Images that are equal behind one call are given once.
pub struct Explorer {
    journal: Vec<Op>,
    pending: Pending,
    next_node: Node,
    call: usize,
    seeds: Random,
    choices: VecDeque<Choice>,
    seen: HashSet<u128>,
    done: bool,
}

impl Explorer {
    /// Starts before the first call.
    pub fn new(disk: &SimDisk, seed: u64) -> Self {
        let inner = disk.lock();
        let mut explorer = Self {
            journal: inner.journal.clone().unwrap_or_default(),
            pending: Pending::new(inner.base.clone()),
            next_node: inner.next_node,
            call: 0,
            seeds: Random::new(seed),
            choices: VecDeque::new(),
            seen: HashSet::new(),
            done: false,
        };
        explorer.draw();
        explorer
    }

    fn draw(&mut self) {
        self.seen.clear();
        self.choices = self.pending.choices(self.seeds.next()).into();
    }

    fn step(&mut self) -> bool {
        let Some(op) = self.journal.get(self.call) else { return false };
        self.pending.step(op);
        self.call += 1;
        self.draw();
        true
    }
}

impl Iterator for Explorer {
    type Item = Image;

    fn next(&mut self) -> Option<Image> {
        while !self.done {
            let Some(choice) = self.choices.pop_front() else {
                self.done = !self.step();
                continue;
            };
            let tree = self.pending.image(&choice);
            let fingerprint = tree.fingerprint();
            if self.seen.insert(fingerprint) {
                let disk = SimDisk::from_tree(tree, self.next_node);
                return Some(Image { call: self.call as u64, choice, disk, fingerprint });
            }
        }
        None
    }
}
