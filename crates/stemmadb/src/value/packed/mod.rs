//! Packed values: read in place, one field without the others, without allocation.
//!
//! Layout: a value is a tag byte ([`layout::Tag`]) and what follows up to the end of its extent; scalars have no length of
//! their own. A container is
//!
//! | bytes | what |
//! |---|---|
//! | 1 | tag: array, object or object with names; plus width - 1 |
//! | 1–10 | varint: count of children, or the number of the object's [`Shape`], which has the count |
//! | … | the children one after the other; in an object with names, each after its name's length (varint) and UTF-8 |
//! | (count - 1) × width | where each child but the last ends, counted from the first child, big-endian |
//!
//! The table stands last, so packing writes every byte once and in order.
//!
//! Invariants: every read checks its bounds; damaged bytes give [`Corrupt`](crate::ErrorKind::Corrupt), never a panic, nor
//! work or memory beyond a small multiple of the bytes.
//!
//! Speed: what runs once a field is `inline(always)`. Handed back through memory, a result of several words stalls whoever
//! reads it at once; measured on objects of 15 fields, walking over them took up to three times as long.

pub(crate) mod layout;

mod convert;
mod json;

use std::str;

use super::path::array_position;
use super::{Kind, Number, Path, Shape, ShapeNumber, Shapes, varint};
use crate::{Error, Result};
use layout::Tag;

/// A packed value, read where it lies. Copying it copies two references.
#[derive(Clone, Copy)]
pub(crate) struct PackedValue<'a> {
    bytes: &'a [u8],
    shapes: &'a Shapes,
}

/// What a packed value is, one level deep.
#[derive(Clone, Copy)]
pub(crate) enum Packed<'a> {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A number.
    Number(Number),
    /// A string.
    String(&'a str),
    /// An array.
    Array(PackedArray<'a>),
    /// An object.
    Object(PackedObject<'a>),
}

impl<'a> PackedValue<'a> {
    /// The value that all of `bytes` are. Looks at the first byte only.
    ///
    /// # Errors
    /// [`Corrupt`](crate::ErrorKind::Corrupt) if there is no such value.
    #[inline(always)]
    pub(crate) fn new(bytes: &'a [u8], shapes: &'a Shapes) -> Result<Self> {
        match bytes.first() {
            Some(&tag) if KINDS[usize::from(tag)].is_some() => Ok(PackedValue { bytes, shapes }),
            _ => Err(damaged("its tag is unknown")),
        }
    }

    /// The type of the value.
    #[inline]
    pub(crate) fn kind(self) -> Kind {
        KINDS[usize::from(self.bytes[0])].expect("checked when it was made")
    }

    /// The packed bytes.
    pub(crate) fn bytes(self) -> &'a [u8] {
        self.bytes
    }

    /// The value, one level deep.
    ///
    /// # Errors
    /// [`Corrupt`](crate::ErrorKind::Corrupt) if the bytes are damaged.
    #[inline(always)]
    pub(crate) fn read(self) -> Result<Packed<'a>> {
        let (tag, rest) = (self.bytes[0], &self.bytes[1..]);
        match tag {
            Tag::STRING => Ok(Packed::String(str::from_utf8(rest).map_err(|_| damaged("a string is not UTF-8"))?)),
            Tag::ARRAY..Tag::OBJECT => self.read_array(tag - Tag::ARRAY, rest).map(Packed::Array),
            Tag::OBJECT..Tag::CONTAINERS_END => self.read_object(tag, rest).map(Packed::Object),
            Tag::SMALL_INTEGER.. if rest.is_empty() => Ok(Packed::Number(Number::from(tag & 0x7F))),
            Tag::NULL if rest.is_empty() => Ok(Packed::Null),
            Tag::FALSE if rest.is_empty() => Ok(Packed::Bool(false)),
            Tag::TRUE if rest.is_empty() => Ok(Packed::Bool(true)),
            _ => read_number(tag, rest).map(Packed::Number),
        }
    }

    /// The object, if it is one.
    ///
    /// # Errors
    /// As [`PackedValue::read`].
    #[cfg(any(test, fuzzing))]
    pub(crate) fn as_object(self) -> Result<Option<PackedObject<'a>>> {
        match self.bytes[0] {
            tag @ Tag::OBJECT..Tag::CONTAINERS_END => self.read_object(tag, &self.bytes[1..]).map(Some),
            _ => Ok(None),
        }
    }

    /// The value at `path` within this one; none if any step is missing.
    ///
    /// # Errors
    /// As [`PackedValue::read`].
    pub(crate) fn get(self, path: &Path) -> Result<Option<PackedValue<'a>>> {
        let mut value = self;
        for segment in path.segments() {
            let child = match value.kind() {
                Kind::Object | Kind::Array => value.child(segment)?,
                _ => None,
            };
            match child {
                Some(child) => value = child,
                None => return Ok(None),
            }
        }
        Ok(Some(value))
    }

    /// The field or, in an array, the element that one segment of a [`Path`] names.
    ///
    /// # Errors
    /// As [`PackedValue::read`].
    #[inline]
    pub(crate) fn child(self, segment: &str) -> Result<Option<PackedValue<'a>>> {
        match self.bytes[0] {
            tag @ Tag::OBJECT..Tag::CONTAINERS_END => self.read_object(tag, &self.bytes[1..])?.get(segment),
            tag @ Tag::ARRAY..Tag::OBJECT => match array_position(segment) {
                Some(position) => self.read_array(tag - Tag::ARRAY, &self.bytes[1..])?.get(position),
                None => Ok(None),
            },
            _ => Ok(None),
        }
    }

    fn read_array(self, width_code: u8, mut rest: &'a [u8]) -> Result<PackedArray<'a>> {
        let count = varint::read(&mut rest)?;
        let children = Children::new(rest, count, width_code)?;
        Ok(PackedArray { shapes: self.shapes, children })
    }

    #[inline(always)]
    fn read_object(self, tag: u8, mut rest: &'a [u8]) -> Result<PackedObject<'a>> {
        let head = varint::read(&mut rest)?;
        let shape = match tag < Tag::NAMED_OBJECT {
            true => Some(ShapeNumber::new(head).and_then(|number| self.shapes.get(number)).ok_or_else(unknown_shape)?),
            false => None,
        };
        let count = shape.map_or(head, |shape| shape.len() as u64);
        let children = Children::new(rest, count, tag & 0x03)?;
        Ok(PackedObject { shapes: self.shapes, children, shape })
    }
}

/// The kind of value each tag begins.
const KINDS: [Option<Kind>; 256] = {
    let mut kinds = [None; 256];
    let mut tag = 0;
    while tag < 256 {
        kinds[tag] = kind_of(tag as u8);
        tag += 1;
    }
    kinds
};

const fn kind_of(tag: u8) -> Option<Kind> {
    Some(match tag {
        Tag::NULL => Kind::Null,
        Tag::FALSE | Tag::TRUE => Kind::Bool,
        Tag::STRING => Kind::String,
        Tag::INTEGER | Tag::NEGATIVE_INTEGER | Tag::DOUBLE | Tag::DECIMAL..Tag::ARRAY | Tag::SMALL_INTEGER.. => {
            Kind::Number
        }
        Tag::ARRAY..Tag::OBJECT => Kind::Array,
        Tag::OBJECT..Tag::CONTAINERS_END => Kind::Object,
        _ => return None,
    })
}

fn read_number(tag: u8, rest: &[u8]) -> Result<Number> {
    if rest.len() > 8 {
        return Err(damaged("a number is too long"));
    }
    if tag == Tag::DOUBLE {
        let mut bytes = [0; 8];
        bytes[..rest.len()].copy_from_slice(rest);
        return Number::from_f64(f64::from_bits(u64::from_be_bytes(bytes)))
            .ok_or_else(|| damaged("a double is not finite"));
    }
    let word = rest.iter().fold(0u64, |word, &byte| word << 8 | u64::from(byte));
    let number = match tag {
        Tag::INTEGER => Some(Number::from(word)),
        Tag::NEGATIVE_INTEGER => i64::try_from(word).ok().map(|turned| Number::from(!turned)),
        Tag::DECIMAL..Tag::ARRAY => {
            let places = usize::from(tag % 8) + 1;
            let magnitude = layout::double_of(word, places);
            magnitude.and_then(|double| Number::from_f64(if tag < Tag::NEGATIVE_DECIMAL { double } else { -double }))
        }
        _ => None,
    };
    number.ok_or_else(|| damaged("a number is malformed"))
}

/// The children of a container: their bytes, and the table that tells where each ends.
#[derive(Clone, Copy)]
struct Children<'a> {
    bytes: &'a [u8],
    table: &'a [u8],
    width: usize,
    count: usize,
}

impl<'a> Children<'a> {
    #[inline(always)]
    fn new(rest: &'a [u8], count: u64, width_code: u8) -> Result<Self> {
        let width = usize::from(width_code) + 1;
        // A child takes at least a byte, which bounds the count before anything is computed from it.
        if count > rest.len() as u64 || count == 0 && !rest.is_empty() {
            return Err(damaged("a container's count and length disagree"));
        }
        let count = count as usize;
        let table_bytes = count.saturating_sub(1) * width;
        let Some(children_bytes) = rest.len().checked_sub(table_bytes) else {
            return Err(damaged("a container is cut off"));
        };
        let (bytes, table) = rest.split_at(children_bytes);
        Ok(Children { bytes, table, width, count })
    }

    /// Where child `position` ends, counted from the first child.
    #[inline]
    fn end(&self, position: usize) -> usize {
        let at = position * self.width;
        match (self.width, self.table.get(at..at + self.width)) {
            (_, None) => self.bytes.len(),
            (1, Some(entry)) => entry[0].into(),
            (_, Some(entry)) => entry.iter().fold(0, |end, &byte| end << 8 | usize::from(byte)),
        }
    }

    #[inline]
    fn extent(&self, start: usize, end: usize) -> Result<&'a [u8]> {
        self.bytes.get(start..end).ok_or_else(|| damaged("a child is outside its container"))
    }

    #[inline(always)]
    fn get(&self, position: usize) -> Result<Option<&'a [u8]>> {
        if position >= self.count {
            return Ok(None);
        }
        let start = if position == 0 { 0 } else { self.end(position - 1) };
        self.extent(start, self.end(position)).map(Some)
    }
}

/// Walks over children in order; stops after the first damaged one.
#[derive(Clone)]
struct Walk<'a> {
    children: Children<'a>,
    position: usize,
    start: usize,
}

impl<'a> Walk<'a> {
    fn new(children: Children<'a>) -> Self {
        Walk { children, position: 0, start: 0 }
    }

    #[inline(always)]
    fn next(&mut self) -> Option<Result<&'a [u8]>> {
        if self.position >= self.children.count {
            return None;
        }
        let end = self.children.end(self.position);
        let extent = self.children.extent(self.start, end);
        (self.position, self.start) = (self.position + 1, end);
        if extent.is_err() {
            self.position = self.children.count;
        }
        Some(extent)
    }

    fn left(&self) -> usize {
        self.children.count - self.position
    }
}

/// A packed array.
#[derive(Clone, Copy)]
pub(crate) struct PackedArray<'a> {
    shapes: &'a Shapes,
    children: Children<'a>,
}

impl<'a> PackedArray<'a> {
    /// How many elements.
    pub(crate) fn len(self) -> usize {
        self.children.count
    }

    /// The element at `position`.
    ///
    /// # Errors
    /// [`Corrupt`](crate::ErrorKind::Corrupt) if the bytes are damaged.
    pub(crate) fn get(self, position: usize) -> Result<Option<PackedValue<'a>>> {
        self.children.get(position)?.map(|bytes| PackedValue::new(bytes, self.shapes)).transpose()
    }

    /// The elements in order; the first damaged one is the last.
    pub(crate) fn iter(self) -> PackedElements<'a> {
        PackedElements { shapes: self.shapes, walk: Walk::new(self.children) }
    }
}

/// The elements of a [`PackedArray`].
#[derive(Clone)]
pub(crate) struct PackedElements<'a> {
    shapes: &'a Shapes,
    walk: Walk<'a>,
}

impl<'a> Iterator for PackedElements<'a> {
    type Item = Result<PackedValue<'a>>;

    #[inline(always)]
    fn next(&mut self) -> Option<Self::Item> {
        Some(self.walk.next()?.and_then(|bytes| PackedValue::new(bytes, self.shapes)))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (0, Some(self.walk.left()))
    }
}

impl<'a> IntoIterator for PackedArray<'a> {
    type Item = Result<PackedValue<'a>>;
    type IntoIter = PackedElements<'a>;

    fn into_iter(self) -> PackedElements<'a> {
        self.iter()
    }
}

/// A packed object.
#[derive(Clone, Copy)]
pub(crate) struct PackedObject<'a> {
    shapes: &'a Shapes,
    children: Children<'a>,
    /// What has its names; none if they stand before the values.
    shape: Option<&'a Shape>,
}

impl<'a> PackedObject<'a> {
    /// How many fields.
    pub(crate) fn len(self) -> usize {
        self.children.count
    }

    /// The number of its shape, for work that is the same for all objects of a shape; none if it carries its names.
    pub(crate) fn shape_number(self) -> Option<ShapeNumber> {
        self.shape.map(Shape::number)
    }

    /// Its shape; none if it carries its names.
    pub(crate) fn shape(self) -> Option<&'a Shape> {
        self.shape
    }

    /// The value of the field `name`. Costs a hash of the name; a search in an object that carries its names.
    ///
    /// # Errors
    /// [`Corrupt`](crate::ErrorKind::Corrupt) if the bytes are damaged.
    #[inline]
    pub(crate) fn get(self, name: &str) -> Result<Option<PackedValue<'a>>> {
        match self.shape {
            Some(shape) => match shape.position(name) {
                Some(position) => self.value(position),
                None => Ok(None),
            },
            None => self.search(name),
        }
    }

    /// The value of the field at `position`.
    ///
    /// # Errors
    /// [`Corrupt`](crate::ErrorKind::Corrupt) if the bytes are damaged.
    #[inline(always)]
    pub(crate) fn value(self, position: usize) -> Result<Option<PackedValue<'a>>> {
        let Some(bytes) = self.children.get(position)? else { return Ok(None) };
        let bytes = if self.shape.is_some() { bytes } else { split_name(bytes)?.1 };
        PackedValue::new(bytes, self.shapes).map(Some)
    }

    /// The fields in order; the first damaged one is the last.
    pub(crate) fn iter(self) -> PackedFields<'a> {
        PackedFields { shapes: self.shapes, shape: self.shape, walk: Walk::new(self.children) }
    }

    fn search(self, name: &str) -> Result<Option<PackedValue<'a>>> {
        for field in self.iter() {
            let (known, value) = field?;
            if known == name {
                return Ok(Some(value));
            }
        }
        Ok(None)
    }
}

/// The fields of a [`PackedObject`].
#[derive(Clone)]
pub(crate) struct PackedFields<'a> {
    shapes: &'a Shapes,
    shape: Option<&'a Shape>,
    walk: Walk<'a>,
}

impl PackedFields<'_> {
    /// Whether the names are those of a shape.
    pub(crate) fn have_shape(&self) -> bool {
        self.shape.is_some()
    }
}

impl<'a> Iterator for PackedFields<'a> {
    type Item = Result<(&'a str, PackedValue<'a>)>;

    #[inline(always)]
    fn next(&mut self) -> Option<Self::Item> {
        let position = self.walk.position;
        let bytes = self.walk.next()?;
        let field = bytes.and_then(|bytes| match self.shape {
            Some(shape) => Ok((shape.name(position).unwrap_or_default(), bytes)),
            None => split_name(bytes),
        });
        Some(field.and_then(|(name, bytes)| Ok((name, PackedValue::new(bytes, self.shapes)?))))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (0, Some(self.walk.left()))
    }
}

impl<'a> IntoIterator for PackedObject<'a> {
    type Item = Result<(&'a str, PackedValue<'a>)>;
    type IntoIter = PackedFields<'a>;

    fn into_iter(self) -> PackedFields<'a> {
        self.iter()
    }
}

/// The name and the value of a field that carries its name.
fn split_name(mut bytes: &[u8]) -> Result<(&str, &[u8])> {
    let name_bytes = varint::read(&mut bytes)?;
    let split = usize::try_from(name_bytes).ok().and_then(|name_bytes| bytes.split_at_checked(name_bytes));
    let (name, value) = split.ok_or_else(|| damaged("a field's name is cut off"))?;
    Ok((str::from_utf8(name).map_err(|_| damaged("a field's name is not UTF-8"))?, value))
}

#[cold]
pub(super) fn damaged(how: &str) -> Error {
    Error::corrupt(format!("a packed value is damaged: {how}"))
}

#[cold]
fn unknown_shape() -> Error {
    damaged("its shape is unknown")
}

#[cfg(test)]
mod tests;
