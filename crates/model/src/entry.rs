//! One replicated unit: commands with their outcomes, and the effects they decided.
//!
//! ```text
//! entry   = body_len u32 | XXH3_64(body) u64 | body
//! body    = format u16 (=1) | kinds_version u32 | now_us i64 | pid_base u64 | kv_version_base u64
//!           | command_count u32 | commands | effect_count u32 | effects
//! command = request id 16 | first_effect u32 | effect_count u32 | outcome
//! outcome = tag u16 | version u16 | body_len u32 | body
//! ```
//!
//! Only the payload-free form has bytes: an append's messages stand in message records of the logs.

use queen_record::ids::{Micros, PartitionId, Uuid};
use xxhash_rust::xxh3::xxh3_64;

use crate::codec::{DecodeError, Put, Take, length};
use crate::effect::Effect;
use crate::effect_codec::{self, EFFECT_HEAD_LEN};

/// The entry format that this build writes.
const FORMAT: u16 = 1;
/// The catalogue of effects that this build reads and writes.
pub const KINDS_VERSION: u32 = 6;
/// The lowest catalogue that may hold every effect of this build's entries.
const KINDS_WRITTEN: u32 = 3;
/// Bytes of an entry at most: also the largest record body.
const BODY_BYTES_MAX: usize = 256 * 1024 * 1024;
/// Smallest command: id, two counts, an empty outcome.
const COMMAND_LEN_MIN: usize = 16 + 8 + 8;

/// A slice of an entry's effects that one request decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandSpan {
    /// The request's id.
    pub request: Uuid,
    /// Index of its first effect.
    pub first_effect: u32,
    /// How many effects it has; at least one.
    pub effect_count: u32,
}

/// One entry, before it has an index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The leader's clock; strictly rising from entry to entry.
    pub now: Micros,
    /// The number that the first partition made here has.
    pub pid_base: PartitionId,
    /// The version that the first key written here has.
    pub kv_version_base: u64,
    /// Spans that cover `effects` without gap or overlap, in order.
    pub commands: Vec<CommandSpan>,
    /// What changes, in order.
    pub effects: Vec<Effect>,
}

impl Entry {
    /// Appends the payload-free bytes to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.put_u32(0);
        out.put_u64(0);
        out.put_u16(FORMAT);
        out.put_u32(KINDS_WRITTEN);
        out.put_i64(self.now.0);
        out.put_u64(self.pid_base.0);
        out.put_u64(self.kv_version_base);
        out.put_u32(length(self.commands.len()));
        for command in &self.commands {
            out.put_uuid(command.request);
            out.put_u32(command.first_effect);
            out.put_u32(command.effect_count);
            // The empty outcome: with one writer there is no other node that could be asked again.
            out.put_u16(0);
            out.put_u16(1);
            out.put_u32(0);
        }
        out.put_u32(length(self.effects.len()));
        for effect in &self.effects {
            effect_codec::encode(effect, out);
        }
        let body = out.get(start + 12..).unwrap_or_default();
        let (len, sum) = (length(body.len()), xxh3_64(body));
        if let Some(head) = out.get_mut(start..start + 12) {
            let (len_slot, sum_slot) = head.split_at_mut(4);
            len_slot.copy_from_slice(&len.to_le_bytes());
            sum_slot.copy_from_slice(&sum.to_le_bytes());
        }
    }

    /// Reads one entry that fills `bytes`.
    ///
    /// # Errors
    /// `Short` and `Checksum` mean damaged bytes; after a matching checksum, `Invalid` and `Unknown` mean that
    /// the bytes are right and this build cannot take them: the node must stop, never skip.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut take = Take::new(bytes);
        let len = take.u32("entry length")? as usize;
        let stored = take.u64("entry checksum")?;
        if len != take.left() || len > BODY_BYTES_MAX {
            let (needed, at, left) = (len as u64, take.at(), take.left());
            return Err(DecodeError::Short { what: "entry body", needed, at, left });
        }
        let body = take.bytes("entry body", len)?;
        let computed = xxh3_64(body);
        if stored != computed {
            return Err(DecodeError::Checksum { stored, computed });
        }
        Self::decode_body(&mut Take::new(body))
    }

    fn decode_body(body: &mut Take<'_>) -> Result<Self, DecodeError> {
        let format = body.u16("entry format")?;
        if format != FORMAT {
            return Err(DecodeError::Unknown { what: "entry format", found: format.into() });
        }
        let kinds = body.u32("kinds version")?;
        if kinds > KINDS_VERSION {
            return Err(DecodeError::Unknown { what: "kinds version", found: kinds.into() });
        }
        let now = Micros(body.i64("now")?);
        let pid_base = PartitionId(body.u64("partition base")?);
        let kv_version_base = body.u64("key version base")?;
        let commands = body.list("commands", COMMAND_LEN_MIN, |body| {
            let command = CommandSpan {
                request: body.uuid("request id")?,
                first_effect: body.u32("first effect")?,
                effect_count: body.u32("effect count")?,
            };
            body.u16("outcome tag")?;
            body.u16("outcome version")?;
            body.blob("outcome")?;
            Ok(command)
        })?;
        let effects = body.list("effects", EFFECT_HEAD_LEN, effect_codec::decode)?;
        body.end("entry body")?;
        let entry = Self { now, pid_base, kv_version_base, commands, effects };
        entry.check().map_err(|detail| DecodeError::Invalid { what: "entry", at: 0, detail })?;
        Ok(entry)
    }

    /// Whether the spans cover the effects and new partitions are numbered from the base.
    fn check(&self) -> Result<(), String> {
        let mut next = 0u32;
        for command in &self.commands {
            if command.first_effect != next || command.effect_count == 0 {
                return Err(format!(
                    "a command spans {} effects from {}, {next} was due",
                    command.effect_count, command.first_effect
                ));
            }
            next = next.checked_add(command.effect_count).ok_or("effect count overflows")?;
        }
        if next as usize != self.effects.len() {
            return Err(format!("commands span {next} effects of {}", self.effects.len()));
        }
        let mut pid = self.pid_base;
        for effect in &self.effects {
            if let Effect::PartitionCreate(create) = effect {
                if create.id != pid {
                    return Err(format!("partition {} is made where {pid} was due", create.id));
                }
                pid = PartitionId(pid.0 + 1);
            }
        }
        let mut requests: Vec<Uuid> = self.commands.iter().map(|command| command.request).collect();
        requests.sort_unstable();
        if requests.windows(2).any(|pair| pair.first() == pair.last()) {
            return Err("a request id repeats".to_owned());
        }
        Ok(())
    }
}
