//! The cipher against another implementation's bytes, against changed bytes, and its nonces.

use std::collections::HashSet;

use super::*;

const PAYLOAD: &[u8] = br#"{"orderId":8891}"#;

fn key(first: u8) -> EncryptionKey {
    let mut key = [0; KEY_LEN];
    (first..).zip(&mut key).for_each(|(from, to)| *to = from);
    EncryptionKey(key)
}

#[test]
fn a_key_is_64_hex_digits() {
    let text = "000102030405060708090a0b0c0d0e0f101112131415161718191A1B1C1D1E1F";
    assert_eq!(EncryptionKey::parse(text), Ok(key(0)));
    assert_eq!(EncryptionKey::parse(""), Err(KeyTextError::Length(0)));
    assert_eq!(EncryptionKey::parse(&text[2..]), Err(KeyTextError::Length(62)));
    assert_eq!(EncryptionKey::parse(&format!("{text}\n")), Err(KeyTextError::Length(65)));
    assert_eq!(EncryptionKey::parse(&"é".repeat(32)), Err(KeyTextError::Digits));
    assert_eq!(EncryptionKey::parse(&text.replace("0a", "0g")), Err(KeyTextError::Digits));
    assert_eq!(EncryptionKey::parse(&text.replace("0a", "+a")), Err(KeyTextError::Digits));
}

#[test]
fn a_key_is_not_shown() {
    assert_eq!(format!("{:?} {:?}", key(0), PayloadCipher::new(&key(0))), "<a key> PayloadCipher");
}

/// Envelope and fingerprint as Python's `cryptography` and `hmac` make them.
#[test]
fn another_implementation_agrees() {
    let envelope = concat!(
        r#"{"encrypted":"EiQschhfoD371c2itnNTyw==","iv":"8PHy8/T19vf4+fr7/P3+/w==","#,
        r#""authTag":"0xePXj7fp6Qmk25PmGiCXQ=="}"#
    );
    assert_eq!(PayloadCipher::new(&key(0)).open(envelope.as_bytes()).unwrap(), PAYLOAD);
    let mark =
        key(0).fingerprint().iter().fold(String::new(), |hex, byte| hex + &format!("{byte:02x}"));
    assert_eq!(mark, "18bc93c4d7df7e95d96e8c0b5b2e7665");
}

#[test]
fn payloads_of_any_length_come_back() {
    let cipher = PayloadCipher::new(&key(0));
    for len in (0..300).chain([1 << 16, (1 << 20) + 1]) {
        let payload = vec![0x5a; len];
        let envelope = cipher.seal(&payload).unwrap();
        assert_eq!(cipher.open(&envelope).unwrap(), payload, "{len}");
    }
}

#[test]
fn another_key_opens_nothing() {
    let envelope = PayloadCipher::new(&key(0)).seal(PAYLOAD).unwrap();
    assert_eq!(PayloadCipher::new(&key(1)).open(&envelope), Err(CipherError::Tag));
}

/// A changed envelope is refused, or says the same: four of the stored IV's bytes are not used.
#[test]
fn a_changed_byte_is_never_another_payload() {
    let cipher = PayloadCipher::new(&key(0));
    let envelope = cipher.seal(PAYLOAD).unwrap();
    let mut same = 0;
    for at in 0..envelope.len() {
        for bit in 0..8 {
            let mut changed = envelope.clone();
            changed[at] ^= 1 << bit;
            if let Ok(payload) = cipher.open(&changed) {
                assert_eq!(payload, PAYLOAD);
                same += 1;
            }
        }
    }
    assert!(same <= 6 * 8, "{same}");
    for len in 0..envelope.len() {
        assert!(cipher.open(&envelope[..len]).is_err(), "{len}");
    }
    for not_sealed in [PAYLOAD, b"null", b""] {
        assert!(matches!(cipher.open(not_sealed), Err(CipherError::Envelope(_))));
    }
}

/// Every IV is drawn from the operating system, so a second cipher of the same key, as after a restart, shares nothing
/// with the first. All sixteen bytes are drawn.
#[test]
fn a_million_nonces_are_all_different() {
    const COUNT: usize = 1_000_000;
    let ciphers = [PayloadCipher::new(&key(0)), PayloadCipher::new(&key(0))];
    let mut nonces = HashSet::new();
    let mut seen = [[false; 256]; IV_LEN];
    for at in 0..COUNT {
        let envelope = Envelope::parse(&ciphers[at % 2].seal(b"1").unwrap()).unwrap();
        nonces.insert(<[u8; NONCE_LEN]>::from(nonce(&envelope.iv)));
        for (seen, byte) in seen.iter_mut().zip(envelope.iv) {
            seen[usize::from(byte)] = true;
        }
    }
    assert_eq!(nonces.len(), COUNT);
    assert!(seen.iter().flatten().all(|seen| *seen));
}

#[test]
fn a_vault_without_a_key_shows_plain_payloads_only() {
    let vault = Vault::without_key();
    assert_eq!(vault.opened(PAYLOAD, false).unwrap(), PAYLOAD);
    let envelope = PayloadCipher::new(&key(0)).seal(PAYLOAD).unwrap();
    assert_eq!(vault.opened(&envelope, true), Err(CipherError::NoKey));
    // A payload that looks like an envelope and is none is a payload.
    assert_eq!(vault.opened(&envelope, false).unwrap(), envelope);
}
