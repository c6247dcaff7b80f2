//! What is a document? JSON values that survive a round trip exactly, their one order, and their packed form.
//!
//! - [`parse`]: the one JSON parser, strict and bounded; [`print`](mod@print): its inverse.
//! - [`collate`]: the order of values, and keys whose bytes have the same order.
//! - [`pack`](mod@pack), [`packed`], [`shapes`]: records in which one field is read without decoding the rest.
//! - [`canonical`](mod@canonical): the bytes a revision is the hash of.
//! - [`path`]: where in a value; [`serialize`], [`deserialize`]: from and to the types of a program.
//!
//! Invariants: whatever bytes come in, nothing here panics, recurses deeper than [`DEPTH_MAX`] or uses more memory than a
//! small multiple of them. A value that a program builds may be deeper; [`Value::check`] and packing refuse it.
//! **This room knows nothing of ids, revisions, files or other documents.**

mod body;
mod canonical;
pub(crate) mod collate;
mod convert;
mod deserialize;
mod exact_sum;
mod limits;
mod number;
mod object;
mod pack;
mod packed;
mod parse;
mod path;
mod print;
mod serialize;
mod shapes;
mod source;
pub(crate) mod varint;

#[cfg(test)]
pub(crate) mod arbitrary;
#[cfg(test)]
mod tests;

pub(crate) use canonical::CanonicalSink;
pub use limits::{DEPTH_MAX, Limits};
pub use number::Number;
pub use object::{Fields, IntoFields, Object};
pub use parse::ParseError;
pub use path::Path;
pub(crate) use path::array_position;

pub(crate) use body::Body;
pub(crate) use exact_sum::ExactSum;
pub(crate) use number::Numeric;
pub(crate) use pack::pack;
pub(crate) use packed::{Packed, PackedArray, PackedElements, PackedFields, PackedObject, PackedValue};
pub(crate) use shapes::{Shape, ShapeNumber, Shapes};

/// A JSON value.
///
/// `==` is exact: numbers are equal if they are held alike (`1` is not `1.0`), objects if their fields have the same
/// order. Queries compare by value instead.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub enum Value {
    /// `null`.
    #[default]
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A number, integer or double.
    Number(Number),
    /// A string.
    String(String),
    /// An array.
    Array(Vec<Value>),
    /// An object.
    Object(Object),
}

/// The type of a value, in the order of values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool,
    /// A number, integer or double.
    Number,
    /// A string.
    String,
    /// An array.
    Array,
    /// An object.
    Object,
}

impl Kind {
    /// All kinds, in the order of values.
    pub const ALL: [Kind; 6] = [Kind::Null, Kind::Bool, Kind::Number, Kind::String, Kind::Array, Kind::Object];

    /// Its name as CouchDB's `$type` operator has it.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Null => "null",
            Kind::Bool => "boolean",
            Kind::Number => "number",
            Kind::String => "string",
            Kind::Array => "array",
            Kind::Object => "object",
        }
    }
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

impl Value {
    /// Its type.
    pub fn kind(&self) -> Kind {
        match self {
            Value::Null => Kind::Null,
            Value::Bool(_) => Kind::Bool,
            Value::Number(_) => Kind::Number,
            Value::String(_) => Kind::String,
            Value::Array(_) => Kind::Array,
            Value::Object(_) => Kind::Object,
        }
    }

    /// Whether it is `null`.
    pub fn is_null(&self) -> bool {
        matches!(self, Value::Null)
    }

    /// The truth value, if it is one.
    pub fn as_bool(&self) -> Option<bool> {
        match self {
            Value::Bool(truth) => Some(*truth),
            _ => None,
        }
    }

    /// The number, if it is one.
    pub fn as_number(&self) -> Option<Number> {
        match self {
            Value::Number(number) => Some(*number),
            _ => None,
        }
    }

    /// The integer, if it is a number held as one that fits.
    pub fn as_i64(&self) -> Option<i64> {
        self.as_number().and_then(Number::as_i64)
    }

    /// The integer, if it is a number held as one that fits.
    pub fn as_u64(&self) -> Option<u64> {
        self.as_number().and_then(Number::as_u64)
    }

    /// The nearest double, if it is a number.
    pub fn as_f64(&self) -> Option<f64> {
        self.as_number().map(Number::as_f64)
    }

    /// The text, if it is a string.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Value::String(text) => Some(text),
            _ => None,
        }
    }

    /// The elements, if it is an array.
    pub fn as_array(&self) -> Option<&[Value]> {
        match self {
            Value::Array(elements) => Some(elements),
            _ => None,
        }
    }

    /// The object, if it is one.
    pub fn as_object(&self) -> Option<&Object> {
        match self {
            Value::Object(object) => Some(object),
            _ => None,
        }
    }

    /// The object, if it is one, to change it.
    pub fn as_object_mut(&mut self) -> Option<&mut Object> {
        match self {
            Value::Object(object) => Some(object),
            _ => None,
        }
    }

    /// The value of the field `name`, if it is an object that has one.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.as_object().and_then(|object| object.get(name))
    }
}

impl std::fmt::Debug for Value {
    /// As JSON: what a failed assertion shows.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.to_json())
    }
}

impl std::fmt::Display for Value {
    /// As compact JSON; with `{:#}` indented.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&if f.alternate() { self.to_json_pretty() } else { self.to_json() })
    }
}
