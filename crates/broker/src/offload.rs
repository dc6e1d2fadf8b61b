//! Long computations of the edges, off the threads that serve connections.

use std::cell::Cell;

use tokio::runtime::{Handle, RuntimeFlavor};

/// Work on fewer bytes than this is done where it arises: handing it over would take longer.
const BYTES_MIN: u64 = 1 << 20;

/// Does work on this many bytes. Large work leaves the serving thread's other tasks to another thread first.
pub fn offload<T>(bytes: impl TryInto<u64>, work: impl FnOnce() -> T) -> T {
    let is_large = bytes.try_into().unwrap_or(u64::MAX) >= BYTES_MIN;
    // A runtime of one thread has nobody to leave them to.
    let can_leave = |handle: Handle| handle.runtime_flavor() == RuntimeFlavor::MultiThread;
    if is_large && Handle::try_current().is_ok_and(can_leave) {
        HAS_LEFT.set(true);
        tokio::task::block_in_place(work)
    } else {
        work()
    }
}

thread_local! {
    static HAS_LEFT: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread left its place among those that serve: it may end without a word that it has no more to do.
pub(crate) fn has_left() -> bool {
    HAS_LEFT.get()
}

/// This thread serves, and says when it has no more to do.
pub(crate) fn is_serving() {
    HAS_LEFT.set(false);
}
