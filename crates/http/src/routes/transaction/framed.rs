//! A transaction in its binary form: the results stand in the order head, framed messages, positions.

use bytes::Bytes;
use queen_broker::api::{
    Api, FramedGroup, PushBatch, Rollback, RollbackReason, Transaction, TransactionAnswer,
};
use queen_record::frame::Frames;

use super::body::{Bundle, Shape};
use super::{Results, call_id, json_len, rolled_back};
use crate::app::Call;
use crate::binary::BinaryTransaction;
use crate::error::{self, Answer, ApiError};

/// Carries a binary transaction out.
pub(super) async fn transaction<A: Api>(
    call: &Call<'_, A>,
    body: &Bytes,
) -> Result<Answer, ApiError> {
    let id = call_id();
    let mut limits = call.group_reader();
    let BinaryTransaction { head, groups, wants_counts } =
        BinaryTransaction::read(body, &mut limits)?;
    let bundle = read_head(&head)?;
    let Shape { acks, ack_ids, positions, .. } = match shape(&bundle, &groups)? {
        Ok(shape) => shape,
        Err(error) => {
            let rollback = Rollback { reason: RollbackReason::BadRequest, error };
            return Ok(rolled_back(&id, &rollback));
        }
    };
    let position_count = positions.len();
    let named = || {
        groups.iter().flat_map(|group| {
            let frames = Frames::new(&group.frames).filter_map(Result::ok);
            frames.map(|frame| (&*group.queue, frame.transaction_id))
        })
    };
    let bytes = if wants_counts {
        json_len(&[], std::iter::empty(), position_count)
    } else {
        json_len(&acks, named().map(|(queue, id)| (queue, Some(id))), position_count)
    };
    let room = call.mirror_room(bytes).await?;
    let pushes = PushBatch::Framed(&groups, call.sub.as_deref());
    let request = Transaction { tenant: call.tenant, acks, pushes, positions };
    let (acks, pushes) = match call.api()?.transaction(request, call.deadline()).await? {
        TransactionAnswer::RolledBack(rollback) => return Ok(rolled_back(&id, &rollback)),
        TransactionAnswer::Committed { acks, pushes } => (acks, pushes),
    };
    call.count(|stats| &stats.push_messages, pushes.len());
    call.count(|stats| &stats.ack_messages, acks.len());
    let mut results = Results::new(&id, acks.len() + pushes.len() + position_count);
    if wants_counts {
        results.index = acks.len() + pushes.len();
    } else {
        for (transaction_id, done) in ack_ids.into_iter().zip(&acks) {
            results.ack(Some(transaction_id), Some(done));
        }
        for ((queue, transaction_id), answer) in named().zip(&pushes) {
            results.pushed(queue, Some(transaction_id), answer);
        }
    }
    for at in 0..position_count {
        results.position(at);
    }
    let json =
        if wants_counts { results.finish_counted(&pushes, acks.len()) } else { results.finish() };
    Ok(error::ok_in(room, json))
}

/// The head of a body; it may be empty.
pub(crate) fn read_head(head: &[u8]) -> Result<Bundle<'_>, ApiError> {
    if head.is_empty() { Ok(Bundle::default()) } else { Bundle::read(head) }
}

/// The checked parts of a head, which has no pushes; the inner error rolls the transaction back.
pub(crate) fn shape<'b>(
    head: &'b Bundle<'_>,
    groups: &[FramedGroup],
) -> Result<Result<Shape<'b>, String>, ApiError> {
    match head.shape_of_head(!groups.is_empty()) {
        Ok(Shape { items, .. }) if !items.is_empty() => {
            Err(ApiError::bad_request("the head of a binary transaction has no pushes"))
        }
        shape => Ok(shape),
    }
}
