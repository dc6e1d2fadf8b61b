//! The reads of the front door: each runs off the serving threads, over the applied state.

use queen_record::ids::Tenant;

use super::Broker;
use crate::api::{
    CallError, DeadLetterPage, DeadLetterQuery, MessageDetail, PartitionRef, QueueDetail,
    QueueSummary, Reads,
};
use crate::core::Shared;
use crate::views;

impl Broker {
    /// Runs a read of the state off the serving threads.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Shared) -> Result<T, CallError> + Send + 'static,
    ) -> Result<T, CallError> {
        let shared = self.shared.clone();
        let result = tokio::task::spawn_blocking(move || read(&shared)).await;
        result.unwrap_or_else(|error| Err(CallError::Internal(error.to_string())))
    }
}

impl Reads for Broker {
    async fn queues(&self, tenant: Tenant, counts: bool) -> Result<Vec<QueueSummary>, CallError> {
        self.read(move |shared| Ok(views::queues(shared, tenant, counts))).await
    }

    async fn queue(
        &self,
        tenant: Tenant,
        queue: String,
        partitions_max: usize,
    ) -> Result<Option<QueueDetail>, CallError> {
        self.read(move |shared| Ok(views::queue(shared, tenant, &queue, partitions_max))).await
    }

    async fn dead_letters(&self, query: DeadLetterQuery) -> Result<DeadLetterPage, CallError> {
        self.read(move |shared| views::dead_letters(shared, &query)).await
    }

    async fn message(
        &self,
        tenant: Tenant,
        partition: PartitionRef,
        transaction_id: String,
    ) -> Result<Option<MessageDetail>, CallError> {
        self.read(move |shared| views::message(shared, tenant, partition, &transaction_id)).await
    }
}
