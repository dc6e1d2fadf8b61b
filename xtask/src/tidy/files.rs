//! The shape of files: what they begin with, how long they are, what the metrics page names.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::Finding;

/// Lines of a Rust file at most.
const LINES_MAX: usize = 700;

/// A text file of the repository.
pub(crate) struct SourceFile {
    /// Relative to the workspace, with `/`.
    pub(crate) name: String,
    pub(crate) text: String,
}

impl SourceFile {
    /// Whether its name ends so.
    pub(super) fn is(&self, extension: &str) -> bool {
        Path::new(&self.name).extension().is_some_and(|found| found == extension)
    }
}

/// Reads every text file that the repository carries; what cannot be text is left out.
pub(super) fn read(root: &Path) -> anyhow::Result<Vec<SourceFile>> {
    let mut files = Vec::new();
    visit(root, root, &mut files)?;
    files.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(files)
}

fn visit(root: &Path, directory: &Path, files: &mut Vec<SourceFile>) -> anyhow::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let (path, kind) = (entry.path(), entry.file_type()?);
        let name = path.strip_prefix(root)?.to_string_lossy().replace('\\', "/");
        if kind.is_dir() {
            let last = entry.file_name();
            let is_ours =
                !["target", ".git", ".venv", "__pycache__"].iter().any(|name| last == *name);
            if is_ours {
                visit(root, &path, files)?;
            }
        } else if kind.is_file()
            && let Ok(text) = fs::read_to_string(&path)
        {
            files.push(SourceFile { name, text });
        }
    }
    Ok(())
}

/// All checks of this file.
pub(super) fn check(files: &[SourceFile]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in files.iter().filter(|file| file.is("rs")) {
        if !file.text.starts_with("//!") {
            findings.push(Finding::new(&file.name, 1, "does not begin with what it is (`//!`)"));
        }
        let lines = file.text.lines().count();
        if lines > LINES_MAX {
            let text = format!("{lines} lines, more than {LINES_MAX}: look for the seam");
            findings.push(Finding::new(&file.name, LINES_MAX + 1, text));
        }
    }
    series(files, &mut findings);
    findings
}

/// Every series that the code names is described.
fn series(files: &[SourceFile], findings: &mut Vec<Finding>) {
    let page = files.iter().find(|file| file.name == "docs/metrics.md");
    let page = page.map_or("", |file| &*file.text);
    let emits = |file: &&SourceFile| {
        // The workloads read series, they have none.
        let has_series =
            file.name.starts_with("crates/") && !file.name.starts_with("crates/bench/");
        has_series && file.name.contains("/src/") && file.is("rs")
    };
    let mut seen = BTreeSet::new();
    for file in files.iter().filter(emits) {
        for (number, line) in file.text.lines().enumerate() {
            for name in names(line).filter(|name| !page.contains(&format!("`{name}`"))) {
                if seen.insert(name) {
                    let text = format!("{name} is not described in docs/metrics.md");
                    findings.push(Finding::new(&file.name, number + 1, text));
                }
            }
        }
    }
}

/// The literals of a line that are a series' name.
fn names(line: &str) -> impl Iterator<Item = &str> {
    line.split('"').skip(1).step_by(2).filter(|literal| {
        literal.starts_with("queen_")
            && literal.len() > "queen_".len()
            && literal.chars().all(|letter| {
                letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '_'
            })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str, text: &str) -> SourceFile {
        SourceFile { name: name.into(), text: text.into() }
    }

    #[test]
    fn heads_and_lengths() {
        let long = format!("//! x\n{}", "\n".repeat(LINES_MAX));
        let files = [file("a.rs", "//! x\n"), file("b.rs", "use x;\n"), file("c.rs", &long)];
        let findings = check(&files);
        let places: Vec<_> = findings.iter().map(|found| (&*found.file, found.line)).collect();
        assert_eq!(places, [("b.rs", 1), ("c.rs", LINES_MAX + 1)]);
    }

    #[test]
    fn series_without_a_description() {
        let code = "//! x\nlet a = (\"queen_known\", \"queen_new_total\", \"queen says\");\n";
        let files = [file("crates/x/src/a.rs", code), file("docs/metrics.md", "| `queen_known` |")];
        let findings = check(&files);
        assert_eq!(findings.len(), 1);
        assert!(
            findings
                .iter()
                .all(|found| found.line == 2 && found.text.starts_with("queen_new_total "))
        );
    }
}
