//! Reads of the applied state: nothing here changes anything, and nothing waits for the core.

use std::future::Future;

use queen_record::ids::Tenant;

use super::{
    CallError, DeadLetterPage, DeadLetterQuery, MessageDetail, PartitionRef, QueueDetail,
    QueueSummary,
};

/// What the edges read.
pub trait Reads: Send + Sync + 'static {
    /// All queues, newest first; counts only with `counts`.
    fn queues(
        &self,
        tenant: Tenant,
        counts: bool,
    ) -> impl Future<Output = Result<Vec<QueueSummary>, CallError>> + Send;

    /// One queue with its partitions.
    fn queue(
        &self,
        tenant: Tenant,
        queue: String,
        partitions_max: usize,
    ) -> impl Future<Output = Result<Option<QueueDetail>, CallError>> + Send;

    /// A page of dead letters.
    fn dead_letters(
        &self,
        query: DeadLetterQuery,
    ) -> impl Future<Output = Result<DeadLetterPage, CallError>> + Send;

    /// One message by its partition and transactionId.
    fn message(
        &self,
        tenant: Tenant,
        partition: PartitionRef,
        transaction_id: String,
    ) -> impl Future<Output = Result<Option<MessageDetail>, CallError>> + Send;
}
