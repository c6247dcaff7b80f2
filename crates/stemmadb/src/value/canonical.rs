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

impl Value {
    /// Appends the canonical bytes of this value: two values have the same bytes exactly if they are `==`.
    pub(crate) fn canonical(&self, out: &mut Vec<u8>) {
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

fn write<'v, S: Source<'v>>(value: S, out: &mut Vec<u8>) -> Result<(), S::Error> {
    match value.look()? {
        Look::Null => out.push(NULL),
        Look::Bool(truth) => out.push(if truth { TRUE } else { FALSE }),
        Look::Number(number) => write_number(number, out),
        Look::String(text) => {
            out.push(STRING);
            write_text(text, out);
        }
        Look::Array(count, elements) => {
            out.push(ARRAY);
            varint::write(count as u64, out);
            for element in elements {
                write(element?, out)?;
            }
        }
        Look::Object(count, fields) => {
            out.push(OBJECT);
            varint::write(count as u64, out);
            for field in fields {
                let (name, value) = field?;
                write_text(name, out);
                write(value, out)?;
            }
        }
    }
    Ok(())
}

fn write_number(number: Number, out: &mut Vec<u8>) {
    let (tag, word) = match number.numeric() {
        Numeric::I64(signed) => (I64, signed as u64),
        Numeric::U64(unsigned) => (U64, unsigned),
        Numeric::F64(double) => (F64, double.to_bits()),
    };
    let mut bytes = [tag; 9];
    bytes[1..].copy_from_slice(&word.to_be_bytes());
    out.extend_from_slice(&bytes);
}

fn write_text(text: &str, out: &mut Vec<u8>) {
    varint::write(text.len() as u64, out);
    out.extend_from_slice(text.as_bytes());
}
