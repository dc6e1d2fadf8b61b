//! Ten faults that have broken brokers of this kind: each has a test with its number in its name.

use super::Finding;
use super::files::SourceFile;

/// The known ones; `docs/testing.md` says what each is.
const TRAPS: std::ops::RangeInclusive<u32> = 1..=10;

/// Traps without a test.
pub(super) fn check(files: &[SourceFile]) -> Vec<Finding> {
    let has = |trap: &u32| {
        let name = format!("fn trap_t{trap}_");
        files.iter().any(|file| file.text.contains(&name))
    };
    let missing = TRAPS.filter(|trap| !has(trap));
    missing
        .map(|trap| Finding::new("docs/testing.md", 0, format!("trap T{trap} has no test")))
        .collect()
}
