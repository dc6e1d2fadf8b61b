//! Ids and units: one newtype each, so that an index is never taken for a count or an offset.

use std::fmt;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident, $inner:ty) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number!(
    /// Place of an entry in the replicated order, from 1; `seq` in a record. 0 means "before the first".
    EntryIndex, u64
);
number!(
    /// XXH3-64 of tenant, 0x1F and queue name; never 0.
    QueueId, u64
);
number!(
    /// Number in the directory name `q<log id>`; 0 is the system log.
    LogId, u64
);
number!(
    /// Numeric partition id, unique in a cluster, from 1, never reused.
    PartitionId, u64
);
number!(
    /// Place of a message in its partition, from 0.
    Offset, u64
);
number!(
    /// Microseconds since the Unix epoch.
    Micros, i64
);

impl EntryIndex {
    /// The index after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl Micros {
    /// This time moved by whole seconds; saturates at the ends of the range.
    #[must_use]
    pub fn plus_seconds(self, seconds: i64) -> Self {
        Self(self.0.saturating_add(seconds.saturating_mul(1_000_000)))
    }

    /// This time moved by whole milliseconds; saturates at the ends of the range.
    #[must_use]
    pub fn plus_millis(self, millis: i64) -> Self {
        Self(self.0.saturating_add(millis.saturating_mul(1_000)))
    }
}

macro_rules! raw16 {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub [u8; 16]);

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), Hex(&self.0))
            }
        }
    };
}

raw16!(
    /// XXH3-128 digest of a transactionId, canonical (big-endian) bytes.
    TxHash
);
raw16!(
    /// A UUID in RFC byte order: message, lease, queue, dead-letter or partition id.
    Uuid
);

struct Hex<'a>(&'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Display for TxHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Hex(&self.0).fmt(f)
    }
}

/// Length of a UUID's text.
pub const UUID_TEXT_LEN: usize = 36;

impl Uuid {
    /// A version 7 UUID from its parts.
    ///
    /// Shape: `millis` fills the first 48 bits (higher bits are dropped), `sub` the 12 bits after the
    /// version, `tail` the 62 bits after the variant. Ids made with rising (`millis`, `sub`) ascend.
    #[must_use]
    pub fn v7(millis: u64, sub: u16, tail: u64) -> Self {
        let high = (millis << 16) | 0x7000 | u64::from(sub & 0x0fff);
        let low = (tail & 0x3fff_ffff_ffff_ffff) | 0x8000_0000_0000_0000;
        Self(((u128::from(high) << 64) | u128::from(low)).to_be_bytes_u128())
    }

    /// The 36-byte lower-case text.
    #[must_use]
    pub fn text(&self) -> [u8; UUID_TEXT_LEN] {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut text = [b'-'; UUID_TEXT_LEN];
        let mut at = 0;
        for (index, byte) in self.0.iter().enumerate() {
            if matches!(index, 4 | 6 | 8 | 10) {
                at += 1;
            }
            if let Some([high, low]) = text.get_mut(at..at + 2) {
                #[expect(clippy::indexing_slicing, reason = "a nibble is below 16")]
                {
                    *high = DIGITS[usize::from(byte >> 4)];
                    *low = DIGITS[usize::from(byte & 15)];
                }
            }
            at += 2;
        }
        text
    }

    /// Reads the 36-byte text, either case; anything else is `None`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let bytes = text.as_bytes();
        if bytes.len() != UUID_TEXT_LEN {
            return None;
        }
        let mut raw = [0u8; 16];
        let mut nibbles = 0;
        for (at, byte) in bytes.iter().enumerate() {
            if matches!(at, 8 | 13 | 18 | 23) {
                if *byte != b'-' {
                    return None;
                }
                continue;
            }
            let value = u8::try_from(char::from(*byte).to_digit(16)?).ok()?;
            let slot = raw.get_mut(nibbles / 2)?;
            *slot = (*slot << 4) | value;
            nibbles += 1;
        }
        Some(Self(raw))
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        std::str::from_utf8(&self.text()).map_or(Err(fmt::Error), |text| f.write_str(text))
    }
}

/// Canonical (RFC) byte order of a UUID is big-endian; the one place that writes it.
trait CanonicalBytes {
    fn to_be_bytes_u128(self) -> [u8; 16];
}

impl CanonicalBytes for u128 {
    #[expect(clippy::big_endian_bytes, reason = "RFC 9562 fixes the byte order of a UUID")]
    fn to_be_bytes_u128(self) -> [u8; 16] {
        self.to_be_bytes()
    }
}

/// A tenant, written as the 36-byte text of its UUID wherever it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tenant(pub Uuid);

impl Tenant {
    /// `00000000-0000-0000-0000-000000000001`: every request's tenant unless tenancy is on.
    pub const DEFAULT: Self = Self(Uuid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]));
}

impl Default for Tenant {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl fmt::Display for Tenant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_reads_its_own_text() {
        let id = Uuid::v7(1_792_836_718_159, 1, 0x3f27_b56a_9334_d445);
        assert_eq!(id.to_string(), "01a16d65-4e4f-7001-bf27-b56a9334d445");
        assert_eq!(Uuid::parse("01A16D65-4E4F-7001-BF27-B56A9334D445"), Some(id));
        assert_eq!(Uuid::parse("01a16d654e4f7001bf27b56a9334d445"), None);
        assert_eq!(Uuid::parse("01a16d65-4e4f-7001-bf27-b56a9334d44g"), None);
        assert_eq!(Tenant::DEFAULT.to_string(), "00000000-0000-0000-0000-000000000001");
    }
}
