//! Queues and groups: configure, delete, register.

use queen_model::{Effect, GroupUpsert, OptionsPatch, QueueOptions, Refusal, SubscriptionMode};
use queen_record::hash::queue_id;
use queen_record::ids::{Micros, Tenant, Uuid};
use queen_state::State;

use crate::consume::Start;
use crate::draft::{Draft, Route};
use crate::limits::check_names;
use crate::overlay::{Overlay, QueueView, Registration, Subscription};
use crate::push::create_queue;

/// Options that the API refuses instead of clamping.
const SINK_HOLD_LEN_MAX: usize = 64;
const SINK_HOLD_SECONDS: std::ops::RangeInclusive<i32> = 60..=31_536_000;

/// How a pop registers its group.
#[derive(Clone, Copy, Debug)]
pub struct GroupTerms {
    /// Where the group starts.
    pub start: Start,
    /// When the pop arrived: a group that begins "now" begins then.
    pub since: Micros,
    /// Whether it delivers only the newest message.
    pub conflation: bool,
}

/// What catalog planning works on.
pub struct Catalog<'a> {
    /// Applied state.
    pub state: &'a State,
    /// Changes in flight.
    pub overlay: &'a mut Overlay,
    /// Number of this plan.
    pub plan: u64,
}

impl Catalog<'_> {
    /// Makes a queue or changes its options; returns its id and options.
    ///
    /// # Errors
    /// A refusal when a name or an option is out of range.
    pub fn configure(
        &mut self,
        draft: &mut Draft<'_>,
        (tenant, name): (Tenant, &str),
        patch: OptionsPatch,
        replace: bool,
    ) -> Result<(Uuid, QueueOptions), Refusal> {
        check_names(name, "")?;
        let view = self.overlay.queue(self.state, tenant, name);
        let stored = view.and_then(|_| self.overlay.options(self.state, tenant, name));
        let options = patch.applied(stored.as_ref(), replace);
        check_options(&options)?;
        let (id, created, in_flight) = match view {
            Some(view) => (view.id, view.created, view.in_flight),
            None => (draft.mint(), draft.now(), true),
        };
        if stored.as_ref() != Some(&options) {
            let view = QueueView::new((tenant, name), id, created, &options, in_flight);
            self.overlay.put_queue(self.plan, tenant, name, Some((view, options.clone())));
            let queue = name.to_owned();
            let effect =
                Effect::QueueUpsert { tenant, queue, id, options: options.clone(), created };
            draft.add(effect, Route::Queue(view.route), 200 + name.len());
        }
        Ok((id, options))
    }

    /// Removes a queue; whether it existed.
    pub fn delete_queue(&mut self, draft: &mut Draft<'_>, tenant: Tenant, name: &str) -> bool {
        if self.overlay.queue(self.state, tenant, name).is_none() {
            return false;
        }
        self.overlay.put_queue(self.plan, tenant, name, None);
        let route = Route::Queue(queue_id(tenant, name));
        draft.add(Effect::QueueDelete { tenant, queue: name.to_owned() }, route, 80 + name.len());
        true
    }

    /// Removes a group's cursors on a queue, and its subscription with `metadata`; returns the cursors removed and
    /// whether a subscription went, or `None` when the queue does not know the group.
    pub fn delete_group(
        &mut self,
        draft: &mut Draft<'_>,
        (tenant, queue): (Tenant, &str),
        group: &str,
        metadata: bool,
    ) -> Option<(u64, bool)> {
        let view = self.overlay.queue(self.state, tenant, queue)?;
        let subscribed = self.overlay.subscription(self.state, tenant, queue, group).is_some();
        let gone = view.in_flight || self.overlay.is_group_deleted(tenant, queue, group);
        let row = if gone { None } else { self.state.queue(tenant, queue) };
        let row = row.and_then(|queue| queue.group(group));
        if row.is_none() && !subscribed {
            return None;
        }
        let cursors = row.map_or(0, |row| row.cursor_count);
        if metadata {
            self.overlay.put_registration(self.plan, tenant, queue, group, None);
        }
        self.overlay.delete_group(self.plan, tenant, queue, group);
        let effect = Effect::GroupDelete {
            tenant,
            queue: queue.to_owned(),
            group: group.to_owned(),
            metadata,
        };
        draft.add(effect, Route::Queue(view.route), 100 + queue.len() + group.len());
        Some((cursors, subscribed && metadata))
    }

    /// The queue of a wildcard pop, made when it is missing, with the group registered on it.
    ///
    /// # Errors
    /// A refusal when the names are too long.
    pub fn register(
        &mut self,
        draft: &mut Draft<'_>,
        (tenant, queue): (Tenant, &str),
        group: &str,
        terms: GroupTerms,
    ) -> Result<QueueView, Refusal> {
        check_names(queue, group)?;
        let view = match self.overlay.queue(self.state, tenant, queue) {
            Some(view) => view,
            None => create_queue(self.overlay, self.plan, draft, (tenant, queue)),
        };
        let known = group == crate::consume::QUEUE_MODE
            || self.overlay.subscription(self.state, tenant, queue, group).is_some();
        if !known {
            self.subscribe(draft, (tenant, queue), group, &view, terms);
        }
        Ok(view)
    }

    fn subscribe(
        &mut self,
        draft: &mut Draft<'_>,
        (tenant, queue): (Tenant, &str),
        group: &str,
        view: &QueueView,
        GroupTerms { start, since, conflation }: GroupTerms,
    ) {
        let now = draft.now();
        let (mode, subscribe_at, subscription) = match start {
            Start::All | Start::Stored => (SubscriptionMode::All, Micros(0), Subscription::All),
            Start::End => (SubscriptionMode::New, since, Subscription::From(since)),
            Start::From(time) => (SubscriptionMode::Timestamp, time, Subscription::From(time)),
        };
        let registration = Registration { start: subscription, conflation };
        self.overlay.put_registration(self.plan, tenant, queue, group, Some(registration));
        let effect = Effect::GroupUpsert(GroupUpsert {
            tenant,
            queue: queue.to_owned(),
            group: group.to_owned(),
            id: draft.mint(),
            mode,
            subscribe_at,
            conflation,
            registered: now,
        });
        draft.add(effect, Route::Queue(view.route), 160 + queue.len() + group.len());
    }

    /// Sets where a registered group starts to a time; whether it is registered on this queue.
    pub fn resubscribe(
        &mut self,
        draft: &mut Draft<'_>,
        (tenant, queue): (Tenant, &str),
        group: &str,
        time: Micros,
    ) -> bool {
        let Some(view) = self.overlay.queue(self.state, tenant, queue) else { return false };
        let known = self.overlay.registration(self.state, tenant, queue, group);
        let Some(known) = known else { return false };
        let registration = Registration { start: Subscription::From(time), ..known };
        self.overlay.put_registration(self.plan, tenant, queue, group, Some(registration));
        let stored = self.state.queue(tenant, queue).and_then(|queue| queue.group(group));
        let stored = stored.and_then(|group| group.subscription.as_ref());
        let effect = Effect::GroupUpsert(GroupUpsert {
            tenant,
            queue: queue.to_owned(),
            group: group.to_owned(),
            id: stored.map_or_else(|| draft.mint(), |stored| stored.id),
            mode: SubscriptionMode::Timestamp,
            subscribe_at: time,
            conflation: known.conflation,
            registered: stored.map_or(draft.now(), |stored| stored.registered),
        });
        draft.add(effect, Route::Queue(view.route), 160 + queue.len() + group.len());
        true
    }
}

fn check_options(options: &QueueOptions) -> Result<(), Refusal> {
    let hold = &options.retention_sink_hold;
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    if hold.len() > SINK_HOLD_LEN_MAX || !hold.bytes().all(plain) {
        return Err(Refusal::BadRequest(
            "retentionSinkHold must match [A-Za-z0-9._-]{0,64}".to_owned(),
        ));
    }
    let seconds = options.retention_sink_hold_max_seconds;
    if seconds != 0 && !SINK_HOLD_SECONDS.contains(&seconds) {
        return Err(Refusal::BadRequest(format!(
            "retentionSinkHoldMaxSeconds must be {} to {}, got {seconds}",
            SINK_HOLD_SECONDS.start(),
            SINK_HOLD_SECONDS.end()
        )));
    }
    Ok(())
}
