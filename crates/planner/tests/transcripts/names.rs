//! What ids are called in a story: m1, m2 are messages, L1 a lease, D1 a dead letter, Q1 a queue, G1 a registration.

use std::collections::BTreeMap;

use queen_record::hash::tx_hash;
use queen_record::ids::{Micros, TxHash, Uuid};

/// When every story begins.
pub(crate) const START: Micros = Micros(1_800_000_000_000_000);

#[derive(Default)]
pub(crate) struct Names {
    by_id: BTreeMap<Uuid, String>,
    counts: BTreeMap<char, u32>,
    texts: BTreeMap<TxHash, String>,
}

impl Names {
    /// The name of an id; a new one is named by its kind and the next number.
    pub(crate) fn of(&mut self, kind: char, id: Uuid) -> String {
        if let Some(name) = self.by_id.get(&id) {
            return name.clone();
        }
        let count = self.counts.entry(kind).or_default();
        *count += 1;
        let name = format!("{kind}{count}");
        self.by_id.insert(id, name.clone());
        name
    }

    /// The id of this name.
    pub(crate) fn id(&self, name: &str) -> Uuid {
        let found = self.by_id.iter().find(|(_, known)| *known == name);
        *found.unwrap_or_else(|| panic!("nothing is called {name} yet")).0
    }

    /// Notes what a hash is the hash of.
    pub(crate) fn note(&mut self, transaction_id: &str, shown: &str) -> TxHash {
        let hash = tx_hash(transaction_id);
        self.texts.insert(hash, shown.to_owned());
        hash
    }

    /// What a hash is the hash of.
    pub(crate) fn text(&self, hash: TxHash) -> String {
        self.texts.get(&hash).cloned().unwrap_or_else(|| "?".to_owned())
    }

    /// Many of them, in short.
    pub(crate) fn list(&self, hashes: &[TxHash]) -> String {
        let names: Vec<String> = hashes.iter().take(6).map(|hash| self.text(*hash)).collect();
        let more = hashes.len() - names.len();
        let more = if more == 0 { String::new() } else { format!(" and {more} more") };
        format!("{}{more}", names.join(" "))
    }
}

/// Seconds since the story began.
pub(crate) fn time(at: Micros) -> String {
    let us = at.0 - START.0;
    let (sign, us) = if us < 0 { ("-", -us) } else { ("", us) };
    let text = format!("{}.{:06}", us / 1_000_000, us % 1_000_000);
    let text = text.strip_suffix("000").unwrap_or(&text);
    format!("{sign}{text} s")
}

/// A time as a script writes it: `2.5s` since the story began.
pub(crate) fn parse_time(text: &str) -> Micros {
    Micros(START.0 + span(text))
}

/// Microseconds of `2.5s`.
pub(crate) fn span(text: &str) -> i64 {
    let seconds: f64 = text.strip_suffix('s').and_then(|text| text.parse().ok()).unwrap();
    #[expect(clippy::cast_possible_truncation, reason = "a few seconds, as a person writes them")]
    let us = (seconds * 1e6).round() as i64;
    us
}

/// A text, or how long it is.
pub(crate) fn short(text: &str) -> String {
    if text.len() <= 40 { text.to_owned() } else { format!("({} bytes)", text.len()) }
}
