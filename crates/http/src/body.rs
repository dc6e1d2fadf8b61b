//! The request body: bounded in bytes and in time, alone and together with all others.
//!
//! What bodies take together is reserved before it is read: the declared length at once, a body without one
//! in steps. The reservation is kept until the request is answered, because the handler works on the bytes.

use std::fmt::Display;
use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::HeaderMap;
use hyper::body::Body;
use hyper::header::{HeaderValue, TRANSFER_ENCODING};
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::error::ApiError;

/// Bytes of all bodies together at least; twice the limit of one body when that is more.
const BODIES_BYTES_MIN: usize = 256 << 20;
/// Bytes of every body that are not counted: acks are let through while pushes fill the budget.
const FREE_BYTES: usize = 16 << 10;
/// Bytes that a body of unknown length reserves at a time.
const STEP_BYTES: usize = 1 << 20;
/// How long a body waits for room.
const ROOM_WAIT: Duration = Duration::from_secs(15);
/// Bytes of one permit.
const UNIT_BYTES: usize = 1024;

/// How a body is limited.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BodyLimit {
    pub(crate) bytes_max: usize,
    pub(crate) timeout: Duration,
}

/// The bytes that all bodies in flight may take together.
#[derive(Debug)]
pub(crate) struct BodyBudget {
    units: Semaphore,
    wait: Duration,
}

/// A part of the budget; given back when dropped.
pub(crate) type Room<'a> = Option<SemaphorePermit<'a>>;

/// A whole body and its part of the budget.
#[derive(Debug)]
pub(crate) struct Received<'a> {
    pub(crate) bytes: Bytes,
    pub(crate) room: Room<'a>,
}

impl BodyBudget {
    /// A budget for bodies of at most `body_bytes_max` each.
    pub(crate) fn new(body_bytes_max: usize) -> Self {
        let bytes = body_bytes_max.saturating_mul(2).max(BODIES_BYTES_MIN);
        Self::of(bytes, ROOM_WAIT)
    }

    fn of(bytes: usize, wait: Duration) -> Self {
        let units = bytes.div_ceil(UNIT_BYTES).min(Semaphore::MAX_PERMITS);
        Self { units: Semaphore::new(units), wait }
    }

    /// Makes a part as large as this, at once or not at all: who holds a part already must not wait for others that do.
    ///
    /// # Errors
    /// 429 when there is no room.
    pub(crate) fn grow<'a>(&'a self, room: &mut Room<'a>, bytes: usize) -> Result<(), ApiError> {
        let held = room.as_ref().map_or(0, SemaphorePermit::num_permits);
        let missing = u32::try_from(bytes.div_ceil(UNIT_BYTES).saturating_sub(held));
        let missing = missing.unwrap_or(u32::MAX);
        if missing == 0 {
            return Ok(());
        }
        let more = self.units.try_acquire_many(missing);
        let more = more.map_err(|_| ApiError::bodies_overloaded())?;
        match room {
            Some(room) => room.merge(more),
            None => *room = Some(more),
        }
        Ok(())
    }

    /// The first part of a body, waited for.
    async fn reserve(&self, bytes: usize) -> Result<SemaphorePermit<'_>, ApiError> {
        let units = u32::try_from(bytes.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX);
        match tokio::time::timeout(self.wait, self.units.acquire_many(units)).await {
            Ok(Ok(room)) => Ok(room),
            // The semaphore is never closed.
            Ok(Err(_)) | Err(_) => Err(ApiError::bodies_overloaded()),
        }
    }
}

/// Refuses a body that is coded in another way than in chunks: what stands in it could not be read.
///
/// # Errors
/// 400, and the connection ends.
pub(crate) fn check_coding(headers: &HeaderMap) -> Result<(), ApiError> {
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    let known =
        |coding: &HeaderValue| coding.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked");
    match (codings.next(), codings.next()) {
        (None, _) => Ok(()),
        (Some(coding), None) if known(coding) => Ok(()),
        _ => Err(ApiError::body_broken("Transfer-Encoding: only `chunked` is read, and only once")),
    }
}

/// Reads the whole body.
///
/// Shape: a body in one frame is not copied.
/// # Errors
/// 413 before anything is read when the declared length is over the limit, or as soon as the bytes read are;
/// 429 when there is no room for it; 408 past the time limit; 503 once `stopping` completes; 400 when the
/// framing is wrong or the client went away. Each closes the connection.
pub(crate) async fn read<B>(
    body: B,
    limit: BodyLimit,
    budget: &BodyBudget,
    stopping: impl Future<Output = ()>,
) -> Result<Received<'_>, ApiError>
where
    B: Body<Data = Bytes>,
    B::Error: Display,
{
    let declared = body.size_hint().lower();
    if declared > u64::try_from(limit.bytes_max).unwrap_or(u64::MAX) {
        return Err(ApiError::body_too_large(limit.bytes_max));
    }
    if body.is_end_stream() {
        return Ok(Received { bytes: Bytes::new(), room: None });
    }
    let declared = usize::try_from(declared).unwrap_or(usize::MAX);
    let received = async {
        let room = match declared.checked_sub(FREE_BYTES) {
            None | Some(0) => None,
            Some(counted) => Some(budget.reserve(counted).await?),
        };
        let reserved = declared.max(FREE_BYTES);
        let collected = Collected { declared, reserved, room, ..Collected::default() };
        let collecting = collected.collect(body, limit.bytes_max, budget);
        match tokio::time::timeout(limit.timeout, collecting).await {
            Ok(result) => result,
            Err(_) => Err(ApiError::body_too_slow()),
        }
    };
    tokio::select! {
        biased;
        received = received => received,
        () = stopping => Err(ApiError::stopping()),
    }
}

/// Reads a body to its end and keeps nothing; whether it ended well within `bytes_max`.
pub(crate) async fn discard<B>(body: B, bytes_max: usize) -> bool
where
    B: Body<Data = Bytes>,
{
    let mut body = pin!(body);
    let mut left = bytes_max;
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else { return false };
        let Some(rest) = left.checked_sub(frame.data_ref().map_or(0, Bytes::len)) else {
            return false;
        };
        left = rest;
    }
    true
}

/// What has come of a body.
#[derive(Default)]
struct Collected<'a> {
    declared: usize,
    /// Bytes that have room, the free ones among them.
    reserved: usize,
    first: Bytes,
    rest: BytesMut,
    room: Room<'a>,
}

impl<'a> Collected<'a> {
    async fn collect<B>(
        mut self,
        body: B,
        bytes_max: usize,
        budget: &'a BodyBudget,
    ) -> Result<Received<'a>, ApiError>
    where
        B: Body<Data = Bytes>,
        B::Error: Display,
    {
        let mut body = pin!(body);
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| ApiError::body_broken(format!("{error}")))?;
            let Ok(data) = frame.into_data() else { continue };
            let len = self.first.len() + self.rest.len() + data.len();
            if len > bytes_max {
                return Err(ApiError::body_too_large(bytes_max));
            }
            self.make_room(len, budget).await?;
            self.push(data);
        }
        let bytes = if self.rest.is_empty() { self.first } else { self.rest.freeze() };
        Ok(Received { bytes, room: self.room })
    }

    /// Reserves what `len` bytes need.
    async fn make_room(&mut self, len: usize, budget: &'a BodyBudget) -> Result<(), ApiError> {
        if len <= self.reserved {
            return Ok(());
        }
        self.reserved = len.max(self.reserved + STEP_BYTES);
        let counted = self.reserved - FREE_BYTES;
        if self.room.is_none() {
            self.room = Some(budget.reserve(counted).await?);
        }
        budget.grow(&mut self.room, counted)
    }

    fn push(&mut self, data: Bytes) {
        if self.first.is_empty() && self.rest.is_empty() {
            self.first = data;
            return;
        }
        if self.rest.is_empty() {
            // A declared length is trusted only up to a megabyte: the memory is taken when the bytes come.
            let least = self.first.len() + data.len();
            self.rest.reserve(self.declared.min(1 << 20).max(least));
            self.rest.extend_from_slice(&self.first);
            self.first = Bytes::new();
        }
        self.rest.extend_from_slice(&data);
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use http_body_util::Full;
    use hyper::body::Frame;

    use super::*;

    const LIMIT: BodyLimit = BodyLimit { bytes_max: 8 << 20, timeout: Duration::from_secs(30) };

    /// Chunks of a mebibyte without a declared length; the last one never comes when `is_endless`.
    struct Chunks {
        left: usize,
        is_endless: bool,
    }

    impl Body for Chunks {
        type Data = Bytes;
        type Error = String;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, String>>> {
            if self.left == 0 {
                return if self.is_endless { Poll::Pending } else { Poll::Ready(None) };
            }
            self.left -= 1;
            Poll::Ready(Some(Ok(Frame::data(Bytes::from(vec![b' '; 1 << 20])))))
        }
    }

    fn full(bytes: usize) -> Full<Bytes> {
        Full::new(Bytes::from(vec![b' '; bytes]))
    }

    async fn status<B>(body: B, budget: &BodyBudget) -> Result<usize, u16>
    where
        B: Body<Data = Bytes>,
        B::Error: Display,
    {
        let received = read(body, LIMIT, budget, pending()).await;
        received
            .map(|received| received.bytes.len())
            .map_err(|error| error.into_answer().status().as_u16())
    }

    #[tokio::test]
    async fn bodies_share_one_budget() {
        let budget = BodyBudget::of(4 << 20, Duration::from_millis(20));
        let first = read(full(3 << 20), LIMIT, &budget, pending()).await.unwrap();
        assert_eq!(status(full(2 << 20), &budget).await, Err(429));
        assert_eq!(status(full(FREE_BYTES), &budget).await, Ok(FREE_BYTES));
        drop(first);
        assert_eq!(status(full(2 << 20), &budget).await, Ok(2 << 20));
        assert_eq!(budget.units.available_permits(), (4 << 20) / UNIT_BYTES);
    }

    #[tokio::test]
    async fn who_holds_room_does_not_wait_for_more() {
        // Nobody would wake it: it must not wait.
        let budget = BodyBudget::of(4 << 20, Duration::MAX);
        let mut first = read(full(1 << 20), LIMIT, &budget, pending()).await.unwrap().room;
        let mut second = None;
        budget.grow(&mut second, 3 << 20).unwrap();
        assert!(budget.grow(&mut first, 2 << 20).is_err());
        assert!(budget.grow(&mut second, (3 << 20) + FREE_BYTES + 1).is_err());
        // Many small parts are no more than their sum.
        budget.grow(&mut second, (3 << 20) + 1).unwrap();
        budget.grow(&mut second, (3 << 20) + UNIT_BYTES).unwrap();
        drop(first);
        budget.grow(&mut second, 4 << 20).unwrap();
        drop(second);
        assert_eq!(budget.units.available_permits(), (4 << 20) / UNIT_BYTES);
    }

    #[tokio::test]
    async fn a_body_of_unknown_length_reserves_in_steps() {
        let budget = BodyBudget::of(2 << 20, Duration::from_millis(20));
        let chunks = |left| Chunks { left, is_endless: false };
        assert_eq!(status(chunks(2), &budget).await, Ok(2 << 20));
        assert_eq!(status(chunks(4), &budget).await, Err(429));
        assert_eq!(budget.units.available_permits(), (2 << 20) / UNIT_BYTES);
    }

    #[tokio::test]
    async fn a_stop_does_not_wait_for_a_body() {
        let budget = BodyBudget::new(1024);
        let body = Chunks { left: 1, is_endless: true };
        let error = read(body, LIMIT, &budget, async {}).await.unwrap_err();
        assert_eq!(error.into_answer().status().as_u16(), 503);
        assert_eq!(budget.units.available_permits(), BODIES_BYTES_MIN / UNIT_BYTES);
    }
}
