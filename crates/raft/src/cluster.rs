//! Several nodes: entries are committed when a majority has synced them in its queue logs.
//!
//! ```text
//! core thread -> replicator -> library -> store -> writer thread -> queue logs     own logs
//!                                      -> network -> server of another member     their logs
//! library (committed) -> machine -> events -> replicator -> core thread
//! ```
//!
//! The library runs on a small runtime of its own, so that requests never delay a heartbeat. What it touches of the outside
//! is behind seams, so that a simulation runs whole clusters on one thread: the disk, the network (`link.rs`), time and
//! chance (`runtime.rs`), and who runs the writer.

mod alone;
mod cache;
mod changes;
mod files;
mod identity;
mod link;
mod machine;
mod member;
mod network;
mod purge;
mod replicator;
mod routes;
mod runtime;
mod server;
mod snapshot;
mod start;
mod store;
mod types;
mod wire;
mod writer;

pub use alone::promote;
pub use changes::{Change, NotChanged};
pub use files::{DIR, FilesError, STATE, check_files};
pub(crate) use files::{is_own, own_text};
pub use identity::DiskId;
pub use link::{Link, Listen, Network};
pub use member::{Cluster, MemberView, View};
pub use replicator::ClusterReplicator;
pub use routes::Owners;
pub use runtime::Tasks;
pub use snapshot::swap::{STAGED, load_staged};
pub use snapshot::{Snapshot, SnapshotSource};
pub use start::{ClusterError, ClusterOptions, ClusterParts, start, start_here};
pub use types::Member;
