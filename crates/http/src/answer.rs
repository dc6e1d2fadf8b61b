//! The body of an answer: one buffer, or slices that are sent one after the other without being joined.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};

/// A body whose length is known.
#[derive(Debug, Default)]
pub(crate) struct AnswerBody {
    first: Bytes,
    rest: VecDeque<Bytes>,
    left: u64,
}

impl AnswerBody {
    /// The slices, in order.
    pub(crate) fn chunks(chunks: Vec<Bytes>) -> Self {
        let left = chunks.iter().map(|chunk| chunk.len() as u64).sum();
        Self { first: Bytes::new(), rest: chunks.into(), left }
    }
}

impl From<Bytes> for AnswerBody {
    fn from(bytes: Bytes) -> Self {
        Self { left: bytes.len() as u64, first: bytes, rest: VecDeque::new() }
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
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
