//! Where are we in this text, and where does the JSON value that begins here end?
//!
//! A [`Scanner`] walks a stream once, in bounded memory, and always knows its place for people: line and column, both
//! from 1, columns counted in characters. It finds the *extent* of a value by brackets and quotes alone; whether the
//! value is well formed is for the one parser to say.

use std::fmt;
use std::io::{BufRead, BufReader, Read};

use crate::failure::{Exit, Failure, Result};

/// A place in a text as editors show it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    /// From 1.
    pub(crate) line: u64,
    /// From 1, in characters.
    pub(crate) column: u64,
}

impl Place {
    /// The first character of a text.
    pub(crate) const START: Place = Place { line: 1, column: 1 };

    /// The place after `passed`, which begins here.
    pub(crate) fn after(mut self, passed: &[u8]) -> Place {
        for &byte in passed {
            if byte == b'\n' {
                self.line += 1;
                self.column = 1;
            } else if byte & 0xC0 != 0x80 {
                self.column += 1;
            }
        }
        self
    }

    /// A failure at this place.
    pub(crate) fn failure(self, message: impl fmt::Display) -> Failure {
        Failure::usage(format!("{self}: {message}"))
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}", self.line, self.column)
    }
}

/// How much is read before anything is decided.
const HEAD_BYTES_MAX: usize = 4096;

/// Anything that bytes come from.
pub(crate) type Input = Box<dyn Read + Send>;

/// A stream with its place.
pub(crate) struct Scanner {
    input: BufReader<Input>,
    place: Place,
    bytes: u64,
}

impl Scanner {
    /// A scanner at the start of `input`, of which [`Scanner::ahead`] shows enough to tell what it is: white space at
    /// most `HEAD_BYTES_MAX` long, and what follows it.
    pub(crate) fn new(mut input: Input) -> Result<Self> {
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
        let input: Input = Box::new(std::io::Cursor::new(head).chain(input));
        Ok(Scanner { input: BufReader::with_capacity(256 << 10, input), place: Place::START, bytes: 0 })
    }

    /// Where the next byte stands.
    pub(crate) fn place(&self) -> Place {
        self.place
    }

    /// How many bytes were passed.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What is read but not passed yet; empty at the end of the input only.
    pub(crate) fn ahead(&mut self) -> Result<&[u8]> {
        loop {
            match self.input.fill_buf() {
                Ok(_) => break,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(unreadable(&error)),
            }
        }
        Ok(self.input.buffer())
    }

    /// Passes `count` bytes of what [`Scanner::ahead`] shows.
    pub(crate) fn pass(&mut self, count: usize) {
        debug_assert!(count <= self.input.buffer().len());
        self.place = self.place.after(&self.input.buffer()[..count]);
        self.bytes += count as u64;
        self.input.consume(count);
    }

    /// The next byte, not passed.
    pub(crate) fn peek(&mut self) -> Result<Option<u8>> {
        Ok(self.ahead()?.first().copied())
    }

    /// Passes white space as JSON knows it.
    pub(crate) fn pass_space(&mut self) -> Result<()> {
        loop {
            let ahead = self.ahead()?;
            let count = ahead.iter().take_while(|byte| matches!(byte, b' ' | b'\t' | b'\n' | b'\r')).count();
            let more = count > 0 && count == ahead.len();
            self.pass(count);
            if !more {
                return Ok(());
            }
        }
    }

    /// Passes everything that is left, so that a program writing into our pipe is not cut off.
    pub(crate) fn pass_rest(&mut self) -> Result<()> {
        loop {
            let count = self.ahead()?.len();
            if count == 0 {
                return Ok(());
            }
            self.pass(count);
        }
    }

    /// Passes a byte order mark of UTF-8, and refuses what is plainly no text.
    pub(crate) fn pass_mark(&mut self) -> Result<()> {
        let ahead = self.ahead()?;
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
            self.pass(3);
            self.place = Place::START;
        }
        Ok(())
    }

    /// Appends the bytes of the value that begins here to `into` and passes them.
    ///
    /// Stops early, with what it has, at the end of the input, at a line's end within a string (no JSON string holds
    /// one) and once `into` is longer than `limit`: the parser then says what is wrong.
    pub(crate) fn take_value(&mut self, into: &mut Vec<u8>, limit: usize) -> Result<()> {
        let mut extent = Extent::default();
        loop {
            let ahead = self.ahead()?;
            let (count, ended) = extent.advance(ahead);
            into.extend_from_slice(&ahead[..count]);
            let ended = ended || ahead.is_empty() || into.len() > limit;
            self.pass(count);
            if ended {
                return Ok(());
            }
        }
    }

    /// Passes the value that begins here, of any length.
    pub(crate) fn pass_value(&mut self) -> Result<()> {
        let mut extent = Extent::default();
        loop {
            let ahead = self.ahead()?;
            let (count, ended) = extent.advance(ahead);
            let ended = ended || ahead.is_empty();
            self.pass(count);
            if ended {
                return Ok(());
            }
        }
    }
}

fn unreadable(error: &std::io::Error) -> Failure {
    Failure::new(Exit::Unavailable, format!("cannot read the input: {error}"))
}

/// How far a JSON value reaches, told by brackets and quotes.
#[derive(Default)]
struct Extent {
    depth: usize,
    begun: bool,
    in_string: bool,
    escaped: bool,
}

impl Extent {
    /// Takes in the next bytes; says how many of them belong to the value and whether it ended with them.
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
                b'"' | b'{' | b'[' if at_top && self.begun => return (at, true),
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
            self.begun = true;
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
    fn values_end_where_they_end() {
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
    fn an_open_string_ends_with_its_line() {
        assert_eq!(value("{\"a\": \"x\n}\n"), "{\"a\": \"x\n");
    }

    #[test]
    fn columns_count_characters() {
        assert_eq!(Place::START.after("é\nöä".as_bytes()), Place { line: 2, column: 3 });
    }

    #[test]
    fn a_mark_is_passed_and_other_encodings_are_refused() {
        let mut marked = scanner("\u{feff}{}");
        marked.pass_mark().unwrap();
        assert_eq!(marked.place(), Place::START);
        assert_eq!(marked.peek().unwrap(), Some(b'{'));
        let mut utf16 = Scanner::new(Box::new(std::io::Cursor::new(vec![0xff, 0xfe, b'{', 0]))).unwrap();
        assert!(utf16.pass_mark().unwrap_err().to_string().contains("UTF-16"));
    }
}
