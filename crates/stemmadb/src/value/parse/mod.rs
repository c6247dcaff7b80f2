//! The one JSON parser: strict RFC 8259, bounded in bytes, nodes and depth, in one pass.
//!
//! Beyond the grammar it refuses what would not survive a round trip or means different things to different readers:
//! a name given twice in one object (escapes resolved), invalid UTF-8, a byte order mark, lone surrogates, numbers too
//! large for a double (`1e400`), and integers outside -2^63 to 2^64 - 1 whose digits a double would lose. Such an
//! integer is taken as a double if it is exactly one, or is how JavaScript prints one (`100000000000000000000`). `-0` is
//! the double `-0.0`. A fraction is the nearest double, as everywhere.
//!
//! Memory: about 32 bytes per element, 56 per field, and the text of names and strings once; the limit on nodes bounds it.

mod number;
mod text;

use std::borrow::Cow;
use std::fmt;

use super::limits::{too_deep, too_many_nodes};
use super::object::{INDEX_FROM, Name, NameIndex};
use super::{Limits, Object, Value};
use crate::{Error, Result};

/// Why a text is not one JSON value we accept, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParseError {
    position: usize,
    message: Cow<'static, str>,
    hint: Option<&'static str>,
    ended: bool,
}

impl ParseError {
    /// The byte, counted from 0, at which the text is wrong; its length if it ends too early.
    pub fn position(&self) -> usize {
        self.position
    }

    /// What is wrong, without the position.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// One line that says what to do, where there is something to do.
    pub fn hint(&self) -> Option<&str> {
        self.hint
    }

    /// Whether the text ended too early, so that more text could complete it.
    pub fn is_incomplete(&self) -> bool {
        self.ended
    }

    /// Line and column, both counted from 1, of the position in `text`, which was parsed. The column counts characters.
    pub fn line_and_column(&self, text: &[u8]) -> (usize, usize) {
        let before = &text[..self.position.min(text.len())];
        let line_start = before.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
        let line = before.iter().filter(|&&byte| byte == b'\n').count() + 1;
        let column = before[line_start..].iter().filter(|&&byte| byte & 0xC0 != 0x80).count() + 1;
        (line, column)
    }

    /// The parse error that `error` was made of, if it was.
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
    /// The value of a JSON text, within the default [`Limits`].
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) with the byte position; [`ParseError::of`] gives it as a number.
    pub fn parse(text: impl AsRef<[u8]>) -> Result<Value> {
        Self::parse_with(text, &Limits::default())
    }

    /// The value of a JSON text, within `limits`.
    ///
    /// # Errors
    /// As [`Value::parse`].
    pub fn parse_with(text: impl AsRef<[u8]>, limits: &Limits) -> Result<Value> {
        Ok(parse_whole(text.as_ref(), limits).map_err(|error| *error)?)
    }

    /// The value at the beginning of `text`, and the number of bytes it takes: for texts of several values.
    ///
    /// A number that reaches to the end of `text` is taken as complete. The cost is that of the value, however long the
    /// text behind it.
    ///
    /// # Errors
    /// As [`Value::parse`]; [`ParseError::is_incomplete`] tells whether more text might help.
    pub fn parse_prefix(text: impl AsRef<[u8]>, limits: &Limits) -> Result<(Value, usize)> {
        Ok(parse_first(text.as_ref(), limits).map_err(|error| *error)?)
    }
}

/// How much of a text with several values is looked at for the first; four times as much if the value is longer.
const FIRST_LOOK_BYTES: usize = 4096;

fn parse_first(text: &[u8], limits: &Limits) -> Parsed<(Value, usize)> {
    let most = text.len().min(limits.bytes);
    let mut look = FIRST_LOOK_BYTES.min(most);
    loop {
        match parse_at_front(&text[..look], limits) {
            Ok((_, end)) if end == look && look < most => {}
            Err(error) if error.ended && look < most => {}
            Err(error) if error.ended && most < text.len() => return Err(too_many_bytes(limits)),
            result => return result,
        }
        look = look.saturating_mul(4).min(most);
    }
}

/// The value at the front of `text`, which may be cut anywhere.
fn parse_at_front(text: &[u8], limits: &Limits) -> Parsed<(Value, usize)> {
    let (text, broken) = match std::str::from_utf8(text) {
        Ok(text) => (text, false),
        Err(error) => {
            (std::str::from_utf8(&text[..error.valid_up_to()]).unwrap_or_default(), error.error_len().is_some())
        }
    };
    let mut parser = Parser::new(text, limits)?;
    match parser.value(limits.depth()) {
        Ok(value) => Ok((value, parser.at)),
        Err(error) if error.ended && broken => Err(fail(text.len(), "invalid UTF-8", None)),
        Err(error) => Err(error),
    }
}

fn parse_whole(text: &[u8], limits: &Limits) -> Parsed<Value> {
    if text.len() > limits.bytes {
        return Err(too_many_bytes(limits));
    }
    // With the whole text known to be UTF-8, the rest looks at bytes and slices at boundaries.
    let text = std::str::from_utf8(text).map_err(|error| {
        let mut failure = fail(error.valid_up_to(), "invalid UTF-8", None);
        failure.ended = error.error_len().is_none();
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
    Box::new(ParseError { position, message: message.into(), hint, ended: false })
}

/// One pass over a text. Elements and fields of all open containers share two stacks, so a finished container is
/// allocated once and at its size.
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

    /// The next byte that is not blank, not yet consumed.
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
            None => return Err(self.beyond(too_many_nodes(self.limits))),
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
        let Some(depth_left) = depth_left.checked_sub(1) else { return Err(self.beyond(too_deep(self.limits))) };
        self.at += 1;
        let first = self.elements.len();
        if self.next_token() == Some(b']') {
            self.at += 1;
            return Ok(Value::Array(Vec::new()));
        }
        loop {
            let element = self.value(depth_left)?;
            if self.elements.len() == self.elements.capacity() {
                make_room(&mut self.elements, self.at, self.bytes.len(), self.nodes_left);
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
        let Some(depth_left) = depth_left.checked_sub(1) else { return Err(self.beyond(too_deep(self.limits))) };
        self.at += 1;
        if self.next_token() == Some(b'}') {
            self.at += 1;
            return Ok(Value::Object(Object::new()));
        }
        let mut names = Names { first: self.fields.len(), seen: 0, index: None };
        loop {
            let field = self.field(&names, depth_left)?;
            if self.fields.len() == self.fields.capacity() {
                make_room(&mut self.fields, self.at, self.bytes.len(), self.nodes_left);
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

    fn field(&mut self, names: &Names, depth_left: usize) -> Parsed<(Name, Value)> {
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
    fn beyond(&self, message: String) -> Box<ParseError> {
        fail(self.at, message, Some("split the document, or raise the limit"))
    }

    #[cold]
    fn unexpected(&self, wanted: &str) -> Box<ParseError> {
        let message = match self.text.get(self.at..).and_then(|rest| rest.chars().next()) {
            None => format!("expected {wanted}, found the end of the text"),
            Some(found) if found.is_control() => format!("expected {wanted}, found U+{:04X}", found as u32),
            Some(found) => format!("expected {wanted}, found `{found}`"),
        };
        let mut failure = fail(self.at, message, None);
        failure.ended = self.at >= self.bytes.len();
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

/// Stacks of so many, and vectors taken of them, are large: there is no memory for them twice.
const LARGE_COUNT: usize = 4096;

/// Makes room in a stack that is full. A large one gets what the rest of the text needs if it goes on as it began: doubled again and again it
/// would leave as much behind as it has.
#[cold]
fn make_room<T>(stack: &mut Vec<T>, at: usize, length: usize, nodes_left: usize) {
    let count = stack.len();
    if count < LARGE_COUNT {
        return stack.reserve(1);
    }
    let expected = count as u128 * (length - at) as u128 / at.max(1) as u128;
    let more = usize::try_from(expected + expected / 8).unwrap_or(usize::MAX).max(count);
    stack.reserve_exact(more.min(nodes_left.saturating_add(1)));
}

/// The elements of `stack` from `first` on, in a vector of their size.
fn take_from<T>(stack: &mut Vec<T>, first: usize) -> Vec<T> {
    if first > 0 && stack.len() - first < LARGE_COUNT.max(first) {
        return stack.drain(first..).collect();
    }
    let mut all = std::mem::take(stack);
    stack.extend(all.drain(..first));
    all.shrink_to_fit();
    all
}

/// The names of the object being parsed: the fields from `first` on.
struct Names {
    first: usize,
    /// A bit per coarse hash of a name: most names are seen to be new without a comparison.
    seen: u64,
    index: Option<Box<NameIndex>>,
}

impl Names {
    fn contains(&self, name: &str, fields: &[(Name, Value)]) -> bool {
        let fields = &fields[self.first..];
        match &self.index {
            Some(index) => index.position(name, fields).is_some(),
            None => self.seen & coarse(name) != 0 && fields.iter().any(|(known, _)| known == name),
        }
    }

    fn add_last(&mut self, fields: &[(Name, Value)]) {
        let fields = &fields[self.first..];
        match (&mut self.index, fields) {
            (Some(index), _) => index.add_last(fields),
            (None, [.., (name, _)]) if fields.len() <= INDEX_FROM => self.seen |= coarse(name),
            (None, _) => self.index = Some(Box::new(NameIndex::of(fields))),
        }
    }
}

fn coarse(name: &str) -> u64 {
    let hash = match name.as_bytes() {
        [] => 0,
        [first, .., last] => usize::from(*first) + 5 * usize::from(*last) + 11 * name.len(),
        [only] => usize::from(*only),
    };
    1 << (hash % 64)
}

#[cfg(test)]
mod tests;
