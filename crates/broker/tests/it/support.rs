//! A node over a simulated disk, and short forms of its calls.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use metrics::NoopRecorder;
use queen_broker::api::{
    AckAnswer, AckItem, AckStatus, Api, CallError, PopAnswer, PopRequest, PopTarget, PushAnswer,
    PushBatch, PushItem, PushStatus, QUEUE_MODE, Subscribe,
};
use queen_broker::cipher::EncryptionKey;
use queen_broker::cycle::CycleLimits;
use queen_broker::prepare::MintIds;
use queen_broker::{
    Broker, BrokerOptions, Node, NodeOptions, NodeParts, RetentionOptions, ScrubPace, SpaceLimits,
    StartError, StoreScrubPace,
};
use queen_io::{Clock, Disk, ManualClock, SimDisk};
use queen_model::{OptionsPatch, Patch};
use queen_record::ids::{Micros, PartitionId, Tenant, Uuid};
use queen_record::layout::Shards;
use queen_store::DiskStore;

pub(crate) const T: Tenant = Tenant::DEFAULT;
pub(crate) const DEADLINE: Duration = Duration::from_secs(20);

pub(crate) struct Rig {
    pub(crate) disk: SimDisk,
    pub(crate) clock: Arc<ManualClock>,
    ids: Option<Arc<dyn MintIds>>,
    /// For the next start.
    pub(crate) key: Option<EncryptionKey>,
    shards: Shards,
    /// For the next start.
    pub(crate) retention: Option<RetentionOptions>,
    /// For the next start.
    pub(crate) cycle: CycleLimits,
    node: Option<Node>,
}

impl Rig {
    pub(crate) fn new() -> Self {
        Self::with(Arc::new(ManualClock::new(1_800_000_000_000_000)), None)
    }

    pub(crate) fn with(clock: Arc<ManualClock>, ids: Option<Arc<dyn MintIds>>) -> Self {
        let disk = SimDisk::new();
        disk.create_dir(&dir()).unwrap();
        let mut rig = Self::stopped(disk, clock, ids, None);
        rig.restart();
        rig
    }

    /// A node whose queues share their logs.
    pub(crate) fn with_shards(shards: Shards) -> Self {
        let mut rig = Self::new();
        rig.stop();
        rig.disk = SimDisk::new();
        rig.disk.create_dir(&dir()).unwrap();
        rig.shards = shards;
        rig.restart();
        rig
    }

    /// A node that encrypts.
    pub(crate) fn with_key(key: EncryptionKey) -> Self {
        let mut rig = Self::new();
        rig.start_with(Some(key));
        rig
    }

    /// What another rig would be on this disk; not started.
    pub(crate) fn over(disk: SimDisk, like: &Self) -> Self {
        let (clock, ids, key) = (like.clock.clone(), like.ids.clone(), like.key.clone());
        Self { shards: like.shards, ..Self::stopped(disk, clock, ids, key) }
    }

    fn stopped(
        disk: SimDisk,
        clock: Arc<ManualClock>,
        ids: Option<Arc<dyn MintIds>>,
        key: Option<EncryptionKey>,
    ) -> Self {
        let cycle = CycleLimits::default();
        let shards = Shards::None;
        Self { disk, clock, ids, key, shards, retention: None, cycle, node: None }
    }

    /// A node that removes what is too old.
    pub(crate) fn with_retention(appends_max: usize, cycle: CycleLimits) -> Self {
        let mut rig = Self::new();
        let interval = Duration::from_millis(1);
        rig.retention =
            Some(RetentionOptions { interval, partitions_per_s: 1_000_000, appends_max });
        rig.cycle = cycle;
        rig.restart();
        rig
    }

    /// Stops in order and starts again with this key.
    pub(crate) fn start_with(&mut self, key: Option<EncryptionKey>) {
        self.key = key;
        self.restart();
    }

    /// Opens the directory once more.
    pub(crate) fn start_again(&self) -> Result<Node, StartError> {
        let disk: Arc<dyn Disk> = Arc::new(self.disk.clone());
        let store = Box::new(DiskStore::open(disk.clone(), &dir().join("store")).unwrap());
        let clock: Arc<dyn Clock> = self.clock.clone();
        let parts = NodeParts { disk, clock, store, ids: self.ids.clone() };
        let (key, retention, cycle) = (self.key.clone(), self.retention, self.cycle);
        let options = NodeOptions { encryption_key: key, retention, cycle, ..options(self.shards) };
        Node::open(&options, parts, &NoopRecorder)
    }

    /// Stops in order.
    pub(crate) fn stop(&mut self) {
        if let Some(node) = self.node.take() {
            node.stop().unwrap();
        }
    }

    /// Stops in order and starts again on the same disk.
    pub(crate) fn restart(&mut self) {
        self.stop();
        self.node = Some(self.start_again().unwrap());
    }

    pub(crate) fn api(&self) -> Arc<Broker> {
        self.node.as_ref().unwrap().api()
    }

    pub(crate) fn clock_now(&self) -> Micros {
        Micros(self.clock.wall_us())
    }

    pub(crate) fn advance_seconds(&self, seconds: i64) {
        self.clock.advance_us(seconds * 1_000_000);
    }

    /// Pushes ids to one partition; each answer as its status.
    pub(crate) async fn push(&self, queue: &str, partition: &str, ids: &[&str]) -> Vec<PushAnswer> {
        let payloads: Vec<String> = ids.iter().map(|id| format!("{{\"id\":\"{id}\"}}")).collect();
        let items: Vec<_> = ids.iter().copied().zip(payloads.iter().map(|text| &**text)).collect();
        self.push_payloads(queue, partition, &items).await
    }

    /// Pushes ids with their payloads to one partition.
    pub(crate) async fn push_payloads(
        &self,
        queue: &str,
        partition: &str,
        items: &[(impl AsRef<str>, impl AsRef<str>)],
    ) -> Vec<PushAnswer> {
        let items: Vec<PushItem<'_>> = items
            .iter()
            .map(|(id, payload)| PushItem {
                queue,
                partition,
                transaction_id: Some(id.as_ref()),
                payload: payload.as_ref().as_bytes(),
                producer_sub: None,
                trace_id: None,
            })
            .collect();
        self.api().push(T, PushBatch::Items(&items), DEADLINE).await.unwrap()
    }

    pub(crate) async fn pop(&self, queue: &str, group: &str, batch: u32) -> PopAnswer {
        self.api().pop(pop(queue, group, batch)).await.unwrap()
    }

    pub(crate) async fn ack(
        &self,
        group: &str,
        lease: Option<Uuid>,
        partition: PartitionId,
        items: &[(&str, AckStatus)],
    ) -> Vec<AckAnswer> {
        let items = items
            .iter()
            .map(|(id, status)| AckItem {
                transaction_id: (*id).to_owned(),
                partition_id: Some(partition),
                lease: lease.map(|lease| lease.to_string()),
                status: *status,
                error: Some("boom".to_owned()),
            })
            .collect();
        self.api().ack(T, group.to_owned(), items, DEADLINE).await.unwrap()
    }

    pub(crate) async fn configure(&self, queue: &str, patch: OptionsPatch) {
        let call = self.api().configure(T, queue.to_owned(), patch, false, DEADLINE).await;
        call.unwrap();
    }

    pub(crate) async fn delete_queue(&self, queue: &str) -> Result<bool, CallError> {
        self.api().delete_queue(T, queue.to_owned(), DEADLINE).await
    }
}

pub(crate) fn dir() -> PathBuf {
    PathBuf::from("/data")
}

fn options(shards: Shards) -> NodeOptions {
    NodeOptions {
        reclaim: queen_reclaim::Options::new(64 << 20),
        dir: dir(),
        encryption_key: None,
        qlog: queen_qlog::Options {
            segment_bytes: 16 * 1024,
            shards,
            ..queen_qlog::Options::new(dir().join("qlog"))
        },
        cycle: CycleLimits::default(),
        retention: None,
        broker: BrokerOptions {
            zstd_level: 1,
            admit_bytes_max: 0,
            admit_hold: Duration::from_secs(1),
        },
        commands_max: 1000,
        durable_every: Duration::from_millis(5),
        durable_every_bytes: 1 << 20,
        lookup_threads: 1,
        scrub: ScrubPace::default(),
        store_scrub: StoreScrubPace::default(),
        space: SpaceLimits::default(),
        cluster: None,
    }
}

pub(crate) fn pop(queue: &str, group: &str, batch: u32) -> PopRequest {
    PopRequest {
        tenant: T,
        target: PopTarget::Queue(queue.to_owned()),
        group: group.to_owned(),
        batch: Some(batch),
        partitions: Some(1),
        autopilot: false,
        wait: false,
        timeout: Duration::from_secs(20),
        lease_seconds: None,
        commit_on_delivery: false,
        subscribe: Subscribe::All,
        conflation: None,
        frames: false,
    }
}

pub(crate) fn set<T>(value: T) -> Patch<T> {
    Patch::Set(value)
}

pub(crate) fn queue_mode() -> &'static str {
    QUEUE_MODE
}

/// The transactionIds of an answer.
pub(crate) fn ids(answer: &PopAnswer) -> Vec<String> {
    let messages = answer.claims.iter().flat_map(|claim| &claim.messages);
    messages.map(|message| String::from_utf8(message.transaction_id.to_vec()).unwrap()).collect()
}

/// The statuses of a push as (queued?, offset).
pub(crate) fn statuses(answers: &[PushAnswer]) -> Vec<(bool, u64)> {
    answers
        .iter()
        .map(|answer| match &answer.status {
            PushStatus::Queued(offset) => (true, offset.0),
            PushStatus::Duplicate(offset) => (false, offset.0),
            PushStatus::Refused(refusal) => panic!("{refusal}"),
        })
        .collect()
}
