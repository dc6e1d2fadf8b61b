//! The address of a node, and names in it.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, PercentEncode, utf8_percent_encode};
use ureq::http::Uri;

use crate::client::failure::Failure;

/// Where a node listens by default.
pub(super) const DEFAULT: &str = "http://127.0.0.1:6632";

/// A dot is encoded too: a name may be `..`, which a proxy would take for a step up.
const NAME: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_');

/// A name as a segment of a path or as the value of a parameter.
pub(super) fn encoded(name: &str) -> PercentEncode<'_> {
    utf8_percent_encode(name, NAME)
}

/// What stands before the path of every route: scheme, host and port, and the prefix of a proxy.
///
/// # Errors
/// It is no address of a node.
pub(super) fn base(url: &str) -> Result<String, Failure> {
    let url = if url.is_empty() { DEFAULT } else { url };
    let refused = |reason: &str| {
        Failure::said(format!("the address (--url, QUEEN_URL) {reason}: it is like {DEFAULT}"))
    };
    let uri: Uri = url.parse().map_err(|_| refused("is no URL"))?;
    let Some(authority) = uri.authority() else { return Err(refused("is no URL")) };
    if !matches!(uri.scheme_str(), Some("http" | "https")) {
        return Err(refused("is neither http nor https"));
    }
    // Not shown: it may hold a password.
    if authority.as_str().contains('@') {
        return Err(refused("names a user, which a node does not ask for"));
    }
    if authority.host().is_empty() {
        return Err(refused("names no host"));
    }
    if uri.query().is_some() || url.contains('#') {
        return Err(refused("has more than host, port and path"));
    }
    Ok(url.trim_end_matches('/').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_http_and_a_host() {
        let check = |url, expected: &str| assert_eq!(base(url).unwrap(), expected);
        check("", DEFAULT);
        check("http://localhost:6632/", "http://localhost:6632");
        check("https://[::1]/queen/", "https://[::1]/queen");
        for url in [
            "localhost:6632",
            "localhost",
            "ftp://host",
            "http://",
            "http://:80",
            "http://a b",
            "http://user:secret@host",
            "http://host/?x=1",
            "http://host/#x",
        ] {
            let Err(Failure::Said(text)) = base(url) else { panic!("{url}") };
            assert!(text.contains("--url") && !text.contains("secret"), "{text}");
        }
    }

    #[test]
    fn any_name_is_one_segment() {
        let check = |name, expected: &str| assert_eq!(encoded(name).to_string(), expected);
        check("orders-1_a", "orders-1_a");
        check("..", "%2E%2E");
        check("a/b c?d&e=%é", "a%2Fb%20c%3Fd%26e%3D%25%C3%A9");
    }
}
