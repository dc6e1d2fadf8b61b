//! The reads of the front door: each runs off the serving threads, over the applied state.

use std::sync::Arc;

use queen_record::ids::Tenant;
use tokio::time::{Instant, timeout_at};

use super::Broker;
use crate::api::{
    BusyPartitions, CallError, Changed, ChangedQuery, DeadLetterPage, DeadLetterQuery,
    FETCH_WAIT_MAX, FetchRequest, Fetched, GroupOnQueue, GroupSummary, Label, LabelSummary,
    LaggingCursor, MessageDetail, MessagePage, MessageQuery, OffsetFound, OffsetQuery, Overview,
    PartitionRef, Position, QueueDepth, QueueDetail, QueueSummary, Reads,
};
use crate::arrivals::Waiter;
use crate::core::Shared;
use crate::views::{self, Fetch};

impl Broker {
    /// Runs a read of the state off the serving threads.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Arc<Shared>) -> Result<T, CallError> + Send + 'static,
    ) -> Result<T, CallError> {
        let shared = self.shared.clone();
        let permit = self.reads.clone().acquire_owned().await;
        let permit = permit.map_err(|error| CallError::Internal(error.to_string()))?;
        let run = move || {
            // A caller that leaves does not end the read, so its place is taken until it has.
            let _permit = permit;
            read(&shared)
        };
        let result = tokio::task::spawn_blocking(run).await;
        result.unwrap_or_else(|error| Err(CallError::Internal(error.to_string())))
    }

    /// Reads on as far as there are messages.
    async fn pass(&self, mut fetch: Fetch) -> Result<Fetch, CallError> {
        self.read(move |shared| fetch.pass(shared).map(|()| fetch)).await
    }
}

impl Reads for Broker {
    async fn queues(&self, tenant: Tenant, counts: bool) -> Result<Vec<QueueSummary>, CallError> {
        self.read(move |shared| views::queues(shared, tenant, counts)).await
    }

    async fn queue(
        &self,
        tenant: Tenant,
        queue: String,
        partitions_max: usize,
    ) -> Result<Option<QueueDetail>, CallError> {
        self.read(move |shared| views::queue(shared, tenant, &queue, partitions_max)).await
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

    async fn messages(&self, query: MessageQuery) -> Result<MessagePage, CallError> {
        self.read(move |shared| views::messages(shared, &query)).await
    }

    async fn depth(
        &self,
        tenant: Tenant,
        queue: String,
        group: Option<String>,
        partitions_max: usize,
    ) -> Result<Option<QueueDepth>, CallError> {
        self.read(move |shared| {
            Ok(views::depth(shared, tenant, &queue, group.as_deref(), partitions_max))
        })
        .await
    }

    async fn busy_partitions(
        &self,
        tenant: Tenant,
        queue: Option<String>,
        limit: usize,
    ) -> Result<BusyPartitions, CallError> {
        self.read(move |shared| views::busy(shared, tenant, queue.as_deref(), limit)).await
    }

    async fn labels(&self, tenant: Tenant, label: Label) -> Result<Vec<LabelSummary>, CallError> {
        self.read(move |shared| views::labels(shared, tenant, label)).await
    }

    async fn overview(&self, tenant: Tenant) -> Result<Overview, CallError> {
        self.read(move |shared| views::overview(shared, tenant)).await
    }

    async fn groups(&self, tenant: Tenant) -> Result<Vec<GroupSummary>, CallError> {
        self.read(move |shared| views::groups(shared, tenant)).await
    }

    async fn group(
        &self,
        tenant: Tenant,
        group: String,
        cursors_max: usize,
    ) -> Result<Vec<GroupOnQueue>, CallError> {
        self.read(move |shared| views::group(shared, tenant, &group, cursors_max)).await
    }

    async fn lagging(
        &self,
        tenant: Tenant,
        seconds_min: i64,
    ) -> Result<Vec<LaggingCursor>, CallError> {
        self.read(move |shared| views::lagging(shared, tenant, seconds_min)).await
    }

    async fn positions(
        &self,
        tenant: Tenant,
        group: String,
        partitions: Option<Vec<(String, String)>>,
    ) -> Result<Vec<Position>, CallError> {
        self.read(move |shared| match partitions {
            Some(partitions) => views::positions_in(shared, tenant, &group, partitions),
            None => views::positions(shared, tenant, &group),
        })
        .await
    }

    async fn fetch(&self, request: FetchRequest) -> Result<Vec<Fetched>, CallError> {
        let until = Instant::now() + request.wait.min(FETCH_WAIT_MAX);
        let waits = !request.wait.is_zero();
        let mut fetch = self.pass(Fetch::new(request)).await?;
        let mut waiter: Option<Waiter> = None;
        while waits && !fetch.is_enough() && !self.shared.arrivals.is_stopped() {
            let watched = fetch.watched();
            match &waiter {
                Some(waiter) if waiter.watched() == watched => {
                    if timeout_at(until, waiter.woken()).await.is_err() {
                        break;
                    }
                }
                // What arrived before the registration is read by one more pass.
                _ => match self.shared.arrivals.wait_for(watched) {
                    Some(registered) => waiter = Some(registered),
                    None => break,
                },
            }
            fetch = self.pass(fetch).await?;
        }
        Ok(fetch.into_answer())
    }

    async fn offsets(
        &self,
        tenant: Tenant,
        queries: Vec<OffsetQuery>,
    ) -> Result<Vec<OffsetFound>, CallError> {
        self.read(move |shared| views::offsets(shared, tenant, &queries)).await
    }

    async fn changed(
        &self,
        tenant: Tenant,
        queries: Vec<ChangedQuery>,
    ) -> Result<Changed, CallError> {
        self.read(move |shared| Ok(views::changed(shared, tenant, &queries))).await
    }
}
