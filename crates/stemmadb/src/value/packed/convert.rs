//! Unpacking and validation of packed values.

use super::{PackedValue, damaged};
use crate::Result;
use crate::value::object::{INDEX_FROM, Name, NameIndex};
use crate::value::traverse::{DepthLimited, Node, ValueTree};
use crate::value::{Object, Value};

impl PackedValue<'_> {
    /// The value, unpacked.
    ///
    /// # Errors
    /// [`Corrupt`](crate::ErrorKind::Corrupt) if the bytes are damaged.
    pub(crate) fn to_value(self) -> Result<Value> {
        unpack(self.into())
    }

    /// Validates the whole value. Costs a traversal and no memory.
    ///
    /// # Errors
    /// [`Corrupt`](crate::ErrorKind::Corrupt) if the bytes are damaged.
    pub(crate) fn check(self) -> Result<()> {
        check(self.into())
    }
}

fn unpack(value: DepthLimited<'_>) -> Result<Value> {
    Ok(match value.node()? {
        Node::Null => Value::Null,
        Node::Bool(truth) => Value::Bool(truth),
        Node::Number(number) => Value::Number(number),
        Node::String(text) => Value::String(text.to_owned()),
        Node::Array(count, children) => {
            let mut elements = Vec::with_capacity(count);
            for element in children {
                elements.push(unpack(element?)?);
            }
            Value::Array(elements)
        }
        Node::Object(count, children) => {
            let mut fields = Vec::with_capacity(count);
            let has_unique_names = children.has_unique_names();
            for field in children {
                let (name, value) = field?;
                fields.push((name.into(), unpack(value)?));
            }
            Value::Object(build_object(fields, has_unique_names)?)
        }
    })
}

/// Builds an object of `fields`. The names of a shape are known to be unique; names from the bytes are checked.
fn build_object(fields: Vec<(Name, Value)>, has_unique_names: bool) -> Result<Object> {
    let count = fields.len();
    if has_unique_names {
        let index = (count > INDEX_FROM).then(|| Box::new(NameIndex::build(&fields)));
        return Ok(Object::from_unique(fields, index));
    }
    let object: Object = fields.into_iter().collect();
    if object.len() == count { Ok(object) } else { Err(damaged("a field is given twice")) }
}

fn check(value: DepthLimited<'_>) -> Result<()> {
    match value.node()? {
        Node::Array(_, mut elements) => elements.try_for_each(|element| check(element?)),
        Node::Object(_, mut fields) => fields.try_for_each(|field| check(field?.1)),
        _ => Ok(()),
    }
}
