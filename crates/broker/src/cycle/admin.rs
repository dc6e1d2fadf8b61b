//! Leases to extend, queues and groups to change, in the cycle.

use queen_model::OptionsPatch;
use queen_planner::catalog::Catalog;
use queen_planner::draft::Draft;
use queen_planner::limits::check_names;
use queen_record::ids::{Tenant, Uuid};
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

impl Cycle {
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
