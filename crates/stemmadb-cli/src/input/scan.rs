//! Scanner that tracks line and column and finds the end of JSON values.
//!
//! A [`Scanner`] reads a stream once, in bounded memory. Lines and columns are counted from 1, columns in characters.
//! The end of a value is found by brackets and quotes alone; the parser then checks its syntax.

use std::fmt;
use std::io::{BufRead, BufReader, Read};

use crate::failure::{Exit, Failure, Result};

/// A line and column, as editors show them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TextPosition {
    /// From 1.
    pub(crate) line: u64,
    /// From 1, in characters.
    pub(crate) column: u64,
}

impl TextPosition {
    /// The first character of a text.
    pub(crate) const START: TextPosition = TextPosition { line: 1, column: 1 };

    /// The position after `text`, which begins at this position.
    pub(crate) fn after(mut self, text: &[u8]) -> TextPosition {
        for &byte in text {
            if byte == b'\n' {
                self.line += 1;
                self.column = 1;
            } else if byte & 0xC0 != 0x80 {
                self.column += 1;
            }
        }
        self
    }

    /// A failure whose message begins with this position.
    pub(crate) fn failure(self, message: impl fmt::Display) -> Failure {
        Failure::usage(format!("{self}: {message}"))
    }
}

impl fmt::Display for TextPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}", self.line, self.column)
    }
}

/// Maximum number of bytes read to detect the format.
const HEAD_BYTES_MAX: usize = 4096;

/// A source of bytes.
pub(crate) type Stream = Box<dyn Read + Send>;

/// A buffered stream with its position.
pub(crate) struct Scanner {
    input: BufReader<Stream>,
    /// Bytes that come before those of `input`: returned, or read ahead of the buffer.
    ahead: Vec<u8>,
    /// How many bytes of `ahead` are consumed.
    ahead_used: usize,
    position: TextPosition,
    bytes_read: u64,
}

impl Scanner {
    /// Creates a scanner. [`Scanner::lookahead`] then returns enough to detect the format: up to `HEAD_BYTES_MAX` of
    /// leading whitespace and what follows it.
    pub(crate) fn new(mut input: Stream) -> Result<Self> {
        let mut head = vec![0; HEAD_BYTES_MAX];
        let mut length = 0;
        while length < head.len() && (length < 4 || head[..length].iter().all(u8::is_ascii_whitespace)) {
            match input.read(&mut head[length..]) {
                Ok(0) => break,
                Ok(count) => length += count,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(unreadable(&error)),
            }
        }
        head.truncate(length);
        let input: Stream = Box::new(std::io::Cursor::new(head).chain(input));
        Ok(Scanner {
            input: BufReader::with_capacity(256 << 10, input),
            ahead: Vec::new(),
            ahead_used: 0,
            position: TextPosition::START,
            bytes_read: 0,
        })
    }

    /// The position of the next byte.
    pub(crate) fn position(&self) -> TextPosition {
        self.position
    }

    /// The number of bytes consumed.
    pub(crate) fn bytes_read(&self) -> u64 {
        self.bytes_read
    }

    /// The buffered bytes that are not consumed yet; empty only at the end of the input.
    pub(crate) fn lookahead(&mut self) -> Result<&[u8]> {
        if self.ahead_used == self.ahead.len() {
            self.fill()?;
        }
        Ok(self.buffered())
    }

    /// Reads into the empty buffer of `input`.
    fn fill(&mut self) -> Result<()> {
        loop {
            match self.input.fill_buf() {
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(unreadable(&error)),
            }
        }
    }

    fn buffered(&self) -> &[u8] {
        match &self.ahead[self.ahead_used..] {
            [] => self.input.buffer(),
            ahead => ahead,
        }
    }

    /// Consumes `count` of the bytes that [`Scanner::lookahead`] returned.
    pub(crate) fn consume(&mut self, count: usize) {
        let buffered = self.buffered();
        debug_assert!(count <= buffered.len());
        self.position = self.position.after(&buffered[..count]);
        self.bytes_read += count as u64;
        if self.ahead_used < self.ahead.len() {
            self.ahead_used += count;
        } else {
            self.input.consume(count);
        }
    }

    /// Reads ahead to the end of `line_count` lines, `bytes_max` bytes or the end of the input; returns the bytes
    /// without consuming them.
    pub(crate) fn peek_lines(&mut self, line_count: usize, bytes_max: usize) -> Result<&[u8]> {
        self.ahead.drain(..self.ahead_used);
        self.ahead_used = 0;
        let mut newline_count = newlines(&self.ahead);
        while newline_count < line_count && self.ahead.len() < bytes_max {
            self.fill()?;
            let read = self.input.buffer();
            let count = read.len().min(bytes_max - self.ahead.len());
            if count == 0 {
                break;
            }
            newline_count += newlines(&read[..count]);
            self.ahead.extend_from_slice(&read[..count]);
            self.input.consume(count);
        }
        Ok(&self.ahead)
    }

    /// Returns the bytes that were consumed last, which begin at `position`, to the input.
    pub(crate) fn unread(&mut self, bytes: &[u8], position: TextPosition) {
        self.position = position;
        self.bytes_read -= bytes.len() as u64;
        if bytes.len() <= self.ahead_used {
            self.ahead_used -= bytes.len();
        } else {
            self.ahead.splice(..self.ahead_used, bytes.iter().copied());
            self.ahead_used = 0;
        }
    }

    /// The next byte, without consuming it.
    pub(crate) fn peek(&mut self) -> Result<Option<u8>> {
        Ok(self.lookahead()?.first().copied())
    }

    /// Skips JSON whitespace.
    pub(crate) fn skip_whitespace(&mut self) -> Result<()> {
        loop {
            let ahead = self.lookahead()?;
            let count = ahead.iter().take_while(|byte| matches!(byte, b' ' | b'\t' | b'\n' | b'\r')).count();
            let more = count > 0 && count == ahead.len();
            self.consume(count);
            if !more {
                return Ok(());
            }
        }
    }

    /// Appends the rest of the line to `into`, without its end.
    ///
    /// # Errors
    /// If it is longer than `limit`.
    pub(crate) fn take_line(&mut self, into: &mut Vec<u8>, limit: usize) -> Result<()> {
        let position = self.position;
        loop {
            let ahead = self.lookahead()?;
            let end = ahead.iter().position(|byte| *byte == b'\n');
            let taken = &ahead[..end.unwrap_or(ahead.len())];
            let (count, is_last) = (taken.len(), end.is_some() || ahead.is_empty());
            into.extend_from_slice(taken);
            self.consume(count);
            if into.len() > limit {
                return Err(position.failure(format!("the line has more than {limit} bytes")));
            }
            if is_last {
                return Ok(());
            }
        }
    }

    /// Skips the rest of the input, so that a program writing to the pipe does not fail.
    pub(crate) fn skip_to_end(&mut self) -> Result<()> {
        loop {
            let count = self.lookahead()?.len();
            if count == 0 {
                return Ok(());
            }
            self.consume(count);
        }
    }

    /// Skips a UTF-8 byte order mark; refuses compressed files and UTF-16.
    pub(crate) fn skip_byte_order_mark(&mut self) -> Result<()> {
        let ahead = self.lookahead()?;
        let refusal = match ahead {
            [0x1f, 0x8b, ..] => Some(("this is compressed with gzip", "zcat FILE | stemma import DATABASE -")),
            [0x28, 0xb5, 0x2f, 0xfd, ..] => {
                Some(("this is compressed with zstd", "zstdcat FILE | stemma import DATABASE -"))
            }
            [b'P', b'K', 3, 4, ..] => Some(("this is a zip archive", "unzip -p FILE | stemma import DATABASE -")),
            [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => {
                Some(("this is UTF-16, not UTF-8", "iconv -f UTF-16 -t UTF-8 FILE | stemma import DATABASE -"))
            }
            _ => None,
        };
        if let Some((message, hint)) = refusal {
            return Err(Failure::usage(message).with_hint(hint));
        }
        if ahead.starts_with(b"\xef\xbb\xbf") {
            self.consume(3);
            self.position = TextPosition::START;
        }
        Ok(())
    }

    /// Consumes the value that begins here and appends its bytes to `into`.
    ///
    /// Stops early at the end of the input, at a line break within a string (invalid in JSON), and once `into` is
    /// longer than `limit`: the parser then reports what is wrong.
    pub(crate) fn take_value(&mut self, into: &mut Vec<u8>, limit: usize) -> Result<()> {
        let mut extent = ValueExtent::default();
        loop {
            let ahead = self.lookahead()?;
            let (count, ended) = extent.advance(ahead);
            into.extend_from_slice(&ahead[..count]);
            let ended = ended || ahead.is_empty() || into.len() > limit;
            self.consume(count);
            if ended {
                return Ok(());
            }
        }
    }

    /// Skips the value that begins here, of any length.
    pub(crate) fn skip_value(&mut self) -> Result<()> {
        let mut extent = ValueExtent::default();
        loop {
            let ahead = self.lookahead()?;
            let (count, ended) = extent.advance(ahead);
            let ended = ended || ahead.is_empty();
            self.consume(count);
            if ended {
                return Ok(());
            }
        }
    }
}

fn newlines(bytes: &[u8]) -> usize {
    bytes.iter().filter(|byte| **byte == b'\n').count()
}

fn unreadable(error: &std::io::Error) -> Failure {
    Failure::new(Exit::Unavailable, format!("cannot read the input: {error}"))
}

/// Finds the end of a JSON value by brackets and quotes.
#[derive(Default)]
struct ValueExtent {
    depth: usize,
    has_begun: bool,
    in_string: bool,
    escaped: bool,
}

impl ValueExtent {
    /// Scans the next bytes; returns how many of them belong to the value, and whether it ended.
    fn advance(&mut self, bytes: &[u8]) -> (usize, bool) {
        for (at, &byte) in bytes.iter().enumerate() {
            if self.in_string {
                match byte {
                    _ if self.escaped => self.escaped = false,
                    b'\\' => self.escaped = true,
                    b'"' => {
                        self.in_string = false;
                        if self.depth == 0 {
                            return (at + 1, true);
                        }
                    }
                    b'\n' => return (at + 1, true),
                    _ => {}
                }
                continue;
            }
            let at_top = self.depth == 0;
            match byte {
                b'"' | b'{' | b'[' if at_top && self.has_begun => return (at, true),
                b',' | b'}' | b']' | b' ' | b'\t' | b'\n' | b'\r' if at_top => return (at, true),
                b'"' => self.in_string = true,
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => {
                    self.depth -= 1;
                    if self.depth == 0 {
                        return (at + 1, true);
                    }
                }
                _ => {}
            }
            self.has_begun = true;
        }
        (bytes.len(), false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scanner(text: &str) -> Scanner {
        Scanner::new(Box::new(std::io::Cursor::new(text.as_bytes().to_vec()))).unwrap()
    }

    fn value(text: &str) -> String {
        let mut bytes = Vec::new();
        scanner(text).take_value(&mut bytes, 1000).unwrap();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn value_ends_are_found() {
        assert_eq!(value("{\"a\":[1,{}]} {"), "{\"a\":[1,{}]}");
        assert_eq!(value("\"a\\\"}\",1"), "\"a\\\"}\"");
        assert_eq!(value("12.5e3,4"), "12.5e3");
        assert_eq!(value("true]"), "true");
        assert_eq!(value("12{}"), "12");
        assert_eq!(value("{\"a\": \"]}\"}]"), "{\"a\": \"]}\"}");
        assert_eq!(value("{\"a\": 1"), "{\"a\": 1");
        assert_eq!(value(""), "");
        assert_eq!(value(","), "");
    }

    #[test]
    fn unclosed_string_ends_with_its_line() {
        assert_eq!(value("{\"a\": \"x\n}\n"), "{\"a\": \"x\n");
    }

    #[test]
    fn columns_count_characters() {
        assert_eq!(TextPosition::START.after("é\nöä".as_bytes()), TextPosition { line: 2, column: 3 });
    }

    #[test]
    fn byte_order_mark_is_skipped_and_other_encodings_are_refused() {
        let mut marked = scanner("\u{feff}{}");
        marked.skip_byte_order_mark().unwrap();
        assert_eq!(marked.position(), TextPosition::START);
        assert_eq!(marked.peek().unwrap(), Some(b'{'));
        let mut utf16 = Scanner::new(Box::new(std::io::Cursor::new(vec![0xff, 0xfe, b'{', 0]))).unwrap();
        assert!(utf16.skip_byte_order_mark().unwrap_err().to_string().contains("UTF-16"));
    }
}
