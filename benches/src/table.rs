//! Tables of figures in columns.

use std::fmt;

/// A table: a heading, and rows of a name and cells.
#[derive(Clone, Debug, Default)]
pub struct Table {
    heading: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Makes a table with these column heads; the first column is names.
    pub fn new(heading: impl IntoIterator<Item = impl Into<String>>) -> Table {
        Table { heading: heading.into_iter().map(Into::into).collect(), rows: Vec::new() }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: impl IntoIterator<Item = impl Into<String>>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines = || std::iter::once(&self.heading).chain(&self.rows);
        let columns = lines().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| lines().filter_map(|row| row.get(column)).map(String::len).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for row in lines() {
            for (column, (cell, &width)) in row.iter().zip(&widths).enumerate() {
                if column == 0 {
                    write!(f, "{cell:<width$}")?;
                } else {
                    write!(f, "  {cell:>width$}")?;
                }
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

/// Formats a figure with three significant digits.
pub fn figure(value: f64) -> String {
    match value {
        v if v >= 100.0 => format!("{v:.0}"),
        v if v >= 10.0 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(["a", "ns"]);
        table.row(["long name", "1"]);
        assert_eq!(table.to_string(), "a          ns\nlong name   1\n");
        assert_eq!([figure(123.4), figure(12.34), figure(1.234)], ["123", "12.3", "1.23"]);
    }
}
