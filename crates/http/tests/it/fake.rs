//! A broker that answers what a test scripted and records what it was asked.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use queen_broker::api::{
    AckAnswer, AckDone, AckItem, Admission, Api, Backup, CallError, Configured, Extended,
    FramedGroup, GroupDeleted, Health, LetterRef, LetterSelect, Members, MembersChange,
    MembersError, Place, PopAnswer, PopRequest, PositionSet, PushAnswer, PushBatch, PushStatus,
    Replay, ReplayTo, Seek, Transaction, TransactionAck, TransactionAnswer,
};
use queen_model::OptionsPatch;
use queen_record::ids::{Micros, Offset, Tenant, Uuid};
use tokio::sync::{mpsc, oneshot};

use crate::fake_reads::FakeReads;

/// The message id of every push that is not scripted.
pub(crate) const ID: Uuid = Uuid([
    1, 0xa0, 0xfc, 0xd5, 0x2c, 0xdf, 0x70, 0, 0xa9, 0xbb, 0x2f, 0x83, 0x2d, 0xf9, 0x6c, 0x36,
]);

/// What a pop does.
pub(crate) enum Pop {
    Answer(Result<PopAnswer, CallError>),
    /// Parks until it is released or dropped; the sender is dropped with the call.
    Park {
        started: oneshot::Sender<()>,
        release: oneshot::Receiver<()>,
        gone: oneshot::Sender<()>,
    },
    Panic,
}

/// One pushed item as it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pushed {
    pub(crate) queue: String,
    pub(crate) partition: String,
    pub(crate) transaction_id: Option<String>,
    pub(crate) payload: Vec<u8>,
    pub(crate) tenant: Tenant,
    pub(crate) producer_sub: Option<String>,
}

/// One transaction as it came.
pub(crate) struct Asked {
    pub(crate) acks: Vec<TransactionAck>,
    pub(crate) traced: Vec<Option<Uuid>>,
    pub(crate) producers: Vec<Option<String>>,
    pub(crate) positions: Vec<PositionSet>,
}

#[derive(Default)]
pub(crate) struct Fake {
    /// Of a mebibyte each; without one, another backup is running.
    pub(crate) backups: Mutex<VecDeque<mpsc::Receiver<Result<Bytes, String>>>>,
    /// Bytes of the writes that asked for room, and what some of them are told.
    pub(crate) admitted: Mutex<Vec<usize>>,
    /// For room that is asked for when some was granted already.
    pub(crate) late_refusals: Mutex<VecDeque<CallError>>,
    pub(crate) refusals: Mutex<VecDeque<CallError>>,
    pub(crate) replays: Mutex<Vec<(LetterRef, ReplayTo)>>,
    pub(crate) replayed: Mutex<VecDeque<Replay>>,
    pub(crate) purges: Mutex<Vec<LetterSelect>>,
    pub(crate) resubscribed: Mutex<Vec<(String, Micros)>>,
    pub(crate) seeks: Mutex<Vec<Seek>>,
    /// What the calls that count say.
    pub(crate) count: Mutex<u64>,
    pub(crate) framed: Mutex<Vec<FramedGroup>>,
    /// Who pushed framed groups, with a push or in a transaction.
    pub(crate) framed_by: Mutex<Vec<Option<String>>>,
    pub(crate) transactions: Mutex<Vec<Asked>>,
    pub(crate) ends: Mutex<VecDeque<TransactionAnswer>>,
    pub(crate) pushed: Mutex<Vec<Pushed>>,
    pub(crate) pushes: Mutex<VecDeque<Result<Vec<PushAnswer>, CallError>>>,
    pub(crate) pops: Mutex<VecDeque<Pop>>,
    pub(crate) popped: Mutex<Vec<PopRequest>>,
    pub(crate) acks: Mutex<VecDeque<Result<Vec<AckAnswer>, CallError>>>,
    pub(crate) acked: Mutex<Vec<(String, Vec<AckItem>)>>,
    pub(crate) extends: Mutex<VecDeque<Extended>>,
    pub(crate) extended: Mutex<Vec<(String, i64)>>,
    pub(crate) configures: Mutex<VecDeque<Configured>>,
    pub(crate) configured: Mutex<Vec<(String, OptionsPatch, bool)>>,
    pub(crate) deleted: Mutex<Vec<String>>,
    pub(crate) groups: Mutex<Vec<(String, Option<String>, bool)>>,
    pub(crate) reads: FakeReads,
    /// A member of a cluster when there is one; and where calls are served then.
    pub(crate) members: Mutex<Option<Members>>,
    pub(crate) place: Mutex<Option<Place>>,
    pub(crate) places_asked: AtomicUsize,
    pub(crate) changes: Mutex<Vec<(MembersChange, Duration)>>,
    pub(crate) changed: Mutex<VecDeque<Result<(), MembersError>>>,
    pub(crate) is_stopped: Mutex<bool>,
}

impl Api for Fake {
    async fn place(&self, _: Duration) -> Place {
        self.places_asked.fetch_add(1, Ordering::Relaxed);
        self.place.lock().unwrap().clone().unwrap_or(Place::Here)
    }

    async fn admit(&self, bytes: usize) -> Result<Admission, CallError> {
        let is_late = {
            let mut admitted = self.admitted.lock().unwrap();
            admitted.push(bytes);
            admitted.len() > 1
        };
        let refusals = if is_late { &self.late_refusals } else { &self.refusals };
        refusals.lock().unwrap().pop_front().map_or(Ok(Admission::unlimited()), Err)
    }

    async fn backup(&self) -> Result<Backup, CallError> {
        let pieces = self.backups.lock().unwrap().pop_front().ok_or(CallError::BackupRunning)?;
        let bytes = 1 << 20;
        Ok(Backup { index: 7, bytes, pieces })
    }

    async fn push(
        &self,
        tenant: Tenant,
        batch: PushBatch<'_>,
        _: Duration,
    ) -> Result<Vec<PushAnswer>, CallError> {
        let items = match batch {
            PushBatch::Items(items) => items,
            PushBatch::Framed(groups, sub) => {
                self.framed_by.lock().unwrap().push(sub.map(str::to_owned));
                self.framed.lock().unwrap().extend_from_slice(groups);
                let queued = PushAnswer { message_id: ID, status: PushStatus::Queued(Offset(0)) };
                let scripted = self.pushes.lock().unwrap().pop_front();
                return scripted.unwrap_or_else(|| Ok(vec![queued; groups.len()]));
            }
        };
        self.pushed.lock().unwrap().extend(items.iter().map(|item| Pushed {
            queue: item.queue.to_owned(),
            partition: item.partition.to_owned(),
            transaction_id: item.transaction_id.map(str::to_owned),
            payload: item.payload.to_vec(),
            tenant,
            producer_sub: item.producer_sub.map(str::to_owned),
        }));
        if let Some(scripted) = self.pushes.lock().unwrap().pop_front() {
            return scripted;
        }
        let answer = |at| PushAnswer { message_id: ID, status: PushStatus::Queued(Offset(at)) };
        Ok((0..items.len() as u64).map(answer).collect())
    }

    async fn transaction(
        &self,
        transaction: Transaction<'_>,
        _: Duration,
    ) -> Result<TransactionAnswer, CallError> {
        let (items, count) = match transaction.pushes {
            PushBatch::Items(items) => (items, items.len()),
            // Each group of these tests holds one message.
            PushBatch::Framed(groups, sub) => {
                self.framed_by.lock().unwrap().push(sub.map(str::to_owned));
                (&[][..], groups.len())
            }
        };
        let queued = |at| PushAnswer { message_id: ID, status: PushStatus::Queued(Offset(at)) };
        let pushes = (0..count as u64).map(queued);
        let committed = TransactionAnswer::Committed {
            acks: vec![AckDone::default(); transaction.acks.len()],
            pushes: pushes.collect(),
        };
        let traced = items.iter().map(|item| item.trace_id).collect();
        let producers = items.iter().map(|item| item.producer_sub.map(str::to_owned)).collect();
        self.transactions.lock().unwrap().push(Asked {
            acks: transaction.acks,
            traced,
            producers,
            positions: transaction.positions,
        });
        Ok(self.ends.lock().unwrap().pop_front().unwrap_or(committed))
    }

    async fn pop(&self, request: PopRequest) -> Result<PopAnswer, CallError> {
        self.popped.lock().unwrap().push(request);
        let scripted = self.pops.lock().unwrap().pop_front();
        match scripted {
            None => Ok(PopAnswer::default()),
            Some(Pop::Answer(answer)) => answer,
            Some(Pop::Panic) => panic!("as the test wants"),
            Some(Pop::Park { started, release, gone }) => {
                started.send(()).ok();
                release.await.ok();
                drop(gone);
                Ok(PopAnswer::default())
            }
        }
    }

    async fn ack(
        &self,
        _: Tenant,
        group: String,
        items: Vec<AckItem>,
        _: Duration,
    ) -> Result<Vec<AckAnswer>, CallError> {
        let count = items.len();
        self.acked.lock().unwrap().push((group, items));
        if let Some(scripted) = self.acks.lock().unwrap().pop_front() {
            return scripted;
        }
        Ok(vec![AckAnswer { result: Ok(AckDone::default()) }; count])
    }

    async fn extend(
        &self,
        _: Tenant,
        lease: String,
        seconds: i64,
        _: Duration,
    ) -> Result<Extended, CallError> {
        self.extended.lock().unwrap().push((lease, seconds));
        let none = Extended { renewed: 0, expires: None };
        Ok(self.extends.lock().unwrap().pop_front().unwrap_or(none))
    }

    async fn configure(
        &self,
        _: Tenant,
        queue: String,
        patch: OptionsPatch,
        replace: bool,
        _: Duration,
    ) -> Result<Configured, CallError> {
        self.configured.lock().unwrap().push((queue, patch.clone(), replace));
        let made = Configured { queue_id: ID, options: patch.applied(None, replace) };
        Ok(self.configures.lock().unwrap().pop_front().unwrap_or(made))
    }

    async fn delete_queue(&self, _: Tenant, queue: String, _: Duration) -> Result<bool, CallError> {
        let existed = queue != "missing";
        self.deleted.lock().unwrap().push(queue);
        Ok(existed)
    }

    async fn delete_group(
        &self,
        _: Tenant,
        group: String,
        queue: Option<String>,
        metadata: bool,
        _: Duration,
    ) -> Result<GroupDeleted, CallError> {
        let queues = queue.clone().into_iter().collect();
        self.groups.lock().unwrap().push((group, queue, metadata));
        Ok(GroupDeleted { partitions: 2, metadata, queues })
    }

    async fn replay(
        &self,
        _: Tenant,
        letter: LetterRef,
        to: ReplayTo,
        _: Duration,
    ) -> Result<Option<Replay>, CallError> {
        self.replays.lock().unwrap().push((letter, to));
        Ok(self.replayed.lock().unwrap().pop_front())
    }

    async fn delete_letters(
        &self,
        _: Tenant,
        select: LetterSelect,
        _: Duration,
    ) -> Result<u64, CallError> {
        self.purges.lock().unwrap().push(select);
        Ok(*self.count.lock().unwrap())
    }

    async fn resubscribe(
        &self,
        _: Tenant,
        group: String,
        time: Micros,
        _: Duration,
    ) -> Result<u64, CallError> {
        self.resubscribed.lock().unwrap().push((group, time));
        Ok(*self.count.lock().unwrap())
    }

    async fn seek(&self, seek: Seek, _: Duration) -> Result<Option<u64>, CallError> {
        self.seeks.lock().unwrap().push(seek);
        let count = *self.count.lock().unwrap();
        Ok((count > 0).then_some(count))
    }

    fn members(&self) -> Option<Members> {
        self.members.lock().unwrap().clone()
    }

    async fn change_members(
        &self,
        change: MembersChange,
        limit: Duration,
    ) -> Result<(), MembersError> {
        self.changes.lock().unwrap().push((change, limit));
        self.changed.lock().unwrap().pop_front().unwrap_or(Ok(()))
    }

    fn health(&self) -> Health {
        let is_stopped = *self.is_stopped.lock().unwrap();
        Health {
            role: if is_stopped { "stopped" } else { "leader" },
            term: 1,
            serving: !is_stopped,
            applied: 7,
            committed: 8,
            storage_ready: !is_stopped,
            reason: is_stopped.then(|| "No space left on device".to_owned()),
        }
    }
}
