//! The body of an answer: one buffer, slices that are sent one after the other without being joined, or pieces that are
//! made while they are sent.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use tokio::sync::mpsc;

/// Bytes of answers that their clients have not taken, at most: from there on nothing is read for another. Answers that are
/// being made when it is reached still pass it, each by its own ceiling.
const HELD_MAX: u64 = 256 << 20;
/// An answer of at most these bytes fits the socket's own buffers and is not counted.
const FREE_BYTES: u64 = 64 << 10;

/// What large answers hold in memory until their clients took them.
#[derive(Debug)]
pub(crate) struct AnswerBudget {
    held: Arc<AtomicU64>,
    max: u64,
}

impl Default for AnswerBudget {
    fn default() -> Self {
        Self { held: Arc::default(), max: HELD_MAX }
    }
}

impl AnswerBudget {
    /// Whether no other answer should be made now.
    pub(crate) fn is_full(&self) -> bool {
        self.held.load(Ordering::Relaxed) >= self.max
    }

    /// Counts a body until its last byte was taken or given up.
    pub(crate) fn hold(&self, body: &mut AnswerBody) {
        // What is made while it is sent is bounded where it is made.
        if body.left <= FREE_BYTES || body.pieces.is_some() {
            return;
        }
        let last = body.rest.back_mut().unwrap_or(&mut body.first);
        self.held.fetch_add(body.left, Ordering::Relaxed);
        let held = Held { held: Arc::clone(&self.held), bytes: body.left };
        // hyper lets go of the body before it has sent it, so the bytes themselves carry the count.
        *last = Bytes::from_owner(Counted { bytes: std::mem::take(last), _held: held });
    }
}

struct Held {
    held: Arc<AtomicU64>,
    bytes: u64,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.held.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

struct Counted {
    bytes: Bytes,
    _held: Held,
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// A body whose length is known.
#[derive(Debug, Default)]
pub(crate) struct AnswerBody {
    first: Bytes,
    rest: VecDeque<Bytes>,
    left: u64,
    pieces: Option<Pieces>,
}

/// What follows, or why nothing does.
type Pieces = mpsc::Receiver<Result<Bytes, String>>;

/// An answer that ends before its length: the connection ends with it, so that its reader knows.
#[derive(Debug, thiserror::Error)]
#[error("the answer ends early: {0}")]
pub(crate) struct EndsEarly(String);

impl AnswerBody {
    /// The slices, in order.
    pub(crate) fn chunks(chunks: Vec<Bytes>) -> Self {
        let left = chunks.iter().map(|chunk| chunk.len() as u64).sum();
        Self { first: Bytes::new(), rest: chunks.into(), left, pieces: None }
    }

    /// Pieces of `bytes` together, as they come.
    pub(crate) fn pieces(bytes: u64, pieces: Pieces) -> Self {
        Self { left: bytes, pieces: Some(pieces), ..Self::default() }
    }

    fn poll_piece(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, EndsEarly>>> {
        let Some(pieces) = &mut self.pieces else { return Poll::Ready(None) };
        let piece = match std::task::ready!(pieces.poll_recv(context)) {
            Some(Ok(piece)) if piece.len() as u64 <= self.left => piece,
            Some(Ok(_)) => return Poll::Ready(Some(Err(EndsEarly("it is longer".to_owned())))),
            Some(Err(reason)) => return Poll::Ready(Some(Err(EndsEarly(reason)))),
            None if self.left == 0 => return Poll::Ready(None),
            None => {
                let reason = format!("{} bytes are missing", self.left);
                return Poll::Ready(Some(Err(EndsEarly(reason))));
            }
        };
        self.left -= piece.len() as u64;
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }
}

impl From<Bytes> for AnswerBody {
    fn from(bytes: Bytes) -> Self {
        Self { left: bytes.len() as u64, first: bytes, ..Self::default() }
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = EndsEarly;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, EndsEarly>>> {
        if self.pieces.is_some() {
            return self.poll_piece(context);
        }
        while self.first.is_empty() {
            match self.rest.pop_front() {
                Some(next) => self.first = next,
                None => return Poll::Ready(None),
            }
        }
        let chunk = std::mem::take(&mut self.first);
        self.left -= chunk.len() as u64;
        Poll::Ready(Some(Ok(Frame::data(chunk))))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_answer_counts_until_its_bytes_are_gone() {
        let budget = AnswerBudget { max: 100 << 10, ..AnswerBudget::default() };
        let mut small = AnswerBody::from(Bytes::from(vec![1; 64 << 10]));
        budget.hold(&mut small);
        assert_eq!(budget.held.load(Ordering::Relaxed), 0);

        let chunks = vec![Bytes::from(vec![2; 90 << 10]), Bytes::from(vec![3; 10 << 10])];
        let mut large = AnswerBody::chunks(chunks);
        budget.hold(&mut large);
        assert!(budget.is_full());
        let mut context = Context::from_waker(std::task::Waker::noop());
        let mut sent = Vec::new();
        while let Poll::Ready(Some(Ok(frame))) = Pin::new(&mut large).poll_frame(&mut context) {
            sent.push(frame.into_data().unwrap());
        }
        assert_eq!(sent.iter().map(Bytes::len).sum::<usize>(), 100 << 10);
        assert!(sent[1].iter().all(|byte| *byte == 3));
        drop(large);
        // The writer still has them.
        assert!(budget.is_full());
        drop(sent);
        assert!(!budget.is_full());
        assert_eq!(budget.held.load(Ordering::Relaxed), 0);
    }
}
