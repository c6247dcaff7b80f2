//! JSON readers: a sequence of objects (JSON Lines, or objects that span lines), or the elements of one array, which
//! may be nested in an outer object.

use super::scan::{Scanner, TextPosition};
use super::{DOCUMENT_BYTES_MAX, DocumentOrigin, DocumentReader};
use crate::failure::{Failure, Result};

/// Maximum length of a field name in an outer object.
const NAME_BYTES_MAX: usize = 64 << 10;

/// Reads a sequence of JSON objects.
pub(crate) struct JsonLines {
    scanner: Scanner,
    by_line: bool,
}

impl JsonLines {
    /// Reads the objects from `scanner`.
    pub(crate) fn new(scanner: Scanner, by_line: bool) -> Self {
        JsonLines { scanner, by_line }
    }
}

impl DocumentReader for JsonLines {
    fn next(&mut self, into: &mut Vec<u8>) -> Result<Option<DocumentOrigin>> {
        self.scanner.skip_whitespace()?;
        if self.scanner.peek()?.is_none() {
            return Ok(None);
        }
        if self.by_line {
            let position = self.scanner.position();
            self.scanner.take_line(into, DOCUMENT_BYTES_MAX)?;
            return Ok(Some(DocumentOrigin { position, is_verbatim: true }));
        }
        take_object(&mut self.scanner, into).map(Some)
    }

    fn recover(&mut self, _text: &mut Vec<u8>) -> Result<bool> {
        Ok(false)
    }

    fn bytes_read(&self) -> u64 {
        self.scanner.bytes_read()
    }
}

/// Reads the elements of one JSON array.
pub(crate) struct JsonArray {
    scanner: Scanner,
    state: ArrayState,
    /// Whether the array is nested in an outer object, whose remaining text is skipped.
    nested: bool,
    /// Where the last element begins.
    element: TextPosition,
}

#[derive(Clone, Copy, PartialEq)]
enum ArrayState {
    Unopened,
    Opened,
    Between,
    Closed,
}

impl JsonArray {
    /// Reads the array that begins at `scanner`.
    pub(crate) fn new(scanner: Scanner) -> Self {
        JsonArray { scanner, state: ArrayState::Unopened, nested: false, element: TextPosition::START }
    }

    /// Reads the array at the path `names` in the object that begins at `scanner`.
    pub(crate) fn at_path(mut scanner: Scanner, names: &[String]) -> Result<Self> {
        for name in names {
            enter_field(&mut scanner, name)?;
        }
        Ok(JsonArray { scanner, state: ArrayState::Unopened, nested: true, element: TextPosition::START })
    }

    fn open(&mut self) -> Result<()> {
        self.scanner.skip_whitespace()?;
        if self.scanner.peek()? != Some(b'[') {
            return Err(unexpected(&mut self.scanner, "an array of documents"));
        }
        self.scanner.consume(1);
        self.state = ArrayState::Opened;
        Ok(())
    }

    fn close(&mut self) -> Result<()> {
        self.scanner.consume(1);
        self.state = ArrayState::Closed;
        if self.nested {
            return self.scanner.skip_to_end();
        }
        self.scanner.skip_whitespace()?;
        match self.scanner.peek()? {
            None => Ok(()),
            Some(_) => Err(self.scanner.position().failure("unexpected text after the end of the array")),
        }
    }
}

impl DocumentReader for JsonArray {
    fn next(&mut self, into: &mut Vec<u8>) -> Result<Option<DocumentOrigin>> {
        if self.state == ArrayState::Unopened {
            self.open()?;
        }
        if self.state == ArrayState::Closed {
            return Ok(None);
        }
        self.scanner.skip_whitespace()?;
        match (self.state, self.scanner.peek()?) {
            (_, Some(b']')) => {
                self.close()?;
                return Ok(None);
            }
            (ArrayState::Between, Some(b',')) => {
                self.scanner.consume(1);
                self.scanner.skip_whitespace()?;
            }
            (ArrayState::Between, _) => return Err(unexpected(&mut self.scanner, "a comma or the end of the array")),
            _ => {}
        }
        self.state = ArrayState::Between;
        self.element = self.scanner.position();
        take_object(&mut self.scanner, into).map(Some)
    }

    /// Skips to the next comma, the end of the array, or what looks like an element.
    fn recover(&mut self, text: &mut Vec<u8>) -> Result<bool> {
        text.clear();
        if matches!(self.state, ArrayState::Unopened | ArrayState::Closed) || self.scanner.peek()?.is_none() {
            return Ok(false);
        }
        while text.len() <= DOCUMENT_BYTES_MAX {
            match self.scanner.peek()? {
                None | Some(b',' | b']') => return Ok(true),
                Some(b'{') => {
                    self.state = ArrayState::Opened;
                    return Ok(true);
                }
                Some(b'}') => {
                    text.push(b'}');
                    self.scanner.consume(1);
                }
                Some(_) => self.scanner.take_value(text, DOCUMENT_BYTES_MAX)?,
            }
            self.scanner.skip_whitespace()?;
        }
        Ok(false)
    }

    /// An element with an unclosed bracket extends over later ones. It is cut at the next line that begins with an
    /// object and is indented as the element is.
    fn refuse(&mut self, text: &mut Vec<u8>) {
        let indent = self.element.column as usize - 1;
        let begins_element = |line: &[u8]| {
            line.get(indent) == Some(&b'{') && line[..indent].iter().all(|byte| matches!(byte, b' ' | b'\t'))
        };
        let line_ends = text.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at);
        let Some(end) = line_ends.into_iter().find(|end| begins_element(&text[end + 1..])) else { return };
        self.scanner.unread(&text[end + 1..], self.element.after(&text[..=end]));
        self.state = ArrayState::Opened;
        text.truncate(end);
        while text.last().is_some_and(|byte| *byte == b',' || byte.is_ascii_whitespace()) {
            text.pop();
        }
    }

    fn bytes_read(&self) -> u64 {
        self.scanner.bytes_read()
    }
}

/// Reads the object that begins here.
fn take_object(scanner: &mut Scanner, into: &mut Vec<u8>) -> Result<DocumentOrigin> {
    let position = scanner.position();
    if scanner.peek()? != Some(b'{') {
        return Err(unexpected(scanner, "a document"));
    }
    scanner.take_value(into, DOCUMENT_BYTES_MAX)?;
    Ok(DocumentOrigin { position, is_verbatim: true })
}

/// Skips to the value of the field `name` in the object that begins here.
fn enter_field(scanner: &mut Scanner, name: &str) -> Result<()> {
    scanner.skip_whitespace()?;
    let position = scanner.position();
    if scanner.peek()? != Some(b'{') {
        return Err(unexpected(scanner, &format!("an object with the field {name:?}")));
    }
    scanner.consume(1);
    let mut quoted = Vec::new();
    super::write_string(name, &mut quoted);
    let mut key = Vec::new();
    loop {
        scanner.skip_whitespace()?;
        match scanner.peek()? {
            Some(b'"') => {}
            Some(b'}') => return Err(position.failure(format!("this object has no field {name:?}"))),
            _ => return Err(unexpected(scanner, "a field")),
        }
        key.clear();
        scanner.take_value(&mut key, NAME_BYTES_MAX)?;
        scanner.skip_whitespace()?;
        if scanner.peek()? != Some(b':') {
            return Err(unexpected(scanner, "a colon"));
        }
        scanner.consume(1);
        scanner.skip_whitespace()?;
        if key == quoted {
            return Ok(());
        }
        scanner.skip_value()?;
        scanner.skip_whitespace()?;
        match scanner.peek()? {
            Some(b',') => scanner.consume(1),
            Some(b'}') => {}
            _ => return Err(unexpected(scanner, "a comma or the end of the object")),
        }
    }
}

/// A failure that names what was `expected` at this position and what was found instead.
fn unexpected(scanner: &mut Scanner, expected: &str) -> Failure {
    let position = scanner.position();
    let found = match scanner.lookahead() {
        Ok([]) => "the end of the input".to_owned(),
        Ok([b'{', ..]) => "an object".to_owned(),
        Ok([b'[', ..]) => "an array".to_owned(),
        Ok([b'"', ..]) => "a string".to_owned(),
        Ok([b'0'..=b'9' | b'-', ..]) => "a number".to_owned(),
        Ok(ahead) => match String::from_utf8_lossy(&ahead[..ahead.len().min(4)]).chars().next() {
            Some(character) => format!("{character:?}"),
            None => "something else".to_owned(),
        },
        Err(failure) => return failure,
    };
    let failure = position.failure(format!("expected {expected}, found {found}"));
    if expected.contains("document") {
        return failure.with_hint("a document is a JSON object: {\"field\": value, …}");
    }
    failure
}
