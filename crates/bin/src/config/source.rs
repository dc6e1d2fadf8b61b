//! Where values come from: the environment, through a figment provider that leaves them as they are.
//!
//! figment's own environment provider gives a value a type before anybody asked for one: `0123` and `true` are
//! then no texts, and `1` or `on` no booleans. This one passes every value as the text it is.

use std::collections::BTreeMap;

use anyhow::anyhow;
use figment::value::{Dict, Map, Value};
use figment::{Figment, Metadata, Profile, Provider};

use crate::config::values::Parse;
use crate::config::{Setting, TABLE};

/// The variables of one process, those of the table and those that look like settings.
#[derive(Debug)]
pub(crate) struct Environment {
    figment: Figment,
    /// Set, but not in the table.
    unknown: Vec<String>,
}

/// Names of the settings reference that other builds know and this one does not, beside `QUEEN_*`.
const ELSEWHERE: [&str; 1] = ["METRICS_FLUSH_MS"];

/// Variables of the same form that the command line reads and a node does not.
const OF_CLIENT: [&str; 2] = ["QUEEN_URL", "QUEEN_TOKEN"];

impl Environment {
    /// The variables of this process; one that is not text cannot be a setting and is left out.
    pub(crate) fn of_process() -> Self {
        let pairs = std::env::vars_os().filter_map(|(name, value)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        });
        Self::new(pairs)
    }

    pub(crate) fn new(pairs: impl IntoIterator<Item = (String, String)>) -> Self {
        let pairs: BTreeMap<String, String> = pairs.into_iter().collect();
        let is_known = |name: &str| {
            OF_CLIENT.contains(&name) || TABLE.iter().any(|row| row.names.contains(&name))
        };
        let is_setting = |name: &str| name.starts_with("QUEEN_") || ELSEWHERE.contains(&name);
        let unknown = pairs.keys().filter(|name| !is_known(name) && is_setting(name));
        let unknown = unknown.cloned().collect();
        Self { figment: Figment::from(Raw(pairs)), unknown }
    }

    /// Settings that are set and that this build does not know.
    pub(crate) fn unknown(&self) -> &[String] {
        &self.unknown
    }

    /// Whether a variable is set, be it to nothing.
    pub(super) fn is_set(&self, name: &str) -> bool {
        self.text(name).is_some()
    }

    /// Whether a variable is set to something.
    pub(crate) fn is_filled(&self, name: &str) -> bool {
        self.text(name).is_some_and(|text| !text.is_empty())
    }

    fn text(&self, name: &str) -> Option<String> {
        self.figment.find_value(name).ok()?.into_string()
    }

    /// The value of a row of the table.
    ///
    /// # Errors
    /// Names the variable and quotes its value.
    pub(super) fn value<T: Parse>(&self, row: Option<&Setting>) -> anyhow::Result<T> {
        let row = row.ok_or_else(|| anyhow!("the table of settings ended early"))?;
        let set = row.names.iter().filter_map(|name| Some((*name, self.text(name)?)));
        let mut set = set.filter(|(_, text)| T::TAKES_EMPTY || !text.trim().is_empty());
        let first = row.names.first().copied().unwrap_or_default();
        let (name, text) = set.next().unwrap_or_else(|| (first, row.default.to_owned()));
        T::parse(&text, row.range).map_err(|reason| anyhow!("{name}={text:?}: {reason}"))
    }
}

/// Variables as figment sees them: one flat dictionary of texts.
struct Raw(BTreeMap<String, String>);

impl Provider for Raw {
    fn metadata(&self) -> Metadata {
        Metadata::named("environment variable")
    }

    fn data(&self) -> Result<Map<Profile, Dict>, figment::Error> {
        let values = self.0.iter().map(|(name, text)| (name.clone(), Value::from(text.as_str())));
        Ok(Profile::Default.collect(values.collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_settings_are_listed_by_name() {
        let pairs = [
            "QUEEN_RAFT_GROUPS",
            "METRICS_FLUSH_MS",
            "RETENTION_INTERVAL",
            "PORT",
            "PATH",
            "QUEEN_TYPO",
            "QUEEN_URL",
            "QUEEN_TOKEN",
        ];
        let pairs = pairs.map(|name| (name.to_owned(), "1".to_owned()));
        let environment = Environment::new(pairs);
        assert_eq!(environment.unknown(), ["METRICS_FLUSH_MS", "QUEEN_RAFT_GROUPS", "QUEEN_TYPO"]);
        assert!(environment.is_filled("PORT"));
    }
}
