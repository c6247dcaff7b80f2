//! Rows as columns, and one record as names and values.

use std::borrow::Cow;

use comfy_table::{Attribute, Cell, CellAlignment, ContentArrangement, Row, Table};
use indicatif::HumanBytes;
use stemmadb::{Object, Value};

use super::Paint;

/// A table is shown in pages of this many rows, so that its memory is bounded.
const PAGE_ROWS: usize = 500;

/// A cell shows at most this many characters.
const CELL_CHARACTERS_MAX: usize = 60;

/// A column narrower than this is of no use.
const COLUMN_WIDTH_MIN: usize = 12;

/// Rows that are shown together.
pub(crate) struct Page {
    rows: Vec<Object>,
    width: Option<usize>,
    colored: bool,
    hidden: Vec<String>,
}

impl Page {
    /// An empty page; `width` is the terminal's.
    pub(crate) fn new(width: Option<usize>, colored: bool) -> Self {
        Page { rows: Vec::new(), width, colored, hidden: Vec::new() }
    }

    /// Adds a row.
    pub(crate) fn add(&mut self, row: Object) {
        self.rows.push(row);
    }

    /// Whether it is time to show it.
    pub(crate) fn is_full(&self) -> bool {
        self.rows.len() >= PAGE_ROWS
    }

    /// Whether there is nothing to show.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Names of columns that there was no room for.
    pub(crate) fn hidden(&self) -> &[String] {
        &self.hidden
    }

    /// The page as text; it is empty afterwards.
    pub(crate) fn take(&mut self) -> String {
        let rows = std::mem::take(&mut self.rows);
        let mut names = column_names(&rows);
        if let Some(width) = self.width {
            for name in names.split_off(names.len().min((width / COLUMN_WIDTH_MIN).max(1))) {
                if !self.hidden.contains(&name) {
                    self.hidden.push(name);
                }
            }
        }
        let mut table = Table::new();
        table.load_style(comfy_table::presets::NOTHING).set_truncation_indicator("…");
        if self.width.is_some() {
            table.set_content_arrangement(ContentArrangement::Dynamic);
        }
        table.set_header(names.iter().map(|name| self.header(name)));
        for row in &rows {
            table.add_row(cells(row, &names));
        }
        for (at, name) in names.iter().enumerate() {
            let Some(column) = table.column_mut(at) else { continue };
            column.set_padding((0, 2));
            let numeric = rows.iter().filter_map(|row| row.get(name)).all(|value| value.as_number().is_some());
            if numeric {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        table.trim_fmt()
    }

    fn header(&self, name: &str) -> Cell {
        let cell = Cell::new(shorten(name));
        if self.colored { cell.add_attribute(Attribute::Bold) } else { cell }
    }
}

/// The fields of all rows, in the order in which they first appear.
fn column_names(rows: &[Object]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    let mut known = std::collections::HashSet::new();
    for name in rows.iter().flat_map(|row| row.names()) {
        if known.insert(name) {
            names.push(name.to_owned());
        }
    }
    names
}

fn cells(row: &Object, names: &[String]) -> Row {
    let cells = names.iter().map(|name| row.get(name).map_or_else(|| Cell::new(""), |value| Cell::new(cell(value))));
    let mut cells = Row::from(cells);
    cells.max_height(1);
    cells
}

/// A record: each name with its value, the values below each other.
pub(crate) fn properties(record: &Object, paint: Paint) -> String {
    let width = record.names().map(|name| name.chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for (name, value) in record {
        let blanks = " ".repeat(width - name.chars().count());
        let size = match value.as_u64() {
            Some(bytes) if name.ends_with("_bytes") && bytes >= 1024 => format!(" ({})", HumanBytes(bytes)),
            _ => String::new(),
        };
        text.extend([paint.name, name, paint.end, &blanks, "  ", &plain(value), &size, "\n"]);
    }
    text
}

fn cell(value: &Value) -> String {
    let text = match value {
        Value::String(text) if text.is_empty() => "\"\"".to_owned(),
        Value::String(text) => shorten(text),
        _ => shorten(&value.to_json()),
    };
    text.replace(char::is_control, "·")
}

/// A value without quotes, nothing cut off.
fn plain(value: &Value) -> Cow<'_, str> {
    match value {
        Value::String(text) if !text.chars().any(char::is_control) => Cow::Borrowed(text),
        _ => Cow::Owned(value.to_json()),
    }
}

fn shorten(text: &str) -> String {
    match text.char_indices().nth(CELL_CHARACTERS_MAX) {
        None => text.to_owned(),
        Some(_) => text.chars().take(CELL_CHARACTERS_MAX - 1).chain(['…']).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(rows: &[&str], width: Option<usize>) -> (String, Vec<String>) {
        let mut page = Page::new(width, false);
        for row in rows {
            page.add(Value::parse(row).unwrap().as_object().unwrap().clone());
        }
        (page.take(), page.hidden().to_vec())
    }

    #[test]
    fn columns_align() {
        let (text, hidden) =
            page(&["{\"_id\":\"a\",\"n\":5}", "{\"_id\":\"bcd\",\"n\":12,\"t\":[1,{\"x\":null}]}"], None);
        assert_eq!(text, "_id   n  t\na     5\nbcd  12  [1,{\"x\":null}]");
        assert!(hidden.is_empty());
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let (text, hidden) = page(&["{\"a\":1,\"b\":2,\"c\":3}"], Some(24));
        assert_eq!(text, "a  b\n1  2");
        assert_eq!(hidden, ["c"]);
    }

    #[test]
    fn cells_are_one_line_without_control_characters() {
        let (text, _) = page(&["{\"a\":\"x\\ny\\u001b[31m\"}"], None);
        assert_eq!(text, "a\nx·y·[31m");
        let long = format!("{{\"a\":\"{}\"}}", "é".repeat(100));
        assert_eq!(page(&[&long], None).0.lines().nth(1).unwrap().chars().count(), CELL_CHARACTERS_MAX);
    }

    #[test]
    fn records_show_everything() {
        let record = Value::parse("{\"documents\":3,\"directory\":\"a.stemma\"}").unwrap();
        assert_eq!(properties(record.as_object().unwrap(), Paint::PLAIN), "documents  3\ndirectory  a.stemma\n");
    }
}
