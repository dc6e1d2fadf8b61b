//! Aligned columns under a header. Nothing is ever cut: a long cell makes a long line.

use std::fmt::Display;

use super::escape;

/// A column's header, and the side its cells stand at.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Column {
    Text(&'static str),
    Number(&'static str),
}

/// Rows under a header.
#[derive(Debug)]
pub(crate) struct Table {
    columns: &'static [Column],
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(columns: &'static [Column]) -> Self {
        Self { columns, rows: Vec::new() }
    }

    /// Adds a row; one cell per column.
    pub(crate) fn row(&mut self, cells: &[&dyn Display]) {
        assert_eq!(cells.len(), self.columns.len(), "a cell for every column");
        let cells = cells.iter().map(|cell| escape::text(&cell.to_string()).into_owned());
        self.rows.push(cells.collect());
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The header and the rows.
    pub(crate) fn lines(&self) -> Vec<String> {
        let head = self.columns.iter().map(|column| match column {
            Column::Text(name) | Column::Number(name) => (*name).to_owned(),
        });
        let head: Vec<String> = head.collect();
        let mut widths = vec![0_usize; head.len()];
        for row in std::iter::once(&head).chain(&self.rows) {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        let line = |row: &Vec<String>| {
            let cells = self.columns.iter().zip(&widths).zip(row);
            let cells = cells.map(|((column, width), cell)| match column {
                Column::Text(_) => format!("{cell:width$}"),
                Column::Number(_) => format!("{cell:>width$}"),
            });
            cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
        };
        std::iter::once(&head).chain(&self.rows).map(line).collect()
    }
}

/// A cell that may have nothing to show.
pub(crate) fn or_dash<T: Display>(value: Option<T>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stand_right_and_nothing_is_cut() {
        let mut table = Table::new(&[Column::Text("NAME"), Column::Number("N"), Column::Text("X")]);
        assert!(table.is_empty());
        table.row(&[&"a", &7, &""]);
        table.row(&[&"é\u{1b}[2J", &1234, &"last"]);
        let expected = ["NAME           N  X", "a              7", "é\\u{1b}[2J  1234  last"];
        assert_eq!(table.lines(), expected);
        assert_eq!(or_dash::<u64>(None), "-");
        assert_eq!(or_dash(Some(3)), "3");
    }
}
