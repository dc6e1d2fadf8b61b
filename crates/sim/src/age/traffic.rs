//! What is pushed and taken in each step.

use std::collections::VecDeque;

use queen_model::{OptionsPatch, Patch};

use super::STEPS_PER_DAY;
use super::model::Model;
use super::node::{Aging, Item};
use crate::rng::Rng;

const DAY_S: i32 = 86_400;

/// How long a queue's messages live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    /// Seconds.
    Age(i32),
    /// Seconds, once every group is done with them.
    Done(i32),
    /// For ever.
    Kept,
    /// For ever, but the queue is deleted every few days.
    Reborn(u32),
}

/// A queue.
pub(super) struct QueueSpec {
    pub(super) name: &'static str,
    pub(super) life: Life,
    /// Messages in a step.
    pub(super) messages: u32,
    /// Steps between two of them.
    pub(super) every: u32,
    /// Whether its partitions have new names each day.
    pub(super) is_daily: bool,
}

const fn queue(name: &'static str, life: Life, messages: u32, every: u32) -> QueueSpec {
    QueueSpec { name, life, messages, every, is_daily: false }
}

/// All of them.
pub(super) const QUEUES: [QueueSpec; 8] = [
    queue("hour", Life::Age(3_600), 24, 1),
    queue("day", Life::Age(DAY_S), 16, 1),
    queue("week", Life::Age(7 * DAY_S), 16, 1),
    queue("done", Life::Done(3_600), 20, 1),
    queue("kept", Life::Kept, 2, 3),
    // Weeks of silence, then a burst.
    queue("idle", Life::Age(DAY_S), 200, STEPS_PER_DAY * 17),
    queue("reborn", Life::Reborn(5), 8, 1),
    QueueSpec { is_daily: true, ..queue("daily", Life::Age(DAY_S), 8, 1) },
];

impl QueueSpec {
    pub(super) fn options(&self) -> OptionsPatch {
        let base = OptionsPatch {
            retention_enabled: Patch::Set(true),
            dedup_window_seconds: Patch::Set(600),
            ..OptionsPatch::default()
        };
        match self.life {
            Life::Age(seconds) => OptionsPatch { retention_seconds: Patch::Set(seconds), ..base },
            Life::Done(seconds) => {
                OptionsPatch { completed_retention_seconds: Patch::Set(seconds), ..base }
            }
            Life::Kept | Life::Reborn(_) => base,
        }
    }
}

/// The traffic of one node.
pub(super) struct Traffic {
    rng: Rng,
    step: u32,
    numbers: u64,
    /// Messages of each step of the last day that the slow group has yet to take.
    owed: VecDeque<u32>,
}

impl Traffic {
    pub(super) fn new(rng: Rng) -> Self {
        Self { rng, step: 0, numbers: 0, owed: VecDeque::new() }
    }

    pub(super) fn step(&mut self, node: &mut Aging, model: &mut Model) -> Result<(), String> {
        self.step += 1;
        let day = self.step / STEPS_PER_DAY;
        let mut items = Vec::new();
        for spec in &QUEUES {
            if let Life::Reborn(days) = spec.life
                && self.step.is_multiple_of(days * STEPS_PER_DAY)
            {
                node.delete_queue(spec.name)?;
                model.delete(spec.name);
                node.configure(spec.name, spec.options())?;
            }
            if self.step.is_multiple_of(spec.every) {
                items.extend((0..spec.messages).map(|_| self.item(spec, day)));
            }
        }
        node.push(&items, model)?;
        self.take(node, model)
    }

    fn item(&mut self, spec: &QueueSpec, day: u32) -> Item {
        self.numbers += 1;
        let place = self.rng.below(6);
        let partition = if spec.is_daily { format!("{day}-{place}") } else { format!("p{place}") };
        let len = 100 + self.rng.below(900);
        Item {
            queue: spec.name,
            life: spec.life,
            partition,
            transaction_id: format!("t-{:x}", self.numbers),
            payload: self.rng.bytes(usize::try_from(len).unwrap_or(0)),
        }
    }

    /// One group takes everything at once; another one takes a day later what was pushed.
    fn take(&mut self, node: &mut Aging, model: &mut Model) -> Result<(), String> {
        for queue in ["hour", "day", "done", "daily"] {
            node.take(queue, "fast", 1000, model)?;
        }
        // The slow group is registered from the first step on, and takes nothing for a day.
        let pushed = QUEUES.iter().find(|spec| spec.name == "done").map_or(0, |spec| spec.messages);
        self.owed.push_back(pushed);
        let due = if self.owed.len() > STEPS_PER_DAY as usize {
            self.owed.pop_front().unwrap_or(0)
        } else {
            0
        };
        if self.step == 1 {
            node.take("done", "slow", 1, model)?;
            if let Some(first) = self.owed.front_mut() {
                *first -= 1;
            }
        }
        if due > 0 {
            node.take("done", "slow", due, model)?;
        }
        Ok(())
    }
}
