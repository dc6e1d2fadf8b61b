//! Payloads as they were pushed, whether they are stored sealed or not.

use std::borrow::Cow;

use bytes::Bytes;

use crate::api::CallError;
use crate::core::Shared;

/// A stored payload as it was pushed; `place` names it for a person.
///
/// # Errors
/// It does not open.
pub(crate) fn opened(
    shared: &Shared,
    (data, encrypted): (&Bytes, bool),
    place: impl FnOnce() -> String,
) -> Result<Bytes, CallError> {
    match shared.reader.vault().opened(data, encrypted) {
        Ok(Cow::Borrowed(_)) => Ok(data.clone()),
        Ok(Cow::Owned(payload)) => Ok(payload.into()),
        Err(error) => {
            let what = format!("a message cannot be shown: {}: {error}", place());
            Err(shared.damaged_read(&what))
        }
    }
}

/// A message's place as it is told to a person.
pub(crate) fn place(queue: &str, partition: &str, offset: i64) -> String {
    format!("queue {queue}, partition {partition}, offset {offset}")
}
