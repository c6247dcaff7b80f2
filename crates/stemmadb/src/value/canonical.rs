//! The bytes a revision is the hash of: every value in exactly one way, no two values alike.
//!
//! Layout: one tag byte, then for a number 8 bytes big-endian (an integer its two's complement, a double its bits), for a
//! string its length as a varint and its UTF-8, for an array the count and the elements, for an object the count and
//! each name (length, UTF-8) with its value. Order is the document's.

use super::{Numeric, Value, varint};

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
        match self {
            Value::Null => out.push(NULL),
            Value::Bool(false) => out.push(FALSE),
            Value::Bool(true) => out.push(TRUE),
            Value::Number(number) => match number.numeric() {
                Numeric::I64(signed) => push_word(I64, signed.to_be_bytes(), out),
                Numeric::U64(unsigned) => push_word(U64, unsigned.to_be_bytes(), out),
                Numeric::F64(double) => push_word(F64, double.to_bits().to_be_bytes(), out),
            },
            Value::String(text) => {
                out.push(STRING);
                push_text(text, out);
            }
            Value::Array(elements) => {
                out.push(ARRAY);
                varint::write(elements.len() as u64, out);
                for element in elements {
                    element.canonical(out);
                }
            }
            Value::Object(object) => {
                out.push(OBJECT);
                varint::write(object.len() as u64, out);
                for (name, value) in object {
                    push_text(name, out);
                    value.canonical(out);
                }
            }
        }
    }
}

fn push_word(tag: u8, word: [u8; 8], out: &mut Vec<u8>) {
    let mut bytes = [tag; 9];
    bytes[1..].copy_from_slice(&word);
    out.extend_from_slice(&bytes);
}

fn push_text(text: &str, out: &mut Vec<u8>) {
    varint::write(text.len() as u64, out);
    out.extend_from_slice(text.as_bytes());
}
