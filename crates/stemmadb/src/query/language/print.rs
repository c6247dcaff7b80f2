//! The printer of selectors as Mango JSON in its shortest common form. Parsing the output gives an equal tree.

use super::normal::{Check, Leaf, Normal};
use super::selector::{Comparison, Node, Target, Test};
use crate::value::{Object, Value};

/// Prints a tree as Mango JSON.
pub(in crate::query) fn selector(node: &Node) -> Value {
    Value::Object(object(node))
}

fn object(node: &Node) -> Object {
    let mut object = Object::new();
    match node {
        Node::Everything => {}
        Node::Nothing => {
            object.insert("_id", single("$in", Value::Array(Vec::new())));
        }
        Node::All(nodes) => match side_by_side(nodes) {
            Some(fields) => return fields,
            None => {
                object.insert("$and", list(nodes));
            }
        },
        Node::Any(nodes) => {
            object.insert("$or", list(nodes));
        }
        Node::Not(inner) => match inner.as_ref() {
            Node::Any(nodes) => {
                object.insert("$nor", list(nodes));
            }
            other => {
                object.insert("$not", selector(other));
            }
        },
        Node::Condition(target, test) => insert_condition(&mut object, target, test),
    }
    object
}

fn list(nodes: &[Node]) -> Value {
    Value::Array(nodes.iter().map(selector).collect())
}

fn single(name: &str, value: Value) -> Value {
    let mut object = Object::new();
    object.insert(name, value);
    Value::Object(object)
}

/// Prints conditions as fields of one object. Possible if there are only conditions, those on one field are adjacent,
/// and no operator occurs twice for a field. An equality that shares its field is printed with its operator.
fn side_by_side(nodes: &[Node]) -> Option<Object> {
    let mut fields = Object::new();
    let mut last: Option<&Target> = None;
    let mut operators = Object::new();
    for node in nodes {
        let Node::Condition(target, test) = node else { return None };
        if last.is_some_and(|last| last != target) {
            finish(&mut fields, last?, std::mem::take(&mut operators))?;
        }
        last = Some(target);
        let (name, argument) = operator(test);
        if operators.insert(name, argument).is_some() {
            return None;
        }
    }
    finish(&mut fields, last?, operators)?;
    Some(fields)
}

/// Prints the operators of one target. `None` if the target was already printed.
fn finish(fields: &mut Object, target: &Target, mut operators: Object) -> Option<()> {
    match target {
        Target::Element => {
            for (name, argument) in operators.iter() {
                if fields.insert(name, argument.clone()).is_some() {
                    return None;
                }
            }
        }
        Target::Path(path) => {
            let value = match operators.get("$eq") {
                Some(plain) if operators.len() == 1 && is_plain(plain) => operators.remove("$eq")?,
                _ => Value::Object(operators),
            };
            if fields.insert(field_name(&path.to_string()), value).is_some() {
                return None;
            }
        }
    }
    Some(())
}

fn insert_condition(object: &mut Object, target: &Target, test: &Test) {
    let (name, argument) = operator(test);
    match target {
        Target::Element => {
            object.insert(name, argument);
        }
        Target::Path(path) => {
            let value = if name == "$eq" && is_plain(&argument) { argument } else { single(name, argument) };
            object.insert(field_name(&path.to_string()), value);
        }
    }
}

/// Whether the value means equality when printed without an operator.
fn is_plain(value: &Value) -> bool {
    match value {
        Value::Object(object) => object.is_empty(),
        _ => true,
    }
}

/// Prints a path as a field name; a leading dollar sign is escaped because it would mark an operator.
fn field_name(path: &str) -> String {
    if path.starts_with('$') { format!("\\{path}") } else { path.to_owned() }
}

/// The operator of a test and its argument.
fn operator(test: &Test) -> (&'static str, Value) {
    match test {
        Test::Compare(comparison, operand) => (comparison_name(*comparison), operand.clone()),
        Test::In(values) => ("$in", Value::Array(values.clone())),
        Test::NotIn(values) => ("$nin", Value::Array(values.clone())),
        Test::Exists(exists) => ("$exists", Value::Bool(*exists)),
        Test::Type(kind) => ("$type", Value::from(kind.name())),
        Test::BeginsWith(prefix) => ("$beginsWith", Value::from(prefix.as_str())),
        Test::Regex(pattern) => ("$regex", Value::from(pattern.text())),
        Test::Modulo { divisor, remainder } => {
            ("$mod", Value::Array(vec![Value::from(*divisor), Value::from(*remainder)]))
        }
        Test::Size(size) => ("$size", Value::from(*size)),
        Test::All(values) => ("$all", Value::Array(values.clone())),
        Test::ElemMatch(inner) => ("$elemMatch", selector(inner)),
        Test::AllMatch(inner) => ("$allMatch", selector(inner)),
        Test::KeyMapMatch(inner) => ("$keyMapMatch", selector(inner)),
    }
}

/// Prints a normal form as Mango JSON.
pub(in crate::query) fn normal(normal: &Normal) -> Value {
    selector(&denormalize(normal))
}

fn denormalize(normal: &Normal) -> Node {
    match normal {
        Normal::Everything => Node::Everything,
        Normal::Nothing => Node::Nothing,
        Normal::All(children) => Node::All(children.iter().map(denormalize).collect()),
        Normal::Any(children) => Node::Any(children.iter().map(denormalize).collect()),
        Normal::Leaf(Leaf { target, negated, check }) => {
            let inner = |inner: &Normal| Box::new(denormalize(inner));
            let (test, negated) = match check {
                Check::Compare(comparison, operand) => (Test::Compare(*comparison, operand.clone()), *negated),
                Check::OneOf(values) => {
                    let equal = |value: &Value| Test::Compare(Comparison::Equal, value.clone());
                    let each = values.iter().map(|value| Node::Condition(target.clone(), equal(value)));
                    let any = Node::Any(each.collect());
                    return if *negated { Node::Not(Box::new(any)) } else { any };
                }
                Check::In(values) if *negated => (Test::NotIn(values.clone()), false),
                Check::In(values) => (Test::In(values.clone()), false),
                Check::Exists => (Test::Exists(!negated), false),
                Check::Type(kind) => (Test::Type(*kind), *negated),
                Check::BeginsWith(prefix) => (Test::BeginsWith(prefix.clone()), *negated),
                Check::Regex(pattern) => (Test::Regex(pattern.clone()), *negated),
                Check::Modulo { divisor, remainder } => {
                    (Test::Modulo { divisor: *divisor, remainder: *remainder }, *negated)
                }
                Check::Size(size) => (Test::Size(*size), *negated),
                Check::All(values) => (Test::All(values.clone()), *negated),
                Check::ElemMatch(selector) => (Test::ElemMatch(inner(selector)), *negated),
                Check::AllMatch(selector) => (Test::AllMatch(inner(selector)), *negated),
                Check::KeyMapMatch(selector) => (Test::KeyMapMatch(inner(selector)), *negated),
            };
            let condition = Node::Condition(target.clone(), test);
            if negated { Node::Not(Box::new(condition)) } else { condition }
        }
    }
}

fn comparison_name(comparison: Comparison) -> &'static str {
    match comparison {
        Comparison::Less => "$lt",
        Comparison::LessOrEqual => "$lte",
        Comparison::Equal => "$eq",
        Comparison::NotEqual => "$ne",
        Comparison::GreaterOrEqual => "$gte",
        Comparison::Greater => "$gt",
    }
}
