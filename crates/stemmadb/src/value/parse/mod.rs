//! Single-pass JSON parser: strict RFC 8259, bounded in bytes, nodes and depth.
//!
//! Beyond the grammar it rejects input that would not survive a round trip or that parsers interpret differently:
//! duplicate names in one object (escapes resolved), invalid UTF-8, a byte order mark, lone surrogates, numbers too
//! large for a double (`1e400`), and integers outside -2^63 to 2^64 - 1 that would lose digits as a double. Such an
//! integer is parsed as a double if it equals one exactly, or if JavaScript prints a double that way
//! (`100000000000000000000`). `-0` is the double `-0.0`. A fraction becomes the nearest double.
//!
//! Memory: about 32 bytes per element, 56 per field, and the text of names and strings once; the node limit bounds it.

mod number;
mod text;

use std::borrow::Cow;
use std::fmt;

use super::limits::{too_deep, too_many_nodes};
use super::object::{INDEX_FROM, Name, NameIndex};
use super::{Limits, Object, Value};
use crate::{Error, Result};

/// The reason why a text is not an acceptable JSON value, and the position of the error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParseError {
    position: usize,
    message: Cow<'static, str>,
    hint: Option<&'static str>,
    is_incomplete: bool,
}

impl ParseError {
    /// The byte offset of the error; the length of the text if it ends too early.
    pub fn position(&self) -> usize {
        self.position
    }

    /// The description of the error, without the position.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// A one-line suggestion for fixing the error, if there is one.
    pub fn hint(&self) -> Option<&str> {
        self.hint
    }

    /// Whether the text ended too early, so that more text could complete it.
    pub fn is_incomplete(&self) -> bool {
        self.is_incomplete
    }

    /// Line and column of the error in `text`, the text that was parsed. Both count from 1; the column counts
    /// characters.
    pub fn line_and_column(&self, text: &[u8]) -> (usize, usize) {
        let before = &text[..self.position.min(text.len())];
        let line_start = before.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
        let line = before.iter().filter(|&&byte| byte == b'\n').count() + 1;
        let column = before[line_start..].iter().filter(|&&byte| byte & 0xC0 != 0x80).count() + 1;
        (line, column)
    }

    /// The parse error that caused `error`, if one did.
    pub fn of(error: &Error) -> Option<&ParseError> {
        std::error::Error::source(error)?.downcast_ref()
    }
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at byte {}", self.message, self.position)
    }
}

impl std::error::Error for ParseError {}

impl From<ParseError> for Error {
    fn from(parse: ParseError) -> Self {
        let error = Error::invalid(parse.to_string());
        let error = match parse.hint {
            Some(hint) => error.with_hint(hint),
            None => error,
        };
        error.with_source(parse)
    }
}

impl Value {
    /// Parses a JSON text, within the default [`Limits`].
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) with the byte position in its message; [`ParseError::of`] returns it as a
    /// number.
    pub fn parse(text: impl AsRef<[u8]>) -> Result<Value> {
        Self::parse_with(text, &Limits::default())
    }

    /// Parses a JSON text, within `limits`.
    ///
    /// # Errors
    /// As [`Value::parse`].
    pub fn parse_with(text: impl AsRef<[u8]>, limits: &Limits) -> Result<Value> {
        Ok(parse_whole(text.as_ref(), limits).map_err(|error| *error)?)
    }

    /// Parses the value at the beginning of `text` and returns it with its length in bytes: for texts of several
    /// values.
    ///
    /// A number that extends to the end of `text` is taken as complete. The cost depends on the value only, not on the
    /// text after it.
    ///
    /// # Errors
    /// As [`Value::parse`]; [`ParseError::is_incomplete`] returns whether more text could complete the value.
    pub fn parse_prefix(text: impl AsRef<[u8]>, limits: &Limits) -> Result<(Value, usize)> {
        Ok(parse_first(text.as_ref(), limits).map_err(|error| *error)?)
    }
}

/// The length of the prefix that is tried first for the first value of a text; it is quadrupled if the value is longer.
const FIRST_PREFIX_BYTES: usize = 4096;

fn parse_first(text: &[u8], limits: &Limits) -> Parsed<(Value, usize)> {
    let most = text.len().min(limits.bytes);
    let mut length = FIRST_PREFIX_BYTES.min(most);
    loop {
        match parse_at_front(&text[..length], limits) {
            Ok((_, end)) if end == length && length < most => {}
            Err(error) if error.is_incomplete && length < most => {}
            Err(error) if error.is_incomplete && most < text.len() => return Err(too_many_bytes(limits)),
            result => return result,
        }
        length = length.saturating_mul(4).min(most);
    }
}

/// Parses the value at the front of `text`, which may be cut anywhere.
fn parse_at_front(text: &[u8], limits: &Limits) -> Parsed<(Value, usize)> {
    let (text, has_invalid_utf8) = match std::str::from_utf8(text) {
        Ok(text) => (text, false),
        Err(error) => {
            (std::str::from_utf8(&text[..error.valid_up_to()]).unwrap_or_default(), error.error_len().is_some())
        }
    };
    let mut parser = Parser::new(text, limits)?;
    match parser.value(limits.depth()) {
        Ok(value) => Ok((value, parser.at)),
        Err(error) if error.is_incomplete && has_invalid_utf8 => Err(fail(text.len(), "invalid UTF-8", None)),
        Err(error) => Err(error),
    }
}

fn parse_whole(text: &[u8], limits: &Limits) -> Parsed<Value> {
    if text.len() > limits.bytes {
        return Err(too_many_bytes(limits));
    }
    // The whole text is validated as UTF-8 here, so the parser may work on bytes and slice at character boundaries.
    let text = std::str::from_utf8(text).map_err(|error| {
        let mut failure = fail(error.valid_up_to(), "invalid UTF-8", None);
        failure.is_incomplete = error.error_len().is_none();
        failure
    })?;
    let mut parser = Parser::new(text, limits)?;
    let value = parser.value(limits.depth())?;
    parser.skip_blanks();
    match parser.peek() {
        None => Ok(value),
        Some(_) => Err(parser.unexpected("the end of the text after one value")),
    }
}

type Parsed<T> = Result<T, Box<ParseError>>;

#[cold]
fn fail(position: usize, message: impl Into<Cow<'static, str>>, hint: Option<&'static str>) -> Box<ParseError> {
    Box::new(ParseError { position, message: message.into(), hint, is_incomplete: false })
}

/// Parser state. Elements and fields of all open containers share two stacks, so that a finished container is allocated
/// once, at its exact size.
struct Parser<'a> {
    text: &'a str,
    bytes: &'a [u8],
    at: usize,
    nodes_left: usize,
    limits: &'a Limits,
    elements: Vec<Value>,
    fields: Vec<(Name, Value)>,
}

impl<'a> Parser<'a> {
    fn new(text: &'a str, limits: &'a Limits) -> Parsed<Self> {
        if text.starts_with('\u{FEFF}') {
            return Err(fail(0, "a byte order mark before the value", Some("save the text as UTF-8 without it")));
        }
        let bytes = text.as_bytes();
        Ok(Parser {
            text,
            bytes,
            at: 0,
            nodes_left: limits.nodes,
            limits,
            elements: Vec::new(),
            fields: Vec::with_capacity(16),
        })
    }

    #[inline]
    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    #[inline]
    fn skip_blanks(&mut self) {
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.peek() {
            self.at += 1;
        }
    }

    /// Skips blanks and returns the next byte without consuming it.
    #[inline]
    fn next_token(&mut self) -> Option<u8> {
        match self.peek() {
            Some(byte) if byte > b' ' => Some(byte),
            _ => {
                self.skip_blanks();
                self.peek()
            }
        }
    }

    fn value(&mut self, depth_left: usize) -> Parsed<Value> {
        let Some(byte) = self.next_token() else { return Err(self.unexpected("a value")) };
        match self.nodes_left.checked_sub(1) {
            Some(left) => self.nodes_left = left,
            None => return Err(self.limit_exceeded(too_many_nodes(self.limits))),
        }
        match byte {
            b'"' => Ok(Value::String(self.string()?)),
            b'{' => self.object(depth_left),
            b'[' => self.array(depth_left),
            b'-' | b'0'..=b'9' => Ok(Value::Number(self.number()?)),
            b't' => self.word("true", Value::Bool(true)),
            b'f' => self.word("false", Value::Bool(false)),
            b'n' => self.word("null", Value::Null),
            _ => Err(self.unexpected("a value")),
        }
    }

    fn word(&mut self, word: &'static str, value: Value) -> Parsed<Value> {
        for (offset, &expected) in word.as_bytes().iter().enumerate() {
            if self.bytes.get(self.at + offset) != Some(&expected) {
                self.at += offset;
                return Err(self.unexpected(&format!("`{word}`")));
            }
        }
        self.at += word.len();
        Ok(value)
    }

    fn array(&mut self, depth_left: usize) -> Parsed<Value> {
        let Some(depth_left) = depth_left.checked_sub(1) else {
            return Err(self.limit_exceeded(too_deep(self.limits)));
        };
        self.at += 1;
        let first = self.elements.len();
        if self.next_token() == Some(b']') {
            self.at += 1;
            return Ok(Value::Array(Vec::new()));
        }
        loop {
            let element = self.value(depth_left)?;
            if self.elements.len() == self.elements.capacity() {
                grow_stack(&mut self.elements, self.at, self.bytes.len(), self.nodes_left);
            }
            self.elements.push(element);
            match self.next_token() {
                Some(b',') => self.at += 1,
                Some(b']') => break,
                _ => return Err(self.unexpected("`,` or `]`")),
            }
        }
        self.at += 1;
        Ok(Value::Array(take_from(&mut self.elements, first)))
    }

    fn object(&mut self, depth_left: usize) -> Parsed<Value> {
        let Some(depth_left) = depth_left.checked_sub(1) else {
            return Err(self.limit_exceeded(too_deep(self.limits)));
        };
        self.at += 1;
        if self.next_token() == Some(b'}') {
            self.at += 1;
            return Ok(Value::Object(Object::new()));
        }
        let mut names = ObjectNames { first: self.fields.len(), filter: 0, index: None };
        loop {
            let field = self.field(&names, depth_left)?;
            if self.fields.len() == self.fields.capacity() {
                grow_stack(&mut self.fields, self.at, self.bytes.len(), self.nodes_left);
            }
            self.fields.push(field);
            names.add_last(&self.fields);
            match self.next_token() {
                Some(b',') => self.at += 1,
                Some(b'}') => break,
                _ => return Err(self.unexpected("`,` or `}`")),
            }
        }
        self.at += 1;
        Ok(Value::Object(Object::from_unique(take_from(&mut self.fields, names.first), names.index)))
    }

    fn field(&mut self, names: &ObjectNames, depth_left: usize) -> Parsed<(Name, Value)> {
        if self.next_token() != Some(b'"') {
            return Err(self.unexpected("a field's name in double quotes"));
        }
        let name_at = self.at;
        let name: Name = self.string()?;
        if names.contains(&name, &self.fields) {
            return Err(duplicate(name_at, &name));
        }
        if self.next_token() != Some(b':') {
            return Err(self.unexpected("`:` after the field's name"));
        }
        self.at += 1;
        let value = self.value(depth_left)?;
        Ok((name, value))
    }

    #[cold]
    fn limit_exceeded(&self, message: String) -> Box<ParseError> {
        fail(self.at, message, Some("split the document, or raise the limit"))
    }

    #[cold]
    fn unexpected(&self, expected: &str) -> Box<ParseError> {
        let message = match self.text.get(self.at..).and_then(|rest| rest.chars().next()) {
            None => format!("expected {expected}, found the end of the text"),
            Some(found) if found.is_control() => format!("expected {expected}, found U+{:04X}", found as u32),
            Some(found) => format!("expected {expected}, found `{found}`"),
        };
        let mut failure = fail(self.at, message, None);
        failure.is_incomplete = self.at >= self.bytes.len();
        failure
    }
}

#[cold]
fn too_many_bytes(limits: &Limits) -> Box<ParseError> {
    let message = format!("more than {} bytes in one document", limits.bytes);
    fail(limits.bytes, message, Some("split the document, or raise the limit of bytes"))
}

#[cold]
fn duplicate(at: usize, name: &str) -> Box<ParseError> {
    let shown: String = name.chars().take(60).collect();
    fail(at, format!("the field {shown:?} is given twice in one object"), Some("keep one of the two"))
}

/// Stacks with at least this many entries are large: growing or copying them must not double their memory.
const LARGE_COUNT: usize = 4096;

/// Grows a full stack. A large stack grows once, to the size that the rest of the text needs at the density seen so
/// far, because repeated doubling would waste up to as much memory as the stack holds.
#[cold]
fn grow_stack<T>(stack: &mut Vec<T>, at: usize, length: usize, nodes_left: usize) {
    let count = stack.len();
    if count < LARGE_COUNT {
        return stack.reserve(1);
    }
    let expected = count as u128 * (length - at) as u128 / at.max(1) as u128;
    let more = usize::try_from(expected + expected / 8).unwrap_or(usize::MAX).max(count);
    stack.reserve_exact(more.min(nodes_left.saturating_add(1)));
}

/// Moves the elements of `stack` from `first` on into a vector of exact size.
fn take_from<T>(stack: &mut Vec<T>, first: usize) -> Vec<T> {
    debug_assert!(first <= stack.len(), "an inner container leaves the entries of outer ones on the stack");
    if first > 0 && stack.len() - first < LARGE_COUNT.max(first) {
        return stack.drain(first..).collect();
    }
    let mut all = std::mem::take(stack);
    stack.extend(all.drain(..first));
    all.shrink_to_fit();
    all
}

/// The names of the object being parsed: the fields from `first` on.
struct ObjectNames {
    first: usize,
    /// A Bloom filter of one hash function: most new names are recognized without a comparison.
    filter: u64,
    index: Option<Box<NameIndex>>,
}

impl ObjectNames {
    fn contains(&self, name: &str, fields: &[(Name, Value)]) -> bool {
        let fields = &fields[self.first..];
        match &self.index {
            Some(index) => index.position(name, fields).is_some(),
            None => self.filter & filter_bit(name) != 0 && fields.iter().any(|(field, _)| field == name),
        }
    }

    fn add_last(&mut self, fields: &[(Name, Value)]) {
        let fields = &fields[self.first..];
        match (&mut self.index, fields) {
            (Some(index), _) => index.add_last(fields),
            (None, [.., (name, _)]) if fields.len() <= INDEX_FROM => self.filter |= filter_bit(name),
            (None, _) => self.index = Some(Box::new(NameIndex::build(fields))),
        }
    }
}

/// The bit of a name in the Bloom filter of [`ObjectNames`].
fn filter_bit(name: &str) -> u64 {
    let hash = match name.as_bytes() {
        [] => 0,
        [first, .., last] => usize::from(*first) + 5 * usize::from(*last) + 11 * name.len(),
        [only] => usize::from(*only),
    };
    1 << (hash % 64)
}

#[cfg(test)]
mod tests;
