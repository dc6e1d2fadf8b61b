//! The scrub reads every sealed byte, finds every flip, and goes on.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail loudly")]

mod common;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use common::{DIR, Model, options, reopen, write};
use queen_io::{Disk, SimDisk};
use queen_qlog::{DurablePoint, Qlog, Scrub, Scrubbed};

/// Two logs of several small files.
fn written() -> (SimDisk, Qlog) {
    let sim = SimDisk::new();
    let disk: Arc<dyn Disk> = Arc::new(sim.clone());
    let mut model = Model::default();
    let settings = options(DIR, 256);
    let (qlog, _, _) = reopen(&disk, settings, &DurablePoint::default()).unwrap();
    for _ in 0..12 {
        let group = [model.entry(&[(10_000, 1), (20_000, 2)], 2, 60, &[])];
        qlog.sync(&write(&qlog, &group).unwrap()).unwrap();
        while qlog.background().unwrap() {}
    }
    (sim, qlog)
}

/// One round: bytes read, and damage met.
fn round(scrub: &mut Scrub, step: u64) -> (u64, Vec<(PathBuf, u64)>) {
    let (mut read, mut damage) = (0, Vec::new());
    loop {
        match scrub.step(step) {
            Scrubbed::Sound(bytes) => read += bytes,
            Scrubbed::Damaged { file, offset, .. } => damage.push((file, offset)),
            Scrubbed::Round => return (read, damage),
        }
    }
}

fn sealed(sim: &SimDisk) -> Vec<(PathBuf, u64)> {
    let is_log = |path: &Path| path.extension().is_some_and(|e| e == "qlog");
    let mut files: Vec<(PathBuf, u64)> =
        sim.files().into_iter().filter(|(path, _)| is_log(path)).collect();
    // The newest of a log is active, or made ahead.
    let newest: Vec<PathBuf> = ["q10000", "q20000"]
        .iter()
        .flat_map(|log| {
            let of_log = |(path, _): &&(PathBuf, u64)| path.starts_with(format!("{DIR}/{log}"));
            let mut files: Vec<PathBuf> =
                files.iter().filter(of_log).map(|f| f.0.clone()).collect();
            files.sort();
            let has_ahead = sim.contents(files.last().unwrap()).unwrap()[16..24] == [0xFF; 8];
            files.split_off(files.len() - if has_ahead { 2 } else { 1 })
        })
        .collect();
    files.retain(|(path, _)| !newest.contains(path));
    files
}

#[test]
fn a_round_reads_every_sealed_record_whatever_the_step() {
    let (sim, qlog) = written();
    let files = sealed(&sim);
    assert!(files.len() >= 6, "{files:?}");
    let records: u64 = files.iter().map(|(_, len)| len - 32).sum();
    let mut scrub = Scrub::new(qlog);
    for step in [1, 100, 1 << 20] {
        assert_eq!(round(&mut scrub, step), (records, Vec::new()), "step {step}");
    }
}

#[test]
fn every_flipped_bit_of_a_sealed_file_is_found_and_the_others_are_read() {
    let (sim, qlog) = written();
    let files = sealed(&sim);
    let (path, len) = files[1].clone();
    let good = sim.contents(&path).unwrap();
    let mut scrub = Scrub::new(qlog);
    for at in 0..usize::try_from(len).unwrap() {
        // The reserved bytes of a header mean nothing.
        if (24..32).contains(&at) {
            continue;
        }
        let mut bad = good.clone();
        bad[at] ^= 1 << (at % 8);
        sim.set_contents(&path, &bad);
        let (_, damage) = round(&mut scrub, 1 << 20);
        assert_eq!(damage.len(), 1, "byte {at}");
        assert_eq!(damage[0].0, path);
        assert!(damage[0].1 <= at as u64, "byte {at}: {damage:?}");
    }
    // Also where a record ends: what is left is sound, but it is not all of it.
    for cut in 0..good.len() {
        sim.set_contents(&path, &good[..cut]);
        let (_, damage) = round(&mut scrub, 1 << 20);
        assert_eq!(damage, [(path.clone(), cut as u64)], "cut at {cut}");
    }
    sim.remove_file(&path).unwrap();
    assert_eq!(round(&mut scrub, 1 << 20).1, [(path.clone(), 0)]);
    sim.set_contents(&path, &good);
    assert_eq!(round(&mut scrub, 1 << 20).1, []);
}
