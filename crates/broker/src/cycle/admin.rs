//! Leases to extend, queues and groups to change, in the cycle.

use queen_model::OptionsPatch;
use queen_planner::catalog::Catalog;
use queen_planner::consume::Place;
use queen_planner::draft::Draft;
use queen_planner::limits::check_names;
use queen_record::ids::{Micros, PartitionId, Tenant, Uuid};
use queen_state::State;

use super::pops::refuse;
use super::{Cycle, Ready, Reply};
use crate::api::{Configured, Extended, GroupDeleted};

/// Extends the leases of an id.
#[derive(Debug)]
pub struct ExtendCommand {
    /// Whose.
    pub tenant: Tenant,
    /// The lease id; `None` for a text that is no UUID.
    pub lease: Option<Uuid>,
    /// Seconds from now.
    pub seconds: i64,
    /// Where the answer goes.
    pub reply: Reply<Extended>,
}

/// Makes a queue or changes its options.
#[derive(Debug)]
pub struct ConfigureCommand {
    /// Whose.
    pub tenant: Tenant,
    /// Queue name.
    pub queue: String,
    /// What the call mentions.
    pub patch: OptionsPatch,
    /// Whether the rest goes back to its defaults.
    pub replace: bool,
    /// Where the answer goes.
    pub reply: Reply<Configured>,
}

/// Deletes a queue: its names, and where the answer goes.
#[derive(Debug)]
pub struct DeleteQueueCommand(pub (Tenant, String), pub Reply<bool>);

/// Deletes a group.
#[derive(Debug)]
pub struct DeleteGroupCommand {
    /// Whose.
    pub tenant: Tenant,
    /// Group name.
    pub group: String,
    /// On this queue; on all without.
    pub queue: Option<String>,
    /// Whether the subscription goes too.
    pub metadata: bool,
    /// Where the answer goes.
    pub reply: Reply<GroupDeleted>,
}

/// Removes dead letters of a queue.
#[derive(Debug)]
pub struct DeleteLettersCommand {
    /// Whose.
    pub tenant: Tenant,
    /// Queue name.
    pub queue: String,
    /// Which; those that are gone are passed over.
    pub ids: Vec<Uuid>,
    /// Where the number of removed ones goes.
    pub reply: Reply<u64>,
}

/// Sets where a group starts.
#[derive(Debug)]
pub struct ResubscribeCommand {
    /// Whose.
    pub tenant: Tenant,
    /// Group name.
    pub group: String,
    /// From then on.
    pub time: Micros,
    /// Where the number of queues goes.
    pub reply: Reply<u64>,
}

/// Puts a group's cursors somewhere.
#[derive(Debug)]
pub struct SeekCommand {
    /// Whose.
    pub tenant: Tenant,
    /// Queue name.
    pub queue: String,
    /// Group name.
    pub group: String,
    /// Partitions of the queue, and where; those that are gone are passed over.
    pub places: Vec<(PartitionId, Place)>,
    /// Where the number of moved cursors goes.
    pub reply: Reply<u64>,
}

impl Cycle {
    pub(super) fn delete_letters(
        &mut self,
        state: &State,
        draft: &mut Draft<'_>,
        command: DeleteLettersCommand,
    ) {
        let DeleteLettersCommand { tenant, queue, ids, reply } = command;
        let live = self.overlay.queue(state, tenant, &queue).filter(|view| !view.in_flight);
        let row = live.and_then(|_| state.queue(tenant, &queue));
        let mut removed = 0;
        for id in ids {
            let there = row.is_some_and(|row| row.dead_letter(id).is_some());
            if there && !self.overlay.is_letter_gone(id) {
                self.remove_letter(draft, tenant, queue.clone(), id);
                removed += 1;
            }
        }
        self.after_plan(draft, Ready::Done(Box::new(move || drop(reply.send(Ok(removed))))));
    }

    pub(super) fn resubscribe(
        &mut self,
        state: &State,
        draft: &mut Draft<'_>,
        command: ResubscribeCommand,
    ) {
        let ResubscribeCommand { tenant, group, time, reply } = command;
        let plan = self.proposed + 1;
        let queues: Vec<String> =
            state.queues(tenant).map(|queue| queue.name.to_string()).collect();
        let mut changed = 0;
        for queue in queues {
            let mut catalog = Catalog { state, overlay: &mut self.overlay, plan };
            if catalog.resubscribe(draft, (tenant, &queue), &group, time) {
                self.engine.start_changed(tenant, &queue, &group);
                changed += 1;
            }
        }
        self.after_plan(draft, Ready::Done(Box::new(move || drop(reply.send(Ok(changed))))));
    }

    pub(super) fn seek(&mut self, state: &State, draft: &mut Draft<'_>, command: SeekCommand) {
        let SeekCommand { tenant, queue, group, places, reply } = command;
        let now = draft.now();
        let mut moved = 0;
        for (partition, place) in places {
            let found = self.queue_of_partition(state, tenant, partition);
            let Some((name, view)) = found.filter(|(name, _)| *name == queue) else { continue };
            let id = self.engine.group(tenant, name, &group);
            self.engine.move_cursor(state, (partition, id), view.route, (place, None), now);
            moved += 1;
        }
        // Its rows join this plan when it is finished.
        self.after_this(Ready::Done(Box::new(move || drop(reply.send(Ok(moved))))));
    }

    pub(super) fn extend(&mut self, state: &State, draft: &mut Draft<'_>, command: ExtendCommand) {
        let ExtendCommand { tenant, lease, seconds, reply } = command;
        let times = (draft.now(), seconds);
        let (renewed, expires) = match lease {
            Some(lease) => self.engine.extend(state, tenant, lease, times),
            None => (0, None),
        };
        let answer = Ok(Extended { renewed, expires });
        self.after_this(Ready::Done(Box::new(move || drop(reply.send(answer)))));
    }

    pub(super) fn configure(
        &mut self,
        state: &State,
        draft: &mut Draft<'_>,
        command: ConfigureCommand,
    ) {
        let ConfigureCommand { tenant, queue, patch, replace, reply } = command;
        let plan = self.proposed + 1;
        let mut catalog = Catalog { state, overlay: &mut self.overlay, plan };
        let answer: Box<dyn FnOnce() + Send> =
            match catalog.configure(draft, (tenant, &queue), patch, replace) {
                Ok((queue_id, options)) => {
                    self.engine.release_held(tenant, &queue);
                    let answer = Ok(Configured { queue_id, options });
                    Box::new(move || drop(reply.send(answer)))
                }
                Err(refusal) => refuse(reply, refusal.into()),
            };
        self.after_plan(draft, Ready::Done(answer));
    }

    pub(super) fn delete_queue(
        &mut self,
        state: &State,
        draft: &mut Draft<'_>,
        (tenant, queue): &(Tenant, String),
        reply: Reply<bool>,
    ) {
        let plan = self.proposed + 1;
        let mut catalog = Catalog { state, overlay: &mut self.overlay, plan };
        let existed = catalog.delete_queue(draft, *tenant, queue);
        if existed {
            self.engine.drop_queue(plan, *tenant, queue);
        }
        self.after_plan(draft, Ready::Done(Box::new(move || drop(reply.send(Ok(existed))))));
    }

    pub(super) fn delete_group(
        &mut self,
        state: &State,
        draft: &mut Draft<'_>,
        command: DeleteGroupCommand,
    ) {
        let DeleteGroupCommand { tenant, group, queue, metadata, reply } = command;
        let plan = self.proposed + 1;
        let queues = match queue {
            Some(queue) => vec![queue],
            None => state.queues(tenant).map(|queue| queue.name.to_string()).collect(),
        };
        let too_long = queues.iter().find_map(|queue| check_names(queue, &group).err());
        if let Some(refusal) = too_long.or_else(|| check_names("", &group).err()) {
            return self.after_plan(draft, Ready::Done(refuse(reply, refusal.into())));
        }
        let mut deleted = GroupDeleted::default();
        for queue in queues {
            let mut catalog = Catalog { state, overlay: &mut self.overlay, plan };
            let found = catalog.delete_group(draft, (tenant, &queue), &group, metadata);
            let Some((cursors, subscription)) = found else { continue };
            self.engine.drop_group(plan, tenant, &queue, &group);
            deleted.partitions += cursors;
            deleted.metadata |= subscription;
            deleted.queues.push(queue);
        }
        self.after_plan(draft, Ready::Done(Box::new(move || drop(reply.send(Ok(deleted))))));
    }
}
