//! Command-line words, taken one by one.

use std::str::FromStr;

use anyhow::{Context, bail};

/// What is left of the command line.
pub(crate) struct Args(Vec<String>);

impl Args {
    /// Wraps the words after the program's name.
    pub(crate) fn new(words: impl Iterator<Item = String>) -> Self {
        Self(words.collect())
    }

    /// Takes the first word.
    pub(crate) fn word(&mut self) -> Option<String> {
        (!self.0.is_empty()).then(|| self.0.remove(0))
    }

    /// Takes a flag; true if it was there.
    pub(crate) fn flag(&mut self, name: &str) -> bool {
        let before = self.0.len();
        self.0.retain(|word| word != name);
        self.0.len() < before
    }

    /// Takes a flag with a value.
    pub(crate) fn value<T: FromStr>(&mut self, name: &str) -> anyhow::Result<Option<T>> {
        let Some(at) = self.0.iter().position(|word| word == name) else { return Ok(None) };
        let text = self.0.get(at + 1).with_context(|| format!("{name} needs a value"))?.clone();
        self.0.drain(at..at + 2);
        let Ok(value) = text.parse() else { bail!("{name} {text:?} is no value it takes") };
        Ok(Some(value))
    }

    /// Everything that is left, for another program.
    pub(crate) fn rest(self) -> Vec<String> {
        self.0
    }

    /// Refuses whatever nobody took.
    pub(crate) fn end(self) -> anyhow::Result<()> {
        if self.0.is_empty() {
            return Ok(());
        }
        bail!("not understood: {}", self.0.join(" "));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_flags_and_values_in_any_order() {
        let words = ["chaos", "--seconds", "9", "--kill"].map(str::to_owned);
        let mut args = Args::new(words.into_iter());
        assert_eq!(args.word().as_deref(), Some("chaos"));
        assert!(args.flag("--kill") && !args.flag("--power"));
        assert_eq!(args.value::<u64>("--seconds").unwrap(), Some(9));
        assert_eq!(args.value::<u64>("--seed").unwrap(), None);
        args.end().unwrap();
    }

    #[test]
    fn what_nobody_took_is_refused() {
        assert!(Args::new(["--x".to_owned()].into_iter()).end().is_err());
        let mut args = Args::new(["--seed", "many"].map(str::to_owned).into_iter());
        assert!(args.value::<u64>("--seed").is_err());
    }
}
