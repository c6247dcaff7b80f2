//! A naive evaluator of pipelines: interprets the stages as they are written, over whole documents, in doubles.
//!
//! It shares no code with the pipeline except selectors, single paths and the comparison of values.

use std::cmp::Ordering;

use super::super::super::language::selector::Selector;
use crate::value::{Object, Path, Value, collate};

/// A row that a stage does not take.
#[derive(Debug)]
pub(super) struct Refused;

type Computed = Result<Option<Value>, Refused>;

/// The rows of a pipeline over `documents`, which are in order of insertion.
pub(super) fn run(documents: &[Value], stages: &[Value]) -> Result<Vec<Value>, Refused> {
    let mut rows = documents.to_vec();
    let mut only_matched = true;
    for stage in stages {
        let (operator, argument) = stage.as_object().unwrap().iter().next().unwrap();
        if operator == "$sort" && only_matched {
            // Ties between documents are broken by their ids.
            rows.sort_by(|a, b| compare(a.get("_id"), b.get("_id")));
        }
        only_matched &= operator == "$match";
        rows = apply(operator, argument, rows, documents)?;
    }
    Ok(rows)
}

fn apply(operator: &str, argument: &Value, rows: Vec<Value>, documents: &[Value]) -> Result<Vec<Value>, Refused> {
    let count = || argument.as_u64().unwrap() as usize;
    let each = |change: &dyn Fn(Value) -> Result<Vec<Value>, Refused>| {
        let mut changed = Vec::new();
        for row in &rows {
            changed.extend(change(row.clone())?);
        }
        Ok(changed)
    };
    match operator {
        "$match" => {
            let selector = Selector::parse(argument).unwrap();
            Ok(rows.into_iter().filter(|row| selector.matches(row).unwrap()).collect())
        }
        "$limit" => Ok(rows.into_iter().take(count()).collect()),
        "$skip" => Ok(rows.into_iter().skip(count()).collect()),
        "$count" if rows.is_empty() => Ok(Vec::new()),
        "$count" => Ok(vec![object([(argument.as_str().unwrap(), rows.len().into())])]),
        "$sort" => {
            let mut rows = rows;
            rows.sort_by(|a, b| {
                argument.as_object().unwrap().iter().fold(Ordering::Equal, |order, (path, direction)| {
                    let by = compare(get(a, path), get(b, path));
                    order.then(if direction.as_i64() == Some(1) { by } else { by.reverse() })
                })
            });
            Ok(rows)
        }
        "$unwind" => each(&|row| unwind(row, argument)),
        "$addFields" => each(&|row| {
            let mut changed = row.clone();
            for (name, expression) in argument.as_object().unwrap() {
                let fields = changed.as_object_mut().unwrap();
                match compute(expression, &row)? {
                    Some(value) => drop(fields.insert(name, value)),
                    None => drop(fields.remove(name)),
                }
            }
            Ok(vec![changed])
        }),
        "$project" => each(&|row| {
            let mut changed = Object::new();
            for (name, how) in argument.as_object().unwrap() {
                let value = if how.as_i64() == Some(1) { row.get(name).cloned() } else { compute(how, &row)? };
                if let Some(value) = value {
                    changed.insert(name, value);
                }
            }
            Ok(vec![changed.into()])
        }),
        "$unset" => each(&|mut row| {
            row.as_object_mut().unwrap().remove(argument.as_str().unwrap());
            Ok(vec![row])
        }),
        "$replaceWith" => each(&|row| match compute(argument, &row)? {
            Some(root @ Value::Object(_)) => Ok(vec![root]),
            _ => Err(Refused),
        }),
        "$lookup" => each(&|row| Ok(vec![lookup(row, argument, documents)])),
        "$group" => group(argument, &rows),
        "$sortByCount" => {
            let counts = object([("_id", argument.clone()), ("count", object([("$sum", 1.into())]))]);
            let mut groups = group(&counts, &rows)?;
            groups.sort_by(|a, b| compare(b.get("count"), a.get("count")));
            Ok(groups)
        }
        other => panic!("{other}"),
    }
}

fn unwind(row: Value, argument: &Value) -> Result<Vec<Value>, Refused> {
    let name = argument.get("path").and_then(Value::as_str).unwrap().strip_prefix('$').unwrap();
    let keeps = argument.get("preserveNullAndEmptyArrays").is_some();
    let with = |element: Option<&Value>, at: Value| {
        let mut row = row.clone();
        let fields = row.as_object_mut().unwrap();
        match element {
            Some(element) => drop(fields.insert(name, element.clone())),
            None => drop(fields.remove(name)),
        }
        fields.insert("at", at);
        row
    };
    Ok(match row.get(name) {
        Some(Value::Array(elements)) if !elements.is_empty() => {
            elements.iter().enumerate().map(|(at, element)| with(Some(element), at.into())).collect()
        }
        Some(Value::Array(_)) | None if keeps => vec![with(None, Value::Null)],
        Some(Value::Null) if keeps => vec![with(Some(&Value::Null), Value::Null)],
        Some(Value::Array(_) | Value::Null) | None => Vec::new(),
        Some(other) => vec![with(Some(other), Value::Null)],
    })
}

fn lookup(mut row: Value, argument: &Value, documents: &[Value]) -> Value {
    let path = |name: &str| argument.get(name).and_then(Value::as_str).unwrap();
    let all = |value: Option<&Value>| match value {
        None => Vec::new(),
        Some(Value::Array(elements)) => elements.clone(),
        Some(value) => vec![value.clone()],
    };
    let selector = Selector::parse(argument.get("selector").unwrap()).unwrap();
    let local = all(get(&row, path("localField")));
    let mut found: Vec<Value> = documents
        .iter()
        .filter(|document| selector.matches(document).unwrap())
        .filter(|document| {
            let foreign = all(get(document, path("foreignField")));
            local.iter().any(|value| foreign.iter().any(|other| collate::compare(value, other).is_eq()))
        })
        .cloned()
        .collect();
    found.sort_by(|a, b| compare(a.get("_id"), b.get("_id")));
    row.as_object_mut().unwrap().insert(path("as"), Value::Array(found));
    row
}

fn group(argument: &Value, rows: &[Value]) -> Result<Vec<Value>, Refused> {
    let mut groups: Vec<(Value, Vec<&Value>)> = Vec::new();
    for row in rows {
        let key = compute(argument.get("_id").unwrap(), row)?.unwrap_or_default();
        match groups.iter_mut().find(|(known, _)| collate::compare(known, &key).is_eq()) {
            Some((_, members)) => members.push(row),
            None => groups.push((key, vec![row])),
        }
    }
    groups.sort_by(|(a, _), (b, _)| collate::compare(a, b));
    let mut found = Vec::new();
    for (key, members) in groups {
        let mut row = Object::from_iter([("_id", key)]);
        for (name, field) in argument.as_object().unwrap().iter().filter(|(name, _)| *name != "_id") {
            let (function, expression) = field.as_object().unwrap().iter().next().unwrap();
            let values = members.iter().map(|member| compute(expression, member)).collect::<Result<Vec<_>, _>>()?;
            row.insert(name, accumulate(function, &values));
        }
        found.push(row.into());
    }
    Ok(found)
}

/// The sum rounded once, as the database rounds it: the error of each addition is kept beside the sum (Neumaier).
fn total(numbers: &[f64]) -> f64 {
    let (mut sum, mut error) = (0.0_f64, 0.0);
    for &number in numbers {
        let next = sum + number;
        let (large, small) = if sum.abs() >= number.abs() { (sum, number) } else { (number, sum) };
        error += (large - next) + small;
        sum = next;
    }
    sum + error
}

fn accumulate(function: &str, values: &[Option<Value>]) -> Value {
    let present: Vec<&Value> = values.iter().flatten().collect();
    let numbers: Vec<f64> = present.iter().filter_map(|value| value.as_f64()).collect();
    let mut ordered = present.clone();
    ordered.sort_by(|a, b| collate::compare(a, b));
    let not_null = ordered.iter().filter(|value| !value.is_null());
    match function {
        "$count" => values.len().into(),
        "$sum" => total(&numbers).into(),
        "$avg" if numbers.is_empty() => Value::Null,
        "$avg" => (total(&numbers) / numbers.len() as f64).into(),
        "$min" => not_null.clone().next().map_or(Value::Null, |value| (*value).clone()),
        "$max" => not_null.clone().next_back().map_or(Value::Null, |value| (*value).clone()),
        "$first" => values[0].clone().unwrap_or_default(),
        "$last" => values[values.len() - 1].clone().unwrap_or_default(),
        "$push" => Value::Array(present.into_iter().cloned().collect()),
        "$addToSet" => {
            ordered.dedup_by(|a, b| collate::compare(a, b).is_eq());
            Value::Array(ordered.into_iter().cloned().collect())
        }
        other => panic!("{other}"),
    }
}

fn compute(expression: &Value, row: &Value) -> Computed {
    match expression {
        Value::String(text) if text == "$$ROOT" => Ok(Some(row.clone())),
        Value::String(text) if text.starts_with("$$ROOT.") => Ok(get(row, &text["$$ROOT.".len()..]).cloned()),
        Value::String(text) if text.starts_with('$') => Ok(match text[1..].split_once("[].") {
            None => get(row, &text[1..]).cloned(),
            Some((array, field)) => match get(row, array) {
                Some(Value::Array(elements)) => {
                    Some(Value::Array(elements.iter().filter_map(|element| get(element, field).cloned()).collect()))
                }
                _ => None,
            },
        }),
        Value::Array(parts) => {
            let parts = parts.iter().map(|part| Ok(compute(part, row)?.unwrap_or_default()));
            Ok(Some(Value::Array(parts.collect::<Result<_, _>>()?)))
        }
        Value::Object(object) => match object.iter().next() {
            Some((name, argument)) if name.starts_with('$') => call(name, argument, row),
            _ => {
                let mut computed = Object::new();
                for (name, field) in object {
                    if let Some(value) = compute(field, row)? {
                        computed.insert(name, value);
                    }
                }
                Ok(Some(computed.into()))
            }
        },
        literal => Ok(Some(literal.clone())),
    }
}

fn call(name: &str, argument: &Value, row: &Value) -> Computed {
    let parts = argument.as_array().map_or_else(|| vec![argument.clone()], <[Value]>::to_vec);
    let part = |at: usize| compute(&parts[at], row);
    let is_true = |value: Option<Value>| match value {
        None | Some(Value::Null | Value::Bool(false)) => false,
        Some(value) => value.as_f64() != Some(0.0),
    };
    let order = || Ok(compare(part(0)?.as_ref(), part(1)?.as_ref()));
    let truth = |value: bool| Ok(Some(Value::Bool(value)));
    match name {
        "$cond" => return if is_true(part(0)?) { part(1) } else { part(2) },
        "$ifNull" => {
            return part(0)?.filter(|value| !value.is_null()).map_or_else(|| part(1), |value| Ok(Some(value)));
        }
        "$and" => return truth(is_true(part(0)?) && is_true(part(1)?)),
        "$or" => return truth(is_true(part(0)?) || is_true(part(1)?)),
        "$not" => return truth(!is_true(part(0)?)),
        "$eq" => return truth(order()?.is_eq()),
        "$ne" => return truth(order()?.is_ne()),
        "$gt" => return truth(order()?.is_gt()),
        "$gte" => return truth(order()?.is_ge()),
        "$lt" => return truth(order()?.is_lt()),
        "$lte" => return truth(order()?.is_le()),
        _ => {}
    }
    call_on_values(name, &(0..parts.len()).map(part).collect::<Result<Vec<_>, _>>()?)
}

fn call_on_values(name: &str, values: &[Option<Value>]) -> Computed {
    let truth = |value: bool| Ok(Some(Value::Bool(value)));
    let array = |at: usize| values[at].as_ref().and_then(Value::as_array).ok_or(Refused);
    match name {
        "$size" => return Ok(Some(array(0)?.len().into())),
        "$in" => {
            let list = array(1)?;
            let is_in = |value: &Value| list.iter().any(|listed| collate::compare(value, listed).is_eq());
            return truth(values[0].as_ref().is_some_and(is_in));
        }
        "$arrayElemAt" => {
            if values.iter().any(|value| value.as_ref().is_none_or(Value::is_null)) {
                return Ok(Some(Value::Null));
            }
            let (elements, at) = (array(0)?, values[1].as_ref().and_then(Value::as_i64).ok_or(Refused)?);
            let at = if at < 0 { at + elements.len() as i64 } else { at };
            return Ok(usize::try_from(at).ok().and_then(|at| elements.get(at)).cloned());
        }
        "$toLower" | "$toUpper" | "$substr" => {
            let text = match &values[0] {
                None | Some(Value::Null) => return Ok(Some("".into())),
                Some(text) => text.as_str().ok_or(Refused)?,
            };
            return Ok(Some(match name {
                "$toLower" => text.to_lowercase().into(),
                "$toUpper" => text.to_uppercase().into(),
                _ => text.chars().skip(1).take(2).collect::<String>().into(),
            }));
        }
        "$concat" => {
            let mut joined = String::new();
            for value in values {
                match value {
                    None | Some(Value::Null) => return Ok(Some(Value::Null)),
                    Some(text) => joined += text.as_str().ok_or(Refused)?,
                }
            }
            return Ok(Some(joined.into()));
        }
        _ => {}
    }
    arithmetic(name, values)
}

fn arithmetic(name: &str, values: &[Option<Value>]) -> Computed {
    let mut numbers = Vec::new();
    for value in values.iter().flatten().filter(|value| !value.is_null()) {
        numbers.push(value.as_f64().ok_or(Refused)?);
    }
    if numbers.len() < values.len() {
        return Ok(Some(Value::Null));
    }
    let result = match name {
        "$add" => numbers.iter().sum::<f64>(),
        "$multiply" => numbers.iter().product(),
        "$subtract" => numbers[0] - numbers[1],
        "$divide" | "$mod" if numbers[1] == 0.0 => return Err(Refused),
        "$divide" => numbers[0] / numbers[1],
        "$mod" => numbers[0] % numbers[1],
        other => panic!("{other}"),
    };
    Ok(Some(result.into()))
}

fn get<'v>(row: &'v Value, path: &str) -> Option<&'v Value> {
    Path::parse(path).unwrap().get(row)
}

fn compare(a: Option<&Value>, b: Option<&Value>) -> Ordering {
    match (a, b) {
        (Some(a), Some(b)) => collate::compare(a, b),
        (a, b) => a.is_some().cmp(&b.is_some()),
    }
}

fn object<const N: usize>(fields: [(&str, Value); N]) -> Value {
    Object::from_iter(fields).into()
}
