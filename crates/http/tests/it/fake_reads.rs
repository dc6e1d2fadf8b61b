//! The scripted broker's reads.

use std::sync::Mutex;

use queen_broker::api::{
    BusyPartitions, CallError, Changed, ChangedQuery, DeadLetterPage, DeadLetterQuery,
    FetchRequest, Fetched, GroupOnQueue, GroupSummary, Label, LabelSummary, LaggingCursor,
    MessageDetail, MessagePage, MessageQuery, OffsetFound, OffsetQuery, Overview, PartitionRef,
    Position, QueueDepth, QueueDetail, QueueSummary, Reads,
};
use queen_record::ids::{Micros, Tenant};

use crate::fake::Fake;

/// Queues and partitions.
pub(crate) type Places = Vec<(String, String)>;

/// What each read answers, and what it was asked.
#[derive(Default)]
pub(crate) struct FakeReads {
    pub(crate) queues: Mutex<Vec<QueueSummary>>,
    pub(crate) queue: Mutex<Option<QueueDetail>>,
    pub(crate) letters: Mutex<DeadLetterPage>,
    pub(crate) letter_queries: Mutex<Vec<DeadLetterQuery>>,
    pub(crate) message: Mutex<Option<MessageDetail>>,
    pub(crate) messages: Mutex<Vec<(PartitionRef, String)>>,
    pub(crate) page: Mutex<MessagePage>,
    pub(crate) page_queries: Mutex<Vec<MessageQuery>>,
    pub(crate) depth: Mutex<Option<QueueDepth>>,
    pub(crate) depth_queries: Mutex<Vec<(String, Option<String>)>>,
    pub(crate) busy: Mutex<BusyPartitions>,
    pub(crate) busy_queries: Mutex<Vec<(Option<String>, usize)>>,
    pub(crate) labels: Mutex<Vec<LabelSummary>>,
    pub(crate) overview: Mutex<Overview>,
    pub(crate) groups: Mutex<Vec<GroupSummary>>,
    pub(crate) group: Mutex<Vec<GroupOnQueue>>,
    pub(crate) lagging: Mutex<Vec<LaggingCursor>>,
    pub(crate) lagging_queries: Mutex<Vec<i64>>,
    pub(crate) positions: Mutex<Vec<Position>>,
    pub(crate) position_queries: Mutex<Vec<(String, Option<Places>)>>,
    pub(crate) fetched: Mutex<Vec<Fetched>>,
    pub(crate) fetches: Mutex<Vec<FetchRequest>>,
    pub(crate) offsets: Mutex<Vec<OffsetFound>>,
    pub(crate) offset_queries: Mutex<Vec<OffsetQuery>>,
    pub(crate) changed: Mutex<Option<Changed>>,
    pub(crate) changed_queries: Mutex<Vec<ChangedQuery>>,
}

impl Reads for Fake {
    async fn queues(&self, _: Tenant, counts: bool) -> Result<Vec<QueueSummary>, CallError> {
        let mut queues = self.reads.queues.lock().unwrap().clone();
        if !counts {
            for queue in &mut queues {
                queue.counts = None;
            }
        }
        Ok(queues)
    }

    async fn queue(
        &self,
        _: Tenant,
        _: String,
        _: usize,
    ) -> Result<Option<QueueDetail>, CallError> {
        Ok(self.reads.queue.lock().unwrap().clone())
    }

    async fn dead_letters(&self, query: DeadLetterQuery) -> Result<DeadLetterPage, CallError> {
        self.reads.letter_queries.lock().unwrap().push(query);
        Ok(self.reads.letters.lock().unwrap().clone())
    }

    async fn message(
        &self,
        _: Tenant,
        partition: PartitionRef,
        transaction_id: String,
    ) -> Result<Option<MessageDetail>, CallError> {
        self.reads.messages.lock().unwrap().push((partition, transaction_id));
        Ok(self.reads.message.lock().unwrap().clone())
    }

    async fn messages(&self, query: MessageQuery) -> Result<MessagePage, CallError> {
        self.reads.page_queries.lock().unwrap().push(query);
        Ok(self.reads.page.lock().unwrap().clone())
    }

    async fn depth(
        &self,
        _: Tenant,
        queue: String,
        group: Option<String>,
        _: usize,
    ) -> Result<Option<QueueDepth>, CallError> {
        self.reads.depth_queries.lock().unwrap().push((queue, group));
        Ok(self.reads.depth.lock().unwrap().clone())
    }

    async fn busy_partitions(
        &self,
        _: Tenant,
        queue: Option<String>,
        limit: usize,
    ) -> Result<BusyPartitions, CallError> {
        self.reads.busy_queries.lock().unwrap().push((queue, limit));
        Ok(self.reads.busy.lock().unwrap().clone())
    }

    async fn labels(&self, _: Tenant, _: Label) -> Result<Vec<LabelSummary>, CallError> {
        Ok(self.reads.labels.lock().unwrap().clone())
    }

    async fn overview(&self, _: Tenant) -> Result<Overview, CallError> {
        Ok(self.reads.overview.lock().unwrap().clone())
    }

    async fn groups(&self, _: Tenant) -> Result<Vec<GroupSummary>, CallError> {
        Ok(self.reads.groups.lock().unwrap().clone())
    }

    async fn group(&self, _: Tenant, _: String, _: usize) -> Result<Vec<GroupOnQueue>, CallError> {
        Ok(self.reads.group.lock().unwrap().clone())
    }

    async fn lagging(&self, _: Tenant, seconds_min: i64) -> Result<Vec<LaggingCursor>, CallError> {
        self.reads.lagging_queries.lock().unwrap().push(seconds_min);
        Ok(self.reads.lagging.lock().unwrap().clone())
    }

    async fn positions(
        &self,
        _: Tenant,
        group: String,
        partitions: Option<Places>,
    ) -> Result<Vec<Position>, CallError> {
        self.reads.position_queries.lock().unwrap().push((group, partitions));
        Ok(self.reads.positions.lock().unwrap().clone())
    }

    async fn fetch(&self, request: FetchRequest) -> Result<Vec<Fetched>, CallError> {
        self.reads.fetches.lock().unwrap().push(request);
        Ok(self.reads.fetched.lock().unwrap().clone())
    }

    async fn offsets(
        &self,
        _: Tenant,
        queries: Vec<OffsetQuery>,
    ) -> Result<Vec<OffsetFound>, CallError> {
        self.reads.offset_queries.lock().unwrap().extend(queries);
        Ok(self.reads.offsets.lock().unwrap().clone())
    }

    async fn changed(&self, _: Tenant, queries: Vec<ChangedQuery>) -> Result<Changed, CallError> {
        self.reads.changed_queries.lock().unwrap().extend(queries);
        let none = Changed { safe_time: Micros(0), pages: Vec::new() };
        Ok(self.reads.changed.lock().unwrap().clone().unwrap_or(none))
    }
}
