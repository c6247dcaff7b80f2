//! One way to read values, plain or packed, so that text, keys, order and types made of them can't differ.
//!
//! Every walk over values in this room is written once, against [`Source`], but for JSON text, which packed values write from their
//! bytes (`packed/json.rs`). Of a plain value it can't fail, and the
//! compiler knows; of a packed one it says where the bytes are damaged, and ends at [`DEPTH_MAX`].

use std::convert::Infallible;

use super::{DEPTH_MAX, Fields, Kind, Number, Packed, PackedElements, PackedFields, PackedValue, Value, packed};
use crate::{Error, Result};

/// A value that can be looked at, one level at a time.
pub(super) trait Source<'v>: Copy {
    type Error;
    type Elements: Iterator<Item = Result<Self, Self::Error>>;
    type Fields: Iterator<Item = Result<(&'v str, Self), Self::Error>>;

    fn look(self) -> Result<Look<'v, Self::Elements, Self::Fields>, Self::Error>;
}

/// What a value is, one level deep; containers with their count.
pub(super) enum Look<'v, E, F> {
    Null,
    Bool(bool),
    Number(Number),
    String(&'v str),
    Array(usize, E),
    Object(usize, F),
}

impl<E, F> Look<'_, E, F> {
    pub(super) fn kind(&self) -> Kind {
        match self {
            Look::Null => Kind::Null,
            Look::Bool(_) => Kind::Bool,
            Look::Number(_) => Kind::Number,
            Look::String(_) => Kind::String,
            Look::Array(..) => Kind::Array,
            Look::Object(..) => Kind::Object,
        }
    }
}

/// The result of a walk that can't fail.
pub(super) fn certain<T>(result: Result<T, Infallible>) -> T {
    match result {
        Ok(made) => made,
        Err(never) => match never {},
    }
}

impl From<Infallible> for Error {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

impl<'v> Source<'v> for &'v Value {
    type Error = Infallible;
    type Elements = Plain<std::slice::Iter<'v, Value>>;
    type Fields = Plain<Fields<'v>>;

    #[inline(always)]
    fn look(self) -> Result<Look<'v, Self::Elements, Self::Fields>, Infallible> {
        Ok(match self {
            Value::Null => Look::Null,
            Value::Bool(truth) => Look::Bool(*truth),
            Value::Number(number) => Look::Number(*number),
            Value::String(text) => Look::String(text),
            Value::Array(elements) => Look::Array(elements.len(), Plain(elements.iter())),
            Value::Object(object) => Look::Object(object.len(), Plain(object.iter())),
        })
    }
}

/// Children of a plain value, none of which can be damaged.
pub(super) struct Plain<I>(I);

impl<I: Iterator> Iterator for Plain<I> {
    type Item = Result<I::Item, Infallible>;

    #[inline(always)]
    fn next(&mut self) -> Option<Self::Item> {
        self.0.next().map(Ok)
    }
}

/// A packed value, and how many levels it may have.
#[derive(Clone, Copy)]
pub(super) struct Bounded<'v> {
    value: PackedValue<'v>,
    depth: usize,
}

impl<'v> From<PackedValue<'v>> for Bounded<'v> {
    fn from(value: PackedValue<'v>) -> Self {
        Bounded { value, depth: DEPTH_MAX }
    }
}

impl<'v> Source<'v> for Bounded<'v> {
    type Error = Error;
    type Elements = BoundedElements<'v>;
    type Fields = BoundedFields<'v>;

    #[inline(always)]
    fn look(self) -> Result<Look<'v, Self::Elements, Self::Fields>> {
        Ok(match self.value.read()? {
            Packed::Null => Look::Null,
            Packed::Bool(truth) => Look::Bool(truth),
            Packed::Number(number) => Look::Number(number),
            Packed::String(text) => Look::String(text),
            Packed::Array(array) => {
                Look::Array(array.len(), BoundedElements { elements: array.iter(), depth: self.within()? })
            }
            Packed::Object(object) => {
                Look::Object(object.len(), BoundedFields { fields: object.iter(), depth: self.within()? })
            }
        })
    }
}

impl Bounded<'_> {
    #[inline(always)]
    fn within(self) -> Result<usize> {
        self.depth.checked_sub(1).ok_or_else(|| packed::damaged("it is nested too deeply"))
    }
}

/// Elements of a packed array.
pub(super) struct BoundedElements<'v> {
    elements: PackedElements<'v>,
    depth: usize,
}

impl<'v> Iterator for BoundedElements<'v> {
    type Item = Result<Bounded<'v>>;

    #[inline(always)]
    fn next(&mut self) -> Option<Self::Item> {
        let depth = self.depth;
        Some(self.elements.next()?.map(|value| Bounded { value, depth }))
    }
}

/// Fields of a packed object.
pub(super) struct BoundedFields<'v> {
    fields: PackedFields<'v>,
    depth: usize,
}

impl BoundedFields<'_> {
    /// Whether the names are a shape's, which differ; names read from the bytes might not.
    pub(super) fn names_differ(&self) -> bool {
        self.fields.have_shape()
    }
}

impl<'v> Iterator for BoundedFields<'v> {
    type Item = Result<(&'v str, Bounded<'v>)>;

    #[inline(always)]
    fn next(&mut self) -> Option<Self::Item> {
        let depth = self.depth;
        Some(self.fields.next()?.map(|(name, value)| (name, Bounded { value, depth })))
    }
}
