//! `POST /api/v1/lease/:leaseId/extend`.

use queen_broker::api::Api;
use serde::de::MapAccess;

use crate::app::Call;
use crate::error::{self, Answer, ApiError};
use crate::json::Json;
use crate::read::{self, Fields, Object, skip};

const SECONDS_DEFAULT: i64 = 60;

/// Moves the expiry of every partition lease with this id.
pub(crate) async fn extend<A: Api>(
    call: &Call<'_, A>,
    lease: String,
    body: &[u8],
) -> Result<Answer, ApiError> {
    let seconds = if read::is_empty(body) {
        SECONDS_DEFAULT
    } else {
        read::body::<Object<Body>>(body)?.0.seconds.unwrap_or(SECONDS_DEFAULT)
    };
    // A lease's length is an i32 everywhere else.
    let seconds = seconds.clamp(1, i64::from(i32::MAX));
    let extended = call.api()?.extend(call.tenant, lease.clone(), seconds, call.deadline()).await?;
    let expires = extended.expires.filter(|_| extended.renewed > 0);
    let mut json = Json::new();
    json.raw("{").field("leaseId").string(&lease).field("success").bool(extended.renewed > 0);
    json.field("renewed").u64(extended.renewed.into());
    for name in ["newExpiresAt", "expiresAt", "lease_expires_at"] {
        json.field(name).option(expires, Json::iso3);
    }
    json.raw("}");
    Ok(error::ok(json))
}

#[derive(Debug, Default)]
struct Body {
    seconds: Option<i64>,
}

impl<'de> Fields<'de> for Body {
    const NAME: &'static str = "an object with \"seconds\"";

    fn field<A: MapAccess<'de>>(&mut self, name: &str, map: &mut A) -> Result<(), A::Error> {
        match name {
            "seconds" => self.seconds = map.next_value()?,
            _ => skip(map)?,
        }
        Ok(())
    }
}
