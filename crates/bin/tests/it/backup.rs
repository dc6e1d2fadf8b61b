//! `queen backup` and `queen restore` on real directories, of a node that is at work all the while.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::program::{Program, call_at};
use crate::{queen, text};

/// Small files and a point every few milliseconds: everything happens during a backup.
const BUSY: [(&str, &str); 4] = [
    ("QUEEN_RAFT_SEGMENT_BYTES", "65536"),
    ("QUEEN_RAFT_DURABLE_EVERY_MS", "20"),
    ("RETENTION_INTERVAL", "100"),
    ("QUEEN_RAFT_TXN_WINDOW_MIN_S", "1"),
];

pub(crate) fn to(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Letters that do not repeat.
pub(crate) fn noise(seed: u32, len: u32) -> String {
    let letter = |at: u32| {
        let mixed =
            (seed.wrapping_mul(2_654_435_761) ^ at.wrapping_mul(0x9E37_79B9)).rotate_left(13);
        char::from_digit(mixed.wrapping_mul(0x85EB_CA6B) >> 16 & 31, 36).unwrap()
    };
    (0..len).map(letter).collect()
}

fn push(node: &str, queue: &str, partition: u32, id: &str, text: &str) {
    let item = format!(
        r#"{{"items":[{{"queue":"{queue}","partition":"p{partition}","transactionId":"{id}","payload":{{"text":"{text}"}}}}]}}"#
    );
    let (status, answer) = call_at(node, "", ("POST", "/api/v1/push", &item));
    assert!(status == 201 && answer.contains("\"queued\""), "{status} {answer}");
}

/// Every transactionId of a queue.
fn all_ids(node: &Program, queue: &str) -> BTreeSet<String> {
    let path = format!(
        "/api/v1/pop/queue/{queue}?batch=500&partitions=64&consumerGroup=check&subscriptionMode=all&commitOnDelivery=true"
    );
    let mut ids = BTreeSet::new();
    loop {
        let (status, answer) = node.call("GET", &path, "");
        if status == 204 {
            return ids;
        }
        assert_eq!(status, 200, "{answer}");
        let found = answer.split("\"transactionId\":\"").skip(1);
        ids.extend(found.map(|rest| rest.split('"').next().unwrap().to_owned()));
    }
}

/// A node with pushes to queues of both kinds: `kept` and `aging`, whose messages go after a second.
struct Load {
    node: String,
    stop: AtomicBool,
    answered: Mutex<BTreeSet<String>>,
}

impl Load {
    fn new(node: &Program) -> Self {
        let options = r#"{"queue":"aging","options":{"retentionEnabled":true,"retentionSeconds":1,"dedupWindowSeconds":1}}"#;
        node.ask("POST", "/api/v1/configure", options);
        let node = node.address().to_owned();
        Self { node, stop: AtomicBool::new(false), answered: Mutex::default() }
    }

    fn pusher(&self, name: u32) {
        let mut n = 0;
        while !self.stop.load(Ordering::SeqCst) {
            let id = format!("{name}-{n}");
            push(&self.node, "kept", n % 7, &id, &noise(n, 900));
            self.answered.lock().unwrap().insert(id.clone());
            push(&self.node, "aging", n % 3, &id, &noise(n + 7, 6000));
            n += 1;
        }
    }

    /// What was answered before now.
    fn so_far(&self) -> BTreeSet<String> {
        self.answered.lock().unwrap().clone()
    }

    /// Runs `work` while two clients push, once reclaim has begun to remove files.
    fn during(&self, work: impl FnOnce()) {
        std::thread::scope(|scope| {
            for name in 0..2 {
                scope.spawn(move || self.pusher(name));
            }
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
            self.stop.store(true, Ordering::SeqCst);
            if let Err(panic) = result {
                std::panic::resume_unwind(panic);
            }
        });
    }
}

fn wait_until_reclaimed(dir: &Path) {
    while !dir.join("qlog/RECLAIMED").exists() {
        std::thread::yield_now();
    }
}

fn clean(dir: &Path) {
    let output = queen(&["doctor", to(dir)], &[]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}

#[test]
fn a_node_under_load_is_backed_up_and_restored_with_everything_answered_before() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("data");
    let node = Program::start(&dir, &BUSY).unwrap();
    let load = Load::new(&node);
    let url = format!("http://{}", node.address());
    let backups: Mutex<Vec<(PathBuf, BTreeSet<String>)>> = Mutex::default();
    load.during(|| {
        wait_until_reclaimed(&dir);
        for name in ["one.tar", "two", "three.tar"] {
            let path = root.path().join(name);
            let before = load.so_far();
            let output = queen(&["backup", "--url", &url, "--to", to(&path)], &[]);
            assert!(output.status.success(), "{output:?}");
            assert!(text(&output.stdout).contains("everything up to entry"), "{output:?}");
            backups.lock().unwrap().push((path, before));
        }
    });
    for (number, (path, before)) in backups.into_inner().unwrap().into_iter().enumerate() {
        assert!(!before.is_empty());
        let copy = root.path().join(format!("copy-{number}"));
        let output = queen(&["restore", "--from", to(&path), "--to", to(&copy)], &[]);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        assert!(text(&output.stdout).contains("a node would start"), "{output:?}");
        clean(&copy);
        let restored = Program::start(&copy, &BUSY).unwrap();
        let found = all_ids(&restored, "kept");
        let lost: Vec<_> = before.difference(&found).collect();
        assert!(lost.is_empty(), "{lost:?} of {}", path.display());
        push(restored.address(), "kept", 0, "goes on", "x");
        assert!(restored.stop().0.success());
    }
    // Nothing is left of them, and the node is none the worse.
    assert_eq!(all_ids(&node, "kept"), load.so_far());
    assert!(node.stop().0.success());
    assert!(!dir.join("backup.staging").exists());
    clean(&dir);
}

fn small_node(dir: &Path) -> Program {
    let node = Program::start(dir, &[]).unwrap();
    for n in 0..30 {
        push(node.address(), "orders", 0, &n.to_string(), &noise(n, 20_000));
    }
    node
}

#[test]
fn a_backup_goes_through_a_pipe_and_names_that_are_taken_stay_as_they_are() {
    let root = tempfile::tempdir().unwrap();
    let node = small_node(&root.path().join("data"));
    let url = format!("http://{}", node.address());
    let backup = |to: &str| queen(&["backup", "--url", &url, "--to", to], &[]);
    let piped = backup("-");
    assert!(piped.status.success(), "{}", text(&piped.stderr));
    let file = root.path().join("b.tar");
    std::fs::write(&file, &piped.stdout).unwrap();
    let again = backup(to(&file));
    assert_eq!(again.status.code(), Some(1));
    assert!(text(&again.stderr).contains("is there already"), "{again:?}");
    assert_eq!(std::fs::read(&file).unwrap(), piped.stdout);
    let copy = root.path().join("copy");
    std::fs::create_dir(&copy).unwrap();
    std::fs::write(copy.join("x"), b"").unwrap();
    let restore = || queen(&["restore", "--from", to(&file), "--to", to(&copy)], &[]);
    assert!(text(&restore().stderr).contains("is not empty"));
    std::fs::remove_file(copy.join("x")).unwrap();
    let output = restore();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let restored = Program::start(&copy, &[]).unwrap();
    assert_eq!(all_ids(&restored, "orders").len(), 30);
    // The node of another token, or none at all.
    let nobody = queen(&["backup", "--url", "http://127.0.0.1:1", "--to", "-"], &[]);
    assert_eq!(nobody.status.code(), Some(1));
}

#[test]
fn a_cut_or_changed_backup_is_refused_and_an_interrupted_restore_goes_on() {
    let root = tempfile::tempdir().unwrap();
    let node = small_node(&root.path().join("data"));
    let url = format!("http://{}", node.address());
    let file = root.path().join("b.tar");
    let output = queen(&["backup", "--url", &url, "--to", to(&file)], &[]);
    assert!(output.status.success(), "{output:?}");
    assert!(!root.path().join("b.tar.partial").exists());
    let good = std::fs::read(&file).unwrap();
    let copy = root.path().join("copy");
    let restore = || queen(&["restore", "--from", to(&file), "--to", to(&copy)], &[]);
    std::fs::write(&file, &good[..good.len() * 2 / 3]).unwrap();
    let cut = restore();
    assert_eq!(cut.status.code(), Some(1));
    assert!(text(&cut.stderr).contains("ends early"), "{cut:?}");
    let mut bad = good.clone();
    bad[good.len() / 2] ^= 1;
    std::fs::write(&file, &bad).unwrap();
    let changed = restore();
    assert_eq!(changed.status.code(), Some(1));
    assert!(text(&changed.stderr).contains("is not what was backed up"), "{changed:?}");
    assert!(!copy.exists() && root.path().join("copy.restoring").exists());
    std::fs::write(&file, &good).unwrap();
    let output = restore();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(!root.path().join("copy.restoring").exists());
    clean(&copy);
}

/// Copies a directory as `cp -r` does: file by file, each as it is when its turn comes.
fn copy_slowly(from: &Path, to: &Path, order: &mut dyn FnMut(&mut Vec<PathBuf>)) {
    std::fs::create_dir_all(to).unwrap();
    let Ok(entries) = std::fs::read_dir(from) else { return };
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    order(&mut paths);
    for path in paths {
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy_slowly(&path, &target, order);
        } else if let Ok(bytes) = std::fs::read(&path) {
            // What goes away before its turn is passed over, as an operator passes over the line that says so.
            std::fs::write(target, bytes).unwrap();
        }
    }
}

/// A plain copy of a running directory is refused, or everything that was answered before it began is there.
#[test]
fn a_plain_copy_of_a_running_directory_is_complete_or_refused() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("data");
    let node = Program::start(&dir, &BUSY).unwrap();
    let load = Load::new(&node);
    let copies: Mutex<Vec<(PathBuf, BTreeSet<String>)>> = Mutex::default();
    load.during(|| {
        wait_until_reclaimed(&dir);
        for number in 0..12 {
            let (copy, before) = (root.path().join(format!("copy-{number}")), load.so_far());
            // The store first, or last.
            let mut order = |paths: &mut Vec<PathBuf>| {
                if number % 2 == 0 {
                    paths.reverse();
                }
            };
            copy_slowly(&dir, &copy, &mut order);
            copies.lock().unwrap().push((copy, before));
        }
    });
    let (mut refused, mut complete) = (0, 0);
    for (copy, before) in copies.into_inner().unwrap() {
        match Program::start(&copy, &BUSY) {
            Err(log) => {
                assert!(log.contains("FATAL"), "{log}");
                refused += 1;
            }
            Ok(node) => {
                let found = all_ids(&node, "kept");
                let lost: Vec<_> = before.difference(&found).collect();
                assert!(lost.is_empty(), "{lost:?} of {}", copy.display());
                complete += 1;
            }
        }
    }
    assert_eq!(refused + complete, 12);
}

#[test]
fn a_name_that_cannot_be_given_is_refused_before_any_work() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, b"x").unwrap();
    let link = dir.path().join("link");
    std::os::unix::fs::symlink(dir.path(), &link).unwrap();
    for (name, said) in [
        (link, "is a symbolic link"),
        (dir.path().join("missing/place"), "does not exist: make it first"),
        (file.join("below"), "is a file"),
        (PathBuf::from("/proc"), "is a mount point"),
        (dir.path().join(".."), "is no name that something can be given"),
    ] {
        let output = queen(&["restore", "--from", to(&file), "--to", to(&name)], &[]);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(text(&output.stderr).contains(said), "{output:?}");
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
}
