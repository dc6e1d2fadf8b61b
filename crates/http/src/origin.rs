//! Who may make a browser change something here: only pages that this node served itself.
//!
//! Without authentication a page of any site could post to a broker on the visitor's network. A browser says
//! where such a request comes from, and programs say nothing, so a foreign `Origin` is refused and a missing
//! one passes. No CORS header is ever sent.

use hyper::Uri;
use hyper::header::{HOST, HeaderMap, ORIGIN};

/// Whether a request that changes something may be carried out.
pub(crate) fn is_own(headers: &HeaderMap, uri: &Uri) -> bool {
    if headers.get("sec-fetch-site").is_some_and(|site| site == "cross-site") {
        return false;
    }
    let mut origins = headers.get_all(ORIGIN).iter();
    let Some(origin) = origins.next() else { return true };
    if origins.next().is_some() {
        return false;
    }
    // HTTP/2 carries the host in the request line's place.
    let host = match headers.get(HOST) {
        Some(host) => host.to_str().ok(),
        None => uri.authority().map(hyper::http::uri::Authority::as_str),
    };
    let (Some(host), Ok(origin)) = (host, origin.to_str()) else { return false };
    let Some((scheme, authority)) = origin.split_once("://") else { return false };
    let default_port = match scheme {
        "http" => ":80",
        "https" => ":443",
        _ => return false,
    };
    let bare = |name: &str| name.strip_suffix(default_port).unwrap_or(name).to_ascii_lowercase();
    !authority.is_empty() && bare(authority) == bare(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(host: &str, origin: &str, expected: bool) {
        let mut headers = HeaderMap::new();
        headers.insert(HOST, host.parse().unwrap());
        headers.insert(ORIGIN, origin.parse().unwrap());
        assert_eq!(is_own(&headers, &Uri::from_static("/")), expected, "{host} {origin}");
    }

    #[test]
    fn only_the_own_host_passes() {
        check("queen:6632", "http://queen:6632", true);
        check("Queen:6632", "https://queen:6632", true);
        check("queen", "https://queen", true);
        check("queen:80", "http://queen", true);
        check("queen:6632", "http://queen", false);
        check("queen:6632", "http://evil.example", false);
        check("queen:6632", "null", false);
        check("queen:6632", "", false);
        check("queen:6632", "file://queen:6632", false);
        assert!(is_own(&HeaderMap::new(), &Uri::from_static("/")));
    }

    #[test]
    fn two_origins_or_a_cross_site_fetch_are_refused() {
        let mut headers = HeaderMap::new();
        headers.insert(HOST, "q".parse().unwrap());
        headers.append(ORIGIN, "http://q".parse().unwrap());
        headers.append(ORIGIN, "http://q".parse().unwrap());
        assert!(!is_own(&headers, &Uri::from_static("/")));
        let mut headers = HeaderMap::new();
        headers.insert("sec-fetch-site", "cross-site".parse().unwrap());
        assert!(!is_own(&headers, &Uri::from_static("/")));
    }
}
