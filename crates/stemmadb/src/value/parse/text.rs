//! Parser of JSON strings: scans eight bytes at a time and copies strings without escapes in one piece.

use super::{ParseError, Parsed, Parser, fail};
use crate::value::print::plain_bytes;

impl<'a> Parser<'a> {
    /// Parses a string. The next byte is its opening quote.
    #[inline]
    pub(super) fn string<T: for<'t> From<&'t str> + From<String>>(&mut self) -> Parsed<T> {
        let start = self.at + 1;
        self.at = self.plain_end(start);
        match self.peek() {
            Some(b'"') => {
                let end = self.at;
                self.at += 1;
                Ok(self.text[start..end].into())
            }
            _ => self.string_with_escapes(start).map(T::from),
        }
    }

    /// The end of the plain text from `from` on: a quote, a backslash, a control character, or the end of the text.
    #[inline]
    fn plain_end(&self, from: usize) -> usize {
        from + plain_bytes(self.bytes.get(from..).unwrap_or_default())
    }

    fn string_with_escapes(&mut self, start: usize) -> Parsed<String> {
        let mut text = String::new();
        let mut plain = start;
        loop {
            text.push_str(&self.text[plain..self.at]);
            match self.peek() {
                Some(b'"') => break,
                Some(b'\\') => text.push(self.escape()?),
                Some(control) => return Err(control_character(self.at, control)),
                None => return Err(self.unexpected("`\"` at the end of the string")),
            }
            plain = self.at;
            self.at = self.plain_end(plain);
        }
        self.at += 1;
        text.shrink_to_fit();
        Ok(text)
    }

    /// Parses an escape. The next byte is its backslash.
    fn escape(&mut self) -> Parsed<char> {
        let start = self.at;
        self.at += 1;
        let character = match self.peek() {
            Some(same @ (b'"' | b'\\' | b'/')) => same.into(),
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{C}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => return self.unicode_escape(start),
            _ => return Err(self.unexpected("one of `\"\\/bfnrtu` after `\\`")),
        };
        self.at += 1;
        Ok(character)
    }

    fn unicode_escape(&mut self, start: usize) -> Parsed<char> {
        let first = self.hex_unit()?;
        let code = match first {
            0xD800..=0xDBFF => {
                let second = self.low_surrogate(start)?;
                0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00)
            }
            _ => first,
        };
        char::from_u32(code).ok_or_else(|| lone_surrogate(start))
    }

    fn low_surrogate(&mut self, start: usize) -> Parsed<u32> {
        for expected in [b'\\', b'u'] {
            match self.peek() {
                Some(byte) if byte == expected => self.at += 1,
                Some(_) => return Err(lone_surrogate(start)),
                None => return Err(self.unexpected("the second half of a surrogate pair")),
            }
        }
        self.at -= 1;
        match self.hex_unit()? {
            low @ 0xDC00..=0xDFFF => Ok(low),
            _ => Err(lone_surrogate(start)),
        }
    }

    /// Parses the four hexadecimal digits of a `\u` escape. The next byte is the `u`.
    fn hex_unit(&mut self) -> Parsed<u32> {
        self.at += 1;
        let mut unit = 0;
        for _ in 0..4 {
            let digit = self.peek().and_then(|byte| char::from(byte).to_digit(16));
            let Some(digit) = digit else { return Err(self.unexpected("four hexadecimal digits after `\\u`")) };
            unit = unit << 4 | digit;
            self.at += 1;
        }
        Ok(unit)
    }
}

#[cold]
fn control_character(at: usize, byte: u8) -> Box<ParseError> {
    fail(at, format!("the control character U+{byte:04X} inside a string"), Some("write it as an escape, such as \\n"))
}

#[cold]
fn lone_surrogate(at: usize) -> Box<ParseError> {
    fail(
        at,
        "half of a surrogate pair in a string",
        Some("a character beyond U+FFFF needs both halves, as in \\ud83d\\ude00"),
    )
}
