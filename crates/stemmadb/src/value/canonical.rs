//! Canonical encoding of values, over which revision hashes are computed. Two values have the same bytes only if they
//! are equal.
//!
//! Layout: one tag byte, then
//! - number: 8 bytes big-endian (an integer in two's complement, the bits of a double);
//! - string: its length as a varint and its UTF-8;
//! - array: the count as a varint and the elements;
//! - object: the count as a varint and each name (as a string without its tag) with its value, in the document's order.

#[cfg(any(test, fuzzing))]
use super::PackedValue;
#[cfg(any(test, fuzzing))]
use super::traverse::DepthLimited;
use super::traverse::{Node, ValueTree, into_ok};
use super::{Number, Numeric, Value};
#[cfg(any(test, fuzzing))]
use crate::Result;
use crate::varint;

const NULL: u8 = 0;
const FALSE: u8 = 1;
const TRUE: u8 = 2;
const I64: u8 = 3;
const U64: u8 = 4;
const F64: u8 = 5;
const STRING: u8 = 6;
const ARRAY: u8 = 7;
const OBJECT: u8 = 8;

/// A destination of canonical bytes.
pub(crate) trait CanonicalSink {
    /// The buffer that short writes are pushed to.
    fn buffer(&mut self) -> &mut Vec<u8>;
    /// Writes any number of bytes.
    fn extend(&mut self, bytes: &[u8]);
}

impl CanonicalSink for Vec<u8> {
    fn buffer(&mut self) -> &mut Vec<u8> {
        self
    }

    fn extend(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

impl Value {
    /// Writes the canonical bytes of this value. Two values have the same bytes if and only if they are `==`.
    pub(crate) fn canonical(&self, out: &mut impl CanonicalSink) {
        into_ok(write(self, out));
    }
}

#[cfg(any(test, fuzzing))]
impl PackedValue<'_> {
    /// Appends the canonical bytes, which equal those of the unpacked value.
    ///
    /// # Errors
    /// [`Corrupt`](crate::ErrorKind::Corrupt) if the packed bytes are damaged; `out` then ends in a partial encoding.
    pub(crate) fn canonical(self, out: &mut Vec<u8>) -> Result<()> {
        write(DepthLimited::from(self), out)
    }
}

fn write<'v, S: ValueTree<'v>>(value: S, out: &mut impl CanonicalSink) -> Result<(), S::Error> {
    match value.node()? {
        Node::Null => out.buffer().push(NULL),
        Node::Bool(truth) => out.buffer().push(if truth { TRUE } else { FALSE }),
        Node::Number(number) => write_number(number, out),
        Node::String(text) => {
            out.buffer().push(STRING);
            write_text(text, out);
        }
        Node::Array(count, elements) => {
            out.buffer().push(ARRAY);
            varint::write(count as u64, out.buffer());
            for element in elements {
                write(element?, out)?;
            }
        }
        Node::Object(count, fields) => {
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
