//! Why a caller is not let in.

use hyper::StatusCode;

/// One reason per text of the API.
///
/// The texts tell the holder of a token what is wrong with it, and an attacker nothing that is not in the token
/// itself: everything after [`Denied::Signature`] is said only about tokens that a trusted party signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denied {
    /// There is no token.
    NoToken,
    /// No token of three parts with a header that can be read.
    Header,
    /// Signed with what is not accepted, or what no key is set for.
    Algorithm,
    /// Signed with a key that is not known.
    KeyId,
    /// The signature does not fit the key.
    Signature,
    /// The claims are no object, name one twice, or give one a value that it cannot have.
    Claims,
    /// Expired.
    Expired,
    /// Without an end, where one is required.
    NoExpiry,
    /// Not valid yet.
    NotYetValid,
    /// Issued later than now.
    IssuedInFuture,
    /// From another issuer.
    Issuer,
    /// For another audience.
    Audience,
    /// A good token whose roles do not reach the route.
    Level,
}

impl Denied {
    /// The text of the answer.
    pub fn text(self) -> &'static str {
        match self {
            Self::NoToken => "Authentication required",
            Self::Header => "Bad token header",
            Self::Algorithm => "Unsupported token algorithm",
            Self::KeyId => "Unknown key ID",
            Self::Signature => "Invalid token signature",
            Self::Claims => "Invalid token claims",
            Self::Expired => "Token has expired",
            Self::NoExpiry => "Token has no expiry",
            Self::NotYetValid => "Token not yet valid",
            Self::IssuedInFuture => "Token issued in the future",
            Self::Issuer => "Invalid token issuer",
            Self::Audience => "Invalid token audience",
            Self::Level => "Insufficient permissions",
        }
    }

    pub(crate) fn status(self) -> StatusCode {
        if self == Self::Level { StatusCode::FORBIDDEN } else { StatusCode::UNAUTHORIZED }
    }
}
