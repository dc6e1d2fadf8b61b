//! A disk whose power can be cut: a small ext4 image behind a loop device.
//!
//! Between `fdatasync` calls, what the node wrote is in the page cache of the file system on the image and not in
//! the image file. A copy of the file is therefore the disk as it would be after a power loss; the file system's
//! journal is replayed when the copy is mounted.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use crate::shell::{self, must};

const LIMIT: Duration = Duration::from_mins(1);
/// It has holes, so it takes what the node wrote.
const IMAGE_BYTES: u64 = 1 << 30;
/// The file system must not write its journal by itself while the image is copied, in seconds.
const COMMIT_S: u32 = 300;

/// Where the node keeps its data.
pub(super) struct Disk {
    base: PathBuf,
    /// Number of the image in use; none for a plain directory.
    image: Option<u32>,
    is_mounted: bool,
}

impl Disk {
    /// Makes a plain directory, or an image and mounts it.
    pub(super) fn new(base: &Path, is_image: bool) -> anyhow::Result<Self> {
        let mut disk = Self { base: base.into(), image: None, is_mounted: false };
        fs::create_dir_all(disk.mount_point())?;
        if is_image {
            disk.image = Some(0);
            fs::File::create(disk.path(0))?.set_len(IMAGE_BYTES)?;
            let mut make = Command::new("mkfs.ext4");
            make.args(["-q", "-F"]).arg(disk.path(0));
            must(&mut make, LIMIT).context("--power needs mkfs.ext4 (Debian package e2fsprogs)")?;
            disk.mount(0).context(
                "--power needs to mount an image through a loop device: run as root, on a kernel that has them",
            )?;
        }
        Ok(disk)
    }

    /// Whether its power can be cut.
    pub(super) fn is_image(&self) -> bool {
        self.image.is_some()
    }

    /// The data directory, below the mount point.
    pub(super) fn directory(&self) -> PathBuf {
        self.mount_point().join("data")
    }

    /// Copies the image as it is now.
    pub(super) fn copy(&self) -> anyhow::Result<()> {
        let image = self.image.context("a plain directory has no power")?;
        let mut copy = Command::new("cp");
        copy.args(["--sparse=always", "--"]).arg(self.path(image)).arg(self.path(image + 1));
        must(&mut copy, LIMIT)?;
        Ok(())
    }

    /// Puts the copy in the place of the image.
    pub(super) fn swap(&mut self) -> anyhow::Result<()> {
        let image = self.image.context("a plain directory has no power")?;
        self.unmount()?;
        fs::remove_file(self.path(image))?;
        self.image = Some(image + 1);
        self.mount(image + 1)
    }

    fn mount(&mut self, image: u32) -> anyhow::Result<()> {
        let mut mount = Command::new("mount");
        mount.args(["-t", "ext4", "-o", &format!("loop,commit={COMMIT_S}")]);
        must(mount.arg(self.path(image)).arg(self.mount_point()), LIMIT)?;
        self.is_mounted = true;
        Ok(())
    }

    fn unmount(&mut self) -> anyhow::Result<()> {
        must(Command::new("umount").arg(self.mount_point()), LIMIT)?;
        self.is_mounted = false;
        Ok(())
    }

    fn mount_point(&self) -> PathBuf {
        self.base.join("disk")
    }

    fn path(&self, image: u32) -> PathBuf {
        self.base.join(format!("disk-{image}.img"))
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if self.is_mounted {
            // A failure leaves a mount that its name in the temporary directory gives away.
            drop(self.unmount());
        }
    }
}

/// Waits until every thread of a process that was sent SIGSTOP has stopped, which ends calls to the disk, or a
/// moment if one does not.
pub(super) fn wait_stopped(process: u32) {
    let until = Instant::now() + Duration::from_millis(500);
    while Instant::now() < until && !is_stopped(process).unwrap_or(true) {
        shell::pause(Duration::from_millis(1));
    }
}

fn is_stopped(process: u32) -> anyhow::Result<bool> {
    for thread in fs::read_dir(format!("/proc/{process}/task"))? {
        let line = fs::read_to_string(thread?.path().join("stat"))?;
        let (_, rest) = line.rsplit_once(") ").context("no state")?;
        if !rest.starts_with(['T', 't', 'Z', 'X']) {
            return Ok(false);
        }
    }
    ensure!(process > 0, "no process");
    Ok(true)
}
