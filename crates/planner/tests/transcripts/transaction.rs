//! Transactions of a story: judged in the order acks, pushes, positions, and carried out only when all of it holds.

use queen_model::Refusal;
use queen_planner::catalog::{Catalog, GroupTerms};
use queen_planner::consume::{
    AckFacts, AckQuestion, BundleAck, BundleStep, BundleVerdict, Place, Start,
};
use queen_planner::draft::Draft;
use queen_planner::push::{HashQuestion, PushFacts, PushJudged};
use queen_record::ids::{Offset, PartitionId};

use crate::names::parse_time;
use crate::push::Prepared;
use crate::script::Words;
use crate::settle::Acks;
use crate::world::{Says, TENANT, Waiting, World, split};

/// A transaction that is not answered.
#[derive(Default)]
struct Bundle {
    acks: Vec<(Acks, AckFacts)>,
    pushes: Vec<(Prepared, PushFacts)>,
    positions: Vec<Position>,
    /// A dead letter that goes with it.
    letter: Option<Words>,
    asked_at: Option<u64>,
}

impl Bundle {
    /// Acks of one partition, group and lease are one decision.
    fn add(&mut self, acks: Acks) {
        let key = |acks: &Acks| (acks.call.partition, acks.group, acks.call.lease);
        match self.acks.iter_mut().find(|(known, _)| key(known) == key(&acks)) {
            Some((known, _)) => {
                known.call.items.extend(acks.call.items);
                known.shown.extend(acks.shown);
            }
            None => self.acks.push((acks, AckFacts::default())),
        }
    }
}

struct Position {
    queue: String,
    partition: String,
    group: String,
    /// What is read next; `None` forgets the cursor.
    offset: Option<Offset>,
    note: Option<String>,
    subscribes: Option<Start>,
}

/// What the log is asked for.
#[derive(Default)]
struct Questions {
    acks: Vec<(usize, AckQuestion)>,
    pushes: Vec<(usize, PartitionId, Vec<HashQuestion>)>,
}

enum Judged {
    Holds(Vec<BundleStep>),
    RolledBack(String),
    NeedLog(Questions),
}

impl World {
    /// `transaction` with parts `ack ...` and `push ...` as the commands, `letter D1 of queue` and
    /// `position queue/partition group offset|none [note=] [start=all|2s]`.
    pub(crate) fn transaction(&mut self, draft: &mut Draft<'_>, parts: &[Words], says: &mut Says) {
        let mut bundle = Bundle::default();
        for part in parts {
            let mut words = part.clone();
            match &*words.next("kind") {
                "ack" => match self.acks(words) {
                    Ok(acks) => bundle.add(acks),
                    Err(why) => return says.push(format!("rolled back: {why}")),
                },
                "push" => bundle.pushes.push((self.prepare(&mut words), PushFacts::default())),
                "position" => bundle.positions.push(position(words)),
                "letter" => bundle.letter = Some(words),
                other => panic!("a transaction has no {other:?}"),
            }
        }
        self.decide_bundle(draft, bundle, says);
    }

    fn decide_bundle(&mut self, draft: &mut Draft<'_>, mut bundle: Bundle, says: &mut Says) {
        match self.judge_bundle(draft, &bundle, says) {
            Judged::Holds(steps) => {
                self.decided(bundle.asked_at);
                says.push("committed".to_owned());
                self.carry_out(draft, bundle, steps, says);
            }
            Judged::RolledBack(why) => {
                self.decided(bundle.asked_at);
                says.push(format!("rolled back: {why}"));
            }
            Judged::NeedLog(questions) => {
                bundle.asked_at = Some(self.note_question(bundle.asked_at));
                let go_on = move |world: &mut Self, draft: &mut Draft<'_>, says: &mut Says| {
                    let mut bundle = bundle;
                    for (at, question) in &questions.acks {
                        let (acks, facts) = &mut bundle.acks[*at];
                        world.ack_facts(acks.call.partition, question, facts, says);
                    }
                    for (at, partition, questions) in &questions.pushes {
                        let found = world.originals(*partition, questions, says);
                        bundle.pushes[*at].1.extend(found);
                    }
                    world.decide_bundle(draft, bundle, says);
                };
                self.ask(draft, says, Waiting { go_on: Box::new(go_on), reserved: None });
            }
        }
    }

    fn judge_bundle(&mut self, draft: &Draft<'_>, bundle: &Bundle, says: &mut Says) -> Judged {
        let mut questions = Questions::default();
        let mut steps = Vec::new();
        let acks = bundle_acks(bundle);
        let verdict = self.engine.judge_bundle(&self.state, draft.now(), &acks);
        self.seen.bundle(&verdict);
        match verdict {
            BundleVerdict::Holds(found) => steps = found,
            BundleVerdict::Refused { at, result } => {
                let mut results = Vec::new();
                self.tell_results(&bundle.acks[at].0, &result, &mut results);
                return Judged::RolledBack(format!("ack {}: {}", at + 1, results.join(", ")));
            }
            BundleVerdict::NeedLog(found) => {
                for (_, question) in &found {
                    self.tell_ack_question(question, says);
                }
                questions.acks = found;
            }
        }
        for (at, (prepared, facts)) in bundle.pushes.iter().enumerate() {
            let judged = self.push_context().judge(draft.now(), &prepared.part, facts);
            self.seen.push_judged(&judged);
            match judged {
                PushJudged::Decided(stored) => {
                    let mut stored = prepared.shown.iter().zip(stored);
                    let first = stored.find_map(|(shown, original)| Some((shown, original?)));
                    if let Some((shown, original)) = first {
                        let original = self.original(&original);
                        return Judged::RolledBack(format!("{shown} is stored {original}"));
                    }
                }
                PushJudged::NeedLog(partition, found) => {
                    self.tell_questions(&found, says);
                    questions.pushes.push((at, partition, found));
                }
                PushJudged::Refused(refusal) => return self.refused(&refusal),
            }
        }
        if questions.acks.is_empty() && questions.pushes.is_empty() {
            Judged::Holds(steps)
        } else {
            Judged::NeedLog(questions)
        }
    }

    fn refused(&mut self, refusal: &Refusal) -> Judged {
        self.seen.refusal(refusal);
        Judged::RolledBack(refusal.to_string())
    }

    fn carry_out(
        &mut self,
        draft: &mut Draft<'_>,
        bundle: Bundle,
        steps: Vec<BundleStep>,
        says: &mut Says,
    ) {
        let acks = bundle_acks(&bundle);
        let settled = self.engine.settle_bundle(&self.state, draft, &acks, steps);
        for ((acks, _), result) in bundle.acks.iter().zip(&settled) {
            self.tell_results(acks, result, says);
        }
        for (prepared, _) in &bundle.pushes {
            let verdicts = self.push_context().carry_out(draft, &prepared.part, &[]);
            self.tell_verdicts(prepared, &verdicts, says);
        }
        for position in bundle.positions {
            self.set_position(draft, position);
        }
        if let Some(letter) = bundle.letter {
            self.delete_letter(draft, letter, says);
        }
    }

    fn set_position(&mut self, draft: &mut Draft<'_>, position: Position) {
        let Position { queue, partition, group, offset, note, subscribes } = position;
        let plan = self.plan();
        if let Some(start) = subscribes {
            let terms = GroupTerms { start, since: draft.now(), conflation: false };
            let mut catalog = Catalog { state: &self.state, overlay: &mut self.overlay, plan };
            catalog.register(draft, (TENANT, &queue), &group, terms).unwrap();
        }
        let view = self.overlay.queue(&self.state, TENANT, &queue).expect("its queue is there");
        let known = self.overlay.partition(&self.state, TENANT, &queue, &view, &partition);
        let group = self.engine.group(TENANT, &queue, &group);
        match (offset, known) {
            (Some(offset), known) => {
                let id = known.unwrap_or_else(|| {
                    let mut context = self.push_context();
                    context.make_partition(draft, TENANT, (&queue, &view), &partition)
                });
                let place = Place::Next(offset);
                self.seen.place(&place);
                let to = (place, note);
                self.engine.move_cursor(&self.state, (id, group), view.route, to, draft.now());
            }
            (None, Some(id)) => {
                self.engine.forget_cursor(&self.state, draft, (id, group), plan);
            }
            (None, None) => {}
        }
    }
}

fn bundle_acks(bundle: &Bundle) -> Vec<(BundleAck, AckFacts)> {
    let ack = |(acks, facts): &(Acks, AckFacts)| {
        let Acks { group, queue, call, .. } = acks.clone();
        (BundleAck { group, queue, call }, facts.clone())
    };
    bundle.acks.iter().map(ack).collect()
}

fn position(mut words: Words) -> Position {
    let (queue, partition) = split(&words.next("place"));
    let group = words.next("group");
    let offset = words.next("offset");
    let position = Position {
        queue,
        partition,
        group,
        offset: (offset != "none").then(|| Offset(offset.parse().unwrap())),
        note: words.value("note"),
        subscribes: words.value("start").map(|start| match &*start {
            "all" => Start::All,
            at => Start::From(parse_time(at)),
        }),
    };
    words.end();
    position
}
