//! Watermarks as bytes.
//!
//! | version | body |
//! | --- | --- |
//! | 1 | partition u64, log start u64, txns start u64 |
//! | 6 | the same, rows start u64, opt i64 oldest |
//! | 0x8000 | the same, freed u64 |
//!
//! Only the last is written. With version 1 the hashes left together with the bytes.

use queen_record::ids::{Micros, Offset, PartitionId};

use super::OWN;
use crate::codec::{DecodeError, Put, Take};
use crate::effect::Watermark;

pub(super) fn encode(marks: &Watermark, out: &mut Vec<u8>) {
    out.put_u64(marks.id.0);
    out.put_u64(marks.log_start.0);
    out.put_u64(marks.txns_start.0);
    out.put_u64(marks.rows_start.0);
    out.put_opt_i64(marks.oldest.map(|oldest| oldest.0));
    out.put_u64(marks.freed);
}

pub(super) fn decode(version: u16, body: &mut Take<'_>) -> Result<Watermark, DecodeError> {
    let id = PartitionId(body.u64("partition id")?);
    let log_start = Offset(body.u64("log start")?);
    let txns_start = Offset(body.u64("txns start")?);
    let mut marks =
        Watermark { id, log_start, txns_start, rows_start: txns_start, oldest: None, freed: 0 };
    if version >= 6 {
        marks.rows_start = Offset(body.u64("rows start")?);
        marks.oldest = body.option("oldest", |body| body.i64("oldest"))?.map(Micros);
    }
    if version >= OWN {
        marks.freed = body.u64("freed")?;
    }
    Ok(marks)
}
