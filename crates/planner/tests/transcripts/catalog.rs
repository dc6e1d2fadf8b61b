//! Queues, groups, cursors and dead letters of a story, changed by hand.

use queen_model::{Effect, OptionsPatch, Patch, QueueOptions, Refusal};
use queen_planner::catalog::Catalog;
use queen_planner::consume::Place;
use queen_planner::draft::{Draft, Route};
use queen_record::hash::queue_id;
use queen_record::ids::{Offset, Uuid};

use crate::consume::group_name;
use crate::names::parse_time;
use crate::render::changed_options;
use crate::script::{Words, expand};
use crate::world::{Says, TENANT, World};

impl World {
    fn catalog(&mut self) -> Catalog<'_> {
        let plan = self.plan();
        Catalog { state: &self.state, overlay: &mut self.overlay, plan }
    }

    /// `configure queue [replace] [option=value|null ...]`.
    pub(crate) fn configure(&mut self, draft: &mut Draft<'_>, mut words: Words, says: &mut Says) {
        let queue = expand(&words.next("queue"));
        let replace = words.flag("replace");
        let patch = patch(&mut words);
        words.end();
        let before = self.overlay.options(&self.state, TENANT, &queue);
        let done = self.catalog().configure(draft, (TENANT, &queue), patch, replace);
        if done.is_ok() {
            self.engine.release_held(TENANT, &queue);
        }
        self.tell_configured(before.as_ref(), done, says);
    }

    fn tell_configured(
        &mut self,
        before: Option<&QueueOptions>,
        done: Result<(Uuid, QueueOptions), Refusal>,
        says: &mut Says,
    ) {
        match done {
            Ok((id, options)) => {
                let (noted, what) = match before {
                    None => ("configure: made", "made"),
                    Some(before) if *before == options => ("configure: the same", "is the same"),
                    Some(_) => ("configure: changed", "changed"),
                };
                self.seen.note(noted);
                let id = self.names.of('Q', id);
                says.push(format!("{id} {what}: {}", changed_options(&options)));
            }
            Err(refusal) => {
                self.seen.note("configure: refused");
                self.seen.refusal(&refusal);
                says.push(format!("refused: {refusal}"));
            }
        }
    }

    /// `delete-queue queue`.
    pub(crate) fn delete_queue(
        &mut self,
        draft: &mut Draft<'_>,
        mut words: Words,
        says: &mut Says,
    ) {
        let queue = words.next("queue");
        words.end();
        let plan = self.plan();
        if self.catalog().delete_queue(draft, TENANT, &queue) {
            self.engine.drop_queue(plan, TENANT, &queue);
            self.seen.note("queue deleted");
            says.push("deleted".to_owned());
        } else {
            self.seen.note("queue not there");
            says.push("not there".to_owned());
        }
    }

    /// `delete-group queue group [keep-subscription]`.
    pub(crate) fn delete_group(
        &mut self,
        draft: &mut Draft<'_>,
        mut words: Words,
        says: &mut Says,
    ) {
        let (queue, group) = (words.next("queue"), group_name(&words.next("group")));
        let metadata = !words.flag("keep-subscription");
        words.end();
        let plan = self.plan();
        let deleted = self.catalog().delete_group(draft, (TENANT, &queue), &group, metadata);
        if let Some((cursors, subscription)) = deleted {
            self.engine.drop_group(plan, TENANT, &queue, &group);
            self.seen.note("group deleted");
            let subscription = if subscription { " and the subscription" } else { "" };
            says.push(format!("deleted: {cursors} cursors{subscription}"));
        } else {
            self.seen.note("group not there");
            says.push("not there".to_owned());
        }
    }

    /// `resubscribe queue group time`.
    pub(crate) fn resubscribe(&mut self, draft: &mut Draft<'_>, mut words: Words, says: &mut Says) {
        let (queue, group) = (words.next("queue"), words.next("group"));
        let time = parse_time(&words.next("time"));
        words.end();
        if self.catalog().resubscribe(draft, (TENANT, &queue), &group, time) {
            self.engine.start_changed(TENANT, &queue, &group);
            self.seen.note("resubscribed");
            says.push("starts elsewhere".to_owned());
        } else {
            self.seen.note("not resubscribed");
            says.push("not registered".to_owned());
        }
    }

    /// `seek queue/partition group end|offset|2.5s`: to the end, to an offset, to a time.
    pub(crate) fn seek(&mut self, draft: &mut Draft<'_>, mut words: Words, says: &mut Says) {
        let place = words.next("place");
        let (group, to) = (words.next("group"), words.next("where"));
        words.end();
        let Some((id, view)) = self.live(&place) else {
            return says.push(format!("no partition {place}"));
        };
        let group = self.group_of(id, &group);
        let to = match &*to {
            "end" => Place::End,
            time if time.ends_with('s') => {
                let end = self.state.partition(id).unwrap().next_offset();
                Place::Next(self.log.first_at(id, parse_time(time)).unwrap_or(end))
            }
            offset => Place::Next(Offset(offset.parse().unwrap())),
        };
        self.seen.place(&to);
        self.engine.move_cursor(&self.state, (id, group), view.route, (to, None), draft.now());
    }

    /// `delete-letter D1 of queue`.
    pub(crate) fn delete_letter(
        &mut self,
        draft: &mut Draft<'_>,
        mut words: Words,
        says: &mut Says,
    ) {
        let id = self.names.id(&words.next("letter"));
        assert_eq!(words.next("word"), "of");
        let queue = words.next("queue");
        words.end();
        let live = self.overlay.queue(&self.state, TENANT, &queue).filter(|view| !view.in_flight);
        let row = live.and_then(|_| self.state.queue(TENANT, &queue));
        let is_there = row.is_some_and(|row| row.dead_letter(id).is_some());
        if !is_there || self.overlay.is_letter_gone(id) {
            return says.push("no such dead letter".to_owned());
        }
        self.overlay.remove_letter(self.plan(), id);
        let route = Route::Queue(queue_id(TENANT, &queue));
        draft.add(Effect::DlqDelete { tenant: TENANT, queue, id }, route, 80);
    }
}

fn patch(words: &mut Words) -> OptionsPatch {
    macro_rules! read {
        ($($field:ident $name:literal),+ $(,)?) => {
            OptionsPatch {
                $($field: match words.value($name) {
                    None => Patch::Absent,
                    Some(text) if text == "null" => Patch::Reset,
                    Some(text) => Patch::Set(text.parse().unwrap()),
                }),+
            }
        };
    }
    with_options!(read)
}
