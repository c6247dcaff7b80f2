//! Patches: changes of parts of a document, by update operators or by JSON Merge Patch (RFC 7386).

use std::sync::Arc;

use super::path::array_position;
use super::{DEPTH_MAX, Limits, Number, Object, Path, Value, collate};
use crate::{Error, Result};

/// A change of parts of a document, which leaves its other fields as they are.
///
/// A patch is built by methods, or parsed from JSON by [`Patch::parse`]. It knows MongoDB's update operators `$set`,
/// `$unset`, `$inc`, `$mul`, `$min`, `$max`, `$push`, `$addToSet`, `$pull` and `$rename`, and JSON Merge Patch
/// (RFC 7386). No two operators may change the same path, or a path within the other's, so their order doesn't matter.
///
/// Paths are those of queries: names separated by dots, and a decimal name is a position in an array. Missing objects
/// on the way to a new field are created.
///
/// ```
/// use stemmadb::{Database, Patch};
///
/// # fn main() -> stemmadb::Result<()> {
/// # let db = Database::in_memory();
/// db.insert("solaris", &serde_json::json!({"year": 1960, "tags": ["novel"], "draft": true}))?;
/// let patch = Patch::new().set("year", 1961).increment("reads", 1).push("tags", "space").unset("draft");
/// db.update("solaris", &patch)?;
/// let body = db.get("solaris")?.unwrap().value()?;
/// assert_eq!(body.to_json(), r#"{"tags":["novel","space"],"year":1961,"reads":1}"#);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Default)]
pub struct Patch {
    merge: Object,
    updates: Vec<Update>,
    /// The error of a builder method, which `apply` returns.
    deferred_error: Option<Arc<Error>>,
}

/// An operator at a path.
#[derive(Debug, Clone)]
struct Update {
    path: Path,
    operator: Operator,
}

#[derive(Debug, Clone)]
enum Operator {
    Set(Value),
    Unset,
    Increment(Number),
    Multiply(Number),
    Minimum(Value),
    Maximum(Value),
    Push(Vec<Value>),
    AddToSet(Vec<Value>),
    Pull(Vec<Value>),
    Rename(Path),
}

const OPERATOR_NAMES: &str = "$set, $unset, $inc, $mul, $min, $max, $push, $addToSet, $pull and $rename";

impl Patch {
    /// A patch that changes nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Parses a patch: an object of update operators such as `{"$set": {"year": 1961}, "$inc": {"reads": 1}}`, or, if
    /// none of its names begins with `$`, a JSON Merge Patch.
    ///
    /// `$push` and `$addToSet` take one element, or several as `{"$each": […]}`. `$pull` takes an element, or several
    /// as `{"$in": […]}`. `$unset` takes an object whose names are paths, or an array of paths.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) for an unknown operator, a bad operand or path, or two operators that
    /// change the same path.
    pub fn parse(json: &Value) -> Result<Self> {
        json.check(&Limits { bytes: usize::MAX, nodes: usize::MAX, depth: DEPTH_MAX })?;
        let Value::Object(fields) = json else {
            return Err(Error::invalid(format!("a patch is an object, not {}", json.kind()))
                .with_hint("write operators, {\"$set\": {\"year\": 1961}}, or the new fields, {\"year\": 1961}"));
        };
        if !fields.names().any(|name| name.starts_with('$')) {
            return Patch { merge: fields.clone(), ..Patch::new() }.checked();
        }
        let mut patch = Patch::new();
        for (name, operands) in fields.iter() {
            if !name.starts_with('$') {
                return Err(Error::invalid(format!("a patch has operators and the field `{name}`"))
                    .with_hint(format!("set the field with {{\"$set\": {{\"{name}\": …}}}}")));
            }
            patch.parse_operator(name, operands)?;
        }
        patch.checked()
    }

    fn parse_operator(&mut self, name: &str, operands: &Value) -> Result<()> {
        if let ("$unset", Value::Array(paths)) = (name, operands) {
            for path in paths {
                let path = path.as_str().ok_or_else(|| Error::invalid("$unset takes paths, which are strings"))?;
                self.updates.push(Update { path: Path::parse_single(path)?, operator: Operator::Unset });
            }
            return Ok(());
        }
        let Value::Object(operands) = operands else {
            return Err(Error::invalid(format!(
                "{name} takes an object of paths and operands, not {}",
                operands.kind()
            ))
            .with_hint(format!("write {{\"{name}\": {{\"path\": …}}}}")));
        };
        for (path, operand) in operands.iter() {
            let path = Path::parse_single(path)?;
            let operator = Operator::parse(name, operand).map_err(|error| error.within(format!("at `{path}`")))?;
            self.updates.push(Update { path, operator });
        }
        Ok(())
    }

    /// Merges the fields of `patch` into the document by RFC 7386: objects are merged with objects, `null` removes a
    /// field, and every other value replaces what is there. Applied before the operators.
    pub fn merge(mut self, patch: Object) -> Self {
        self.merge = patch;
        self
    }

    /// Sets the value at `path`. In an array, the position after the last appends.
    pub fn set(self, path: impl AsRef<str>, value: impl Into<Value>) -> Self {
        self.with(path, Operator::Set(value.into()))
    }

    /// Removes the field at `path`, if it exists. An element of an array becomes `null`, so that the positions of the
    /// others stay.
    pub fn unset(self, path: impl AsRef<str>) -> Self {
        self.with(path, Operator::Unset)
    }

    /// Adds `amount` to the number at `path`; a missing field counts as 0. Integers are added exactly.
    pub fn increment(self, path: impl AsRef<str>, amount: impl Into<Number>) -> Self {
        self.with(path, Operator::Increment(amount.into()))
    }

    /// Multiplies the number at `path` by `factor`; a missing field becomes 0.
    pub fn multiply(self, path: impl AsRef<str>, factor: impl Into<Number>) -> Self {
        self.with(path, Operator::Multiply(factor.into()))
    }

    /// Sets the value at `path` if it is missing or greater than `value`, in collation order.
    pub fn minimum(self, path: impl AsRef<str>, value: impl Into<Value>) -> Self {
        self.with(path, Operator::Minimum(value.into()))
    }

    /// Sets the value at `path` if it is missing or less than `value`, in collation order.
    pub fn maximum(self, path: impl AsRef<str>, value: impl Into<Value>) -> Self {
        self.with(path, Operator::Maximum(value.into()))
    }

    /// Appends an element to the array at `path`, which is created if it is missing.
    pub fn push(self, path: impl AsRef<str>, element: impl Into<Value>) -> Self {
        self.with(path, Operator::Push(vec![element.into()]))
    }

    /// Appends an element to the array at `path` unless an equal one is in it.
    pub fn add_to_set(self, path: impl AsRef<str>, element: impl Into<Value>) -> Self {
        self.with(path, Operator::AddToSet(vec![element.into()]))
    }

    /// Removes all elements that equal `element` from the array at `path`.
    pub fn pull(self, path: impl AsRef<str>, element: impl Into<Value>) -> Self {
        self.with(path, Operator::Pull(vec![element.into()]))
    }

    /// Moves the value of the field at `path` to the path `to`, if it exists.
    pub fn rename(self, path: impl AsRef<str>, to: impl AsRef<str>) -> Self {
        match Path::parse_single(to.as_ref()) {
            Ok(to) => self.with(path, Operator::Rename(to)),
            Err(error) => self.failed(error),
        }
    }

    /// Returns the fields of [`Patch::merge`] and the operators, in the form that [`Patch::parse`] reads.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) if the patch is malformed.
    pub fn to_parts(&self) -> Result<(Object, Object)> {
        self.check()?;
        let mut operators = Object::new();
        for Update { path, operator } in &self.updates {
            let (name, operand) = operator.to_value();
            if !operators.contains(name) {
                operators.insert(name, Object::new());
            }
            if let Some(Value::Object(operands)) = operators.get_mut(name) {
                operands.insert(path.to_string(), operand);
            }
        }
        Ok((self.merge.clone(), operators))
    }

    fn with(mut self, path: impl AsRef<str>, operator: Operator) -> Self {
        match Path::parse_single(path.as_ref()) {
            Ok(path) => {
                self.updates.push(Update { path, operator });
                self
            }
            Err(error) => self.failed(error),
        }
    }

    fn failed(mut self, error: Error) -> Self {
        self.deferred_error.get_or_insert_with(|| Arc::new(error));
        self
    }

    fn checked(self) -> Result<Self> {
        self.check().map(|()| self)
    }

    /// Checks the paths, and that no two operators change the same one.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) with the first fault.
    pub fn check(&self) -> Result<()> {
        if let Some(error) = &self.deferred_error {
            return Err(error.duplicate());
        }
        let mut paths: Vec<&Path> = Vec::with_capacity(self.updates.len());
        for update in &self.updates {
            paths.push(&update.path);
            if let Operator::Rename(to) = &update.operator {
                paths.push(to);
            }
        }
        let first_names = paths.iter().filter_map(|path| path.segments().next());
        if let Some(name) = first_names.chain(self.merge.names()).find(|name| name.starts_with('_')) {
            return Err(Error::invalid(format!("a patch can't change `{name}`"))
                .with_hint("top-level names that begin with `_` belong to the database"));
        }
        // A path sorts directly before the paths within it.
        paths.sort_unstable();
        for pair in paths.windows(2) {
            if pair[0].segments().eq(pair[1].segments().take(pair[0].segments().len())) {
                return Err(Error::invalid(format!("two operators change `{}`", pair[0]))
                    .with_hint("write one operator for each path, or two patches"));
            }
        }
        Ok(())
    }

    /// The body that results from applying the patch to `body`.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) if the patch is malformed (see [`Patch::check`]) or doesn't fit the
    /// body: a number is added to a string, an element is appended to something that is not an array, a number gets
    /// out of range, or a path leads through a scalar.
    pub fn apply(&self, body: &Value) -> Result<Value> {
        self.check()?;
        let mut result = body.clone();
        let Value::Object(fields) = &mut result else {
            return Err(Error::invalid(format!("a patch changes an object, not {}", body.kind())));
        };
        merge(fields, &self.merge);
        for Update { path, operator } in &self.updates {
            operator.apply(&mut result, path).map_err(|error| error.within(format!("at `{path}`")))?;
        }
        Ok(result)
    }
}

impl Operator {
    /// The name and the operand, as [`Operator::parse`] reads them.
    fn to_value(&self) -> (&'static str, Value) {
        let each = |word: &str, elements: &[Value]| {
            let mut object = Object::new();
            object.insert(word, elements.to_vec());
            Value::Object(object)
        };
        match self {
            Operator::Set(value) => ("$set", value.clone()),
            Operator::Unset => ("$unset", Value::from("")),
            Operator::Increment(number) => ("$inc", Value::Number(*number)),
            Operator::Multiply(number) => ("$mul", Value::Number(*number)),
            Operator::Minimum(value) => ("$min", value.clone()),
            Operator::Maximum(value) => ("$max", value.clone()),
            Operator::Push(elements) => ("$push", each("$each", elements)),
            Operator::AddToSet(elements) => ("$addToSet", each("$each", elements)),
            Operator::Pull(elements) => ("$pull", each("$in", elements)),
            Operator::Rename(to) => ("$rename", Value::from(to.to_string())),
        }
    }

    fn parse(name: &str, operand: &Value) -> Result<Self> {
        let number = || {
            let problem = || Error::invalid(format!("{name} takes a number, not {}", operand.kind()));
            operand.as_number().ok_or_else(problem)
        };
        Ok(match name {
            "$set" => Operator::Set(operand.clone()),
            "$unset" => Operator::Unset,
            "$inc" => Operator::Increment(number()?),
            "$mul" => Operator::Multiply(number()?),
            "$min" => Operator::Minimum(operand.clone()),
            "$max" => Operator::Maximum(operand.clone()),
            "$push" => Operator::Push(elements(name, "$each", operand)?),
            "$addToSet" => Operator::AddToSet(elements(name, "$each", operand)?),
            "$pull" => Operator::Pull(elements(name, "$in", operand)?),
            "$rename" => match operand {
                Value::String(to) => Operator::Rename(Path::parse_single(to)?),
                other => return Err(Error::invalid(format!("$rename takes the new path, not {}", other.kind()))),
            },
            _ => {
                return Err(Error::invalid(format!("a patch doesn't know the operator \"{name}\""))
                    .with_hint(format!("the operators are {OPERATOR_NAMES}; a merge patch has none")));
            }
        })
    }

    fn apply(&self, body: &mut Value, path: &Path) -> Result<()> {
        match self {
            Operator::Set(value) => return insert(body, path, value.clone()),
            Operator::Unset => return take(body, path, true).map(|_| ()),
            Operator::Rename(to) => {
                return match take(body, path, false)? {
                    Some(value) => insert(body, to, value),
                    None => Ok(()),
                };
            }
            _ => {}
        }
        let Some(current) = get_mut(body, path) else {
            return match self.initial() {
                Some(value) => insert(body, path, value),
                None => Ok(()),
            };
        };
        self.change(current)
    }

    /// The value that the operator gives to a missing field.
    fn initial(&self) -> Option<Value> {
        match self {
            Operator::Increment(amount) => Some(Value::Number(*amount)),
            Operator::Multiply(factor) if factor.is_integer() => Some(Value::from(0)),
            Operator::Multiply(_) => Some(Value::from(0.0)),
            Operator::Minimum(value) | Operator::Maximum(value) => Some(value.clone()),
            Operator::Push(elements) => Some(Value::Array(elements.clone())),
            Operator::AddToSet(elements) => {
                let mut set = Vec::with_capacity(elements.len());
                add_to_set(&mut set, elements);
                Some(Value::Array(set))
            }
            Operator::Set(_) | Operator::Unset | Operator::Pull(_) | Operator::Rename(_) => None,
        }
    }

    /// Changes an existing value in place.
    fn change(&self, current: &mut Value) -> Result<()> {
        match self {
            Operator::Increment(amount) => {
                *current = Value::Number(calculate(current, *amount, i128::checked_add, |a, b| a + b)?);
            }
            Operator::Multiply(factor) => {
                *current = Value::Number(calculate(current, *factor, i128::checked_mul, |a, b| a * b)?);
            }
            Operator::Minimum(value) if collate::compare(value, current).is_lt() => *current = value.clone(),
            Operator::Maximum(value) if collate::compare(value, current).is_gt() => *current = value.clone(),
            Operator::Push(elements) => array_of(current)?.extend_from_slice(elements),
            Operator::AddToSet(elements) => add_to_set(array_of(current)?, elements),
            Operator::Pull(pulled) => {
                let is_kept = |element: &Value| pulled.iter().all(|pulled| collate::compare(pulled, element).is_ne());
                array_of(current)?.retain(is_kept);
            }
            Operator::Minimum(_) | Operator::Maximum(_) => {}
            Operator::Set(_) | Operator::Unset | Operator::Rename(_) => {
                unreachable!("these don't need a current value")
            }
        }
        Ok(())
    }
}

/// The operands of an array operator: one element, or an object with the name `list` and an array of them.
fn elements(operator: &str, list: &str, operand: &Value) -> Result<Vec<Value>> {
    let Value::Object(object) = operand else { return Ok(vec![operand.clone()]) };
    let Some(modifier) = object.names().find(|name| name.starts_with('$')) else { return Ok(vec![operand.clone()]) };
    match object.get(list) {
        Some(Value::Array(elements)) if object.len() == 1 => Ok(elements.clone()),
        Some(other) if object.len() == 1 => {
            Err(Error::invalid(format!("{list} of {operator} takes an array, not {}", other.kind())))
        }
        _ => Err(Error::invalid(format!("{operator} doesn't know \"{modifier}\""))
            .with_hint(format!("write an element, or several as {{\"{list}\": […]}}"))),
    }
}

/// Merges `patch` into `target` by RFC 7386.
fn merge(target: &mut Object, patch: &Object) {
    for (name, value) in patch.iter() {
        match value {
            Value::Null => {
                target.remove(name);
            }
            Value::Object(inner) => {
                if !matches!(target.get(name), Some(Value::Object(_))) {
                    target.insert(name, Object::new());
                }
                let object = target.get_mut(name).and_then(Value::as_object_mut);
                merge(object.expect("the field is an object"), inner);
            }
            _ => {
                target.insert(name, value.clone());
            }
        }
    }
}

fn get_mut<'a>(value: &'a mut Value, path: &Path) -> Option<&'a mut Value> {
    path.segments().try_fold(value, child_mut)
}

fn child_mut<'a>(value: &'a mut Value, segment: &str) -> Option<&'a mut Value> {
    match value {
        Value::Object(object) => object.get_mut(segment),
        Value::Array(elements) => elements.get_mut(array_position(segment)?),
        _ => None,
    }
}

/// Sets the value at `path`, and creates the objects on the way to it.
fn insert(body: &mut Value, path: &Path, value: Value) -> Result<()> {
    let mut segments = path.segments();
    let last = segments.next_back().expect("a path has a segment");
    let mut parent = body;
    for segment in segments {
        if child_mut(parent, segment).is_none() {
            insert_child(parent, segment, Object::new().into())?;
        }
        parent = child_mut(parent, segment).expect("the child exists");
    }
    insert_child(parent, last, value)
}

fn insert_child(parent: &mut Value, segment: &str, value: Value) -> Result<()> {
    match parent {
        Value::Object(object) => {
            object.insert(segment, value);
            Ok(())
        }
        Value::Array(elements) => {
            let count = elements.len();
            match array_position(segment).filter(|position| *position <= count) {
                Some(position) if position == count => elements.push(value),
                Some(position) => elements[position] = value,
                None => {
                    return Err(Error::invalid(format!("an array of {count} elements has no position `{segment}`"))
                        .with_hint("append with $push, or write the array as a whole"));
                }
            }
            Ok(())
        }
        other => {
            Err(Error::invalid(format!("a field `{segment}` can't be created in a value of type {}", other.kind()))
                .with_hint("set the enclosing value as a whole"))
        }
    }
}

/// Removes the value at `path` and returns it, if it exists. In an array, `null` replaces it if `in_arrays` is set.
fn take(body: &mut Value, path: &Path, in_arrays: bool) -> Result<Option<Value>> {
    let mut segments = path.segments();
    let last = segments.next_back().expect("a path has a segment");
    match segments.try_fold(body, child_mut) {
        Some(Value::Object(object)) => Ok(object.remove(last)),
        Some(Value::Array(_)) if !in_arrays => Err(Error::invalid("elements of arrays can't be renamed")),
        Some(parent) => Ok(child_mut(parent, last).map(std::mem::take)),
        None => Ok(None),
    }
}

fn array_of(value: &mut Value) -> Result<&mut Vec<Value>> {
    match value {
        Value::Array(elements) => Ok(elements),
        other => Err(Error::invalid(format!("the value is of type {}, not an array", other.kind()))),
    }
}

fn add_to_set(set: &mut Vec<Value>, elements: &[Value]) {
    for element in elements {
        if !set.iter().any(|other| collate::compare(other, element).is_eq()) {
            set.push(element.clone());
        }
    }
}

/// The result of an arithmetic operation: exact for two integers, otherwise that of doubles.
fn calculate(
    current: &Value,
    operand: Number,
    exact: impl Fn(i128, i128) -> Option<i128>,
    inexact: impl Fn(f64, f64) -> f64,
) -> Result<Number> {
    let Value::Number(number) = current else {
        return Err(Error::invalid(format!("the value is of type {}, not a number", current.kind())));
    };
    let result = match number.is_integer() && operand.is_integer() {
        true => match (number.to_integer(), operand.to_integer()) {
            (Some(a), Some(b)) => exact(a, b).and_then(Number::from_i128),
            _ => None,
        },
        false => Number::from_f64(inexact(number.as_f64(), operand.as_f64())),
    };
    result.ok_or_else(|| Error::invalid(format!("{number} and {operand} give a number out of range")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    fn json(text: &str) -> Value {
        Value::parse(text).expect("good JSON")
    }

    fn apply(body: &str, patch: &str) -> Result<String> {
        Ok(Patch::parse(&json(patch))?.apply(&json(body))?.to_json())
    }

    fn message(body: &str, patch: &str) -> String {
        let error = apply(body, patch).expect_err("an error");
        assert_eq!(error.kind(), ErrorKind::Invalid);
        error.message().to_owned()
    }

    #[test]
    fn operators_change_what_they_name_and_nothing_else() {
        for (body, patch, expected) in [
            (r#"{"a":1,"b":2}"#, r#"{"$set":{"a":3,"c.d":4}}"#, r#"{"a":3,"b":2,"c":{"d":4}}"#),
            (r#"{"a":[1,{"b":2}]}"#, r#"{"$set":{"a.1.b":3,"a.2":4}}"#, r#"{"a":[1,{"b":3},4]}"#),
            (r#"{"a":1,"b":[1,2]}"#, r#"{"$unset":{"a":"","b.0":"","z.y":""}}"#, r#"{"b":[null,2]}"#),
            (r#"{"a":1,"b":2,"c":3}"#, r#"{"$unset":["a","b"]}"#, r#"{"c":3}"#),
            (r#"{"a":1,"b":1.5}"#, r#"{"$inc":{"a":2,"b":1,"c":-4}}"#, r#"{"a":3,"b":2.5,"c":-4}"#),
            (r#"{"a":9223372036854775807}"#, r#"{"$inc":{"a":1}}"#, r#"{"a":9223372036854775808}"#),
            (r#"{"a":3,"b":2}"#, r#"{"$mul":{"a":4,"b":0.5,"c":7}}"#, r#"{"a":12,"b":1.0,"c":0}"#),
            (r#"{"a":3,"b":3}"#, r#"{"$min":{"a":2,"b":4,"c":5}}"#, r#"{"a":2,"b":3,"c":5}"#),
            (r#"{"a":3,"b":3}"#, r#"{"$max":{"a":2,"b":4,"c":5}}"#, r#"{"a":3,"b":4,"c":5}"#),
            (r#"{"a":[1]}"#, r#"{"$push":{"a":[2],"b":1}}"#, r#"{"a":[1,[2]],"b":[1]}"#),
            (r#"{"a":[1]}"#, r#"{"$push":{"a":{"$each":[2,3]}}}"#, r#"{"a":[1,2,3]}"#),
            (r#"{"a":[1]}"#, r#"{"$addToSet":{"a":1.0,"b":{"$each":[1,2,1]}}}"#, r#"{"a":[1],"b":[1,2]}"#),
            (r#"{"a":[1,2,1.0,3]}"#, r#"{"$pull":{"a":1,"b":1}}"#, r#"{"a":[2,3]}"#),
            (r#"{"a":[1,2,3]}"#, r#"{"$pull":{"a":{"$in":[1,3]}}}"#, r#"{"a":[2]}"#),
            (r#"{"a":[{"b":1,"c":2},1]}"#, r#"{"$pull":{"a":{"b":1,"c":2}}}"#, r#"{"a":[1]}"#),
            (r#"{"a":1,"b":2}"#, r#"{"$rename":{"a":"c.d","z":"y"}}"#, r#"{"b":2,"c":{"d":1}}"#),
            (r#"{"a.b":1}"#, r#"{"$set":{"a\\.b":2}}"#, r#"{"a.b":2}"#),
        ] {
            assert_eq!(apply(body, patch).unwrap_or_else(|error| panic!("{patch}: {error}")), expected, "{patch}");
        }
    }

    #[test]
    fn merge_patches_follow_rfc_7386() {
        for (body, patch, expected) in [
            (r#"{"a":"b"}"#, r#"{"a":"c"}"#, r#"{"a":"c"}"#),
            (r#"{"a":"b"}"#, r#"{"b":"c"}"#, r#"{"a":"b","b":"c"}"#),
            (r#"{"a":"b","b":"c"}"#, r#"{"a":null}"#, r#"{"b":"c"}"#),
            (r#"{"a":["b"]}"#, r#"{"a":"c"}"#, r#"{"a":"c"}"#),
            (r#"{"a":{"b":"c"}}"#, r#"{"a":{"b":"d","c":null}}"#, r#"{"a":{"b":"d"}}"#),
            (r#"{"a":[{"b":"c"}]}"#, r#"{"a":[1]}"#, r#"{"a":[1]}"#),
            (r#"{"e":null}"#, r#"{"a":1}"#, r#"{"e":null,"a":1}"#),
            (r#"{"a":"x"}"#, r#"{"a":{"bb":{"ccc":null}}}"#, r#"{"a":{"bb":{}}}"#),
            (r#"{"a":1}"#, "{}", r#"{"a":1}"#),
        ] {
            assert_eq!(apply(body, patch).expect("a good patch"), expected, "{patch}");
        }
    }

    #[test]
    fn bad_patches_are_refused_with_the_reason() {
        assert!(message("{}", "[]").contains("a patch is an object"));
        assert!(message("{}", r#"{"$set":{"a":1},"b":{"c":2}}"#).contains("the field `b`"));
        assert!(message("{}", r#"{"$jump":{"a":1}}"#).contains("$jump"));
        assert!(message("{}", r#"{"$set":1}"#).contains("$set takes an object"));
        assert!(message("{}", r#"{"$inc":{"a":"1"}}"#).contains("$inc takes a number"));
        assert!(message("{}", r#"{"$push":{"a":{"$slice":1}}}"#).contains("$slice"));
        assert!(message("{}", r#"{"$pull":{"a":{"$gt":1}}}"#).contains("$gt"));
        assert!(message("{}", r#"{"$set":{"a..b":1}}"#).contains("a..b"));
        assert!(message("{}", r#"{"$set":{"_id":"x"}}"#).contains("_id"));
        assert!(message("{}", r#"{"_deleted":true}"#).contains("_deleted"));
        for overlapping in [
            r#"{"$set":{"a":1},"$inc":{"a":1}}"#,
            r#"{"$set":{"a":1,"a.b":1}}"#,
            r#"{"$set":{"a.b.c":1,"a":1}}"#,
            r#"{"$rename":{"a":"a.b"}}"#,
            r#"{"$rename":{"a":"b"},"$set":{"b":1}}"#,
        ] {
            assert!(message("{}", overlapping).contains("two operators"), "{overlapping}");
        }
        apply("{}", r#"{"$set":{"a.b":1,"a.c":1,"ab":1}}"#).expect("siblings don't overlap");
    }

    #[test]
    fn patches_that_do_not_fit_the_body_are_refused() {
        assert!(message(r#"{"a":"x"}"#, r#"{"$inc":{"a":1}}"#).contains("of type string, not a number"));
        assert!(message(r#"{"a":18446744073709551615}"#, r#"{"$inc":{"a":1}}"#).contains("out of range"));
        assert!(message(r#"{"a":1e308}"#, r#"{"$mul":{"a":10}}"#).contains("out of range"));
        assert!(message(r#"{"a":1}"#, r#"{"$push":{"a":1}}"#).contains("of type number, not an array"));
        assert!(message(r#"{"a":1}"#, r#"{"$set":{"a.b":1}}"#).contains("can't be created in a value of type number"));
        assert!(message(r#"{"a":[1]}"#, r#"{"$set":{"a.2":1}}"#).contains("no position `2`"));
        assert!(message(r#"{"a":[1]}"#, r#"{"$set":{"a.b":1}}"#).contains("no position `b`"));
        assert!(message(r#"{"a":[1]}"#, r#"{"$rename":{"a.0":"b"}}"#).contains("can't be renamed"));
    }

    #[test]
    fn builder_errors_are_returned_when_the_patch_is_applied() {
        let patch = Patch::new().set("a", 1).set("", 2);
        assert_eq!(patch.apply(&json("{}")).expect_err("a bad path").kind(), ErrorKind::Invalid);
        let patch = Patch::new().rename("a", "b.").merge(Object::new());
        assert_eq!(patch.check().expect_err("a bad path").kind(), ErrorKind::Invalid);
    }
}
