//! `From` conversions from Rust types to values.

use super::{Number, Object, Value};

impl From<()> for Value {
    fn from((): ()) -> Self {
        Value::Null
    }
}

impl From<bool> for Value {
    fn from(truth: bool) -> Self {
        Value::Bool(truth)
    }
}

impl From<Number> for Value {
    fn from(number: Number) -> Self {
        Value::Number(number)
    }
}

macro_rules! from_integer {
    ($($integer:ty)*) => {$(
        impl From<$integer> for Value {
            fn from(integer: $integer) -> Self {
                Value::Number(Number::from(integer))
            }
        }
    )*};
}

from_integer!(i8 i16 i32 i64 u8 u16 u32 u64 usize);

impl From<f64> for Value {
    /// `NaN` and the infinities, which JSON doesn't have, become null, as in JavaScript.
    fn from(double: f64) -> Self {
        Number::from_f64(double).map_or(Value::Null, Value::Number)
    }
}

impl From<f32> for Value {
    /// `NaN` and the infinities, which JSON doesn't have, become null, as in JavaScript.
    fn from(single: f32) -> Self {
        Value::from(f64::from(single))
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Value::String(text.to_owned())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Value::String(text)
    }
}

impl From<&String> for Value {
    fn from(text: &String) -> Self {
        Value::String(text.clone())
    }
}

impl From<char> for Value {
    fn from(character: char) -> Self {
        Value::String(character.into())
    }
}

impl From<Object> for Value {
    fn from(object: Object) -> Self {
        Value::Object(object)
    }
}

impl<T: Into<Value>> From<Vec<T>> for Value {
    fn from(elements: Vec<T>) -> Self {
        Value::Array(elements.into_iter().map(Into::into).collect())
    }
}

impl<T: Into<Value> + Clone> From<&[T]> for Value {
    fn from(elements: &[T]) -> Self {
        elements.iter().cloned().collect()
    }
}

impl<T: Into<Value>, const N: usize> From<[T; N]> for Value {
    fn from(elements: [T; N]) -> Self {
        elements.into_iter().collect()
    }
}

impl<T: Into<Value>> From<Option<T>> for Value {
    fn from(option: Option<T>) -> Self {
        option.map_or(Value::Null, Into::into)
    }
}

impl<T: Into<Value>> FromIterator<T> for Value {
    /// An array of the elements.
    fn from_iter<I: IntoIterator<Item = T>>(elements: I) -> Self {
        Value::Array(elements.into_iter().map(Into::into).collect())
    }
}

impl From<&Value> for Value {
    fn from(value: &Value) -> Self {
        value.clone()
    }
}

impl From<serde_json::Value> for Value {
    /// Costs one pass; integers and doubles stay exact.
    fn from(json: serde_json::Value) -> Self {
        match json {
            serde_json::Value::Null => Value::Null,
            serde_json::Value::Bool(truth) => Value::Bool(truth),
            serde_json::Value::Number(number) => match (number.as_i64(), number.as_u64()) {
                (Some(signed), _) => signed.into(),
                (None, Some(unsigned)) => unsigned.into(),
                (None, None) => number.as_f64().into(),
            },
            serde_json::Value::String(text) => Value::String(text),
            serde_json::Value::Array(elements) => elements.into_iter().map(Value::from).collect(),
            serde_json::Value::Object(fields) => Value::Object(fields.into_iter().collect()),
        }
    }
}

impl From<Value> for serde_json::Value {
    /// Costs one pass; integers and doubles stay exact.
    fn from(value: Value) -> Self {
        match value {
            Value::Null => serde_json::Value::Null,
            Value::Bool(truth) => truth.into(),
            Value::Number(number) => match (number.as_i64(), number.as_u64()) {
                (Some(signed), _) => signed.into(),
                (None, Some(unsigned)) => unsigned.into(),
                (None, None) => number.as_f64().into(),
            },
            Value::String(text) => text.into(),
            Value::Array(elements) => elements.into_iter().map(serde_json::Value::from).collect(),
            Value::Object(fields) => {
                fields.into_iter().map(|(name, value)| (name, serde_json::Value::from(value))).collect()
            }
        }
    }
}

impl std::str::FromStr for Value {
    type Err = crate::Error;

    fn from_str(text: &str) -> crate::Result<Self> {
        Value::parse(text.as_bytes())
    }
}
