//! CSV reader: the first row has the field names, each further row is a document.
//!
//! Accepts RFC 4180 and common variations: any delimiter, any line ending, blank lines, and quotes within a cell that
//! does not begin with one. Refuses, with line and column: an unclosed quote, text after a closing quote, a row with
//! another number of cells than the header, and text that is not UTF-8.
//!
//! The type of a cell is inferred: `12` is an integer, `1.5` and `2e3` are floats, `true` and `false` are booleans, and
//! an empty cell is no field. A cell stays text if a number would not preserve it: leading zeros, plus signs, too many
//! digits.

use super::scan::{Scanner, TextPosition};
use super::{DOCUMENT_BYTES_MAX, DocumentOrigin, DocumentReader, InputOptions, TextColumns, write_string};
use crate::failure::{Failure, Result};

/// A double represents every decimal number with this many digits.
const FLOAT_DIGITS_MAX: usize = 15;

/// Reads the rows of a CSV file.
pub(crate) struct CsvTable {
    rows: Rows,
    header: Vec<Column>,
    /// The text of the header, if rows keep theirs.
    header_text: Vec<u8>,
}

/// A column of the header.
struct Column {
    name: String,
    /// Whether its cells are read as text.
    is_text: bool,
}

impl CsvTable {
    /// Reads the header; the rows below it are the documents.
    pub(crate) fn new(scanner: Scanner, delimiter: u8, options: &InputOptions) -> Result<Self> {
        let text_columns = &options.text_columns;
        let mut rows = Rows::new(scanner, delimiter, options.skips_bad);
        let mut header: Vec<Column> = Vec::new();
        if rows.next()?.is_some() {
            for column in 0..rows.ends.len() {
                let (name, position) = rows.cell(column)?;
                if name.is_empty() {
                    return Err(position.failure(format!("column {} of the header has no name", column + 1)));
                }
                if header.iter().any(|column| column.name == name) {
                    return Err(position.failure(format!("the header names {name:?} twice")));
                }
                // An id is always text.
                let is_text = name == "_id" || *text_columns == TextColumns::All || text_columns.names(name);
                header.push(Column { name: name.to_owned(), is_text });
            }
        }
        if let TextColumns::Named(names) = text_columns
            && let Some(unknown) = names.iter().find(|name| header.iter().all(|column| column.name != **name))
        {
            return Err(Failure::usage(format!("--text names {unknown:?}, which is not in the header")));
        }
        let header_text = rows.text.clone();
        Ok(CsvTable { rows, header, header_text })
    }

    fn check_width(&self, position: TextPosition) -> Result<()> {
        let (width, expected) = (self.rows.ends.len(), self.header.len());
        if width == expected {
            return Ok(());
        }
        let position = self.rows.positions.get(expected).copied().unwrap_or(position);
        let cells = if width == 1 { "cell" } else { "cells" };
        Err(position.failure(format!("{width} {cells} in a row, but the header names {expected} fields")))
    }
}

impl DocumentReader for CsvTable {
    fn next(&mut self, into: &mut Vec<u8>) -> Result<Option<DocumentOrigin>> {
        let Some(position) = self.rows.next()? else { return Ok(None) };
        self.check_width(position)?;
        into.push(b'{');
        let mut first = true;
        for (at, column) in self.header.iter().enumerate() {
            let (cell, _) = self.rows.cell(at)?;
            if cell.is_empty() && !column.is_text {
                continue;
            }
            if !first {
                into.push(b',');
            }
            first = false;
            write_string(&column.name, into);
            into.push(b':');
            if column.is_text || !is_json_scalar(cell) {
                write_string(cell, into);
            } else {
                into.extend_from_slice(cell.as_bytes());
            }
        }
        into.push(b'}');
        Ok(Some(DocumentOrigin { position, is_verbatim: false }))
    }

    fn recover(&mut self, text: &mut Vec<u8>) -> Result<bool> {
        self.rows.finish_bad_row()?;
        text.clear();
        text.extend_from_slice(&self.rows.text);
        Ok(true)
    }

    fn original(&self) -> Option<&[u8]> {
        Some(&self.rows.text)
    }

    fn header(&self) -> Option<&[u8]> {
        Some(&self.header_text)
    }

    fn bytes_read(&self) -> u64 {
        self.rows.scanner.bytes_read()
    }
}

impl TextColumns {
    fn names(&self, name: &str) -> bool {
        matches!(self, TextColumns::Named(names) if names.iter().any(|named| named == name))
    }
}

/// Whether the cell is a JSON boolean, or a number that preserves its text.
fn is_json_scalar(cell: &str) -> bool {
    match cell {
        "true" | "false" => true,
        _ => is_integer(cell) || is_float(cell),
    }
}

fn is_integer(cell: &str) -> bool {
    let digits = cell.strip_prefix('-').unwrap_or(cell);
    let plain = digits.bytes().all(|byte| byte.is_ascii_digit()) && (digits == "0" || !digits.starts_with('0'));
    plain && cell != "-0" && (cell.parse::<i64>().is_ok() || cell.parse::<u64>().is_ok())
}

fn is_float(cell: &str) -> bool {
    let magnitude = cell.strip_prefix('-').unwrap_or(cell);
    let (mantissa, exponent) = match magnitude.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (magnitude, None),
    };
    let (whole, fraction) = match mantissa.split_once('.') {
        Some((whole, fraction)) => (whole, Some(fraction)),
        None => (mantissa, None),
    };
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let exponent_digits = exponent.map(|text| text.strip_prefix(['-', '+']).unwrap_or(text));
    (fraction.is_some() || exponent.is_some())
        && digits(whole)
        && (whole == "0" || !whole.starts_with('0'))
        && fraction.is_none_or(digits)
        && exponent_digits.is_none_or(digits)
        && whole.len() + fraction.map_or(0, str::len) <= FLOAT_DIGITS_MAX
        && cell.parse::<f64>().is_ok_and(f64::is_finite)
}

/// Delimiters that are detected; the first is preferred.
const DELIMITERS: [u8; 4] = [b',', b';', b'\t', b'|'];
/// The number of lines in which a delimiter is detected, and of their bytes.
const DETECTION_LINES: usize = 6;
const DETECTION_BYTES: usize = 64 << 10;

/// Detects the delimiter from the first rows: the one that splits all of them into the same number of cells, if it is
/// more than one; otherwise the most frequent one of the header; otherwise `default`.
pub(crate) fn detect_delimiter(scanner: &mut Scanner, default: u8) -> Result<u8> {
    let head = scanner.peek_lines(DETECTION_LINES, DETECTION_BYTES)?;
    let candidates = std::iter::once(default).chain(DELIMITERS.into_iter().filter(|delimiter| *delimiter != default));
    // `max_by_key` returns the last of several maxima, so the default comes last.
    let candidates: Vec<u8> = candidates.collect();
    let widths = candidates.into_iter().rev().map(|delimiter| (row_widths(head, delimiter), delimiter));
    let ranked = widths.filter(|(widths, _)| widths.first().is_some_and(|width| *width > 1));
    let best = ranked.max_by_key(|(widths, _)| (widths.iter().all(|width| *width == widths[0]), widths[0]));
    Ok(best.map_or(default, |(_, delimiter)| delimiter))
}

/// The numbers of cells of the complete rows at the beginning of a file.
fn row_widths(mut bytes: &[u8], delimiter: u8) -> Vec<usize> {
    let (mut widths, mut width, mut cell) = (Vec::new(), 1, Vec::new());
    while !bytes.is_empty() {
        if width == 1 && matches!(bytes[0], b'\n' | b'\r') {
            bytes = &bytes[1..];
            continue;
        }
        let (count, end) = take_cell(bytes, delimiter, CellState::Start, &mut cell);
        bytes = &bytes[count..];
        match end {
            CellEnd::Cell => width += 1,
            CellEnd::Row => {
                widths.push(width);
                width = 1;
            }
            CellEnd::Partial(_) | CellEnd::Misplaced => break,
        }
    }
    if widths.is_empty() {
        widths.push(width);
    }
    widths
}

/// Splits the input into rows of cells.
struct Rows {
    scanner: Scanner,
    delimiter: u8,
    /// The unquoted cells of the current row, concatenated.
    cells: Vec<u8>,
    /// The end of each cell in `cells`.
    ends: Vec<usize>,
    /// The input position of each cell.
    positions: Vec<TextPosition>,
    /// Whether to keep the text of the current row.
    keeps_text: bool,
    /// That text as far as it was read.
    text: Vec<u8>,
    /// Whether the current row was read to its end.
    is_complete: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum CellState {
    Start,
    Bare,
    Quoted,
    /// After a quote within a quoted cell: either its end, or the first of a doubled quote.
    Closed,
}

impl Rows {
    fn new(scanner: Scanner, delimiter: u8, keeps_text: bool) -> Self {
        Rows {
            scanner,
            delimiter,
            cells: Vec::new(),
            ends: Vec::new(),
            positions: Vec::new(),
            keeps_text,
            text: Vec::new(),
            is_complete: true,
        }
    }

    /// Reads the next row that is not blank; returns its position.
    fn next(&mut self) -> Result<Option<TextPosition>> {
        self.cells.clear();
        self.ends.clear();
        self.positions.clear();
        self.text.clear();
        self.is_complete = true;
        self.skip_blank_lines()?;
        if self.scanner.peek()?.is_none() {
            return Ok(None);
        }
        let start = self.scanner.position();
        let mut state = CellState::Start;
        self.positions.push(start);
        self.is_complete = false;
        loop {
            let ahead = self.scanner.lookahead()?;
            if ahead.is_empty() {
                if state == CellState::Quoted {
                    return Err(self.open_quote("is never closed"));
                }
                return Ok(Some(self.complete(start)));
            }
            let (count, next) = take_cell(ahead, self.delimiter, state, &mut self.cells);
            if self.keeps_text {
                self.text.extend_from_slice(&ahead[..count]);
            }
            self.scanner.consume(count);
            match next {
                CellEnd::Partial(partial) => state = partial,
                CellEnd::Cell => {
                    self.ends.push(self.cells.len());
                    self.positions.push(self.scanner.position());
                    state = CellState::Start;
                }
                CellEnd::Row => return Ok(Some(self.complete(start))),
                CellEnd::Misplaced => {
                    let message = "expected a delimiter or the end of the line after the closing quote";
                    return Err(self
                        .scanner
                        .position()
                        .failure(message)
                        .with_hint("double a quote within quotes: \"\""));
                }
            }
            if self.cells.len() > DOCUMENT_BYTES_MAX {
                return Err(match state {
                    CellState::Quoted => self.open_quote("is not closed within 8 MB"),
                    _ => start.failure("this row is longer than 8 MB"),
                });
            }
        }
    }

    /// Ends the last cell of the row that begins at `start`.
    fn complete(&mut self, start: TextPosition) -> TextPosition {
        self.ends.push(self.cells.len());
        self.is_complete = true;
        start
    }

    /// Ends a row that could not be read. An unclosed quote may have extended it over later rows, so it is cut at the
    /// end of its first line.
    fn finish_bad_row(&mut self) -> Result<()> {
        if self.is_complete {
            return Ok(());
        }
        match self.text.iter().position(|byte| matches!(byte, b'\n' | b'\r')) {
            Some(end) => {
                let start = self.positions.first().copied().unwrap_or(TextPosition::START);
                self.scanner.unread(&self.text[end..], start.after(&self.text[..end]));
                self.text.truncate(end);
            }
            None => self.scanner.take_line(&mut self.text, DOCUMENT_BYTES_MAX)?,
        }
        self.is_complete = true;
        Ok(())
    }

    fn skip_blank_lines(&mut self) -> Result<()> {
        loop {
            let ahead = self.scanner.lookahead()?;
            let count = ahead.iter().take_while(|byte| matches!(byte, b'\n' | b'\r')).count();
            let more = count > 0 && count == ahead.len();
            self.scanner.consume(count);
            if !more {
                return Ok(());
            }
        }
    }

    /// A cell of the current row and its position.
    fn cell(&self, column: usize) -> Result<(&str, TextPosition)> {
        let begin = if column == 0 { 0 } else { self.ends[column - 1] };
        let position = self.positions[column];
        match std::str::from_utf8(&self.cells[begin..self.ends[column]]) {
            Ok(cell) => Ok((cell, position)),
            Err(_) => Err(position
                .failure("this cell is not UTF-8")
                .with_hint("convert the file first: iconv -f LATIN1 -t UTF-8 FILE | stemma import DATABASE -")),
        }
    }

    fn open_quote(&self, what: &str) -> Failure {
        let position = self.positions.last().copied().unwrap_or(TextPosition::START);
        position.failure(format!("the quote that opens here {what}"))
    }
}

/// What follows the bytes consumed by [`take_cell`].
enum CellEnd {
    /// The input ran out within the cell.
    Partial(CellState),
    /// A delimiter.
    Cell,
    /// A line end.
    Row,
    /// Text after a closing quote.
    Misplaced,
}

/// Appends the bytes up to the end of the cell or of `bytes`; returns how many were consumed and what follows.
fn take_cell(bytes: &[u8], delimiter: u8, mut state: CellState, into: &mut Vec<u8>) -> (usize, CellEnd) {
    for (at, &byte) in bytes.iter().enumerate() {
        state = match (state, byte) {
            (CellState::Quoted, b'"') => CellState::Closed,
            (CellState::Closed, b'"') => {
                into.push(b'"');
                CellState::Quoted
            }
            (CellState::Start, b'"') => CellState::Quoted,
            (CellState::Quoted, _) => {
                into.push(byte);
                CellState::Quoted
            }
            (_, _) if byte == delimiter => return (at + 1, CellEnd::Cell),
            (_, b'\n' | b'\r') => return (at + 1, CellEnd::Row),
            (CellState::Closed, _) => return (at, CellEnd::Misplaced),
            (_, _) => {
                into.push(byte);
                CellState::Bare
            }
        };
    }
    (bytes.len(), CellEnd::Partial(state))
}
