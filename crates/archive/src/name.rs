//! Names that may be in a backup: those of a data directory, and no others.

/// Whether a name is that of a file of a data directory. No other is ever written.
pub(crate) fn is_member(name: &str) -> bool {
    let mut parts = name.split('/');
    match (parts.next(), parts.next(), parts.next(), parts.next()) {
        (Some("ENCRYPTION"), None, ..)
        | (Some("qlog"), Some("LANES" | "SHARDS" | "RECLAIMED"), None, _)
        | (Some("store"), Some("data.mdb" | "image"), None, _) => true,
        (Some("qlog"), Some(log), Some(file), None) => is_log(log) && is_log_file(file),
        _ => false,
    }
}

/// `q<log id>`.
fn is_log(name: &str) -> bool {
    let id = name.strip_prefix('q').and_then(|id| id.parse::<u64>().ok());
    id.is_some_and(|id| format!("q{id}") == name)
}

/// `r<number:08>.` and one of three ends.
fn is_log_file(name: &str) -> bool {
    let Some((stem, "qlog" | "qidx" | "qhsh")) = name.split_once('.') else { return false };
    let number = stem.strip_prefix('r').and_then(|number| number.parse::<u64>().ok());
    number.is_some_and(|number| number > 0 && format!("r{number:08}") == stem)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_a_data_directory() {
        for name in [
            "ENCRYPTION",
            "qlog/LANES",
            "qlog/q18446744073709551615/r00000001.qlog",
            "qlog/q0/r123456789.qhsh",
            "store/data.mdb",
        ] {
            assert!(is_member(name), "{name}");
        }
        for name in [
            "",
            "/etc/passwd",
            "../x",
            "qlog/../store/data.mdb",
            "qlog/q1/../../ENCRYPTION",
            "qlog//r00000001.qlog",
            "qlog/q01/r00000001.qlog",
            "qlog/q+1/r00000001.qlog",
            "qlog/q1/r1.qlog",
            "qlog/q1/r00000000.qlog",
            "qlog/q1/r00000001.qlog/x",
            "qlog/q1/r00000001.qlog\0",
            "ENCRYPTION/",
            "queen.lock",
            "store/lock.mdb",
            "./ENCRYPTION",
        ] {
            assert!(!is_member(name), "{name}");
        }
    }
}
