//! The two doors of payloads: sealing on the way into a frame, opening on the way out of one.

use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, Ordering};

use metrics::Counter;
use parking_lot::RwLock;
use queen_record::ids::Tenant;
use queen_state::State;

use super::{CipherError, EncryptionKey, PayloadCipher};
use crate::metrics::BrokerMetrics;

/// A node's cipher, if it has a key, and what it did with it.
pub struct Vault {
    cipher: Option<PayloadCipher>,
    counters: VaultCounters,
    warned: AtomicBool,
}

/// What a vault counts.
pub struct VaultCounters {
    /// Payloads sealed.
    pub sealed: Counter,
    /// Payloads opened.
    pub opened: Counter,
    /// Payloads that could not be sealed or opened.
    pub failed: Counter,
}

impl VaultCounters {
    /// A node's.
    pub(crate) fn of(metrics: &BrokerMetrics) -> Self {
        let [sealed, opened, failed] = metrics.encryption.clone();
        Self { sealed, opened, failed }
    }
}

impl Vault {
    /// The vault of a node with this key, or with none.
    pub fn new(key: Option<&EncryptionKey>, counters: VaultCounters) -> Self {
        let cipher = key.map(PayloadCipher::new);
        Self { cipher, counters, warned: AtomicBool::new(false) }
    }

    /// The vault of a node without a key that counts nothing.
    pub fn without_key() -> Self {
        let counter = Counter::noop;
        let counters = VaultCounters { sealed: counter(), opened: counter(), failed: counter() };
        Self::new(None, counters)
    }

    /// Whether payloads can be sealed, so that any record may hold an envelope.
    pub fn has_key(&self) -> bool {
        self.cipher.is_some()
    }

    /// The door in: decides by the options in `state`.
    pub fn sealing<'a>(&'a self, state: &'a RwLock<State>) -> Sealing<'a> {
        Sealing(self.cipher.as_ref().map(|cipher| (self, cipher, state)))
    }

    /// The door out: stored data as its payload.
    ///
    /// # Errors
    /// Nothing may be shown in the payload's place; the caller says which message it is.
    pub fn opened<'d>(
        &self,
        data: &'d [u8],
        encrypted: bool,
    ) -> Result<Cow<'d, [u8]>, CipherError> {
        if !encrypted {
            return Ok(Cow::Borrowed(data));
        }
        let opened = match &self.cipher {
            Some(cipher) => cipher.open(data),
            None => Err(CipherError::NoKey),
        };
        let counter = if opened.is_ok() { &self.counters.opened } else { &self.counters.failed };
        counter.increment(1);
        opened.map(Cow::Owned)
    }

    /// Says once that a queue wants encryption and gets none.
    pub fn warn_of_plain_text(&self, queue: &str) {
        if !self.has_key() && !self.warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                queue,
                "encryptionEnabled is set, but this node has no QUEEN_ENCRYPTION_KEY: payloads are stored in plain text"
            );
        }
    }
}

/// Decides, queue by queue, whether payloads are sealed. Everything that makes frames asks here.
///
/// An option that changes while a frame is being made counts for the next one: a frame's flag tells what it is.
#[derive(Clone, Copy)]
pub struct Sealing<'a>(Option<(&'a Vault, &'a PayloadCipher, &'a RwLock<State>)>);

impl Sealing<'static> {
    /// Of a node without a key.
    pub const PLAIN: Self = Self(None);
}

impl<'a> Sealing<'a> {
    /// For frames of this queue, by its option as applied now. A queue that does not exist yet has the default.
    pub fn of(self, tenant: Tenant, queue: &str) -> QueueSealing<'a> {
        let due = |state: &RwLock<State>| {
            state.read().queue(tenant, queue).is_some_and(|queue| queue.options.encryption_enabled)
        };
        let sealing = self.0.filter(|(.., state)| due(state));
        QueueSealing(sealing.map(|(vault, cipher, _)| (vault, cipher)))
    }
}

/// What is done with the payloads of one queue.
#[derive(Clone, Copy)]
pub struct QueueSealing<'a>(Option<(&'a Vault, &'a PayloadCipher)>);

/// A payload as a frame holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored<'p> {
    /// The payload, or its envelope.
    pub data: Cow<'p, [u8]>,
    /// The frame's flag.
    pub encrypted: bool,
}

impl QueueSealing<'_> {
    /// Whether payloads are changed at all.
    pub fn is_due(&self) -> bool {
        self.0.is_some()
    }

    /// The payload as it is to be stored.
    ///
    /// # Errors
    /// Nothing may be stored, least of all the payload as it is.
    pub fn stored<'p>(&self, payload: &'p [u8]) -> Result<Stored<'p>, CipherError> {
        let Some((vault, cipher)) = self.0 else {
            return Ok(Stored { data: Cow::Borrowed(payload), encrypted: false });
        };
        let sealed = cipher.seal(payload);
        let counters = &vault.counters;
        let counter = if sealed.is_ok() { &counters.sealed } else { &counters.failed };
        counter.increment(1);
        sealed.map(|envelope| Stored { data: Cow::Owned(envelope), encrypted: true })
    }
}
