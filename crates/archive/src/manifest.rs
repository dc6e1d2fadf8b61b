//! The list of what a backup holds, as text.
//!
//! ```text
//! queen-backup 1
//! index 5120
//! taken_at_us 1700000000000000
//! 0123456789abcdef 41233 qlog/q7/r00000001.qlog      XXH3-64, length, name; names ascend
//! end fedcba9876543210                               XXH3-64 of all lines above
//! ```
//!
//! In the first member the sums are not known yet: dashes stand for them, so that both lists have one length.

use std::fmt::Write;

use xxhash_rust::xxh3::xxh3_64;

use crate::error::{ArchiveError, PackError};
use crate::name::is_member;

/// Bytes of a list at most: some millions of files.
pub(crate) const LIST_BYTES_MAX: u64 = 512 << 20;

const FIRST_LINE: &str = "queen-backup 1";
const NO_SUM: &str = "----------------";

/// What a backup holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// The last entry that it covers.
    pub index: u64,
    /// When it was taken, µs.
    pub taken_at_us: i64,
    /// Its files, by name, each once.
    pub members: Vec<Member>,
}

/// One file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its path in the data directory.
    pub name: String,
    /// Its bytes.
    pub len: u64,
    /// XXH3-64 of them; `None` in the first list.
    pub sum: Option<u64>,
}

impl Manifest {
    /// A list, sorted.
    ///
    /// # Errors
    /// `Name`: one is no file of a data directory, or comes twice.
    pub fn new(index: u64, taken_at_us: i64, mut members: Vec<Member>) -> Result<Self, PackError> {
        members.sort_by(|a, b| a.name.cmp(&b.name));
        let twice = members.iter().zip(members.iter().skip(1)).find(|(a, b)| a.name == b.name);
        let wrong = members.iter().find(|member| !is_member(&member.name));
        match wrong.or(twice.map(|(member, _)| member)) {
            Some(member) => Err(PackError::Name(member.name.clone())),
            None => Ok(Self { index, taken_at_us, members }),
        }
    }

    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.members.iter().fold(0, |all, member| all.saturating_add(member.len))
    }

    /// Its text.
    pub fn encode(&self) -> String {
        let mut text =
            format!("{FIRST_LINE}\nindex {}\ntaken_at_us {}\n", self.index, self.taken_at_us);
        for Member { name, len, sum } in &self.members {
            // Writing to a string cannot fail.
            match sum {
                Some(sum) => writeln!(text, "{sum:016x} {len} {name}"),
                None => writeln!(text, "{NO_SUM} {len} {name}"),
            }
            .unwrap_or_default();
        }
        let end = format!("end {:016x}\n", xxh3_64(text.as_bytes()));
        text + &end
    }

    /// Reads what `encode` wrote.
    ///
    /// # Errors
    /// It is none, a newer one, or names what no data directory has.
    pub fn decode(bytes: &[u8]) -> Result<Self, ArchiveError> {
        let foreign = |what: &str| ArchiveError::Foreign(format!("its list {what}"));
        let text = std::str::from_utf8(bytes).map_err(|_| foreign("is no text"))?;
        let (first, _) = text.split_once('\n').ok_or_else(|| foreign("has no line"))?;
        if first != FIRST_LINE {
            return Err(match first.strip_prefix("queen-backup ") {
                Some(version) => ArchiveError::TooNew(version.to_owned()),
                None => foreign("begins with something else"),
            });
        }
        let body = text.strip_suffix('\n').and_then(|text| text.rsplit_once('\n'));
        let (body, end) = body.ok_or_else(|| foreign("has no end"))?;
        let lines_len = body.len() + 1;
        let sum = end.strip_prefix("end ").and_then(sum_of);
        if sum != bytes.get(..lines_len).map(xxh3_64) {
            return Err(foreign("is damaged, or was written by hand"));
        }
        let mut lines = body.split('\n').skip(1);
        let mut field =
            |name: &str| -> Option<&str> { lines.next()?.strip_prefix(name)?.strip_prefix(' ') };
        let index = field("index").and_then(|text| text.parse().ok());
        let taken_at_us = field("taken_at_us").and_then(|text| text.parse().ok());
        let (Some(index), Some(taken_at_us)) = (index, taken_at_us) else {
            return Err(foreign("has no entry or no time"));
        };
        let mut members: Vec<Member> = Vec::new();
        for line in lines {
            let member = member_of(line).ok_or_else(|| foreign("has a line that is none"))?;
            if !is_member(&member.name) {
                return Err(ArchiveError::Name(member.name));
            }
            if members.last().is_some_and(|last| last.name >= member.name) {
                return Err(foreign("names a file twice, or is not sorted"));
            }
            members.push(member);
        }
        Ok(Self { index, taken_at_us, members })
    }

    /// Whether another list differs in nothing but sums.
    pub(crate) fn is_of(&self, other: &Self) -> bool {
        let same = |(a, b): (&Member, &Member)| a.name == b.name && a.len == b.len;
        self.index == other.index
            && self.taken_at_us == other.taken_at_us
            && self.members.len() == other.members.len()
            && self.members.iter().zip(&other.members).all(same)
    }
}

fn member_of(line: &str) -> Option<Member> {
    let (sum, rest) = line.split_once(' ')?;
    let (len, name) = rest.split_once(' ')?;
    let plain = !len.is_empty() && len.bytes().all(|byte| byte.is_ascii_digit());
    let len = len.parse().ok().filter(|_| plain)?;
    let sum = if sum == NO_SUM { None } else { Some(sum_of(sum)?) };
    Some(Member { name: name.to_owned(), len, sum })
}

fn sum_of(text: &str) -> Option<u64> {
    let is_hex = text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    u64::from_str_radix(text, 16).ok().filter(|_| text.len() == 16 && is_hex)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest(sum: Option<u64>) -> Manifest {
        let member = |name: &str, len| Member { name: name.to_owned(), len, sum };
        let members = vec![member("store/data.mdb", 1 << 40), member("ENCRYPTION", 0)];
        Manifest::new(7, -1, members).unwrap()
    }

    #[test]
    fn both_lists_read_back_and_have_one_length() {
        let (first, last) = (manifest(None), manifest(Some(0xab)));
        for list in [&first, &last] {
            assert_eq!(&Manifest::decode(list.encode().as_bytes()).unwrap(), list);
        }
        assert_eq!(first.encode().len(), last.encode().len());
        assert!(first.is_of(&last));
        let golden = "queen-backup 1\nindex 7\ntaken_at_us -1\n00000000000000ab 0 ENCRYPTION\n\
                      00000000000000ab 1099511627776 store/data.mdb\nend ";
        assert!(last.encode().starts_with(golden), "{}", last.encode());
    }

    #[test]
    fn every_byte_counts() {
        let text = manifest(Some(1)).encode().into_bytes();
        for at in 0..text.len() {
            let mut bad = text.clone();
            bad[at] ^= 1;
            assert!(Manifest::decode(&bad).is_err(), "byte {at}");
            assert!(Manifest::decode(&text[..at]).is_err(), "cut at {at}");
        }
    }

    fn signed(lines: &str) -> Result<Manifest, ArchiveError> {
        let text = format!("queen-backup 1\nindex 1\ntaken_at_us 1\n{lines}");
        Manifest::decode(format!("{text}end {:016x}\n", xxh3_64(text.as_bytes())).as_bytes())
    }

    #[test]
    fn hostile_names_are_refused_with_their_name() {
        assert!(signed("---------------- 1 ENCRYPTION\n").is_ok());
        for name in ["../../etc/passwd", "/etc/passwd", "qlog/q1/../x", "x"] {
            let error = signed(&format!("---------------- 1 {name}\n")).unwrap_err().to_string();
            assert!(error.contains(name), "{error}");
        }
        let twice = "---------------- 1 ENCRYPTION\n---------------- 1 ENCRYPTION\n";
        for lines in [twice, "x 1 ENCRYPTION\n", "---------------- -1 ENCRYPTION\n", "\n"] {
            assert!(signed(lines).is_err(), "{lines}");
        }
        let big = "---------------- 99999999999999999999 ENCRYPTION\n";
        assert!(signed(big).is_err());
        assert!(matches!(
            Manifest::decode(b"queen-backup 2\nend 0\n"),
            Err(ArchiveError::TooNew(version)) if version == "2"
        ));
    }
}
