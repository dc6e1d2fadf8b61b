//! Opens the data directory and makes the node of it.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use queen_broker::api::{
    AckAnswer, AckItem, Api, CallError, Configured, DeadLetterPage, DeadLetterQuery, Extended,
    GroupDeleted, Health, MessageDetail, PartitionRef, PopAnswer, PopRequest, PushAnswer, PushItem,
    QueueDetail, QueueSummary,
};
use queen_model::OptionsPatch;
use queen_record::ids::Tenant;

use crate::start::{Boot, Broker};

/// Opens the node of the settings' data directory; blocks until it has loaded.
///
/// # Errors
/// The start is refused; the text is that of the FATAL line.
pub(crate) fn open(boot: &Boot<'_>) -> anyhow::Result<Unbuilt> {
    bail!("this build has no broker core to open {} with", boot.settings.dir)
}

/// A node that cannot exist: the type of [`open`]'s success in a build without a core.
pub(crate) struct Unbuilt(Infallible);

impl Broker for Unbuilt {
    type Api = Self;

    fn api(&self) -> Arc<Self> {
        match self.0 {}
    }

    fn stop(self) {
        match self.0 {}
    }
}

impl Api for Unbuilt {
    async fn push(
        &self,
        _: Tenant,
        _: &[PushItem<'_>],
        _: Duration,
    ) -> Result<Vec<PushAnswer>, CallError> {
        match self.0 {}
    }

    async fn pop(&self, _: PopRequest) -> Result<PopAnswer, CallError> {
        match self.0 {}
    }

    async fn ack(
        &self,
        _: Tenant,
        _: String,
        _: Vec<AckItem>,
        _: Duration,
    ) -> Result<Vec<AckAnswer>, CallError> {
        match self.0 {}
    }

    async fn extend(
        &self,
        _: Tenant,
        _: String,
        _: i64,
        _: Duration,
    ) -> Result<Extended, CallError> {
        match self.0 {}
    }

    async fn configure(
        &self,
        _: Tenant,
        _: String,
        _: OptionsPatch,
        _: bool,
        _: Duration,
    ) -> Result<Configured, CallError> {
        match self.0 {}
    }

    async fn delete_queue(&self, _: Tenant, _: String, _: Duration) -> Result<bool, CallError> {
        match self.0 {}
    }

    async fn delete_group(
        &self,
        _: Tenant,
        _: String,
        _: Option<String>,
        _: bool,
        _: Duration,
    ) -> Result<GroupDeleted, CallError> {
        match self.0 {}
    }

    async fn queues(&self, _: Tenant, _: bool) -> Result<Vec<QueueSummary>, CallError> {
        match self.0 {}
    }

    async fn queue(
        &self,
        _: Tenant,
        _: String,
        _: usize,
    ) -> Result<Option<QueueDetail>, CallError> {
        match self.0 {}
    }

    async fn dead_letters(&self, _: DeadLetterQuery) -> Result<DeadLetterPage, CallError> {
        match self.0 {}
    }

    async fn message(
        &self,
        _: Tenant,
        _: PartitionRef,
        _: String,
    ) -> Result<Option<MessageDetail>, CallError> {
        match self.0 {}
    }

    fn health(&self) -> Health {
        match self.0 {}
    }
}
