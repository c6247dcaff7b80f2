//! The encodings of values: JSON text; a packed binary form that needs no parsing of text; and that form with documents
//! as they are stored.

use stemmadb::{DEPTH_MAX, Limits, Number, Object, Result, Value};

use crate::reader::{Reader, malformed, write_text, write_varint};

/// How values are encoded. The client chooses for the whole connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum Encoding {
    /// JSON text, UTF-8.
    Json = 0,
    /// A tag byte before each value, lengths before strings, arrays and objects.
    Packed = 1,
    /// As `Packed`; but documents that are a result, or its rows, may be records as the server stores them, which
    /// neither side decodes. For clients that use this library.
    #[default]
    Records = 2,
}

const NULL: u8 = 0;
const FALSE: u8 = 1;
const TRUE: u8 = 2;
const POSITIVE: u8 = 3;
const NEGATIVE: u8 = 4;
const DOUBLE: u8 = 5;
const STRING: u8 = 6;
pub(crate) const ARRAY: u8 = 7;
pub(crate) const OBJECT: u8 = 8;
pub(crate) const RECORD: u8 = 9;

/// The depth of values: documents, and what surrounds them in frames.
pub(crate) const DEPTH: usize = DEPTH_MAX + 8;

impl Encoding {
    pub(crate) fn from_code(code: u8) -> Result<Self> {
        match code {
            0 => Ok(Encoding::Json),
            1 => Ok(Encoding::Packed),
            2 => Ok(Encoding::Records),
            _ => Err(malformed("its encoding of values is unknown")),
        }
    }

    /// Appends a value.
    pub fn write(self, value: &Value, out: &mut Vec<u8>) {
        match self {
            Encoding::Json => value.write_json(out),
            Encoding::Packed | Encoding::Records => write_packed(value, out),
        }
    }

    /// Appends what precedes the elements of a packed array.
    pub fn write_packed_array_head(count: u64, out: &mut Vec<u8>) {
        out.push(ARRAY);
        write_varint(count, out);
    }

    /// Appends what precedes the fields of a packed object, each a name and a value.
    pub fn write_packed_object_head(count: u64, out: &mut Vec<u8>) {
        out.push(OBJECT);
        write_varint(count, out);
    }

    /// Appends the name of a field of a packed object.
    pub fn write_packed_name(name: &str, out: &mut Vec<u8>) {
        write_text(name, out);
    }

    /// Appends what precedes the record of a document.
    pub fn write_record_head(out: &mut Vec<u8>) {
        out.push(RECORD);
    }

    /// Reads a value that is all of `bytes`.
    ///
    /// # Errors
    /// `Invalid` if it is malformed, or nested too deeply.
    pub fn read(self, bytes: &[u8]) -> Result<Value> {
        match self {
            Encoding::Json => {
                let limits = Limits { bytes: usize::MAX, nodes: usize::MAX, depth: DEPTH };
                Value::parse_with(bytes, &limits)
            }
            Encoding::Packed | Encoding::Records => {
                let mut reader = Reader::new(bytes);
                let value = read_packed(&mut reader, DEPTH)?;
                if reader.is_empty() { Ok(value) } else { Err(malformed("bytes follow a value")) }
            }
        }
    }
}

fn write_packed(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Null => out.push(NULL),
        Value::Bool(false) => out.push(FALSE),
        Value::Bool(true) => out.push(TRUE),
        Value::Number(number) => write_number(*number, out),
        Value::String(text) => {
            out.push(STRING);
            write_text(text, out);
        }
        Value::Array(elements) => {
            out.push(ARRAY);
            write_varint(elements.len() as u64, out);
            elements.iter().for_each(|element| write_packed(element, out));
        }
        Value::Object(fields) => {
            out.push(OBJECT);
            write_varint(fields.len() as u64, out);
            for (name, field) in fields.iter() {
                write_text(name, out);
                write_packed(field, out);
            }
        }
    }
}

fn write_number(number: Number, out: &mut Vec<u8>) {
    match (number.is_integer(), number.as_u64(), number.as_i64()) {
        (true, Some(positive), _) => {
            out.push(POSITIVE);
            write_varint(positive, out);
        }
        (true, None, Some(negative)) => {
            out.push(NEGATIVE);
            write_varint(negative.unsigned_abs(), out);
        }
        _ => {
            out.push(DOUBLE);
            out.extend_from_slice(&number.as_f64().to_le_bytes());
        }
    }
}

pub(crate) fn read_packed(reader: &mut Reader<'_>, depth: usize) -> Result<Value> {
    let integer = |integer: i128| Number::from_i128(integer).map(Value::Number).ok_or_else(|| malformed("a number"));
    Ok(match reader.u8()? {
        NULL => Value::Null,
        FALSE => Value::Bool(false),
        TRUE => Value::Bool(true),
        POSITIVE => integer(i128::from(reader.varint()?))?,
        NEGATIVE => integer(-i128::from(reader.varint()?))?,
        DOUBLE => {
            let double = f64::from_bits(reader.u64()?);
            Value::Number(Number::from_f64(double).ok_or_else(|| malformed("a number is not finite"))?)
        }
        STRING => Value::String(reader.text()?.to_owned()),
        ARRAY => {
            let (count, depth) = count(reader, depth, 1)?;
            let mut elements = Vec::with_capacity(count.min(1024));
            for _ in 0..count {
                elements.push(read_packed(reader, depth)?);
            }
            Value::Array(elements)
        }
        OBJECT => {
            let (count, depth) = count(reader, depth, 2)?;
            let mut fields = Object::with_capacity(count.min(1024));
            for _ in 0..count {
                let name = reader.text()?;
                let field = read_packed(reader, depth)?;
                if fields.insert(name, field).is_some() {
                    return Err(malformed("an object has a field twice"));
                }
            }
            Value::Object(fields)
        }
        _ => return Err(malformed("the tag of a value is unknown")),
    })
}

/// Reads a count of elements, each of which has at least `bytes_min` bytes. Returns it with the depth that remains.
pub(crate) fn count(reader: &mut Reader<'_>, depth: usize, bytes_min: usize) -> Result<(usize, usize)> {
    let depth = depth.checked_sub(1).ok_or_else(|| malformed("a value is nested too deeply"))?;
    let count = usize::try_from(reader.varint()?).ok().filter(|count| *count <= reader.len() / bytes_min);
    Ok((count.ok_or_else(|| malformed("a count exceeds what follows"))?, depth))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: &str = r#"{"a": [null, true, false, 0, -1, 300, 9223372036854775807, 18446744073709551615, 1.5,
        -9223372036854775808, 1e300, "häß", "", [], {}], "b": {"c": {"d": [[1]]}}, "": 0}"#;

    #[test]
    fn values_round_trip_in_both_encodings() {
        let value: Value = SAMPLE.parse().unwrap();
        for encoding in [Encoding::Json, Encoding::Packed] {
            let mut bytes = Vec::new();
            encoding.write(&value, &mut bytes);
            assert_eq!(encoding.read(&bytes).unwrap(), value);
            for length in 0..bytes.len() {
                assert!(encoding.read(&bytes[..length]).is_err(), "{encoding:?} {length}");
            }
            bytes.push(b'0');
            assert!(encoding.read(&bytes).is_err());
        }
    }

    #[test]
    fn hostile_values_are_refused() {
        let deep: Vec<u8> = [ARRAY, 1].repeat(100_000);
        let many = [ARRAY, 0xff, 0xff, 0xff, 0xff, 0x0f];
        let twice = [OBJECT, 2, 1, b'a', 0, 1, b'a', 0];
        let infinite = [&[DOUBLE][..], &f64::INFINITY.to_le_bytes()].concat();
        for bytes in [&deep[..], &many, &twice, &infinite, &[9], &[STRING, 2, 0xff, 0xff], &[]] {
            assert!(Encoding::Packed.read(bytes).is_err());
        }
        assert!(Encoding::Json.read("[".repeat(100_000).as_bytes()).is_err());
    }
}
