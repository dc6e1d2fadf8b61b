//! The scripted broker's reads.

use std::sync::Mutex;

use queen_broker::api::{
    CallError, DeadLetterPage, DeadLetterQuery, MessageDetail, PartitionRef, QueueDetail,
    QueueSummary, Reads,
};
use queen_record::ids::Tenant;

use crate::fake::Fake;

/// What each read answers, and what it was asked.
#[derive(Default)]
pub(crate) struct FakeReads {
    pub(crate) queues: Mutex<Vec<QueueSummary>>,
    pub(crate) queue: Mutex<Option<QueueDetail>>,
    pub(crate) letters: Mutex<DeadLetterPage>,
    pub(crate) letter_queries: Mutex<Vec<DeadLetterQuery>>,
    pub(crate) message: Mutex<Option<MessageDetail>>,
    pub(crate) messages: Mutex<Vec<(PartitionRef, String)>>,
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
}
