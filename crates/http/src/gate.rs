//! The broker before it is open: the listener answers while the data directory loads.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use queen_broker::api::{
    AckAnswer, AckItem, Api, CallError, Configured, DeadLetterPage, DeadLetterQuery, Extended,
    GroupDeleted, Health, MessageDetail, PartitionRef, PopAnswer, PopRequest, PushAnswer, PushItem,
    QueueDetail, QueueSummary,
};
use queen_model::OptionsPatch;
use queen_record::ids::Tenant;

/// An [`Api`] that refuses every call as "not serving" until it is opened, and then passes each on.
#[derive(Debug)]
pub struct Gate<A>(OnceLock<Arc<A>>);

impl<A> Gate<A> {
    /// A closed gate.
    #[must_use]
    pub fn new() -> Self {
        Self(OnceLock::new())
    }

    /// Lets every call from now on through to `api`; a second call changes nothing.
    pub fn open(&self, api: Arc<A>) {
        // The first broker stays: there is one per process.
        self.0.get_or_init(|| api);
    }

    fn api(&self) -> Result<&A, CallError> {
        let closed = || CallError::NotServing("the data directory is loading".to_owned());
        self.0.get().map(Arc::as_ref).ok_or_else(closed)
    }
}

impl<A> Default for Gate<A> {
    fn default() -> Self {
        Self::new()
    }
}

impl<A: Api> Api for Gate<A> {
    async fn push(
        &self,
        tenant: Tenant,
        items: &[PushItem<'_>],
        deadline: Duration,
    ) -> Result<Vec<PushAnswer>, CallError> {
        self.api()?.push(tenant, items, deadline).await
    }

    async fn pop(&self, request: PopRequest) -> Result<PopAnswer, CallError> {
        self.api()?.pop(request).await
    }

    async fn ack(
        &self,
        tenant: Tenant,
        group: String,
        items: Vec<AckItem>,
        deadline: Duration,
    ) -> Result<Vec<AckAnswer>, CallError> {
        self.api()?.ack(tenant, group, items, deadline).await
    }

    async fn extend(
        &self,
        tenant: Tenant,
        lease: String,
        seconds: i64,
        deadline: Duration,
    ) -> Result<Extended, CallError> {
        self.api()?.extend(tenant, lease, seconds, deadline).await
    }

    async fn configure(
        &self,
        tenant: Tenant,
        queue: String,
        patch: OptionsPatch,
        replace: bool,
        deadline: Duration,
    ) -> Result<Configured, CallError> {
        self.api()?.configure(tenant, queue, patch, replace, deadline).await
    }

    async fn delete_queue(
        &self,
        tenant: Tenant,
        queue: String,
        deadline: Duration,
    ) -> Result<bool, CallError> {
        self.api()?.delete_queue(tenant, queue, deadline).await
    }

    async fn delete_group(
        &self,
        tenant: Tenant,
        group: String,
        queue: Option<String>,
        metadata: bool,
        deadline: Duration,
    ) -> Result<GroupDeleted, CallError> {
        self.api()?.delete_group(tenant, group, queue, metadata, deadline).await
    }

    async fn queues(&self, tenant: Tenant, counts: bool) -> Result<Vec<QueueSummary>, CallError> {
        self.api()?.queues(tenant, counts).await
    }

    async fn queue(
        &self,
        tenant: Tenant,
        queue: String,
        partitions_max: usize,
    ) -> Result<Option<QueueDetail>, CallError> {
        self.api()?.queue(tenant, queue, partitions_max).await
    }

    async fn dead_letters(&self, query: DeadLetterQuery) -> Result<DeadLetterPage, CallError> {
        self.api()?.dead_letters(query).await
    }

    async fn message(
        &self,
        tenant: Tenant,
        partition: PartitionRef,
        transaction_id: String,
    ) -> Result<Option<MessageDetail>, CallError> {
        self.api()?.message(tenant, partition, transaction_id).await
    }

    fn health(&self) -> Health {
        match self.0.get() {
            Some(api) => api.health(),
            None => Health {
                role: "candidate",
                serving: false,
                applied: 0,
                committed: 0,
                storage_ready: false,
                reason: Some("the data directory is loading".to_owned()),
            },
        }
    }
}
