//! The body of an answer: one buffer, slices that are sent one after the other without being joined, or pieces that are
//! made while they are sent.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use tokio::sync::mpsc;

use crate::budget::{AnswerBudget, FREE_BYTES, Room, Taker};

struct Counted {
    bytes: Bytes,
    _room: Room,
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
    /// Its part of the budget, if it was reserved.
    room: Option<Room>,
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
        Self { first: Bytes::new(), rest: chunks.into(), left, pieces: None, room: None }
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

    /// The room that was reserved for it.
    pub(crate) fn set_room(&mut self, room: Option<Room>) {
        self.room = room;
    }

    /// Counts it against the budget until its last byte was taken or given up.
    pub(crate) fn hold(&mut self, budget: &AnswerBudget, taker: &Arc<Taker>) {
        let reserved = self.room.take();
        // What is made while it is sent is bounded where it is made.
        if self.left <= FREE_BYTES || self.pieces.is_some() {
            return;
        }
        let room = reserved.unwrap_or_else(|| budget.force(taker, self.left));
        room.settle(self.left);
        let last = self.rest.back_mut().unwrap_or(&mut self.first);
        // hyper lets go of the body before it has sent it, so the bytes themselves carry the count.
        *last = Bytes::from_owner(Counted { bytes: std::mem::take(last), _room: room });
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
        let (budget, taker) = (AnswerBudget::default(), Arc::default());
        let mut small = AnswerBody::from(Bytes::from(vec![1; 64 << 10]));
        small.hold(&budget, &taker);
        assert_eq!(budget.held(), 0);

        let chunks = vec![Bytes::from(vec![2; 90 << 10]), Bytes::from(vec![3; 10 << 10])];
        let mut large = AnswerBody::chunks(chunks);
        large.set_room(Some(budget.force(&taker, 1 << 20)));
        large.hold(&budget, &taker);
        assert_eq!(budget.held(), 100 << 10);
        let mut context = Context::from_waker(std::task::Waker::noop());
        let mut sent = Vec::new();
        while let Poll::Ready(Some(Ok(frame))) = Pin::new(&mut large).poll_frame(&mut context) {
            sent.push(frame.into_data().unwrap());
        }
        assert_eq!(sent.iter().map(Bytes::len).sum::<usize>(), 100 << 10);
        assert!(sent[1].iter().all(|byte| *byte == 3));
        drop(large);
        // The writer still has them.
        assert_eq!(budget.held(), 100 << 10);
        drop(sent);
        assert_eq!(budget.held(), 0);
    }
}
