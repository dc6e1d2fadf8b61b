//! Who calls, and what they may: bearer tokens (JWT, RFC 7519), their signatures, claims and roles.
//!
//! ```text
//!   Authorization -> token (three parts, header) -> key: secret, public key, published keys -> signature
//!                 -> claims (times, issuer, audience) -> Identity { sub, roles } -> level of the route
//! ```
//!
//! Invariants:
//! - A1: nothing of a token is believed before its signature fits, but for the choice among the operator's keys.
//! - A2: the kind of key follows from the operator's settings: a public key never serves as a secret, and a key or an
//!   address in the token itself is not looked at.
//! - A3: no token, secret or claim is logged or answered.

mod algorithm;
mod claims;
mod denied;
mod der;
mod fetch;
mod key_set;
mod keys;
mod level;
mod object;
mod options;
mod published;
mod role;
mod skip;
mod token;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use hyper::header::HeaderMap;
use tracing::warn;

use algorithm::Family;
use claims::Rules;
use keys::{Keys, PublicKey};
use published::PublishedKeys;
use skip::SkipPaths;
use token::Token;

pub use algorithm::{Accepted, Algorithm, UnknownAlgorithm};
pub use denied::Denied;
pub(crate) use level::Level;
pub use options::{AuthError, AuthOptions, JwksOptions};
pub use published::Keeper;
pub use role::{Role, RoleNames, Roles};

/// Bytes below which a secret can be guessed faster than its algorithm be broken (RFC 7518, 3.2).
const SECRET_BYTES_MIN: usize = 32;

/// Who calls.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// The token's subject; none when it has none or an empty one.
    pub sub: Option<String>,
    /// What it may do.
    pub roles: Roles,
}

/// Lets callers in, or says why not.
#[derive(Debug)]
pub struct Authenticator {
    keys: Keys,
    published: Option<PublishedKeys>,
    rules: Rules,
    skip_paths: SkipPaths,
    /// Whether a token that never ends was told of.
    has_warned: AtomicBool,
}

impl Authenticator {
    /// The authenticator, and the task that its published keys need, where the settings name some.
    ///
    /// # Errors
    /// Settings that nobody can be let in with, or that are none; the start is refused.
    pub fn new(options: AuthOptions) -> Result<(Self, Option<Keeper>), AuthError> {
        options.check()?;
        let keys = Keys::new(&options)?;
        warn_of(&options, &keys);
        let rules = Rules::new(&options);
        let jwks = options.jwks.filter(|_| keys.wants_published());
        let (published, keeper) = jwks.map(published::open).transpose()?.unzip();
        let skip_paths = SkipPaths::new(options.skip_paths);
        let has_warned = AtomicBool::new(false);
        Ok((Self { keys, published, rules, skip_paths, has_warned }, keeper))
    }

    /// Whether a path needs no token.
    pub(crate) fn skips(&self, path: &str) -> bool {
        self.skip_paths.holds(path)
    }

    /// Who sends a request with these headers.
    ///
    /// # Errors
    /// Why its token is not accepted; never [`Denied::Level`], which is about a route.
    pub async fn identify(&self, headers: &HeaderMap, now: SystemTime) -> Result<Identity, Denied> {
        let token = Token::split(token::of_request(headers)?)?;
        let algorithm = self.keys.algorithm(&token.algorithm).ok_or(Denied::Algorithm)?;
        let (signed, signature) = (token.signed.as_bytes(), token.signature()?);
        let fits = if algorithm.family() == Family::Hmac {
            self.keys.secret_verifies(algorithm, signed, &signature)
        } else {
            let key = self.public_key(&token, algorithm).await.ok_or(Denied::KeyId)?;
            key.verifies(algorithm, signed, &signature)
        };
        if !fits {
            return Err(Denied::Signature);
        }
        // A clock before 1970 is no reason to let expired tokens in: they are all from later.
        let now = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        let checked = self.rules.check(&token.claims()?, now.as_secs_f64())?;
        if !checked.ends && !self.has_warned.swap(true, Ordering::Relaxed) {
            warn!(
                "a token without exp was accepted: it never ends; JWT_REQUIRE_EXP=true refuses such tokens"
            );
        }
        Ok(checked.identity)
    }

    /// A published key for a token that names one, and the key of the settings for all others.
    async fn public_key(&self, token: &Token<'_>, algorithm: Algorithm) -> Option<Arc<PublicKey>> {
        let own = self.keys.public(algorithm);
        let Some(published) = &self.published else { return own };
        let id = token.key_id.as_deref();
        if id.is_none() && own.is_some() {
            return own;
        }
        published.find(id, algorithm).await.or(own)
    }
}

/// Tells of settings that work and may not be what was meant.
fn warn_of(options: &AuthOptions, keys: &Keys) {
    if options.secret.as_ref().is_some_and(|secret| secret.len() < SECRET_BYTES_MIN) {
        warn!("JWT_SECRET has less than {SECRET_BYTES_MIN} bytes: it can be guessed");
    }
    if options.jwks.is_some() && !keys.wants_published() {
        let accepted = options.algorithm;
        warn!("JWT_JWKS_URL has no effect: JWT_ALGORITHM={accepted} accepts only JWT_SECRET");
    }
}

#[cfg(test)]
pub(crate) mod tests;
