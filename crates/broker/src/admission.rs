//! Room for writes: bytes that are admitted and not answered, taken before a body is read.

use std::sync::Arc;
use std::time::Duration;

use metrics::{Counter, Gauge};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::api::CallError;

/// The count goes in units, so that a semaphore can hold any setting.
const UNIT_BYTES: usize = 64;

/// The room that a node has for writes.
pub(crate) struct Admissions {
    room: Option<Arc<Semaphore>>,
    units_max: usize,
    hold: Duration,
    admitted: Gauge,
    refused: Counter,
}

/// Room that was taken; given back when dropped.
pub struct Admission(Option<Taken>);

struct Taken {
    permit: OwnedSemaphorePermit,
    admitted: Gauge,
}

impl Admission {
    /// Room where there is no limit.
    #[must_use]
    pub fn unlimited() -> Self {
        Self(None)
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.admitted.decrement(bytes_of(&self.permit));
    }
}

#[expect(clippy::cast_precision_loss, reason = "a gauge is floating point")]
fn bytes_of(permit: &OwnedSemaphorePermit) -> f64 {
    (permit.num_permits() * UNIT_BYTES) as f64
}

impl Admissions {
    /// Room for this many bytes, 0 for no limit; a write waits for it at most as long as `hold`.
    pub(crate) fn new(bytes_max: usize, hold: Duration, admitted: Gauge, refused: Counter) -> Self {
        let units_max = (bytes_max / UNIT_BYTES).min(Semaphore::MAX_PERMITS);
        let room = (units_max > 0).then(|| Arc::new(Semaphore::new(units_max)));
        Self { room, units_max, hold, admitted, refused }
    }

    /// Takes room, first come, first served. A write larger than all of it takes all: it is admitted alone.
    pub(crate) async fn take(&self, bytes: usize) -> Result<Admission, CallError> {
        let Some(room) = &self.room else { return Ok(Admission::unlimited()) };
        let units = bytes.div_ceil(UNIT_BYTES).clamp(1, self.units_max);
        let units = u32::try_from(units).unwrap_or(u32::MAX);
        let permit = if let Ok(permit) = room.clone().try_acquire_many_owned(units) {
            permit
        } else {
            let waiting = tokio::time::timeout(self.hold, room.clone().acquire_many_owned(units));
            let Ok(Ok(permit)) = waiting.await else {
                self.refused.increment(1);
                return Err(CallError::Overloaded { retry_after_s: 1 });
            };
            permit
        };
        self.admitted.increment(bytes_of(&permit));
        Ok(Admission(Some(Taken { permit, admitted: self.admitted.clone() })))
    }
}

impl std::fmt::Debug for Admission {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Admission")
            .field(&self.0.as_ref().map(|taken| bytes_of(&taken.permit)))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn room(bytes: usize) -> Admissions {
        Admissions::new(bytes, Duration::from_millis(10), Gauge::noop(), Counter::noop())
    }

    #[tokio::test]
    async fn what_does_not_fit_is_refused_and_what_is_given_back_fits_again() {
        let room = room(1000);
        let first = room.take(600).await.unwrap();
        assert_eq!(room.take(600).await.unwrap_err(), CallError::Overloaded { retry_after_s: 1 });
        let small = room.take(100).await.unwrap();
        drop((first, small));
        room.take(600).await.unwrap();
    }

    #[tokio::test]
    async fn a_write_larger_than_all_is_admitted_alone() {
        let room = room(1000);
        let large = room.take(1 << 30).await.unwrap();
        assert!(room.take(1).await.is_err());
        drop(large);
        let small = room.take(1).await.unwrap();
        assert!(room.take(1 << 30).await.is_err());
        drop(small);
    }

    #[tokio::test]
    async fn without_a_limit_everything_is_admitted() {
        let room = room(0);
        let _all = (room.take(usize::MAX).await.unwrap(), room.take(usize::MAX).await.unwrap());
    }
}
