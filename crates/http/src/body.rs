//! The request body: bounded in bytes and in time.

use std::fmt::Display;
use std::pin::pin;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::Body;

use crate::error::ApiError;

/// How a body is limited.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BodyLimit {
    pub(crate) bytes_max: usize,
    pub(crate) timeout: Duration,
}

/// Reads the whole body.
///
/// Shape: a body in one frame is not copied.
/// # Errors
/// 413 before anything is read when the declared length is over the limit, or as soon as the bytes read are;
/// 408 past the time limit; 400 when the framing is wrong or the client went away. Each closes the connection.
pub(crate) async fn read<B>(body: B, limit: BodyLimit) -> Result<Bytes, ApiError>
where
    B: Body<Data = Bytes>,
    B::Error: Display,
{
    let declared = body.size_hint().lower();
    if declared > u64::try_from(limit.bytes_max).unwrap_or(u64::MAX) {
        return Err(ApiError::body_too_large(limit.bytes_max));
    }
    if body.is_end_stream() {
        return Ok(Bytes::new());
    }
    match tokio::time::timeout(limit.timeout, collect(body, limit.bytes_max)).await {
        Ok(result) => result,
        Err(_) => Err(ApiError::body_too_slow()),
    }
}

async fn collect<B>(body: B, bytes_max: usize) -> Result<Bytes, ApiError>
where
    B: Body<Data = Bytes>,
    B::Error: Display,
{
    // A declared length is trusted only up to a megabyte: the memory is taken when the bytes come.
    let declared = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    let mut body = pin!(body);
    let mut first = Bytes::new();
    let mut rest = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| ApiError::body_broken(format!("{error}")))?;
        let Ok(data) = frame.into_data() else { continue };
        if first.len() + rest.len() + data.len() > bytes_max {
            return Err(ApiError::body_too_large(bytes_max));
        }
        if first.is_empty() && rest.is_empty() {
            first = data;
            continue;
        }
        if rest.is_empty() {
            rest.reserve(declared.min(1 << 20).max(first.len() + data.len()));
            rest.extend_from_slice(&first);
            first = Bytes::new();
        }
        rest.extend_from_slice(&data);
    }
    Ok(if rest.is_empty() { first } else { rest.freeze() })
}
