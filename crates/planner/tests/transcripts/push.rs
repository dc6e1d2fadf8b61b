//! Pushes of a story: what an edge prepares, and what the planner says to each item.

use bytes::Bytes;
use queen_planner::draft::Draft;
use queen_planner::overlay::Original;
use queen_planner::push::{
    HashQuestion, PushContext, PushFacts, PushPart, PushPartItem, PushPlan, PushVerdict,
};
use queen_record::frame::FrameRef;
use queen_record::ids::{PartitionId, TxHash, Uuid};

use crate::names::{START, time};
use crate::script::{Words, expand};
use crate::world::{Says, TENANT, Waiting, World, split};

/// A part and how a story calls its items.
pub(crate) struct Prepared {
    pub(crate) part: PushPart,
    pub(crate) shown: Vec<String>,
}

/// Items of which a story tells each.
const TOLD_MAX: usize = 8;

impl World {
    /// `push queue/partition item ...`: an item is its transactionId, or `-` without one; `a*9` are nine, `a@early`
    /// has an id that was minted before the story began.
    pub(crate) fn push(&mut self, draft: &mut Draft<'_>, mut words: Words, says: &mut Says) {
        let prepared = self.prepare(&mut words);
        self.plan_part(draft, prepared, (PushFacts::default(), None), says);
    }

    fn plan_part(
        &mut self,
        draft: &mut Draft<'_>,
        prepared: Prepared,
        (facts, asked_at): (PushFacts, Option<u64>),
        says: &mut Says,
    ) {
        let plan = self.push_context().plan(draft, &prepared.part, &facts);
        self.seen.push_plan(&plan);
        match plan {
            PushPlan::Done(verdicts) => {
                self.decided(asked_at);
                self.tell_verdicts(&prepared, &verdicts, says);
            }
            PushPlan::Refused(refusal) => {
                self.decided(asked_at);
                self.seen.refusal(&refusal);
                says.push(format!("refused: {refusal}"));
            }
            PushPlan::NeedLog(partition, questions) => {
                self.tell_questions(&questions, says);
                let asked_at = Some(self.note_question(asked_at));
                let go_on = move |world: &mut Self, draft: &mut Draft<'_>, says: &mut Says| {
                    let mut facts = facts;
                    facts.extend(world.originals(partition, &questions, says));
                    world.plan_part(draft, prepared, (facts, asked_at), says);
                };
                self.ask(draft, says, Waiting { go_on: Box::new(go_on), reserved: None });
            }
        }
    }

    pub(crate) fn push_context(&mut self) -> PushContext<'_> {
        let plan = self.plan();
        PushContext {
            state: &self.state,
            overlay: &mut self.overlay,
            filter: &self.filter,
            order: &mut self.order,
            limits: &self.limits,
            plan,
        }
    }

    pub(crate) fn tell_questions(&mut self, questions: &[HashQuestion], says: &mut Says) {
        for HashQuestion { hash, bands } in questions.iter().take(TOLD_MAX) {
            let bands: Vec<String> =
                bands.iter().map(|band| format!("{}..{}", band.from, band.to)).collect();
            let text = self.names.text(*hash);
            says.push(format!("asks the log for {text} in entries {}", bands.join(", ")));
        }
    }

    /// What the log says.
    pub(crate) fn originals(
        &mut self,
        partition: PartitionId,
        questions: &[HashQuestion],
        says: &mut Says,
    ) -> PushFacts {
        let (facts, told) = self.log.originals(partition, questions);
        for (hash, found) in told.iter().take(TOLD_MAX) {
            let found: Vec<String> = found.iter().map(|original| self.original(original)).collect();
            let found = if found.is_empty() { "nothing".to_owned() } else { found.join(", ") };
            says.push(format!("the log has {} {found}", self.names.text(*hash)));
        }
        facts
    }

    pub(crate) fn original(&mut self, original: &Original) -> String {
        let id = self.names.of('m', original.id);
        format!("at offset {} as {id}, of {}", original.offset, time(original.created))
    }

    pub(crate) fn tell_verdicts(
        &mut self,
        prepared: &Prepared,
        verdicts: &[PushVerdict],
        says: &mut Says,
    ) {
        assert_eq!(prepared.shown.len(), verdicts.len());
        for (shown, verdict) in prepared.shown.iter().zip(verdicts) {
            self.seen.push_verdict(verdict);
            if verdicts.len() > TOLD_MAX {
                continue;
            }
            says.push(match verdict {
                PushVerdict::Queued { offset, id } => {
                    format!("{shown}: queued at offset {offset} as {}", self.names.of('m', *id))
                }
                PushVerdict::Duplicate(original) => {
                    let id = self.names.of('m', original.id);
                    format!("{shown}: duplicate of {id} at offset {}", original.offset)
                }
            });
        }
        if verdicts.len() > TOLD_MAX {
            let is_queued = |verdict: &&PushVerdict| matches!(verdict, PushVerdict::Queued { .. });
            let queued = verdicts.iter().filter(is_queued).count();
            says.push(format!("{queued} queued, {} duplicates", verdicts.len() - queued));
        }
    }

    /// What the edge does with a push: mints, hashes, frames.
    pub(crate) fn prepare(&mut self, words: &mut Words) -> Prepared {
        let (queue, partition) = split(&words.next("place"));
        let ids_are_callers = words.flag("caller-ids");
        let mut items: Vec<PushPartItem> = Vec::new();
        let mut shown = Vec::new();
        let mut frames = Vec::new();
        for word in words.rest() {
            let (word, is_early) = match word.strip_suffix("@early") {
                Some(word) => (word.to_owned(), true),
                None => (word, false),
            };
            for text in copies(&word) {
                let (item, name) = self.item(&text, is_early, &mut frames);
                let same = |before: &PushPartItem| before.hash == item.hash;
                let leader = if items.len() < 1000 { items.iter().position(same) } else { None };
                let leader = leader.map(|at| u32::try_from(at).unwrap());
                items.push(PushPartItem { leader, ..item });
                shown.push(name);
            }
        }
        let part = PushPart {
            tenant: TENANT,
            queue,
            partition,
            items,
            frames: Bytes::from(frames),
            packed: None,
            ids_are_callers,
        };
        Prepared { part, shown }
    }

    fn item(&mut self, text: &str, is_early: bool, frames: &mut Vec<u8>) -> (PushPartItem, String) {
        self.ids += 1;
        let at = if is_early { START.0 - 1_000_000 } else { self.now.0 };
        let millis = u64::try_from(at / 1000).unwrap();
        let sub = u16::try_from(self.ids & 0xfff).unwrap();
        // Unlike any id that a plan mints.
        let id = Uuid::v7(millis, sub, self.ids | 1 << 32);
        let own = id.to_string();
        let is_own = text == "-";
        let transaction_id = if is_own { &own } else { text };
        let shown = if is_own { "(no id)" } else { text };
        let data = format!("{{\"of\":\"{}\"}}", if is_own { "nobody" } else { text });
        let frame = FrameRef {
            flags: 0,
            id,
            trace: None,
            transaction_id,
            producer_sub: None,
            data: data.as_bytes(),
            encrypted: false,
        };
        frame.encode(frames).unwrap();
        let hash: TxHash = self.names.note(transaction_id, shown);
        let end = u32::try_from(frames.len()).unwrap();
        (PushPartItem { hash, id, end, own_text: is_own, leader: None }, shown.to_owned())
    }
}

/// `a*3` is `a-0`, `a-1`, `a-2`.
fn copies(word: &str) -> Vec<String> {
    match word.split_once('*') {
        Some((text, count)) => {
            let count: u32 = count.parse().unwrap();
            (0..count).map(|number| format!("{text}-{number}")).collect()
        }
        None => vec![expand(word)],
    }
}
