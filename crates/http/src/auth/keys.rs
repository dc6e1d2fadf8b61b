//! Keys that signatures are checked with, parsed once.

use std::sync::Arc;

use ring::{hmac, signature};

use crate::auth::algorithm::{Accepted, Algorithm, Family};
use crate::auth::der::{self, Encoded};
use crate::auth::options::{AuthError, AuthOptions};

/// Bits of an RSA modulus: below, signatures can be forged; above, checking one costs too much.
const RSA_BITS_MIN: usize = 2048;
const RSA_BITS_MAX: usize = 8192;

/// What every key of this type has passed: length, and shape where the algorithm has one.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PublicKey {
    /// Modulus and exponent, big-endian without zeros in front.
    Rsa {
        n: Vec<u8>,
        e: Vec<u8>,
    },
    Ed25519([u8; 32]),
}

impl PublicKey {
    /// An RSA key; the reason why it is none ends the sentence "is no public key: ".
    pub(super) fn rsa(n: &[u8], e: &[u8]) -> Result<Self, &'static str> {
        let (n, e) = (without_zeros(n), without_zeros(e));
        let bits = n.first().map_or(0, |first| n.len() * 8 - first.leading_zeros() as usize);
        if bits < RSA_BITS_MIN {
            return Err("its RSA modulus has less than 2048 bits");
        }
        if bits > RSA_BITS_MAX {
            return Err("its RSA modulus has more than 8192 bits");
        }
        let is_odd = |number: &[u8]| number.last().is_some_and(|last| last & 1 == 1);
        if !is_odd(n) || !is_odd(e) || e == [1] || e.len() > 4 {
            return Err("its RSA numbers are none of a key");
        }
        Ok(Self::Rsa { n: n.to_vec(), e: e.to_vec() })
    }

    /// An Ed25519 key, as [`Self::rsa`].
    pub(super) fn ed25519(key: &[u8]) -> Result<Self, &'static str> {
        key.try_into().map(Self::Ed25519).map_err(|_| "its Ed25519 key has not 32 bytes")
    }

    fn pem(text: &str) -> Result<Self, &'static str> {
        match der::read(text)? {
            Encoded::Rsa { n, e } => Self::rsa(&n, &e),
            Encoded::Ed25519(key) => Self::ed25519(&key),
        }
    }

    pub(super) fn family(&self) -> Family {
        match self {
            Self::Rsa { .. } => Family::Rsa,
            Self::Ed25519(_) => Family::Ed25519,
        }
    }

    /// Whether the signature is this key's, made with this algorithm.
    pub(super) fn verifies(&self, algorithm: Algorithm, signed: &[u8], made: &[u8]) -> bool {
        let rsa = match algorithm {
            Algorithm::Rs256 => &signature::RSA_PKCS1_2048_8192_SHA256,
            Algorithm::Rs384 => &signature::RSA_PKCS1_2048_8192_SHA384,
            Algorithm::Rs512 => &signature::RSA_PKCS1_2048_8192_SHA512,
            Algorithm::EdDsa => {
                let Self::Ed25519(key) = self else { return false };
                let key = signature::UnparsedPublicKey::new(&signature::ED25519, key);
                return key.verify(signed, made).is_ok();
            }
            Algorithm::Hs256 | Algorithm::Hs384 | Algorithm::Hs512 => return false,
        };
        let Self::Rsa { n, e } = self else { return false };
        signature::RsaPublicKeyComponents { n, e }.verify(rsa, signed, made).is_ok()
    }
}

fn without_zeros(number: &[u8]) -> &[u8] {
    let zeros = number.iter().take_while(|byte| **byte == 0).count();
    number.get(zeros..).unwrap_or_default()
}

/// The keys of the settings; those that an identity provider publishes come beside them.
#[derive(Debug)]
pub(super) struct Keys {
    accepted: Accepted,
    secret: Option<Secret>,
    public: Option<Arc<PublicKey>>,
    /// Whether more public keys come from elsewhere.
    has_published: bool,
}

/// One secret, prepared for each algorithm; [`hmac::Key`] does not show it.
#[derive(Debug)]
struct Secret([hmac::Key; 3]);

impl Keys {
    /// # Errors
    /// Key material that is none, or none for the accepted algorithm; names the variable.
    pub(super) fn new(options: &AuthOptions) -> Result<Self, AuthError> {
        let accepted = options.algorithm;
        let secret = options.secret.as_deref().map(Secret::new).transpose()?;
        let public = options.public_key.as_deref().map(PublicKey::pem).transpose();
        let public = public.map_err(AuthError::PublicKey)?.map(Arc::new);
        let keys = Self { accepted, secret, public, has_published: options.jwks.is_some() };
        if let Accepted::One(algorithm) = accepted {
            if let Some(public) = &keys.public
                && algorithm.family() != Family::Hmac
                && algorithm.family() != public.family()
            {
                return Err(AuthError::OtherFamily(accepted));
            }
            if !keys.have(algorithm.family()) {
                let of_secret = algorithm.family() == Family::Hmac;
                return Err(AuthError::NoKey {
                    accepted,
                    names: if of_secret { "JWT_SECRET" } else { "JWT_PUBLIC_KEY or JWT_JWKS_URL" },
                });
            }
        } else if keys.secret.is_none() && keys.public.is_none() && !keys.has_published {
            let names = "JWT_SECRET, JWT_PUBLIC_KEY or JWT_JWKS_URL";
            return Err(AuthError::NoKey { accepted, names });
        }
        Ok(keys)
    }

    fn have(&self, family: Family) -> bool {
        match family {
            Family::Hmac => self.secret.is_some(),
            family => {
                let own = self.public.as_ref().is_some_and(|key| key.family() == family);
                own || self.has_published
            }
        }
    }

    /// The algorithm of a token, when it is accepted and there can be a key for it.
    pub(super) fn algorithm(&self, name: &str) -> Option<Algorithm> {
        let algorithm = Algorithm::named(name)?;
        (self.accepted.takes(algorithm) && self.have(algorithm.family())).then_some(algorithm)
    }

    /// Whether a key from elsewhere can ever be asked for.
    pub(super) fn wants_published(&self) -> bool {
        match self.accepted {
            Accepted::Auto => true,
            Accepted::One(algorithm) => algorithm.family() != Family::Hmac,
        }
    }

    /// The public key of the settings, when it is one for this algorithm.
    pub(super) fn public(&self, algorithm: Algorithm) -> Option<Arc<PublicKey>> {
        self.public.clone().filter(|key| key.family() == algorithm.family())
    }

    /// Whether the signature was made with the secret.
    pub(super) fn secret_verifies(&self, algorithm: Algorithm, signed: &[u8], made: &[u8]) -> bool {
        let key = self.secret.as_ref().and_then(|secret| secret.key(algorithm));
        key.is_some_and(|key| hmac::verify(key, signed, made).is_ok())
    }
}

impl Secret {
    fn new(secret: &str) -> Result<Self, AuthError> {
        if secret.trim().is_empty() {
            return Err(AuthError::SecretIsBlank);
        }
        if secret.contains("-----BEGIN ") {
            // Everybody has a public key: whoever takes it for a secret can sign.
            return Err(AuthError::SecretIsPem);
        }
        let algorithms = [hmac::HMAC_SHA256, hmac::HMAC_SHA384, hmac::HMAC_SHA512];
        Ok(Self(algorithms.map(|algorithm| hmac::Key::new(algorithm, secret.as_bytes()))))
    }

    fn key(&self, algorithm: Algorithm) -> Option<&hmac::Key> {
        let [sha256, sha384, sha512] = &self.0;
        match algorithm {
            Algorithm::Hs256 => Some(sha256),
            Algorithm::Hs384 => Some(sha384),
            Algorithm::Hs512 => Some(sha512),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::tests::{
        EC_PUBLIC, ED_PUBLIC, RSA_PRIVATE, RSA_PUBLIC, SHORT_RSA_PUBLIC, TLS_CERTIFICATE, options,
    };

    fn refused(change: impl FnOnce(&mut AuthOptions), words: &[&str]) {
        let mut options = options();
        options.secret = None;
        change(&mut options);
        let text = Keys::new(&options).map(|_| ()).unwrap_err().to_string();
        for word in words {
            assert!(text.contains(word), "{word} in {text}");
        }
    }

    #[test]
    fn an_algorithm_without_its_key_is_refused() {
        for name in ["HS256", "HS384", "HS512"] {
            refused(|options| options.algorithm = name.parse().unwrap(), &["JWT_SECRET", name]);
        }
        for name in ["RS256", "RS384", "RS512", "EdDSA"] {
            let with_secret = |options: &mut AuthOptions| {
                options.algorithm = name.parse().unwrap();
                options.secret = Some("of no use here".to_owned());
            };
            refused(with_secret, &["JWT_PUBLIC_KEY", "JWT_JWKS_URL", name]);
        }
        refused(
            |options| options.algorithm = Accepted::Auto,
            &["JWT_SECRET", "JWT_JWKS_URL", "auto"],
        );
    }

    #[test]
    fn a_text_that_is_no_public_key_is_refused() {
        let cut = RSA_PUBLIC.replace("MII", "MIJ");
        for (text, why) in [
            ("nonsense", "no PEM text"),
            ("-----BEGIN PUBLIC KEY-----\n-----END PUBLIC KEY-----", "damaged"),
            ("-----BEGIN PUBLIC KEY-----\n!\n-----END PUBLIC KEY-----", "no PEM text"),
            (&cut, "damaged"),
            (RSA_PRIVATE, "private key"),
            (EC_PUBLIC, "neither an RSA nor an Ed25519 key"),
            (SHORT_RSA_PUBLIC, "less than 2048 bits"),
            (TLS_CERTIFICATE, "certificate"),
        ] {
            let set = |options: &mut AuthOptions| {
                options.algorithm = Accepted::Auto;
                options.public_key = Some(text.to_owned());
            };
            refused(set, &["JWT_PUBLIC_KEY", why]);
        }
    }

    #[test]
    fn a_key_of_another_family_is_refused() {
        for (algorithm, key) in [("RS256", ED_PUBLIC), ("EdDSA", RSA_PUBLIC)] {
            let set = |options: &mut AuthOptions| {
                options.algorithm = algorithm.parse().unwrap();
                options.public_key = Some(key.to_owned());
            };
            refused(set, &["JWT_PUBLIC_KEY", algorithm]);
        }
    }

    #[test]
    fn a_public_key_is_no_secret() {
        let set = |options: &mut AuthOptions| options.secret = Some(RSA_PUBLIC.to_owned());
        refused(set, &["JWT_SECRET", "JWT_PUBLIC_KEY"]);
    }

    #[test]
    fn numbers_of_an_rsa_key() {
        let n = [0xff; 256];
        assert!(PublicKey::rsa(&n, &[1, 0, 1]).is_ok());
        assert_eq!(PublicKey::rsa(&[&[0; 9], &n[..]].concat(), &[0, 3]), PublicKey::rsa(&n, &[3]));
        let even = [&n[..255], &[0xfe]].concat();
        let short = [&[0x7f], &n[..255]].concat();
        for (n, e) in [
            (&*even, &[1, 0, 1][..]),
            (&*short, &[1, 0, 1]),
            (&[0xff; 1025], &[1, 0, 1]),
            (&n, &[1]),
            (&n, &[2]),
            (&n, &[]),
            (&n, &[0]),
            (&n, &[1, 0, 0, 0, 1]),
            (&[], &[1, 0, 1]),
        ] {
            assert!(PublicKey::rsa(n, e).is_err(), "{n:?} {e:?}");
        }
        for len in [0, 31, 33] {
            assert!(PublicKey::ed25519(&vec![9; len]).is_err());
        }
    }
}
