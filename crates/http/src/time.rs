//! Times as the API writes and reads them: UTC, to the microsecond.
//!
//! Read: `YYYY-MM-DD`, optionally `THH:MM[:SS[.fraction]]`, optionally `Z` or `±HH:MM`; no designator is UTC.
//! Written: `YYYY-MM-DDTHH:MM:SS.mmmZ` (iso3) and `….uuuuuuZ` (iso6). Calendar arithmetic is proleptic
//! Gregorian over 400-year eras (H. Hinnant, "chrono-compatible low-level date algorithms").

use queen_record::ids::Micros;

const SECOND_US: i64 = 1_000_000;
const DAY_S: i64 = 86_400;
const ERA_DAYS: i64 = 146_097;
/// 0000-03-01 to 1970-01-01.
const EPOCH_DAYS: i64 = 719_468;
/// 0000-01-01T00:00:00Z; an earlier time has no four-digit year and is shown as this one.
const MICROS_MIN: i64 = -62_167_219_200_000_000;
/// 9999-12-31T23:59:59.999999Z; a later time is shown as this one.
const MICROS_MAX: i64 = 253_402_300_799_999_999;

/// Appends the time with milliseconds; finer digits are cut.
pub fn iso3(out: &mut Vec<u8>, time: Micros) {
    let micros = seconds(out, time);
    out.push(b'.');
    digits(out, micros / 1000, 3);
    out.push(b'Z');
}

/// Appends the time with microseconds.
pub fn iso6(out: &mut Vec<u8>, time: Micros) {
    let micros = seconds(out, time);
    out.push(b'.');
    digits(out, micros, 6);
    out.push(b'Z');
}

/// Reads any accepted form; digits below the microsecond are cut. `None` for anything else.
#[must_use]
pub fn parse(text: &str) -> Option<Micros> {
    let mut input = Input(text.as_bytes());
    let year = input.number(4)?;
    input.byte(b'-')?;
    let month = input.number(2)?;
    input.byte(b'-')?;
    let day = input.number(2)?;
    if !(1..=12).contains(&month) || day < 1 || day > month_days(year, month) {
        return None;
    }
    let (mut second, mut micros) = (0, 0);
    if input.byte(b'T').or_else(|| input.byte(b't')).is_some() {
        let hour = input.number(2)?;
        input.byte(b':')?;
        let minute = input.number(2)?;
        let mut rest = 0;
        if input.byte(b':').is_some() {
            rest = input.number(2)?;
            if input.byte(b'.').is_some() {
                micros = input.fraction()?;
            }
        }
        if hour > 23 || minute > 59 || rest > 59 {
            return None;
        }
        second = hour * 3600 + minute * 60 + rest;
    }
    let offset = input.offset()?;
    if !input.0.is_empty() {
        return None;
    }
    let total = days_from_civil(year, month, day) * DAY_S + second - offset;
    Some(Micros(total * SECOND_US + micros))
}

/// Appends everything before the fraction; returns the microseconds within the second.
fn seconds(out: &mut Vec<u8>, time: Micros) -> i64 {
    let micros = time.0.clamp(MICROS_MIN, MICROS_MAX);
    let total = micros.div_euclid(SECOND_US);
    let (days, second) = (total.div_euclid(DAY_S), total.rem_euclid(DAY_S));
    let (year, month, day) = civil_from_days(days);
    digits(out, year, 4);
    out.push(b'-');
    digits(out, month, 2);
    out.push(b'-');
    digits(out, day, 2);
    out.push(b'T');
    digits(out, second / 3600, 2);
    out.push(b':');
    digits(out, second / 60 % 60, 2);
    out.push(b':');
    digits(out, second % 60, 2);
    micros.rem_euclid(SECOND_US)
}

/// Appends `value`, not negative, as exactly `width` digits.
fn digits(out: &mut Vec<u8>, value: i64, width: u32) {
    for place in (0..width).rev() {
        let digit = value / 10_i64.pow(place) % 10;
        out.push(b'0' + u8::try_from(digit).unwrap_or(0));
    }
}

fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let shifted = days + EPOCH_DAYS;
    let era = shifted.div_euclid(ERA_DAYS);
    let day_of_era = shifted.rem_euclid(ERA_DAYS);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    // The computed year starts in March, so that the leap day is its last one.
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = year - i64::from(month <= 2);
    let (era, year_of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let month_from_march = (month + 9) % 12;
    let day_of_year = (153 * month_from_march + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * ERA_DAYS + day_of_era - EPOCH_DAYS
}

fn month_days(year: i64, month: i64) -> i64 {
    match month {
        4 | 6 | 9 | 11 => 30,
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        _ => 31,
    }
}

/// What is left to read.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self, wanted: u8) -> Option<()> {
        let (first, rest) = self.0.split_first()?;
        if *first != wanted {
            return None;
        }
        self.0 = rest;
        Some(())
    }

    fn digit(&mut self) -> Option<i64> {
        let (first, rest) = self.0.split_first()?;
        if !first.is_ascii_digit() {
            return None;
        }
        self.0 = rest;
        Some(i64::from(first - b'0'))
    }

    fn number(&mut self, width: usize) -> Option<i64> {
        let mut value = 0;
        for _ in 0..width {
            value = value * 10 + self.digit()?;
        }
        Some(value)
    }

    /// At least one digit; to the microsecond.
    fn fraction(&mut self) -> Option<i64> {
        let mut micros = self.digit()? * 100_000;
        let mut weight = 10_000;
        while let Some(digit) = self.digit() {
            micros += digit * weight;
            weight /= 10;
        }
        Some(micros)
    }

    /// Seconds east of UTC.
    fn offset(&mut self) -> Option<i64> {
        if self.0.is_empty() || self.byte(b'Z').or_else(|| self.byte(b'z')).is_some() {
            return Some(0);
        }
        let sign = if self.byte(b'+').is_some() {
            1
        } else {
            self.byte(b'-')?;
            -1
        };
        let hours = self.number(2)?;
        self.byte(b':')?;
        let minutes = self.number(2)?;
        (hours <= 23 && minutes <= 59).then_some(sign * (hours * 3600 + minutes * 60))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(render: fn(&mut Vec<u8>, Micros), micros: i64) -> String {
        let mut out = Vec::new();
        render(&mut out, Micros(micros));
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn known_instants() {
        assert_eq!(text(iso6, 0), "1970-01-01T00:00:00.000000Z");
        assert_eq!(text(iso3, 1_790_932_443_512_887), "2026-10-02T09:14:03.512Z");
        assert_eq!(text(iso6, 1_790_932_443_512_887), "2026-10-02T09:14:03.512887Z");
        assert_eq!(text(iso6, 951_782_400_000_000), "2000-02-29T00:00:00.000000Z");
        assert_eq!(text(iso6, -1), "1969-12-31T23:59:59.999999Z");
        assert_eq!(text(iso6, i64::MAX), "9999-12-31T23:59:59.999999Z");
        assert_eq!(text(iso6, i64::MIN), "0000-01-01T00:00:00.000000Z");
    }

    #[test]
    fn every_input_form() {
        let day = 1_790_899_200_000_000;
        let cases = [
            ("2026-10-02", 0),
            ("2026-10-02Z", 0),
            ("2026-10-02T09:14", 33_240_000_000),
            ("2026-10-02T09:14:03", 33_243_000_000),
            ("2026-10-02T09:14:03Z", 33_243_000_000),
            ("2026-10-02T09:14:03.5", 33_243_500_000),
            ("2026-10-02T09:14:03.512887Z", 33_243_512_887),
            ("2026-10-02T09:14:03.5128879Z", 33_243_512_887),
            ("2026-10-02T09:14:03+02:00", 33_243_000_000 - 7_200_000_000),
            ("2026-10-02T09:14-01:30", 33_240_000_000 + 5_400_000_000),
        ];
        for (input, expected) in cases {
            assert_eq!(parse(input), Some(Micros(day + expected)), "{input}");
        }
        for input in [
            "",
            "now",
            "2026",
            "2026-13-01",
            "2026-00-01",
            "2026-02-29",
            "2026-04-31",
            "2026-10-02T",
            "2026-10-02T9:14",
            "2026-10-02T24:00",
            "2026-10-02T09:60",
            "2026-10-02T09:14:60",
            "2026-10-02T09:14:03.",
            "2026-10-02T09:14:03+0200",
            "2026-10-02T09:14:03+24:00",
            "2026-10-02 09:14",
            "2026-10-02T09:14:03Zx",
            "１２３４-10-02",
        ] {
            assert_eq!(parse(input), None, "{input}");
        }
    }

    proptest::proptest! {
        #[test]
        fn a_written_time_reads_back(micros in MICROS_MIN..=MICROS_MAX) {
            proptest::prop_assert_eq!(parse(&text(iso6, micros)), Some(Micros(micros)));
        }

        #[test]
        fn any_text_is_read_without_a_panic(text in "\\PC{0,40}") {
            proptest::prop_assert!(parse(&text).is_none() || text.len() >= 10);
        }
    }
}
