//! Retention of a story: what the log holds is proposed whole, and the planner says how much of it goes.

use queen_planner::draft::Draft;
use queen_planner::retention::{Boundary, Dropped, Expiry, Judged, Proposal, RetentionContext};
use queen_record::ids::{Offset, PartitionId};

use crate::script::{Command, Words};
use crate::world::{Says, World};

impl World {
    /// `terms [hashes=900] [cleanup=60]`: seconds that apply to all queues.
    pub(crate) fn set_terms(&mut self, mut words: Words) {
        self.terms.hash_window_min_s = words.number("hashes").unwrap_or(0);
        self.terms.cleanup_s = words.number("cleanup");
        words.end();
    }

    /// `expire queue/partition|#number [seen=from..to]`: every boundary between two appends from where the log starts, or as
    /// somebody saw them who looked when it held `from..to`. `remove queue/partition|#number`.
    pub(crate) fn judge(&mut self, draft: &mut Draft<'_>, command: &Command, says: &mut Says) {
        let mut words = command.words.clone();
        let name = words.next("command");
        if name != "expire" && name != "remove" {
            return;
        }
        let place = words.next("place");
        let number = place.strip_prefix('#').map(|number| PartitionId(number.parse().unwrap()));
        let Some(id) = number.or_else(|| self.live(&place).map(|(id, _)| id)) else {
            return says.push(format!("no partition {place}"));
        };
        let seen = words.value("seen");
        words.end();
        let proposal = match &*name {
            "remove" => Proposal::Remove(id),
            _ => Proposal::Expire(self.expiry(id, seen.as_deref())),
        };
        let plan = self.plan();
        let mut context = RetentionContext {
            state: &self.state,
            overlay: &mut self.overlay,
            engine: &self.engine,
            terms: &self.terms,
            plan,
        };
        let judged = context.judge(draft, &proposal);
        self.seen.judged(&judged);
        says.push(match judged {
            Judged::Moved { messages, bytes } => format!("{messages} messages go, {bytes} bytes"),
            Judged::Removed => "is removed".to_owned(),
            Judged::Dropped(Dropped::Gone) => "is gone already".to_owned(),
            Judged::Dropped(Dropped::InFlight) => "something is in flight".to_owned(),
            Judged::Dropped(Dropped::Stale) => "it changed since".to_owned(),
            Judged::Dropped(Dropped::NotDue) => "nothing is due".to_owned(),
        });
    }

    fn expiry(&self, id: PartitionId, seen: Option<&str>) -> Expiry {
        let row = self.state.partition(id);
        let (start, end) = row.map_or((0, 0), |row| (row.log_start().0, row.next_offset().0));
        let (from, until) = match seen {
            Some(seen) => {
                let (from, until) = seen.split_once("..").unwrap();
                (from.parse().unwrap(), until.parse().unwrap())
            }
            None => (start, end),
        };
        let appends = || self.log.appends(id).iter().filter(|made| made.end.0 <= until);
        let mut boundaries: Vec<Boundary> = Vec::new();
        let mut freed = 0;
        for made in appends().filter(|made| made.end.0 > from) {
            if let Some(last) = boundaries.last_mut() {
                last.next = Some(made.created);
            }
            freed += made.retained;
            boundaries.push(Boundary { at: made.end, newest: made.created, next: None, freed });
        }
        let rows_before = draft_cutoff(self, id);
        let rows = appends().take_while(|made| made.created.0 < rows_before).last();
        let rows = rows.map(|made| (made.end, made.created));
        Expiry { partition: id, from: Offset(from), boundaries, rows }
    }
}

/// Somebody who reads the log goes by the time at which he looks: a little before the plan.
fn draft_cutoff(world: &World, id: PartitionId) -> i64 {
    let Some(row) = world.state.partition(id) else { return i64::MIN };
    let queue = world.state.queue_by_number(row.queue).unwrap();
    queen_planner::retention::Cutoffs::of(&queue.options, world.now, &world.terms).rows.0
}
