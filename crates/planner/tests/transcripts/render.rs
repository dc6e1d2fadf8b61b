//! Entries as a person reads them.

use queen_model::{CursorSet, DlqInsert, Effect, Entry, QueueOptions, SubscriptionMode, Watermark};
use queen_record::frame::Frames;

use crate::names::{short, time};
use crate::world::{Says, World};

impl World {
    pub(crate) fn tell_entry(&mut self, entry: &Entry, says: &mut Says) {
        says.push(format!("entry {} at {}", self.plan(), time(entry.now)));
        for effect in &entry.effects {
            self.seen.effect(effect);
            let line = self.effect(effect);
            says.push(format!("* {line}"));
        }
    }

    fn effect(&mut self, effect: &Effect) -> String {
        match effect {
            Effect::QueueUpsert { queue, id, options, created, .. } => {
                let id = self.names.of('Q', *id);
                let options = changed_options(options);
                format!("queue {} {id}, made at {}: {options}", short(queue), time(*created))
            }
            Effect::QueueDelete { queue, .. } => format!("queue {queue} is gone"),
            Effect::GroupUpsert(group) => {
                let id = self.names.of('G', group.id);
                let start = match group.mode {
                    SubscriptionMode::All => "all".to_owned(),
                    SubscriptionMode::New => format!("new, from {}", time(group.subscribe_at)),
                    SubscriptionMode::Timestamp => format!("from {}", time(group.subscribe_at)),
                };
                let newest = if group.conflation { ", only the newest" } else { "" };
                let registered = time(group.registered);
                let (group, queue) = (&group.group, &group.queue);
                format!(
                    "group {group} of {queue} {id}: {start}{newest}, registered at {registered}"
                )
            }
            Effect::GroupDelete { queue, group, metadata, .. } => {
                let kept = if *metadata { "" } else { "; its subscription stays" };
                format!("group {group} of {queue} is gone{kept}")
            }
            Effect::PartitionCreate(create) => {
                let name = format!("{}/{}", create.queue, create.partition);
                let is_known = self.partitions.values().any(|known| *known == name);
                let name = if is_known { format!("{name}#{}", create.id) } else { name };
                self.partitions.insert(create.id, name);
                format!("partition {}, number {}", self.partition(create.id), create.id)
            }
            Effect::Append(append) => {
                let queen_model::AppendPayload::Stored { bytes, .. } = &append.payload else {
                    panic!("a plan has its payload")
                };
                let frames = Frames::new(bytes).map(Result::unwrap);
                let mut messages: Vec<String> = frames
                    .zip(&append.hashes)
                    .map(|(frame, hash)| {
                        let id = self.names.of('m', frame.id);
                        if frame.transaction_id == frame.id.to_string() {
                            self.names.note(frame.transaction_id, "(no id)");
                        }
                        format!("{} {id}", self.names.text(*hash))
                    })
                    .collect();
                let more = messages.len().saturating_sub(6);
                if more > 0 {
                    messages.truncate(6);
                    messages.push(format!("and {more} more"));
                }
                let (partition, at) = (self.partition(append.id), time(append.created));
                format!("{partition} at {at}, from offset {}: {}", append.base, messages.join(", "))
            }
            Effect::CursorSet(set) => self.cursor(set),
            Effect::CursorDelete { id, group } => {
                format!("cursor of {group} on {} is gone", self.partition(*id))
            }
            Effect::DlqInsert(letter) => self.letter(letter),
            Effect::DlqDelete { queue, id, .. } => {
                format!("dead letter {} of {queue} is gone", self.names.of('D', *id))
            }
            Effect::DeleteChunk { limit } => format!("at most {limit} rows are swept"),
            Effect::PartitionDelete { id } => format!("{} is gone", self.partition(*id)),
            Effect::Watermark(marks) => {
                let Watermark { log_start, txns_start, rows_start, freed, .. } = marks;
                assert_eq!(rows_start, txns_start, "hashes leave with their records");
                let oldest = marks.oldest.map_or("nothing".to_owned(), time);
                let partition = self.partition(marks.id);
                format!(
                    "{partition} starts at {log_start} with {oldest}, hashes at {txns_start}; {freed} bytes go"
                )
            }
            Effect::Noop => panic!("nobody plans {effect:?}"),
        }
    }

    fn cursor(&mut self, set: &CursorSet) -> String {
        let mut said = vec![format!("done to {}", set.committed)];
        if let Some(lease) = set.lease {
            let newest = if lease.conflated { " by its newest" } else { "" };
            let (id, expires) = (self.names.of('L', lease.worker), time(lease.expires));
            said.push(format!("{id} to {}{newest} until {expires}", lease.batch_end));
        }
        if let Some(offset) = set.attempt_offset {
            said.push(format!("attempt {} from {offset}", set.attempts));
        }
        if set.retries > 0 {
            said.push(format!("{} retries", set.retries));
        }
        said.push(format!("{} consumed", set.consumed));
        if !set.metadata.is_empty() {
            said.push(format!("note {:?}", set.metadata));
        }
        if let Some(released) = set.released {
            let id = self.names.of('L', released.worker);
            said.push(format!("{id} settled {}..{}", released.low, released.high));
        }
        format!("cursor of {} on {}: {}", set.group, self.partition(set.id), said.join("; "))
    }

    fn letter(&mut self, letter: &DlqInsert) -> String {
        let id = self.names.of('D', letter.id);
        let message = letter.message_id.map(|id| self.names.of('m', id)).unwrap_or_default();
        let partition = self.partition(letter.partition);
        let payload = String::from_utf8_lossy(&letter.payload);
        let DlqInsert { group, offset, transaction_id, error, retries, .. } = letter;
        format!(
            "dead letter {id} of {group}: {partition} offset {offset}, {transaction_id} {message} {payload}, \
             {error:?} after {retries} retries"
        )
    }
}

/// The options that are not what a queue is made with.
pub(crate) fn changed_options(options: &QueueOptions) -> String {
    let default = QueueOptions::configured();
    let mut changed = Vec::new();
    macro_rules! compare {
        ($($field:ident $name:literal),+ $(,)?) => {
            // Every field: a new option does not compile until it is named.
            let QueueOptions { $($field),+ } = options;
            $(if *$field != default.$field {
                let value = format!("{:?}", $field);
                changed.push(format!("{} {}", $name, short(&value)));
            })+
        };
    }
    with_options!(compare);
    if changed.is_empty() { "as configured by default".to_owned() } else { changed.join(", ") }
}
