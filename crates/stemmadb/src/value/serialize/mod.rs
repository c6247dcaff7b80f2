//! Serialization through serde: Rust types to values, and values to any format.
//!
//! Structs and maps become objects; sequences, tuples and bytes become arrays; `None` and unit become null; an enum
//! becomes its variant's name, or an object of one field if the variant has data. Integers and doubles stay exact.
//! Types without a JSON equivalent are rejected: `NaN` and infinities, integers beyond 64 bits, duplicate names, and
//! map keys other than strings, integers, booleans and unit variants.

use std::fmt::Display;

use serde::ser::{
    Impossible, Serialize, SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant, SerializeTuple,
    SerializeTupleStruct, SerializeTupleVariant, Serializer,
};

use super::{DEPTH_MAX, Number, Numeric, Object, Value};
use crate::{Error, Result};

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Value::Null => serializer.serialize_unit(),
            Value::Bool(truth) => serializer.serialize_bool(*truth),
            Value::Number(number) => number.serialize(serializer),
            Value::String(text) => serializer.serialize_str(text),
            Value::Array(elements) => serializer.collect_seq(elements),
            Value::Object(object) => object.serialize(serializer),
        }
    }
}

impl Serialize for Number {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.numeric() {
            Numeric::I64(signed) => serializer.serialize_i64(signed),
            Numeric::U64(unsigned) => serializer.serialize_u64(unsigned),
            Numeric::F64(double) => serializer.serialize_f64(double),
        }
    }
}

impl Serialize for Object {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self)
    }
}

impl Value {
    /// Converts anything that serde can serialize: a struct, a map, the result of `serde_json::json!`.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) if it has no JSON equivalent or is deeper than [`DEPTH_MAX`]; the message
    /// names the field.
    pub fn from_serialize<T: Serialize + ?Sized>(source: &T) -> Result<Value> {
        source.serialize(ValueSerializer { depth: DEPTH_MAX })
    }
}

impl serde::ser::Error for Error {
    fn custom<T: Display>(message: T) -> Self {
        Error::invalid(message.to_string())
    }
}

/// Serializer that builds a value of at most `depth` nested containers.
#[derive(Clone, Copy)]
struct ValueSerializer {
    depth: usize,
}

impl ValueSerializer {
    fn deeper(self) -> Result<Self> {
        let depth = self
            .depth
            .checked_sub(1)
            .ok_or_else(|| Error::invalid(format!("more than {DEPTH_MAX} arrays and objects within each other")))?;
        Ok(ValueSerializer { depth })
    }

    fn elements(self, variant: Option<&'static str>, count: Option<usize>) -> Result<ArrayBuilder> {
        let nested = self.deeper()?;
        let nested = if variant.is_some() { nested.deeper()? } else { nested };
        Ok(ArrayBuilder { elements: Vec::with_capacity(count.unwrap_or(0).min(4096)), nested, variant })
    }

    fn fields(self, variant: Option<&'static str>, count: Option<usize>) -> Result<ObjectBuilder> {
        let nested = self.deeper()?;
        let nested = if variant.is_some() { nested.deeper()? } else { nested };
        Ok(ObjectBuilder { object: Object::with_capacity(count.unwrap_or(0).min(4096)), name: None, nested, variant })
    }
}

/// Wraps the data of an enum variant in an object of one field; other values are returned unchanged.
fn wrap_variant(variant: Option<&'static str>, value: Value) -> Value {
    match variant {
        Some(variant) => Value::Object([(variant, value)].into_iter().collect()),
        None => value,
    }
}

fn wide_integer(integer: Option<Number>) -> Result<Value> {
    let out_of_range = || Error::invalid("an integer outside -2^63 to 2^64 - 1").with_hint("store it as a string");
    integer.map(Value::Number).ok_or_else(out_of_range)
}

impl Serializer for ValueSerializer {
    type Ok = Value;
    type Error = Error;
    type SerializeSeq = ArrayBuilder;
    type SerializeTuple = ArrayBuilder;
    type SerializeTupleStruct = ArrayBuilder;
    type SerializeTupleVariant = ArrayBuilder;
    type SerializeMap = ObjectBuilder;
    type SerializeStruct = ObjectBuilder;
    type SerializeStructVariant = ObjectBuilder;

    fn serialize_bool(self, truth: bool) -> Result<Value> {
        Ok(Value::Bool(truth))
    }

    fn serialize_i8(self, integer: i8) -> Result<Value> {
        Ok(integer.into())
    }

    fn serialize_i16(self, integer: i16) -> Result<Value> {
        Ok(integer.into())
    }

    fn serialize_i32(self, integer: i32) -> Result<Value> {
        Ok(integer.into())
    }

    fn serialize_i64(self, integer: i64) -> Result<Value> {
        Ok(integer.into())
    }

    fn serialize_i128(self, integer: i128) -> Result<Value> {
        wide_integer(Number::from_i128(integer))
    }

    fn serialize_u8(self, integer: u8) -> Result<Value> {
        Ok(integer.into())
    }

    fn serialize_u16(self, integer: u16) -> Result<Value> {
        Ok(integer.into())
    }

    fn serialize_u32(self, integer: u32) -> Result<Value> {
        Ok(integer.into())
    }

    fn serialize_u64(self, integer: u64) -> Result<Value> {
        Ok(integer.into())
    }

    fn serialize_u128(self, integer: u128) -> Result<Value> {
        wide_integer(u64::try_from(integer).ok().map(Number::from))
    }

    fn serialize_f32(self, single: f32) -> Result<Value> {
        self.serialize_f64(single.into())
    }

    fn serialize_f64(self, double: f64) -> Result<Value> {
        let not_finite = || {
            Error::invalid(format!("{double} can't be written in JSON")).with_hint("store null, or leave the field out")
        };
        Number::from_f64(double).map(Value::Number).ok_or_else(not_finite)
    }

    fn serialize_char(self, character: char) -> Result<Value> {
        Ok(character.into())
    }

    fn serialize_str(self, text: &str) -> Result<Value> {
        Ok(text.into())
    }

    fn serialize_bytes(self, bytes: &[u8]) -> Result<Value> {
        self.deeper()?;
        Ok(bytes.into())
    }

    fn serialize_none(self) -> Result<Value> {
        Ok(Value::Null)
    }

    fn serialize_some<T: Serialize + ?Sized>(self, source: &T) -> Result<Value> {
        source.serialize(self)
    }

    fn serialize_unit(self) -> Result<Value> {
        Ok(Value::Null)
    }

    fn serialize_unit_struct(self, _: &'static str) -> Result<Value> {
        Ok(Value::Null)
    }

    fn serialize_unit_variant(self, _: &'static str, _: u32, variant: &'static str) -> Result<Value> {
        Ok(variant.into())
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, _: &'static str, source: &T) -> Result<Value> {
        source.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        source: &T,
    ) -> Result<Value> {
        Ok(wrap_variant(Some(variant), source.serialize(self.deeper()?)?))
    }

    fn serialize_seq(self, count: Option<usize>) -> Result<ArrayBuilder> {
        self.elements(None, count)
    }

    fn serialize_tuple(self, count: usize) -> Result<ArrayBuilder> {
        self.elements(None, Some(count))
    }

    fn serialize_tuple_struct(self, _: &'static str, count: usize) -> Result<ArrayBuilder> {
        self.elements(None, Some(count))
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        count: usize,
    ) -> Result<ArrayBuilder> {
        self.elements(Some(variant), Some(count))
    }

    fn serialize_map(self, count: Option<usize>) -> Result<ObjectBuilder> {
        self.fields(None, count)
    }

    fn serialize_struct(self, _: &'static str, count: usize) -> Result<ObjectBuilder> {
        self.fields(None, Some(count))
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        count: usize,
    ) -> Result<ObjectBuilder> {
        self.fields(Some(variant), Some(count))
    }
}

/// Builds an array from its serialized elements.
struct ArrayBuilder {
    elements: Vec<Value>,
    nested: ValueSerializer,
    variant: Option<&'static str>,
}

impl ArrayBuilder {
    fn push<T: Serialize + ?Sized>(&mut self, source: &T) -> Result<()> {
        let position = self.elements.len();
        let element =
            source.serialize(self.nested).map_err(|error| error.within(format_args!("element {position}")))?;
        self.elements.push(element);
        Ok(())
    }

    fn finish(self) -> Result<Value> {
        Ok(wrap_variant(self.variant, Value::Array(self.elements)))
    }
}

macro_rules! elements {
    ($($kind:ident $push:ident)*) => {$(
        impl $kind for ArrayBuilder {
            type Ok = Value;
            type Error = Error;

            fn $push<T: Serialize + ?Sized>(&mut self, source: &T) -> Result<()> {
                self.push(source)
            }

            fn end(self) -> Result<Value> {
                self.finish()
            }
        }
    )*};
}

elements! {
    SerializeSeq serialize_element
    SerializeTuple serialize_element
    SerializeTupleStruct serialize_field
    SerializeTupleVariant serialize_field
}

/// Builds an object from its serialized fields.
struct ObjectBuilder {
    object: Object,
    name: Option<String>,
    nested: ValueSerializer,
    variant: Option<&'static str>,
}

impl ObjectBuilder {
    fn push<T: Serialize + ?Sized>(&mut self, name: String, source: &T) -> Result<()> {
        let value = source.serialize(self.nested).map_err(|error| error.within(format_args!("field {name:?}")))?;
        if self.object.contains(&name) {
            return Err(Error::invalid(format!("the field {name:?} is given twice in one object")));
        }
        self.object.insert(name, value);
        Ok(())
    }

    fn finish(self) -> Result<Value> {
        Ok(wrap_variant(self.variant, Value::Object(self.object)))
    }
}

macro_rules! fields {
    ($($kind:ident)*) => {$(
        impl $kind for ObjectBuilder {
            type Ok = Value;
            type Error = Error;

            fn serialize_field<T: Serialize + ?Sized>(&mut self, name: &'static str, source: &T) -> Result<()> {
                self.push(name.to_owned(), source)
            }

            fn end(self) -> Result<Value> {
                self.finish()
            }
        }
    )*};
}

fields! { SerializeStruct SerializeStructVariant }

impl SerializeMap for ObjectBuilder {
    type Ok = Value;
    type Error = Error;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<()> {
        self.name = Some(key.serialize(KeySerializer)?);
        Ok(())
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, source: &T) -> Result<()> {
        let name = self.name.take().ok_or_else(|| Error::invalid("a map serialized a value before its key"))?;
        self.push(name, source)
    }

    fn end(self) -> Result<Value> {
        self.finish()
    }
}

/// Serializer that converts a map key to a field name.
struct KeySerializer;

#[cold]
fn unsupported_key() -> Error {
    Error::invalid("a map's key is neither a string nor an integer, a boolean or a unit variant")
}

macro_rules! supported_keys {
    ($($method:ident $key:ty)*) => {$(
        fn $method(self, key: $key) -> Result<String> {
            Ok(key.to_string())
        }
    )*};
}

macro_rules! unsupported_keys {
    ($($method:ident($($argument:ty),*) -> $ok:ty;)*) => {$(
        fn $method(self, $(_: $argument),*) -> Result<$ok> {
            Err(unsupported_key())
        }
    )*};
}

type Never = Impossible<String, Error>;

impl Serializer for KeySerializer {
    type Ok = String;
    type Error = Error;
    type SerializeSeq = Never;
    type SerializeTuple = Never;
    type SerializeTupleStruct = Never;
    type SerializeTupleVariant = Never;
    type SerializeMap = Never;
    type SerializeStruct = Never;
    type SerializeStructVariant = Never;

    supported_keys! {
        serialize_bool bool
        serialize_i8 i8
        serialize_i16 i16
        serialize_i32 i32
        serialize_i64 i64
        serialize_i128 i128
        serialize_u8 u8
        serialize_u16 u16
        serialize_u32 u32
        serialize_u64 u64
        serialize_u128 u128
        serialize_char char
        serialize_str &str
    }

    unsupported_keys! {
        serialize_f32(f32) -> String;
        serialize_f64(f64) -> String;
        serialize_bytes(&[u8]) -> String;
        serialize_none() -> String;
        serialize_unit() -> String;
        serialize_unit_struct(&'static str) -> String;
        serialize_seq(Option<usize>) -> Never;
        serialize_tuple(usize) -> Never;
        serialize_tuple_struct(&'static str, usize) -> Never;
        serialize_tuple_variant(&'static str, u32, &'static str, usize) -> Never;
        serialize_map(Option<usize>) -> Never;
        serialize_struct(&'static str, usize) -> Never;
        serialize_struct_variant(&'static str, u32, &'static str, usize) -> Never;
    }

    fn serialize_unit_variant(self, _: &'static str, _: u32, variant: &'static str) -> Result<String> {
        Ok(variant.to_owned())
    }

    fn serialize_some<T: Serialize + ?Sized>(self, key: &T) -> Result<String> {
        key.serialize(self)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, _: &'static str, key: &T) -> Result<String> {
        key.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: &T,
    ) -> Result<String> {
        Err(unsupported_key())
    }
}

#[cfg(test)]
mod tests;
