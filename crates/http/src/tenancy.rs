//! Whose queues a request is about.
//!
//! The header is the word of a proxy in front of this node that has checked it; so it counts only where the operator
//! says that there is one. Everywhere else it is a header like any other, and there is one tenant.

use hyper::header::HeaderMap;
use queen_record::ids::{Tenant, Uuid};

use crate::error::ApiError;

const HEADER: &str = "x-queen-tenant";

/// The tenant of a request.
///
/// # Errors
/// 400 when the header counts and is no UUID, or is there twice.
pub(crate) fn of_request(headers: &HeaderMap, is_on: bool) -> Result<Tenant, ApiError> {
    if !is_on {
        return Ok(Tenant::DEFAULT);
    }
    let mut values = headers.get_all(HEADER).iter();
    let Some(value) = values.next() else { return Ok(Tenant::DEFAULT) };
    let tenant = value.to_str().ok().and_then(Uuid::parse).map(Tenant);
    tenant
        .filter(|_| values.next().is_none())
        .ok_or_else(|| ApiError::bare_bad_request("invalid x-queen-tenant header (must be a UUID)"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TENANT: &str = "7f1c0f6e-2d1b-4c7e-9a53-0b6f3e5d8c21";

    fn check(values: &[&str], is_on: bool, expected: Option<&str>) {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(HEADER, value.parse().unwrap());
        }
        let tenant = of_request(&headers, is_on).ok().map(|tenant| tenant.to_string());
        assert_eq!(tenant.as_deref(), expected, "{values:?} {is_on}");
    }

    #[test]
    fn a_uuid_where_the_header_counts() {
        let default = "00000000-0000-0000-0000-000000000001";
        check(&[], true, Some(default));
        check(&[TENANT], true, Some(TENANT));
        check(&[&TENANT.to_uppercase()], true, Some(TENANT));
        for malformed in ["", " ", "default", &TENANT[1..], &TENANT.replace('-', ""), "{}"] {
            check(&[malformed], true, None);
            check(&[malformed], false, Some(default));
        }
        check(&[TENANT, TENANT], true, None);
        check(&[TENANT], false, Some(default));
    }
}
