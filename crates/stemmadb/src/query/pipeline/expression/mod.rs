//! Expressions of pipelines: values computed from a row.
//!
//! A missing value is `None`; it is not null, and a field whose value is missing is left out. Arithmetic and text with
//! null or a missing value give null. Other kinds than an operator takes are errors.

mod arithmetic;
mod parse;

use std::borrow::Cow;
use std::cell::Cell;
use std::cmp::Ordering;

use super::measure::{ROW_BYTES_MAX, measure, too_large};
use crate::query::language::operators::kind_with_article;
use crate::query::language::selector::Comparison;
use crate::value::{ElementPath, Number, Object, Path, PathStep, Value, collate, visit_steps};
use crate::{Error, Result};

/// An expression.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Expression {
    Literal(Value),
    /// The row as a whole: `$$ROOT`.
    Root,
    Path(RowPath),
    Object(Vec<(String, Expression)>),
    Array(Vec<Expression>),
    /// Condition, then, else.
    Cond(Box<[Expression; 3]>),
    Call(Operator, Vec<Expression>),
}

/// A path to values of a row.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum RowPath {
    /// To one value.
    Single(Path),
    /// To the values in the elements of arrays, which give one array.
    Elements(ElementPath),
}

/// An operator that takes a list of arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operator {
    Add,
    Subtract,
    Multiply,
    Divide,
    Mod,
    Concat,
    ToLower,
    ToUpper,
    Substr,
    IfNull,
    Compare(Comparison),
    And,
    Or,
    Not,
    In,
    Size,
    ArrayElemAt,
}

/// The evaluation of expressions on one row.
struct Evaluation<'v> {
    row: &'v Value,
    /// The bytes of the values copied so far.
    bytes: Cell<usize>,
}

type Computed<'v> = Option<Cow<'v, Value>>;

impl Expression {
    /// Computes the value on a row; `None` if it is missing.
    ///
    /// # Errors
    /// `Invalid` if an operator does not take a value; `Stopped` if the value is too large.
    pub(super) fn evaluate<'v>(&'v self, row: &'v Value) -> Result<Computed<'v>> {
        Evaluation { row, bytes: Cell::new(0) }.value(self)
    }

    /// As [`Expression::evaluate`], as an owned value.
    pub(super) fn compute(&self, row: &Value) -> Result<Option<Value>> {
        Ok(self.evaluate(row)?.map(Cow::into_owned))
    }

    /// Adds the paths to `paths`, as they are written.
    pub(super) fn add_paths(&self, paths: &mut Vec<String>) {
        match self {
            Expression::Literal(_) | Expression::Root => {}
            Expression::Path(RowPath::Single(path)) => paths.push(path.to_string()),
            Expression::Path(RowPath::Elements(path)) => paths.push(path.to_string()),
            Expression::Object(fields) => fields.iter().for_each(|(_, field)| field.add_paths(paths)),
            Expression::Array(parts) | Expression::Call(_, parts) => {
                parts.iter().for_each(|part| part.add_paths(paths));
            }
            Expression::Cond(parts) => parts.iter().for_each(|part| part.add_paths(paths)),
        }
    }
}

impl RowPath {
    fn get<'v>(&self, row: &'v Value) -> Computed<'v> {
        let path = match self {
            RowPath::Single(path) => return path.get(row).map(Cow::Borrowed),
            RowPath::Elements(path) => path,
        };
        let first = path.steps().iter().position(|step| *step == PathStep::Elements)?;
        let mut array = None;
        visit_steps(row, &path.steps()[..first], &mut |value| array = Some(value));
        let Some(array @ Value::Array(_)) = array else { return None };
        let mut values = Vec::new();
        visit_steps(array, &path.steps()[first..], &mut |value| values.push(value.clone()));
        Some(Cow::Owned(Value::Array(values)))
    }
}

impl<'v> Evaluation<'v> {
    fn value(&self, expression: &'v Expression) -> Result<Computed<'v>> {
        Ok(match expression {
            Expression::Literal(value) => Some(Cow::Borrowed(value)),
            Expression::Root => Some(Cow::Borrowed(self.row)),
            Expression::Path(path) => path.get(self.row),
            Expression::Object(fields) => {
                let mut object = Object::with_capacity(fields.len());
                for (name, field) in fields {
                    if let Some(value) = self.value(field)? {
                        object.insert(name, self.copied(value)?);
                    }
                }
                Some(Cow::Owned(Value::Object(object)))
            }
            Expression::Array(elements) => {
                let element = |element| match self.value(element)? {
                    Some(value) => self.copied(value),
                    None => Ok(Value::Null),
                };
                Some(Cow::Owned(Value::Array(elements.iter().map(element).collect::<Result<_>>()?)))
            }
            Expression::Cond(parts) => {
                let [condition, then, otherwise] = &**parts;
                let holds = is_true(self.value(condition)?.as_deref());
                self.value(if holds { then } else { otherwise })?
            }
            Expression::Call(operator, arguments) => self.call(*operator, arguments)?,
        })
    }

    /// Copies a value into a larger one.
    fn copied(&self, value: Cow<'_, Value>) -> Result<Value> {
        self.bytes.set(self.bytes.get().saturating_add(measure(&value)?));
        if self.bytes.get() > ROW_BYTES_MAX { Err(too_large()) } else { Ok(value.into_owned()) }
    }

    fn call(&self, operator: Operator, arguments: &'v [Expression]) -> Result<Computed<'v>> {
        // These evaluate only as many arguments as they need.
        match operator {
            Operator::And => {
                let is_false = |argument| Ok(!is_true(self.value(argument)?.as_deref()));
                return Ok(Some(Cow::Owned(Value::Bool(!any(arguments, is_false)?))));
            }
            Operator::Or => {
                let holds = |argument| Ok(is_true(self.value(argument)?.as_deref()));
                return Ok(Some(Cow::Owned(Value::Bool(any(arguments, holds)?))));
            }
            Operator::IfNull => {
                let mut last = None;
                for argument in arguments {
                    last = self.value(argument)?;
                    if last.as_deref().is_some_and(|value| !value.is_null()) {
                        break;
                    }
                }
                return Ok(last);
            }
            _ => {}
        }
        let values = arguments.iter().map(|argument| self.value(argument)).collect::<Result<Vec<_>>>()?;
        if let (Operator::ArrayElemAt, [array, position]) = (operator, values.as_slice()) {
            return element_at(array.as_deref(), position.as_deref());
        }
        let values: Vec<Option<&Value>> = values.iter().map(Option::as_deref).collect();
        apply(operator, &values).map(|value| Some(Cow::Owned(value)))
    }
}

fn apply(operator: Operator, values: &[Option<&Value>]) -> Result<Value> {
    Ok(match (operator, values) {
        (Operator::Compare(comparison), [left, right]) => Value::Bool(comparison.holds(compare(*left, *right))),
        (Operator::Not, [value]) => Value::Bool(!is_true(*value)),
        (Operator::In, [value, list]) => {
            let Some(Value::Array(list)) = list else { return Err(wrong_kind("$in", "an array to search", *list)) };
            Value::Bool(value.is_some_and(|value| list.iter().any(|listed| collate::compare(value, listed).is_eq())))
        }
        (Operator::Size, [array]) => match array {
            Some(Value::Array(elements)) => Value::from(elements.len()),
            other => {
                return Err(wrong_kind("$size", "an array", *other)
                    .with_hint("{\"$size\": {\"$ifNull\": [\"$tags\", []]}} counts none where there is no array"));
            }
        },
        (Operator::Concat | Operator::ToLower | Operator::ToUpper | Operator::Substr, values) => {
            text(operator, values)?
        }
        (operator, values) => arithmetic::apply(operator, values)?,
    })
}

fn text(operator: Operator, values: &[Option<&Value>]) -> Result<Value> {
    let name = operator.name();
    let string = |value: &Option<&'_ Value>| match value {
        Some(Value::String(text)) => Ok(text.clone()),
        other => Err(wrong_kind(name, "strings", *other)),
    };
    match (operator, values) {
        (Operator::Concat, values) => {
            let mut joined = String::new();
            for value in values {
                if is_null(*value) {
                    return Ok(Value::Null);
                }
                joined.push_str(&string(value)?);
                if joined.len() > ROW_BYTES_MAX {
                    return Err(too_large());
                }
            }
            Ok(Value::String(joined))
        }
        (_, [value, ..]) if is_null(*value) => Ok(Value::from("")),
        (Operator::ToLower, [value]) => Ok(Value::String(string(value)?.to_lowercase())),
        (Operator::ToUpper, [value]) => Ok(Value::String(string(value)?.to_uppercase())),
        (_, [value, start, length]) => {
            let position = |value: &Option<&Value>| match value {
                Some(Value::Number(number)) if number.to_integer().is_some() => Ok(number.to_integer()),
                other => Err(wrong_kind(name, "a whole number as position and length", *other)),
            };
            let start = position(start)?.map_or(0, |start| usize::try_from(start.max(0)).unwrap_or(usize::MAX));
            // A negative length means the rest.
            let length = position(length)?.map_or(0, |length| usize::try_from(length).unwrap_or(usize::MAX));
            Ok(Value::String(string(value)?.chars().skip(start).take(length).collect()))
        }
        _ => Err(Error::internal("an operator on text has the wrong number of arguments")),
    }
}

/// `$arrayElemAt`: a negative position counts from the end; beyond the array there is no value.
fn element_at<'v>(array: Option<&Value>, position: Option<&Value>) -> Result<Computed<'v>> {
    if is_null(array) || is_null(position) {
        return Ok(Some(Cow::Owned(Value::Null)));
    }
    let Some(Value::Array(elements)) = array else { return Err(wrong_kind("$arrayElemAt", "an array", array)) };
    let number = position.and_then(Value::as_number).and_then(Number::to_integer);
    let Some(at) = number else { return Err(wrong_kind("$arrayElemAt", "a whole number as position", position)) };
    let at = if at < 0 { at + elements.len() as i128 } else { at };
    let element = usize::try_from(at).ok().and_then(|at| elements.get(at));
    Ok(element.map(|element| Cow::Owned(element.clone())))
}

/// The order of two values; a missing value comes before all others.
fn compare(left: Option<&Value>, right: Option<&Value>) -> Ordering {
    match (left, right) {
        (Some(left), Some(right)) => collate::compare(left, right),
        (left, right) => left.is_some().cmp(&right.is_some()),
    }
}

/// Whether a value counts as true: false, null, 0 and a missing value do not.
fn is_true(value: Option<&Value>) -> bool {
    match value {
        None | Some(Value::Null) => false,
        Some(Value::Bool(value)) => *value,
        Some(Value::Number(number)) => number.as_f64() != 0.0,
        Some(_) => true,
    }
}

fn is_null(value: Option<&Value>) -> bool {
    value.is_none_or(Value::is_null)
}

fn any<'v>(expressions: &'v [Expression], mut holds: impl FnMut(&'v Expression) -> Result<bool>) -> Result<bool> {
    for expression in expressions {
        if holds(expression)? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn wrong_kind(operator: &str, needs: &str, value: Option<&Value>) -> Error {
    let found = value.map_or("a missing value", |value| kind_with_article(value.kind()));
    Error::invalid(format!("{operator} needs {needs}, not {found}"))
}
