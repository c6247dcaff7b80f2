//! Packed values, unpacked or only checked.

use super::{PackedValue, damaged};
use crate::Result;
use crate::value::object::{INDEX_FROM, Name, NameIndex};
use crate::value::source::{Bounded, Look, Source};
use crate::value::{Object, Value};

impl PackedValue<'_> {
    /// The value, unpacked.
    ///
    /// # Errors
    /// [`Corrupt`](crate::ErrorKind::Corrupt) if the bytes are damaged.
    pub(crate) fn to_value(self) -> Result<Value> {
        unpack(self.into())
    }

    /// Refuses a value with damage anywhere within it. Costs a walk over all of it, and no memory.
    ///
    /// # Errors
    /// [`Corrupt`](crate::ErrorKind::Corrupt) if the bytes are damaged.
    pub(crate) fn check(self) -> Result<()> {
        check(self.into())
    }
}

fn unpack(value: Bounded<'_>) -> Result<Value> {
    Ok(match value.look()? {
        Look::Null => Value::Null,
        Look::Bool(truth) => Value::Bool(truth),
        Look::Number(number) => Value::Number(number),
        Look::String(text) => Value::String(text.to_owned()),
        Look::Array(count, children) => {
            let mut elements = Vec::with_capacity(count);
            for element in children {
                elements.push(unpack(element?)?);
            }
            Value::Array(elements)
        }
        Look::Object(count, children) => {
            let mut fields = Vec::with_capacity(count);
            let names_differ = children.names_differ();
            for field in children {
                let (name, value) = field?;
                fields.push((name.into(), unpack(value)?));
            }
            Value::Object(object_of(fields, names_differ)?)
        }
    })
}

/// The object of `fields`; the names of a shape are known to differ, names from the bytes are not.
fn object_of(fields: Vec<(Name, Value)>, names_differ: bool) -> Result<Object> {
    let count = fields.len();
    if names_differ {
        let index = (count > INDEX_FROM).then(|| Box::new(NameIndex::of(&fields)));
        return Ok(Object::from_unique(fields, index));
    }
    let object: Object = fields.into_iter().collect();
    if object.len() == count { Ok(object) } else { Err(damaged("a field is given twice")) }
}

fn check(value: Bounded<'_>) -> Result<()> {
    match value.look()? {
        Look::Array(_, mut elements) => elements.try_for_each(|element| check(element?)),
        Look::Object(_, mut fields) => fields.try_for_each(|field| check(field?.1)),
        _ => Ok(()),
    }
}
