//! The types of a program from values, packed or not, and values from any format, through serde.
//!
//! The inverse of [`serialize`](super::serialize). A packed value is read in place, and its strings can be borrowed.

use std::fmt;

use serde::de::{
    self, Deserialize, DeserializeSeed, Deserializer, EnumAccess, IntoDeserializer, MapAccess, SeqAccess, Unexpected,
    VariantAccess, Visitor,
};
use serde::forward_to_deserialize_any;

use super::source::{Bounded, Look, Source};
use super::{DEPTH_MAX, Number, Numeric, Object, PackedValue, Value};
use crate::{Error, Result};

impl Value {
    /// A `T` made of this value; strings may be borrowed from it.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid), naming the field, if the value isn't one of a `T`.
    pub fn deserialize_into<'de, T: Deserialize<'de>>(&'de self) -> Result<T> {
        T::deserialize(Reader { source: self })
    }
}

impl<'a> PackedValue<'a> {
    /// A `T` made of this value, without unpacking it; strings may be borrowed from it.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid), naming the field, if the value isn't one of a `T`;
    /// [`Corrupt`](crate::ErrorKind::Corrupt) if the bytes are damaged.
    pub(crate) fn deserialize_into<T: Deserialize<'a>>(self) -> Result<T> {
        T::deserialize(Reader { source: Bounded::from(self) })
    }
}

impl de::Error for Error {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Error::invalid(message.to_string())
    }
}

/// Gives serde what `source` holds.
struct Reader<S> {
    source: S,
}

impl<'de, S: Source<'de>> Deserializer<'de> for Reader<S>
where
    Error: From<S::Error>,
{
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        match self.source.look()? {
            Look::Null => visitor.visit_unit(),
            Look::Bool(truth) => visitor.visit_bool(truth),
            Look::Number(number) => match number.numeric() {
                Numeric::I64(signed) => visitor.visit_i64(signed),
                Numeric::U64(unsigned) => visitor.visit_u64(unsigned),
                Numeric::F64(double) => visitor.visit_f64(double),
            },
            Look::String(text) => visitor.visit_borrowed_str(text),
            Look::Array(count, elements) => {
                let mut elements = Elements::<S> { elements, count, position: 0 };
                let made = visitor.visit_seq(&mut elements)?;
                elements.end(made)
            }
            Look::Object(_, fields) => visitor.visit_map(Fields::<S> { fields, field: None }),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        match self.source.look()? {
            Look::Null => visitor.visit_none(),
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
        match self.source.look()? {
            Look::String(variant) => visitor.visit_enum(Variant::<S> { variant, held: None }),
            Look::Object(1, mut fields) => match fields.next().transpose()? {
                Some((variant, held)) => {
                    let made = visitor.visit_enum(Variant { variant, held: Some(held) });
                    made.map_err(|error| in_field(error, variant))
                }
                None => wrong(Unexpected::Map),
            },
            Look::Object(..) => wrong(Unexpected::Map),
            Look::Null => wrong(Unexpected::Unit),
            Look::Bool(truth) => wrong(Unexpected::Bool(truth)),
            Look::Number(number) => wrong(Unexpected::Other(&format!("number {number}"))),
            Look::Array(..) => wrong(Unexpected::Seq),
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

struct Elements<'de, S: Source<'de>> {
    elements: S::Elements,
    count: usize,
    position: usize,
}

impl<'de, S: Source<'de>> Elements<'de, S> {
    /// What was made of all elements; an error if some are left, which a tuple has no place for.
    fn end<T>(self, made: T) -> Result<T> {
        if self.position == self.count {
            return Ok(made);
        }
        let expected = format!("an array of {} elements", self.position);
        Err(de::Error::invalid_length(self.count, &expected.as_str()))
    }
}

impl<'de, S: Source<'de>> SeqAccess<'de> for &mut Elements<'de, S>
where
    Error: From<S::Error>,
{
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>> {
        let Some(source) = self.elements.next().transpose()? else { return Ok(None) };
        let position = self.position;
        self.position += 1;
        let made = seed.deserialize(Reader { source });
        made.map(Some).map_err(|error| error.within(format_args!("element {position}")))
    }
}

struct Fields<'de, S: Source<'de>> {
    fields: S::Fields,
    field: Option<(&'de str, S)>,
}

impl<'de, S: Source<'de>> MapAccess<'de> for Fields<'de, S>
where
    Error: From<S::Error>,
{
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>> {
        self.field = self.fields.next().transpose()?;
        self.field.map(|(name, _)| seed.deserialize(FromName(name))).transpose()
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value> {
        let Some((name, source)) = self.field.take() else {
            return Err(Error::invalid("a value was asked for before its field's name"));
        };
        seed.deserialize(Reader { source }).map_err(|error| in_field(error, name))
    }
}

/// An enum's variant, and what it holds if it holds something.
struct Variant<'de, S> {
    variant: &'de str,
    held: Option<S>,
}

impl<'de, S: Source<'de>> Variant<'de, S> {
    fn held(self, expected: &'static str) -> Result<Reader<S>> {
        let missing = || <Error as de::Error>::invalid_type(Unexpected::UnitVariant, &expected);
        Ok(Reader { source: self.held.ok_or_else(missing)? })
    }
}

impl<'de, S: Source<'de>> EnumAccess<'de> for Variant<'de, S>
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

impl<'de, S: Source<'de>> VariantAccess<'de> for Variant<'de, S>
where
    Error: From<S::Error>,
{
    type Error = Error;

    fn unit_variant(self) -> Result<()> {
        match self.held {
            Some(source) => <()>::deserialize(Reader { source }),
            None => Ok(()),
        }
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value> {
        seed.deserialize(self.held("a variant that holds a value")?)
    }

    fn tuple_variant<V: Visitor<'de>>(self, count: usize, visitor: V) -> Result<V::Value> {
        self.held("a variant that holds an array")?.deserialize_tuple(count, visitor)
    }

    fn struct_variant<V: Visitor<'de>>(self, fields: &'static [&'static str], visitor: V) -> Result<V::Value> {
        self.held("a variant that holds an object")?.deserialize_struct("", fields, visitor)
    }
}

/// Gives serde a field's name: as a string, or as the integer or truth value that a map's key is to be.
struct FromName<'de>(&'de str);

macro_rules! parsed_names {
    ($($method:ident $visit:ident $key:ty)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
            match self.0.parse::<$key>() {
                // Only the one way to write it, so that two names never become one key.
                Ok(key) if key.to_string() == self.0 => visitor.$visit(key),
                _ => visitor.visit_borrowed_str(self.0),
            }
        }
    )*};
}

impl<'de> Deserializer<'de> for FromName<'de> {
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

    parsed_names! {
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
        AnyValue { depth: DEPTH_MAX }.deserialize(deserializer)
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

/// Makes a value of whatever a format holds, at most `depth` containers deep, as strictly as our parser.
#[derive(Clone, Copy)]
struct AnyValue {
    depth: usize,
}

impl AnyValue {
    fn deeper<E: de::Error>(self) -> Result<Self, E> {
        let too_deep = || E::custom(format_args!("more than {DEPTH_MAX} arrays and objects within each other"));
        Ok(AnyValue { depth: self.depth.checked_sub(1).ok_or_else(too_deep)? })
    }
}

impl<'de> DeserializeSeed<'de> for AnyValue {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for AnyValue {
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
        let not_finite = || E::custom(format_args!("{double} has no place in JSON"));
        Number::from_f64(double).map(Value::Number).ok_or_else(not_finite)
    }

    fn visit_i128<E: de::Error>(self, integer: i128) -> Result<Value, E> {
        let beyond = || E::custom("an integer outside -2^63 to 2^64 - 1");
        Number::from_i128(integer).map(Value::Number).ok_or_else(beyond)
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
        let within = self.deeper()?;
        let mut elements = Vec::with_capacity(sequence.size_hint().unwrap_or(0).min(4096));
        while let Some(element) = sequence.next_element_seed(within)? {
            elements.push(element);
        }
        Ok(Value::Array(elements))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let within = self.deeper()?;
        let mut object = Object::with_capacity(map.size_hint().unwrap_or(0).min(4096));
        while let Some(name) = map.next_key::<String>()? {
            if object.contains(&name) {
                return Err(de::Error::custom(format_args!("the field {name:?} is given twice in one object")));
            }
            object.insert(name, map.next_value_seed(within)?);
        }
        Ok(Value::Object(object))
    }
}
