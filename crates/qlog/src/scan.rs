//! Walks the records of a file in pieces, so that memory is bounded by the largest record.

use std::io;
use std::sync::Arc;

use queen_io::DiskFile;
use queen_record::ids::EntryIndex;
use queen_record::record::{
    HEAD_LEN, Head, LEN_FIELD, LEN_MAX, LEN_MIN, Record, RecordError, decode,
};

/// What the walk met.
pub(crate) enum Step<'a> {
    /// A verified record that starts at this byte.
    Record(u64, Record<'a>),
    /// Nothing is left, or only zeros.
    End,
    /// Something that is no record.
    Bad(RecordError),
}

/// A walk over one file; `at` is the start of the next record.
pub(crate) struct FileScan {
    file: Arc<dyn DiskFile>,
    end: u64,
    at: u64,
    buf: Vec<u8>,
    buf_at: u64,
    chunk: usize,
}

/// Bytes read at once by a walk over a whole file.
pub(crate) const CHUNK_WHOLE: usize = 1 << 20;
/// Bytes read at once when many logs are walked side by side.
pub(crate) const CHUNK_MERGE: usize = 1 << 16;

impl FileScan {
    /// A walk from byte `at` to byte `end`, which is not after the file's end.
    pub(crate) fn new(file: Arc<dyn DiskFile>, at: u64, end: u64, chunk: usize) -> Self {
        Self { file, end, at, buf: Vec::new(), buf_at: at, chunk }
    }

    pub(crate) fn at(&self) -> u64 {
        self.at
    }

    /// The `len` bytes at `at` of the record that the last step met.
    pub(crate) fn bytes(&self, at: u64, len: usize) -> &[u8] {
        let skip = usize::try_from(at.saturating_sub(self.buf_at)).unwrap_or(usize::MAX);
        self.buf.get(skip..skip.saturating_add(len)).unwrap_or_default()
    }

    /// The next step; after anything but a record the walk stays where it is. A file that is shorter than it should be is
    /// damaged, not unreadable: what stands in it is still walked over.
    pub(crate) fn step(&mut self) -> io::Result<Step<'_>> {
        let at = self.at;
        let remaining = self.end.saturating_sub(at);
        if remaining == 0 {
            return Ok(Step::End);
        }
        let Some(head) = self.fill(remaining.min(HEAD_LEN as u64))? else {
            return Ok(Step::Bad(RecordError::Short));
        };
        if head.iter().take(LEN_FIELD).all(|byte| *byte == 0) {
            return Ok(match all_zero(&*self.file, at, self.end) {
                Ok(true) => Step::End,
                Ok(false) => Step::Bad(RecordError::Length(0)),
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    Step::Bad(RecordError::Short)
                }
                Err(error) => return Err(error),
            });
        }
        let Some(len) = head.first_chunk::<LEN_FIELD>().map(|raw| u32::from_le_bytes(*raw)) else {
            return Ok(Step::Bad(RecordError::Short));
        };
        if !(LEN_MIN..=LEN_MAX).contains(&len) {
            return Ok(Step::Bad(RecordError::Length(len)));
        }
        let total = u64::from(len) + LEN_FIELD as u64;
        if total > remaining {
            return Ok(Step::Bad(RecordError::Short));
        }
        self.at += total;
        let found = Self::fill_from(
            &*self.file,
            &mut self.buf,
            &mut self.buf_at,
            at,
            total,
            self.end,
            self.chunk,
        )?;
        match found.ok_or(RecordError::Short).and_then(decode) {
            Ok(record) => Ok(Step::Record(at, record)),
            Err(error) => {
                self.at = at;
                Ok(Step::Bad(error))
            }
        }
    }

    fn fill(&mut self, want: u64) -> io::Result<Option<&[u8]>> {
        Self::fill_from(
            &*self.file,
            &mut self.buf,
            &mut self.buf_at,
            self.at,
            want,
            self.end,
            self.chunk,
        )
    }

    /// The `want` bytes at `at`, unless the file ends before; the caller has checked that they lie before `end`.
    fn fill_from<'a>(
        file: &dyn DiskFile,
        buf: &'a mut Vec<u8>,
        buf_at: &mut u64,
        at: u64,
        want: u64,
        end: u64,
        chunk: usize,
    ) -> io::Result<Option<&'a [u8]>> {
        let want = usize::try_from(want).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let skip = usize::try_from(at - *buf_at).unwrap_or(usize::MAX).min(buf.len());
        if buf.len() - skip < want {
            let kept_at = *buf_at + skip as u64;
            buf.drain(..skip);
            *buf_at = at;
            if kept_at != at {
                buf.clear();
            }
            let room = usize::try_from(end - at).unwrap_or(usize::MAX);
            let target = want.max(chunk).min(room);
            let had = buf.len();
            buf.resize(target, 0);
            let slot = buf.get_mut(had..).unwrap_or_default();
            let count = read_up_to(file, slot, at + had as u64)?;
            buf.truncate(had + count);
            return Ok(buf.get(..want));
        }
        Ok(buf.get(skip..skip + want))
    }
}

/// Reads exactly `buf.len()` bytes.
pub(crate) fn read_exact_at(file: &dyn DiskFile, buf: &mut [u8], at: u64) -> io::Result<()> {
    if read_up_to(file, buf, at)? < buf.len() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(())
}

/// Reads `buf.len()` bytes, or as many as there are up to the file's end; returns their number.
fn read_up_to(file: &dyn DiskFile, buf: &mut [u8], at: u64) -> io::Result<usize> {
    let mut done = 0;
    while let Some(rest) = buf.get_mut(done..).filter(|rest| !rest.is_empty()) {
        let count = file.read_at(rest, at + done as u64)?;
        if count == 0 {
            break;
        }
        done += count;
    }
    Ok(done)
}

/// The whole file.
pub(crate) fn read_whole(file: &dyn DiskFile) -> io::Result<Vec<u8>> {
    let len = usize::try_from(file.len()?).map_err(|_| io::ErrorKind::OutOfMemory)?;
    let mut bytes = vec![0; len];
    read_exact_at(file, &mut bytes, 0)?;
    Ok(bytes)
}

/// Whether bytes `from` to `end` are all zero.
pub(crate) fn all_zero(file: &dyn DiskFile, from: u64, end: u64) -> io::Result<bool> {
    let mut at = from;
    let mut buf = Vec::new();
    while at < end {
        let size = usize::try_from(end - at).unwrap_or(usize::MAX).min(1 << 16);
        buf.resize(size, 1);
        read_exact_at(file, &mut buf, at)?;
        if buf.iter().any(|byte| *byte != 0) {
            return Ok(false);
        }
        at += size as u64;
    }
    Ok(true)
}

/// Bytes read at once when very many logs are walked side by side.
pub(crate) const CHUNK_MANY: usize = 1 << 12;

/// Looks behind a bad record for one that verifies and whose seq lies in `seqs`, both ends included.
///
/// Every byte offset is tried, because the bad record's own length may be what is damaged. The heads are
/// checked first, so almost no place costs a checksum.
pub(crate) fn find_record_behind(
    file: &dyn DiskFile,
    bad_at: u64,
    end: u64,
    seqs: (EntryIndex, EntryIndex),
) -> io::Result<Option<(u64, EntryIndex)>> {
    let mut window_at = bad_at + 1;
    let mut window = Vec::new();
    while window_at + HEAD_LEN as u64 <= end {
        let size = usize::try_from(end - window_at).unwrap_or(usize::MAX).min(CHUNK_WHOLE);
        window.resize(size, 0);
        read_exact_at(file, &mut window, window_at)?;
        for (step, head) in window.windows(HEAD_LEN).enumerate() {
            let at = window_at + step as u64;
            let Ok(head) = Head::decode(head) else { continue };
            let fits = head.total_len() as u64 <= end - at;
            if !fits || !(seqs.0..=seqs.1).contains(&head.seq) {
                continue;
            }
            let mut candidate = vec![0; head.total_len()];
            read_exact_at(file, &mut candidate, at)?;
            if decode(&candidate).is_ok() {
                return Ok(Some((at, head.seq)));
            }
        }
        window_at += (size - (HEAD_LEN - 1)) as u64;
    }
    Ok(None)
}
