//! A packed value to JSON text, straight from its bytes: names as their shape keeps them, strings as they lie, nothing in between.
//!
//! Writes what [`Value::to_json`](crate::Value::to_json) writes of the unpacked value. Whether strings are UTF-8 is looked at once, in
//! the whole text: what stands between them is ASCII, so two damaged strings can't make a sound one.

use super::layout::Tag;
use super::{Children, Packed, PackedValue, Walk, damaged, read_number, split_name};
use crate::Result;
use crate::value::print::{write_json_string, write_number, write_string_bytes};
use crate::value::{DEPTH_MAX, Shapes};

impl PackedValue<'_> {
    /// Compact JSON.
    ///
    /// # Errors
    /// [`Corrupt`](crate::ErrorKind::Corrupt) if the bytes are damaged.
    pub(crate) fn to_json(self) -> Result<String> {
        let mut json = Vec::with_capacity(2 * self.bytes.len() + 16);
        write(self, DEPTH_MAX, &mut json)?;
        String::from_utf8(json).map_err(|_| damaged("a string is not UTF-8"))
    }
}

impl PackedValue<'_> {
    /// Appends the fields of an object as compact JSON, but for the field `without`: `"a":1,"b":2`. Whether any was written.
    ///
    /// # Errors
    /// [`Corrupt`](crate::ErrorKind::Corrupt) if the bytes are damaged, or it is no object.
    pub(crate) fn write_json_fields(self, without: &str, out: &mut Vec<u8>) -> Result<bool> {
        let Packed::Object(object) = self.read()? else { return Err(damaged("a body is no object")) };
        let start = out.len();
        let mut walk = Walk::new(object.children);
        for position in 0..object.children.count {
            let Some(bytes) = walk.next() else { break };
            let bytes = match object.shape {
                Some(shape) if shape.name(position) == Some(without) => continue,
                Some(shape) => {
                    out.extend_from_slice(shape.json_name(position));
                    bytes?
                }
                None => {
                    let (name, bytes) = split_name(bytes?)?;
                    if name == without {
                        continue;
                    }
                    out.push(b',');
                    write_json_string(name, out);
                    out.push(b':');
                    bytes
                }
            };
            write(PackedValue::new(bytes, self.shapes)?, DEPTH_MAX - 1, out)?;
        }
        let has_fields = out.len() > start;
        if has_fields {
            out.remove(start);
        }
        match out.get(start..).map(str::from_utf8) {
            Some(Ok(_)) => Ok(has_fields),
            _ => Err(damaged("a string is not UTF-8")),
        }
    }
}

fn write(value: PackedValue<'_>, depth: usize, out: &mut Vec<u8>) -> Result<()> {
    let (tag, rest) = (value.bytes[0], &value.bytes[1..]);
    match tag {
        Tag::STRING => write_string_bytes(rest, out),
        Tag::SMALL_INTEGER.. if rest.is_empty() => {
            out.extend_from_slice(itoa::Buffer::new().format(tag & 0x7F).as_bytes());
        }
        Tag::ARRAY..Tag::CONTAINERS_END => write_container(value, below(depth)?, out)?,
        Tag::NULL if rest.is_empty() => out.extend_from_slice(b"null"),
        Tag::FALSE if rest.is_empty() => out.extend_from_slice(b"false"),
        Tag::TRUE if rest.is_empty() => out.extend_from_slice(b"true"),
        _ => write_number(read_number(tag, rest)?, out),
    }
    Ok(())
}

fn below(depth: usize) -> Result<usize> {
    depth.checked_sub(1).ok_or_else(|| damaged("it is nested too deeply"))
}

fn write_container(value: PackedValue<'_>, depth: usize, out: &mut Vec<u8>) -> Result<()> {
    let shapes = value.shapes;
    // Every child begins with a comma, which for the first one becomes the bracket.
    let start = out.len();
    let brackets = match value.read()? {
        Packed::Array(array) => {
            each(
                array.children,
                shapes,
                out,
                |_, bytes, out| {
                    out.push(b',');
                    Ok(bytes)
                },
                depth,
            )?;
            *b"[]"
        }
        Packed::Object(object) => {
            match object.shape {
                Some(shape) => each(
                    object.children,
                    shapes,
                    out,
                    |position, bytes, out| {
                        out.extend_from_slice(shape.json_name(position));
                        Ok(bytes)
                    },
                    depth,
                )?,
                None => each(
                    object.children,
                    shapes,
                    out,
                    |_, bytes, out| {
                        let (name, bytes) = split_name(bytes)?;
                        out.push(b',');
                        write_json_string(name, out);
                        out.push(b':');
                        Ok(bytes)
                    },
                    depth,
                )?,
            }
            *b"{}"
        }
        _ => return Err(damaged("a container is none")),
    };
    match out.get_mut(start) {
        Some(first) => *first = brackets[0],
        None => out.push(brackets[0]),
    }
    out.push(brackets[1]);
    Ok(())
}

/// Writes each child, after what `begin` writes before it and leaves of its bytes.
#[inline(always)]
fn each<'a>(
    children: Children<'a>,
    shapes: &'a Shapes,
    out: &mut Vec<u8>,
    begin: impl Fn(usize, &'a [u8], &mut Vec<u8>) -> Result<&'a [u8]>,
    depth: usize,
) -> Result<()> {
    let mut walk = Walk::new(children);
    for position in 0..children.count {
        let Some(bytes) = walk.next() else { break };
        let bytes = begin(position, bytes?, out)?;
        write(PackedValue::new(bytes, shapes)?, depth, out)?;
    }
    Ok(())
}
