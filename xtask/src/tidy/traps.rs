//! Tests that must be there: ten faults that have broken brokers of this kind, and what an operator was promised. Each has a test
//! with its number in its name.

use super::Finding;
use super::files::SourceFile;

/// The known faults; `docs/testing.md` says what each is.
const TRAPS: std::ops::RangeInclusive<u32> = 1..=10;
/// The promises that are kept by tests of that name; `docs/testing.md` has them.
const PROMISES: std::ops::RangeInclusive<u32> = 3..=5;

/// Traps and promises without a test.
pub(super) fn check(files: &[SourceFile]) -> Vec<Finding> {
    let has = |name: String| files.iter().any(|file| file.text.contains(&name));
    let traps = TRAPS
        .filter(|trap| !has(format!("fn trap_t{trap}_")))
        .map(|trap| format!("trap T{trap} has no test"));
    let promises = PROMISES
        .filter(|promise| !has(format!("fn acceptance_{promise}_")))
        .map(|promise| format!("promise {promise} has no test"));
    traps.chain(promises).map(|text| Finding::new("docs/testing.md", 0, text)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_told_from_one_that_begins_like_it() {
        let names = (2..=10).map(|trap| format!("fn trap_t{trap}_x() {{}}\n"));
        let promises = [3, 5].map(|promise| format!("fn acceptance_{promise}_x() {{}}\n"));
        let text = names.chain(promises).collect();
        let file = SourceFile { name: "crates/x/tests/x.rs".to_owned(), text };
        let found: Vec<String> = check(&[file]).into_iter().map(|found| found.text).collect();
        assert_eq!(found, ["trap T1 has no test", "promise 4 has no test"]);
    }
}
