//! Names in the `qlog` directory: `q<log id>`, `r<number:08>.qlog`, `.qidx`, `.qhsh`.

use std::path::{Path, PathBuf};

use queen_record::ids::LogId;

/// The three files of one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Ext {
    /// Records.
    Log,
    /// Index of a sealed file.
    Index,
    /// Hashes of a sealed file.
    Hashes,
}

impl Ext {
    fn text(self) -> &'static str {
        match self {
            Self::Log => "qlog",
            Self::Index => "qidx",
            Self::Hashes => "qhsh",
        }
    }
}

pub(crate) fn log_dir(dir: &Path, log: LogId) -> PathBuf {
    dir.join(format!("q{log}"))
}

pub(crate) fn file_path(log_dir: &Path, number: u64, ext: Ext) -> PathBuf {
    log_dir.join(format!("r{number:08}.{}", ext.text()))
}

/// Where the replacement of one of the three files is written before it takes its place.
pub(crate) fn rewrite_path(log_dir: &Path, number: u64, ext: Ext) -> PathBuf {
    log_dir.join(format!("r{number:08}.{}.compact.tmp", ext.text()))
}

/// The name under which a retired log waits for its removal.
pub(crate) fn dead_dir(dir: &Path, log: LogId) -> PathBuf {
    dir.join(format!("q{log}.dead"))
}

/// The log a directory name stands for; `None` for any other name.
pub(crate) fn parse_log_dir(name: &str) -> Option<LogId> {
    let id = name.strip_prefix('q')?.parse::<u64>().ok()?;
    (format!("q{id}") == name).then_some(LogId(id))
}

/// The number of a record file's name; `None` for any other name.
pub(crate) fn parse_file(name: &str) -> Option<u64> {
    let number = name.strip_prefix('r')?.strip_suffix(".qlog")?.parse::<u64>().ok()?;
    (number > 0 && format!("r{number:08}.qlog") == name).then_some(number)
}

/// Whether a file is unfinished work that goes away at open.
pub(crate) fn is_leftover(name: &str) -> bool {
    let has = |ext: &str| Path::new(name).extension().is_some_and(|found| found == ext);
    has("tmp") || has("dead")
}

/// Whether a directory is a retired log, waiting for its removal: `q<id>.dead` or `q<id>.dead.<n>`.
pub(crate) fn is_dead_dir(name: &str) -> bool {
    name.starts_with('q') && name.contains(".dead")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_written_names_are_read() {
        assert_eq!(parse_log_dir("q0"), Some(LogId(0)));
        assert_eq!(parse_log_dir("q5837314263283300749"), Some(LogId(5_837_314_263_283_300_749)));
        for bad in ["q", "q00", "q+1", "r1", "q1.dead"] {
            assert_eq!(parse_log_dir(bad), None);
        }
        assert_eq!(parse_file("r00000001.qlog"), Some(1));
        assert_eq!(parse_file("r123456789.qlog"), Some(123_456_789));
        for bad in ["r1.qlog", "r00000000.qlog", "r000000001.qlog", "r00000001.qidx"] {
            assert_eq!(parse_file(bad), None);
        }
        assert!(is_leftover("r00000001.qlog.compact.tmp") && is_dead_dir("q7.dead.2"));
    }
}
