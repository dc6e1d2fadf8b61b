//! The front door: turns calls into commands, waits for their answers, decodes what was granted.

mod moves;
mod reads;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use queen_model::OptionsPatch;
use queen_planner::push::{PushPart, PushVerdict};
use queen_qlog::StoredRecord;
use queen_record::frame::Frames;
use queen_record::ids::{Micros, Offset, Tenant, Uuid};
use tokio::sync::{Semaphore, oneshot};

use crate::admission::Admissions;

use crate::api::{
    AckAnswer, AckItem, Admission, Api, Backup, CallError, Claim, Configured, Extended,
    FramedClaim, FramedRecord, GroupDeleted, Health, LetterRef, LetterSelect, Members,
    MembersChange, MembersError, Message, Place, PopAnswer, PopRequest, PushAnswer, PushBatch,
    PushStatus, Replay, ReplayTo, Seek, Transaction, TransactionAnswer,
};
use crate::backup;
use crate::cipher::Vault;
use crate::cluster;
use crate::core::Shared;
use crate::cycle::{
    AckCommand, ClaimData, ConfigureCommand, DeleteGroupCommand, DeleteQueueCommand, ExtendCommand,
    Input, PartAnswer, PopCommand, PopGranted, PushCommand, ResubscribeCommand, TransactionCommand,
    TransactionOutcome,
};
use crate::inbox::NotTaken;
use crate::lookup::frames_of;
use crate::offload::offload;
use crate::prepare::{MintIds, Prepared, prepare};

/// Settings of the front door.
#[derive(Clone, Copy, Debug)]
pub struct BrokerOptions {
    /// Compression level of payloads; 0 turns it off.
    pub zstd_level: i32,
    /// Bytes of pushes and transactions admitted and not answered; 0 sets no limit.
    pub admit_bytes_max: usize,
    /// How long a push waits for room before it is refused.
    pub admit_hold: Duration,
}

/// The broker's [`Api`].
pub struct Broker {
    shared: Arc<Shared>,
    ids: Arc<dyn MintIds>,
    options: BrokerOptions,
    admissions: Admissions,
    reads: Arc<Semaphore>,
    tokens: AtomicU64,
}

/// Reads that run at once; each may hold some tens of megabytes.
const READS_MAX: usize = 8;

impl Broker {
    pub(crate) fn new(shared: Arc<Shared>, ids: Arc<dyn MintIds>, options: BrokerOptions) -> Self {
        let metrics = &shared.metrics;
        let (admitted, refused) = (metrics.admit_bytes.clone(), metrics.admit_refused.clone());
        let BrokerOptions { admit_bytes_max, admit_hold, .. } = options;
        let admissions = Admissions::new(admit_bytes_max, admit_hold, admitted, refused);
        let reads = Arc::new(Semaphore::new(READS_MAX));
        Self { shared, ids, options, admissions, reads, tokens: AtomicU64::new(1) }
    }

    /// Makes frames of everything that is to be stored, as the queues' options say.
    fn prepare(&self, tenant: Tenant, batch: PushBatch<'_>) -> Result<Prepared, CallError> {
        if self.shared.disk_gate.is_closed() && !batch.is_empty() {
            // Of a node that failed, room alone makes no other.
            let has_failed = self.shared.failed.lock().is_some();
            return Err(if has_failed { self.gone() } else { CallError::StorageFull });
        }
        let sealing = self.shared.reader.vault().sealing(&self.shared.state);
        offload(batch.bytes(), || {
            prepare(tenant, batch, &*self.ids, self.options.zstd_level, sealing)
        })
    }

    /// Sends a command and waits for its answer.
    async fn call<T>(
        &self,
        deadline: Duration,
        command: impl FnOnce(oneshot::Sender<Result<T, CallError>>) -> Input,
    ) -> Result<T, CallError> {
        let (reply, answer) = oneshot::channel();
        self.shared.inbox.send(command(reply)).map_err(|refused| match refused {
            NotTaken::Closed(reason) => CallError::NotServing(reason),
            NotTaken::Full => CallError::Overloaded { retry_after_s: 1 },
        })?;
        match tokio::time::timeout(deadline, answer).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(self.gone()),
            Err(_) => Err(CallError::Timeout(deadline)),
        }
    }

    /// Why an answer will never come.
    fn gone(&self) -> CallError {
        let reason = self.shared.failed.lock().clone();
        if reason.is_none() && self.shared.cluster.get().is_some() {
            return CallError::LeadLost;
        }
        CallError::NotServing(reason.unwrap_or_else(|| "the node is stopping".to_owned()))
    }
}

/// Tells the core that a pop's caller is gone, unless it was answered.
struct PopGuard<'a> {
    shared: &'a Shared,
    token: u64,
    answered: bool,
}

impl Drop for PopGuard<'_> {
    fn drop(&mut self) {
        if !self.answered {
            // A closed inbox has no pops any more.
            drop(self.shared.inbox.send(Input::Abandon(self.token)));
        }
    }
}

impl Api for Broker {
    async fn place(&self, limit: Duration) -> Place {
        cluster::place_within(&self.shared, limit).await
    }

    async fn admit(&self, bytes: usize) -> Result<Admission, CallError> {
        self.admissions.take(bytes).await
    }

    async fn backup(&self) -> Result<Backup, CallError> {
        backup::take(&self.shared).await
    }

    async fn push(
        &self,
        tenant: Tenant,
        batch: PushBatch<'_>,
        deadline: Duration,
    ) -> Result<Vec<PushAnswer>, CallError> {
        let prepared = self.prepare(tenant, batch)?;
        let Handed { parts, minted, places } = hand_over(prepared);
        let answers =
            self.call(deadline, |reply| Input::Push(PushCommand { parts, reply })).await?;
        Ok(places.iter().map(|place| push_answer(*place, &minted, &answers)).collect())
    }

    async fn transaction(
        &self,
        transaction: Transaction<'_>,
        deadline: Duration,
    ) -> Result<TransactionAnswer, CallError> {
        let Transaction { tenant, acks, pushes, positions } = transaction;
        let prepared = self.prepare(tenant, pushes)?;
        let Handed { parts, minted, places } = hand_over(prepared);
        let outcome = self.call(deadline, |reply| {
            let letter = None;
            let command = TransactionCommand { tenant, acks, parts, positions, letter, reply };
            Input::Transaction(Box::new(command))
        });
        let outcome = outcome.await?;
        Ok(match outcome {
            TransactionOutcome::Committed { acks, parts } => {
                let parts: Vec<PartAnswer> = parts.into_iter().map(Ok).collect();
                let answer = |place: &(u32, u32)| push_answer(*place, &minted, &parts);
                TransactionAnswer::Committed { acks, pushes: places.iter().map(answer).collect() }
            }
            TransactionOutcome::RolledBack(rollback)
            | TransactionOutcome::Duplicate(rollback, _) => TransactionAnswer::RolledBack(rollback),
            TransactionOutcome::LetterGone => unreachable!("no dead letter goes with it"),
        })
    }

    async fn pop(&self, request: PopRequest) -> Result<PopAnswer, CallError> {
        let token = self.tokens.fetch_add(1, Ordering::Relaxed);
        let frames = request.frames;
        let deadline = request.timeout + Duration::from_millis(500);
        let mut guard = PopGuard { shared: &self.shared, token, answered: false };
        let granted =
            self.call(deadline, |reply| Input::Pop(PopCommand { token, request, reply })).await;
        guard.answered = !matches!(granted, Err(CallError::Timeout(_)));
        match granted {
            Ok(granted) if frames && granted.can_be_framed() => Ok(framed_answer_of(granted)),
            Ok(granted) => {
                offload(granted.stored_bytes(), || answer_of(self.shared.reader.vault(), granted))
                    .inspect_err(|error| {
                        // What cannot be shown was not delivered: its lease goes back.
                        guard.answered = false;
                        self.shared.damaged_read(&error.to_string());
                    })
            }
            // A pop changes nothing that its caller knows of: no answer in time means nothing was there.
            Err(CallError::Timeout(_)) => Ok(PopAnswer::default()),
            Err(error) => Err(error),
        }
    }

    async fn ack(
        &self,
        tenant: Tenant,
        group: String,
        items: Vec<AckItem>,
        deadline: Duration,
    ) -> Result<Vec<AckAnswer>, CallError> {
        let results = self
            .call(deadline, |reply| Input::Ack(AckCommand { tenant, group, items, reply }))
            .await?;
        Ok(results.into_iter().map(|result| AckAnswer { result }).collect())
    }

    async fn extend(
        &self,
        tenant: Tenant,
        lease: String,
        seconds: i64,
        deadline: Duration,
    ) -> Result<Extended, CallError> {
        let lease = Uuid::parse(&lease);
        self.call(deadline, |reply| Input::Extend(ExtendCommand { tenant, lease, seconds, reply }))
            .await
    }

    async fn configure(
        &self,
        tenant: Tenant,
        queue: String,
        patch: OptionsPatch,
        replace: bool,
        deadline: Duration,
    ) -> Result<Configured, CallError> {
        let name = queue.clone();
        let configured = self
            .call(deadline, |reply| {
                Input::Configure(ConfigureCommand { tenant, queue, patch, replace, reply })
            })
            .await?;
        if configured.options.encryption_enabled {
            self.shared.reader.vault().warn_of_plain_text(&name);
        }
        Ok(configured)
    }

    async fn delete_queue(
        &self,
        tenant: Tenant,
        queue: String,
        deadline: Duration,
    ) -> Result<bool, CallError> {
        self.call(deadline, |reply| Input::DeleteQueue(DeleteQueueCommand((tenant, queue), reply)))
            .await
    }

    async fn delete_group(
        &self,
        tenant: Tenant,
        group: String,
        queue: Option<String>,
        metadata: bool,
        deadline: Duration,
    ) -> Result<GroupDeleted, CallError> {
        self.call(deadline, |reply| {
            let command = DeleteGroupCommand { tenant, group, queue, metadata, reply };
            Input::DeleteGroup(command)
        })
        .await
    }

    async fn replay(
        &self,
        tenant: Tenant,
        letter: LetterRef,
        to: ReplayTo,
        deadline: Duration,
    ) -> Result<Option<Replay>, CallError> {
        self.replay_letter(tenant, letter, to, deadline).await
    }

    async fn delete_letters(
        &self,
        tenant: Tenant,
        select: LetterSelect,
        deadline: Duration,
    ) -> Result<u64, CallError> {
        self.remove_letters(tenant, select, deadline).await
    }

    async fn resubscribe(
        &self,
        tenant: Tenant,
        group: String,
        time: Micros,
        deadline: Duration,
    ) -> Result<u64, CallError> {
        self.call(deadline, |reply| {
            Input::Resubscribe(ResubscribeCommand { tenant, group, time, reply })
        })
        .await
    }

    async fn seek(&self, seek: Seek, deadline: Duration) -> Result<Option<u64>, CallError> {
        self.seek_group(seek, deadline).await
    }

    fn health(&self) -> Health {
        let failed = self.shared.failed.lock().clone();
        let damaged = self.shared.damaged.lock().clone();
        let applied = self.shared.applied.load(Ordering::Relaxed);
        let standing = cluster::standing(&self.shared, applied);
        Health {
            role: if failed.is_some() { "stopped" } else { standing.role },
            term: standing.term,
            serving: failed.is_none() && damaged.is_none() && standing.reason.is_none(),
            applied,
            committed: standing.committed,
            storage_ready: failed.is_none(),
            reason: failed.or(damaged).or(standing.reason),
        }
    }

    fn members(&self) -> Option<Members> {
        cluster::members(&self.shared)
    }

    async fn change_members(
        &self,
        change: MembersChange,
        limit: Duration,
    ) -> Result<(), MembersError> {
        cluster::change_members(&self.shared, change, limit).await
    }
}

/// A prepared push that is handed over, and what its answers are made of.
struct Handed {
    parts: Vec<PushPart>,
    /// The id that each item had.
    minted: Vec<Vec<Uuid>>,
    places: Vec<(u32, u32)>,
}

fn hand_over(prepared: Prepared) -> Handed {
    let Prepared { parts, places } = prepared;
    let ids = |part: &PushPart| part.items.iter().map(|item| item.id).collect();
    let minted = parts.iter().map(ids).collect();
    Handed { parts, minted, places }
}

fn push_answer(place: (u32, u32), minted: &[Vec<Uuid>], answers: &[PartAnswer]) -> PushAnswer {
    let (part, item) = (place.0 as usize, place.1 as usize);
    match answers.get(part) {
        Some(Ok(verdicts)) => match verdicts.get(item) {
            Some(PushVerdict::Queued { offset, id }) => {
                PushAnswer { message_id: *id, status: PushStatus::Queued(*offset) }
            }
            Some(PushVerdict::Duplicate(original)) => PushAnswer {
                message_id: original.id,
                status: PushStatus::Duplicate(original.offset),
            },
            None => unreachable!("a part has a verdict for each of its items"),
        },
        Some(Err(refusal)) => {
            let id = minted.get(part).and_then(|ids| ids.get(item)).copied().unwrap_or_default();
            PushAnswer { message_id: id, status: PushStatus::Refused(refusal.clone()) }
        }
        None => unreachable!("a push has an answer for each of its parts"),
    }
}

fn answer_of(vault: &Vault, granted: PopGranted) -> Result<PopAnswer, CallError> {
    let PopGranted { lease, claims, conflates, chosen, .. } = granted;
    let claims: Vec<Claim> =
        claims.into_iter().map(|claim| claim_of(vault, claim)).collect::<Result<_, _>>()?;
    let lease = lease.filter(|_| !claims.is_empty());
    Ok(PopAnswer { lease, claims, records: Vec::new(), conflates, chosen })
}

/// Hands stored records on as they are: their checksums were verified when they were read.
fn framed_answer_of(granted: PopGranted) -> PopAnswer {
    let PopGranted { lease, claims, conflates, chosen, .. } = granted;
    let lease = lease.filter(|_| !claims.is_empty());
    let records = claims.into_iter().map(|claim| FramedClaim {
        partition_id: claim.partition,
        partition: claim.name,
        attempt: claim.attempt,
        first: claim.first,
        last: Offset((claim.first.0 + claim.count as u64).saturating_sub(1)),
        records: claim.records.into_iter().map(framed_record).collect(),
    });
    PopAnswer { lease, claims: Vec::new(), records: records.collect(), conflates, chosen }
}

fn framed_record(record: StoredRecord) -> FramedRecord {
    let StoredRecord { base, created, count, compressed, payload, .. } = record;
    FramedRecord { base, created, count, compressed, payload }
}

/// Decodes the granted messages of a claim from their records.
fn claim_of(vault: &Vault, data: ClaimData) -> Result<Claim, CallError> {
    let mut messages = Vec::with_capacity(data.count);
    let end = data.first.0 + data.count as u64;
    for record in &data.records {
        let undecodable = || {
            CallError::Internal(format!(
                "the messages of partition {} at offset {} do not decode",
                data.partition, record.base
            ))
        };
        let frames = frames_of(record).ok_or_else(undecodable)?;
        for (offset, frame) in (record.base.0..).zip(Frames::new(&frames)) {
            let frame = frame.map_err(|_| undecodable())?;
            if offset < data.first.0 || offset >= end {
                continue;
            }
            let mut message = message_of(Offset(offset), &frames, &frame, record.created);
            if frame.encrypted {
                // Opened before it was granted wherever queue or node said that it may be sealed: no other has it.
                let opened = vault.opened(frame.data, true).map_err(|error| {
                    let (partition, name) = (data.partition, &data.name);
                    CallError::Internal(format!(
                        "the message at offset {offset} of partition {partition} ({name}) cannot be shown: {error}"
                    ))
                })?;
                message.data = opened.into_owned().into();
            }
            messages.push(message);
        }
    }
    if messages.len() != data.count {
        return Err(CallError::Internal(format!(
            "partition {} holds {} of {} granted messages",
            data.partition,
            messages.len(),
            data.count
        )));
    }
    Ok(Claim {
        partition_id: data.partition,
        partition: data.name,
        attempt: data.attempt,
        messages,
    })
}

/// A message as slices of its frames.
pub(crate) fn message_of(
    offset: Offset,
    frames: &Bytes,
    frame: &queen_record::frame::FrameRef<'_>,
    created: Micros,
) -> Message {
    Message {
        offset,
        id: frame.id,
        transaction_id: frames.slice_ref(frame.transaction_id.as_bytes()),
        trace_id: frame.trace,
        producer_sub: frame.producer_sub.map(|sub| frames.slice_ref(sub.as_bytes())),
        data: frames.slice_ref(frame.data),
        created,
    }
}
