//! Acknowledgments of a story.

use queen_planner::ack::Verdict;
use queen_planner::consume::{
    AckCall, AckFacts, AckItem, AckOutcome, AckQuestion, AckResult, EngineGroup, ItemResult,
};
use queen_planner::draft::Draft;
use queen_planner::limits::check_names;
use queen_planner::overlay::QueueView;
use queen_record::hash::tx_hash;
use queen_record::ids::{Offset, PartitionId, Uuid};

use crate::consume::group_name;
use crate::script::Words;
use crate::world::{Says, TENANT, Waiting, World};

/// A call for one partition, lease and group.
#[derive(Clone)]
pub(crate) struct Acks {
    pub(crate) group: EngineGroup,
    pub(crate) queue: QueueView,
    pub(crate) call: AckCall,
    /// How the story calls its items.
    pub(crate) shown: Vec<String>,
}

impl World {
    /// `ack queue/partition group lease item ...`: the lease is `L1`, `unfenced` for none or `garbage` for a text that is
    /// no UUID; an item is `a`, which is done, or `a=failed`, `a=retry`, `a=dlq`, with `:reason`; `m3` alone names a
    /// message without transactionId.
    pub(crate) fn ack(&mut self, draft: &mut Draft<'_>, words: Words, says: &mut Says) {
        match self.acks(words) {
            Ok(acks) => self.decide_acks(draft, acks, AckFacts::default(), says),
            Err(why) => says.push(why),
        }
    }

    /// Reads a call.
    pub(crate) fn acks(&mut self, mut words: Words) -> Result<Acks, String> {
        let (place, group) = (words.next("place"), words.next("group"));
        let lease = match &*words.next("lease") {
            "unfenced" => None,
            "garbage" => Some(None),
            name => Some(Some(self.names.id(name))),
        };
        let Some((partition, queue)) = self.live(&place) else {
            return Err(format!("no partition {place}"));
        };
        let (mut items, mut shown) = (Vec::new(), Vec::new());
        for word in words.rest() {
            let (name, item) = self.ack_item(&word);
            self.seen.verdict(&item.verdict);
            shown.push(name);
            items.push(item);
        }
        let (_, queue_name) = self.queue_of(partition);
        check_names(&queue_name, &group_name(&group)).map_err(|refusal| {
            self.seen.refusal(&refusal);
            format!("refused: {refusal}")
        })?;
        let call = AckCall { tenant: TENANT, partition, lease, items };
        Ok(Acks { group: self.group_of(partition, &group), queue, call, shown })
    }

    fn ack_item(&mut self, word: &str) -> (String, AckItem) {
        let (name, verdict) = word.split_once('=').unwrap_or((word, "completed"));
        let (verdict, error) = match verdict.split_once(':') {
            Some((verdict, error)) => (verdict, Some(error.to_owned())),
            None => (verdict, None),
        };
        let verdict = parse_verdict(verdict);
        let is_id = name.strip_prefix('m').is_some_and(|number| number.parse::<u32>().is_ok());
        let hash = if is_id {
            tx_hash(&self.names.id(name).to_string())
        } else {
            self.names.note(name, name)
        };
        (name.to_owned(), AckItem { hash, verdict, error })
    }

    fn queue_of(&self, partition: PartitionId) -> (Uuid, String) {
        let row = self.state.partition(partition).unwrap();
        let queue = self.state.queue_by_number(row.queue).unwrap();
        (queue.id, queue.name.to_string())
    }

    /// The engine's number of a group on a partition's queue.
    pub(crate) fn group_of(&mut self, partition: PartitionId, group: &str) -> EngineGroup {
        let (_, queue) = self.queue_of(partition);
        self.engine.group(TENANT, &queue, &group_name(group))
    }

    fn decide_acks(&mut self, draft: &mut Draft<'_>, acks: Acks, facts: AckFacts, says: &mut Says) {
        let (state, engine) = (&self.state, &mut self.engine);
        let outcome = engine.ack(state, draft, acks.group, &acks.queue, &acks.call, &facts);
        self.seen.ack_outcome(&outcome);
        match outcome {
            AckOutcome::Done(result) => self.tell_results(&acks, &result, says),
            AckOutcome::NeedLog(question) => {
                self.tell_ack_question(&question, says);
                let go_on = move |world: &mut Self, draft: &mut Draft<'_>, says: &mut Says| {
                    let mut facts = facts;
                    world.ack_facts(acks.call.partition, &question, &mut facts, says);
                    world.decide_acks(draft, acks, facts, says);
                };
                self.ask(draft, says, Waiting { go_on: Box::new(go_on), reserved: None });
            }
        }
    }

    pub(crate) fn tell_ack_question(&mut self, question: &AckQuestion, says: &mut Says) {
        self.seen.ack_question(question);
        says.push(match question {
            AckQuestion::Offsets { hashes, from, to, .. } => {
                format!("asks the log where in {from}..{to}: {}", self.names.list(hashes))
            }
            AckQuestion::Messages { offsets, .. } => {
                format!("asks the log for messages to file: {}", list(offsets))
            }
        });
    }

    pub(crate) fn ack_facts(
        &mut self,
        partition: PartitionId,
        question: &AckQuestion,
        facts: &mut AckFacts,
        says: &mut Says,
    ) {
        self.log.settle(partition, question, facts);
        if let AckQuestion::Offsets { hashes, .. } = question {
            for hash in hashes {
                let found = &facts.offsets[hash];
                let found = if found.is_empty() { "nowhere".to_owned() } else { list(found) };
                says.push(format!("the log has {} at {found}", self.names.text(*hash)));
            }
        }
    }

    pub(crate) fn tell_results(&mut self, acks: &Acks, result: &AckResult, says: &mut Says) {
        assert_eq!(acks.shown.len(), result.len());
        for (shown, result) in acks.shown.iter().zip(result) {
            self.seen.item_result(result);
            says.push(format!("{shown}: {}", result_text(*result)));
        }
    }
}

fn result_text(result: ItemResult) -> String {
    match result {
        ItemResult::Done { noop: true, .. } => "done before".to_owned(),
        ItemResult::Done { released, dead_lettered, .. } => {
            let dead = if dead_lettered { ", dead-lettered" } else { "" };
            let released = if released { ", lease released" } else { "" };
            format!("taken{dead}{released}")
        }
        ItemResult::LeaseLost => "the lease is lost".to_owned(),
        ItemResult::Unresolved => "unresolved".to_owned(),
    }
}

fn list(offsets: &[Offset]) -> String {
    let offsets: Vec<String> = offsets.iter().map(ToString::to_string).collect();
    offsets.join(" ")
}

pub(crate) fn parse_verdict(text: &str) -> Verdict {
    match text {
        "completed" => Verdict::Completed,
        "retry" => Verdict::Retry,
        "failed" => Verdict::Failed,
        "dlq" => Verdict::Dead,
        other => panic!("no verdict {other:?}"),
    }
}
