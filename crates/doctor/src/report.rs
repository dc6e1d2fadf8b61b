//! What an examination found, as plain data.

use std::path::{Path, PathBuf};

/// What a start would do about a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// It refuses.
    Refuses,
    /// It does not see it: whoever reads the place is told, and nothing wrong is served.
    Damage,
    /// It removes what was written but never acknowledged.
    Cut,
    /// It makes it again from other files.
    Repaired,
    /// Nothing, or what it does with every directory.
    Note,
}

impl Severity {
    /// One word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Refuses => "refuses",
            Self::Damage => "damage",
            Self::Cut => "cut",
            Self::Repaired => "repaired",
            Self::Note => "note",
        }
    }
}

/// One thing found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What a start does about it.
    pub severity: Severity,
    /// The file or directory.
    pub file: PathBuf,
    /// The byte in it, where one can be named.
    pub offset: Option<u64>,
    /// What is there.
    pub what: String,
    /// What to do, where there is something to do.
    pub advice: &'static str,
}

/// What a start would end with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It serves.
    Starts {
        /// The last entry it would have.
        applied: u64,
        /// The entry of the checkpoint.
        durable: u64,
        /// Entries of which something would be cut.
        cut_entries: u64,
        /// Bytes that would be cut.
        cut_bytes: u64,
    },
    /// It refuses, with this text on its FATAL line.
    Refuses(String),
}

/// What was looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Files.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Rows of the store.
    pub rows: u64,
    /// Queues.
    pub queues: u64,
    /// Partitions.
    pub partitions: u64,
    /// Records in the logs.
    pub records: u64,
    /// Messages in them.
    pub messages: u64,
    /// Messages whose payload is encrypted.
    pub encrypted: u64,
    /// Whole entry records among them.
    pub entries: u64,
}

/// The whole examination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// What a start would end with.
    pub verdict: Verdict,
    /// What was found, by file and offset.
    pub findings: Vec<Finding>,
    /// What was looked at.
    pub figures: Figures,
}

impl Report {
    /// Whether a node would start.
    pub fn starts(&self) -> bool {
        matches!(self.verdict, Verdict::Starts { .. })
    }

    /// Whether nothing was found but notes.
    pub fn is_clean(&self) -> bool {
        self.findings.iter().all(|finding| finding.severity == Severity::Note)
    }
}

/// Findings in the making.
#[derive(Default)]
pub(crate) struct Findings(Vec<Finding>);

impl Findings {
    pub(crate) fn add(
        &mut self,
        severity: Severity,
        file: &Path,
        offset: Option<u64>,
        what: impl Into<String>,
    ) {
        let (file, what) = (file.to_path_buf(), what.into());
        self.0.push(Finding { severity, file, offset, what, advice: advice(severity) });
    }

    /// Adds it, unless the same was said of the file already.
    pub(crate) fn add_once(
        &mut self,
        severity: Severity,
        file: &Path,
        offset: Option<u64>,
        what: &str,
    ) {
        if !self.0.iter().any(|known| known.file == file && known.what == what) {
            self.add(severity, file, offset, what);
        }
    }

    /// Whether the place is known to be bad already.
    pub(crate) fn has(&self, file: &Path, offset: u64) -> bool {
        let same = |finding: &&Finding| finding.file == file && finding.offset == Some(offset);
        self.0.iter().filter(|finding| finding.severity <= Severity::Cut).any(|found| same(&found))
    }

    /// Whether a start cuts the file at this byte or before.
    pub(crate) fn is_cut(&self, file: &Path, at: u64) -> bool {
        self.0.iter().any(|finding| {
            finding.severity == Severity::Cut
                && finding.file == file
                && finding.offset.is_none_or(|offset| offset <= at)
        })
    }

    pub(crate) fn sorted(mut self) -> Vec<Finding> {
        self.0
            .sort_by(|a, b| (&a.file, a.offset, a.severity).cmp(&(&b.file, b.offset, b.severity)));
        self.0
    }
}

fn advice(severity: Severity) -> &'static str {
    match severity {
        Severity::Refuses => {
            "keep the directory as it is; put the named file back from a copy of the same moment, or restore a backup"
        }
        Severity::Damage => {
            "a node starts and answers reads of this place with an error; restore a backup if they matter"
        }
        Severity::Cut | Severity::Repaired | Severity::Note => "",
    }
}
