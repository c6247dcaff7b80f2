//! Query specs: condition, order, limit and projection, independent of any engine.

use serde_json::Value;

/// A query.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct QuerySpec {
    pub(crate) condition: Condition,
    /// `None`: any order.
    pub(crate) order: Option<Order>,
    /// Maximum number of rows; without an order, any matching rows are correct.
    pub(crate) limit: Option<usize>,
    pub(crate) projection: Projection,
}

/// Order by an integer field.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Order {
    pub(crate) field: &'static str,
    pub(crate) descending: bool,
}

/// Which documents match.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Condition {
    Everything,
    /// The value at a dotted path satisfies a predicate.
    Field(&'static str, Predicate),
    All(Vec<Condition>),
    Any(Vec<Condition>),
    Not(Box<Condition>),
}

/// A predicate on one value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Predicate {
    /// Equal to this value.
    Equal(Value),
    /// A number in the half-open range.
    Between(i64, i64),
    /// A number greater than this.
    Above(i64),
    /// A string with this prefix.
    Prefix(String),
    /// Present.
    Exists,
    /// A string that matches a regular expression.
    Regex(Pattern),
}

/// A regular expression that the expected result can evaluate by string operations.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Pattern {
    /// `^text.*`
    Begins(&'static str),
    /// `text` anywhere
    Contains(&'static str),
}

/// What a query returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Projection {
    Ids,
    /// Documents in the engine's native form: packed in Stemma, text in SQLite.
    Documents,
    /// Documents as JSON text.
    Json,
    /// The number of matches.
    Count,
}

impl QuerySpec {
    /// All documents that match `condition`, in any order.
    pub(crate) fn all(condition: Condition, projection: Projection) -> Self {
        QuerySpec { condition, order: None, limit: None, projection }
    }

    /// Limits the result to `count` rows.
    pub(crate) fn limit(self, count: usize) -> Self {
        QuerySpec { limit: Some(count), ..self }
    }

    /// Orders by `field`, descending.
    pub(crate) fn descending(self, field: &'static str) -> Self {
        QuerySpec { order: Some(Order { field, descending: true }), ..self }
    }
}

impl Condition {
    /// Returns whether a document matches.
    pub(crate) fn matches(&self, document: &Value) -> bool {
        match self {
            Condition::Everything => true,
            Condition::Field(path, predicate) => find(document, path).is_some_and(|value| predicate.matches(value)),
            Condition::All(all) => all.iter().all(|one| one.matches(document)),
            Condition::Any(any) => any.iter().any(|one| one.matches(document)),
            // Every document has every queried field, so engines cannot differ on missing values.
            Condition::Not(one) => !one.matches(document),
        }
    }
}

impl Predicate {
    fn matches(&self, value: &Value) -> bool {
        match self {
            Predicate::Equal(expected) => value == expected,
            Predicate::Between(lower, upper) => value.as_i64().is_some_and(|number| (*lower..*upper).contains(&number)),
            Predicate::Above(lower) => value.as_i64().is_some_and(|number| number > *lower),
            Predicate::Prefix(prefix) => value.as_str().is_some_and(|text| text.starts_with(prefix)),
            Predicate::Exists => true,
            Predicate::Regex(Pattern::Begins(start)) => value.as_str().is_some_and(|text| text.starts_with(start)),
            Predicate::Regex(Pattern::Contains(part)) => value.as_str().is_some_and(|text| text.contains(part)),
        }
    }
}

impl Pattern {
    /// Returns the regular expression.
    pub(crate) fn text(&self) -> String {
        match self {
            Pattern::Begins(start) => format!("^{start}.*"),
            Pattern::Contains(part) => (*part).to_owned(),
        }
    }
}

/// Returns the value at a path of a document.
pub(super) fn find<'a>(document: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('.').try_fold(document, |value, name| value.get(name))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn conditions_match_documents() {
        let document = json!({"a": 3, "b": {"c": "John Smith"}});
        let field = |path, predicate| Condition::Field(path, predicate);
        let begins = field("b.c", Predicate::Regex(Pattern::Begins("John")));
        let contains = field("b.c", Predicate::Regex(Pattern::Contains("Smi")));
        for holds in [
            Condition::Everything,
            field("a", Predicate::Equal(3.into())),
            field("a", Predicate::Between(3, 4)),
            field("a", Predicate::Above(2)),
            field("b", Predicate::Exists),
            field("b.c", Predicate::Prefix("Jo".to_owned())),
            Condition::All(vec![begins.clone(), contains.clone()]),
            Condition::Any(vec![field("none", Predicate::Exists), contains]),
            Condition::Not(Box::new(field("a", Predicate::Above(3)))),
        ] {
            assert!(holds.matches(&document), "{holds:?}");
        }
        assert!(!Condition::All(vec![begins, field("b.d", Predicate::Exists)]).matches(&document));
        assert!(!field("a", Predicate::Between(1, 3)).matches(&document));
    }
}
