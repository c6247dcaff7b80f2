//! JSON text of a value, such that parsing it gives the same value.
//!
//! Doubles take the fewest digits that read back as the same double, and keep a `.0` or an exponent, so that they don't
//! read back as integers. Only what must be escaped is: quotes, backslashes and control characters.

use super::{Number, Numeric, Value};

impl Value {
    /// Compact JSON.
    pub fn to_json(&self) -> String {
        let mut out = Vec::with_capacity(128);
        self.write_json(&mut out);
        into_text(out)
    }

    /// JSON indented by two blanks a level.
    pub fn to_json_pretty(&self) -> String {
        let mut out = Vec::with_capacity(256);
        write_pretty(self, 0, &mut out);
        into_text(out)
    }

    /// Appends compact JSON.
    pub fn write_json(&self, out: &mut Vec<u8>) {
        match self {
            Value::Null => out.extend_from_slice(b"null"),
            Value::Bool(truth) => write_json_bool(*truth, out),
            Value::Number(number) => write_json_number(*number, out),
            Value::String(text) => write_json_string(text, out),
            Value::Array(elements) => {
                let mut before = b'[';
                for element in elements {
                    out.push(std::mem::replace(&mut before, b','));
                    element.write_json(out);
                }
                close(before, *b"[]", out);
            }
            Value::Object(object) => {
                let mut before = b'{';
                for (name, value) in object {
                    out.push(std::mem::replace(&mut before, b','));
                    write_json_string(name, out);
                    out.push(b':');
                    value.write_json(out);
                }
                close(before, *b"{}", out);
            }
        }
    }
}

/// Ends a container: `before` is still the opening bracket if nothing was written.
pub(super) fn close(before: u8, brackets: [u8; 2], out: &mut Vec<u8>) {
    match before == brackets[0] {
        true => out.extend_from_slice(&brackets),
        false => out.push(brackets[1]),
    }
}

pub(super) fn write_json_bool(truth: bool, out: &mut Vec<u8>) {
    out.extend_from_slice(if truth { b"true" } else { b"false" });
}

pub(super) fn write_json_number(number: Number, out: &mut Vec<u8>) {
    match number.numeric() {
        Numeric::I64(signed) => out.extend_from_slice(itoa::Buffer::new().format(signed).as_bytes()),
        Numeric::U64(unsigned) => out.extend_from_slice(itoa::Buffer::new().format(unsigned).as_bytes()),
        Numeric::F64(double) => out.extend_from_slice(zmij::Buffer::new().format_finite(double).as_bytes()),
    }
}

/// Appends `text` as a JSON string.
pub(crate) fn write_json_string(text: &str, out: &mut Vec<u8>) {
    out.push(b'"');
    let bytes = text.as_bytes();
    let mut plain = 0;
    for (at, &byte) in bytes.iter().enumerate() {
        if NEEDS_ESCAPE[usize::from(byte)] {
            out.extend_from_slice(&bytes[plain..at]);
            write_escape(byte, out);
            plain = at + 1;
        }
    }
    out.extend_from_slice(&bytes[plain..]);
    out.push(b'"');
}

const NEEDS_ESCAPE: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 0x20 {
        table[byte] = true;
        byte += 1;
    }
    table[b'"' as usize] = true;
    table[b'\\' as usize] = true;
    table
};

#[cold]
fn write_escape(byte: u8, out: &mut Vec<u8>) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    let letter = match byte {
        b'"' | b'\\' => byte,
        0x08 => b'b',
        0x0C => b'f',
        b'\n' => b'n',
        b'\r' => b'r',
        b'\t' => b't',
        _ => {
            let [high, low] = [byte >> 4, byte & 15].map(|digit| HEX[usize::from(digit)]);
            return out.extend_from_slice(&[b'\\', b'u', b'0', b'0', high, low]);
        }
    };
    out.extend_from_slice(&[b'\\', letter]);
}

fn write_pretty(value: &Value, level: usize, out: &mut Vec<u8>) {
    match value {
        Value::Array(elements) if !elements.is_empty() => {
            let mut before = b'[';
            for element in elements {
                out.push(std::mem::replace(&mut before, b','));
                break_line(level + 1, out);
                write_pretty(element, level + 1, out);
            }
            break_line(level, out);
            out.push(b']');
        }
        Value::Object(object) if !object.is_empty() => {
            let mut before = b'{';
            for (name, value) in object {
                out.push(std::mem::replace(&mut before, b','));
                break_line(level + 1, out);
                write_json_string(name, out);
                out.extend_from_slice(b": ");
                write_pretty(value, level + 1, out);
            }
            break_line(level, out);
            out.push(b'}');
        }
        scalar_or_empty => scalar_or_empty.write_json(out),
    }
}

fn break_line(level: usize, out: &mut Vec<u8>) {
    out.push(b'\n');
    out.extend(std::iter::repeat_n(b' ', 2 * level));
}

fn into_text(json: Vec<u8>) -> String {
    String::from_utf8(json).expect("JSON is made of UTF-8 pieces, cut only at ASCII")
}
