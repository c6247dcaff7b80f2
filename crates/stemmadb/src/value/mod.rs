//! JSON values: parsing, printing, collation order, and the packed binary form that documents are stored in.
//!
//! - [`parse`]: the JSON parser, strict and bounded; [`print`](mod@print): the JSON printer. A round trip loses
//!   nothing.
//! - [`collate`]: the collation order of values, and keys whose byte order equals it.
//! - [`pack`](mod@pack), [`packed`], [`shapes`]: the packed form, in which one field is read without decoding the rest.
//! - [`canonical`](mod@canonical): the canonical bytes that a revision hash is computed over.
//! - [`path`], [`element_path`]: paths to fields, and to the elements of arrays; [`patch`]: changes of parts of a
//!   document; [`serialize`], [`deserialize`]: conversion from and to Rust types through serde.
//!
//! Invariants: for any input bytes, no function here panics, recurses deeper than [`DEPTH_MAX`], or uses more memory
//! than a small multiple of the input. A value built by a program may be deeper; [`Value::check`] and packing reject
//! it.
//!
//! This module does not depend on ids, revisions, files or other documents.

mod body;
mod canonical;
pub(crate) mod collate;
mod convert;
mod deserialize;
mod element_path;
mod exact_sum;
mod limits;
mod number;
mod object;
mod pack;
mod packed;
mod parse;
mod patch;
mod path;
mod print;
mod serialize;
mod shapes;
mod traverse;

#[cfg(test)]
pub(crate) mod arbitrary;
#[cfg(test)]
mod tests;

pub(crate) use canonical::CanonicalSink;
pub use limits::{DEPTH_MAX, Limits};
pub use number::Number;
pub use object::{Fields, IntoFields, Object};
pub use parse::ParseError;
pub use patch::Patch;
pub use path::Path;
pub(crate) use path::array_position;

pub(crate) use body::Body;
pub(crate) use element_path::{ElementPath, PathStep, visit_steps};
pub(crate) use exact_sum::ExactSum;
pub(crate) use number::Numeric;
pub(crate) use pack::pack;
pub(crate) use packed::{Packed, PackedArray, PackedElements, PackedFields, PackedObject, PackedValue};
pub(crate) use shapes::{Shape, ShapeNumber, Shapes};

/// A JSON value.
///
/// `==` is exact: numbers are equal only if they have the same representation (`1` is not `1.0`), and objects only if
/// their fields have the same order. Queries compare by collation order instead, in which `1` equals `1.0`.
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

/// The type of a value. The variants are in collation order.
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
    /// All kinds, in collation order.
    pub const ALL: [Kind; 6] = [Kind::Null, Kind::Bool, Kind::Number, Kind::String, Kind::Array, Kind::Object];

    /// The name of the type, as CouchDB's `$type` operator spells it.
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
    /// The type of the value.
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

    /// Whether the value is `null`.
    pub fn is_null(&self) -> bool {
        matches!(self, Value::Null)
    }

    /// The boolean, if the value is one.
    pub fn as_bool(&self) -> Option<bool> {
        match self {
            Value::Bool(truth) => Some(*truth),
            _ => None,
        }
    }

    /// The number, if the value is one.
    pub fn as_number(&self) -> Option<Number> {
        match self {
            Value::Number(number) => Some(*number),
            _ => None,
        }
    }

    /// The integer, if the value is a number stored as an integer that fits `i64`.
    pub fn as_i64(&self) -> Option<i64> {
        self.as_number().and_then(Number::as_i64)
    }

    /// The integer, if the value is a number stored as an integer that fits `u64`.
    pub fn as_u64(&self) -> Option<u64> {
        self.as_number().and_then(Number::as_u64)
    }

    /// The nearest double, if the value is a number.
    pub fn as_f64(&self) -> Option<f64> {
        self.as_number().map(Number::as_f64)
    }

    /// The text, if the value is a string.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Value::String(text) => Some(text),
            _ => None,
        }
    }

    /// The elements, if the value is an array.
    pub fn as_array(&self) -> Option<&[Value]> {
        match self {
            Value::Array(elements) => Some(elements),
            _ => None,
        }
    }

    /// The object, if the value is one.
    pub fn as_object(&self) -> Option<&Object> {
        match self {
            Value::Object(object) => Some(object),
            _ => None,
        }
    }

    /// A mutable reference to the object, if the value is one.
    pub fn as_object_mut(&mut self) -> Option<&mut Object> {
        match self {
            Value::Object(object) => Some(object),
            _ => None,
        }
    }

    /// The value of the field `name`, if the value is an object that has this field.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.as_object().and_then(|object| object.get(name))
    }
}

impl std::fmt::Debug for Value {
    /// Prints compact JSON, so that failed assertions are readable.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.to_json())
    }
}

impl std::fmt::Display for Value {
    /// Prints compact JSON; `{:#}` prints indented JSON.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&if f.alternate() { self.to_json_pretty() } else { self.to_json() })
    }
}
