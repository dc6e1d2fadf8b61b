//! The broker before it is open: the listener answers while the data directory loads.

use std::sync::{Arc, OnceLock};

use queen_broker::api::{Api, CallError, Health};

/// Holds the broker once there is one; until then every call is refused as "not serving".
#[derive(Debug)]
pub struct Gate<A>(OnceLock<Arc<A>>);

impl<A> Gate<A> {
    /// A closed gate.
    #[must_use]
    pub fn new() -> Self {
        Self(OnceLock::new())
    }

    /// Lets every call from now on through to `api`; a second call changes nothing.
    pub fn open(&self, api: Arc<A>) {
        // The first broker stays: there is one per process.
        self.0.get_or_init(|| api);
    }

    /// The broker.
    ///
    /// # Errors
    /// [`CallError::NotServing`] while the gate is closed.
    pub fn api(&self) -> Result<&A, CallError> {
        let closed = || CallError::NotServing("the data directory is loading".to_owned());
        self.0.get().map(Arc::as_ref).ok_or_else(closed)
    }
}

impl<A: Api> Gate<A> {
    /// The broker's health; a closed gate is a node that loads.
    pub fn health(&self) -> Health {
        match self.0.get() {
            Some(api) => api.health(),
            None => Health {
                role: "candidate",
                term: 0,
                serving: false,
                applied: 0,
                committed: 0,
                storage_ready: false,
                reason: Some("the data directory is loading".to_owned()),
            },
        }
    }
}

impl<A> Default for Gate<A> {
    fn default() -> Self {
        Self::new()
    }
}
