//! The settings for a person: the effective ones, the reference page, and the lines of the boot log.

use std::fmt::Write;

use crate::config::{ANY, Setting, Settings, TABLE};

/// Every setting with its effective value.
pub(crate) fn table(settings: &Settings) -> String {
    let shown = settings.shown();
    let rows = TABLE.iter().zip(&shown).map(|(row, value)| {
        [
            name(row),
            value.clone(),
            row.default.to_owned(),
            row.unit.to_owned(),
            row.meaning.to_owned(),
        ]
    });
    let head = ["NAME", "VALUE", "DEFAULT", "UNIT", "MEANING"].map(str::to_owned);
    let rows: Vec<_> = std::iter::once(head).chain(rows).collect();
    let mut widths = [0_usize; 5];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    for row in &rows {
        let mut line = String::new();
        for (width, cell) in widths.iter().zip(row) {
            push(&mut line, format_args!("{cell:width$}  "));
        }
        push(&mut text, format_args!("{}\n", line.trim_end()));
    }
    text
}

/// The reference page: one section per area, without values of this process.
pub(crate) fn markdown() -> String {
    let mut text = String::from(
        "# Settings\n\nEnvironment variables, read once at start. Made by `queen config --markdown`.\n\n\
         An unset variable takes its default; so does an empty one, except for texts. A number outside its \
         range is moved to the nearer end, a percentage outside it and any value that does not parse refuse \
         the start. Of two names in one row the first that is set counts.\n",
    );
    let mut area = "";
    for row in TABLE {
        if row.area != area {
            area = row.area;
            push(&mut text, format_args!("\n## {area}\n\n"));
            text.push_str("| name | default | takes | unit | meaning |\n|---|---|---|---|---|\n");
        }
        let names: Vec<_> = row.names.iter().map(|name| format!("`{name}`")).collect();
        let default =
            if row.default.is_empty() { String::new() } else { format!("`{}`", row.default) };
        let takes = match (row.accepts, row.range) {
            ("", ANY) => "number".to_owned(),
            ("", (min, max)) => format!("{min} to {max}"),
            (accepts, _) => accepts.to_owned(),
        };
        let (names, unit, meaning) = (names.join(", "), row.unit, row.meaning);
        push(&mut text, format_args!("| {names} | {default} | {takes} | {unit} | {meaning} |\n"));
    }
    text
}

/// One line per area for the boot log.
pub(crate) fn areas(settings: &Settings) -> Vec<(&'static str, String)> {
    let mut lines: Vec<(&'static str, String)> = Vec::new();
    for (row, value) in TABLE.iter().zip(settings.shown()) {
        if lines.last().is_none_or(|(area, _)| *area != row.area) {
            lines.push((row.area, String::new()));
        }
        if let Some((_, line)) = lines.last_mut() {
            let blank = if line.is_empty() { "" } else { " " };
            let name = row.names.first().copied().unwrap_or_default();
            push(line, format_args!("{blank}{name}={value}"));
        }
    }
    lines
}

fn name(row: &Setting) -> String {
    row.names.join(", ")
}

fn push(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    // Writing into a string cannot fail.
    text.write_fmt(arguments).unwrap_or_default();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Environment;

    #[test]
    fn all_three_forms_name_every_setting() {
        let settings = Settings::read(&Environment::new([])).unwrap();
        let lines: String = areas(&settings).into_iter().map(|(_, line)| line + "\n").collect();
        for row in TABLE {
            let name = row.names[0];
            assert!(table(&settings).contains(name), "{name}");
            assert!(markdown().contains(&format!("`{name}`")), "{name}");
            assert!(lines.contains(&format!("{name}=")), "{name}");
        }
        assert_eq!(areas(&settings).len(), 10);
    }
}
