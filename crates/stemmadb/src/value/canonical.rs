//! The bytes a revision is the hash of: every value in exactly one way, no two values alike.
//!
//! Layout: one tag byte, then for a number 8 bytes big-endian (an integer its two's complement, a double its bits), for a
//! string its length as a varint and its UTF-8, for an array the count and the elements, for an object the count and
//! each name (length, UTF-8) with its value. Order is the document's.

#[cfg(any(test, fuzzing))]
use super::PackedValue;
#[cfg(any(test, fuzzing))]
use super::source::Bounded;
use super::source::{Look, Source, certain};
use super::{Number, Numeric, Value, varint};
#[cfg(any(test, fuzzing))]
use crate::Result;

const NULL: u8 = 0;
const FALSE: u8 = 1;
const TRUE: u8 = 2;
const I64: u8 = 3;
const U64: u8 = 4;
const F64: u8 = 5;
const STRING: u8 = 6;
const ARRAY: u8 = 7;
const OBJECT: u8 = 8;

/// Where canonical bytes are written to.
pub(crate) trait CanonicalSink {
    /// Where the next few bytes are pushed to.
    fn buffer(&mut self) -> &mut Vec<u8>;
    /// Writes bytes, however many.
    fn extend(&mut self, bytes: &[u8]);
}

#[cfg(any(test, fuzzing))]
impl CanonicalSink for Vec<u8> {
    fn buffer(&mut self) -> &mut Vec<u8> {
        self
    }

    fn extend(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

impl Value {
    /// Writes the canonical bytes of this value: two values have the same bytes exactly if they are `==`.
    pub(crate) fn canonical(&self, out: &mut impl CanonicalSink) {
        certain(write(self, out));
    }
}

#[cfg(any(test, fuzzing))]
impl PackedValue<'_> {
    /// Appends the canonical bytes: the same as of the unpacked value.
    ///
    /// # Errors
    /// [`Corrupt`](crate::ErrorKind::Corrupt) if the packed bytes are damaged; `out` then ends in part of them.
    pub(crate) fn canonical(self, out: &mut Vec<u8>) -> Result<()> {
        write(Bounded::from(self), out)
    }
}

fn write<'v, S: Source<'v>>(value: S, out: &mut impl CanonicalSink) -> Result<(), S::Error> {
    match value.look()? {
        Look::Null => out.buffer().push(NULL),
        Look::Bool(truth) => out.buffer().push(if truth { TRUE } else { FALSE }),
        Look::Number(number) => write_number(number, out),
        Look::String(text) => {
            out.buffer().push(STRING);
            write_text(text, out);
        }
        Look::Array(count, elements) => {
            out.buffer().push(ARRAY);
            varint::write(count as u64, out.buffer());
            for element in elements {
                write(element?, out)?;
            }
        }
        Look::Object(count, fields) => {
            out.buffer().push(OBJECT);
            varint::write(count as u64, out.buffer());
            for field in fields {
                let (name, value) = field?;
                write_text(name, out);
                write(value, out)?;
            }
        }
    }
    Ok(())
}

fn write_number(number: Number, out: &mut impl CanonicalSink) {
    let (tag, word) = match number.numeric() {
        Numeric::I64(signed) => (I64, signed as u64),
        Numeric::U64(unsigned) => (U64, unsigned),
        Numeric::F64(double) => (F64, double.to_bits()),
    };
    let mut bytes = [tag; 9];
    bytes[1..].copy_from_slice(&word.to_be_bytes());
    out.buffer().extend_from_slice(&bytes);
}

fn write_text(text: &str, out: &mut impl CanonicalSink) {
    varint::write(text.len() as u64, out.buffer());
    out.extend(text.as_bytes());
}
