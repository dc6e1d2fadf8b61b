//! The stored form of a sealed payload: a JSON object of three base64 texts.
//!
//! Written without blanks, in the order of the struct; read in any order, with blanks, and nothing else beside.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// Bytes of the IV as stored.
pub(super) const IV_LEN: usize = 16;
/// Bytes of the tag.
pub(super) const TAG_LEN: usize = 16;

/// An envelope, decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Envelope {
    pub(super) encrypted: Vec<u8>,
    pub(super) iv: [u8; IV_LEN],
    pub(super) auth_tag: [u8; TAG_LEN],
}

/// Why bytes are no envelope.
type Wrong = &'static str;

impl Envelope {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        // Four characters per three bytes, and 24 for each of the short texts.
        let mut text = String::with_capacity(self.encrypted.len().div_ceil(3) * 4 + 96);
        for (before, bytes) in [
            ("{\"encrypted\":\"", &*self.encrypted),
            ("\",\"iv\":\"", &self.iv),
            ("\",\"authTag\":\"", &self.auth_tag),
        ] {
            text.push_str(before);
            STANDARD.encode_string(bytes, &mut text);
        }
        text.push_str("\"}");
        text.into_bytes()
    }

    pub(super) fn parse(bytes: &[u8]) -> Result<Self, Wrong> {
        let (mut encrypted, mut iv, mut auth_tag) = (None, None, None);
        let mut text = Scanner(bytes);
        text.token(b'{')?;
        loop {
            let name = text.string()?;
            text.token(b':')?;
            let value = STANDARD.decode(text.string()?).map_err(|_| "a value is not base64")?;
            let field = match name {
                b"encrypted" => &mut encrypted,
                b"iv" => &mut iv,
                b"authTag" => &mut auth_tag,
                _ => return Err("it has a field that is not known"),
            };
            if field.replace(value).is_some() {
                return Err("it has a field twice");
            }
            if text.token(b',').is_err() {
                break;
            }
        }
        text.token(b'}')?;
        if !text.rest().is_empty() {
            return Err("bytes follow the object");
        }
        Ok(Self {
            encrypted: encrypted.ok_or("encrypted is missing")?,
            iv: fixed(iv).ok_or("iv is not of 16 bytes")?,
            auth_tag: fixed(auth_tag).ok_or("authTag is not of 16 bytes")?,
        })
    }
}

fn fixed<const N: usize>(bytes: Option<Vec<u8>>) -> Option<[u8; N]> {
    bytes?.try_into().ok()
}

/// Walks the tokens of the object.
struct Scanner<'a>(&'a [u8]);

impl<'a> Scanner<'a> {
    fn rest(&mut self) -> &'a [u8] {
        let blanks = self.0.iter().take_while(|byte| b" \t\r\n".contains(byte)).count();
        self.0 = self.0.get(blanks..).unwrap_or_default();
        self.0
    }

    fn token(&mut self, wanted: u8) -> Result<(), Wrong> {
        match self.rest().split_first() {
            Some((found, rest)) if *found == wanted => {
                self.0 = rest;
                Ok(())
            }
            _ => Err("it is not an object of texts"),
        }
    }

    /// A text; base64 and the names have nothing to escape.
    fn string(&mut self) -> Result<&'a [u8], Wrong> {
        self.token(b'"')?;
        let end = self.0.iter().position(|byte| *byte == b'"').ok_or("a text has no end")?;
        let (text, rest) = self.0.split_at_checked(end).ok_or("a text has no end")?;
        self.0 = rest.get(1..).unwrap_or_default();
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(encrypted: &[u8]) -> Envelope {
        Envelope { encrypted: encrypted.to_vec(), iv: [1; 16], auth_tag: [2; 16] }
    }

    #[test]
    fn it_has_the_published_form() {
        let text = concat!(
            r#"{"encrypted":"aGk=","iv":"AQEBAQEBAQEBAQEBAQEBAQ==","#,
            r#""authTag":"AgICAgICAgICAgICAgICAg=="}"#
        );
        assert_eq!(String::from_utf8(sample(b"hi").to_bytes()).unwrap(), text);
        assert_eq!(Envelope::parse(text.as_bytes()), Ok(sample(b"hi")));
    }

    #[test]
    fn another_order_and_blanks_are_read() {
        let text = concat!(
            " {\n \"authTag\" : \"AgICAgICAgICAgICAgICAg==\", \"iv\":\t\"AQEBAQEBAQEBAQEBAQEBAQ==\"",
            ",\"encrypted\":\"\"} \r\n"
        );
        assert_eq!(Envelope::parse(text.as_bytes()), Ok(sample(b"")));
    }

    #[test]
    fn any_length_comes_back() {
        for len in 0..200 {
            let envelope = sample(&vec![7; len]);
            assert_eq!(Envelope::parse(&envelope.to_bytes()), Ok(envelope), "{len}");
        }
    }

    #[test]
    fn everything_else_is_refused() {
        let good = String::from_utf8(sample(b"hi").to_bytes()).unwrap();
        for bad in [
            "",
            "{",
            "null",
            "{}",
            "{\"encrypted\"}",
            "{\"encrypted\":1}",
            &good[..good.len() - 1],
            &format!("{good}x"),
            &format!("{good}{good}"),
            &good.replace("aGk=", "aGk"),
            &good.replace("aGk=", "a\\u0047k="),
            &good.replace("aGk=", "a Gk="),
            &good.replace("AQEBAQEBAQEBAQEBAQEBAQ==", "AQEBAQEBAQEBAQEB"),
            &good.replace("authTag", "iv"),
            &good.replace("authTag", "tag"),
            &good.replace(",\"authTag\":\"AgICAgICAgICAgICAgICAg==\"", ""),
            &good.replace('}', ",}"),
            &good.replace("\"iv\"", "\"x\":\"\",\"iv\""),
        ] {
            assert!(Envelope::parse(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
