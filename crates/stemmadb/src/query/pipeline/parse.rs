//! The parser of pipelines.

use super::expression::Expression;
use super::stage::{Accumulator, Group, Lookup, NamedStage, Stage, Unwind};
use crate::query::language::operators::kind_with_article;
use crate::query::language::projection::Fields;
use crate::query::language::selector::Selector;
use crate::query::language::sort::Sort;
use crate::value::{ElementPath, Object, Path, PathStep, Value};
use crate::{Error, Result};

/// The largest number of stages.
const STAGES_MAX: usize = 64;
/// The largest number of fields that one stage computes.
const FIELDS_MAX: usize = 1_000;

const NAMES: &str = "$match, $unwind, $group, $project, $addFields, $set, $unset, $sort, $limit, $skip, $count, \
                     $sortByCount, $replaceRoot, $replaceWith and $lookup";

/// Parses an array of stages.
pub(super) fn pipeline(json: &Value) -> Result<Vec<NamedStage>> {
    let Value::Array(stages) = json else {
        return Err(Error::invalid(format!("a pipeline is an array, not {}", kind_with_article(json.kind())))
            .with_hint("write for example [{\"$match\": {\"kind\": \"order\"}}, {\"$limit\": 10}]"));
    };
    if stages.len() > STAGES_MAX {
        return Err(Error::invalid(format!("a pipeline has at most {STAGES_MAX} stages, not {}", stages.len())));
    }
    let mut parsed = Vec::with_capacity(stages.len());
    for (at, json) in stages.iter().enumerate() {
        let single = json.as_object().filter(|object| object.len() == 1).and_then(|object| object.iter().next());
        let Some((operator, argument)) = single else {
            return Err(Error::invalid(format!("stage {} is not an object with one operator", at + 1))
                .with_hint("write for example {\"$limit\": 10}"));
        };
        let shown: String = operator.chars().take(64).collect();
        let label = format!("stage {} ({shown})", at + 1);
        let stages = stage(operator, argument).map_err(|error| error.within(&label))?;
        let named = |stage| NamedStage { label: label.clone(), operator: operator.to_owned(), stage };
        parsed.extend(stages.into_iter().map(named));
    }
    Ok(parsed)
}

fn stage(operator: &str, argument: &Value) -> Result<Vec<Stage>> {
    Ok(vec![match operator {
        "$match" => {
            let selector = Selector::parse(argument)?;
            selector.normal()?;
            Stage::Match(selector)
        }
        "$unwind" => Stage::Unwind(unwind(argument)?),
        "$group" => Stage::Group(group(argument)?),
        "$project" => project(argument)?,
        "$addFields" | "$set" => Stage::Compute(computed(argument)?),
        "$unset" => Stage::Exclude(unset(argument)?),
        "$sort" => Stage::Sort(sort(argument)?),
        "$limit" => match argument.as_u64() {
            Some(count) if count > 0 => Stage::Limit(count),
            _ => return Err(Error::invalid("a limit is a whole number from 1")),
        },
        "$skip" => Stage::Skip(argument.as_u64().ok_or_else(|| Error::invalid("skip is a whole number from 0"))?),
        "$count" => match argument {
            Value::String(name) if is_name(name) => Stage::Count(name.clone()),
            _ => return Err(Error::invalid("the name of a count is a field name without a dot or dollar sign")),
        },
        "$sortByCount" => return sort_by_count(argument),
        "$replaceRoot" => {
            let root = argument.as_object().filter(|object| object.len() == 1).and_then(|object| object.get("newRoot"));
            let root = root.ok_or_else(|| {
                Error::invalid("the new root is missing")
                    .with_hint("write {\"$replaceRoot\": {\"newRoot\": \"$path\"}}")
            })?;
            Stage::Replace(Expression::parse(root)?)
        }
        "$replaceWith" => Stage::Replace(Expression::parse(argument)?),
        "$lookup" => Stage::Lookup(lookup(argument)?),
        _ => return Err(Error::invalid("there is no such stage").with_hint(format!("the stages are {NAMES}"))),
    }])
}

fn object<'v>(argument: &'v Value, hint: &str) -> Result<&'v Object> {
    argument.as_object().ok_or_else(|| {
        Error::invalid(format!("its argument is an object, not {}", kind_with_article(argument.kind()))).with_hint(hint)
    })
}

/// A path with a leading dollar sign, as in expressions.
fn dollar_path(value: &Value) -> Result<Path> {
    match value.as_str().and_then(|text| text.strip_prefix('$')) {
        Some(path) => Path::parse_single(path),
        None => Err(Error::invalid("the path of an array begins with $").with_hint("write for example \"$lines\"")),
    }
}

/// The path of a field that is written.
fn output_path(text: &str) -> Result<Path> {
    if text.starts_with('$') {
        return Err(Error::invalid(format!("the field {text} to write begins with $"))
            .with_hint("write \"total\": \"$price\" to copy price to total"));
    }
    Path::parse_single(text)
}

fn unwind(argument: &Value) -> Result<Unwind> {
    let Value::Object(object) = argument else {
        return Ok(Unwind { path: dollar_path(argument)?, position: None, keeps_empty: false });
    };
    let (mut path, mut position, mut keeps_empty) = (None, None, false);
    for (name, value) in object {
        match (name, value) {
            ("path", value) => path = Some(dollar_path(value)?),
            ("includeArrayIndex", Value::String(name)) => position = Some(output_path(name)?),
            ("preserveNullAndEmptyArrays", Value::Bool(keeps)) => keeps_empty = *keeps,
            _ => {
                return Err(Error::invalid(format!("invalid parameter `{name}`"))
                    .with_hint("the parameters are path, includeArrayIndex and preserveNullAndEmptyArrays"));
            }
        }
    }
    let path = path.ok_or_else(|| Error::invalid("the path is missing").with_hint("write {\"path\": \"$lines\"}"))?;
    Ok(Unwind { path, position, keeps_empty })
}

fn group(argument: &Value) -> Result<Group> {
    let hint = "write {\"_id\": \"$city\", \"total\": {\"$sum\": \"$price\"}}, with \"_id\": null for one group";
    let object = object(argument, hint)?;
    let key = object.get("_id").ok_or_else(|| Error::invalid("the _id to group by is missing").with_hint(hint))?;
    let mut fields = Vec::new();
    for (name, value) in object {
        if name == "_id" {
            continue;
        }
        if !is_name(name) {
            return Err(Error::invalid(format!("the name {name:?} of a field has a dot or dollar sign")));
        }
        let function = value.as_object().filter(|object| object.len() == 1).and_then(|object| object.iter().next());
        let accumulator = function.and_then(|(function, value)| Some((accumulator(function)?, value)));
        let Some((accumulator, value)) = accumulator else {
            return Err(Error::invalid(format!("the field {name} has no accumulator")).with_hint(
                "the accumulators are $sum $avg $min $max $count $first $last $push $addToSet: {\"$sum\": \"$price\"}",
            ));
        };
        fields.push((name.to_owned(), accumulator, Expression::parse(value).map_err(|error| error.within(name))?));
    }
    bounded(fields.len())?;
    Ok(Group { key: Expression::parse(key)?, fields })
}

fn accumulator(name: &str) -> Option<Accumulator> {
    Some(match name {
        "$count" => Accumulator::Count,
        "$sum" => Accumulator::Sum,
        "$avg" => Accumulator::Average,
        "$min" => Accumulator::Min,
        "$max" => Accumulator::Max,
        "$first" => Accumulator::First,
        "$last" => Accumulator::Last,
        "$push" => Accumulator::Push,
        "$addToSet" => Accumulator::AddToSet,
        _ => return None,
    })
}

/// How `$project` treats a field.
enum Projected {
    Included,
    Excluded,
    Computed(Expression),
}

fn project(argument: &Value) -> Result<Stage> {
    let object = object(argument, "write {\"title\": 1, \"_id\": 0, \"total\": {\"$add\": [\"$a\", \"$b\"]}}")?;
    bounded(object.len())?;
    let (mut included, mut excluded, mut computed) = (Vec::new(), Vec::new(), Vec::new());
    let mut without_id = false;
    for (name, value) in object {
        let how = match value {
            Value::Bool(true) => Projected::Included,
            Value::Bool(false) => Projected::Excluded,
            Value::Number(number) if number.as_f64() == 0.0 => Projected::Excluded,
            Value::Number(_) => Projected::Included,
            expression => Projected::Computed(Expression::parse(expression).map_err(|error| error.within(name))?),
        };
        match how {
            Projected::Excluded if name == "_id" => without_id = true,
            Projected::Included => included.push(name),
            Projected::Excluded => excluded.push(steps(name)?),
            Projected::Computed(expression) => computed.push((output_path(name)?, expression)),
        }
    }
    if included.is_empty() && computed.is_empty() {
        if without_id {
            excluded.push(steps("_id")?);
        }
        if excluded.is_empty() {
            return Err(Error::invalid("there is no field to project"));
        }
        return Ok(Stage::Exclude(excluded));
    }
    if !excluded.is_empty() {
        return Err(Error::invalid("a projection includes or excludes fields, not both")
            .with_hint("only _id can be left out of a projection that includes fields"));
    }
    let has_id = computed.iter().any(|(path, _)| path.segments().eq(["_id"])) || without_id;
    if !has_id && !included.contains(&"_id") {
        included.insert(0, "_id");
    }
    Ok(Stage::Include { fields: Fields::new(included)?, computed })
}

fn computed(argument: &Value) -> Result<Vec<(Path, Expression)>> {
    let object = object(argument, "write {\"total\": {\"$multiply\": [\"$price\", \"$count\"]}}")?;
    bounded(object.len())?;
    let field = |(name, value): (&str, &Value)| {
        Ok((output_path(name)?, Expression::parse(value).map_err(|error| error.within(name))?))
    };
    object.iter().map(field).collect()
}

fn unset(argument: &Value) -> Result<Vec<Vec<PathStep>>> {
    let names = match argument {
        Value::Array(names) => names.as_slice(),
        one => std::slice::from_ref(one),
    };
    bounded(names.len())?;
    let name = |name: &Value| name.as_str().map(steps);
    names
        .iter()
        .map(|value| name(value).unwrap_or_else(|| Err(Error::invalid("a field to remove is a path"))))
        .collect()
}

fn steps(path: &str) -> Result<Vec<PathStep>> {
    if ElementPath::is_in(path) {
        return Ok(ElementPath::parse(path)?.steps().to_vec());
    }
    Ok(output_path(path)?.segments().map(|name| PathStep::Field(name.into())).collect())
}

fn sort(argument: &Value) -> Result<Sort> {
    let Value::Object(object) = argument else { return Sort::parse(argument) };
    let mut sort = Sort::default();
    for (path, direction) in object {
        let is_descending = match direction {
            Value::Number(number) if number.as_f64() == 1.0 => false,
            Value::Number(number) if number.as_f64() == -1.0 => true,
            Value::String(direction) if direction == "asc" => false,
            Value::String(direction) if direction == "desc" => true,
            _ => return Err(Error::invalid(format!("the direction of {path} is 1 or -1"))),
        };
        sort.push(path, is_descending, None)?;
    }
    match sort.keys.is_empty() {
        true => Err(Error::invalid("there is no path to sort by").with_hint("write {\"year\": 1, \"title\": -1}")),
        false => Ok(sort),
    }
}

fn sort_by_count(argument: &Value) -> Result<Vec<Stage>> {
    let one = Expression::Literal(Value::from(1));
    let group =
        Group { key: Expression::parse(argument)?, fields: vec![("count".to_owned(), Accumulator::Count, one)] };
    let mut sort = Sort::default();
    sort.push("count", true, None)?;
    Ok(vec![Stage::Group(group), Stage::Sort(sort)])
}

fn lookup(argument: &Value) -> Result<Lookup> {
    let hint = "write {\"localField\": \"customer\", \"foreignField\": \"_id\", \"as\": \"customers\"}";
    let object = object(argument, hint)?;
    let (mut local, mut foreign, mut output, mut selector) = (None, None, None, Selector::everything());
    for (name, value) in object {
        match (name, value) {
            ("localField", Value::String(path)) => local = Some(Path::parse_single(path)?),
            ("foreignField", Value::String(path)) => foreign = Some(path.clone()),
            ("as", Value::String(path)) => output = Some(output_path(path)?),
            ("selector", value) => selector = Selector::parse(value)?,
            ("from", _) => {
                return Err(Error::invalid("there is no `from`: documents of the same database are looked up")
                    .with_hint("a selector chooses which: {\"kind\": \"customer\"}"));
            }
            _ => {
                return Err(Error::invalid(format!("invalid parameter `{name}`"))
                    .with_hint("the parameters are localField, foreignField, as and selector"));
            }
        }
    }
    let (Some(local), Some(foreign), Some(output)) = (local, foreign, output) else {
        return Err(Error::invalid("localField, foreignField or as is missing").with_hint(hint));
    };
    super::expression::RowPath::parse(&foreign)?;
    selector.normal()?;
    Ok(Lookup { local, foreign, selector, output })
}

/// Whether a name can be a field of a group.
fn is_name(name: &str) -> bool {
    !name.is_empty() && !name.starts_with('$') && !name.contains('.')
}

fn bounded(field_count: usize) -> Result<()> {
    match field_count {
        0..=FIELDS_MAX => Ok(()),
        _ => Err(Error::invalid(format!("a stage names more than {FIELDS_MAX} fields"))),
    }
}
