//! Uniform traversal of plain and packed values.
//!
//! Every traversal in this module tree is written once, generic over [`ValueTree`], so that keys, order, canonical
//! bytes and deserialized types cannot differ between the two forms. The exception is JSON text, which packed values
//! write directly from their bytes (`packed/json.rs`). Traversal of a plain value is statically infallible; traversal
//! of a packed value reports damaged bytes and stops at [`DEPTH_MAX`].

use std::convert::Infallible;

use super::{DEPTH_MAX, Fields, Kind, Number, Packed, PackedElements, PackedFields, PackedValue, Value, packed};
use crate::{Error, Result};

/// A value that can be expanded one level at a time.
pub(super) trait ValueTree<'v>: Copy {
    type Error;
    type Elements: Iterator<Item = Result<Self, Self::Error>>;
    type Fields: Iterator<Item = Result<(&'v str, Self), Self::Error>>;

    fn node(self) -> Result<Node<'v, Self::Elements, Self::Fields>, Self::Error>;
}

/// One level of a value: a scalar, or a container with its child count and an iterator over its children.
pub(super) enum Node<'v, E, F> {
    Null,
    Bool(bool),
    Number(Number),
    String(&'v str),
    Array(usize, E),
    Object(usize, F),
}

impl<E, F> Node<'_, E, F> {
    pub(super) fn kind(&self) -> Kind {
        match self {
            Node::Null => Kind::Null,
            Node::Bool(_) => Kind::Bool,
            Node::Number(_) => Kind::Number,
            Node::String(_) => Kind::String,
            Node::Array(..) => Kind::Array,
            Node::Object(..) => Kind::Object,
        }
    }
}

/// Unwraps the result of an infallible traversal, as the unstable `Result::into_ok` does.
pub(super) fn into_ok<T>(result: Result<T, Infallible>) -> T {
    match result {
        Ok(value) => value,
        Err(never) => match never {},
    }
}

impl From<Infallible> for Error {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

impl<'v> ValueTree<'v> for &'v Value {
    type Error = Infallible;
    type Elements = Infallibly<std::slice::Iter<'v, Value>>;
    type Fields = Infallibly<Fields<'v>>;

    #[inline(always)]
    fn node(self) -> Result<Node<'v, Self::Elements, Self::Fields>, Infallible> {
        Ok(match self {
            Value::Null => Node::Null,
            Value::Bool(truth) => Node::Bool(*truth),
            Value::Number(number) => Node::Number(*number),
            Value::String(text) => Node::String(text),
            Value::Array(elements) => Node::Array(elements.len(), Infallibly(elements.iter())),
            Value::Object(object) => Node::Object(object.len(), Infallibly(object.iter())),
        })
    }
}

/// Iterator over the children of a plain value, which never fails.
pub(super) struct Infallibly<I>(I);

impl<I: Iterator> Iterator for Infallibly<I> {
    type Item = Result<I::Item, Infallible>;

    #[inline(always)]
    fn next(&mut self) -> Option<Self::Item> {
        self.0.next().map(Ok)
    }
}

/// A packed value and the number of levels that it may still have.
#[derive(Clone, Copy)]
pub(super) struct DepthLimited<'v> {
    value: PackedValue<'v>,
    depth: usize,
}

impl<'v> From<PackedValue<'v>> for DepthLimited<'v> {
    fn from(value: PackedValue<'v>) -> Self {
        DepthLimited { value, depth: DEPTH_MAX }
    }
}

impl<'v> ValueTree<'v> for DepthLimited<'v> {
    type Error = Error;
    type Elements = DepthLimitedElements<'v>;
    type Fields = DepthLimitedFields<'v>;

    #[inline(always)]
    fn node(self) -> Result<Node<'v, Self::Elements, Self::Fields>> {
        Ok(match self.value.read()? {
            Packed::Null => Node::Null,
            Packed::Bool(truth) => Node::Bool(truth),
            Packed::Number(number) => Node::Number(number),
            Packed::String(text) => Node::String(text),
            Packed::Array(array) => {
                Node::Array(array.len(), DepthLimitedElements { elements: array.iter(), depth: self.child_depth()? })
            }
            Packed::Object(object) => {
                Node::Object(object.len(), DepthLimitedFields { fields: object.iter(), depth: self.child_depth()? })
            }
        })
    }
}

impl DepthLimited<'_> {
    #[inline(always)]
    fn child_depth(self) -> Result<usize> {
        self.depth.checked_sub(1).ok_or_else(|| packed::damaged("it is nested too deeply"))
    }
}

/// Elements of a packed array.
pub(super) struct DepthLimitedElements<'v> {
    elements: PackedElements<'v>,
    depth: usize,
}

impl<'v> Iterator for DepthLimitedElements<'v> {
    type Item = Result<DepthLimited<'v>>;

    #[inline(always)]
    fn next(&mut self) -> Option<Self::Item> {
        let depth = self.depth;
        Some(self.elements.next()?.map(|value| DepthLimited { value, depth }))
    }
}

/// Fields of a packed object.
pub(super) struct DepthLimitedFields<'v> {
    fields: PackedFields<'v>,
    depth: usize,
}

impl DepthLimitedFields<'_> {
    /// Whether the names are known to be unique: those of a shape are, those read from the bytes might not be.
    pub(super) fn has_unique_names(&self) -> bool {
        self.fields.has_shape()
    }
}

impl<'v> Iterator for DepthLimitedFields<'v> {
    type Item = Result<(&'v str, DepthLimited<'v>)>;

    #[inline(always)]
    fn next(&mut self) -> Option<Self::Item> {
        let depth = self.depth;
        Some(self.fields.next()?.map(|(name, value)| (name, DepthLimited { value, depth })))
    }
}
