//! The directory: two logs with a sealed and an active file each, an entry over both, a compressed record, two
//! checkpoints, and entries above the last.

use std::path::Path;
use std::sync::Arc;

use queen_broker::api::AckStatus;
use queen_broker::cipher::{EncryptionKey, fingerprint};
use queen_doctor::StoreKind;
use queen_io::SimDisk;
use queen_model::{OptionsPatch, Patch};
use queen_record::layout::Shards;
use queen_state::Keyspace;
use queen_store::{Change, Checkpoint, DiskStore, LmdbOptions, LmdbStore};

use super::{Directory, Files};
use crate::client::{Client, Item};
use crate::history::History;
use crate::node::{DATA, EPOCH, Setup, SimNode, Start, new_disk, open};
use crate::rng::Rng;

/// Bytes of the whole directory at most.
pub const BYTES_MAX: usize = 64 << 10;

/// Layouts of the directory.
pub const LAYOUTS: [(&str, Shards); 2] = [("queues", Shards::None), ("shards", Shards::Count(2))];

/// Writes the directory of a layout.
///
/// # Errors
/// When the run itself goes wrong, or does not reach what it should.
pub fn plain(shards: Shards, seed: u64) -> Result<Directory, String> {
    let setup = Setup { segment_bytes: 1024, lanes: 1, shards, prealloc_kb: 0, precreate: true };
    let disk = new_disk();
    let key = EncryptionKey::parse(&"5a".repeat(32)).map_err(|error| error.to_string())?;
    fingerprint::keep(&disk, Path::new(DATA), &key, fingerprint::Found::Nothing)
        .map_err(|error| error.to_string())?;
    let bare = open(&disk, &setup)?;
    let mut node = SimNode::start(&disk, bare, Start { now: EPOCH, seed }, History::new())?;
    let mut script = Script { client: Client::default(), rng: Rng::new(seed), numbers: 0 };
    script.first(&mut node)?;
    let old = files(&disk);
    script.second(&mut node)?;
    let durable = node.applied();
    script.above(&mut node)?;
    let last = node.applied();
    let files = files(&disk);
    let directory = Directory {
        setup,
        store: StoreKind::Plain,
        files,
        old,
        last,
        durable,
        now: node.now() + 1_000_000,
        key,
        history: node.history,
    };
    check(&directory)?;
    Ok(directory)
}

/// The same directory with its checkpoint in an LMDB file. It is made by LMDB itself, in a temporary directory.
///
/// # Errors
/// When LMDB or the temporary directory fails.
pub fn lmdb(plain: &Directory) -> Result<Directory, String> {
    let root = tempfile::tempdir().map_err(|error| error.to_string())?;
    let dir = root.path().join("store");
    let options = LmdbOptions { map_bytes: 1 << 24, headroom_bytes: 1 << 20 };
    let path = dir.join("data.mdb");
    let read = || std::fs::read(&path).map(Arc::from).map_err(|error| error.to_string());
    let mut store = LmdbStore::open(&dir, options).map_err(|error| error.to_string())?;
    let mut images: Vec<Arc<[u8]>> = Vec::new();
    let mut before = Rows::new();
    for files in [&plain.old, &plain.files] {
        let rows = rows(files)?;
        let gone = before.iter().filter(|(place, _)| !rows.contains_key(*place));
        let gone = gone.map(|(place, _)| (place.clone(), None));
        let put = rows.iter().filter(|(place, value)| before.get(*place) != Some(*value));
        let put = put.map(|(place, value)| (place.clone(), Some(value.clone())));
        let mut changes =
            gone.chain(put).map(|((keyspace, key), value)| Change { keyspace, key, value });
        store.write(&mut changes).map_err(|error| error.to_string())?;
        images.push(read()?);
        before = rows;
    }
    let [old, new] = images.as_slice() else { return Err("two images were due".to_owned()) };
    Ok(Directory {
        setup: plain.setup,
        store: StoreKind::Lmdb,
        files: with_image(&plain.files, new),
        old: with_image(&plain.old, old),
        history: plain.history.clone(),
        last: plain.last,
        durable: plain.durable,
        now: plain.now,
        key: plain.key.clone(),
    })
}

type Rows = std::collections::BTreeMap<(Keyspace, Vec<u8>), Vec<u8>>;

/// The rows of the checkpoint among some files.
fn rows(files: &Files) -> Result<Rows, String> {
    let disk = SimDisk::new();
    for (path, bytes) in files {
        disk.set_contents(path, bytes);
    }
    let dir = Path::new(DATA).join("store");
    let mut rows = Rows::new();
    let mut store = DiskStore::open(Arc::new(disk), &dir).map_err(|error| error.to_string())?;
    let loaded = store.load(&mut |keyspace, key, value| {
        rows.insert((keyspace, key.to_vec()), value.to_vec());
        Ok(())
    });
    loaded.map(|_| rows).map_err(|error| error.to_string())
}

fn with_image(files: &Files, image: &Arc<[u8]>) -> Files {
    let dir = Path::new(DATA).join("store");
    let mut files = files.clone();
    files.retain(|path, _| !path.starts_with(&dir));
    files.insert(dir.join("data.mdb"), image.clone());
    files.insert(dir.join("lock.mdb"), Arc::from([]));
    files
}

fn files(disk: &SimDisk) -> Files {
    let contents = |path: &Path| Arc::from(disk.contents(path).unwrap_or_default());
    disk.files().into_iter().map(|(path, _)| (path.clone(), contents(&path))).collect()
}

/// That the directory has what the verification page asks for.
fn check(directory: &Directory) -> Result<(), String> {
    let records = directory.named(".qlog").count();
    let sealed = directory.named(".qidx").count();
    let bytes = directory.bytes();
    if sealed < 2 || records < sealed + 2 {
        return Err(format!("{records} record files, {sealed} of them sealed"));
    }
    if bytes > BYTES_MAX {
        return Err(format!("the directory has {bytes} bytes"));
    }
    if directory.durable >= directory.last {
        return Err("nothing is above the last checkpoint".to_owned());
    }
    Ok(())
}

struct Script {
    client: Client,
    rng: Rng,
    numbers: u64,
}

impl Script {
    fn item(&mut self, queue: &str, len: usize) -> Item {
        self.numbers += 1;
        Item {
            queue: queue.to_owned(),
            partition: format!("p{}", self.numbers % 2),
            transaction_id: format!("t-{:x}", self.numbers),
            payload: self.rng.bytes(len),
        }
    }

    fn push(&mut self, node: &mut SimNode, items: Vec<Item>) -> Result<(), String> {
        self.client.push(node, items)?;
        self.client.settle(node)
    }

    fn checkpoint(node: &mut SimNode) -> Result<(), String> {
        while node.background()? {}
        node.begin_checkpoint();
        node.write_checkpoint()
    }

    /// A sealed file of the first log, a compressed record, an entry over both.
    fn first(&mut self, node: &mut SimNode) -> Result<(), String> {
        let patch = OptionsPatch { lease_time: Patch::Set(30), ..OptionsPatch::default() };
        self.client.configure(node, "orders", patch);
        self.client.settle(node)?;
        let items = vec![self.item("orders", 20), self.item("mail", 30), self.item("orders", 9)];
        self.push(node, items)?;
        let mut text = self.item("orders", 0);
        text.payload = b"{\"n\":12345678}".repeat(60);
        self.push(node, vec![text])?;
        let items = vec![self.item("orders", 400), self.item("mail", 250)];
        self.push(node, items)?;
        Self::checkpoint(node)
    }

    /// The second sealed file, a cursor, a lease, a dead letter.
    fn second(&mut self, node: &mut SimNode) -> Result<(), String> {
        for len in [300, 40, 380] {
            let items = vec![self.item("orders", len / 4), self.item("mail", len)];
            self.push(node, items)?;
        }
        self.client.pop(node, "orders", "g1", 2);
        self.client.settle(node)?;
        self.client.ack(node, &[AckStatus::Completed, AckStatus::DeadLetter]);
        self.client.settle(node)?;
        let items = vec![self.item("mail", 60)];
        self.push(node, items)?;
        Self::checkpoint(node)
    }

    /// Entries that only the logs hold.
    fn above(&mut self, node: &mut SimNode) -> Result<(), String> {
        let item = self.item("orders", 25);
        self.push(node, vec![item])?;
        let items = vec![self.item("mail", 45), self.item("orders", 30)];
        self.push(node, items)?;
        self.client.pop(node, "mail", "g1", 1);
        self.client.settle(node)?;
        let item = self.item("orders", 50);
        self.push(node, vec![item])
    }
}
