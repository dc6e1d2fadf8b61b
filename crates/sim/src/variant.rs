//! The layouts in which the workload is run.

use queen_io::SimDisk;
use queen_record::layout::Shards;

use crate::grouped;
use crate::node::{Setup, new_disk};
use crate::workload::{self, Run};

/// One way to lay a node out.
#[derive(Clone, Copy, Debug)]
pub struct Variant {
    /// Its name on the command line.
    pub name: &'static str,
    /// The layout.
    pub setup: Setup,
    /// Whether entries are written in groups.
    pub grouped: bool,
}

const PLAIN: Setup =
    Setup { segment_bytes: 2048, lanes: 1, shards: Shards::None, prealloc_kb: 0, precreate: true };

/// All of them.
pub const VARIANTS: [Variant; 7] = [
    Variant { name: "plain", setup: PLAIN, grouped: false },
    Variant {
        name: "bare",
        setup: Setup { precreate: false, segment_bytes: 1024, ..PLAIN },
        grouped: false,
    },
    Variant {
        name: "zeros",
        setup: Setup { prealloc_kb: 2, segment_bytes: 4096, ..PLAIN },
        grouped: false,
    },
    Variant { name: "shards", setup: Setup { shards: Shards::Count(2), ..PLAIN }, grouped: false },
    Variant { name: "lanes", setup: Setup { lanes: 2, ..PLAIN }, grouped: false },
    Variant { name: "grouped", setup: Setup { segment_bytes: 1024, ..PLAIN }, grouped: true },
    Variant {
        name: "grouped-bare",
        setup: Setup { precreate: false, segment_bytes: 256, ..PLAIN },
        grouped: true,
    },
];

impl Variant {
    /// The variant of this name.
    pub fn named(name: &str) -> Option<Self> {
        VARIANTS.into_iter().find(|variant| variant.name == name)
    }

    /// Runs the workload on an empty disk; `prepare` arms it first.
    ///
    /// # Errors
    /// Why the node does not start, or what the uncrashed run got wrong.
    pub fn run(&self, seed: u64, prepare: &dyn Fn(&SimDisk)) -> Result<(SimDisk, Run), String> {
        let disk = new_disk();
        if !self.grouped {
            prepare(&disk);
            let run = workload::run(&disk, &self.setup, seed)?;
            return Ok((disk, run));
        }
        let plain = workload::run(&disk, &self.setup, seed)?;
        if let Some(reason) = plain.stopped {
            return Err(reason);
        }
        let disk = new_disk();
        prepare(&disk);
        let run = grouped::run(&disk, &self.setup, plain, seed)?;
        Ok((disk, run))
    }
}
