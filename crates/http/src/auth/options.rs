//! What the operator chooses about callers and their tokens, and why a choice cannot be run with.

use std::fmt;
use std::time::Duration;

use crate::auth::algorithm::{Accepted, Algorithm};
use crate::auth::keys::Keys;
use crate::auth::{RoleNames, fetch};

/// The settings of authentication, when it is on.
#[derive(Clone, PartialEq, Eq)]
pub struct AuthOptions {
    /// Which signatures are accepted.
    pub algorithm: Accepted,
    /// The secret of the HS algorithms.
    pub secret: Option<String>,
    /// The public key of the others, as PEM.
    pub public_key: Option<String>,
    /// Where more public keys are published.
    pub jwks: Option<JwksOptions>,
    /// Only tokens from here.
    pub issuer: Option<String>,
    /// Only tokens for this.
    pub audience: Option<String>,
    /// How far clocks may be apart.
    pub clock_skew: Duration,
    /// Refuse tokens that never end.
    pub require_exp: bool,
    /// Claim with one role as a text; empty for none.
    pub roles_claim: String,
    /// Claim with a list of roles; empty for none.
    pub roles_array_claim: String,
    /// How roles are called in tokens.
    pub role_names: RoleNames,
    /// Paths that need no token; one longer than `/` that ends in `/` stands for everything below it.
    pub skip_paths: Vec<String>,
}

/// A set of public keys that is published under a URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JwksOptions {
    /// `http` or `https`.
    pub url: String,
    /// How often it is read again.
    pub refresh: Duration,
    /// How long reading it may take.
    pub timeout: Duration,
    /// A token whose key is not known has it read again, at most this often.
    pub unknown_key_pause: Duration,
}

impl Default for AuthOptions {
    /// As a node has them where nothing is set: a secret or a key is still missing.
    fn default() -> Self {
        Self {
            algorithm: Accepted::One(Algorithm::Hs256),
            secret: None,
            public_key: None,
            jwks: None,
            issuer: None,
            audience: None,
            clock_skew: Duration::from_secs(30),
            require_exp: false,
            roles_claim: "role".to_owned(),
            roles_array_claim: "roles".to_owned(),
            role_names: RoleNames::default(),
            skip_paths: ["/health", "/metrics/prometheus", "/metrics", "/"]
                .map(str::to_owned)
                .into(),
        }
    }
}

impl AuthOptions {
    /// Whether a node can run with these.
    ///
    /// # Errors
    /// As [`Authenticator::new`](crate::Authenticator::new), except for what the machine has to bring.
    pub fn check(&self) -> Result<(), AuthError> {
        if let Some(path) = self.skip_paths.iter().find(|path| !path.starts_with('/')) {
            return Err(AuthError::SkipPath(path.clone()));
        }
        if let Some(jwks) = &self.jwks {
            fetch::Target::parse(&jwks.url).map_err(AuthError::Url)?;
        }
        Keys::new(self).map(drop)
    }
}

impl fmt::Debug for AuthOptions {
    /// Without the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuthOptions")
            .field("algorithm", &self.algorithm)
            .field("has_secret", &self.secret.is_some())
            .field("has_public_key", &self.public_key.is_some())
            .field("jwks", &self.jwks)
            .field("issuer", &self.issuer)
            .field("audience", &self.audience)
            .finish_non_exhaustive()
    }
}

/// Settings that a node cannot run with; the text names the variable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuthError {
    /// The accepted algorithm has no key.
    #[error("JWT_ALGORITHM={accepted} has no key: set {names}")]
    NoKey {
        /// The algorithm.
        accepted: Accepted,
        /// The variables that can hold one.
        names: &'static str,
    },
    /// The secret is blank.
    #[error("JWT_SECRET holds nothing but blanks")]
    SecretIsBlank,
    /// The secret is a public key.
    #[error("JWT_SECRET holds a PEM text: a public key belongs into JWT_PUBLIC_KEY")]
    SecretIsPem,
    /// The PEM text holds no usable key.
    #[error("JWT_PUBLIC_KEY is no public key: {0}")]
    PublicKey(&'static str),
    /// The public key is one of another algorithm.
    #[error("JWT_PUBLIC_KEY is a key of another algorithm than JWT_ALGORITHM={0}")]
    OtherFamily(Accepted),
    /// The URL is none that can be read.
    #[error("JWT_JWKS_URL {0}")]
    Url(&'static str),
    /// The machine has no certificates to check a server with.
    #[error(
        "JWT_JWKS_URL is an https URL, and this system has no root certificates: install them, or name a file of them in SSL_CERT_FILE"
    )]
    NoRoots,
    /// An entry that is no path.
    #[error("JWT_SKIP_PATHS has the entry {0:?}, which does not begin with /")]
    SkipPath(String),
}
