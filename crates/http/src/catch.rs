//! A future whose panic becomes an error instead of the end of its connection.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

/// The inner future panicked; the panic hook has reported it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Panicked;

/// Runs a future to its end or its panic.
///
/// A future that panicked is never polled again, so no half-done state of it is ever used. The broker behind
/// it guards its own state: it aborts the process when one of its threads panics.
pub(crate) async fn catch<F: Future>(future: F) -> Result<F::Output, Panicked> {
    let mut future = pin!(future);
    std::future::poll_fn(move |context| poll_once(future.as_mut(), context)).await
}

fn poll_once<F: Future>(
    future: Pin<&mut F>,
    context: &mut Context<'_>,
) -> Poll<Result<F::Output, Panicked>> {
    match catch_unwind(AssertUnwindSafe(|| future.poll(context))) {
        Ok(poll) => poll.map(Ok),
        Err(_) => Poll::Ready(Err(Panicked)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_is_an_error() {
        assert_eq!(catch(async { 7 }).await, Ok(7));
        assert_eq!(catch(async { panic!("as the test wants") }).await, Err::<(), _>(Panicked));
    }
}
