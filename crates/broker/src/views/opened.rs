//! Payloads as they were pushed, whether they are stored sealed or not.

use std::borrow::Cow;
use std::fmt::Display;

use bytes::Bytes;

use crate::api::CallError;
use crate::core::Shared;

/// A stored payload as it was pushed.
///
/// # Errors
/// It does not open; the error names its place.
pub(crate) fn opened(
    shared: &Shared,
    (data, encrypted): (&Bytes, bool),
    (queue, partition, offset): (&str, &str, impl Display),
) -> Result<Bytes, CallError> {
    match shared.reader.vault().opened(data, encrypted) {
        Ok(Cow::Borrowed(_)) => Ok(data.clone()),
        Ok(Cow::Owned(payload)) => Ok(payload.into()),
        Err(error) => {
            let place = format!("queue {queue}, partition {partition}, offset {offset}");
            Err(shared.damaged_read(&format!("a message cannot be shown: {place}: {error}")))
        }
    }
}
