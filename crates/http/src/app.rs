//! From a request to its answer: route, caller, tenant, origin, body, handler.

use std::fmt::Display;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use hyper::body::Body;
use hyper::http::request::Parts;
use hyper::{HeaderMap, Request, StatusCode};
use queen_broker::api::{Admission, Api, CallError, Place};
use queen_record::ids::Tenant;
use tracing::debug;

use crate::auth::{Denied, Level};
use crate::binary::GroupReader;
use crate::body::{self, BodyBudget, BodyLimit};
use crate::budget::{AnswerBudget, FREE_BYTES, MIRROR_BYTES_MAX, Room, Taker};
use crate::catch::catch;
use crate::error::{Answer, ApiError};
use crate::forward::{self, Forwarder, NotForwarded};
use crate::gate::Gate;
use crate::options::AppOptions;
use crate::origin;
use crate::query::Query;
use crate::routes::{self, Op, Route, members};
use crate::stats::{self, HttpStats};
use crate::tenancy;

/// The longest deadline of any call.
const DEADLINE_MAX: Duration = Duration::from_mins(1);

/// How long a call waits for a leader: longer than an election takes, shorter than clients do.
const LEADER_WAIT: Duration = Duration::from_secs(8);

/// How long a call that could not be handed on waits before it looks for the leader again.
const LEADER_LOOK: Duration = Duration::from_millis(50);

/// How long after it came a call that was handed on may be handed to another leader: as long as the longest pop waits.
const REPEATED_WITHIN: Duration = Duration::from_mins(1);

/// How often it is asked whether the member that a call was handed to still leads, and how long one that does not any more
/// has to answer all the same.
const DEPOSED_LOOK: Duration = Duration::from_millis(250);
const DEPOSED_GRACE: Duration = Duration::from_secs(1);

/// How long the leader has to say who the members are, before the node that was asked says what it knows.
const LOOK_MAX: Duration = Duration::from_secs(3);

/// Body of a request that changes nothing, at most: who may only read must not take the room for bodies from who writes.
const QUESTION_BYTES_MAX: usize = 4 << 20;

/// What a write of unknown length is taken for.
const CHUNKED_BYTES: usize = 1 << 20;

/// A write of at most these bytes keeps its room while its body comes: that much is on its way already.
const HELD_BYTES: usize = 256 << 10;
/// How long it keeps it: a body that does not come must not keep others out. As long the body of a refused one is waited for.
const HELD: Duration = Duration::from_millis(250);

/// The routes over one broker.
#[derive(Debug)]
pub struct App<A> {
    gate: Arc<Gate<A>>,
    pub(crate) options: AppOptions,
    bodies: BodyBudget,
    answers: AnswerBudget,
    forwarder: Forwarder,
}

/// What every handler works with.
pub(crate) struct Call<'a, A> {
    pub(crate) gate: &'a Gate<A>,
    pub(crate) options: &'a AppOptions,
    pub(crate) query: Query<'a>,
    pub(crate) tenant: Tenant,
    pub(crate) bodies: &'a BodyBudget,
    /// For what is asked of other members, with the caller's own right.
    pub(crate) forwarder: &'a Forwarder,
    pub(crate) headers: &'a HeaderMap,
    /// How long it has waited for the answer of leaders that did not give one.
    pub(crate) waited: Duration,
    answers: &'a AnswerBudget,
    taker: &'a Arc<Taker>,
    /// The subject of the caller's token, stamped on what is pushed; never taken from a body.
    pub(crate) sub: Option<String>,
}

impl<A> Call<'_, A> {
    /// The broker, once it is open.
    pub(crate) fn api(&self) -> Result<&A, ApiError> {
        Ok(self.gate.api()?)
    }

    /// Reads the groups of a binary body within the limits of this request.
    pub(crate) fn group_reader(&self) -> GroupReader<'_> {
        GroupReader::new(self.options.body_bytes_max, self.bodies)
    }

    /// Deadline of writes other than a push.
    pub(crate) fn deadline(&self) -> Duration {
        self.options.statement_timeout.min(DEADLINE_MAX)
    }

    /// Deadline of a push.
    pub(crate) fn push_deadline(&self) -> Duration {
        self.options.default_timeout.min(DEADLINE_MAX)
    }

    /// Room for an answer of at most this many bytes, before it is rendered.
    pub(crate) async fn room(&self, bytes: u64) -> Result<Option<Room>, ApiError> {
        self.answers.reserve(self.taker, bytes).await
    }

    /// Waits until there is room for some answer, before anything is taken for it.
    pub(crate) async fn some_room(&self) -> Result<(), ApiError> {
        self.room(FREE_BYTES + 1).await.map(drop)
    }

    /// Room for the answer to what is done already.
    pub(crate) async fn room_for_done(&self, bytes: u64) -> Option<Room> {
        self.answers.insist(self.taker, bytes).await
    }

    /// Room for an answer with an element for each of the request, before any of it is done.
    pub(crate) async fn mirror_room(&self, bytes: u64) -> Result<Option<Room>, ApiError> {
        if bytes > MIRROR_BYTES_MAX {
            return Err(ApiError::answer_too_large(bytes, MIRROR_BYTES_MAX));
        }
        self.room(bytes).await
    }

    pub(crate) fn count(&self, counter: impl FnOnce(&HttpStats) -> &AtomicU64, count: usize) {
        stats::add(counter(&self.options.stats), count);
    }
}

impl<A: Api> App<A> {
    /// The routes over the broker behind `gate`.
    #[must_use]
    pub fn new(gate: Arc<Gate<A>>, options: AppOptions) -> Self {
        let bodies = BodyBudget::new(options.body_bytes_max);
        let (answers, forwarder) = (AnswerBudget::default(), Forwarder::default());
        Self { gate, options, bodies, answers, forwarder }
    }

    /// Answers one request; every failure is an answer too. Once `stopping` completes, no body is waited for.
    pub(crate) async fn handle<B>(
        &self,
        request: Request<B>,
        taker: &Arc<Taker>,
        stopping: impl Future<Output = ()> + Send,
    ) -> Answer
    where
        B: Body<Data = Bytes> + Send,
        B::Error: Display,
    {
        let (parts, body) = request.into_parts();
        let found = Route::find(&parts.method, parts.uri.path());
        let is_membership = found.as_ref().is_ok_and(|route| members::is_about(route.spec.op));
        match catch(self.answer(&parts, found, body, taker, stopping)).await {
            Ok(Ok(mut answer)) => {
                answer.body_mut().hold(&self.answers, taker);
                answer
            }
            Ok(Err(error)) => {
                debug!(method = %parts.method, path = parts.uri.path(), ?error, "refused");
                if is_membership { error.into_not_ok() } else { error }.into_answer()
            }
            Err(_) => ApiError::panicked().into_answer(),
        }
    }

    async fn answer<B>(
        &self,
        parts: &Parts,
        found: Result<Route, ApiError>,
        body: B,
        taker: &Arc<Taker>,
        stopping: impl Future<Output = ()> + Send,
    ) -> Result<Answer, ApiError>
    where
        B: Body<Data = Bytes> + Send,
        B::Error: Display,
    {
        // What is no route asks for as much as most are: a stranger does not learn which paths there are.
        body::check_coding(&parts.headers)?;
        let level = found.as_ref().map_or(Level::ReadWrite, |route| route.spec.level);
        let sub = self.admit(parts, level).await?;
        let tenant = tenancy::of_request(&parts.headers, self.options.tenancy_header)?;
        let route = found?;
        if route.is_change() && !origin::is_own(&parts.headers, &parts.uri) {
            return Err(ApiError::cross_site());
        }
        members::check_tenant(route.spec.op, tenant)?;
        // Before the body is read: where it goes decides what is done with it.
        let wait = members::leader_wait(route.spec.op, parts.uri.query(), LEADER_WAIT);
        let leader = match route.spec.op {
            Op::Membership => {
                if let Some(answer) = self.look(parts, &route).await {
                    return Ok(answer);
                }
                None
            }
            _ => self.leader(parts, &route, wait).await?,
        };
        let most = self.options.body_bytes_max;
        let limit = BodyLimit {
            bytes_max: if route.is_change() { most } else { most.min(QUESTION_BYTES_MAX) },
            timeout: self.options.body_timeout,
        };
        let mut stopping = pin!(stopping);
        let is_write = matches!(route.spec.op, Op::Push | Op::Transaction);
        let mut is_admitted = is_write && leader.is_none();
        let mut admission = None;
        // Taken before the body is read: what has to wait, or is refused, waits in the socket and costs no memory.
        if is_admitted {
            let bytes = self.expected(&body)?;
            let room = match self.room(bytes.min(HELD_BYTES), stopping.as_mut()).await {
                Ok(room) => room,
                Err(refused) => return Err(Self::refuse(refused, body, bytes).await),
            };
            admission = (bytes <= HELD_BYTES).then_some(room);
        }
        let body = {
            let mut reading = pin!(body::read(body, limit, &self.bodies, stopping.as_mut()));
            tokio::select! {
                biased;
                body = &mut reading => body?,
                () = tokio::time::sleep(HELD), if admission.is_some() => {
                    admission = None;
                    reading.await?
                }
            }
        };
        let mut waited = forward::waited(&parts.headers);
        if let Some(leader) = leader {
            let handed_at = tokio::time::Instant::now();
            let handed = self.forward(parts, &route, &body.bytes, (leader, wait)).await;
            waited += handed_at.elapsed();
            let is_membership = members::is_about(route.spec.op);
            let silent = |error: ApiError| {
                if is_membership { error.into_leader_silent() } else { error }
            };
            if let Some(answer) = handed.map_err(silent)? {
                return Ok(answer);
            }
            is_admitted = is_write;
        }
        if is_admitted && admission.is_none() {
            admission = Some(self.room(body.bytes.len(), stopping).await?);
        }
        let query = Query::new(parts.uri.query());
        let call = Call {
            gate: &self.gate,
            options: &self.options,
            query,
            tenant,
            sub,
            bodies: &self.bodies,
            forwarder: &self.forwarder,
            headers: &parts.headers,
            waited,
            answers: &self.answers,
            taker,
        };
        let answer = routes::dispatch(&call, route, body.bytes).await;
        drop((body.room, admission));
        answer
    }

    /// What the leader answers to a question that this node can answer too; nothing when it does not answer it now.
    async fn look(&self, parts: &Parts, route: &Route) -> Option<Answer> {
        let leader = self.leader(parts, route, Duration::ZERO).await.ok().flatten()?;
        let asked = self.forwarder.forward(parts, Bytes::new(), (&leader, Duration::ZERO));
        let answer = tokio::time::timeout(LOOK_MAX, asked).await.ok()?.ok()?;
        (answer.status() == StatusCode::OK).then_some(answer)
    }

    /// The member that serves this call, when it is not this one.
    async fn leader(
        &self,
        parts: &Parts,
        route: &Route,
        limit: Duration,
    ) -> Result<Option<String>, ApiError> {
        if route.is_local() {
            return Ok(None);
        }
        let is_forwarded = forward::is_forwarded(&parts.headers);
        let limit = if is_forwarded { Duration::ZERO } else { limit };
        let unplaced = |error: CallError| {
            let error = ApiError::from(error);
            if is_forwarded { error.unplaced() } else { error }
        };
        match self.gate.api().map_err(unplaced)?.place(limit).await {
            Place::Here => Ok(None),
            Place::At(address) if !is_forwarded => Ok(Some(address)),
            Place::At(_) | Place::Nowhere => Err(unplaced(CallError::NoLeader)),
        }
    }

    /// Hands a call on to the leader, and to the next one when the first cannot be reached; `None` when that is this node.
    async fn forward(
        &self,
        parts: &Parts,
        route: &Route,
        body: &Bytes,
        (mut leader, wait): (String, Duration),
    ) -> Result<Option<Answer>, ApiError> {
        let began = tokio::time::Instant::now();
        let mut until = began + wait;
        loop {
            let asked = self.forwarder.forward(parts, body.clone(), (&leader, began.elapsed()));
            let answered = tokio::select! {
                biased;
                answered = asked => answered,
                () = self.deposed(&leader) => {
                    Err(NotForwarded::Unknown(CallError::LeadLost.into()))
                }
            };
            let refused = match answered {
                Ok(answer) => return Ok(Some(answer)),
                Err(NotForwarded::Unsent(error)) => error,
                Err(NotForwarded::Unknown(error)) => {
                    if !route.may_repeat() || began.elapsed() > REPEATED_WITHIN {
                        return Err(error);
                    }
                    until = tokio::time::Instant::now() + wait;
                    error
                }
            };
            // A leader that died is still taken for one until the others have elected.
            tokio::time::sleep(LEADER_LOOK).await;
            let left = until.saturating_duration_since(tokio::time::Instant::now());
            match self.leader(parts, route, left).await? {
                None => return Ok(None),
                Some(next) if !left.is_zero() => leader = next,
                Some(_) => return Err(refused),
            }
        }
    }

    /// Completes once another member is known to lead, and the one that was asked has had its time to answer what it still
    /// could: one that hangs is not waited for until a client gives up.
    async fn deposed(&self, leader: &str) {
        loop {
            tokio::time::sleep(DEPOSED_LOOK).await;
            let Ok(api) = self.gate.api() else { continue };
            let is_deposed = match api.place(Duration::ZERO).await {
                Place::Here => true,
                Place::At(now) => now != leader,
                Place::Nowhere => false,
            };
            if is_deposed {
                return tokio::time::sleep(DEPOSED_GRACE).await;
            }
        }
    }

    /// What a refused write is answered. A small body that has come is thrown away, so that its connection stays: a node that
    /// has too much to do has no time for new connections. Otherwise the body stays unread and the connection ends.
    async fn refuse<B>(refused: ApiError, body: B, bytes: usize) -> ApiError
    where
        B: Body<Data = Bytes>,
    {
        if bytes > HELD_BYTES {
            return refused.closing();
        }
        match tokio::time::timeout(HELD, body::discard(body, HELD_BYTES)).await {
            Ok(true) => refused,
            Ok(false) | Err(_) => refused.closing(),
        }
    }

    /// About the bytes that a body will have.
    fn expected<B: Body>(&self, body: &B) -> Result<usize, ApiError> {
        let hint = body.size_hint();
        let most = self.options.body_bytes_max;
        match hint.exact().map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX)) {
            Some(bytes) if bytes > most => Err(ApiError::body_too_large(most)),
            Some(bytes) => Ok(bytes),
            None => Ok(CHUNKED_BYTES.min(most)),
        }
    }

    /// Room for a write.
    async fn room(
        &self,
        bytes: usize,
        stopping: impl Future<Output = ()>,
    ) -> Result<Admission, ApiError> {
        let api = self.gate.api()?;
        tokio::select! {
            biased;
            admission = api.admit(bytes) => Ok(admission?),
            () = stopping => Err(ApiError::stopping()),
        }
    }

    /// Lets a caller through to a route of this level; answers the subject of its token.
    async fn admit(&self, parts: &Parts, level: Level) -> Result<Option<String>, Denied> {
        let Some(auth) = &self.options.auth else { return Ok(None) };
        if level == Level::Public || auth.skips(parts.uri.path()) {
            return Ok(None);
        }
        let caller = auth.identify(&parts.headers, SystemTime::now()).await?;
        if caller.roles.may(level) { Ok(caller.sub) } else { Err(Denied::Level) }
    }
}

#[cfg(test)]
mod tests;
