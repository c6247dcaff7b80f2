//! Packing: a value into the bytes that [`packed`](super::packed) describes and reads.

use smallvec::SmallVec;

use super::packed::layout::{self, Tag};
use super::{DEPTH_MAX, Number, Numeric, Object, Shapes, Value, varint};
use crate::{Error, Result};

/// Appends the packed form of `value`, whose shapes become known to `shapes`.
///
/// # Errors
/// [`Invalid`](crate::ErrorKind::Invalid) if the value is deeper than [`DEPTH_MAX`] or takes 4 GiB; `out` is then as it was.
pub(crate) fn pack(value: &Value, shapes: &Shapes, out: &mut Vec<u8>) -> Result<()> {
    let start = out.len();
    let mut packer = Packer { shapes, ends: SmallVec::new(), out };
    let packed = packer.value(value, DEPTH_MAX);
    if packed.is_err() {
        out.truncate(start);
    }
    packed
}

struct Packer<'a> {
    shapes: &'a Shapes,
    /// Where the children of the open containers end, from where the first begins.
    ends: SmallVec<[u32; 64]>,
    out: &'a mut Vec<u8>,
}

/// A container whose children are being written.
struct Open {
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
            Value::Array(elements) => return self.array(elements, deeper(depth)?),
            Value::Object(object) => return self.object(object, deeper(depth)?),
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

    fn open(&mut self, head: u64) -> Open {
        let tag_at = self.out.len();
        self.out.push(0);
        varint::write(head, self.out);
        Open { tag_at, children_at: self.out.len(), first_end: self.ends.len() }
    }

    fn end_child(&mut self, open: &Open) -> Result<()> {
        let end = u32::try_from(self.out.len() - open.children_at).map_err(|_| too_large())?;
        self.ends.push(end);
        Ok(())
    }

    fn close(&mut self, open: Open, tag: u8) {
        // The last child ends where the table begins, which the reader knows.
        let stored = &self.ends[open.first_end..self.ends.len().max(open.first_end + 1) - 1];
        let width = layout::width_of(stored.last().copied().unwrap_or(0));
        match width {
            1 => self.out.extend(stored.iter().map(|&end| end as u8)),
            _ => stored.iter().for_each(|end| self.out.extend_from_slice(&end.to_be_bytes()[4 - width..])),
        }
        self.out[open.tag_at] = tag + (width - 1) as u8;
        self.ends.truncate(open.first_end);
    }
}

fn deeper(depth: usize) -> Result<usize> {
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

/// Appends a tag and the bytes of `word` from its first that is not zero.
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
    // A fraction in binary rarely ends; most that people write are short in decimal.
    if bytes_needed > 3
        && let Some((mantissa, places)) = layout::decimal_of(double)
        && layout::bytes_of(mantissa) < bytes_needed
    {
        let tag = if double < 0.0 { Tag::NEGATIVE_DECIMAL } else { Tag::DECIMAL };
        return push_word(tag + (places - 1) as u8, mantissa, out);
    }
    out.push(Tag::DOUBLE);
    out.extend_from_slice(&bits.to_be_bytes()[..bytes_needed]);
}
