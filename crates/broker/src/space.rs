//! The disk gate: what would fill the volume is refused while it is nearly full, and what empties it goes on.
//!
//! ```text
//!   open --used >= high--> closed --used < low--> open
//! ```
//!
//! The ballast is room that the node keeps for itself: when a volume was filled to the last byte, by whomever, giving it up
//! lets the node start, checkpoint and reclaim. It is taken back once the gate is open.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError};
use metrics::Gauge;
use queen_io::{Disk, OpenMode, Space};

use crate::core::Shared;

/// The ballast's file below the data directory.
const BALLAST: &str = "ballast";
/// Room that the ballast keeps, and the share of a small volume that it takes at most.
const BALLAST_BYTES: u64 = 64 << 20;
const BALLAST_SHARE: u64 = 100;

/// When the gate closes and opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpaceLimits {
    /// Percent of the volume in use at which it closes.
    pub high_percent: u32,
    /// Percent below which it opens again; at most `high_percent`.
    pub low_percent: u32,
    /// How often the volume is looked at.
    pub every: Duration,
}

impl Default for SpaceLimits {
    fn default() -> Self {
        Self { high_percent: 85, low_percent: 80, every: Duration::from_millis(100) }
    }
}

/// Whether writes that grow storage are taken.
pub(crate) struct DiskGate {
    is_closed: AtomicBool,
    limits: SpaceLimits,
    shown: Gauge,
}

impl DiskGate {
    pub(crate) fn new(limits: SpaceLimits, shown: Gauge) -> Self {
        shown.set(0.0);
        Self { is_closed: AtomicBool::new(false), limits, shown }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Relaxed)
    }

    fn look(&self, space: Space) {
        let percent = space.used_percent();
        let SpaceLimits { high_percent, low_percent, .. } = self.limits;
        if !self.is_closed() && percent >= high_percent {
            tracing::warn!(
                "the disk is {percent}% full: pushes are refused (507) until it is below {low_percent}%; acks, pops and deletes go on"
            );
            self.set(true);
        } else if self.is_closed() && percent < low_percent {
            tracing::info!("the disk is {percent}% full: pushes are taken again");
            self.set(false);
        }
    }

    fn set(&self, is_closed: bool) {
        self.is_closed.store(is_closed, Ordering::Relaxed);
        self.shown.set(f64::from(u8::from(is_closed)));
    }
}

/// The file that keeps room.
pub(crate) struct Ballast {
    path: PathBuf,
}

impl Ballast {
    pub(crate) fn of(dir: &Path) -> Self {
        Self { path: dir.join(BALLAST) }
    }

    /// Gives the room up when the volume has less than that left. What fails is said: the node starts if it can without.
    pub(crate) fn give_up_if_full(&self, disk: &dyn Disk) {
        let Some(dir) = self.path.parent() else { return };
        match disk.space(dir) {
            Ok(Some(space)) if space.available < wanted(space) => {}
            // What is wrong with the directory is told by those who need it.
            Ok(_) | Err(_) => return,
        }
        match disk.remove_file(&self.path).and_then(|()| disk.sync_dir(dir)) {
            Ok(()) => tracing::warn!("the disk is full: the ballast is given up to start"),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => tracing::warn!("the ballast cannot be given up: {error}"),
        }
    }

    /// Takes the room unless it has it.
    fn take(&self, disk: &dyn Disk, space: Space) -> std::io::Result<()> {
        let bytes = wanted(space);
        if disk.exists(&self.path)? {
            if disk.open(&self.path, OpenMode::Read)?.len()? >= bytes {
                return Ok(());
            }
            // A process that ended while it made it, or a copy that left it out, keeps no room.
            disk.remove_file(&self.path)?;
        }
        let file = disk.open(&self.path, OpenMode::CreateNew)?;
        let taken = file.reserve(bytes).and_then(|()| file.sync_data());
        drop(file);
        if taken.is_err() {
            // Less than all of it is not worth its name.
            disk.remove_file(&self.path)?;
        }
        taken
    }
}

/// Room that the ballast keeps on a volume like this.
fn wanted(space: Space) -> u64 {
    BALLAST_BYTES.min(space.used.saturating_add(space.available) / BALLAST_SHARE)
}

/// Looks at the volume until the sender of `stopped` says so or is gone.
pub(crate) fn run(shared: &Shared, disk: &dyn Disk, dir: &Path, stopped: &Receiver<()>) {
    let gate = &shared.disk_gate;
    let ballast = Ballast::of(dir);
    let mut complained = false;
    let mut is_taken = false;
    loop {
        match disk.space(dir) {
            Ok(None) => return,
            Ok(Some(space)) => {
                gate.look(space);
                if !is_taken && !gate.is_closed() {
                    // Once: a volume that cannot keep room does without, and the gate works all the same.
                    is_taken = true;
                    if let Err(error) = ballast.take(disk, space) {
                        tracing::warn!("no room could be kept as ballast: {error}");
                    }
                }
                complained = false;
            }
            Err(error) => {
                if !std::mem::replace(&mut complained, true) {
                    tracing::warn!("cannot tell how full the disk is: {error}");
                }
            }
        }
        match stopped.recv_timeout(gate.limits.every) {
            Err(RecvTimeoutError::Timeout) => {}
            _ => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use queen_io::SimDisk;

    use super::*;

    #[test]
    fn the_gate_closes_high_and_opens_low() {
        let gate = DiskGate::new(SpaceLimits::default(), Gauge::noop());
        for (used, is_closed) in
            [(84, false), (85, true), (84, true), (80, true), (79, false), (84, false), (100, true)]
        {
            gate.look(Space { used, available: 100 - used });
            assert_eq!(gate.is_closed(), is_closed, "{used}");
        }
    }

    #[test]
    fn the_ballast_is_kept_and_given_up() {
        /// A volume of one gigabyte.
        struct Small(SimDisk, u64);

        impl Disk for Small {
            fn open(
                &self,
                path: &Path,
                mode: OpenMode,
            ) -> std::io::Result<std::sync::Arc<dyn queen_io::DiskFile>> {
                self.0.open(path, mode)
            }
            fn create_dir(&self, path: &Path) -> std::io::Result<()> {
                self.0.create_dir(path)
            }
            fn list(&self, path: &Path) -> std::io::Result<Vec<queen_io::DirEntry>> {
                self.0.list(path)
            }
            fn rename(&self, from: &Path, to: &Path) -> std::io::Result<()> {
                self.0.rename(from, to)
            }
            fn link(&self, from: &Path, to: &Path) -> std::io::Result<()> {
                self.0.link(from, to)
            }
            fn remove_file(&self, path: &Path) -> std::io::Result<()> {
                self.0.remove_file(path)
            }
            fn remove_dir(&self, path: &Path) -> std::io::Result<()> {
                self.0.remove_dir(path)
            }
            fn sync_dir(&self, path: &Path) -> std::io::Result<()> {
                self.0.sync_dir(path)
            }
            fn exists(&self, path: &Path) -> std::io::Result<bool> {
                self.0.exists(path)
            }
            fn space(&self, _: &Path) -> std::io::Result<Option<Space>> {
                Ok(Some(Space { used: (1 << 30) - self.1, available: self.1 }))
            }
        }

        let sim = SimDisk::new();
        let dir = Path::new("/");
        let ballast = Ballast::of(dir);
        let roomy = Small(sim.clone(), 1 << 29);
        ballast.take(&roomy, roomy.space(dir).unwrap().unwrap()).unwrap();
        let file = sim.open(&dir.join(BALLAST), OpenMode::Read).unwrap();
        assert_eq!(file.len().unwrap(), (1 << 30) / BALLAST_SHARE);
        ballast.give_up_if_full(&roomy);
        assert!(sim.exists(&dir.join(BALLAST)).unwrap());
        let full = Small(sim.clone(), 4096);
        ballast.give_up_if_full(&full);
        assert!(!sim.exists(&dir.join(BALLAST)).unwrap());
        // There is nothing left to give.
        ballast.give_up_if_full(&full);
    }
}
