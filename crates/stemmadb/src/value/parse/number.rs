//! Parser of JSON numbers: integers stay integers, fractions become the nearest double.

use super::{ParseError, Parsed, Parser, fail};
use crate::value::Number;

impl Parser<'_> {
    /// Parses a number. The next byte is a digit or `-`.
    #[inline]
    pub(super) fn number(&mut self) -> Parsed<Number> {
        let start = self.at;
        let negative = self.peek() == Some(b'-');
        self.at += usize::from(negative);
        let digits_at = self.at;
        let magnitude = self.integer_digits()?;
        if let Some(b'.' | b'e' | b'E') = self.peek() {
            return self.double(start);
        }
        match (magnitude, negative) {
            (Some(magnitude), false) => Ok(Number::from(magnitude)),
            (Some(magnitude), true) if magnitude != 0 => match 0i64.checked_sub_unsigned(magnitude) {
                Some(signed) => Ok(Number::from(signed)),
                None => self.large_integer(start, digits_at),
            },
            _ => self.large_integer(start, digits_at),
        }
    }

    /// Consumes the digits before a fraction and returns their value, unless it exceeds 64 bits.
    #[inline]
    fn integer_digits(&mut self) -> Parsed<Option<u64>> {
        let start = self.at;
        let mut magnitude = Some(0u64);
        while let Some(digit @ b'0'..=b'9') = self.peek() {
            let digit = u64::from(digit - b'0');
            // 18 digits can't overflow; only longer numbers pay for the check.
            magnitude = match magnitude {
                Some(value) if self.at - start < 18 => Some(value * 10 + digit),
                Some(value) => value.checked_mul(10).and_then(|tens| tens.checked_add(digit)),
                None => None,
            };
            self.at += 1;
        }
        if self.at == start {
            return Err(self.unexpected("a digit"));
        }
        if self.bytes[start] == b'0' && self.at > start + 1 {
            return Err(fail(start, "a number with a leading zero", None));
        }
        Ok(magnitude)
    }

    fn double(&mut self, start: usize) -> Parsed<Number> {
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.skip_digits()?;
        }
        if let Some(b'e' | b'E') = self.peek() {
            self.at += 1;
            if let Some(b'+' | b'-') = self.peek() {
                self.at += 1;
            }
            self.skip_digits()?;
        }
        self.text[start..self.at].parse().ok().and_then(Number::from_f64).ok_or_else(|| too_large(start))
    }

    /// Consumes one or more digits.
    fn skip_digits(&mut self) -> Parsed<()> {
        let start = self.at;
        while let Some(b'0'..=b'9') = self.peek() {
            self.at += 1;
        }
        if self.at == start { Err(self.unexpected("a digit")) } else { Ok(()) }
    }

    /// Parses an integer beyond 64 bits, or `-0`, as a double, unless that loses digits.
    #[cold]
    fn large_integer(&self, start: usize, digits_at: usize) -> Parsed<Number> {
        let digits = &self.text[digits_at..self.at];
        let Some(double) = self.text[start..self.at].parse().ok().filter(|double: &f64| double.is_finite()) else {
            return Err(too_large(start));
        };
        let exact = digits.parse() == Ok(double.abs() as u128) && double.abs() < 2f64.powi(127);
        // JavaScript prints a double below 1e21 as its shortest digits followed by zeros; Rust's `{}` does so for all
        // doubles.
        let is_printed_form = || format!("{}", double.abs()) == digits;
        match Number::from_f64(double) {
            Some(number) if exact || is_printed_form() => Ok(number),
            _ => Err(lossy(start)),
        }
    }
}

#[cold]
fn too_large(start: usize) -> Box<ParseError> {
    fail(start, "a number too large for a double", Some("write it as a string"))
}

#[cold]
fn lossy(start: usize) -> Box<ParseError> {
    let message = "an integer outside -2^63 to 2^64 - 1, which would lose digits";
    fail(start, message, Some("write it as a string, or with an exponent if a double is near enough"))
}
