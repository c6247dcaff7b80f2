//! The parser of expressions.

use super::{Expression, Operator, RowPath};
use crate::query::language::selector::Comparison;
use crate::value::{ElementPath, Object, Path, Value};
use crate::{Error, Result};

/// The deepest nesting of an expression.
const DEPTH_MAX: usize = 32;

/// Every operator with the smallest and largest number of its arguments.
const OPERATORS: &[(&str, Operator, usize, usize)] = &[
    ("$add", Operator::Add, 1, usize::MAX),
    ("$subtract", Operator::Subtract, 2, 2),
    ("$multiply", Operator::Multiply, 1, usize::MAX),
    ("$divide", Operator::Divide, 2, 2),
    ("$mod", Operator::Mod, 2, 2),
    ("$concat", Operator::Concat, 1, usize::MAX),
    ("$toLower", Operator::ToLower, 1, 1),
    ("$toUpper", Operator::ToUpper, 1, 1),
    ("$substr", Operator::Substr, 3, 3),
    ("$ifNull", Operator::IfNull, 2, usize::MAX),
    ("$eq", Operator::Compare(Comparison::Equal), 2, 2),
    ("$ne", Operator::Compare(Comparison::NotEqual), 2, 2),
    ("$gt", Operator::Compare(Comparison::Greater), 2, 2),
    ("$gte", Operator::Compare(Comparison::GreaterOrEqual), 2, 2),
    ("$lt", Operator::Compare(Comparison::Less), 2, 2),
    ("$lte", Operator::Compare(Comparison::LessOrEqual), 2, 2),
    ("$and", Operator::And, 0, usize::MAX),
    ("$or", Operator::Or, 0, usize::MAX),
    ("$not", Operator::Not, 1, 1),
    ("$in", Operator::In, 2, 2),
    ("$size", Operator::Size, 1, 1),
    ("$arrayElemAt", Operator::ArrayElemAt, 2, 2),
];

impl Operator {
    pub(super) fn name(self) -> &'static str {
        OPERATORS.iter().find(|(_, operator, ..)| *operator == self).map_or("", |(name, ..)| name)
    }
}

impl Expression {
    /// Parses an expression.
    ///
    /// # Errors
    /// `Invalid`, with the operator or path that is wrong.
    pub(in crate::query::pipeline) fn parse(json: &Value) -> Result<Self> {
        parse(json, 0)
    }
}

impl RowPath {
    /// Parses a path without its dollar sign.
    pub(in crate::query::pipeline) fn parse(text: &str) -> Result<Self> {
        Ok(match ElementPath::is_in(text) {
            true => RowPath::Elements(ElementPath::parse(text)?),
            false => RowPath::Single(Path::parse(text)?),
        })
    }
}

fn parse(json: &Value, depth: usize) -> Result<Expression> {
    if depth > DEPTH_MAX {
        return Err(Error::invalid(format!("an expression nests deeper than {DEPTH_MAX} levels"))
            .with_hint("compute a part of it in an earlier $addFields"));
    }
    let parts = |parts: &[Value]| parts.iter().map(|part| parse(part, depth + 1)).collect::<Result<Vec<_>>>();
    match json {
        Value::String(text) if text.starts_with("$$") => variable(text),
        Value::String(text) if text.starts_with('$') => Ok(Expression::Path(RowPath::parse(&text[1..])?)),
        Value::Array(elements) => Ok(Expression::Array(parts(elements)?)),
        Value::Object(object) => match object.iter().next() {
            Some((name, argument)) if name.starts_with('$') && object.len() == 1 => call(name, argument, depth),
            _ => fields(object, depth),
        },
        literal => Ok(Expression::Literal(literal.clone())),
    }
}

fn variable(text: &str) -> Result<Expression> {
    match text.split_once('.') {
        None if matches!(text, "$$ROOT" | "$$CURRENT") => Ok(Expression::Root),
        Some(("$$ROOT" | "$$CURRENT", path)) => Ok(Expression::Path(RowPath::parse(path)?)),
        _ => Err(Error::invalid(format!("the variable {text} is not known"))
            .with_hint("$$ROOT is the whole row; write {\"$literal\": \"$…\"} for a text with a dollar sign")),
    }
}

fn fields(object: &Object, depth: usize) -> Result<Expression> {
    let field = |(name, value): (&str, &Value)| {
        if name.starts_with('$') {
            return Err(Error::invalid(format!("the operator {name} has other fields beside it"))
                .with_hint("an operator is the only field of its object"));
        }
        Ok((name.to_owned(), parse(value, depth + 1)?))
    };
    Ok(Expression::Object(object.iter().map(field).collect::<Result<_>>()?))
}

fn call(name: &str, argument: &Value, depth: usize) -> Result<Expression> {
    match name {
        "$literal" => return Ok(Expression::Literal(argument.clone())),
        "$cond" => return condition(argument, depth),
        _ => {}
    }
    let Some((_, operator, least, most)) = OPERATORS.iter().find(|(known, ..)| *known == name) else {
        let names: Vec<&str> = OPERATORS.iter().map(|(name, ..)| *name).chain(["$cond", "$literal"]).collect();
        return Err(Error::invalid(format!("unknown operator {name} in an expression"))
            .with_hint(format!("the operators are {}", names.join(" "))));
    };
    let arguments = match argument {
        Value::Array(arguments) => arguments.as_slice(),
        // An operator with one argument takes it without an array.
        one => std::slice::from_ref(one),
    };
    if !(*least..=*most).contains(&arguments.len()) {
        let needs = if least == most { format!("{least}") } else { format!("at least {least}") };
        return Err(Error::invalid(format!("{name} needs {needs} arguments, not {}", arguments.len()))
            .with_hint(format!("write {{\"{name}\": […]}}")));
    }
    let arguments = arguments.iter().map(|argument| parse(argument, depth + 1)).collect::<Result<_>>()?;
    Ok(Expression::Call(*operator, arguments))
}

fn condition(argument: &Value, depth: usize) -> Result<Expression> {
    let parts = match argument {
        Value::Array(parts) => <[&Value; 3]>::try_from(parts.iter().collect::<Vec<_>>()).ok(),
        Value::Object(object) if object.len() == 3 => match ["if", "then", "else"].map(|name| object.get(name)) {
            [Some(condition), Some(then), Some(otherwise)] => Some([condition, then, otherwise]),
            _ => None,
        },
        _ => None,
    };
    let Some([condition, then, otherwise]) = parts else {
        return Err(Error::invalid("$cond needs a condition and two values")
            .with_hint("write {\"$cond\": [condition, then, else]}, or an object with if, then and else"));
    };
    let parse = |part| parse(part, depth + 1);
    Ok(Expression::Cond(Box::new([parse(condition)?, parse(then)?, parse(otherwise)?])))
}
