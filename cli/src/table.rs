//! Plain text tables: columns that line up, no rules, no colours.

/// How a column lines up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Align {
    Left,
    Right,
}

/// A table with a header.
#[derive(Debug)]
pub struct Table {
    columns: Vec<(&'static str, Align)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new(columns: &[(&'static str, Align)]) -> Self {
        Self { columns: columns.to_vec(), rows: Vec::new() }
    }

    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// The lines, each indented by two. After `most` rows the rest is counted only.
    pub fn lines(&self, most: usize) -> Vec<String> {
        let shown = if self.rows.len() > most { &self.rows[..most.saturating_sub(1)] } else { &self.rows };
        let width = |cell: &str| cell.chars().count();
        let mut widths: Vec<usize> = self.columns.iter().map(|(title, _)| width(title)).collect();
        for row in shown {
            for (known, cell) in widths.iter_mut().zip(row) {
                *known = (*known).max(width(cell));
            }
        }
        let header: Vec<String> = self.columns.iter().map(|(title, _)| (*title).to_owned()).collect();
        let mut lines = vec![self.line(&header, &widths)];
        lines.extend(shown.iter().map(|row| self.line(row, &widths)));
        if shown.len() < self.rows.len() {
            lines.push(format!("  ... and {} more", self.rows.len() - shown.len()));
        }
        lines
    }

    fn line(&self, cells: &[String], widths: &[usize]) -> String {
        let mut line = String::new();
        for ((cell, width), (_, align)) in cells.iter().zip(widths).zip(&self.columns) {
            line.push_str("  ");
            let pad = " ".repeat(width.saturating_sub(cell.chars().count()));
            match align {
                Align::Left => line.extend([cell.as_str(), &pad]),
                Align::Right => line.extend([&pad, cell.as_str()]),
            }
        }
        line.trim_end().to_owned()
    }
}
