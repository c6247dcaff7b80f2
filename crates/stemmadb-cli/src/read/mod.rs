//! Which documents stand in this file?
//!
//! JSON Lines, one JSON array or a table with a header row, from a file or standard input, each in bounded memory: one
//! document at a time, none longer than the database takes. Every refusal names its line and column.

mod csv;
mod json;
mod scan;

use std::fs::File;
use std::io::{IsTerminal, Read};
use std::path::Path;

pub(crate) use scan::Place;
use scan::{Input, Scanner};

use stemmadb::{Limits, ParseError, Value};

use crate::failure::{Exit, Failure, Result};

/// No document is longer than this as text: the database's own limit.
const DOCUMENT_BYTES_MAX: usize = 8_000_000;

/// Documents one after the other.
pub(crate) trait Documents: Send {
    /// Appends the JSON text of the next document to `into`, or says that there is none.
    fn next(&mut self, into: &mut Vec<u8>) -> Result<Option<Found>>;

    /// How many bytes of the input were passed.
    fn bytes(&self) -> u64;
}

/// Where a document was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Found {
    /// Where it begins.
    pub(crate) place: Place,
    /// Whether its text is the input's own, so that a byte in it has a place in the input.
    pub(crate) exact: bool,
}

/// How documents are written down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// One JSON object after the other, usually one a line
    Jsonl,
    /// One JSON array of objects
    Array,
    /// Comma-separated, the first row names the fields
    Csv,
    /// Tab-separated, the first row names the fields
    Tsv,
}

/// How the input is to be read.
#[derive(Debug, Clone, Default)]
pub(crate) struct Reading {
    /// The format, where it is not to be guessed.
    pub(crate) format: Option<Format>,
    /// The names of the fields that lead to the array of documents within an outer object.
    pub(crate) inside: Vec<String>,
    /// What separates the cells of a table.
    pub(crate) delimiter: Option<u8>,
    /// Cells that stay text, whatever they look like.
    pub(crate) text: Text,
}

/// Which cells of a table stay text, whatever they look like.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum Text {
    /// Those that a number would change.
    #[default]
    AsNeeded,
    /// Those of these fields too.
    Fields(Vec<String>),
    /// All.
    All,
}

/// What is read, and how long it is if that is known.
pub(crate) struct Source {
    input: Input,
    /// The name people know it by.
    pub(crate) name: String,
    /// Its length, unless it is a pipe.
    pub(crate) bytes: Option<u64>,
    extension: Option<String>,
}

impl Source {
    /// Opens the file at `path`, or standard input for `-`.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        if path == Path::new("-") {
            return Self::standard_input();
        }
        let name = path.display().to_string();
        let fault = |error: std::io::Error| {
            let exit = if error.kind() == std::io::ErrorKind::NotFound { Exit::Usage } else { Exit::Unavailable };
            Failure::new(exit, format!("cannot read {name}: {}", plain(&error)))
        };
        let file = File::open(path).map_err(fault)?;
        let metadata = file.metadata().map_err(fault)?;
        if metadata.is_dir() {
            return Err(Failure::usage(format!("cannot read {name}: it is a directory")));
        }
        let extension = path.extension().map(|extension| extension.to_string_lossy().to_lowercase());
        let bytes = metadata.is_file().then_some(metadata.len());
        Ok(Source { input: Box::new(file), name, bytes, extension })
    }

    fn standard_input() -> Result<Self> {
        if std::io::stdin().is_terminal() {
            return Err(Failure::usage("nothing to read: standard input is the terminal")
                .with_hint("name a file, or pipe something in"));
        }
        Ok(Source {
            input: Box::new(std::io::stdin()),
            name: "standard input".to_owned(),
            bytes: None,
            extension: None,
        })
    }

    /// Its bytes, whatever they are.
    pub(crate) fn content(self) -> impl Read {
        self.input
    }

    /// Everything there is, which is one document at most.
    pub(crate) fn text(self) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.input
            .take(DOCUMENT_BYTES_MAX as u64 + 1)
            .read_to_end(&mut bytes)
            .map_err(|error| Failure::new(Exit::Unavailable, format!("cannot read {}: {error}", self.name)))?;
        Ok(bytes)
    }

    /// The documents in it. Failures name the place in it; its name is for the caller to add.
    pub(crate) fn documents(self, reading: &Reading) -> Result<Box<dyn Documents>> {
        documents(self, reading)
    }
}

fn documents(source: Source, reading: &Reading) -> Result<Box<dyn Documents>> {
    let mut scanner = Scanner::new(source.input)?;
    scanner.pass_mark()?;
    if !reading.inside.is_empty() {
        return Ok(Box::new(json::Array::inside(scanner, &reading.inside)?));
    }
    let format = match reading.format {
        Some(format) => format,
        None => detect(source.extension.as_deref(), &mut scanner)?,
    };
    let delimiter = reading.delimiter.unwrap_or(if format == Format::Tsv { b'\t' } else { b',' });
    Ok(match format {
        Format::Jsonl => Box::new(json::Sequence::new(scanner)),
        Format::Array => Box::new(json::Array::new(scanner)),
        Format::Csv | Format::Tsv => Box::new(csv::Table::new(scanner, delimiter, &reading.text)?),
    })
}

/// The format by the name's ending, else by the first byte that is not white space.
fn detect(extension: Option<&str>, scanner: &mut Scanner) -> Result<Format> {
    match extension {
        Some("csv") => return Ok(Format::Csv),
        Some("tsv" | "tab") => return Ok(Format::Tsv),
        _ => {}
    }
    let named_json = matches!(extension, Some("json" | "jsonl" | "ndjson"));
    let first = scanner.ahead()?.iter().copied().find(|byte| !byte.is_ascii_whitespace());
    match first {
        Some(b'[') => Ok(Format::Array),
        Some(b'{') | None => Ok(Format::Jsonl),
        Some(_) if named_json => Ok(Format::Jsonl),
        Some(_) => Ok(Format::Csv),
    }
}

/// What the operating system says, without its number.
fn plain(error: &std::io::Error) -> String {
    use std::io::ErrorKind as Io;
    match error.kind() {
        Io::NotFound => "there is no such file".to_owned(),
        Io::PermissionDenied => "permission denied".to_owned(),
        _ => error.to_string(),
    }
}

/// The value of a document's text; a failure names the place in the input, and the file is for the caller to add.
pub(crate) fn parse(text: &[u8], found: Found) -> Result<Value> {
    // A document that is too long is often one whose bracket was never closed: the grammar tells where.
    let limits = Limits { bytes: usize::MAX, ..Limits::default() };
    let too_long = text.len() > DOCUMENT_BYTES_MAX;
    let error = match Value::parse_with(text, &limits) {
        Ok(value) if !too_long => return Ok(value),
        Ok(_) => return Err(refuse_length(found)),
        Err(error) => error,
    };
    let Some(parse) = ParseError::of(&error) else { return Err(Failure::from(error).within(found.place)) };
    if too_long && parse.is_incomplete() {
        return Err(refuse_length(found));
    }
    let before = text.get(..parse.position()).unwrap_or(text);
    let place = if found.exact { found.place.after(before) } else { found.place };
    let failure = place.failure(parse.message());
    Err(match parse.hint() {
        Some(hint) => failure.with_hint(hint),
        None => failure,
    })
}

fn refuse_length(found: Found) -> Failure {
    found.place.failure("the document that begins here is longer than 8 MB")
}

/// Appends `text` as a JSON string.
fn write_string(text: &str, into: &mut Vec<u8>) {
    into.push(b'"');
    for &byte in text.as_bytes() {
        match byte {
            b'"' => into.extend_from_slice(b"\\\""),
            b'\\' => into.extend_from_slice(b"\\\\"),
            0..0x20 => into.extend_from_slice(format!("\\u{byte:04x}").as_bytes()),
            _ => into.push(byte),
        }
    }
    into.push(b'"');
}

#[cfg(test)]
mod tests;
