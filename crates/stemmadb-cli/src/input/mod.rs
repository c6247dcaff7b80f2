//! Document readers for `stemma import`.
//!
//! Reads JSON Lines, a JSON array, or CSV with a header row, from a file or standard input. Memory is bounded: one
//! document at a time, none longer than the database accepts. Error messages name line and column. A reader can go on
//! after a malformed document.

mod csv;
mod json;
mod scan;

use std::fs::File;
use std::io::{Cursor, IsTerminal, Read};
use std::path::Path;

pub(crate) use scan::TextPosition;
use scan::{Scanner, Stream};

use stemmadb::{Limits, ParseError, Value};

use crate::failure::{Exit, Failure, Result};

/// Maximum length of a document as text; the database has the same limit.
const DOCUMENT_BYTES_MAX: usize = 8_000_000;

/// Reads documents one at a time.
pub(crate) trait DocumentReader: Send {
    /// Appends the JSON text of the next document to `into`; returns `None` at the end of the input.
    fn next(&mut self, into: &mut Vec<u8>) -> Result<Option<DocumentOrigin>>;

    /// After [`DocumentReader::next`] failed: skips the malformed document and sets `text` to its text, if it has any.
    /// Returns false if reading can't go on.
    fn recover(&mut self, text: &mut Vec<u8>) -> Result<bool>;

    /// Reports that the last document is malformed. A reader that took more than one document for it returns the others
    /// to the input and cuts `text`.
    fn refuse(&mut self, _text: &mut Vec<u8>) {}

    /// The text of the last document in the input, if [`DocumentReader::next`] translated it to JSON.
    fn original(&self) -> Option<&[u8]> {
        None
    }

    /// The line without which the texts of documents can't be read again.
    fn header(&self) -> Option<&[u8]> {
        None
    }

    /// The number of input bytes consumed so far.
    fn bytes_read(&self) -> u64;
}

/// Where a document comes from, for error messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DocumentOrigin {
    /// The position of its first character.
    pub(crate) position: TextPosition,
    /// Whether the document's text is copied verbatim from the input, so that offsets in it map to input positions.
    pub(crate) is_verbatim: bool,
}

/// Input formats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum InputFormat {
    /// JSON objects in sequence, usually one per line
    Jsonl,
    /// One JSON array of objects
    Array,
    /// Comma-separated values; the first row has the field names
    Csv,
    /// Tab-separated values; the first row has the field names
    Tsv,
}

/// Options of the readers.
#[derive(Debug, Clone, Default)]
pub(crate) struct InputOptions {
    /// The format; detected if `None`.
    pub(crate) format: Option<InputFormat>,
    /// The path of field names to the array of documents within an outer object.
    pub(crate) array_path: Vec<String>,
    /// The delimiter of CSV cells.
    pub(crate) delimiter: Option<u8>,
    /// CSV columns to read as text.
    pub(crate) text_columns: TextColumns,
    /// Prepare for malformed documents: keep the original texts, and read each line of JSON Lines as one document, even
    /// if it is malformed. Otherwise an object may span lines.
    pub(crate) skips_bad: bool,
}

/// Which CSV cells are read as text without type inference.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum TextColumns {
    /// Only cells whose text a number would not preserve, such as 007.
    #[default]
    Inferred,
    /// Also all cells of these columns.
    Named(Vec<String>),
    /// All cells.
    All,
}

/// An opened input file or standard input.
pub(crate) struct Source {
    input: Stream,
    /// The name for messages.
    pub(crate) name: String,
    /// The length in bytes, unless it is a pipe.
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
            Failure::new(exit, format!("cannot read {name}: {}", io_error_text(&error)))
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

    /// Reads the first bytes; returns what distinguishes this input from others.
    pub(crate) fn identify(&mut self) -> Result<InputIdentity> {
        let mut head = Vec::new();
        let input = std::mem::replace(&mut self.input, Box::new(std::io::empty()));
        let mut head_input = input.take(IDENTITY_BYTES);
        head_input
            .read_to_end(&mut head)
            .map_err(|error| Failure::new(Exit::Unavailable, format!("cannot read {}: {error}", self.name)))?;
        let identity = InputIdentity {
            name: Path::new(&self.name)
                .file_name()
                .map_or_else(String::new, |name| name.to_string_lossy().into_owned()),
            bytes: self.bytes,
            hash: fnv_1a(&head),
        };
        self.input = Box::new(Cursor::new(head).chain(head_input.into_inner()));
        Ok(identity)
    }

    /// The raw bytes.
    pub(crate) fn content(self) -> impl Read {
        self.input
    }

    /// Reads everything, up to the maximum length of one document.
    pub(crate) fn text(self) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.input
            .take(DOCUMENT_BYTES_MAX as u64 + 1)
            .read_to_end(&mut bytes)
            .map_err(|error| Failure::new(Exit::Unavailable, format!("cannot read {}: {error}", self.name)))?;
        Ok(bytes)
    }

    /// Starts reading documents. Failures name the position; the caller adds the name of the input.
    pub(crate) fn documents(self, options: &InputOptions) -> Result<Box<dyn DocumentReader>> {
        documents(self, options)
    }
}

/// The number of bytes at the beginning of an input that identify it.
const IDENTITY_BYTES: u64 = 4096;

/// What distinguishes an input from others: its file name, its size, and a hash of its first bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct InputIdentity {
    /// The name without directories.
    pub(crate) name: String,
    /// The length in bytes, unless it is a pipe.
    pub(crate) bytes: Option<u64>,
    /// The hash of the first bytes.
    pub(crate) hash: u64,
}

/// The FNV-1a hash of `bytes`, which is the same in all versions.
pub(crate) fn fnv_1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

fn documents(source: Source, options: &InputOptions) -> Result<Box<dyn DocumentReader>> {
    let mut scanner = Scanner::new(source.input)?;
    scanner.skip_byte_order_mark()?;
    if !options.array_path.is_empty() {
        return Ok(Box::new(json::JsonArray::at_path(scanner, &options.array_path)?));
    }
    let format = match options.format {
        Some(format) => format,
        None => detect_format(source.extension.as_deref(), &mut scanner)?,
    };
    let chosen = options.delimiter.or((options.format == Some(InputFormat::Tsv)).then_some(b'\t'));
    Ok(match format {
        InputFormat::Jsonl => Box::new(json::JsonLines::new(scanner, options.skips_bad)),
        InputFormat::Array => Box::new(json::JsonArray::new(scanner)),
        InputFormat::Csv | InputFormat::Tsv => {
            let delimiter = match chosen {
                Some(delimiter) => delimiter,
                None => csv::detect_delimiter(&mut scanner, if format == InputFormat::Tsv { b'\t' } else { b',' })?,
            };
            Box::new(csv::CsvTable::new(scanner, delimiter, options)?)
        }
    })
}

/// Detects the format from the file extension, otherwise from the first non-whitespace byte.
fn detect_format(extension: Option<&str>, scanner: &mut Scanner) -> Result<InputFormat> {
    match extension {
        Some("csv") => return Ok(InputFormat::Csv),
        Some("tsv" | "tab") => return Ok(InputFormat::Tsv),
        _ => {}
    }
    let has_json_extension = matches!(extension, Some("json" | "jsonl" | "ndjson"));
    let first = scanner.lookahead()?.iter().copied().find(|byte| !byte.is_ascii_whitespace());
    match first {
        Some(b'[') => Ok(InputFormat::Array),
        Some(b'{') | None => Ok(InputFormat::Jsonl),
        Some(_) if has_json_extension => Ok(InputFormat::Jsonl),
        Some(_) => Ok(InputFormat::Csv),
    }
}

/// Describes an I/O error without its error number.
fn io_error_text(error: &std::io::Error) -> String {
    use std::io::ErrorKind as Io;
    match error.kind() {
        Io::NotFound => "there is no such file".to_owned(),
        Io::PermissionDenied => "permission denied".to_owned(),
        _ => error.to_string(),
    }
}

/// Parses a document. A failure names the position in the input; the caller adds the file name.
pub(crate) fn parse(text: &[u8], origin: DocumentOrigin) -> Result<Value> {
    // A document that is too long often has an unclosed bracket: a syntax error then gives the better message.
    let limits = Limits { bytes: usize::MAX, ..Limits::default() };
    let too_long = text.len() > DOCUMENT_BYTES_MAX;
    let error = match Value::parse_with(text, &limits) {
        Ok(value) if !too_long => return Ok(value),
        Ok(_) => return Err(refuse_length(origin)),
        Err(error) => error,
    };
    let Some(parse) = ParseError::of(&error) else { return Err(Failure::from(error).with_context(origin.position)) };
    if too_long && parse.is_incomplete() {
        return Err(refuse_length(origin));
    }
    let before = text.get(..parse.position()).unwrap_or(text);
    let position = if origin.is_verbatim { origin.position.after(before) } else { origin.position };
    let failure = position.failure(parse.message());
    Err(match parse.hint() {
        Some(hint) => failure.with_hint(hint),
        None => failure,
    })
}

fn refuse_length(origin: DocumentOrigin) -> Failure {
    origin.position.failure("the document that begins here is longer than 8 MB")
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
