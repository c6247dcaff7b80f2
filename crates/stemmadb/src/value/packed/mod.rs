//! Packed values: the binary form of JSON values, read in place, one field at a time, without allocation.
//!
//! Layout: a value is a tag byte ([`layout::Tag`]) and a payload up to the end of the value. A scalar does not store
//! its length; its container does. A container is
//!
//! | bytes | what |
//! |---|---|
//! | 1 | tag: array, object or object with names; plus width - 1 |
//! | 1–10 | varint: count of children, or the number of the object's [`Shape`], which has the count |
//! | … | the children one after the other; in an object with names, each after its name's length (varint) and UTF-8 |
//! | (count - 1) × width | offset table: the end of each child but the last, relative to the first child, big-endian |
//!
//! The offset table comes last, so packing writes every byte once and in order.
//!
//! Invariants: every read checks its bounds. Damaged bytes return [`Corrupt`](crate::ErrorKind::Corrupt); they never
//! cause a panic, nor work or memory beyond a small multiple of their length.
//!
//! Performance: functions that run once per field are `inline(always)`. Returning a result of several words through
//! memory stalls a caller that reads it immediately; iterating over objects of 15 fields took up to three times as long
//! without.

pub(crate) mod layout;

mod convert;
mod json;

use std::str;

use super::path::array_position;
use super::{Kind, Number, Path, Shape, ShapeNumber, Shapes};
use crate::varint;
use crate::{Error, Result};
use layout::Tag;

/// A packed value, read in place. Copying it copies two references.
#[derive(Clone, Copy)]
pub(crate) struct PackedValue<'a> {
    bytes: &'a [u8],
    shapes: &'a Shapes,
}

/// One level of a packed value.
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
    /// Wraps the packed form of a value. Checks only the first byte.
    ///
    /// # Errors
    /// [`Corrupt`](crate::ErrorKind::Corrupt) if `bytes` is empty or its tag is unknown.
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
        KINDS[usize::from(self.bytes[0])].expect("`PackedValue::new` checked the tag")
    }

    /// The packed bytes.
    pub(crate) fn bytes(self) -> &'a [u8] {
        self.bytes
    }

    /// Decodes one level of the value.
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

    /// The object, if the value is one.
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

    /// The value at `path` inside this one; `None` if any step is missing.
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

    /// The field of an object or the element of an array that one segment of a [`Path`] names.
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

    /// Calls `visit` with the shape of each object in the value, once for each object.
    ///
    /// # Errors
    /// As [`PackedValue::read`]; also if the value is nested deeper than `depth`.
    pub(crate) fn visit_shapes(self, depth: usize, visit: &mut impl FnMut(&'a Shape)) -> Result<()> {
        if !matches!(self.kind(), Kind::Array | Kind::Object) {
            return Ok(());
        }
        let depth = depth.checked_sub(1).ok_or_else(|| damaged("it is nested too deeply"))?;
        match self.read()? {
            Packed::Array(array) => array.iter().try_for_each(|element| element?.visit_shapes(depth, visit)),
            Packed::Object(object) => {
                object.shape().into_iter().for_each(&mut *visit);
                object.iter().try_for_each(|field| field?.1.visit_shapes(depth, visit))
            }
            _ => Ok(()),
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

/// The kind of value that each tag denotes.
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
        Tag::NEGATIVE_INTEGER => i64::try_from(word).ok().map(|complement| Number::from(!complement)),
        Tag::DECIMAL..Tag::ARRAY => {
            let places = usize::from(tag % 8) + 1;
            let magnitude = layout::from_decimal(word, places);
            magnitude.and_then(|double| Number::from_f64(if tag < Tag::NEGATIVE_DECIMAL { double } else { -double }))
        }
        _ => None,
    };
    number.ok_or_else(|| damaged("a number is malformed"))
}

/// The children of a container: their bytes, and the offset table of their ends.
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
        // A child has at least one byte, so a damaged count is rejected before it is used in a computation.
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

    /// The end of child `position`, relative to the first child.
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
    fn slice(&self, start: usize, end: usize) -> Result<&'a [u8]> {
        self.bytes.get(start..end).ok_or_else(|| damaged("a child is outside its container"))
    }

    #[inline(always)]
    fn get(&self, position: usize) -> Result<Option<&'a [u8]>> {
        if position >= self.count {
            return Ok(None);
        }
        let start = if position == 0 { 0 } else { self.end(position - 1) };
        self.slice(start, self.end(position)).map(Some)
    }
}

/// Iterates over the children of a container in order; stops after the first damaged one.
#[derive(Clone)]
struct ChildIter<'a> {
    children: Children<'a>,
    position: usize,
    start: usize,
}

impl<'a> ChildIter<'a> {
    fn new(children: Children<'a>) -> Self {
        ChildIter { children, position: 0, start: 0 }
    }

    #[inline(always)]
    fn next(&mut self) -> Option<Result<&'a [u8]>> {
        if self.position >= self.children.count {
            return None;
        }
        let end = self.children.end(self.position);
        let child = self.children.slice(self.start, end);
        (self.position, self.start) = (self.position + 1, end);
        if child.is_err() {
            self.position = self.children.count;
        }
        Some(child)
    }

    fn remaining(&self) -> usize {
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
    /// The number of elements.
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

    /// The elements in order. The iterator ends after the first error.
    pub(crate) fn iter(self) -> PackedElements<'a> {
        PackedElements { shapes: self.shapes, children: ChildIter::new(self.children) }
    }
}

/// Iterator over the elements of a [`PackedArray`].
#[derive(Clone)]
pub(crate) struct PackedElements<'a> {
    shapes: &'a Shapes,
    children: ChildIter<'a>,
}

impl<'a> Iterator for PackedElements<'a> {
    type Item = Result<PackedValue<'a>>;

    #[inline(always)]
    fn next(&mut self) -> Option<Self::Item> {
        Some(self.children.next()?.and_then(|bytes| PackedValue::new(bytes, self.shapes)))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (0, Some(self.children.remaining()))
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
    /// The shape with its field names; `None` if the names are stored before the values.
    shape: Option<&'a Shape>,
}

impl<'a> PackedObject<'a> {
    /// The number of fields.
    pub(crate) fn len(self) -> usize {
        self.children.count
    }

    /// The number of its shape, a cache key for work common to all objects of a shape; `None` if it stores its names.
    pub(crate) fn shape_number(self) -> Option<ShapeNumber> {
        self.shape.map(Shape::number)
    }

    /// Its shape; `None` if it stores its names.
    pub(crate) fn shape(self) -> Option<&'a Shape> {
        self.shape
    }

    /// The value of the field `name`. Costs a hash of the name, or a linear search in an object that stores its names.
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

    /// The fields in order. The iterator ends after the first error.
    pub(crate) fn iter(self) -> PackedFields<'a> {
        PackedFields { shapes: self.shapes, shape: self.shape, children: ChildIter::new(self.children) }
    }

    fn search(self, name: &str) -> Result<Option<PackedValue<'a>>> {
        for field in self.iter() {
            let (field_name, value) = field?;
            if field_name == name {
                return Ok(Some(value));
            }
        }
        Ok(None)
    }
}

/// Iterator over the fields of a [`PackedObject`].
#[derive(Clone)]
pub(crate) struct PackedFields<'a> {
    shapes: &'a Shapes,
    shape: Option<&'a Shape>,
    children: ChildIter<'a>,
}

impl PackedFields<'_> {
    /// Whether the names are those of a shape.
    pub(crate) fn has_shape(&self) -> bool {
        self.shape.is_some()
    }
}

impl<'a> Iterator for PackedFields<'a> {
    type Item = Result<(&'a str, PackedValue<'a>)>;

    #[inline(always)]
    fn next(&mut self) -> Option<Self::Item> {
        let position = self.children.position;
        let bytes = self.children.next()?;
        let field = bytes.and_then(|bytes| match self.shape {
            Some(shape) => Ok((shape.name(position).unwrap_or_default(), bytes)),
            None => split_name(bytes),
        });
        Some(field.and_then(|(name, bytes)| Ok((name, PackedValue::new(bytes, self.shapes)?))))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (0, Some(self.children.remaining()))
    }
}

impl<'a> IntoIterator for PackedObject<'a> {
    type Item = Result<(&'a str, PackedValue<'a>)>;
    type IntoIter = PackedFields<'a>;

    fn into_iter(self) -> PackedFields<'a> {
        self.iter()
    }
}

/// Splits a field that stores its name into name and value.
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
