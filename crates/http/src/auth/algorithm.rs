//! Signature algorithms: those of tokens, and those that the operator accepts.

use std::fmt;
use std::str::FromStr;

/// What a token may be signed with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// HMAC with SHA-256.
    Hs256,
    /// HMAC with SHA-384.
    Hs384,
    /// HMAC with SHA-512.
    Hs512,
    /// RSASSA-PKCS1-v1_5 with SHA-256.
    Rs256,
    /// RSASSA-PKCS1-v1_5 with SHA-384.
    Rs384,
    /// RSASSA-PKCS1-v1_5 with SHA-512.
    Rs512,
    /// Ed25519.
    EdDsa,
}

/// What kind of key an algorithm needs. A key of one family never meets a token of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    /// A secret that both sides know.
    Hmac,
    Rsa,
    Ed25519,
}

impl Algorithm {
    const ALL: [Self; 7] =
        [Self::Hs256, Self::Hs384, Self::Hs512, Self::Rs256, Self::Rs384, Self::Rs512, Self::EdDsa];

    /// The name in a token's header, which is matched letter by letter.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Hs256 => "HS256",
            Self::Hs384 => "HS384",
            Self::Hs512 => "HS512",
            Self::Rs256 => "RS256",
            Self::Rs384 => "RS384",
            Self::Rs512 => "RS512",
            Self::EdDsa => "EdDSA",
        }
    }

    pub(super) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|algorithm| algorithm.name() == name)
    }

    pub(super) fn family(self) -> Family {
        match self {
            Self::Hs256 | Self::Hs384 | Self::Hs512 => Family::Hmac,
            Self::Rs256 | Self::Rs384 | Self::Rs512 => Family::Rsa,
            Self::EdDsa => Family::Ed25519,
        }
    }
}

/// What the operator accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accepted {
    /// This one; one of RSA stands for all three of RSA.
    One(Algorithm),
    /// Every algorithm that a key is set for.
    Auto,
}

impl Accepted {
    pub(super) fn takes(self, algorithm: Algorithm) -> bool {
        match self {
            Self::Auto => true,
            Self::One(own) if own.family() == Family::Rsa => algorithm.family() == Family::Rsa,
            Self::One(own) => own == algorithm,
        }
    }
}

impl fmt::Display for Accepted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::One(algorithm) => algorithm.name(),
            Self::Auto => "auto",
        })
    }
}

/// The text names no algorithm of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("is no algorithm; there are HS256, HS384, HS512, RS256, RS384, RS512, EdDSA and auto")]
pub struct UnknownAlgorithm;

impl FromStr for Accepted {
    type Err = UnknownAlgorithm;

    /// Reads an operator's text, in any letter case.
    fn from_str(text: &str) -> Result<Self, UnknownAlgorithm> {
        let text = text.trim();
        if text.eq_ignore_ascii_case("auto") {
            return Ok(Self::Auto);
        }
        let mut all = Algorithm::ALL.into_iter();
        let found = all.find(|algorithm| text.eq_ignore_ascii_case(algorithm.name()));
        found.map(Self::One).ok_or(UnknownAlgorithm)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(setting: &str, expected: &[&str]) {
        let accepted: Accepted = setting.parse().unwrap();
        let taken = Algorithm::ALL.into_iter().filter(|algorithm| accepted.takes(*algorithm));
        assert_eq!(taken.map(Algorithm::name).collect::<Vec<_>>(), expected, "{setting}");
    }

    #[test]
    fn what_each_setting_accepts() {
        check("HS256", &["HS256"]);
        check("hs384", &["HS384"]);
        check(" HS512 ", &["HS512"]);
        for rsa in ["RS256", "RS384", "RS512"] {
            check(rsa, &["RS256", "RS384", "RS512"]);
        }
        check("EdDSA", &["EdDSA"]);
        check("auto", &["HS256", "HS384", "HS512", "RS256", "RS384", "RS512", "EdDSA"]);
    }

    #[test]
    fn other_names_are_none() {
        for name in ["", "none", "ES256", "PS256", "HS1", "HS256,RS256"] {
            assert_eq!(name.parse::<Accepted>(), Err(UnknownAlgorithm), "{name}");
        }
        for name in ["hs256", "eddsa", "EDDSA", "none", "auto", ""] {
            assert_eq!(Algorithm::named(name), None, "{name}");
        }
    }
}
