//! Questions as data: which documents, in which order, how many of them, and what of each.

use serde_json::Value;

/// What is asked of an engine.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Question {
    pub(crate) condition: Condition,
    /// None: any order.
    pub(crate) order: Option<Order>,
    /// At most so many rows; without an order, whichever.
    pub(crate) limit: Option<usize>,
    pub(crate) wanted: Wanted,
}

/// By a field of whole numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Order {
    pub(crate) field: &'static str,
    pub(crate) descending: bool,
}

/// Which documents.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Condition {
    Everything,
    /// What is at a path (names with dots between them) passes a test.
    At(&'static str, Test),
    All(Vec<Condition>),
    Any(Vec<Condition>),
    Not(Box<Condition>),
}

/// What is asked of one field.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Test {
    /// It is equal to this.
    Equal(Value),
    /// It is a number from the first to below the second.
    Between(i64, i64),
    /// It is a number above this.
    Above(i64),
    /// It is a text that begins with this.
    Prefix(String),
    /// It is there.
    Exists,
    /// It is a text in which a regular expression finds something.
    Regex(Pattern),
}

/// A regular expression whose truth needs none.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Pattern {
    /// `^text.*`
    Begins(&'static str),
    /// `text`, wherever it is
    Contains(&'static str),
}

/// What of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    Ids,
    /// Documents as the engine hands them out: ours packed, with fields at hand; a text in SQLite.
    Documents,
    /// Documents as JSON text.
    Json,
    /// How many.
    Count,
}

impl Question {
    /// All that meets `condition`, in any order.
    pub(crate) fn all(condition: Condition, wanted: Wanted) -> Self {
        Question { condition, order: None, limit: None, wanted }
    }

    /// The first `count` of it.
    pub(crate) fn limit(self, count: usize) -> Self {
        Question { limit: Some(count), ..self }
    }

    /// From the greatest value of `field` to the least.
    pub(crate) fn descending(self, field: &'static str) -> Self {
        Question { order: Some(Order { field, descending: true }), ..self }
    }
}

impl Condition {
    /// Whether a document meets it.
    pub(crate) fn holds(&self, document: &Value) -> bool {
        match self {
            Condition::Everything => true,
            Condition::At(path, test) => find(document, path).is_some_and(|value| test.holds(value)),
            Condition::All(all) => all.iter().all(|one| one.holds(document)),
            Condition::Any(any) => any.iter().any(|one| one.holds(document)),
            // Every document of ours has every field that is asked for: nobody's idea of what is missing plays a part.
            Condition::Not(one) => !one.holds(document),
        }
    }
}

impl Test {
    fn holds(&self, value: &Value) -> bool {
        match self {
            Test::Equal(wanted) => value == wanted,
            Test::Between(lower, upper) => value.as_i64().is_some_and(|number| (*lower..*upper).contains(&number)),
            Test::Above(lower) => value.as_i64().is_some_and(|number| number > *lower),
            Test::Prefix(prefix) => value.as_str().is_some_and(|text| text.starts_with(prefix)),
            Test::Exists => true,
            Test::Regex(Pattern::Begins(start)) => value.as_str().is_some_and(|text| text.starts_with(start)),
            Test::Regex(Pattern::Contains(part)) => value.as_str().is_some_and(|text| text.contains(part)),
        }
    }
}

impl Pattern {
    /// As a regular expression.
    pub(crate) fn text(&self) -> String {
        match self {
            Pattern::Begins(start) => format!("^{start}.*"),
            Pattern::Contains(part) => (*part).to_owned(),
        }
    }
}

/// What is at a path of a document.
pub(super) fn find<'a>(document: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('.').try_fold(document, |value, name| value.get(name))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn conditions_hold_or_do_not() {
        let document = json!({"a": 3, "b": {"c": "John Smith"}});
        let at = |path, test| Condition::At(path, test);
        let begins = at("b.c", Test::Regex(Pattern::Begins("John")));
        let contains = at("b.c", Test::Regex(Pattern::Contains("Smi")));
        for holds in [
            Condition::Everything,
            at("a", Test::Equal(3.into())),
            at("a", Test::Between(3, 4)),
            at("a", Test::Above(2)),
            at("b", Test::Exists),
            at("b.c", Test::Prefix("Jo".to_owned())),
            Condition::All(vec![begins.clone(), contains.clone()]),
            Condition::Any(vec![at("none", Test::Exists), contains]),
            Condition::Not(Box::new(at("a", Test::Above(3)))),
        ] {
            assert!(holds.holds(&document), "{holds:?}");
        }
        assert!(!Condition::All(vec![begins, at("b.d", Test::Exists)]).holds(&document));
        assert!(!at("a", Test::Between(1, 3)).holds(&document));
    }
}
