//! Packing: encodes a value into the packed form that [`packed`](super::packed) describes and reads.

use smallvec::SmallVec;

use super::packed::layout::{self, Tag};
use super::{DEPTH_MAX, Number, Numeric, Object, Shapes, Value};
use crate::varint;
use crate::{Error, Result};

/// Appends the packed form of `value` and adds its shapes to the dictionary `shapes`.
///
/// # Errors
/// [`Invalid`](crate::ErrorKind::Invalid) if the value is deeper than [`DEPTH_MAX`] or takes 4 GiB; `out` is then as it
/// was.
pub(crate) fn pack(value: &Value, shapes: &Shapes, out: &mut Vec<u8>) -> Result<()> {
    let start = out.len();
    let mut packer = Packer { shapes, ends: SmallVec::new(), out };
    let packed = packer.value(value, DEPTH_MAX);
    debug_assert!(packed.is_err() || packer.ends.is_empty(), "a packed value has no open container");
    if packed.is_err() {
        out.truncate(start);
    }
    packed
}

struct Packer<'a> {
    shapes: &'a Shapes,
    /// End offsets of the children of all open containers, each relative to its container's first child.
    ends: SmallVec<[u32; 64]>,
    out: &'a mut Vec<u8>,
}

/// A container whose children are being written.
struct OpenContainer {
    tag_at: usize,
    children_at: usize,
    first_end: usize,
}

impl Packer<'_> {
    fn value(&mut self, value: &Value, depth: usize) -> Result<()> {
        match value {
            Value::Null => self.out.push(Tag::NULL),
            Value::Bool(false) => self.out.push(Tag::FALSE),
            Value::Bool(true) => self.out.push(Tag::TRUE),
            Value::Number(number) => push_number(*number, self.out),
            Value::String(text) => {
                self.out.push(Tag::STRING);
                self.out.extend_from_slice(text.as_bytes());
            }
            Value::Array(elements) => return self.array(elements, child_depth(depth)?),
            Value::Object(object) => return self.object(object, child_depth(depth)?),
        }
        Ok(())
    }

    fn array(&mut self, elements: &[Value], depth: usize) -> Result<()> {
        let open = self.open(elements.len() as u64);
        for element in elements {
            self.value(element, depth)?;
            self.end_child(&open)?;
        }
        self.close(open, Tag::ARRAY);
        Ok(())
    }

    fn object(&mut self, object: &Object, depth: usize) -> Result<()> {
        let Some(shape) = self.shapes.intern(object.names()) else { return self.object_with_names(object, depth) };
        let open = self.open(shape.get() as u64);
        for value in object.values() {
            self.value(value, depth)?;
            self.end_child(&open)?;
        }
        self.close(open, Tag::OBJECT);
        Ok(())
    }

    fn object_with_names(&mut self, object: &Object, depth: usize) -> Result<()> {
        let open = self.open(object.len() as u64);
        for (name, value) in object {
            varint::write(name.len() as u64, self.out);
            self.out.extend_from_slice(name.as_bytes());
            self.value(value, depth)?;
            self.end_child(&open)?;
        }
        self.close(open, Tag::NAMED_OBJECT);
        Ok(())
    }

    fn open(&mut self, head: u64) -> OpenContainer {
        let tag_at = self.out.len();
        self.out.push(0);
        varint::write(head, self.out);
        OpenContainer { tag_at, children_at: self.out.len(), first_end: self.ends.len() }
    }

    fn end_child(&mut self, open: &OpenContainer) -> Result<()> {
        let end = u32::try_from(self.out.len() - open.children_at).map_err(|_| too_large())?;
        self.ends.push(end);
        Ok(())
    }

    fn close(&mut self, open: OpenContainer, tag: u8) {
        // The end of the last child is not stored: it ends where the table begins.
        let stored = &self.ends[open.first_end..self.ends.len().max(open.first_end + 1) - 1];
        debug_assert!(
            stored.is_sorted_by(|a, b| a < b),
            "child offsets strictly ascend: a child has at least one byte"
        );
        let width = layout::entry_width(stored.last().copied().unwrap_or(0));
        match width {
            1 => self.out.extend(stored.iter().map(|&end| end as u8)),
            _ => stored.iter().for_each(|end| self.out.extend_from_slice(&end.to_be_bytes()[4 - width..])),
        }
        self.out[open.tag_at] = tag + (width - 1) as u8;
        self.ends.truncate(open.first_end);
    }
}

/// The depth left for the children of a container.
fn child_depth(depth: usize) -> Result<usize> {
    depth.checked_sub(1).ok_or_else(|| {
        Error::invalid(format!("the document has more than {DEPTH_MAX} arrays and objects within each other"))
    })
}

#[cold]
fn too_large() -> Error {
    Error::invalid("the document takes more than 4 GiB")
}

fn push_number(number: Number, out: &mut Vec<u8>) {
    match number.numeric() {
        Numeric::I64(signed) => match u64::try_from(signed) {
            Ok(small @ 0..=0x7F) => out.push(Tag::SMALL_INTEGER | small as u8),
            Ok(magnitude) => push_word(Tag::INTEGER, magnitude, out),
            Err(_) => push_word(Tag::NEGATIVE_INTEGER, !signed as u64, out),
        },
        Numeric::U64(unsigned) => push_word(Tag::INTEGER, unsigned, out),
        Numeric::F64(double) => push_double(double, out),
    }
}

/// Appends a tag and the big-endian bytes of `word` without its leading zero bytes.
fn push_word(tag: u8, word: u64, out: &mut Vec<u8>) {
    let skipped = word.leading_zeros() as usize / 8;
    let mut bytes = [0; 9];
    bytes[1..].copy_from_slice(&word.to_be_bytes());
    bytes[skipped] = tag;
    out.extend_from_slice(&bytes[skipped..]);
}

fn push_double(double: f64, out: &mut Vec<u8>) {
    let bits = double.to_bits();
    let bytes_needed = 8 - bits.trailing_zeros().min(64) as usize / 8;
    // Most fractions that people write are short in decimal and long in binary.
    if bytes_needed > 3
        && let Some((mantissa, places)) = layout::to_decimal(double)
        && layout::byte_width(mantissa) < bytes_needed
    {
        debug_assert_eq!(
            layout::from_decimal(mantissa, places),
            Some(double.abs()),
            "a double stored as a decimal reads back as the same double"
        );
        let tag = if double < 0.0 { Tag::NEGATIVE_DECIMAL } else { Tag::DECIMAL };
        return push_word(tag + (places - 1) as u8, mantissa, out);
    }
    out.push(Tag::DOUBLE);
    out.extend_from_slice(&bits.to_be_bytes()[..bytes_needed]);
}
