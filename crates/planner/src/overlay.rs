//! What entries in flight changed, on top of the applied state.
//!
//! An item is tagged with its plan's number and forgotten once that plan is applied; hashes stay longer, until no
//! question to the log is under way that could have missed them.

use std::collections::VecDeque;
use std::sync::Arc;

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use queen_model::QueueOptions;
use queen_record::hash::queue_id;
use queen_record::ids::{Micros, Offset, PartitionId, QueueId, Tenant, TxHash, Uuid};
use queen_state::State;

/// A map without iteration order.
type Table<K, V> = HashMap<K, V, FixedState>;

/// A queue as planning sees it: applied or in flight. Only what the hot paths read; small and `Copy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueView {
    /// Routes its effects.
    pub route: QueueId,
    /// Its id.
    pub id: Uuid,
    /// When it was made.
    pub created: Micros,
    /// Whether it was made by an entry in flight, so that the applied state knows nothing of it.
    pub in_flight: bool,
    /// Option of the same name, in microseconds.
    pub dedup_window_us: i64,
    /// Option of the same name.
    pub lease_time_s: i32,
    /// Option of the same name.
    pub retry_limit: i32,
    /// Whether an exhausted message is filed.
    pub files_dead_letters: bool,
    /// Option of the same name.
    pub encryption_enabled: bool,
    /// Option `delayedProcessing`, in microseconds.
    pub delay_us: i64,
    /// Option `windowBuffer`, in microseconds.
    pub window_us: i64,
}

impl QueueView {
    /// The view of a queue with these options.
    pub fn new(
        (tenant, name): (Tenant, &str),
        id: Uuid,
        created: Micros,
        options: &QueueOptions,
        in_flight: bool,
    ) -> Self {
        let micros = |seconds: i32| i64::from(seconds.max(0)) * 1_000_000;
        Self {
            route: queue_id(tenant, name),
            id,
            created,
            in_flight,
            dedup_window_us: micros(options.dedup_window_seconds),
            lease_time_s: options.lease_time,
            retry_limit: options.retry_limit,
            files_dead_letters: options.files_dead_letters(),
            encryption_enabled: options.encryption_enabled,
            delay_us: micros(options.delayed_processing),
            window_us: micros(options.window_buffer),
        }
    }
}

/// A partition's end as planning sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tip {
    /// Offset of the newest message, -1 for none.
    pub last_offset: i64,
    /// When it was appended.
    pub last_created: Micros,
}

struct Tagged<T> {
    plan: u64,
    value: T,
}

/// A stored message that a push repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Original {
    /// Where it stands.
    pub offset: Offset,
    /// When it was appended.
    pub created: Micros,
    /// Its message id.
    pub id: Uuid,
}

/// Changes in flight.
#[derive(Default)]
pub struct Overlay {
    /// `None` marks a queue deleted in flight.
    queues: Table<(Tenant, Arc<str>), Tagged<PlannedQueue>>,
    /// `None` marks a partition removed in flight.
    partitions: Table<(QueueKey, Arc<str>), Tagged<Option<PartitionId>>>,
    /// Applied partitions that are removed in flight.
    partitions_gone: Table<PartitionId, u64>,
    /// Partitions that an effect of retention is in flight for.
    retained: Table<PartitionId, u64>,
    tips: Table<PartitionId, Tagged<Tip>>,
    groups: Table<GroupKey, Tagged<Option<Registration>>>,
    /// Groups whose rows are deleted in flight; they may have been registered again since.
    deleted_groups: Table<GroupKey, u64>,
    /// Dead letters removed in flight.
    letters_gone: Table<Uuid, u64>,
    hashes: Table<(PartitionId, TxHash), Original>,
    /// By plan, with the time of each: one hash may have been appended by several plans.
    appended: VecDeque<(u64, Vec<Appended>)>,
}

/// A hash that a plan appended, and when.
type Appended = (PartitionId, TxHash, Micros);

/// A queue as this plan leaves it; `None` when it is deleted.
type PlannedQueue = Option<(QueueView, QueueOptions)>;

/// Tenant, queue and group name.
type GroupKey = (Tenant, Arc<str>, Arc<str>);

/// Tells a queue from one of the same name made later.
type QueueKey = Uuid;

/// A group's start as planning sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subscription {
    /// Before the oldest retained message.
    All,
    /// Before the first message at or after this time.
    From(Micros),
}

/// A registered group as planning sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registration {
    /// Where it starts.
    pub start: Subscription,
    /// Whether it delivers only the newest message.
    pub conflation: bool,
}

impl Overlay {
    /// The queue of this name.
    pub fn queue(&self, state: &State, tenant: Tenant, name: &str) -> Option<QueueView> {
        if !self.queues.is_empty()
            && let Some(tagged) = self.queues.get(&(tenant, Arc::from(name)))
        {
            return tagged.value.as_ref().map(|(view, _)| *view);
        }
        let queue = state.queue(tenant, name)?;
        Some(QueueView::new((tenant, name), queue.id, queue.created, &queue.options, false))
    }

    /// All options of the queue of this name.
    pub fn options(&self, state: &State, tenant: Tenant, name: &str) -> Option<QueueOptions> {
        if let Some(tagged) = self.queues.get(&(tenant, Arc::from(name))) {
            return tagged.value.as_ref().map(|(_, options)| options.clone());
        }
        state.queue(tenant, name).map(|queue| queue.options.clone())
    }

    /// Notes a queue made or changed by this plan; `None` for one deleted by it, with all of its groups.
    pub fn put_queue(
        &mut self,
        plan: u64,
        tenant: Tenant,
        name: &str,
        queue: Option<(QueueView, QueueOptions)>,
    ) {
        if queue.is_none() {
            self.groups.retain(|(owner, of, _), _| (*owner, &**of) != (tenant, name));
            self.deleted_groups.retain(|(owner, of, _), _| (*owner, &**of) != (tenant, name));
        }
        self.queues.insert((tenant, name.into()), Tagged { plan, value: queue });
    }

    /// The partition of this name in a queue.
    pub fn partition(
        &self,
        state: &State,
        tenant: Tenant,
        name: &str,
        queue: &QueueView,
        partition: &str,
    ) -> Option<PartitionId> {
        if !self.partitions.is_empty()
            && let Some(tagged) = self.partitions.get(&(queue.id, Arc::from(partition)))
        {
            return tagged.value;
        }
        if queue.in_flight {
            return None;
        }
        state.partition_named(state.queue(tenant, name)?, partition)
    }

    /// Notes a partition made by this plan.
    pub fn put_partition(&mut self, plan: u64, queue: &QueueView, name: &str, id: PartitionId) {
        self.partitions.insert((queue.id, name.into()), Tagged { plan, value: Some(id) });
    }

    /// Notes that this plan removes an applied partition of a queue.
    pub fn remove_partition(&mut self, plan: u64, queue: Uuid, name: &str, id: PartitionId) {
        self.partitions.insert((queue, name.into()), Tagged { plan, value: None });
        self.partitions_gone.insert(id, plan);
    }

    /// Whether an applied partition is removed in flight.
    pub fn is_partition_gone(&self, id: PartitionId) -> bool {
        !self.partitions_gone.is_empty() && self.partitions_gone.contains_key(&id)
    }

    /// Whether messages are appended to a partition in flight.
    pub fn is_appended(&self, id: PartitionId) -> bool {
        self.tips.contains_key(&id)
    }

    /// Notes that this plan has an effect of retention for a partition.
    pub fn note_retention(&mut self, plan: u64, id: PartitionId) {
        self.retained.insert(id, plan);
    }

    /// Whether an effect of retention is in flight for a partition.
    pub fn has_retention(&self, id: PartitionId) -> bool {
        self.retained.contains_key(&id)
    }

    /// A partition's end.
    pub fn tip(&self, state: &State, id: PartitionId) -> Option<Tip> {
        if let Some(tagged) = self.tips.get(&id) {
            return Some(tagged.value);
        }
        let row = state.partition(id)?;
        Some(Tip { last_offset: row.last_offset, last_created: row.last_created })
    }

    /// Notes a partition's end after this plan.
    pub fn put_tip(&mut self, plan: u64, id: PartitionId, tip: Tip) {
        self.tips.insert(id, Tagged { plan, value: tip });
    }

    /// Where a registered group starts.
    pub fn subscription(
        &self,
        state: &State,
        tenant: Tenant,
        queue: &str,
        group: &str,
    ) -> Option<Subscription> {
        self.registration(state, tenant, queue, group).map(|registration| registration.start)
    }

    /// Whether a group is registered, and how.
    pub fn registration(
        &self,
        state: &State,
        tenant: Tenant,
        queue: &str,
        group: &str,
    ) -> Option<Registration> {
        if !self.groups.is_empty()
            && let Some(tagged) = self.groups.get(&(tenant, Arc::from(queue), Arc::from(group)))
        {
            return tagged.value;
        }
        if !self.queues.is_empty()
            && let Some(tagged) = self.queues.get(&(tenant, Arc::from(queue)))
            && tagged.value.as_ref().is_none_or(|(view, _)| view.in_flight)
        {
            return None;
        }
        let found = state.queue(tenant, queue)?.group(group)?.subscription.as_ref()?;
        let start = match found.mode {
            queen_model::SubscriptionMode::All => Subscription::All,
            _ => Subscription::From(found.subscribe_at),
        };
        Some(Registration { start, conflation: found.conflation })
    }

    /// Notes a group's registration after this plan; `None` for a deleted one.
    pub fn put_registration(
        &mut self,
        plan: u64,
        tenant: Tenant,
        queue: &str,
        group: &str,
        registration: Option<Registration>,
    ) {
        let key = (tenant, queue.into(), group.into());
        self.groups.insert(key, Tagged { plan, value: registration });
    }

    /// Notes that this plan deletes a group's rows.
    pub fn delete_group(&mut self, plan: u64, tenant: Tenant, queue: &str, group: &str) {
        self.deleted_groups.insert((tenant, queue.into(), group.into()), plan);
    }

    /// Whether a group's applied rows are deleted in flight.
    pub fn is_group_deleted(&self, tenant: Tenant, queue: &str, group: &str) -> bool {
        !self.deleted_groups.is_empty()
            && self.deleted_groups.contains_key(&(tenant, Arc::from(queue), Arc::from(group)))
    }

    /// Notes that this plan removes a dead letter.
    pub fn remove_letter(&mut self, plan: u64, id: Uuid) {
        self.letters_gone.insert(id, plan);
    }

    /// Whether a dead letter of the applied state is removed in flight.
    pub fn is_letter_gone(&self, id: Uuid) -> bool {
        self.letters_gone.contains_key(&id)
    }

    /// The message in flight, or just applied, that has this hash.
    pub fn original(&self, id: PartitionId, hash: TxHash) -> Option<Original> {
        self.hashes.get(&(id, hash)).copied()
    }

    /// Notes the hashes of an append of this plan. What was appended before under one of them is outside the window, or
    /// this would be its duplicate: from now on the later one is the original.
    pub fn put_hashes(
        &mut self,
        plan: u64,
        id: PartitionId,
        hashes: impl Iterator<Item = (TxHash, Original)>,
    ) {
        let mut added = Vec::new();
        for (hash, original) in hashes {
            self.hashes.insert((id, hash), original);
            added.push((id, hash, original.created));
        }
        match self.appended.back_mut() {
            Some((last, list)) if *last == plan => list.append(&mut added),
            _ => self.appended.push_back((plan, added)),
        }
    }

    /// Forgets what plans up to `plan` noted: they are applied.
    pub fn retire(&mut self, plan: u64) {
        self.queues.retain(|_, tagged| tagged.plan > plan);
        self.partitions.retain(|_, tagged| tagged.plan > plan);
        self.tips.retain(|_, tagged| tagged.plan > plan);
        self.groups.retain(|_, tagged| tagged.plan > plan);
        self.deleted_groups.retain(|_, deleted| *deleted > plan);
        self.letters_gone.retain(|_, removed| *removed > plan);
        self.partitions_gone.retain(|_, removed| *removed > plan);
        self.retained.retain(|_, moved| *moved > plan);
        if self.partitions.capacity() > 16_384 {
            self.partitions.shrink_to_fit();
        }
        if self.tips.capacity() > 16_384 {
            self.tips.shrink_to_fit();
        }
    }

    /// Forgets the hashes of plans up to `plan`: every question to the log under way was asked after they could be
    /// read there. Each is handed to `stored`, once, for the filter.
    pub fn retire_hashes(
        &mut self,
        plan: u64,
        mut stored: impl FnMut(u64, PartitionId, TxHash, Micros),
    ) {
        while let Some((first, _)) = self.appended.front()
            && *first <= plan
            && let Some((plan, list)) = self.appended.pop_front()
        {
            for (id, hash, created) in list {
                stored(plan, id, hash, created);
                let is_latest =
                    self.hashes.get(&(id, hash)).is_some_and(|latest| latest.created == created);
                if is_latest {
                    self.hashes.remove(&(id, hash));
                }
            }
        }
        if self.hashes.capacity() > 16_384 && self.hashes.len() < self.hashes.capacity() / 8 {
            self.hashes.shrink_to_fit();
        }
    }
}
