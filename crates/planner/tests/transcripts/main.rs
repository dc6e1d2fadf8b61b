//! Planner transcripts: the stories in the text files beside this one, told again by the planner and compared.
//!
//! A story is a list of commands with what the planner says to each; `README.md` here explains its words.
//! `UPDATE_EXPECT=1` writes what the planner says into the files: read the difference before it is kept.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test may fail loudly"
)]

#[macro_use]
mod options;
mod catalog;
mod consume;
mod decide;
mod log;
mod names;
mod push;
mod render;
mod retention;
mod script;
mod seen;
mod settle;
mod transaction;
mod world;

use std::path::PathBuf;

use script::Line;
use seen::Seen;
use world::World;

macro_rules! stories {
    ($($story:ident),+ $(,)?) => {
        /// Every story.
        const STORIES: &[&str] = &[$(stringify!($story)),+];

        $(#[test]
        fn $story() {
            compare(stringify!($story));
        })+
    };
}

stories![
    ack,
    conflation,
    dead_letters,
    decisions,
    deletes,
    duplicates,
    leases,
    options,
    pop,
    positions,
    push,
    repeats,
    retention,
    subscriptions,
    transaction,
];

#[test]
fn every_verdict_is_told_somewhere() {
    let mut seen = Seen::default();
    for story in STORIES {
        let (_, of_story) = tell(&read(story));
        seen.add(of_story);
    }
    let missing = seen.missing();
    assert!(missing.is_empty(), "no transcript shows: {}", missing.join(", "));
}

#[test]
fn every_file_is_a_story() {
    let files = std::fs::read_dir(directory()).unwrap().map(|entry| entry.unwrap().path());
    let texts = files.filter(|path| path.extension().is_some_and(|extension| extension == "txt"));
    let mut found: Vec<String> =
        texts.map(|path| path.file_stem().unwrap().to_string_lossy().into_owned()).collect();
    found.sort();
    assert_eq!(found, STORIES, "a file without its line in `stories!`, or the other way round");
}

fn directory() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/transcripts")
}

fn path(story: &str) -> PathBuf {
    directory().join(format!("{story}.txt"))
}

fn read(story: &str) -> String {
    std::fs::read_to_string(path(story)).unwrap_or_else(|error| panic!("{story}.txt: {error}"))
}

/// Tells a story, and fails with the first difference.
#[expect(clippy::disallowed_methods, reason = "a test that can rewrite what it expects")]
fn compare(story: &str) {
    let expected = read(story);
    let (found, _) = tell(&expected);
    if found == expected {
        return;
    }
    if std::env::var("UPDATE_EXPECT").is_ok_and(|value| value == "1") {
        std::fs::write(path(story), found).unwrap();
        return;
    }
    let same = expected.lines().zip(found.lines()).take_while(|(a, b)| a == b).count();
    let around = |text: &str| {
        let lines: Vec<&str> = text.lines().skip(same.saturating_sub(3)).take(10).collect();
        lines.join("\n")
    };
    panic!(
        "{story}.txt, line {}: the file says\n\n{}\n\nand the planner says\n\n{}\n\n\
         UPDATE_EXPECT=1 cargo test -p queen-planner --test transcripts\nwrites what the planner says.",
        same + 1,
        around(&expected),
        around(&found),
    );
}

/// The story as the planner tells it, and what it showed.
fn tell(text: &str) -> (String, Seen) {
    let lines = script::parse(text);
    let mut world = World::new();
    let mut told = String::new();
    let mut at = 0;
    while at < lines.len() {
        let Line::Command(first) = &lines[at] else {
            told.push_str(lines[at].source());
            told.push('\n');
            at += 1;
            continue;
        };
        let joined = lines[at + 1..].iter().map_while(|line| match line {
            Line::Command(command) if command.joins => Some(command),
            _ => None,
        });
        let plan: Vec<_> = std::iter::once(first).chain(joined).collect();
        at += plan.len();
        for (command, says) in plan.iter().zip(world.run(&plan)) {
            told.push_str(&command.source);
            told.push('\n');
            for line in says {
                told.push_str("  ");
                told.push_str(&line);
                told.push('\n');
            }
        }
    }
    (told, world.into_seen())
}
