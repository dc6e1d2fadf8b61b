//! The 512-byte head of a tar member, and what surrounds members.
//!
//! Written by hand because the few fields that are used are fixed, and because a reader that knows nothing of links,
//! devices, long names and sparse files cannot be led astray by them.

use crate::error::ArchiveError;

/// Everything in a tar is a multiple of this.
pub(crate) const BLOCK: usize = 512;
/// Zeros at the end.
pub(crate) const END_LEN: u64 = 2 * BLOCK as u64;

/// Name and length of a member.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) name: String,
    pub(crate) len: u64,
}

/// Where fields lie: name 100, mode 8, uid 8, gid 8, size 12, mtime 12, checksum 8, type 1, link 100, magic 8, ...
const NAME_LEN: usize = 100;
const SIZE: std::ops::Range<usize> = 124..136;
const SUM: std::ops::Range<usize> = 148..156;
const KIND: usize = 156;
const PREFIX: std::ops::Range<usize> = 345..500;

/// The head of a regular file. Names of a data directory have far fewer than 100 bytes.
pub(crate) fn head(name: &str, len: u64, time_s: u64) -> [u8; BLOCK] {
    debug_assert!(name.len() < NAME_LEN, "a longer name would be cut");
    let mut out = [0; BLOCK];
    let mut put = |at: usize, bytes: &[u8]| {
        for (slot, byte) in out.iter_mut().skip(at).zip(bytes) {
            *slot = *byte;
        }
    };
    put(0, name.as_bytes());
    put(100, b"0000600\0");
    put(108, b"0000000\0");
    put(116, b"0000000\0");
    put(SIZE.start, &size(len));
    put(136, format!("{:011o}\0", time_s & 0o77_777_777_777).as_bytes());
    put(SUM.start, b"        ");
    put(KIND, b"0");
    put(257, b"ustar\x0000");
    let sum: u32 = out.iter().copied().map(u32::from).sum();
    for (slot, byte) in out.iter_mut().skip(SUM.start).zip(format!("{sum:06o}\0 ").bytes()) {
        *slot = byte;
    }
    out
}

/// Octal, or as GNU has it for 8 GiB and more: binary with the first bit set.
fn size(len: u64) -> [u8; 12] {
    let mut out = [0; 12];
    if len < 1 << 33 {
        for (slot, byte) in out.iter_mut().zip(format!("{len:011o}\0").bytes()) {
            *slot = byte;
        }
        return out;
    }
    let mut left = len;
    for slot in out.iter_mut().rev().take(8) {
        *slot = u8::try_from(left & 0xff).unwrap_or(0);
        left >>= 8;
    }
    if let Some(first) = out.first_mut() {
        *first = 0x80;
    }
    out
}

/// Reads a head; `None` is the end of the archive.
///
/// # Errors
/// `Foreign`: no tar, or a member that is no regular file.
pub(crate) fn parse(block: &[u8; BLOCK]) -> Result<Option<Head>, ArchiveError> {
    if block.iter().all(|byte| *byte == 0) {
        return Ok(None);
    }
    let foreign = |what: String| ArchiveError::Foreign(what);
    let spaces = |(at, byte): (usize, &u8)| if SUM.contains(&at) { 32 } else { u32::from(*byte) };
    let sum: u32 = block.iter().enumerate().map(spaces).sum();
    if block.get(SUM).and_then(octal) != Some(u64::from(sum)) {
        return Err(foreign("it is no tar, or its bytes were changed".to_owned()));
    }
    let name = block.split(|byte| *byte == 0).next().unwrap_or_default();
    let name = name.get(..name.len().min(NAME_LEN)).unwrap_or_default();
    let name = String::from_utf8_lossy(name).into_owned();
    let kind = block.get(KIND).copied().unwrap_or_default();
    if !matches!(kind, b'0' | 0) {
        let kind = char::from(kind).escape_default();
        return Err(foreign(format!("{name:?} is a member of type {kind}, not a plain file")));
    }
    if block.get(PREFIX).is_none_or(|prefix| prefix.iter().any(|byte| *byte != 0)) {
        return Err(foreign(format!("{name:?} has a longer name than any file of a backup")));
    }
    let len = block.get(SIZE).and_then(length);
    let len = len.ok_or_else(|| foreign(format!("{name:?} has a length that is no number")))?;
    Ok(Some(Head { name, len }))
}

fn length(field: &[u8]) -> Option<u64> {
    match field.split_first() {
        Some((0x80, rest)) => {
            let (high, low) = rest.split_at_checked(3)?;
            let wide = low.iter().fold(0u64, |all, byte| all << 8 | u64::from(*byte));
            (high.iter().all(|byte| *byte == 0)).then_some(wide)
        }
        _ => octal(field),
    }
}

fn octal(field: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(field).ok()?;
    let digits = text.trim_matches(|letter| letter == ' ' || letter == '\0');
    let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    u64::from_str_radix(digits, 8).ok().filter(|_| plain)
}

/// Zeros that follow a member of this length.
pub(crate) fn padding(len: u64) -> usize {
    let over = usize::try_from(len % BLOCK as u64).unwrap_or(0);
    if over == 0 { 0 } else { BLOCK - over }
}

/// Bytes of a member with its head and its padding.
pub(crate) fn member_bytes(len: u64) -> u64 {
    len.saturating_add((BLOCK + padding(len)) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_read_back() {
        for len in [0, 1, 511, 512, (1 << 33) - 1, 1 << 33, 1 << 50] {
            let found = parse(&head("qlog/q1/r00000001.qlog", len, 1_700_000_000)).unwrap();
            assert_eq!(found, Some(Head { name: "qlog/q1/r00000001.qlog".to_owned(), len }));
            assert_eq!(member_bytes(len) % 512, 0);
        }
        assert_eq!(parse(&[0; BLOCK]).unwrap(), None);
        let mut bad = head("ENCRYPTION", 5, 0);
        bad[130] ^= 1;
        assert!(parse(&bad).is_err());
    }

    fn with(change: impl Fn(&mut [u8; BLOCK])) -> Result<Option<Head>, ArchiveError> {
        let mut block = head("ENCRYPTION", 5, 0);
        change(&mut block);
        block[SUM].copy_from_slice(b"        ");
        let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        parse(&block)
    }

    #[test]
    fn members_that_are_no_plain_files_are_refused() {
        assert!(with(|_| {}).is_ok());
        for kind in *b"123456789xgLKS" {
            let error = with(|block| block[KIND] = kind).unwrap_err().to_string();
            assert!(error.contains("ENCRYPTION"), "{error}");
        }
        assert!(with(|block| block[345] = b'/').is_err());
        assert!(with(|block| block[124..136].copy_from_slice(b"-00000000000")).is_err());
        assert!(with(|block| block[124..136].copy_from_slice(&[0xff; 12])).is_err());
        assert!(with(|block| block[124..136].copy_from_slice(&[0; 12])).is_err());
    }
}
