//! A backup of the whole node, streamed as it is made.

use hyper::header::{CONTENT_DISPOSITION, HeaderValue};
use queen_broker::api::{Api, Backup};

use crate::answer::AnswerBody;
use crate::app::Call;
use crate::error::{self, Answer, ApiError};

/// Answers the archive. A client that leaves ends the backup.
pub(crate) async fn take<A: Api>(call: &Call<'_, A>) -> Result<Answer, ApiError> {
    let Backup { index, bytes, pieces } = call.api()?.backup().await?;
    let mut answer = error::streamed("application/x-tar", AnswerBody::pieces(bytes, pieces));
    let name = format!("attachment; filename=\"queen-{index}.tar\"");
    if let Ok(name) = HeaderValue::from_str(&name) {
        answer.headers_mut().insert(CONTENT_DISPOSITION, name);
    }
    Ok(answer)
}
