//! Reads of the applied state: nothing here changes anything, and nothing waits for the core.

use std::future::Future;

use queen_record::ids::Tenant;

use super::{
    BusyPartitions, CallError, Changed, ChangedQuery, DeadLetterPage, DeadLetterQuery,
    FetchRequest, Fetched, GroupOnQueue, GroupSummary, Label, LabelSummary, LaggingCursor,
    MessageDetail, MessagePage, MessageQuery, OffsetFound, OffsetQuery, Overview, PartitionRef,
    Position, QueueDepth, QueueDetail, QueueSummary,
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

    /// A page of messages, newest first.
    fn messages(
        &self,
        query: MessageQuery,
    ) -> impl Future<Output = Result<MessagePage, CallError>> + Send;

    /// What is left on a queue, for one group or for the slowest of each partition.
    fn depth(
        &self,
        tenant: Tenant,
        queue: String,
        group: Option<String>,
        partitions_max: usize,
    ) -> impl Future<Output = Result<Option<QueueDepth>, CallError>> + Send;

    /// The partitions with the most pending messages, of one queue or of all.
    fn busy_partitions(
        &self,
        tenant: Tenant,
        queue: Option<String>,
        limit: usize,
    ) -> impl Future<Output = Result<BusyPartitions, CallError>> + Send;

    /// Sums by label, sorted by it.
    fn labels(
        &self,
        tenant: Tenant,
        label: Label,
    ) -> impl Future<Output = Result<Vec<LabelSummary>, CallError>> + Send;

    /// Everything in one view.
    fn overview(&self, tenant: Tenant) -> impl Future<Output = Result<Overview, CallError>> + Send;

    /// Every group on every queue where it has a cursor, by group and queue.
    fn groups(
        &self,
        tenant: Tenant,
    ) -> impl Future<Output = Result<Vec<GroupSummary>, CallError>> + Send;

    /// A group's cursors, queue by queue, at most `cursors_max`; empty when it has none.
    fn group(
        &self,
        tenant: Tenant,
        group: String,
        cursors_max: usize,
    ) -> impl Future<Output = Result<Vec<GroupOnQueue>, CallError>> + Send;

    /// Cursors whose oldest unconsumed message is older than this, oldest first.
    fn lagging(
        &self,
        tenant: Tenant,
        seconds_min: i64,
    ) -> impl Future<Output = Result<Vec<LaggingCursor>, CallError>> + Send;

    /// Where a group reads next: in these partitions, or wherever it has a cursor.
    fn positions(
        &self,
        tenant: Tenant,
        group: String,
        partitions: Option<Vec<(String, String)>>,
    ) -> impl Future<Output = Result<Vec<Position>, CallError>> + Send;

    /// Messages by offset; may be dropped while it waits.
    fn fetch(
        &self,
        request: FetchRequest,
    ) -> impl Future<Output = Result<Vec<Fetched>, CallError>> + Send;

    /// The first offset at or after a time, one answer per question.
    fn offsets(
        &self,
        tenant: Tenant,
        queries: Vec<OffsetQuery>,
    ) -> impl Future<Output = Result<Vec<OffsetFound>, CallError>> + Send;

    /// Partitions written lately, one page per question.
    fn changed(
        &self,
        tenant: Tenant,
        queries: Vec<ChangedQuery>,
    ) -> impl Future<Output = Result<Changed, CallError>> + Send;
}
