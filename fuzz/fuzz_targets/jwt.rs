//! Bytes as an `Authorization` header, and as header and claims of a token that is signed: accepted only when another
//! library finds the signature good.
#![no_main]

use std::pin::pin;
use std::sync::LazyLock;
use std::task::{Context, Poll, Waker};
use std::time::SystemTime;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use hyper::HeaderMap;
use hyper::header::{AUTHORIZATION, HeaderValue};
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, crypto};
use libfuzzer_sys::fuzz_target;
use queen_http::{Accepted, AuthOptions, Authenticator};

const SECRET: &str = "a secret that only this target has";
const RSA_PUBLIC: &str = include_str!("../../crates/http/tests/keys/rsa-a.pub.pem");

static AUTHENTICATOR: LazyLock<Authenticator> = LazyLock::new(|| {
    let options = AuthOptions {
        algorithm: Accepted::Auto,
        secret: Some(SECRET.to_owned()),
        public_key: Some(RSA_PUBLIC.to_owned()),
        ..AuthOptions::default()
    };
    Authenticator::new(options).expect("both keys are good").0
});

fuzz_target!(|bytes: &[u8]| {
    judge(bytes);
    let Some((header, claims)) = bytes.iter().position(|byte| *byte == b'\n').map(|at| {
        let (header, claims) = bytes.split_at(at);
        (BASE64.encode(header), BASE64.encode(&claims[1..]))
    }) else {
        return;
    };
    let signed = format!("{header}.{claims}");
    let key = EncodingKey::from_secret(SECRET.as_bytes()).expect("it is not empty");
    let signature = crypto::sign(signed.as_bytes(), &key, Algorithm::HS256).expect("a known kind");
    judge(format!("Bearer {signed}.{signature}").as_bytes());
});

fn judge(value: &[u8]) {
    let Ok(value) = HeaderValue::from_bytes(value) else { return };
    let mut headers = HeaderMap::new();
    headers.insert(AUTHORIZATION, value.clone());
    let verdict = pin!(AUTHENTICATOR.identify(&headers, SystemTime::now()));
    // Nothing is published, so nothing is waited for.
    let Poll::Ready(verdict) = verdict.poll(&mut Context::from_waker(Waker::noop())) else {
        panic!("it waits");
    };
    if verdict.is_ok() {
        let token = value.to_str().expect("accepted").split_whitespace().last().expect("accepted");
        let (signed, signature) = token.rsplit_once('.').expect("accepted");
        let secret = DecodingKey::from_secret(SECRET.as_bytes()).expect("it is not empty");
        let rsa = DecodingKey::from_rsa_pem(RSA_PUBLIC.as_bytes()).expect("it is a key");
        let is_good = |key, algorithm| {
            crypto::verify(signature, signed.as_bytes(), key, algorithm).unwrap_or(false)
        };
        let of_secret = [Algorithm::HS256, Algorithm::HS384, Algorithm::HS512];
        let of_rsa = [Algorithm::RS256, Algorithm::RS384, Algorithm::RS512];
        let by_secret = of_secret.into_iter().any(|algorithm| is_good(&secret, algorithm));
        assert!(by_secret || of_rsa.into_iter().any(|algorithm| is_good(&rsa, algorithm)));
    }
}
