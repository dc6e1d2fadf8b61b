//! Payloads encrypted at rest: AES-256-GCM, one key per node, each payload for itself.
//!
//! ```text
//!   push ──> Sealing::of(queue).stored(payload) ──> frame, flag 4 ──> log, dead letter, store
//!   pop, detail, dead letters <── Vault::opened(data, flag) <──────────────┘
//! ```
//!
//! X1. A frame's flag, and nothing else, says whether its data is an envelope; a dead letter carries the flag along.
//! X2. Every payload that is stored passes [`Sealing`], every payload that is shown passes [`Vault::opened`].
//! X3. The key's fingerprint is durable before the first envelope can be.
//! X4. What does not open is an error that names it: never the envelope as data, never nothing.
//!
//! The envelope is that of existing data directories. It authenticates the payload, not its place: whoever can write
//! to the disk can put one message's envelope in another's place.

pub(crate) mod claim;
mod envelope;
pub mod fingerprint;
mod vault;

use std::fmt;

use aes_gcm::aead::{AeadInOut, KeyInit};
use aes_gcm::{Aes256Gcm, Nonce};
use hmac::{Hmac, Mac};
use rand::TryRng;
use rand::rngs::SysRng;
use sha2::Sha256;

use envelope::{Envelope, IV_LEN};
pub use fingerprint::FingerprintError;
pub use vault::{QueueSealing, Sealing, Stored, Vault, VaultCounters};

/// Bytes of a key.
pub const KEY_LEN: usize = 32;
/// Bytes of the IV that the cipher uses; the envelope keeps sixteen.
const NONCE_LEN: usize = 12;
/// Bytes of a fingerprint.
const FINGERPRINT_LEN: usize = 16;
/// Bytes that HMAC-SHA256 takes for a key.
const HMAC_BLOCK_LEN: usize = 64;
/// What the key signs for its fingerprint.
const FINGERPRINT_TEXT: &[u8] = b"queen: fingerprint of an encryption key, 1";

/// A key. Never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct EncryptionKey([u8; KEY_LEN]);

/// A text that is no key; it does not say the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyTextError {
    /// Too long or too short.
    #[error("has {0} characters: a key has 64 hex digits")]
    Length(usize),
    /// Something else than hex digits.
    #[error("has characters that are no hex digits: a key has 64 of them")]
    Digits,
}

impl EncryptionKey {
    /// The key of 64 hex digits.
    ///
    /// # Errors
    /// The text is no key.
    pub fn parse(text: &str) -> Result<Self, KeyTextError> {
        if text.len() != KEY_LEN * 2 {
            return Err(KeyTextError::Length(text.chars().count()));
        }
        let digit = |byte: &u8| char::from(*byte).to_digit(16).and_then(|d| u8::try_from(d).ok());
        let mut key = [0; KEY_LEN];
        for (byte, pair) in key.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            let mut digits = pair.iter().map(digit);
            let (Some(Some(high)), Some(Some(low))) = (digits.next(), digits.next()) else {
                return Err(KeyTextError::Digits);
            };
            *byte = high << 4 | low;
        }
        Ok(Self(key))
    }

    /// A mark by which the key is known again, and from which it cannot be found: a part of its HMAC-SHA256.
    fn fingerprint(&self) -> [u8; FINGERPRINT_LEN] {
        // HMAC fills a short key up with zeros, here by hand: a whole block is a key that cannot be refused.
        let mut block = [0; HMAC_BLOCK_LEN];
        block.iter_mut().zip(self.0).for_each(|(to, from)| *to = from);
        let mut mac = Hmac::<Sha256>::new(&block.into());
        mac.update(FINGERPRINT_TEXT);
        let full = mac.finalize().into_bytes();
        let mut mark = [0; FINGERPRINT_LEN];
        mark.iter_mut().zip(full).for_each(|(to, from)| *to = from);
        mark
    }
}

impl fmt::Debug for EncryptionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<a key>")
    }
}

/// Why a payload is not sealed or opened. Says nothing of key or payload.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CipherError {
    /// An envelope, and nothing to open it with.
    #[error("it is encrypted, and this node has no QUEEN_ENCRYPTION_KEY")]
    NoKey,
    /// Data that should be an envelope.
    #[error("its encrypted envelope is damaged: {0}")]
    Envelope(&'static str),
    /// The tag does not fit: another key, or changed bytes.
    #[error(
        "it does not open with this QUEEN_ENCRYPTION_KEY: another key sealed it, or its bytes were changed"
    )]
    Tag,
    /// No IV, so nothing can be sealed.
    #[error("the operating system gives no random bytes: {0}")]
    Random(String),
    /// Above what one call of the cipher can take.
    #[error("a payload of {0} bytes is too large to be encrypted")]
    TooLarge(usize),
}

/// Seals and opens payloads with one key.
pub struct PayloadCipher(Aes256Gcm);

impl PayloadCipher {
    /// The cipher of a key.
    pub fn new(key: &EncryptionKey) -> Self {
        Self(Aes256Gcm::new(&key.0.into()))
    }

    /// The envelope of a payload, under an IV of its own.
    ///
    /// # Errors
    /// [`CipherError::Random`], [`CipherError::TooLarge`]: the payload must not be stored.
    pub fn seal(&self, payload: &[u8]) -> Result<Vec<u8>, CipherError> {
        let mut iv = [0; IV_LEN];
        // From the operating system each time: there is no state that a restart, a copy of the machine or a fork of
        // the process could repeat.
        SysRng.try_fill_bytes(&mut iv).map_err(|error| CipherError::Random(error.to_string()))?;
        let mut data = payload.to_vec();
        let tag = self
            .0
            .encrypt_inout_detached(&nonce(&iv), b"", data.as_mut_slice().into())
            .map_err(|_| CipherError::TooLarge(payload.len()))?;
        let auth_tag = tag.into();
        Ok(Envelope { encrypted: data, iv, auth_tag }.to_bytes())
    }

    /// The payload of an envelope.
    ///
    /// # Errors
    /// [`CipherError::Envelope`], [`CipherError::Tag`]: nothing may be shown in its place.
    pub fn open(&self, envelope: &[u8]) -> Result<Vec<u8>, CipherError> {
        let Envelope { encrypted: mut data, iv, auth_tag } =
            Envelope::parse(envelope).map_err(CipherError::Envelope)?;
        self.0
            .decrypt_inout_detached(&nonce(&iv), b"", data.as_mut_slice().into(), &auth_tag.into())
            .map_err(|_| CipherError::Tag)?;
        Ok(data)
    }
}

impl fmt::Debug for PayloadCipher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PayloadCipher")
    }
}

/// The IV's first twelve bytes: the size that GCM takes as it is.
fn nonce(iv: &[u8; IV_LEN]) -> Nonce<aes_gcm::aes::cipher::consts::U12> {
    let mut nonce = [0; NONCE_LEN];
    nonce.iter_mut().zip(iv).for_each(|(to, from)| *to = *from);
    nonce.into()
}

#[cfg(test)]
mod tests;
