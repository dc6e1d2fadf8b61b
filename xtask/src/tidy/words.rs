//! Words that must not stand in the repository, or not in its code.

use super::Finding;
use super::files::SourceFile;

/// Where a word is looked for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Where {
    /// Every text file but the lock files, which cargo writes.
    All,
    /// Rust, Python and shell.
    Code,
    Rust,
}

/// Word, place, and why not. The words are put together here so that this file does not hold them.
const WORDS: &[(&str, Where, &str)] = &[
    (concat!("/ro", "ot/"), Where::All, "a path of somebody's machine"),
    (concat!("/ho", "me/"), Where::All, "a path of somebody's machine"),
    (concat!("/wo", "rk/"), Where::All, "a path of somebody's machine"),
    (concat!("/Us", "ers/"), Where::All, "a path of somebody's machine"),
    (concat!("pypi", ".org"), Where::All, "a registry's host"),
    (concat!("python", "hosted"), Where::All, "a registry's host"),
    (concat!("index.", "crates.io"), Where::All, "a registry's host"),
    (concat!("static.", "crates.io"), Where::All, "a registry's host"),
    (concat!("registry.", "npmjs"), Where::All, "a registry's host"),
    (concat!("deb.", "debian"), Where::All, "a registry's host"),
    (concat!("proxy.", "golang"), Where::All, "a registry's host"),
    (
        concat!("TO", "DO"),
        Where::Code,
        "unfinished: finish it, or write it down where work is planned",
    ),
    (
        concat!("FIX", "ME"),
        Where::Code,
        "unfinished: finish it, or write it down where work is planned",
    ),
    (
        concat!("XX", "X"),
        Where::Code,
        "unfinished: finish it, or write it down where work is planned",
    ),
    (concat!("unimple", "mented!"), Where::Rust, "unfinished"),
    (concat!("to", "do!("), Where::Rust, "unfinished"),
    (
        concat!("#[ign", "ore"),
        Where::Rust,
        "a test that nobody runs; slow ones ask QUEEN_TEST_SLOW",
    ),
    (concat!("should", "_panic"), Where::Rust, "check the result or the message instead"),
    (concat!("thread::", "sleep"), Where::Rust, "wait for the condition, not for a time"),
];

/// All checks of this file.
pub(super) fn check(files: &[SourceFile]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in files {
        for (number, line) in file.text.lines().enumerate() {
            for (word, place, why) in WORDS {
                if is_looked_at(file, *place) && holds(line, word) {
                    findings.push(Finding::new(&file.name, number + 1, format!("{word}: {why}")));
                }
            }
        }
    }
    findings
}

fn is_looked_at(file: &SourceFile, place: Where) -> bool {
    match place {
        Where::All => !file.name.ends_with("Cargo.lock"),
        Where::Code => file.is("rs") || file.is("py") || file.name == ".ci/run",
        Where::Rust => file.is("rs"),
    }
}

/// Whether the word stands there, not as a part of a longer one.
fn holds(line: &str, word: &str) -> bool {
    let is_part =
        |letter: Option<char>| letter.is_some_and(|letter| letter.is_ascii_alphanumeric());
    let begins_word = word.starts_with(|letter: char| letter.is_ascii_alphabetic());
    let ends_word = word.ends_with(|letter: char| letter.is_ascii_alphabetic());
    line.match_indices(word).any(|(at, _)| {
        let before = line.get(..at).and_then(|text| text.chars().next_back());
        let after = line.get(at + word.len()..).and_then(|text| text.chars().next());
        !(begins_word && is_part(before) || ends_word && is_part(after))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_words_only() {
        assert!(holds(concat!("// TO", "DO: later"), concat!("TO", "DO")));
        assert!(!holds(concat!("AUTO", "DOC"), concat!("TO", "DO")));
        assert!(holds(concat!("std::thread::", "sleep(x)"), concat!("thread::", "sleep")));
    }

    #[test]
    fn places_are_named_by_line() {
        let file = |name: &str| SourceFile {
            name: name.into(),
            text: concat!("a\n/ho", "me/somebody\n").into(),
        };
        let findings = check(&[file("a.md"), file("Cargo.lock")]);
        assert_eq!(findings.iter().map(|found| found.line).collect::<Vec<_>>(), [2]);
    }
}
