//! The document of published keys (RFC 7517): RSA and Ed25519 keys for signatures, found by their id.
//!
//! What cannot be used here is left out: keys for encryption, of other kinds, and above all secrets, which nobody
//! publishes who means to keep them.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use serde::Deserialize;
use serde_json::Value;

use crate::auth::algorithm::Algorithm;
use crate::auth::keys::PublicKey;

/// Keys in the order of the document.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct KeySet(Vec<Published>);

#[derive(Debug, PartialEq, Eq)]
struct Published {
    id: Option<String>,
    /// The only algorithm it is for.
    algorithm: Option<Algorithm>,
    key: Arc<PublicKey>,
}

#[derive(Deserialize)]
struct Document {
    keys: Vec<Value>,
}

#[derive(Deserialize)]
struct Jwk<'a> {
    kty: &'a str,
    kid: Option<String>,
    alg: Option<&'a str>,
    #[serde(rename = "use")]
    usage: Option<&'a str>,
    key_ops: Option<Vec<String>>,
    crv: Option<&'a str>,
    n: Option<&'a str>,
    e: Option<&'a str>,
    x: Option<&'a str>,
}

impl KeySet {
    /// Reads a document; a key in it that is of no use is left out.
    pub(super) fn read(bytes: &[u8]) -> serde_json::Result<Self> {
        let document: Document = serde_json::from_slice(bytes)?;
        let keys = document.keys.iter().filter_map(|key| Jwk::deserialize(key).ok()?.published());
        Ok(Self(keys.collect()))
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// The key of a token: by id, and without one the only key that can be meant.
    pub(super) fn find(&self, id: Option<&str>, algorithm: Algorithm) -> Option<Arc<PublicKey>> {
        let mut fitting = self.0.iter().filter(|published| {
            let is_meant = id.is_none() || published.id.as_deref() == id;
            is_meant
                && published.key.family() == algorithm.family()
                && published.algorithm.is_none_or(|only| only == algorithm)
        });
        let found = fitting.next()?;
        if id.is_none() && fitting.next().is_some() {
            return None;
        }
        Some(Arc::clone(&found.key))
    }
}

impl Jwk<'_> {
    fn published(self) -> Option<Published> {
        let is_for_signatures = self.usage.is_none_or(|usage| usage == "sig");
        let operations = self.key_ops.as_ref();
        let verifies = |all: &Vec<String>| all.iter().any(|operation| operation == "verify");
        if !is_for_signatures || !operations.is_none_or(verifies) {
            return None;
        }
        let algorithm = match self.alg {
            None => None,
            Some(name) => Some(Algorithm::named(name)?),
        };
        let bytes = |text: Option<&str>| BASE64.decode(text?).ok();
        let key = match (self.kty, self.crv) {
            ("RSA", _) => PublicKey::rsa(&bytes(self.n)?, &bytes(self.e)?),
            ("OKP", Some("Ed25519")) => PublicKey::ed25519(&bytes(self.x)?),
            _ => return None,
        };
        let key = Arc::new(key.ok()?);
        Some(Published { id: self.kid, algorithm, key })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn rsa(id: &str) -> Value {
        json!({"kty": "RSA", "kid": id, "use": "sig", "n": BASE64.encode([0xff; 256]), "e": "AQAB"})
    }

    fn ed(id: &str) -> Value {
        json!({"kty": "OKP", "crv": "Ed25519", "kid": id, "x": BASE64.encode([9; 32])})
    }

    fn set(keys: &[Value]) -> KeySet {
        KeySet::read(json!({"keys": keys}).to_string().as_bytes()).unwrap()
    }

    #[test]
    fn keys_are_found_by_id_and_algorithm() {
        let set = set(&[rsa("a"), rsa("b"), ed("a")]);
        assert_eq!(set.len(), 3);
        let found = |id, algorithm| set.find(id, algorithm).map(|key| key.family());
        let (rs256, eddsa) = (Algorithm::Rs256, Algorithm::EdDsa);
        assert_eq!(found(Some("a"), rs256), Some(rs256.family()));
        assert_eq!(found(Some("a"), eddsa), Some(eddsa.family()));
        assert_eq!(found(Some("b"), eddsa), None);
        assert_eq!(found(Some("c"), rs256), None);
        // Without an id: one Ed25519 key, but two of RSA.
        assert_eq!(found(None, eddsa), Some(eddsa.family()));
        assert_eq!(found(None, rs256), None);
    }

    #[test]
    fn a_key_for_one_algorithm_is_for_no_other() {
        let mut key = rsa("a");
        key["alg"] = "RS512".into();
        let set = set(&[key]);
        assert!(set.find(Some("a"), Algorithm::Rs512).is_some());
        assert!(set.find(Some("a"), Algorithm::Rs256).is_none());
        assert!(set.find(None, Algorithm::Rs256).is_none());
    }

    #[test]
    fn what_is_of_no_use_is_left_out() {
        let with = |name: &str, value: Value| {
            let mut key = rsa("a");
            key[name] = value;
            key
        };
        let useless = [
            json!({"kty": "oct", "kid": "a", "k": "c2VjcmV0"}),
            json!({"kty": "EC", "crv": "P-256", "x": "AQ", "y": "AQ"}),
            json!({"kty": "OKP", "crv": "X25519", "x": BASE64.encode([9; 32])}),
            json!({"kty": "OKP", "crv": "Ed25519", "x": BASE64.encode([9; 31])}),
            json!({"kty": "OKP", "crv": "Ed25519"}),
            with("use", "enc".into()),
            with("key_ops", json!(["encrypt"])),
            with("alg", "RSA-OAEP".into()),
            with("alg", "none".into()),
            with("n", BASE64.encode([0xff; 128]).into()),
            with("n", "!".into()),
            with("e", "".into()),
            with("kid", 5.into()),
            json!([]),
            json!(null),
        ];
        assert_eq!(set(&useless).len(), 0);
        assert_eq!(set(&[with("key_ops", json!(["verify"])), with("kid", Value::Null)]).len(), 2);
    }

    #[test]
    fn what_is_no_document() {
        for text in ["", "{}", "[]", r#"{"keys":{}}"#, r#"{"keys":null}"#, "<html>"] {
            assert!(KeySet::read(text.as_bytes()).is_err(), "{text}");
        }
    }
}
