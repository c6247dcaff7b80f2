//! Packed values as values, JSON and canonical bytes.

use super::{Packed, PackedValue, damaged};
use crate::Result;
use crate::value::object::{INDEX_FROM, NameIndex};
use crate::value::print::{close, write_json_bool, write_json_number, write_json_string};
use crate::value::{DEPTH_MAX, Object, Value};

impl PackedValue<'_> {
    /// The value, unpacked.
    ///
    /// # Errors
    /// [`Corrupt`](crate::ErrorKind::Corrupt) if the bytes are damaged.
    pub(crate) fn to_value(self) -> Result<Value> {
        unpack(self, DEPTH_MAX)
    }

    /// Appends compact JSON: the same as of the unpacked value.
    ///
    /// # Errors
    /// [`Corrupt`](crate::ErrorKind::Corrupt) if the bytes are damaged; `out` is then as it was.
    pub(crate) fn write_json(self, out: &mut Vec<u8>) -> Result<()> {
        let start = out.len();
        let written = write(self, DEPTH_MAX, out);
        if written.is_err() {
            out.truncate(start);
        }
        written
    }

    /// Refuses a value with damage anywhere within it. Costs a walk over all of it, and no memory.
    ///
    /// # Errors
    /// [`Corrupt`](crate::ErrorKind::Corrupt) if the bytes are damaged.
    pub(crate) fn check(self) -> Result<()> {
        check(self, DEPTH_MAX)
    }
}

fn deeper(depth: usize) -> Result<usize> {
    depth.checked_sub(1).ok_or_else(|| damaged("it is nested too deeply"))
}

fn unpack(value: PackedValue<'_>, depth: usize) -> Result<Value> {
    Ok(match value.read()? {
        Packed::Null => Value::Null,
        Packed::Bool(truth) => Value::Bool(truth),
        Packed::Number(number) => Value::Number(number),
        Packed::String(text) => Value::String(text.to_owned()),
        Packed::Array(array) => {
            let depth = deeper(depth)?;
            let mut elements = Vec::with_capacity(array.len());
            for element in array {
                elements.push(unpack(element?, depth)?);
            }
            Value::Array(elements)
        }
        Packed::Object(object) => {
            let depth = deeper(depth)?;
            let mut fields = Vec::with_capacity(object.len());
            for field in object {
                let (name, value) = field?;
                fields.push((name.to_owned(), unpack(value, depth)?));
            }
            Value::Object(object_of(fields, object.shape().is_some())?)
        }
    })
}

/// The object of `fields`; the names of a shape are known to differ, names from the bytes are not.
fn object_of(fields: Vec<(String, Value)>, names_differ: bool) -> Result<Object> {
    let count = fields.len();
    if names_differ {
        let index = (count > INDEX_FROM).then(|| Box::new(NameIndex::of(&fields)));
        return Ok(Object::from_unique(fields, index));
    }
    let object: Object = fields.into_iter().collect();
    if object.len() == count { Ok(object) } else { Err(damaged("a field is given twice")) }
}

fn write(value: PackedValue<'_>, depth: usize, out: &mut Vec<u8>) -> Result<()> {
    match value.read()? {
        Packed::Null => out.extend_from_slice(b"null"),
        Packed::Bool(truth) => write_json_bool(truth, out),
        Packed::Number(number) => write_json_number(number, out),
        Packed::String(text) => write_json_string(text, out),
        Packed::Array(array) => {
            let depth = deeper(depth)?;
            let mut before = b'[';
            for element in array {
                out.push(std::mem::replace(&mut before, b','));
                write(element?, depth, out)?;
            }
            close(before, *b"[]", out);
        }
        Packed::Object(object) => {
            let depth = deeper(depth)?;
            let mut before = b'{';
            for field in object {
                let (name, value) = field?;
                out.push(std::mem::replace(&mut before, b','));
                write_json_string(name, out);
                out.push(b':');
                write(value, depth, out)?;
            }
            close(before, *b"{}", out);
        }
    }
    Ok(())
}

fn check(value: PackedValue<'_>, depth: usize) -> Result<()> {
    match value.read()? {
        Packed::Array(array) => {
            let depth = deeper(depth)?;
            array.iter().try_for_each(|element| check(element?, depth))
        }
        Packed::Object(object) => {
            let depth = deeper(depth)?;
            object.iter().try_for_each(|field| check(field?.1, depth))
        }
        _ => Ok(()),
    }
}
