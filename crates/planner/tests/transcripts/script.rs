//! The form of a story: remarks, commands, and below each command what was said to it.
//!
//! ```text
//! # A remark; empty lines are remarks too.
//! > a command, in a plan of its own
//! + a command in the same plan as the one before
//! | one part of the command above it
//!   what the planner says: two blanks in front
//! ```

/// A line of a story, with what belongs to it.
pub(crate) enum Line {
    Remark(String),
    Command(Command),
}

impl Line {
    pub(crate) fn source(&self) -> &str {
        match self {
            Self::Remark(text) => text,
            Self::Command(command) => &command.source,
        }
    }
}

/// A command as it stands in the file.
pub(crate) struct Command {
    /// Its lines, without what was said.
    pub(crate) source: String,
    /// Whether it is planned together with the command before it.
    pub(crate) joins: bool,
    pub(crate) words: Words,
    /// Its parts, for one that has some.
    pub(crate) parts: Vec<Words>,
}

/// The words of a command, taken from the front.
#[derive(Clone, Debug)]
pub(crate) struct Words {
    words: Vec<String>,
    line: String,
}

impl Words {
    fn new(line: &str) -> Self {
        let (mut words, mut word, mut is_quoted) = (Vec::new(), String::new(), false);
        for letter in line.chars() {
            match letter {
                '"' => is_quoted = !is_quoted,
                ' ' if !is_quoted => words.push(std::mem::take(&mut word)),
                other => word.push(other),
            }
        }
        words.push(word);
        words.retain(|word| !word.is_empty());
        words.reverse();
        Self { words, line: line.to_owned() }
    }

    /// The next word.
    pub(crate) fn next(&mut self, what: &str) -> String {
        self.words.pop().unwrap_or_else(|| panic!("{:?} lacks its {what}", self.line))
    }

    /// Takes a word that may stand anywhere among those left.
    pub(crate) fn flag(&mut self, name: &str) -> bool {
        let before = self.words.len();
        self.words.retain(|word| word != name);
        self.words.len() < before
    }

    /// Takes the value of `name=value`, which may stand anywhere among those left.
    pub(crate) fn value(&mut self, name: &str) -> Option<String> {
        let is_it = |word: &String| word.split_once('=').is_some_and(|(left, _)| left == name);
        let at = self.words.iter().position(is_it)?;
        let word = self.words.remove(at);
        word.split_once('=').map(|(_, value)| value.to_owned())
    }

    /// Takes the number of `name=number`.
    pub(crate) fn number<T: std::str::FromStr>(&mut self, name: &str) -> Option<T> {
        let text = self.value(name)?;
        let number = text.parse().ok();
        Some(number.unwrap_or_else(|| panic!("{:?}: {name} is no number", self.line)))
    }

    /// All that is left.
    pub(crate) fn rest(&mut self) -> Vec<String> {
        let mut rest = std::mem::take(&mut self.words);
        rest.reverse();
        rest
    }

    /// Nothing may be left.
    pub(crate) fn end(self) {
        assert!(self.words.is_empty(), "{:?}: {:?} means nothing here", self.line, self.words);
    }
}

/// Reads a story; what was said is left out.
pub(crate) fn parse(text: &str) -> Vec<Line> {
    let mut lines = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if let Some(rest) = line.strip_prefix("> ").or_else(|| line.strip_prefix("+ ")) {
            lines.push(Line::Command(Command {
                source: line.to_owned(),
                joins: line.starts_with('+'),
                words: Words::new(rest),
                parts: Vec::new(),
            }));
        } else if let Some(rest) = line.strip_prefix("| ") {
            let Some(Line::Command(command)) = lines.last_mut() else {
                panic!("line {}: a part of no command", number + 1)
            };
            command.source.push('\n');
            command.source.push_str(line);
            command.parts.push(Words::new(rest));
        } else if line.is_empty() || line.starts_with('#') {
            lines.push(Line::Remark(line.to_owned()));
        } else {
            assert!(line.starts_with("  "), "line {}: what is {line:?}?", number + 1);
        }
    }
    lines
}

/// A word of a story that stands for a longer one: `p{409}` is 409 times `p`.
pub(crate) fn expand(word: &str) -> String {
    let count = word.strip_suffix('}').and_then(|word| word.split_once('{'));
    match count {
        Some((text, count)) => text.repeat(count.parse().unwrap()),
        None => word.to_owned(),
    }
}
