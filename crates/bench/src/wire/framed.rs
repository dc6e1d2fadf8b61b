//! What a pop answers in stored records.
//!
//! ```text
//! QPF1 | version u8 | [own keys: length u32, JSON] | queue | lease | group | claims u32 | claim*
//! claim   = id u64 | partition | first u64 | last u64 | attempt u32 | records u32 | record*
//! record  = first u64 | created i64 | messages u32 | codec u8 | length u32 | message*, or one zstd frame over them
//! message = length u32 | flags u8 | id 16 | [trace 16] | transactionId | [producer] | payload
//! ```
//!
//! A record may hold more than was claimed; only offsets within the claim count.

use anyhow::{Context, bail, ensure};
use zstd::bulk::Decompressor;

use super::{Data, Message};

/// What such an answer begins with.
pub(crate) const MAGIC: &[u8] = b"QPF1";
const WITH_TRACE: u8 = 1;
const WITH_PRODUCER: u8 = 2;
/// Most that a record may decompress to.
const RECORD_BYTES_MAX: usize = 256 << 20;

/// A framed answer, its records decompressed.
pub(crate) struct Framed {
    lease: String,
    claims: Vec<Claim>,
}

struct Claim {
    partition: String,
    first: u64,
    last: u64,
    /// The offset of the first message, and the messages.
    records: Vec<(u64, Vec<u8>)>,
}

impl Framed {
    pub(crate) fn read(body: &[u8], unpacker: &mut Decompressor<'static>) -> anyhow::Result<Self> {
        let mut reader = Reader(body);
        ensure!(reader.take(4)? == MAGIC, "not a framed pop");
        if reader.u8()? > 0 {
            let own_keys = reader.u32()?;
            reader.take(own_keys as usize)?;
        }
        let (_queue, lease, _group) = (reader.text()?, reader.text()?, reader.text()?);
        let claims = (0..reader.u32()?).map(|_| Claim::read(&mut reader, unpacker));
        let claims = claims.collect::<anyhow::Result<_>>()?;
        ensure!(reader.0.is_empty(), "bytes follow the last claim");
        Ok(Self { lease: lease.to_owned(), claims })
    }

    /// The claimed messages, in the order in which they came.
    pub(crate) fn messages(&self) -> anyhow::Result<Vec<Message<'_>>> {
        let mut messages = Vec::new();
        for claim in &self.claims {
            let before = messages.len();
            for (base, record) in &claim.records {
                let mut reader = Reader(record);
                for offset in *base.. {
                    if reader.0.is_empty() {
                        break;
                    }
                    let (transaction_id, payload) = reader.message()?;
                    if (claim.first..=claim.last).contains(&offset) {
                        let data: Data = serde_json::from_slice(payload)?;
                        let (partition_id, lease_id) = (&*claim.partition, &*self.lease);
                        messages.push(Message { transaction_id, partition_id, lease_id, data });
                    }
                }
            }
            let (found, claimed) = (messages.len() - before, claim.last + 1 - claim.first);
            ensure!(found as u64 == claimed, "{found} messages of {claimed} that were claimed");
        }
        Ok(messages)
    }
}

impl Claim {
    fn read(reader: &mut Reader<'_>, unpacker: &mut Decompressor<'static>) -> anyhow::Result<Self> {
        let (partition, _name) = (reader.u64()?.to_string(), reader.text()?);
        let (first, last, _attempt) = (reader.u64()?, reader.u64()?, reader.u32()?);
        let mut records = Vec::new();
        for _ in 0..reader.u32()? {
            let (base, _created, _messages) = (reader.u64()?, reader.u64()?, reader.u32()?);
            let codec = reader.u8()?;
            let length = reader.u32()?;
            let bytes = reader.take(length as usize)?;
            let plain = match codec {
                0 => bytes.to_vec(),
                1 => {
                    let size =
                        Decompressor::upper_bound(bytes).context("a frame without a size")?;
                    ensure!(size <= RECORD_BYTES_MAX, "a record of {size} bytes");
                    unpacker.decompress(bytes, size)?
                }
                other => bail!("codec {other}"),
            };
            records.push((base, plain));
        }
        Ok(Self { partition, first, last, records })
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> anyhow::Result<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count).context("the answer ends early")?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> anyhow::Result<[u8; N]> {
        Ok(self.take(N)?.try_into()?)
    }

    fn u8(&mut self) -> anyhow::Result<u8> {
        self.array().map(u8::from_le_bytes)
    }

    fn u32(&mut self) -> anyhow::Result<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> anyhow::Result<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn text(&mut self) -> anyhow::Result<&'a str> {
        let length = u16::from_le_bytes(self.array()?);
        Ok(std::str::from_utf8(self.take(length.into())?)?)
    }

    /// The transaction id and the payload of the next message.
    fn message(&mut self) -> anyhow::Result<(&'a str, &'a [u8])> {
        let length = self.u32()?;
        let mut own = Reader(self.take(length as usize)?);
        let flags = own.u8()?;
        ensure!(flags & !(WITH_TRACE | WITH_PRODUCER) == 0, "a message with flags {flags}");
        own.take(if flags & WITH_TRACE == 0 { 16 } else { 32 })?;
        let transaction_id = own.text()?;
        if flags & WITH_PRODUCER != 0 {
            own.text()?;
        }
        Ok((transaction_id, own.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An answer with one record of two messages at offsets 10 and 11, of which the second was claimed.
    fn answer(codec: u8) -> Vec<u8> {
        let mut frames = Vec::new();
        for (flags, seq) in [(0, 1), (2, 2)] {
            let producer: &[u8] = if flags == 2 { b"\x03\0svc" } else { b"" };
            let payload = format!("{{\"l\":5,\"s\":{seq},\"t\":9}}");
            let id = format!("\x03\0t-{seq}");
            let own =
                [&[flags], &[7; 16][..], id.as_bytes(), producer, payload.as_bytes()].concat();
            frames.extend_from_slice(&u32::try_from(own.len()).unwrap().to_le_bytes());
            frames.extend_from_slice(&own);
        }
        if codec == 1 {
            frames = zstd::bulk::compress(&frames, 1).unwrap();
        }
        let number = |number: u64| number.to_le_bytes();
        let length = u32::try_from(frames.len()).unwrap().to_le_bytes();
        let texts = b"\x06\0orders\x01\0L\x07\0billing\x01\0\0\0";
        let head = [b"QPF1\x01\x02\0\0\0{}", &texts[..], &number(7), b"\x03\0c-1"].concat();
        let claim = [&number(11)[..], &number(11), b"\x01\0\0\0\x01\0\0\0"].concat();
        let record = [&number(10)[..], &number(0), b"\x02\0\0\0", &[codec], &length].concat();
        [head, claim, record, frames].concat()
    }

    #[test]
    fn only_what_was_claimed_is_delivered() {
        for codec in [0, 1] {
            let mut unpacker = Decompressor::new().unwrap();
            let framed = Framed::read(&answer(codec), &mut unpacker).unwrap();
            let messages = framed.messages().unwrap();
            let [message] = &messages[..] else { panic!("{messages:?}") };
            assert_eq!((message.data.lane, message.data.seq), (5, 2));
            assert_eq!((message.transaction_id, message.partition_id), ("t-2", "7"));
            assert_eq!(message.lease_id, "L");
        }
    }

    #[test]
    fn a_short_answer_is_refused() {
        let mut unpacker = Decompressor::new().unwrap();
        let answer = answer(0);
        for end in 0..answer.len() {
            assert!(Framed::read(&answer[..end], &mut unpacker).is_err(), "{end}");
        }
    }
}
