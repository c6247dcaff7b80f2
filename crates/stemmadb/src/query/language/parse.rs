//! The parser of Mango JSON selectors.
//!
//! Nested objects become nested paths, several fields or operators in one object become *and*, and a plain value
//! becomes equality, as in CouchDB.
//!
//! Deliberate differences from CouchDB 3.5:
//! - `[]` after a name stands for some element of an array, which must meet all conditions in the object at that name;
//! - strings compare by code point, not by ICU collation; `1` and `1.0` are equal in `$all` and `$mod` too;
//! - `$regex` uses the `regex` crate, not PCRE: matching always takes linear time;
//! - `{}` within `$and`, `$or` and `$not` matches everything, whereas CouchDB compares the document with `{}`;
//! - negations within a negated `$elemMatch` have the same meaning as elsewhere;
//! - an unknown `$type`, a `$mod` by zero and an operator without a field are errors, whereas in CouchDB they match
//!   nothing.

use super::operators::{Pattern, kind_named, kind_with_article, unknown_operator};
use super::selector::{Comparison, DEPTH_MAX, Node, Size, Target, Test};
use crate::value::{ElementPath, Path, Value};
use crate::{Error, Result};

/// Bound on nested JSON objects: one level of a selector takes up to two, and field names nest too.
const NESTING_MAX: usize = 3 * DEPTH_MAX;

/// The position of a part within the selector.
#[derive(Clone, Copy)]
struct Context<'a> {
    /// The field names around this part.
    prefix: &'a [String],
    /// Whether the part applies to an array element or a key, which conditions may test without a field.
    inner: bool,
    /// The number of JSON levels around this part.
    depth: usize,
}

/// Parses `json`. Returns the tree and its size.
pub(in crate::query) fn selector(json: &Value) -> Result<(Node, Size)> {
    let Value::Object(_) = json else {
        return Err(Error::invalid(format!("a selector is an object, not {}", kind_with_article(json.kind())))
            .with_hint("write for example {\"year\": {\"$gte\": 1960}}, or {} for every document"));
    };
    part(json, Context { prefix: &[], inner: false, depth: 0 })
}

/// Parses one object or plain value at `context`.
fn part(json: &Value, context: Context<'_>) -> Result<(Node, Size)> {
    if context.depth >= NESTING_MAX {
        return Err(Error::invalid(format!("the selector nests deeper than {NESTING_MAX} objects"))
            .with_hint("join conditions side by side with $and, $or or $in"));
    }
    let object = match json {
        Value::Object(object) if !object.is_empty() => object,
        Value::Object(_) if context.prefix.is_empty() => return Ok((Node::Everything, Size::default())),
        plain => return condition("$eq", context, Test::Compare(Comparison::Equal, plain.clone())),
    };
    let mut nodes = Vec::with_capacity(object.len());
    let mut size = Size::default();
    for (name, argument) in object.iter() {
        let (node, node_size) = match (name, object.get("$options")) {
            ("$regex", Some(options)) => condition(name, context, regex(argument, Some(options), context)?)?,
            ("$options", _) if object.contains("$regex") => continue,
            _ => entry(name, argument, context)?,
        };
        nodes.push(node);
        size = size.beside(node_size);
        size.check()?;
    }
    let size = if nodes.len() > 1 { size.below(0) } else { size };
    size.check()?;
    Ok((Node::all(nodes), size))
}

/// Parses one field of an object.
fn entry(name: &str, argument: &Value, context: Context<'_>) -> Result<(Node, Size)> {
    match name {
        "$and" | "$or" | "$nor" => joined(name, argument, context),
        "$not" => {
            let Value::Object(_) = argument else {
                return Err(wrong_argument(name, "an object", argument, context)
                    .with_hint("to ask for another value than this one, use $ne"));
            };
            let (node, size) = part(argument, context.deeper())?;
            Ok((Node::Not(Box::new(node)), size.below(0)))
        }
        "$elemMatch" | "$allMatch" | "$keyMapMatch" => nesting(name, argument, context),
        _ if name.starts_with('$') => {
            let test = leaf(name, argument, context)?;
            condition(name, context, test)
        }
        _ if ElementPath::is_in(name) => in_elements(name, argument, context),
        _ => {
            let mut prefix = context.prefix.to_vec();
            prefix.push(name.to_owned());
            part(argument, Context { prefix: &prefix, ..context.deeper() })
        }
    }
}

fn joined(name: &str, argument: &Value, context: Context<'_>) -> Result<(Node, Size)> {
    let Value::Array(arguments) = argument else {
        return Err(wrong_argument(name, "an array of selectors", argument, context)
            .with_hint(format!("write for example {{\"{name}\": [{{\"a\": 1}}, {{\"b\": 2}}]}}")));
    };
    if arguments.is_empty() {
        // In CouchDB an empty list is no condition at all, also for `$or`.
        return Ok((Node::Everything, Size::default()));
    }
    let mut nodes = Vec::with_capacity(arguments.len());
    let mut size = Size::default();
    for argument in arguments {
        if context.prefix.is_empty() && !context.inner && !matches!(argument, Value::Object(_)) {
            return Err(wrong_argument(name, "selectors in its array", argument, context)
                .with_hint("each selector in the array is an object such as {\"year\": 1960}"));
        }
        let (node, node_size) = part(argument, context.deeper())?;
        nodes.push(node);
        size = size.beside(node_size);
        size.check()?;
    }
    let node = match name {
        "$and" => Node::all(nodes),
        "$or" => Node::any(nodes),
        _ => Node::Not(Box::new(Node::any(nodes))),
    };
    let size = size.below(0);
    size.check()?;
    Ok((node, size))
}

/// Parses the conditions on a path that enters arrays: some element must meet all of them.
fn in_elements(path: &str, argument: &Value, context: Context<'_>) -> Result<(Node, Size)> {
    let mut parts = ElementPath::parse(path)?.between_arrays().into_iter();
    let outermost = parts.next().flatten().expect("a path begins with a name");
    let mut targets = vec![Target::Path(Path::parse(&context.path_of(&outermost.to_string()))?)];
    targets.extend(parts.map(|part| part.map_or(Target::Element, Target::Path)));
    let prefix = match targets.pop() {
        Some(Target::Path(path)) => vec![path.to_string()],
        _ => Vec::new(),
    };
    let inner = Context { prefix: &prefix, inner: true, depth: context.depth + 1 };
    let (mut node, mut size) = part(argument, inner)?;
    for array in targets.into_iter().rev() {
        node = Node::Condition(array, Test::ElemMatch(Box::new(node)));
        size = size.below(1);
    }
    size.check()?;
    Ok((node, size))
}

fn nesting(name: &str, argument: &Value, context: Context<'_>) -> Result<(Node, Size)> {
    let Value::Object(_) = argument else {
        return Err(wrong_argument(name, "an object", argument, context)
            .with_hint(format!("write for example {{\"{name}\": {{\"$eq\": 1}}}}")));
    };
    let (inner, size) = part(argument, Context { prefix: &[], inner: true, depth: context.depth + 1 })?;
    let inner = Box::new(inner);
    let test = match name {
        "$elemMatch" => Test::ElemMatch(inner),
        "$allMatch" => Test::AllMatch(inner),
        _ => Test::KeyMapMatch(inner),
    };
    let size = size.below(1);
    size.check()?;
    Ok((Node::Condition(target(name, context)?, test), size))
}

fn condition(operator: &str, context: Context<'_>, test: Test) -> Result<(Node, Size)> {
    test.check_operands()?;
    let size = Size::of_condition(&test);
    Ok((Node::Condition(target(operator, context)?, test), size))
}

/// The target that the field names around a condition define.
fn target(operator: &str, context: Context<'_>) -> Result<Target> {
    if context.prefix.is_empty() {
        if context.inner {
            return Ok(Target::Element);
        }
        return Err(Error::invalid(format!("the operator {operator} is at the top level, without a field"))
            .with_hint(format!("write {{\"field\": {{\"{operator}\": …}}}}")));
    }
    Path::parse(&context.prefix.join(".")).map(Target::Path)
}

/// Parses an operator that neither combines nor nests selectors.
fn leaf(name: &str, argument: &Value, context: Context<'_>) -> Result<Test> {
    let comparison = match name {
        "$eq" => Some(Comparison::Equal),
        "$ne" => Some(Comparison::NotEqual),
        "$lt" => Some(Comparison::Less),
        "$lte" => Some(Comparison::LessOrEqual),
        "$gt" => Some(Comparison::Greater),
        "$gte" => Some(Comparison::GreaterOrEqual),
        _ => None,
    };
    if let Some(comparison) = comparison {
        return Ok(Test::Compare(comparison, argument.clone()));
    }
    Ok(match (name, argument) {
        ("$in", Value::Array(values)) => Test::In(values.clone()),
        ("$nin", Value::Array(values)) => Test::NotIn(values.clone()),
        ("$all", Value::Array(values)) => Test::All(values.clone()),
        ("$in" | "$nin" | "$all", _) => return Err(wrong_argument(name, "an array of values", argument, context)),
        ("$exists", Value::Bool(exists)) => Test::Exists(*exists),
        ("$exists", _) => return Err(wrong_argument(name, "true or false", argument, context)),
        ("$type", Value::String(kind)) => Test::Type(kind_named(kind).ok_or_else(|| unknown_kind(kind, context))?),
        ("$type", _) => return Err(unknown_kind(&argument.to_json(), context)),
        ("$beginsWith", Value::String(prefix)) => Test::BeginsWith(prefix.clone()),
        ("$beginsWith", _) => return Err(wrong_argument(name, "a string", argument, context)),
        ("$regex", _) => regex(argument, None, context)?,
        ("$size", _) => Test::Size(count(argument).ok_or_else(|| {
            wrong_argument(name, "a whole number from 0", argument, context)
                .with_hint("to compare lengths, use $elemMatch or $all on the elements")
        })?),
        ("$mod", _) => modulo(argument, context)?,
        _ => return Err(unknown_operator(name).within(context.name())),
    })
}

/// `$regex`, with the `$options` beside it: letters of `imsx`.
fn regex(pattern: &Value, options: Option<&Value>, context: Context<'_>) -> Result<Test> {
    let Value::String(pattern) = pattern else { return Err(wrong_argument("$regex", "a string", pattern, context)) };
    let pattern = match options {
        None => pattern.clone(),
        Some(Value::String(letters)) if letters.is_empty() => pattern.clone(),
        Some(Value::String(letters)) if letters.chars().all(|letter| "imsx".contains(letter)) => {
            format!("(?{letters}){pattern}")
        }
        Some(other) => {
            return Err(wrong_argument("$options", "a string of the letters imsx", other, context).with_hint(
                "i ignores case, m lets ^ and $ match at lines, s lets . match line breaks, x ignores spaces",
            ));
        }
    };
    Ok(Test::Regex(Pattern::new(&pattern).map_err(|error| error.within(context.name()))?))
}

fn count(argument: &Value) -> Option<u64> {
    match argument {
        Value::Number(number) => u64::try_from(number.to_integer()?).ok(),
        _ => None,
    }
}

fn modulo(argument: &Value, context: Context<'_>) -> Result<Test> {
    let wrong = || {
        wrong_argument("$mod", "an array of two whole numbers", argument, context)
            .with_hint("write {\"$mod\": [divisor, remainder]}, for example [2, 0] for even numbers")
    };
    let Value::Array(pair) = argument else { return Err(wrong()) };
    let [Value::Number(divisor), Value::Number(remainder)] = pair.as_slice() else { return Err(wrong()) };
    let integer = |number: &crate::value::Number| number.to_integer().and_then(|integer| i64::try_from(integer).ok());
    match (integer(divisor), integer(remainder)) {
        (Some(0), _) => Err(Error::invalid(format!("{}: $mod divides by zero", context.name()))
            .with_hint("the divisor is any other whole number")),
        (Some(divisor), Some(remainder)) => Ok(Test::Modulo { divisor, remainder }),
        _ => Err(wrong()),
    }
}

fn unknown_kind(shown: &str, context: Context<'_>) -> Error {
    let shown: String = shown.chars().take(64).collect();
    Error::invalid(format!("{}: $type does not know \"{shown}\"", context.name()))
        .with_hint("the types are null boolean number string array object")
}

fn wrong_argument(operator: &str, needs: &str, argument: &Value, context: Context<'_>) -> Error {
    Error::invalid(format!("{}: {operator} needs {needs}, not {}", context.name(), kind_with_article(argument.kind())))
}

impl Context<'_> {
    fn deeper(self) -> Self {
        Context { depth: self.depth + 1, ..self }
    }

    /// The path of the field `name` here.
    fn path_of(&self, name: &str) -> String {
        self.prefix.iter().map(String::as_str).chain([name]).collect::<Vec<_>>().join(".")
    }

    /// How messages name this position.
    fn name(&self) -> String {
        match (self.prefix.is_empty(), self.inner) {
            (true, false) => "the selector".to_owned(),
            (true, true) => "the inner selector".to_owned(),
            (false, _) => {
                let path: String = self.prefix.join(".").chars().take(128).collect();
                format!("the field {path}")
            }
        }
    }
}
