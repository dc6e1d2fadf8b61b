//! Public keys as text: PEM, and as much of DER as the two kinds of key need.
//!
//! ```text
//!   "PUBLIC KEY"      SEQUENCE { SEQUENCE { OID, parameters }, BIT STRING }   RSA: the next line; Ed25519: 32 bytes
//!   "RSA PUBLIC KEY"  SEQUENCE { INTEGER n, INTEGER e }
//! ```

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

const SEQUENCE: u8 = 0x30;
const INTEGER: u8 = 0x02;
const BIT_STRING: u8 = 0x03;
const OID: u8 = 0x06;

/// 1.2.840.113549.1.1.1
const RSA_OID: [u8; 9] = [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01];
/// 1.3.101.112
const ED25519_OID: [u8; 3] = [0x2b, 0x65, 0x70];

/// What a PEM text holds.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Encoded {
    /// Modulus and exponent, big-endian.
    Rsa {
        n: Vec<u8>,
        e: Vec<u8>,
    },
    Ed25519(Vec<u8>),
}

/// Reads a public key; the reason why it is none ends the sentence "is no public key: ".
pub(super) fn read(text: &str) -> Result<Encoded, &'static str> {
    // As environment files write line breaks.
    let text = text.replace("\\n", "\n");
    let (label, der) = pem(&text).ok_or("it is no PEM text (-----BEGIN PUBLIC KEY----- …)")?;
    match label {
        "PUBLIC KEY" => {
            let (oid, key) = subject_key(&der).ok_or("its content is damaged")?;
            if oid == RSA_OID {
                rsa(key).ok_or("its RSA key is damaged")
            } else if oid == ED25519_OID {
                Ok(Encoded::Ed25519(key.to_vec()))
            } else {
                Err("it is neither an RSA nor an Ed25519 key")
            }
        }
        "RSA PUBLIC KEY" => rsa(&der).ok_or("its RSA key is damaged"),
        "CERTIFICATE" => Err("it is a certificate: take the public key out of it"),
        label if label.ends_with("PRIVATE KEY") => {
            Err("it is a private key, which this node must not have")
        }
        _ => Err("it is another kind of PEM text"),
    }
}

/// Label and content. Line breaks may have got lost.
fn pem(text: &str) -> Option<(&str, Vec<u8>)> {
    let (label, rest) = text.trim().strip_prefix("-----BEGIN ")?.split_once("-----")?;
    let (body, end) = rest.split_once("-----END ")?;
    if end.strip_suffix("-----") != Some(label) {
        return None;
    }
    let body: String = body.split_whitespace().collect();
    Some((label, STANDARD.decode(body).ok()?))
}

/// Takes the element with this tag from the front.
fn take<'a>(bytes: &mut &'a [u8], tag: u8) -> Option<&'a [u8]> {
    let (found, rest) = bytes.split_first()?;
    let (first, rest) = rest.split_first()?;
    let (len, rest) = match first {
        0..=0x7f => (usize::from(*first), rest),
        // Longer lengths than these three bytes' are no key's.
        0x81..=0x83 => {
            let (len, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            (len.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte)), rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(len)?;
    *bytes = rest;
    (*found == tag).then_some(content)
}

/// The algorithm and the key in it.
fn subject_key(mut der: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut info = take(&mut der, SEQUENCE)?;
    let mut algorithm = take(&mut info, SEQUENCE)?;
    let oid = take(&mut algorithm, OID)?;
    // The first byte says how many bits of the last one do not count.
    let key = take(&mut info, BIT_STRING)?.strip_prefix(&[0])?;
    (der.is_empty() && info.is_empty()).then_some((oid, key))
}

fn rsa(mut der: &[u8]) -> Option<Encoded> {
    let mut numbers = take(&mut der, SEQUENCE)?;
    let n = take(&mut numbers, INTEGER)?.to_vec();
    let e = take(&mut numbers, INTEGER)?.to_vec();
    (der.is_empty() && numbers.is_empty()).then_some(Encoded::Rsa { n, e })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::tests::{ED_PUBLIC, RSA_PKCS1_PUBLIC, RSA_PUBLIC};

    #[test]
    fn both_forms_of_an_rsa_key_are_the_same_key() {
        let key = read(RSA_PUBLIC).unwrap();
        assert_eq!(read(RSA_PKCS1_PUBLIC).unwrap(), key);
        let Encoded::Rsa { n, e } = key else { panic!("{key:?}") };
        assert_eq!((n.len(), &*e), (257, [1, 0, 1].as_slice()));
    }

    #[test]
    fn line_breaks_may_be_lost() {
        let expected = read(ED_PUBLIC).unwrap();
        assert!(matches!(&expected, Encoded::Ed25519(key) if key.len() == 32));
        for line_break in ["\\n", " ", "\r\n", ""] {
            let text = ED_PUBLIC.replace('\n', line_break);
            assert_eq!(read(&text).as_ref(), Ok(&expected), "{line_break:?}");
        }
    }

    #[test]
    fn no_byte_of_a_key_is_read_past_its_end() {
        let (_, der) = pem(RSA_PUBLIC).unwrap();
        for len in 0..der.len() {
            assert_eq!(subject_key(&der[..len]), None, "{len}");
        }
        let mut longer = der.clone();
        longer.push(0);
        assert_eq!(subject_key(&longer), None);
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in proptest::collection::vec(0_u8.., 0..64)) {
            let mut left = &*bytes;
            while take(&mut left, SEQUENCE).is_some() {}
            let text = format!(
                "-----BEGIN PUBLIC KEY-----{}-----END PUBLIC KEY-----",
                STANDARD.encode(&bytes),
            );
            proptest::prop_assert!(read(&text).is_err());
        }
    }
}
