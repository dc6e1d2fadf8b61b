//! The readers of request bodies as functions of bytes, for the fuzz targets outside the workspace. Not an API.
//!
//! Each is what its route calls; nothing is read in another way here.

use bytes::Bytes;
use queen_broker::api::{
    AckItem, FetchRequest, FramedGroup, PositionSet, PushItem, TransactionAck,
};
use queen_model::OptionsPatch;
use queen_record::ids::Tenant;

use crate::binary::{Binary, BinaryPush, BinaryTransaction, GroupReader};
use crate::body::BodyBudget;
use crate::error::ApiError;
use crate::routes::{Bundle, Shape, ack, configure, fetch, framed, push};

/// The status of a body that is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused(pub u16);

impl From<ApiError> for Refused {
    fn from(error: ApiError) -> Self {
        Self(error.into_answer().status().as_u16())
    }
}

/// What a push holds.
#[derive(Clone, Copy, Debug)]
pub enum Pushed<'a> {
    /// Messages that the broker frames.
    Items(&'a [PushItem<'a>]),
    /// Messages that the caller framed.
    Framed(&'a [FramedGroup]),
}

/// Reads the body of a push, JSON or binary; what is compressed may become `body_bytes_max` bytes.
///
/// # Errors
/// As the route answers.
pub fn push<T>(
    body: &Bytes,
    body_bytes_max: usize,
    take: impl FnOnce(Pushed<'_>) -> T,
) -> Result<T, Refused> {
    if !BinaryPush::is(body) {
        return Ok(take(Pushed::Items(&push::Body::read(body)?.items())));
    }
    let budget = BodyBudget::new(body_bytes_max);
    let mut limits = GroupReader::new(body_bytes_max, &budget);
    let push = BinaryPush::open(body, &mut limits)?;
    Ok(match push.read(&mut limits)? {
        Binary::Items(items) => take(Pushed::Items(&items)),
        Binary::Framed(groups) => take(Pushed::Framed(&groups)),
    })
}

/// Reads the group and the acknowledgments of a body.
///
/// # Errors
/// As the route answers.
pub fn ack(body: &[u8]) -> Result<(String, Vec<AckItem>), Refused> {
    Ok(ack::request(body)?)
}

/// Reads queue, options and whether the rest is replaced.
///
/// # Errors
/// As the route answers.
pub fn configure(body: &[u8]) -> Result<(String, OptionsPatch, bool), Refused> {
    let configure::Request { queue, patch, replace } = configure::request(body)?;
    Ok((queue, patch, replace))
}

/// Reads a read by offset.
///
/// # Errors
/// As the route answers.
pub fn fetch(body: &[u8]) -> Result<FetchRequest, Refused> {
    Ok(fetch::request(Tenant::DEFAULT, body)?)
}

/// What a transaction holds.
#[derive(Clone, Copy, Debug)]
pub struct Parts<'a> {
    /// In order.
    pub acks: &'a [TransactionAck],
    /// In order; none in a binary one.
    pub items: &'a [PushItem<'a>],
    /// In order.
    pub positions: &'a [PositionSet],
    /// Of a binary one.
    pub groups: &'a [FramedGroup],
}

/// Reads a transaction, JSON or binary; `None` for one that rolls back for its shape.
///
/// # Errors
/// As the route answers.
pub fn transaction<T>(
    body: &Bytes,
    body_bytes_max: usize,
    take: impl FnOnce(Parts<'_>) -> T,
) -> Result<Option<T>, Refused> {
    let parts = |shape: Shape<'_>, groups: &[FramedGroup]| {
        let Shape { acks, items, positions, .. } = &shape;
        take(Parts { acks, items, positions, groups })
    };
    if !BinaryTransaction::is(body) {
        let bundle = Bundle::read(body)?;
        return Ok(bundle.shape().ok().map(|shape| parts(shape, &[])));
    }
    let budget = BodyBudget::new(body_bytes_max);
    let mut limits = GroupReader::new(body_bytes_max, &budget);
    let BinaryTransaction { head, groups, .. } = BinaryTransaction::read(body, &mut limits)?;
    let bundle = framed::read_head(&head)?;
    Ok(framed::shape(&bundle, &groups)?.ok().map(|shape| parts(shape, &groups)))
}
