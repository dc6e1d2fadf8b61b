//! Tokens of other hands: signed by the reference library or forged, judged with a clock that stands.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use hyper::header::AUTHORIZATION;
use jsonwebtoken::{EncodingKey, crypto};
use serde_json::{Value, json};

use super::*;

pub(crate) const RSA_PRIVATE: &str = include_str!("../../tests/keys/rsa-a.pem");
pub(crate) const RSA_PUBLIC: &str = include_str!("../../tests/keys/rsa-a.pub.pem");
pub(crate) const RSA_PKCS1_PUBLIC: &str = include_str!("../../tests/keys/rsa-a.pkcs1.pub.pem");
pub(crate) const OTHER_RSA_PRIVATE: &str = include_str!("../../tests/keys/rsa-b.pem");
pub(crate) const SHORT_RSA_PUBLIC: &str = include_str!("../../tests/keys/rsa-1024.pub.pem");
pub(crate) const ED_PRIVATE: &str = include_str!("../../tests/keys/ed.pem");
pub(crate) const ED_PUBLIC: &str = include_str!("../../tests/keys/ed.pub.pem");
pub(crate) const EC_PUBLIC: &str = include_str!("../../tests/keys/ec.pub.pem");
pub(crate) const TLS_CERTIFICATE: &str = include_str!("../../tests/keys/tls.crt.pem");
pub(crate) const TLS_KEY: &str = include_str!("../../tests/keys/tls.pem");

pub(crate) const SECRET: &str = "a secret of the tests, 32 bytes long or more";
const NOW_S: u64 = 1_700_000_000;

/// As the program has them when only a secret is set.
pub(crate) fn options() -> AuthOptions {
    AuthOptions {
        secret: Some(SECRET.to_owned()),
        skip_paths: Vec::new(),
        ..AuthOptions::default()
    }
}

fn with(algorithm: &str, secret: Option<&str>, public_key: Option<&str>) -> Authenticator {
    let options = AuthOptions {
        algorithm: algorithm.parse().unwrap(),
        secret: secret.map(str::to_owned),
        public_key: public_key.map(str::to_owned),
        ..options()
    };
    Authenticator::new(options).unwrap().0
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

fn judge(authenticator: &Authenticator, token: &str) -> Result<Identity, Denied> {
    let mut headers = HeaderMap::new();
    headers.insert(AUTHORIZATION, format!("Bearer {token}").parse().unwrap());
    block_on(authenticator.identify(&headers, UNIX_EPOCH + Duration::from_secs(NOW_S)))
}

fn check(authenticator: &Authenticator, token: &str, expected: Result<(), Denied>) {
    assert_eq!(judge(authenticator, token).map(drop), expected, "{token}");
}

/// A token with any header, signed as `with` says.
fn sign(header: &Value, claims: &str, with: &EncodingKey, algorithm: &str) -> String {
    let signed = format!("{}.{}", BASE64.encode(header.to_string()), BASE64.encode(claims));
    let signature = crypto::sign(signed.as_bytes(), with, algorithm.parse().unwrap()).unwrap();
    format!("{signed}.{signature}")
}

fn secret(text: &str) -> EncodingKey {
    EncodingKey::from_secret(text.as_bytes()).unwrap()
}

fn rsa(pem: &str) -> EncodingKey {
    EncodingKey::from_rsa_pem(pem.as_bytes()).unwrap()
}

fn ed() -> EncodingKey {
    EncodingKey::from_ed_pem(ED_PRIVATE.as_bytes()).unwrap()
}

fn token(algorithm: &str, key: &EncodingKey) -> String {
    sign(&json!({"alg": algorithm}), r#"{"sub":"s","role":"admin"}"#, key, algorithm)
}

const HMAC: [&str; 3] = ["HS256", "HS384", "HS512"];
const RSA: [&str; 3] = ["RS256", "RS384", "RS512"];

#[test]
fn tokens_of_another_library_are_accepted() {
    let auto_secret = with("auto", Some(SECRET), None);
    for name in HMAC {
        check(&with(name, Some(SECRET), None), &token(name, &secret(SECRET)), Ok(()));
        check(&auto_secret, &token(name, &secret(SECRET)), Ok(()));
    }
    let auto_rsa = with("auto", None, Some(RSA_PKCS1_PUBLIC));
    for (setting, name) in RSA.iter().flat_map(|setting| RSA.map(|name| (setting, name))) {
        check(&with(setting, None, Some(RSA_PUBLIC)), &token(name, &rsa(RSA_PRIVATE)), Ok(()));
        check(&auto_rsa, &token(name, &rsa(RSA_PRIVATE)), Ok(()));
    }
    for setting in ["EdDSA", "auto"] {
        check(&with(setting, None, Some(ED_PUBLIC)), &token("EdDSA", &ed()), Ok(()));
    }
    let identity = judge(&auto_secret, &token("HS256", &secret(SECRET))).unwrap();
    assert_eq!(identity.sub.as_deref(), Some("s"));
    assert_eq!(identity.roles.iter().collect::<Vec<_>>(), [Role::Admin]);
}

#[test]
fn a_key_id_does_not_matter_where_nothing_is_published() {
    for id in [json!("unknown"), json!("../../etc/passwd"), json!("' OR 1=1 --"), json!(null)] {
        let header = json!({"alg": "HS256", "kid": id});
        let token = sign(&header, "{}", &secret(SECRET), "HS256");
        check(&with("HS256", Some(SECRET), None), &token, Ok(()));
    }
}

#[test]
fn what_is_not_signed_is_not_accepted() {
    let claims = BASE64.encode(r#"{"role":"admin"}"#);
    let both = with("auto", Some(SECRET), Some(RSA_PUBLIC));
    for name in
        ["none", "None", "NONE", "nOnE", "", "hs256", "Hs256", "HS-256", "RS", "ES256", "PS256"]
    {
        let header = BASE64.encode(json!({"alg": name}).to_string());
        for signature in ["", "AA", "c2ln"] {
            let token = format!("{header}.{claims}.{signature}");
            check(&both, &token, Err(Denied::Algorithm));
        }
    }
    for name in ["HS256", "RS256"] {
        let header = BASE64.encode(json!({"alg": name}).to_string());
        for signature in ["", "AA", "!!", "c2ln=", "c2lnbmF0dXJl"] {
            let token = format!("{header}.{claims}.{signature}");
            check(&both, &token, Err(Denied::Signature));
        }
    }
}

#[test]
fn a_public_key_is_never_taken_for_a_secret() {
    for name in HMAC {
        for text in [RSA_PUBLIC, RSA_PUBLIC.trim(), RSA_PKCS1_PUBLIC] {
            let forged = token(name, &secret(text));
            check(&with("RS256", None, Some(RSA_PUBLIC)), &forged, Err(Denied::Algorithm));
            check(&with("auto", None, Some(RSA_PUBLIC)), &forged, Err(Denied::Algorithm));
            check(&with("auto", Some(SECRET), Some(RSA_PUBLIC)), &forged, Err(Denied::Signature));
        }
    }
}

#[test]
fn a_token_of_another_algorithm_than_the_setting() {
    let (hs, rs) = (
        with("HS256", Some(SECRET), Some(RSA_PUBLIC)),
        with("RS256", Some(SECRET), Some(RSA_PUBLIC)),
    );
    for name in ["HS384", "HS512"] {
        check(&hs, &token(name, &secret(SECRET)), Err(Denied::Algorithm));
    }
    check(&hs, &token("RS256", &rsa(RSA_PRIVATE)), Err(Denied::Algorithm));
    check(&rs, &token("HS256", &secret(SECRET)), Err(Denied::Algorithm));
    check(&rs, &token("EdDSA", &ed()), Err(Denied::Algorithm));
    check(&with("auto", None, Some(RSA_PUBLIC)), &token("EdDSA", &ed()), Err(Denied::Algorithm));
}

#[test]
fn a_signature_of_another_key_algorithm_or_text() {
    let rs = with("RS256", None, Some(RSA_PUBLIC));
    check(&rs, &token("RS256", &rsa(OTHER_RSA_PRIVATE)), Err(Denied::Signature));
    let other = sign(&json!({"alg": "RS512"}), "{}", &rsa(RSA_PRIVATE), "RS256");
    check(&rs, &other, Err(Denied::Signature));
    let hs = with("HS256", Some(SECRET), None);
    check(&hs, &token("HS256", &secret("another secret")), Err(Denied::Signature));
    let good = token("HS256", &secret(SECRET));
    let (head, rest) = good.split_once('.').unwrap();
    let (_, signature) = rest.split_once('.').unwrap();
    let swapped = format!("{head}.{}.{signature}", BASE64.encode(r#"{"role":"admin"}"#));
    check(&hs, &swapped, Err(Denied::Signature));
    check(&hs, &good[..good.len() - 1], Err(Denied::Signature));
    check(&hs, &format!("{good}A"), Err(Denied::Signature));
}

#[test]
fn keys_in_a_header_are_not_looked_at() {
    let hs = with("HS256", Some(SECRET), None);
    for (field, value) in [
        ("jku", json!("http://127.0.0.1:1/keys")),
        ("x5u", json!("http://127.0.0.1:1/keys")),
        ("jwk", json!({"kty": "oct", "k": BASE64.encode("mine")})),
        ("x5c", json!(["AA"])),
        ("crit", json!(["exp"])),
    ] {
        let mut header = json!({"alg": "HS256"});
        header[field] = value;
        check(&hs, &sign(&header, "{}", &secret("mine"), "HS256"), Err(Denied::Header));
        check(&hs, &sign(&header, "{}", &secret(SECRET), "HS256"), Err(Denied::Header));
    }
}

#[test]
fn claims_count_only_under_a_signature_and_then_strictly() {
    let hs = with("HS256", Some(SECRET), None);
    let judge = |claims: &str, expected| {
        check(&hs, &sign(&json!({"alg": "HS256"}), claims, &secret(SECRET), "HS256"), expected);
        let forged = sign(&json!({"alg": "HS256"}), claims, &secret("mine"), "HS256");
        check(&hs, &forged, Err(Denied::Signature));
    };
    judge(&format!(r#"{{"exp":{}}}"#, NOW_S - 31), Err(Denied::Expired));
    judge(&format!(r#"{{"nbf":{}}}"#, NOW_S + 31), Err(Denied::NotYetValid));
    judge(&format!(r#"{{"iat":{}}}"#, NOW_S + 31), Err(Denied::IssuedInFuture));
    judge(r#"{"role":"read-only","role":"admin"}"#, Err(Denied::Claims));
    judge(r#"{"role":{"name":"admin"}}"#, Err(Denied::Claims));
    judge(r#"{"exp":"1e99"}"#, Err(Denied::Claims));
    judge(r#"{"exp":1e309}"#, Err(Denied::Claims));
    judge("[]", Err(Denied::Claims));
    judge("", Err(Denied::Claims));
    judge(r#"{"role":"admin"}"#, Ok(()));
}

#[test]
fn what_fits_the_reference_and_nothing_else() {
    // Every way to damage one byte of a good token: the reference has to refuse it too.
    use jsonwebtoken::{DecodingKey, Validation, decode};
    let hs = with("HS256", Some(SECRET), None);
    let good = token("HS256", &secret(SECRET));
    let key = DecodingKey::from_secret(SECRET.as_bytes()).unwrap();
    let mut rules = Validation::new(jsonwebtoken::Algorithm::HS256);
    rules.required_spec_claims.clear();
    rules.validate_exp = false;
    for at in 0..good.len() {
        for letter in ["A", "b", ".", "-", "="] {
            let mut changed = good.clone();
            changed.replace_range(at..=at, letter);
            let reference = decode::<Value>(&changed, &key, &rules).is_ok();
            let accepted = judge(&hs, &changed).is_ok();
            assert!(reference || !accepted, "{changed}");
            assert_eq!(accepted, changed == good, "{changed}");
        }
    }
}

#[test]
fn no_secret_is_shown() {
    let options = options();
    let shown = format!("{options:?} {:?}", Authenticator::new(options.clone()).unwrap());
    assert!(!shown.contains(SECRET), "{shown}");
}

proptest::proptest! {
    #[test]
    fn any_text_is_judged_without_a_panic(text in "[ -~]{0,200}") {
        let hs = with("HS256", Some(SECRET), None);
        proptest::prop_assert!(judge(&hs, &text).is_err());
    }

    #[test]
    fn any_header_and_claims_are_judged_without_a_panic(
        header in proptest::collection::vec(0_u8.., 0..80),
        claims in proptest::collection::vec(0_u8.., 0..80),
    ) {
        let rs = with("auto", Some(SECRET), Some(RSA_PUBLIC));
        let known = BASE64.encode(r#"{"alg":"RS256"}"#);
        for header in [BASE64.encode(header), known] {
            let token = format!("{header}.{}.c2ln", BASE64.encode(&claims));
            proptest::prop_assert!(judge(&rs, &token).is_err());
        }
    }
}
