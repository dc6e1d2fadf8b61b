//! The library's own suite over the log, on real files; what it does not ask: a restart.

use futures_util::{Stream, StreamExt};
use openraft::StorageError;
use openraft::storage::{EntryResponder, RaftLogStorageExt, RaftStateMachine};
use openraft::testing::log::{StoreBuilder, Suite};
use openraft::type_config::alias::{SnapshotMetaOf, SnapshotOf};
use queen_io::RealDisk;
use queen_qlog::{DurablePoint, Options};
use queen_record::ids::{PartitionId, QueueId};
use tempfile::TempDir;

use super::super::snapshot::Head;
use super::super::snapshot::swap::Pending;
use super::super::types::{Done, StoredMembership};
use super::super::wire::Wire;
use super::*;

/// Nobody owns anything: the suite's entries change nothing.
struct Nobody;

impl Owners for Nobody {
    fn queue_of(&self, _: PartitionId) -> Option<QueueId> {
        None
    }

    fn applied(&self) -> EntryIndex {
        EntryIndex(0)
    }
}

/// Remembers what was applied, as the suite wants it of a state machine.
#[derive(Default)]
struct Fake {
    applied: Option<LogId>,
    membership: StoredMembership,
    snapshot: Option<SnapshotMetaOf<Types>>,
}

impl RaftStateMachine<Types> for Fake {
    type SnapshotData = ();
    type SnapshotBuilder = Built;

    async fn applied_state(&mut self) -> io::Result<(Option<LogId>, StoredMembership)> {
        Ok((self.applied, self.membership.clone()))
    }

    async fn apply<S>(&mut self, mut entries: S) -> io::Result<()>
    where
        S: Stream<Item = io::Result<EntryResponder<Types>>> + Unpin + Send,
    {
        while let Some(item) = entries.next().await {
            let (entry, responder) = item?;
            self.applied = Some(entry.log_id);
            if let Payload::Membership(membership) = entry.payload {
                self.membership = StoredMembership::new(Some(entry.log_id), membership);
            }
            if let Some(responder) = responder {
                responder.send(Done);
            }
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> Built {
        let meta = SnapshotMetaOf::<Types> {
            last_log_id: self.applied,
            last_membership: self.membership.clone(),
        };
        self.snapshot = Some(meta.clone());
        Built(meta)
    }

    async fn install_snapshot(&mut self, meta: &SnapshotMetaOf<Types>, (): ()) -> io::Result<()> {
        self.applied = meta.last_log_id;
        self.membership = meta.last_membership.clone();
        self.snapshot = Some(meta.clone());
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<SnapshotOf<Types, ()>>> {
        let of = |meta| SnapshotOf::<Types, ()> { meta, snapshot: () };
        Ok(self.snapshot.clone().map(of))
    }
}

struct Built(SnapshotMetaOf<Types>);

impl openraft::RaftSnapshotBuilder<Types> for Built {
    type SnapshotData = ();

    async fn build_snapshot(&mut self) -> io::Result<SnapshotOf<Types, ()>> {
        Ok(SnapshotOf::<Types, ()> { meta: self.0.clone(), snapshot: () })
    }
}

/// A log over the files of a directory, as a start opens it.
fn open(dir: &std::path::Path) -> Store {
    open_with(dir, |reason| panic!("{reason}"))
}

fn open_with(dir: &std::path::Path, failed: impl Fn(String) + Send + Sync + 'static) -> Store {
    let disk: Arc<dyn queen_io::Disk> = Arc::new(RealDisk);
    let options = Options { fsync_threads: 0, ..Options::new(dir.join("qlog")) };
    let (qlog, recovery) = Qlog::open(disk.clone(), options, &DurablePoint::default()).unwrap();
    let found = crate::examine(recovery).unwrap();
    let term = found.last_term.unwrap_or_default();
    let last = raft_index(found.cut.last).map(|index| log_id(term, index));
    let files = Files::open(disk, dir).unwrap();
    let owners = Box::new(Nobody);
    let failed = Box::new(failed);
    let parts = StoreParts {
        files,
        qlog,
        node: 1,
        last,
        durable: None,
        owners,
        made: found.made,
        cache_bytes_max: 300,
        draw: Arc::new(|| 7),
        failed,
    };
    let (store, writer) = Store::open(parts).unwrap();
    std::thread::spawn(move || writer.run());
    store
}

struct Builder;

impl StoreBuilder<Types, Store, Fake, TempDir> for Builder {
    async fn build(&self) -> Result<(TempDir, Store, Fake), StorageError<Types>> {
        let dir = TempDir::new().unwrap();
        let store = open(dir.path());
        Ok((dir, store, Fake::default()))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_suite_of_the_library() {
    Suite::test_all(Builder).await.unwrap();
}

fn blank(term: u64, index: u64) -> LogEntry {
    LogEntry::new(log_id(term, index), Payload::Blank)
}

async fn append(store: &mut Store, entries: Vec<LogEntry>) {
    store.blocking_append(entries).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_finds_what_was_flushed() {
    let dir = TempDir::new().unwrap();
    let mut store = open(dir.path());
    store.save_vote(&Vote::new_committed(2, 1)).await.unwrap();
    append(&mut store, vec![blank(1, 0), blank(1, 1), blank(2, 2), blank(2, 3)]).await;
    store.save_committed(Some(log_id(2, 2))).await.unwrap();
    store.truncate_after(Some(log_id(2, 2))).await.unwrap();
    append(&mut store, vec![blank(3, 3), blank(3, 4)]).await;
    drop(store);

    let mut store = open(dir.path());
    let state = store.get_log_state().await.unwrap();
    assert_eq!(state.last_log_id, Some(log_id(3, 4)));
    assert_eq!(store.read_committed().await.unwrap(), Some(log_id(2, 2)));
    let mut reader = store.get_log_reader().await;
    assert_eq!(reader.read_vote().await.unwrap(), Some(Vote::new_committed(2, 1)));
    let entries = reader.try_get_log_entries(0..10).await.unwrap();
    let ids: Vec<_> =
        entries.iter().map(|entry| (entry.log_id.leader_id.term, entry.log_id.index)).collect();
    assert_eq!(ids, [(1, 0), (1, 1), (2, 2), (3, 3), (3, 4)]);
    let keys = reader.get_key_log_ids(log_id(1, 0)..=log_id(3, 4)).await.unwrap();
    assert_eq!(keys, [log_id(1, 1), log_id(2, 2), log_id(3, 4)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_carried_out_is_never_removed() {
    let dir = TempDir::new().unwrap();
    let told = Arc::new(Mutex::new(Vec::new()));
    let mut store = open_with(dir.path(), {
        let told = told.clone();
        move |reason| told.lock().push(reason)
    });
    append(&mut store, vec![blank(1, 0), blank(1, 1), blank(1, 2), blank(1, 3)]).await;
    store.shared.applied.send_replace(EntryIndex(3));
    // The entries above the third are nobody's yet.
    store.truncate_after(Some(log_id(1, 2))).await.unwrap();
    assert!(told.lock().is_empty());
    // A leader on an older copy of its disk asks for this.
    store.truncate_after(Some(log_id(1, 1))).await.unwrap_err();
    // The writer lets go of the order before it says why.
    while told.lock().is_empty() {
        tokio::task::yield_now().await;
    }
    let told = told.lock().clone();
    assert!(told.len() == 1 && told[0].contains("other entries above 2"), "{told:?}");
    drop(store);
    let mut store = open(dir.path());
    let state = store.get_log_state().await.unwrap();
    assert_eq!(state.last_log_id, Some(log_id(1, 2)));
}

fn snapshot(term: u64, index: u64) -> Box<Pending> {
    let head = Head {
        vote: Vote::new_committed(9, 1),
        covers: log_id(term, index),
        membership: StoredMembership::default(),
        bytes: 0,
    };
    Box::new(Pending::of(&head, "recv-1".to_owned()))
}

async fn stage(store: &Store, term: u64, index: u64) -> bool {
    let (done, decided) = oneshot::channel();
    assert!(store.orders().send(Order::Stage(snapshot(term, index), done)));
    decided.await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_is_staged_unless_the_log_holds_it_and_nothing_is_written_behind_it() {
    let dir = TempDir::new().unwrap();
    let mut store = open(dir.path());
    let marker = dir.path().join("snapshot.pending");
    append(&mut store, vec![blank(1, 0), blank(1, 1), blank(2, 2), blank(2, 3)]).await;
    for (term, index) in [(1, 0), (1, 1), (2, 2), (2, 3)] {
        assert!(!stage(&store, term, index).await, "entry {index} of term {term} is there");
        assert!(!marker.exists());
    }
    // The log has another entry in its place.
    assert!(stage(&store, 3, 3).await);
    assert!(marker.exists());
    assert!(store.shared().is_staged.load(Ordering::Acquire));
    assert!(store.blocking_append([blank(4, 4)]).await.is_err());
    assert!(store.save_vote(&Vote::new(10, 1)).await.is_err());
}

#[test]
fn the_head_of_a_snapshot_reads_back_and_its_pieces_do_not() {
    let nodes: std::collections::BTreeMap<_, _> = [(1, crate::Member::default())].into();
    let membership = super::super::types::Membership::new(vec![[1].into()], nodes).unwrap();
    let head = Head {
        vote: Vote::new_committed(9, 1),
        covers: log_id(3, 7),
        membership: StoredMembership::new(Some(log_id(1, 0)), membership),
        bytes: 70_000,
    };
    let mut bytes = Vec::new();
    head.put(&mut bytes);
    assert_eq!(Head::decode(Bytes::copy_from_slice(&bytes)), Ok(head));
    for end in 0..bytes.len() {
        assert!(Head::decode(Bytes::copy_from_slice(&bytes[..end])).is_err(), "{end} bytes");
    }
}

/// A partition that an entry of the log made is known after a restart too, before that entry is applied.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_knows_the_partitions_of_what_is_not_applied() {
    let dir = TempDir::new().unwrap();
    let first = crate::cluster::wire::tests::command();
    let mut next = (*first.0).clone();
    next.pid_base = PartitionId(8);
    next.effects.retain(|effect| matches!(effect, queen_model::Effect::Append(_)));
    for effect in &mut next.effects {
        if let queen_model::Effect::Append(append) = effect {
            append.base.0 += 4;
        }
    }
    next.commands[0].effect_count = 2;
    let mut store = open(dir.path());
    append(&mut store, vec![LogEntry::new(log_id(1, 0), Payload::Normal(first.clone()))]).await;
    drop(store);

    let next = Command(Arc::new(next));
    let mut store = open(dir.path());
    append(&mut store, vec![LogEntry::new(log_id(1, 1), Payload::Normal(next.clone()))]).await;
    drop(store);

    let mut store = open(dir.path());
    let entries = store.get_log_reader().await.try_get_log_entries(..).await.unwrap();
    assert_eq!(entries.len(), 2);
    assert_eq!(entries[0].payload, Payload::Normal(first));
    assert_eq!(entries[1].payload, Payload::Normal(next));
}
