//! Tables: rows in aligned columns, and a single record with one field per line.

use std::borrow::Cow;
use std::collections::HashMap;

use comfy_table::{Attribute, Cell, CellAlignment, ContentArrangement, Row, Table};
use indicatif::HumanBytes;
use stemmadb::{Object, Value};

use super::Palette;

/// Rows per page; bounds the memory of a long table.
const PAGE_ROWS: usize = 500;

/// Maximum number of characters shown of a cell.
const CELL_CHARACTERS_MAX: usize = 60;

/// Width given to each column first; space left over then widens the columns that need more.
const COLUMN_WIDTH_FIRST: usize = 20;

/// Number of spaces between columns.
const GAP: usize = 2;

/// Rows printed together, with the same column widths.
pub(crate) struct Page {
    rows: Vec<Object>,
    width: Option<usize>,
    colored: bool,
    hidden: Vec<String>,
}

impl Page {
    /// Creates an empty page; `width` is that of the terminal.
    pub(crate) fn new(width: Option<usize>, colored: bool) -> Self {
        Page { rows: Vec::new(), width, colored, hidden: Vec::new() }
    }

    /// Adds a row.
    pub(crate) fn add(&mut self, row: Object) {
        self.rows.push(row);
    }

    /// Whether the page should be printed.
    pub(crate) fn is_full(&self) -> bool {
        self.rows.len() >= PAGE_ROWS
    }

    /// Whether the page has no rows.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Names of the columns hidden so far.
    pub(crate) fn hidden(&self) -> &[String] {
        &self.hidden
    }

    /// Formats the page and removes its rows.
    pub(crate) fn take(&mut self) -> String {
        let rows = std::mem::take(&mut self.rows);
        let mut columns = columns(&rows);
        if let Some(width) = self.width {
            for column in fit(&mut columns, width) {
                if !self.hidden.contains(&column.name) {
                    self.hidden.push(column.name);
                }
            }
        }
        let mut table = Table::new();
        table.load_style(comfy_table::presets::NOTHING).set_truncation_indicator("…");
        if self.width.is_some() {
            table.set_content_arrangement(ContentArrangement::Dynamic);
        }
        let header = columns.iter().map(|column| self.header(&column.name, column.width));
        table.set_header(one_line(Row::from(header)));
        for row in &rows {
            table.add_row(one_line(Row::from(columns.iter().map(|column| column.cell(row)))));
        }
        for (at, column) in columns.iter().enumerate() {
            let Some(shown) = table.column_mut(at) else { continue };
            shown.set_padding((0, GAP as u16));
            if column.is_numeric {
                shown.set_cell_alignment(CellAlignment::Right);
            }
        }
        table.trim_fmt()
    }

    fn header(&self, name: &str, width: usize) -> Cell {
        let cell = Cell::new(truncate(name, width));
        if self.colored { cell.add_attribute(Attribute::Bold) } else { cell }
    }
}

/// A column of the table.
struct Column {
    name: String,
    /// Length of the longest cell in characters, at most [`CELL_CHARACTERS_MAX`].
    needed: usize,
    /// Width to print.
    width: usize,
    is_numeric: bool,
}

impl Column {
    fn cell(&self, row: &Object) -> Cell {
        Cell::new(row.get(&self.name).map_or_else(String::new, |value| truncate(&text_of(value), self.width)))
    }
}

/// Collects the fields of all rows, in the order of their first appearance.
fn columns(rows: &[Object]) -> Vec<Column> {
    let mut columns: Vec<Column> = Vec::new();
    let mut indexes: HashMap<&str, usize> = HashMap::new();
    for (name, value) in rows.iter().flat_map(Object::iter) {
        let at = *indexes.entry(name).or_insert_with(|| {
            let needed = name.chars().count().min(CELL_CHARACTERS_MAX);
            columns.push(Column { name: name.to_owned(), needed, width: needed, is_numeric: true });
            columns.len() - 1
        });
        let column = &mut columns[at];
        column.is_numeric &= value.as_number().is_some();
        if column.needed < CELL_CHARACTERS_MAX {
            column.needed = column.needed.max(text_of(value).chars().count().min(CELL_CHARACTERS_MAX));
        }
        column.width = column.needed;
    }
    columns
}

/// Assigns widths so that the columns fit into `width`; removes and returns the ones that do not fit.
fn fit(columns: &mut Vec<Column>, width: usize) -> Vec<Column> {
    let mut remaining = width;
    let mut fitting = 0;
    for column in columns.iter_mut() {
        // The first column usually identifies the row, so it may be wider.
        let most = if fitting == 0 { width.min(2 * COLUMN_WIDTH_FIRST) } else { COLUMN_WIDTH_FIRST };
        column.width = column.needed.min(most);
        let needed = column.width + if fitting == 0 { 0 } else { GAP };
        if fitting > 0 && needed > remaining {
            break;
        }
        remaining = remaining.saturating_sub(needed);
        fitting += 1;
    }
    let hidden = columns.split_off(fitting);
    for column in columns {
        let more = (column.needed - column.width).min(remaining);
        column.width += more;
        remaining -= more;
    }
    hidden
}

fn one_line(mut row: Row) -> Row {
    row.max_height(1);
    row
}

/// Formats a record with one field per line.
pub(crate) fn properties(record: &Object, palette: Palette) -> String {
    let width = record.names().map(|name| name.chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for (name, value) in record {
        let blanks = " ".repeat(width - name.chars().count());
        let size = match value.as_u64() {
            Some(bytes) if name.ends_with("_bytes") && bytes >= 1024 => format!(" ({})", HumanBytes(bytes)),
            _ => String::new(),
        };
        text.extend([palette.name, name, palette.reset, &blanks, "  ", &plain(value), &size, "\n"]);
    }
    text
}

/// Formats a value for a cell: one line without control characters.
fn text_of(value: &Value) -> String {
    let text = match value {
        Value::String(text) if text.is_empty() => "\"\"".to_owned(),
        Value::String(text) => text.chars().take(CELL_CHARACTERS_MAX + 1).collect(),
        _ => value.to_json(),
    };
    text.replace(char::is_control, "·")
}

/// Formats a value of a record: not truncated, strings without quotes.
fn plain(value: &Value) -> Cow<'_, str> {
    match value {
        Value::String(text) if !text.chars().any(char::is_control) => Cow::Borrowed(text),
        _ => Cow::Owned(value.to_json()),
    }
}

fn truncate(text: &str, width: usize) -> String {
    match text.char_indices().nth(width) {
        None => text.to_owned(),
        Some(_) => text.chars().take(width.saturating_sub(1)).chain(['…']).collect(),
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
    fn hidden_columns_are_reported() {
        let (text, hidden) = page(&["{\"a\":1,\"b\":2,\"c\":3}"], Some(6));
        assert_eq!(text, "a  b\n1  2");
        assert_eq!(hidden, ["c"]);
    }

    #[test]
    fn remaining_width_goes_to_the_first_columns() {
        let row = format!("{{\"a\":\"{0}\",\"b\":\"{0}\"}}", "x".repeat(40));
        let (text, _) = page(&[&row], Some(70));
        let cells: Vec<usize> = text.lines().nth(1).unwrap().split("  ").map(|cell| cell.chars().count()).collect();
        assert_eq!(cells, [40, 28]);
        let (text, hidden) = page(&[&row], Some(30));
        assert_eq!(text.lines().nth(1).unwrap().chars().count(), 30);
        assert_eq!(hidden, ["b"]);
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
        assert_eq!(properties(record.as_object().unwrap(), Palette::PLAIN), "documents  3\ndirectory  a.stemma\n");
    }
}
