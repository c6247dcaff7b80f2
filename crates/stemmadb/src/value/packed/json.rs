//! JSON text of a packed value, written directly from its bytes without unpacking.
//!
//! The output equals that of [`Value::to_json`](crate::Value::to_json) on the unpacked value. Field names are copied in
//! the escaped form that their shape stores. UTF-8 is validated once, over the whole output: the bytes between strings
//! are ASCII, so two invalid strings cannot combine into a valid one.

use super::layout::Tag;
use super::{ChildIter, Children, Packed, PackedValue, damaged, read_number, split_name};
use crate::Result;
use crate::value::print::{write_json_string, write_number, write_string_bytes};
use crate::value::{DEPTH_MAX, Shapes};

impl PackedValue<'_> {
    /// Returns compact JSON.
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
    /// Appends the fields of an object except `without` as compact JSON without braces: `"a":1,"b":2`. Returns whether
    /// any field was written.
    ///
    /// # Errors
    /// [`Corrupt`](crate::ErrorKind::Corrupt) if the bytes are damaged or the value is not an object.
    pub(crate) fn write_json_fields(self, without: &str, out: &mut Vec<u8>) -> Result<bool> {
        let Packed::Object(object) = self.read()? else { return Err(damaged("a body is not an object")) };
        let start = out.len();
        let mut children = ChildIter::new(object.children);
        for position in 0..object.children.count {
            let Some(bytes) = children.next() else { break };
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
        Tag::ARRAY..Tag::CONTAINERS_END => write_container(value, child_depth(depth)?, out)?,
        Tag::NULL if rest.is_empty() => out.extend_from_slice(b"null"),
        Tag::FALSE if rest.is_empty() => out.extend_from_slice(b"false"),
        Tag::TRUE if rest.is_empty() => out.extend_from_slice(b"true"),
        _ => write_number(read_number(tag, rest)?, out),
    }
    Ok(())
}

fn child_depth(depth: usize) -> Result<usize> {
    depth.checked_sub(1).ok_or_else(|| damaged("it is nested too deeply"))
}

fn write_container(value: PackedValue<'_>, depth: usize, out: &mut Vec<u8>) -> Result<()> {
    let shapes = value.shapes;
    // Every child is written with a leading comma; the first comma is then replaced by the opening bracket.
    let start = out.len();
    let brackets = match value.read()? {
        Packed::Array(array) => {
            write_children(
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
                Some(shape) => write_children(
                    object.children,
                    shapes,
                    out,
                    |position, bytes, out| {
                        out.extend_from_slice(shape.json_name(position));
                        Ok(bytes)
                    },
                    depth,
                )?,
                None => write_children(
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
        _ => return Err(damaged("a container tag has no container")),
    };
    match out.get_mut(start) {
        Some(first) => *first = brackets[0],
        None => out.push(brackets[0]),
    }
    out.push(brackets[1]);
    Ok(())
}

/// Writes every child. `begin` writes what precedes the child and returns the bytes of its value.
#[inline(always)]
fn write_children<'a>(
    children: Children<'a>,
    shapes: &'a Shapes,
    out: &mut Vec<u8>,
    begin: impl Fn(usize, &'a [u8], &mut Vec<u8>) -> Result<&'a [u8]>,
    depth: usize,
) -> Result<()> {
    let mut iter = ChildIter::new(children);
    for position in 0..children.count {
        let Some(bytes) = iter.next() else { break };
        let bytes = begin(position, bytes?, out)?;
        write(PackedValue::new(bytes, shapes)?, depth, out)?;
    }
    Ok(())
}
