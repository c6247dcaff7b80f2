//! Deserialization through serde: plain and packed values to Rust types, and any format to values.
//!
//! The inverse of [`serialize`](super::serialize). A packed value is read in place, and its strings can be borrowed.

use std::fmt;

use serde::de::{
    self, Deserialize, DeserializeSeed, Deserializer, EnumAccess, IntoDeserializer, MapAccess, SeqAccess, Unexpected,
    VariantAccess, Visitor,
};
use serde::forward_to_deserialize_any;

use super::traverse::{DepthLimited, Node, ValueTree};
use super::{DEPTH_MAX, Number, Numeric, Object, PackedValue, Value};
use crate::{Error, Result};

impl Value {
    /// Deserializes this value into a `T`, which may borrow strings from it.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) if the value doesn't fit `T`; the message names the field.
    pub fn deserialize_into<'de, T: Deserialize<'de>>(&'de self) -> Result<T> {
        T::deserialize(ValueDeserializer { source: self })
    }

    /// As [`Value::deserialize_into`], with a seed.
    pub(crate) fn deserialize_with<'de, S: DeserializeSeed<'de>>(&'de self, seed: S) -> Result<S::Value> {
        seed.deserialize(ValueDeserializer { source: self })
    }
}

impl<'a> PackedValue<'a> {
    /// Deserializes this value into a `T`, which may borrow strings from it, without unpacking it.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) if the value doesn't fit `T`; the message names the field.
    /// [`Corrupt`](crate::ErrorKind::Corrupt) if the bytes are damaged.
    pub(crate) fn deserialize_into<T: Deserialize<'a>>(self) -> Result<T> {
        T::deserialize(ValueDeserializer { source: DepthLimited::from(self) })
    }

    /// As [`PackedValue::deserialize_into`], with a seed.
    pub(crate) fn deserialize_with<S: DeserializeSeed<'a>>(self, seed: S) -> Result<S::Value> {
        seed.deserialize(ValueDeserializer { source: DepthLimited::from(self) })
    }
}

impl de::Error for Error {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Error::invalid(message.to_string())
    }
}

/// Deserializer of a plain or packed value.
struct ValueDeserializer<S> {
    source: S,
}

impl<'de, S: ValueTree<'de>> Deserializer<'de> for ValueDeserializer<S>
where
    Error: From<S::Error>,
{
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        match self.source.node()? {
            Node::Null => visitor.visit_unit(),
            Node::Bool(truth) => visitor.visit_bool(truth),
            Node::Number(number) => match number.numeric() {
                Numeric::I64(signed) => visitor.visit_i64(signed),
                Numeric::U64(unsigned) => visitor.visit_u64(unsigned),
                Numeric::F64(double) => visitor.visit_f64(double),
            },
            Node::String(text) => visitor.visit_borrowed_str(text),
            Node::Array(count, elements) => {
                let mut elements = ArrayAccess::<S> { elements, count, position: 0 };
                let deserialized = visitor.visit_seq(&mut elements)?;
                elements.finish(deserialized)
            }
            Node::Object(_, fields) => visitor.visit_map(ObjectAccess::<S> { fields, field: None }),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        match self.source.node()? {
            Node::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value> {
        let wrong =
            |found| Err(<Error as de::Error>::invalid_type(found, &"a variant's name, or an object of one field"));
        match self.source.node()? {
            Node::String(variant) => visitor.visit_enum(EnumVariant::<S> { variant, data: None }),
            Node::Object(1, mut fields) => match fields.next().transpose()? {
                Some((variant, data)) => {
                    let deserialized = visitor.visit_enum(EnumVariant { variant, data: Some(data) });
                    deserialized.map_err(|error| in_field(error, variant))
                }
                None => wrong(Unexpected::Map),
            },
            Node::Object(..) => wrong(Unexpected::Map),
            Node::Null => wrong(Unexpected::Unit),
            Node::Bool(truth) => wrong(Unexpected::Bool(truth)),
            Node::Number(number) => wrong(Unexpected::Other(&format!("number {number}"))),
            Node::Array(..) => wrong(Unexpected::Seq),
        }
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        visitor.visit_unit()
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf
        unit unit_struct seq tuple tuple_struct map struct identifier
    }
}

fn in_field(error: Error, name: &str) -> Error {
    error.within(format_args!("field {name:?}"))
}

struct ArrayAccess<'de, S: ValueTree<'de>> {
    elements: S::Elements,
    count: usize,
    position: usize,
}

impl<'de, S: ValueTree<'de>> ArrayAccess<'de, S> {
    /// Returns the deserialized array, or an error if the visitor left elements unread, as that of a shorter tuple
    /// does.
    fn finish<T>(self, deserialized: T) -> Result<T> {
        if self.position == self.count {
            return Ok(deserialized);
        }
        let expected = format!("an array of {} elements", self.position);
        Err(de::Error::invalid_length(self.count, &expected.as_str()))
    }
}

impl<'de, S: ValueTree<'de>> SeqAccess<'de> for &mut ArrayAccess<'de, S>
where
    Error: From<S::Error>,
{
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>> {
        let Some(source) = self.elements.next().transpose()? else { return Ok(None) };
        let position = self.position;
        self.position += 1;
        let deserialized = seed.deserialize(ValueDeserializer { source });
        deserialized.map(Some).map_err(|error| error.within(format_args!("element {position}")))
    }
}

struct ObjectAccess<'de, S: ValueTree<'de>> {
    fields: S::Fields,
    field: Option<(&'de str, S)>,
}

impl<'de, S: ValueTree<'de>> MapAccess<'de> for ObjectAccess<'de, S>
where
    Error: From<S::Error>,
{
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>> {
        self.field = self.fields.next().transpose()?;
        self.field.map(|(name, _)| seed.deserialize(KeyDeserializer(name))).transpose()
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value> {
        let Some((name, source)) = self.field.take() else {
            return Err(Error::invalid("a field's value was requested before its name"));
        };
        seed.deserialize(ValueDeserializer { source }).map_err(|error| in_field(error, name))
    }
}

/// An enum variant: its name, and its data if it has any.
struct EnumVariant<'de, S> {
    variant: &'de str,
    data: Option<S>,
}

impl<'de, S: ValueTree<'de>> EnumVariant<'de, S> {
    fn data(self, expected: &'static str) -> Result<ValueDeserializer<S>> {
        let missing = || <Error as de::Error>::invalid_type(Unexpected::UnitVariant, &expected);
        Ok(ValueDeserializer { source: self.data.ok_or_else(missing)? })
    }
}

impl<'de, S: ValueTree<'de>> EnumAccess<'de> for EnumVariant<'de, S>
where
    Error: From<S::Error>,
{
    type Error = Error;
    type Variant = Self;

    fn variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<(T::Value, Self)> {
        let name: de::value::BorrowedStrDeserializer<'de, Error> =
            de::value::BorrowedStrDeserializer::new(self.variant);
        Ok((seed.deserialize(name)?, self))
    }
}

impl<'de, S: ValueTree<'de>> VariantAccess<'de> for EnumVariant<'de, S>
where
    Error: From<S::Error>,
{
    type Error = Error;

    fn unit_variant(self) -> Result<()> {
        match self.data {
            Some(source) => <()>::deserialize(ValueDeserializer { source }),
            None => Ok(()),
        }
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value> {
        seed.deserialize(self.data("a variant that holds a value")?)
    }

    fn tuple_variant<V: Visitor<'de>>(self, count: usize, visitor: V) -> Result<V::Value> {
        self.data("a variant that holds an array")?.deserialize_tuple(count, visitor)
    }

    fn struct_variant<V: Visitor<'de>>(self, fields: &'static [&'static str], visitor: V) -> Result<V::Value> {
        self.data("a variant that holds an object")?.deserialize_struct("", fields, visitor)
    }
}

/// Deserializer of a field name: as a string, or as the integer or boolean that a map's key type requires.
struct KeyDeserializer<'de>(&'de str);

macro_rules! parsed_keys {
    ($($method:ident $visit:ident $key:ty)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
            match self.0.parse::<$key>() {
                // Accept only the canonical spelling, so that two names never become the same key.
                Ok(key) if key.to_string() == self.0 => visitor.$visit(key),
                _ => visitor.visit_borrowed_str(self.0),
            }
        }
    )*};
}

impl<'de> Deserializer<'de> for KeyDeserializer<'de> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        visitor.visit_borrowed_str(self.0)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value> {
        visitor.visit_enum(self.0.into_deserializer())
    }

    parsed_keys! {
        deserialize_bool visit_bool bool
        deserialize_i8 visit_i8 i8
        deserialize_i16 visit_i16 i16
        deserialize_i32 visit_i32 i32
        deserialize_i64 visit_i64 i64
        deserialize_i128 visit_i128 i128
        deserialize_u8 visit_u8 u8
        deserialize_u16 visit_u16 u16
        deserialize_u32 visit_u32 u32
        deserialize_u64 visit_u64 u64
        deserialize_u128 visit_u128 u128
    }

    forward_to_deserialize_any! {
        f32 f64 char str string bytes byte_buf unit unit_struct seq tuple tuple_struct map struct identifier ignored_any
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        ValueVisitor { depth: DEPTH_MAX }.deserialize(deserializer)
    }
}

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::Number(number) => Ok(number),
            other => Err(de::Error::custom(format_args!("expected a number, found {}", other.kind()))),
        }
    }
}

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::Object(object) => Ok(object),
            other => Err(de::Error::custom(format_args!("expected an object, found {}", other.kind()))),
        }
    }
}

/// Visitor that builds a value of at most `depth` nested containers from any format, as strictly as [`Value::parse`].
#[derive(Clone, Copy)]
struct ValueVisitor {
    depth: usize,
}

impl ValueVisitor {
    fn deeper<E: de::Error>(self) -> Result<Self, E> {
        let too_deep = || E::custom(format_args!("more than {DEPTH_MAX} arrays and objects within each other"));
        Ok(ValueVisitor { depth: self.depth.checked_sub(1).ok_or_else(too_deep)? })
    }
}

impl<'de> DeserializeSeed<'de> for ValueVisitor {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, truth: bool) -> Result<Value, E> {
        Ok(Value::Bool(truth))
    }

    fn visit_i64<E>(self, signed: i64) -> Result<Value, E> {
        Ok(signed.into())
    }

    fn visit_u64<E>(self, unsigned: u64) -> Result<Value, E> {
        Ok(unsigned.into())
    }

    fn visit_f64<E: de::Error>(self, double: f64) -> Result<Value, E> {
        let not_finite = || E::custom(format_args!("{double} can't be written in JSON"));
        Number::from_f64(double).map(Value::Number).ok_or_else(not_finite)
    }

    fn visit_i128<E: de::Error>(self, integer: i128) -> Result<Value, E> {
        let out_of_range = || E::custom("an integer outside -2^63 to 2^64 - 1");
        Number::from_i128(integer).map(Value::Number).ok_or_else(out_of_range)
    }

    fn visit_u128<E: de::Error>(self, integer: u128) -> Result<Value, E> {
        self.visit_i128(i128::try_from(integer).unwrap_or(i128::MAX))
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(text.into())
    }

    fn visit_string<E>(self, text: String) -> Result<Value, E> {
        Ok(text.into())
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Value, A::Error> {
        let nested = self.deeper()?;
        let mut elements = Vec::with_capacity(sequence.size_hint().unwrap_or(0).min(4096));
        while let Some(element) = sequence.next_element_seed(nested)? {
            elements.push(element);
        }
        Ok(Value::Array(elements))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let nested = self.deeper()?;
        let mut object = Object::with_capacity(map.size_hint().unwrap_or(0).min(4096));
        while let Some(name) = map.next_key::<String>()? {
            if object.contains(&name) {
                return Err(de::Error::custom(format_args!("the field {name:?} is given twice in one object")));
            }
            object.insert(name, map.next_value_seed(nested)?);
        }
        Ok(Value::Object(object))
    }
}
