//! Stages that change single rows: `$project`, `$addFields`, `$unset`, `$unwind` and `$replaceRoot`.

use super::expression::Expression;
use super::measure::bounded;
use super::stage::Unwind;
use crate::query::language::operators::kind_with_article;
use crate::query::language::projection::Fields;
use crate::value::{Object, Path, PathStep, Value, array_position};
use crate::{Error, Result};

/// The fields of a row, and computed ones.
pub(super) fn include(row: &Value, fields: Option<&Fields>, computed: &[(Path, Expression)]) -> Result<Value> {
    let mut projected = fields.map_or_else(|| Value::Object(Object::new()), |fields| fields.project_value(row));
    // All expressions see the row as it was.
    for (path, expression) in computed {
        if let Some(value) = expression.compute(row)? {
            set(&mut projected, path, value)?;
        }
    }
    bounded(projected)
}

/// The row with computed fields; a field whose value is missing is removed.
pub(super) fn compute(row: Value, computed: &[(Path, Expression)]) -> Result<Value> {
    let values = computed.iter().map(|(_, expression)| expression.compute(&row)).collect::<Result<Vec<_>>>()?;
    let mut row = row;
    for ((path, _), value) in computed.iter().zip(values) {
        match value {
            Some(value) => set(&mut row, path, value)?,
            None => remove(&mut row, path)?,
        }
    }
    bounded(row)
}

/// The row without the values that the steps lead to.
pub(super) fn exclude(mut row: Value, paths: &[Vec<PathStep>]) -> Result<Value> {
    for steps in paths {
        exclude_below(&mut row, steps)?;
    }
    Ok(row)
}

fn exclude_below(value: &mut Value, steps: &[PathStep]) -> Result<()> {
    let Some((step, rest)) = steps.split_first() else { return Ok(()) };
    match (step, value, rest.is_empty()) {
        (PathStep::Field(name), Value::Object(object), true) => drop(object.remove(name)),
        (PathStep::Field(name), Value::Object(object), false) => {
            if let Some(field) = object.get_mut(name) {
                exclude_below(field, rest)?;
            }
        }
        (PathStep::Field(name), Value::Array(elements), is_last) => {
            let element = array_position(name).and_then(|position| elements.get_mut(position));
            match element {
                Some(_) if is_last => {
                    return Err(Error::invalid("an element of an array can't be removed by its position")
                        .with_hint("remove the array, or fields of its elements: lines[].price"));
                }
                Some(element) => exclude_below(element, rest)?,
                None => {}
            }
        }
        (PathStep::Elements, Value::Array(elements), true) => elements.clear(),
        (PathStep::Elements, Value::Array(elements), false) => {
            for element in elements {
                exclude_below(element, rest)?;
            }
        }
        _ => {}
    }
    Ok(())
}

/// The rows of the elements of an array; a value that is not an array is its own only element.
pub(super) fn unwind(mut row: Value, unwind: &Unwind) -> Result<Vec<Value>> {
    let elements = match unwind.path.get(&row) {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(elements)) => elements.clone(),
        Some(_) => return Ok(vec![with_position(row, unwind, Value::Null)?]),
    };
    if elements.is_empty() {
        if !unwind.keeps_empty {
            return Ok(Vec::new());
        }
        if unwind.path.get(&row).is_some_and(|value| !value.is_null()) {
            remove(&mut row, &unwind.path)?;
        }
        return Ok(vec![with_position(row, unwind, Value::Null)?]);
    }
    // The array itself is not copied into each row.
    set(&mut row, &unwind.path, Value::Null)?;
    let element = |(at, element): (usize, Value)| {
        let mut row = row.clone();
        set(&mut row, &unwind.path, element)?;
        with_position(row, unwind, Value::from(at))
    };
    elements.into_iter().enumerate().map(element).collect()
}

fn with_position(mut row: Value, unwind: &Unwind, position: Value) -> Result<Value> {
    if let Some(path) = &unwind.position {
        set(&mut row, path, position)?;
    }
    Ok(row)
}

/// The value of an expression as the row.
pub(super) fn replace(row: &Value, root: &Expression) -> Result<Value> {
    match root.compute(row)? {
        Some(root @ Value::Object(_)) => bounded(root),
        other => {
            let found = other.map_or("a missing value", |value| kind_with_article(value.kind()));
            Err(Error::invalid(format!("the new root is an object, not {found}"))
                .with_hint("{\"$ifNull\": [\"$path\", {}]} gives an empty object instead"))
        }
    }
}

/// Sets the value at a path, and creates the objects on the way.
///
/// # Errors
/// `Invalid` if the path leads through an array without such an element.
pub(super) fn set(row: &mut Value, path: &Path, value: Value) -> Result<()> {
    let mut current = row;
    let mut segments = path.segments().peekable();
    while let Some(segment) = segments.next() {
        let is_last = segments.peek().is_none();
        let next = match current {
            Value::Array(elements) => {
                let element = array_position(segment).and_then(|position| elements.get_mut(position));
                element.ok_or_else(|| {
                    Error::invalid(format!("the field {path} can't be set within an array"))
                        .with_hint("$unwind the array first, or name an element that it has")
                })?
            }
            Value::Object(_) => field(current, segment),
            other => {
                *other = Value::Object(Object::new());
                field(other, segment)
            }
        };
        if is_last {
            *next = value;
            return Ok(());
        }
        current = next;
    }
    Ok(())
}

/// The field of an object, which is created if there is none.
fn field<'v>(object: &'v mut Value, name: &str) -> &'v mut Value {
    let object = object.as_object_mut().expect("the caller has an object");
    if !object.contains(name) {
        object.insert(name, Value::Null);
    }
    object.get_mut(name).expect("inserted if it was missing")
}

/// Removes the field at a path, if there is one.
fn remove(row: &mut Value, path: &Path) -> Result<()> {
    let steps: Vec<PathStep> = path.segments().map(|name| PathStep::Field(name.into())).collect();
    exclude_below(row, &steps)
}
