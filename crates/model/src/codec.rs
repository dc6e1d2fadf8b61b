//! The primitive forms of the entry codec: little-endian integers, counted text and blobs, optional values.
//!
//! Reading borrows from the input and never allocates from a length it has not compared with what is left.

use queen_record::ids::{Tenant, Uuid};

/// Why bytes are not an entry, an effect or an outcome.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// A field needs more bytes than are left.
    #[error("{what} needs {needed} bytes at byte {at}, {left} are left")]
    Short {
        /// The field.
        what: &'static str,
        /// Bytes it needs.
        needed: u64,
        /// Where it starts.
        at: usize,
        /// Bytes left.
        left: usize,
    },
    /// A field's value is outside its range, or the parts do not fit together.
    #[error("{what} at byte {at}: {detail}")]
    Invalid {
        /// The field.
        what: &'static str,
        /// Where it starts.
        at: usize,
        /// What is wrong.
        detail: String,
    },
    /// The bytes are newer than this build.
    #[error("{what} {found} is not known to this build")]
    Unknown {
        /// Format, kind, version or tag.
        what: &'static str,
        /// The value found.
        found: u64,
    },
    /// The body does not match the checksum before it.
    #[error("checksum mismatch: stored {stored:016x}, computed {computed:016x}")]
    Checksum {
        /// As stored.
        stored: u64,
        /// Of the bytes found.
        computed: u64,
    },
}

/// Appends primitive values to a buffer.
pub(crate) trait Put {
    fn put(&mut self, bytes: &[u8]);

    fn put_u8(&mut self, value: u8) {
        self.put(&[value]);
    }
    fn put_bool(&mut self, value: bool) {
        self.put(&[u8::from(value)]);
    }
    fn put_u16(&mut self, value: u16) {
        self.put(&value.to_le_bytes());
    }
    fn put_u32(&mut self, value: u32) {
        self.put(&value.to_le_bytes());
    }
    fn put_i32(&mut self, value: i32) {
        self.put(&value.to_le_bytes());
    }
    fn put_u64(&mut self, value: u64) {
        self.put(&value.to_le_bytes());
    }
    fn put_i64(&mut self, value: i64) {
        self.put(&value.to_le_bytes());
    }
    fn put_blob(&mut self, bytes: &[u8]) {
        self.put_u32(length(bytes.len()));
        self.put(bytes);
    }
    fn put_text(&mut self, text: &str) {
        self.put_blob(text.as_bytes());
    }
    fn put_tenant(&mut self, tenant: Tenant) {
        self.put_blob(&tenant.0.text());
    }
    fn put_uuid(&mut self, id: Uuid) {
        self.put(&id.0);
    }
    fn put_opt_u64(&mut self, value: Option<u64>) {
        self.put_bool(value.is_some());
        if let Some(value) = value {
            self.put_u64(value);
        }
    }
    fn put_opt_i64(&mut self, value: Option<i64>) {
        self.put_bool(value.is_some());
        if let Some(value) = value {
            self.put_i64(value);
        }
    }
    fn put_opt_text(&mut self, value: Option<&str>) {
        self.put_bool(value.is_some());
        if let Some(value) = value {
            self.put_text(value);
        }
    }
    fn put_opt_uuid(&mut self, value: Option<Uuid>) {
        self.put_bool(value.is_some());
        if let Some(value) = value {
            self.put_uuid(value);
        }
    }
}

impl Put for Vec<u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// A length as the 32-bit field that stores it.
///
/// # Panics
/// When it does not fit: the planner bounds every command far below 4 GiB.
pub(crate) fn length(len: usize) -> u32 {
    u32::try_from(len).unwrap_or_else(|_| panic!("a field of {len} bytes passed the entry limits"))
}

/// Reads primitive values from a slice.
#[derive(Clone)]
pub(crate) struct Take<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Take<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    pub(crate) fn at(&self) -> usize {
        self.at
    }

    pub(crate) fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    pub(crate) fn bytes(
        &mut self,
        what: &'static str,
        len: usize,
    ) -> Result<&'a [u8], DecodeError> {
        let end = self.at.checked_add(len);
        let Some(found) = end.and_then(|end| self.bytes.get(self.at..end)) else {
            let (at, left) = (self.at, self.left());
            return Err(DecodeError::Short { what, needed: len as u64, at, left });
        };
        self.at += len;
        Ok(found)
    }

    fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], DecodeError> {
        let mut array = [0; N];
        array.copy_from_slice(self.bytes(what, N)?);
        Ok(array)
    }

    pub(crate) fn u8(&mut self, what: &'static str) -> Result<u8, DecodeError> {
        Ok(u8::from_le_bytes(self.array(what)?))
    }
    pub(crate) fn u16(&mut self, what: &'static str) -> Result<u16, DecodeError> {
        Ok(u16::from_le_bytes(self.array(what)?))
    }
    pub(crate) fn u32(&mut self, what: &'static str) -> Result<u32, DecodeError> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }
    pub(crate) fn i32(&mut self, what: &'static str) -> Result<i32, DecodeError> {
        Ok(i32::from_le_bytes(self.array(what)?))
    }
    pub(crate) fn u64(&mut self, what: &'static str) -> Result<u64, DecodeError> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }
    pub(crate) fn i64(&mut self, what: &'static str) -> Result<i64, DecodeError> {
        Ok(i64::from_le_bytes(self.array(what)?))
    }
    pub(crate) fn uuid(&mut self, what: &'static str) -> Result<Uuid, DecodeError> {
        Ok(Uuid(self.array(what)?))
    }

    pub(crate) fn bool(&mut self, what: &'static str) -> Result<bool, DecodeError> {
        let at = self.at;
        match self.u8(what)? {
            0 => Ok(false),
            1 => Ok(true),
            other => {
                Err(DecodeError::Invalid { what, at, detail: format!("{other} is no boolean") })
            }
        }
    }

    pub(crate) fn blob(&mut self, what: &'static str) -> Result<&'a [u8], DecodeError> {
        let len = self.u32(what)? as usize;
        self.bytes(what, len)
    }

    pub(crate) fn text(&mut self, what: &'static str) -> Result<&'a str, DecodeError> {
        let at = self.at;
        let bytes = self.blob(what)?;
        std::str::from_utf8(bytes).map_err(|error| DecodeError::Invalid {
            what,
            at,
            detail: error.to_string(),
        })
    }

    pub(crate) fn tenant(&mut self) -> Result<Tenant, DecodeError> {
        let at = self.at;
        let text = self.text("tenant")?;
        Uuid::parse(text).map(Tenant).ok_or_else(|| DecodeError::Invalid {
            what: "tenant",
            at,
            detail: "not the text of a UUID".to_owned(),
        })
    }

    pub(crate) fn option<T>(
        &mut self,
        what: &'static str,
        read: impl FnOnce(&mut Self) -> Result<T, DecodeError>,
    ) -> Result<Option<T>, DecodeError> {
        if self.bool(what)? { read(self).map(Some) } else { Ok(None) }
    }

    /// A counted list; `least` is the fewest bytes an item can take, so that the count is checked first.
    pub(crate) fn list<T>(
        &mut self,
        what: &'static str,
        least: usize,
        mut read: impl FnMut(&mut Self) -> Result<T, DecodeError>,
    ) -> Result<Vec<T>, DecodeError> {
        let at = self.at;
        let count = self.u32(what)? as usize;
        if count.saturating_mul(least.max(1)) > self.left() {
            let (needed, left) = (count as u64 * least.max(1) as u64, self.left());
            return Err(DecodeError::Short { what, needed, at, left });
        }
        (0..count).map(|_| read(self)).collect()
    }

    pub(crate) fn end(&self, what: &'static str) -> Result<(), DecodeError> {
        if self.left() == 0 {
            return Ok(());
        }
        let detail = format!("{} bytes are left over", self.left());
        Err(DecodeError::Invalid { what, at: self.at, detail })
    }
}
