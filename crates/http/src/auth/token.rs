//! From the `Authorization` header to the parts of a token, before anything in it is believed.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use hyper::header::{AUTHORIZATION, HeaderMap};

use crate::auth::Denied;
use crate::auth::object::Object;

/// Bytes of a token at most. Directories that list a person's groups make tokens of several KiB.
pub(super) const TOKEN_BYTES_MAX: usize = 16 * 1024;

/// Header fields that name a key, or where to get one: a key from the token itself would prove nothing.
const KEY_FIELDS: [&str; 4] = ["jwk", "jku", "x5c", "x5u"];

/// A token taken apart.
#[derive(Debug)]
pub(super) struct Token<'a> {
    pub(super) algorithm: String,
    pub(super) key_id: Option<String>,
    /// What the signature is about.
    pub(super) signed: &'a str,
    pub(super) payload: &'a str,
    pub(super) signature: &'a str,
}

/// The token of a request: with or without the scheme in front of it.
pub(super) fn of_request(headers: &HeaderMap) -> Result<&str, Denied> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let value = values.next().ok_or(Denied::NoToken)?;
    if values.next().is_some() {
        // Whoever is in front of this node may have looked at the other one.
        return Err(Denied::Header);
    }
    let value = value.to_str().map_err(|_| Denied::Header)?.trim();
    let token = match value.split_once([' ', '\t']) {
        Some((scheme, token)) if scheme.eq_ignore_ascii_case("bearer") => token.trim(),
        Some(_) => return Err(Denied::NoToken),
        None if value.eq_ignore_ascii_case("bearer") => "",
        None => value,
    };
    if token.is_empty() { Err(Denied::NoToken) } else { Ok(token) }
}

impl<'a> Token<'a> {
    pub(super) fn split(token: &'a str) -> Result<Self, Denied> {
        if token.len() > TOKEN_BYTES_MAX {
            return Err(Denied::Header);
        }
        let (signed, signature) = token.rsplit_once('.').ok_or(Denied::Header)?;
        let (header, payload) = signed.split_once('.').ok_or(Denied::Header)?;
        if payload.contains('.') {
            return Err(Denied::Header);
        }
        let header = BASE64.decode(header).map_err(|_| Denied::Header)?;
        let header = Object::read(&header).map_err(|_| Denied::Header)?;
        let is_unfit = |name: &&str| header.value(name).is_some();
        // `crit` lists extensions that a reader has to know, and this one knows none.
        if KEY_FIELDS.iter().chain(&["crit"]).any(is_unfit) {
            return Err(Denied::Header);
        }
        let text = |name: &str| header.text(name).map_err(|_| Denied::Header);
        let algorithm = text("alg")?.ok_or(Denied::Header)?.to_owned();
        let key_id = text("kid")?.map(str::to_owned);
        Ok(Self { algorithm, key_id, signed, payload, signature })
    }

    pub(super) fn signature(&self) -> Result<Vec<u8>, Denied> {
        BASE64.decode(self.signature).map_err(|_| Denied::Signature)
    }

    /// The claims as they were signed.
    pub(super) fn claims(&self) -> Result<Object, Denied> {
        let payload = BASE64.decode(self.payload).map_err(|_| Denied::Claims)?;
        Object::read(&payload).map_err(|_| Denied::Claims)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(values: &[&str]) -> Result<String, Denied> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(AUTHORIZATION, value.parse().unwrap());
        }
        of_request(&headers).map(str::to_owned)
    }

    #[test]
    fn a_token_with_or_without_its_scheme() {
        for value in ["Bearer a.b.c", "bearer a.b.c", "BEARER   a.b.c ", "a.b.c", "Bearer\ta.b.c"] {
            assert_eq!(request(&[value]).as_deref(), Ok("a.b.c"), "{value}");
        }
        for value in ["", " ", "Bearer", "bearer ", "Basic dXNlcjpw", "Digest a.b.c"] {
            assert_eq!(request(&[value]), Err(Denied::NoToken), "{value}");
        }
        assert_eq!(request(&[]), Err(Denied::NoToken));
        assert_eq!(request(&["Bearer a.b.c", "Bearer a.b.c"]), Err(Denied::Header));
    }

    fn header(json: &str) -> Result<(String, Option<String>), Denied> {
        let text = format!("{}.e30.c2ln", BASE64.encode(json));
        Token::split(&text).map(|token| (token.algorithm, token.key_id))
    }

    #[test]
    fn headers() {
        let read = |json| header(json).map(|(algorithm, key)| (algorithm, key.unwrap_or_default()));
        assert_eq!(read(r#"{"alg":"HS256"}"#), Ok(("HS256".into(), String::new())));
        let known = r#"{"typ":"JWT","alg":"RS256","kid":"../../a'; --","x5t":"x"}"#;
        assert_eq!(read(known), Ok(("RS256".into(), "../../a'; --".into())));
        for json in [
            "",
            "[]",
            "{}",
            r#"{"alg":null}"#,
            r#"{"alg":["HS256"]}"#,
            r#"{"alg":"HS256","kid":5}"#,
            r#"{"alg":"HS256","alg":"none"}"#,
            r#"{"alg":"HS256","crit":["exp"],"exp":1}"#,
            r#"{"alg":"HS256","jku":"http://keys/"}"#,
            r#"{"alg":"HS256","x5u":"http://keys/"}"#,
            r#"{"alg":"HS256","jwk":{}}"#,
            r#"{"alg":"HS256","x5c":[]}"#,
        ] {
            assert_eq!(header(json), Err(Denied::Header), "{json}");
        }
    }

    #[test]
    fn what_has_no_three_parts_or_is_too_long() {
        let header = BASE64.encode(r#"{"alg":"HS256"}"#);
        for text in ["", ".", "..", "a", "a.b", "e30=.e30.", "{}.e30."] {
            assert_eq!(Token::split(text).err(), Some(Denied::Header), "{text}");
        }
        let five = format!("{header}.a.b.c.d");
        assert_eq!(Token::split(&five).err(), Some(Denied::Header));
        let long = format!("{header}.{}.c", "e".repeat(1 << 20));
        assert_eq!(Token::split(&long).err(), Some(Denied::Header));
    }
}
