//! The rules: what is flat, and what pushes may notice of background work.
//!
//! - A figure is *flat* when its median over the last fifth of the run is above that over the second fifth by no more than
//!   its share, or by no more than its allowance where that is larger. The first fifth is the warm-up. The allowance is for
//!   what goes in steps: a log file, an arena of the allocator.
//! - A push is *with* a work when it overlaps a time in which that was under way, and *without* when it overlaps none of
//!   any. Of the tenths of the run after the warm-up each gives a ratio of the two 99th percentiles; their median is at most
//!   [`RATIO_MAX`]. So a neighbour that is busy for a while spoils a tenth and not the verdict.

use std::time::{Duration, Instant};

use crate::measure::Line;
use crate::soak::load::Sample;
use crate::soak::watch::{Second, Spans, WORKS, Watched};

/// How many times as long the slowest hundredth may take beside a work.
pub(super) const RATIO_MAX: f64 = 2.0;
/// Pushes with and without that the ratio of a tenth needs.
const SAMPLES_MIN: usize = 30;
/// Tenths with a ratio that a verdict needs, and those that are the warm-up.
const TENTHS_MIN: usize = 5;
const WARM_TENTHS: usize = 2;
const MIB: f64 = 1024.0 * 1024.0;

/// A figure that must be flat.
struct Figure {
    name: &'static str,
    of: fn(&Second) -> f64,
    share: f64,
    allowance: f64,
}

/// What checkpoints of a small store put off before they merge it, at least.
const DELTA_MIB: f64 = 8.0;

/// The rules for each; a log file of the run is `file` MiB.
fn figures(file: f64) -> [Figure; 5] {
    [
        Figure { name: "rss_mib", of: |at| at.rss_bytes as f64 / MIB, share: 0.1, allowance: 8.0 },
        Figure { name: "open_files", of: |at| at.open_files as f64, share: 0.1, allowance: 8.0 },
        Figure { name: "threads", of: |at| at.threads as f64, share: 0.0, allowance: 2.0 },
        Figure {
            // Of messages that must stay it may grow.
            name: "log_mib",
            of: |at| at.disk_bytes.saturating_sub(at.store_bytes + at.kept_bytes) as f64 / MIB,
            share: 0.15,
            allowance: 2.0 * file,
        },
        Figure {
            // It is as large as it was before the last merge, and a short run ends before the first.
            name: "store_mib",
            of: |at| at.store_bytes as f64 / MIB,
            share: 0.15,
            allowance: DELTA_MIB,
        },
    ]
}

/// Judges the seconds; what is not flat is added to `wrong`.
pub(super) fn flat(seconds: &[Second], file_mib: f64, line: &mut Line, wrong: &mut Vec<String>) {
    for figure in figures(file_mib) {
        let fifth = |number: usize| {
            let (from, to) = (seconds.len() * number / 5, seconds.len() * (number + 1) / 5);
            median(seconds[from..to].iter().map(figure.of).collect())
        };
        let (early, late) = (fifth(1), fifth(4));
        let bound = early + (early * figure.share).max(figure.allowance);
        let name = figure.name;
        line.number(&format!("{name}_early"), early);
        line.number(&format!("{name}_late"), late);
        line.number(&format!("{name}_bound"), bound);
        if late > bound {
            wrong.push(format!("{name} grew from {early:.1} to {late:.1}, {bound:.1} is allowed"));
        }
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// Latencies of pushes in microseconds, by the tenth of the run in which they were due.
type Tenths = [Vec<u32>; 10];

/// Judges the pushes of a run that began at `started` and took `time`; ratios that are too large are added to `wrong`.
pub(super) fn latencies(
    samples: &[Sample],
    (started, time): (Instant, Duration),
    watched: &Watched,
    line: &mut Line,
    wrong: &mut Vec<String>,
) {
    let mut without = Tenths::default();
    let mut with: [Tenths; WORKS.len()] = Default::default();
    let mut cursors = watched.spans.each_ref().map(Cursor::new);
    let mut samples = samples.to_vec();
    samples.sort_unstable_by_key(|sample| sample.from);
    for Sample { from, micros } in samples {
        let share = from.saturating_duration_since(started).as_secs_f64() / time.as_secs_f64();
        let tenth = ((share * 10.0) as usize).min(9);
        if tenth < WARM_TENTHS {
            continue;
        }
        let to = from + Duration::from_micros(u64::from(micros));
        let mut is_alone = true;
        for (cursor, with) in cursors.iter_mut().zip(&mut with) {
            if cursor.overlaps(from, to) {
                with[tenth].push(micros);
                is_alone = false;
            }
        }
        if is_alone {
            without[tenth].push(micros);
        }
    }
    sort(&mut without);
    line.add("push_without_count", without.iter().map(Vec::len).sum::<usize>());
    line.latency("push_without", without.concat());
    for (work, mut with) in WORKS.into_iter().zip(with) {
        sort(&mut with);
        line.add(&format!("push_{work}_count"), with.iter().map(Vec::len).sum::<usize>());
        line.latency(&format!("push_{work}"), with.concat());
        let judged = |pair: &(&Vec<u32>, &Vec<u32>)| pair.0.len().min(pair.1.len()) >= SAMPLES_MIN;
        let pairs = with.iter().zip(&without).filter(judged);
        let ratios: Vec<f64> = pairs.map(|(with, without)| p99(with) / p99(without)).collect();
        let count = ratios.len();
        let ratio = median(ratios);
        line.number(&format!("push_{work}_ratio"), ratio);
        if count < TENTHS_MIN {
            wrong.push(format!(
                "{work} cannot be judged: only {count} tenths of the run have {SAMPLES_MIN} pushes beside it and as many \
                 without: let it run longer, or work less in the background"
            ));
        } else if ratio > RATIO_MAX {
            wrong.push(format!(
                "p99 of a push is {ratio:.2} times as long beside a {work}, {RATIO_MAX} is allowed"
            ));
        }
    }
}

fn sort(tenths: &mut Tenths) {
    for tenth in tenths {
        tenth.sort_unstable();
    }
}

/// Of sorted microseconds; never 0.
fn p99(micros: &[u32]) -> f64 {
    let place = (micros.len().saturating_sub(1) as f64 * 0.99).round() as usize;
    f64::from(micros.get(place).copied().unwrap_or(0).max(1))
}

/// Walks spans as samples are shown to it in order.
struct Cursor<'a> {
    rest: &'a [(Instant, Instant)],
    /// The latest end of the spans that began before now.
    until: Option<Instant>,
}

impl<'a> Cursor<'a> {
    fn new(spans: &'a Spans) -> Self {
        Self { rest: spans, until: None }
    }

    /// Whether a span overlaps this time; starts never go back.
    fn overlaps(&mut self, from: Instant, to: Instant) -> bool {
        while let Some(((begin, end), rest)) = self.rest.split_first()
            && *begin <= from
        {
            self.until = self.until.max(Some(*end));
            self.rest = rest;
        }
        let is_next = self.rest.first().is_some_and(|(begin, _)| *begin <= to);
        is_next || self.until.is_some_and(|until| until >= from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(value: impl Fn(u64) -> u64) -> Vec<Second> {
        let second = |at| Second {
            rss_bytes: value(at) << 20,
            disk_bytes: (value(at) + at) << 20,
            kept_bytes: at << 20,
            threads: 20,
            ..Second::default()
        };
        (0..100).map(second).collect()
    }

    #[test]
    fn what_grows_is_named_and_what_must_stay_is_no_growth() {
        let judge = |seconds: &[Second]| {
            let (mut line, mut wrong) = (Line::default(), Vec::new());
            flat(seconds, 1.0, &mut line, &mut wrong);
            wrong
        };
        assert_eq!(judge(&seconds(|at| 100 + at % 7)), [""; 0]);
        // The warm-up may be anything, and so may single seconds.
        assert_eq!(judge(&seconds(|at| if at < 20 || at == 90 { 500 } else { 100 })), [""; 0]);
        let wrong = judge(&seconds(|at| 100 + at));
        assert_eq!(wrong.len(), 2, "{wrong:?}");
        assert!(wrong[0].starts_with("rss_mib grew from 130.0 to 190.0, 143.0"), "{wrong:?}");
        assert!(wrong[1].starts_with("log_mib grew"), "{wrong:?}");
    }

    #[test]
    fn pushes_are_told_apart_by_what_they_overlap() {
        let zero = Instant::now();
        let at = |ms: u64| zero + Duration::from_millis(ms);
        let sample = |ms: u64, took: u32| Sample { from: at(ms), micros: took * 1000 };
        // Every tenth of a second a push of 1 ms; one second in ten has a checkpoint, and it takes 3 ms. For a while a
        // neighbour makes all of them slow.
        let samples: Vec<Sample> = (0..10_000_u64)
            .map(|n| match n {
                2000..3000 => sample(n * 100, 50 + u32::from(n / 10 % 10 == 5) * 500),
                _ => sample(n * 100, if n / 10 % 10 == 5 { 3 } else { 1 }),
            })
            .collect();
        let mut watched = Watched::default();
        for n in 0..100 {
            watched.spans[0].push((at(n * 10_000 + 5000), at(n * 10_000 + 5950)));
        }
        let (mut line, mut wrong) = (Line::default(), Vec::new());
        let run = (zero, Duration::from_secs(1000));
        latencies(&samples, run, &watched, &mut line, &mut wrong);
        assert_eq!(line.value("push_checkpoint_count") as u64, 800);
        assert_eq!(line.value("push_without_count") as u64, 7200);
        assert_eq!(line.value("push_checkpoint_ratio") as u64, 3);
        assert_eq!(wrong.len(), 3, "{wrong:?}");
        assert!(wrong[0].contains("3.00 times as long beside a checkpoint"), "{wrong:?}");
        assert!(wrong[1].starts_with("rewrite cannot be judged: only 0 tenths"), "{wrong:?}");
    }
}
