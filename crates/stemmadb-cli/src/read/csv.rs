//! Documents in a table: the first row names the fields, each further row is a document.
//!
//! RFC 4180, and what people write besides: any delimiter, lines that end in any way, blank lines, a quote within a cell
//! that did not begin with one. Refused, with line and column: a quote never closed or followed by more text, a row of
//! another width than the header, text that is not UTF-8.
//!
//! A cell becomes what it says: `12` an integer, `1.5` and `2e3` floats, `true` and `false` booleans, an empty cell no
//! field at all. What a number would lose stays text: leading zeros and plus signs, more digits than fit.

use super::scan::{Place, Scanner};
use super::{DOCUMENT_BYTES_MAX, Documents, Found, Text, write_string};
use crate::failure::{Failure, Result};

/// A double holds every decimal number of this many digits.
const FLOAT_DIGITS_MAX: usize = 15;

/// The rows of a table.
pub(crate) struct Table {
    rows: Rows,
    header: Vec<Column>,
}

/// A column as the header names it.
struct Column {
    name: String,
    /// Its cells stay text.
    text: bool,
}

impl Table {
    /// The rows of `scanner` below the header that is read now.
    pub(crate) fn new(scanner: Scanner, delimiter: u8, text: &Text) -> Result<Self> {
        let mut rows = Rows { scanner, delimiter, cells: Vec::new(), ends: Vec::new(), places: Vec::new() };
        let mut header: Vec<Column> = Vec::new();
        if rows.next()?.is_some() {
            for column in 0..rows.ends.len() {
                let (name, place) = rows.cell(column)?;
                if name.is_empty() {
                    return Err(place.failure(format!("column {} of the header has no name", column + 1)));
                }
                if header.iter().any(|known| known.name == name) {
                    return Err(place.failure(format!("the header names {name:?} twice")));
                }
                // An id is text, whatever it looks like.
                let text = name == "_id" || *text == Text::All || text.names(name);
                header.push(Column { name: name.to_owned(), text });
            }
        }
        if let Text::Fields(names) = text
            && let Some(unknown) = names.iter().find(|name| header.iter().all(|column| column.name != **name))
        {
            return Err(Failure::usage(format!("--text names {unknown:?}, which the header does not")));
        }
        Ok(Table { rows, header })
    }

    fn check_width(&self, place: Place) -> Result<()> {
        let (width, expected) = (self.rows.ends.len(), self.header.len());
        if width == expected {
            return Ok(());
        }
        let place = self.rows.places.get(expected).copied().unwrap_or(place);
        let cells = if width == 1 { "cell" } else { "cells" };
        Err(place.failure(format!("{width} {cells} in a row, but the header names {expected} fields")))
    }
}

impl Documents for Table {
    fn next(&mut self, into: &mut Vec<u8>) -> Result<Option<Found>> {
        let Some(place) = self.rows.next()? else { return Ok(None) };
        self.check_width(place)?;
        into.push(b'{');
        let mut first = true;
        for (at, column) in self.header.iter().enumerate() {
            let (cell, _) = self.rows.cell(at)?;
            if cell.is_empty() && !column.text {
                continue;
            }
            if !first {
                into.push(b',');
            }
            first = false;
            write_string(&column.name, into);
            into.push(b':');
            if column.text || !says_itself(cell) {
                write_string(cell, into);
            } else {
                into.extend_from_slice(cell.as_bytes());
            }
        }
        into.push(b'}');
        Ok(Some(Found { place, exact: false }))
    }

    fn bytes(&self) -> u64 {
        self.rows.scanner.bytes()
    }
}

impl Text {
    fn names(&self, name: &str) -> bool {
        matches!(self, Text::Fields(names) if names.iter().any(|named| named == name))
    }
}

/// Whether the cell is JSON as it stands: a number that loses nothing, or a boolean.
fn says_itself(cell: &str) -> bool {
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

/// The table as rows of cells.
struct Rows {
    scanner: Scanner,
    delimiter: u8,
    /// The cells of the current row, unquoted, end to end.
    cells: Vec<u8>,
    /// Where each cell ends in `cells`.
    ends: Vec<usize>,
    /// Where each cell begins in the input.
    places: Vec<Place>,
}

#[derive(Clone, Copy, PartialEq)]
enum State {
    CellStart,
    Bare,
    Quoted,
    /// Behind a quote within a quoted cell: its end, or half of a doubled one.
    Closed,
}

impl Rows {
    /// Reads the next row that is not blank; says where it begins.
    fn next(&mut self) -> Result<Option<Place>> {
        self.cells.clear();
        self.ends.clear();
        self.places.clear();
        self.pass_blank_lines()?;
        if self.scanner.peek()?.is_none() {
            return Ok(None);
        }
        let start = self.scanner.place();
        let mut state = State::CellStart;
        self.places.push(start);
        loop {
            let ahead = self.scanner.ahead()?;
            if ahead.is_empty() {
                if state == State::Quoted {
                    return Err(self.open_quote("is never closed"));
                }
                self.ends.push(self.cells.len());
                return Ok(Some(start));
            }
            let (count, next) = take_cell(ahead, self.delimiter, state, &mut self.cells);
            self.scanner.pass(count);
            match next {
                Next::Within(within) => state = within,
                Next::Cell => {
                    self.ends.push(self.cells.len());
                    self.places.push(self.scanner.place());
                    state = State::CellStart;
                }
                Next::Row => {
                    self.ends.push(self.cells.len());
                    return Ok(Some(start));
                }
                Next::Misplaced => {
                    let message = "expected a delimiter or the end of the line after the closing quote";
                    return Err(self.scanner.place().failure(message).with_hint("double a quote within quotes: \"\""));
                }
            }
            if self.cells.len() > DOCUMENT_BYTES_MAX {
                return Err(match state {
                    State::Quoted => self.open_quote("is not closed within 8 MB"),
                    _ => start.failure("this row is longer than 8 MB"),
                });
            }
        }
    }

    fn pass_blank_lines(&mut self) -> Result<()> {
        loop {
            let ahead = self.scanner.ahead()?;
            let count = ahead.iter().take_while(|byte| matches!(byte, b'\n' | b'\r')).count();
            let more = count > 0 && count == ahead.len();
            self.scanner.pass(count);
            if !more {
                return Ok(());
            }
        }
    }

    /// A cell of the current row and its place.
    fn cell(&self, column: usize) -> Result<(&str, Place)> {
        let begin = if column == 0 { 0 } else { self.ends[column - 1] };
        let place = self.places[column];
        match std::str::from_utf8(&self.cells[begin..self.ends[column]]) {
            Ok(cell) => Ok((cell, place)),
            Err(_) => Err(place
                .failure("this cell is not UTF-8")
                .with_hint("convert the file first: iconv -f LATIN1 -t UTF-8 FILE | stemma import DATABASE -")),
        }
    }

    fn open_quote(&self, what: &str) -> Failure {
        let place = self.places.last().copied().unwrap_or(Place::START);
        place.failure(format!("the quote that opens here {what}"))
    }
}

/// What follows the bytes taken.
enum Next {
    Within(State),
    Cell,
    Row,
    Misplaced,
}

/// Takes bytes up to the end of a cell, a row, or of what there is.
fn take_cell(bytes: &[u8], delimiter: u8, mut state: State, into: &mut Vec<u8>) -> (usize, Next) {
    for (at, &byte) in bytes.iter().enumerate() {
        state = match (state, byte) {
            (State::Quoted, b'"') => State::Closed,
            (State::Closed, b'"') => {
                into.push(b'"');
                State::Quoted
            }
            (State::CellStart, b'"') => State::Quoted,
            (State::Quoted, _) => {
                into.push(byte);
                State::Quoted
            }
            (_, _) if byte == delimiter => return (at + 1, Next::Cell),
            (_, b'\n' | b'\r') => return (at + 1, Next::Row),
            (State::Closed, _) => return (at, Next::Misplaced),
            (_, _) => {
                into.push(byte);
                State::Bare
            }
        };
    }
    (bytes.len(), Next::Within(state))
}
