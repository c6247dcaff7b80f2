//! JSON printer. Parsing the printed text gives the same value.
//!
//! Doubles are printed with the fewest digits that parse as the same double, and always with a `.0` or an exponent, so
//! that they don't parse as integers. Only quotes, backslashes and control characters are escaped.

use super::{Number, Numeric, Value};

impl Value {
    /// Returns compact JSON.
    pub fn to_json(&self) -> String {
        let mut out = Vec::with_capacity(128);
        self.write_json(&mut out);
        into_text(out)
    }

    /// Returns JSON indented by two spaces per level.
    pub fn to_json_pretty(&self) -> String {
        let mut out = Vec::with_capacity(256);
        write_pretty(self, 0, &mut out);
        into_text(out)
    }

    /// Appends compact JSON.
    pub fn write_json(&self, out: &mut Vec<u8>) {
        write(self, out);
    }
}

fn write(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Null => out.extend_from_slice(b"null"),
        Value::Bool(truth) => out.extend_from_slice(if *truth { b"true" } else { b"false" }),
        Value::Number(number) => write_number(*number, out),
        Value::String(text) => write_json_string(text, out),
        Value::Array(elements) => {
            let mut before = b'[';
            for element in elements {
                out.push(std::mem::replace(&mut before, b','));
                write(element, out);
            }
            close(before, *b"[]", out);
        }
        Value::Object(object) => {
            let mut before = b'{';
            for (name, value) in object {
                out.push(std::mem::replace(&mut before, b','));
                write_json_string(name, out);
                out.push(b':');
                write(value, out);
            }
            close(before, *b"{}", out);
        }
    }
}

/// Closes a container. `before` is still the opening bracket if no child was written.
fn close(before: u8, brackets: [u8; 2], out: &mut Vec<u8>) {
    match before == brackets[0] {
        true => out.extend_from_slice(&brackets),
        false => out.push(brackets[1]),
    }
}

pub(super) fn write_number(number: Number, out: &mut Vec<u8>) {
    match number.numeric() {
        Numeric::I64(signed) => out.extend_from_slice(itoa::Buffer::new().format(signed).as_bytes()),
        Numeric::U64(unsigned) => out.extend_from_slice(itoa::Buffer::new().format(unsigned).as_bytes()),
        Numeric::F64(double) => out.extend_from_slice(zmij::Buffer::new().format_finite(double).as_bytes()),
    }
}

/// Appends `text` as a JSON string.
pub(super) fn write_json_string(text: &str, out: &mut Vec<u8>) {
    write_string_bytes(text.as_bytes(), out);
}

/// Appends the text in `bytes` as a JSON string. If the text is not UTF-8, the output is not, either.
#[inline]
pub(super) fn write_string_bytes(bytes: &[u8], out: &mut Vec<u8>) {
    out.reserve(bytes.len() + 2);
    out.push(b'"');
    let mut rest = bytes;
    loop {
        let (plain, special) = rest.split_at(plain_bytes(rest));
        out.extend_from_slice(plain);
        let Some((&byte, after)) = special.split_first() else { break };
        write_escape(byte, out);
        rest = after;
    }
    out.push(b'"');
}

/// The number of bytes at the front of `bytes` that need no escape in a JSON string: those before the first quote,
/// backslash or control character. Examines eight bytes at a time.
#[inline]
pub(super) fn plain_bytes(bytes: &[u8]) -> usize {
    let mut at = 0;
    while let Some(word) = bytes.get(at..).and_then(|rest| rest.first_chunk::<8>()) {
        let special = special_bytes(u64::from_le_bytes(*word));
        if special != 0 {
            return at + special.trailing_zeros() as usize / 8;
        }
        at += 8;
    }
    let rest = bytes.get(at..).unwrap_or_default();
    at + rest.iter().position(|&byte| byte == b'"' || byte == b'\\' || byte < b' ').unwrap_or(rest.len())
}

/// Sets the top bit of each byte that is a quote, a backslash or a control character. Bits above the lowest such byte
/// may be wrong.
#[inline]
fn special_bytes(word: u64) -> u64 {
    const ONES: u64 = u64::MAX / 255;
    const TOPS: u64 = ONES << 7;
    let zero = |bytes: u64| bytes.wrapping_sub(ONES) & !bytes;
    let quote = zero(word ^ (ONES * b'"' as u64));
    let backslash = zero(word ^ (ONES * b'\\' as u64));
    let control = word.wrapping_sub(ONES * b' ' as u64) & !word;
    (quote | backslash | control) & TOPS
}

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
    String::from_utf8(json).expect("JSON is built from UTF-8 text, cut only at ASCII characters")
}
