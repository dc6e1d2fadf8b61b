//! What is durable, what is not yet, and the disk that a power cut leaves of both.
//!
//! Rules, each of which a test in `tests.rs` shows:
//! - P1: the unit of loss is one 512-byte sector of one write, one change of length, or one change of names.
//! - P2: a file's length is part of its data: `sync_data` makes both durable, and nothing else does.
//! - P3: a change of names is durable after `sync_dir` of every directory it touches. Changes of one node keep
//!   their order: a later one is never kept without the earlier ones (else a renamed file had two names).
//! - P4: after a failed `sync_data` the next one says yes and has not written what the first one left out: the
//!   system has marked those pages clean.

use std::sync::Arc;

use super::random::Random;
use super::tree::{NameChange, Node, Tree};

/// Sectors are written whole or not at all, each for itself.
pub(super) const SECTOR: u64 = 512;

/// One numbered call, as far as it changed anything.
#[derive(Clone)]
pub(super) enum Op {
    /// Failed, or was told to do nothing.
    Nothing,
    Name(NameChange),
    Write {
        node: Node,
        offset: u64,
        bytes: Arc<[u8]>,
    },
    SetLen {
        node: Node,
        len: u64,
    },
    SyncData {
        node: Node,
    },
    SyncDataFailed {
        node: Node,
    },
    SyncDir {
        dir: Node,
    },
}

/// What a power cut leaves of the changes that no sync has made durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    /// Nothing.
    AllLost,
    /// Everything.
    AllKept,
    /// All data and lengths, no change of names.
    DataKept,
    /// All changes of names, no data: new files are empty.
    NamesKept,
    /// Everything of some files and directories, nothing of the others. Bit k is the k-th file with unsynced
    /// data in the order of its first unsynced write; the bits of directories follow in the same way.
    Items(u64),
    /// As `Items`, with bits drawn from the seed, for more items than can be listed.
    ItemsRandom(u64),
    /// Everything, but of the last call, a write, only this many bytes.
    Torn(usize),
    /// Everything but one change of names (counted from the oldest) and what needs it.
    NameLost(usize),
    /// Nothing but one change of names and what it needs.
    NameKept(usize),
    /// Each sector, length and name for itself, by a coin drawn from the seed.
    Scattered(u64),
}

#[derive(Clone)]
enum Data {
    Write { offset: u64, bytes: Arc<[u8]> },
    SetLen(u64),
}

#[derive(Clone)]
struct PendingData {
    node: Node,
    data: Data,
    /// A sync of it has failed: no later sync writes it.
    given_up: bool,
}

#[derive(Clone)]
struct PendingName {
    change: NameChange,
    /// Directories that still have to be synced.
    waits_for: Vec<Node>,
}

/// A disk between two calls: the durable tree and the changes on top of it.
#[derive(Clone)]
pub(super) struct Pending {
    durable: Tree,
    data: Vec<PendingData>,
    names: Vec<PendingName>,
    /// Bytes of the last call when it was a write.
    last_write: Option<(u64, usize)>,
}

impl Pending {
    pub(super) fn new(durable: Tree) -> Self {
        Self { durable, data: Vec::new(), names: Vec::new(), last_write: None }
    }

    pub(super) fn step(&mut self, op: &Op) {
        self.last_write = None;
        match op {
            Op::Nothing => {}
            Op::Name(change) => {
                let mut waits_for: Vec<Node> =
                    change.places().iter().map(|place| place.0).collect();
                waits_for.dedup();
                self.names.push(PendingName { change: change.clone(), waits_for });
            }
            Op::Write { node, offset, bytes } => {
                self.last_write = Some((*offset, bytes.len()));
                let data = Data::Write { offset: *offset, bytes: Arc::clone(bytes) };
                self.data.push(PendingData { node: *node, data, given_up: false });
            }
            Op::SetLen { node, len } => {
                let data = Data::SetLen(*len);
                self.data.push(PendingData { node: *node, data, given_up: false });
            }
            Op::SyncData { node } => self.sync_data(*node),
            Op::SyncDataFailed { node } => {
                for pending in self.data.iter_mut().filter(|pending| pending.node == *node) {
                    pending.given_up = true;
                }
            }
            Op::SyncDir { dir } => self.sync_dir(*dir),
        }
    }

    fn sync_data(&mut self, node: Node) {
        let (durable, data) = (&mut self.durable, &mut self.data);
        data.retain(|pending| {
            let synced = pending.node == node;
            if synced && !pending.given_up {
                apply_data(durable, node, &pending.data);
            }
            !synced
        });
    }

    /// Changes that wait for no other directory become durable, with the earlier ones of their nodes and names.
    fn sync_dir(&mut self, dir: Node) {
        for pending in &mut self.names {
            pending.waits_for.retain(|waits_for| *waits_for != dir);
        }
        let mut durable = vec![false; self.names.len()];
        for (index, later) in self.names.iter().enumerate().rev() {
            let needed = self.names.iter().zip(&durable).skip(index + 1).any(|(other, durable)| {
                *durable && (other.change.node() == later.change.node() || share_name(other, later))
            });
            if let Some(slot) = durable.get_mut(index) {
                *slot = needed || later.waits_for.is_empty();
            }
        }
        let names = std::mem::take(&mut self.names);
        for (pending, durable) in names.into_iter().zip(durable) {
            if durable {
                self.durable.apply(&pending.change);
                if let NameChange::Unlink { node, .. } = pending.change
                    && !self.data.iter().any(|data| data.node == node)
                    && !self.durable.has_name(node)
                {
                    self.durable.forget_file(node);
                }
            } else {
                self.names.push(pending);
            }
        }
    }

    /// Makes everything durable.
    pub(super) fn settle(&mut self) {
        *self = Self::new(self.image(&Choice::AllKept));
    }

    /// All choices that this state has, most of them few. `seed` draws the random ones.
    pub(super) fn choices(&self, seed: u64) -> Vec<Choice> {
        let mut choices = vec![Choice::AllLost];
        if self.data.is_empty() && self.names.is_empty() {
            return choices;
        }
        choices.extend([Choice::AllKept, Choice::DataKept, Choice::NamesKept]);
        let mut random = Random::new(seed);
        match self.items().len() {
            0 | 1 => {}
            few @ 2..=6 => choices.extend((1..(1 << few) - 1).map(Choice::Items)),
            _ => choices.extend((0..64).map(|_| Choice::ItemsRandom(random.next()))),
        }
        if let Some((offset, len)) = self.last_write {
            let to_sector = SECTOR - offset % SECTOR;
            let sectors = (to_sector..).step_by(512).map_while(|at| usize::try_from(at).ok());
            choices.extend((1..len.min(65)).map(Choice::Torn));
            let sectors = sectors.take_while(|at| *at < len).filter(|at| *at > 64);
            choices.extend(sectors.map(Choice::Torn));
        }
        if self.names.len() > 1 {
            let names = 0..self.names.len().min(8);
            choices.extend(names.clone().map(Choice::NameLost));
            choices.extend(names.map(Choice::NameKept));
        }
        choices.extend((0..16).map(|_| Choice::Scattered(random.next())));
        choices
    }

    /// The disk after a power cut.
    pub(super) fn image(&self, choice: &Choice) -> Tree {
        let mut tree = self.durable.clone();
        let mut coin = Coin::new(choice);
        let by_item = matches!(choice, Choice::Items(_) | Choice::ItemsRandom(_));
        let items = if by_item { self.items() } else { Vec::new() };
        let keeps_item = |coin: &mut Coin, item: Item| {
            !by_item || coin.item(items.iter().position(|other| *other == item))
        };
        for (index, pending) in self.data.iter().enumerate() {
            let is_last = index + 1 == self.data.len();
            match choice {
                Choice::AllLost | Choice::NamesKept | Choice::NameKept(_) => {}
                Choice::Torn(bytes) if is_last => apply_torn(&mut tree, pending, *bytes),
                Choice::Scattered(_) => apply_scattered(&mut tree, pending, &mut coin),
                _ => {
                    if keeps_item(&mut coin, Item::File(pending.node)) {
                        apply_data(&mut tree, pending.node, &pending.data);
                    }
                }
            }
        }
        let mut kept: Vec<bool> = Vec::with_capacity(self.names.len());
        for (index, pending) in self.names.iter().enumerate() {
            kept.push(match choice {
                Choice::AllLost | Choice::DataKept => false,
                Choice::NameLost(lost) => index != *lost,
                Choice::NameKept(only) => index == *only,
                Choice::Scattered(_) => coin.flip(),
                // A rename between two directories is kept with the one it moves to.
                _ => keeps_item(&mut coin, Item::of_name(&pending.change)),
            });
        }
        self.order_kept(choice, &mut kept);
        for (pending, _) in self.names.iter().zip(&kept).filter(|(_, kept)| **kept) {
            tree.apply(&pending.change);
        }
        tree.pruned()
    }

    /// Rule P3. A choice of one lost name takes later ones with it, every other choice draws earlier ones in.
    fn order_kept(&self, choice: &Choice, kept: &mut [bool]) {
        let node = |index: usize| self.names.get(index).map(|pending| pending.change.node());
        for index in 0..kept.len() {
            for earlier in 0..index {
                if node(index) != node(earlier) {
                    continue;
                }
                let [Some(first), Some(second)] = [earlier, index].map(|at| kept.get(at).copied())
                else {
                    continue;
                };
                let (slot, value) = match choice {
                    Choice::NameLost(_) => (index, first && second),
                    _ => (earlier, first || second),
                };
                if let Some(slot) = kept.get_mut(slot) {
                    *slot = value;
                }
            }
        }
    }

    /// Files with unsynced data, then directories with unsynced names, by the time of their first change.
    fn items(&self) -> Vec<Item> {
        let mut items = Vec::new();
        let files = self.data.iter().map(|pending| Item::File(pending.node));
        let dirs = self.names.iter().map(|pending| Item::of_name(&pending.change));
        for item in files.chain(dirs) {
            if !items.contains(&item) {
                items.push(item);
            }
        }
        items
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Item {
    File(Node),
    Dir(Node),
}

impl Item {
    fn of_name(change: &NameChange) -> Self {
        match change {
            NameChange::Link { dir, .. } | NameChange::Unlink { dir, .. } => Self::Dir(*dir),
            NameChange::Rename { to, .. } => Self::Dir(to.0),
        }
    }
}

/// The draws of a choice.
struct Coin {
    bits: u64,
    random: Random,
    /// Kept of four.
    odds: u64,
}

impl Coin {
    fn new(choice: &Choice) -> Self {
        match choice {
            Choice::Items(bits) => Self { bits: *bits, random: Random::new(0), odds: 2 },
            Choice::ItemsRandom(seed) => Self { bits: *seed, random: Random::new(*seed), odds: 2 },
            Choice::Scattered(seed) => {
                let mut random = Random::new(*seed);
                let odds = 1 + random.below(3);
                Self { bits: 0, random, odds }
            }
            _ => Self { bits: 0, random: Random::new(0), odds: 2 },
        }
    }

    fn flip(&mut self) -> bool {
        self.random.below(4) < self.odds
    }

    /// The bit of an item; above 63 it is derived from the seed.
    fn item(&self, position: Option<usize>) -> bool {
        let position = position.unwrap_or(0) as u64;
        if position < 64 {
            return self.bits >> position & 1 == 1;
        }
        Random::new(self.bits ^ position).next() & 1 == 1
    }
}

fn share_name(a: &PendingName, b: &PendingName) -> bool {
    let places = a.change.places();
    b.change.places().iter().any(|place| places.contains(place))
}

fn apply_data(tree: &mut Tree, node: Node, data: &Data) {
    match data {
        Data::Write { offset, bytes } => tree.file_mut(node).write(*offset, bytes),
        Data::SetLen(len) => tree.file_mut(node).set_len(*len),
    }
}

fn apply_torn(tree: &mut Tree, pending: &PendingData, bytes: usize) {
    if let Data::Write { offset, bytes: all } = &pending.data
        && let Some(part) = all.get(..bytes)
    {
        tree.file_mut(pending.node).write(*offset, part);
    }
}

fn apply_scattered(tree: &mut Tree, pending: &PendingData, coin: &mut Coin) {
    let Data::Write { offset, bytes } = &pending.data else {
        if coin.flip() {
            apply_data(tree, pending.node, &pending.data);
        }
        return;
    };
    let (mut offset, mut bytes) = (*offset, &bytes[..]);
    while !bytes.is_empty() {
        let to_sector = usize::try_from(SECTOR - offset % SECTOR).unwrap_or(usize::MAX);
        let (sector, later) = bytes.split_at(bytes.len().min(to_sector));
        if coin.flip() {
            tree.file_mut(pending.node).write(offset, sector);
        }
        offset += sector.len() as u64;
        bytes = later;
    }
}
