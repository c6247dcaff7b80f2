//! Live queries: a query that is evaluated against every written document, and the clues by which a write finds the
//! queries it may affect.
//!
//! A *clue* is a property that every matching document has: a value at a path, any value at a path, or an id. A router
//! that holds ten thousand queries uses their clues to find the few that a written document can concern. Clues are
//! derived from the selector's normal form and checked against the document itself, so the index policy and its bounds
//! have no effect on them.

use super::execute::cursor::Cursor;
use super::language::document::IdentityField;
use super::language::interval::successor;
use super::language::matcher::Matcher;
use super::language::normal::{Check, Leaf, Normal};
use super::language::selector::{Comparison, Target};
use super::plan::request::Query;
use super::source::QueryContext as _;
use super::source::limits::{LimitedSource, QueryLimits};
use crate::document::Document;
use crate::index::{DocumentNumber, DocumentSet};
use crate::read::Snapshot;
use crate::value::collate::key;
use crate::value::{Kind, Path, Value};
use crate::{Error, Result};

/// A query registered to be evaluated against every write.
#[derive(Clone, Debug)]
pub(crate) struct LiveQuery {
    query: Query,
    matcher: Matcher,
    clues: Vec<Clues>,
}

/// Alternatives: each matching document has at least one of these properties.
pub(crate) type Clues = Vec<Clue>;

/// A property of matching documents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Clue {
    /// It has this id.
    Id(String),
    /// The value at the path is a scalar with this key, or an array that contains such an element.
    Value(Path, Vec<u8>),
    /// The value at the path is a scalar whose key is at least the first and below the second key, or an array or
    /// object, which may match.
    Range(Path, Vec<u8>, Vec<u8>),
    /// There is a value at the path.
    Present(Path),
}

/// Number of hits verified together.
const BATCH_COUNT: usize = 1024;

impl LiveQuery {
    /// Prepares a live query.
    ///
    /// # Errors
    /// `Invalid` if the query is malformed, or has a sort, limit, skip, token or fields.
    pub(crate) fn new(query: &Query) -> Result<Self> {
        let prepared = query.prepare()?;
        let unsupported = [
            (!prepared.sort.keys.is_empty(), "sort"),
            (prepared.limit.is_some(), "limit"),
            (prepared.skip > 0, "skip"),
            (prepared.after.is_some(), "continuation token"),
            (prepared.fields.is_some(), "fields"),
        ];
        if let Some((_, what)) = unsupported.iter().find(|(is_set, _)| *is_set) {
            return Err(Error::invalid(format!("a live query has no {what}")).with_hint(
                "it returns the set of all matching documents; sort, limit and project the deltas in the client",
            ));
        }
        let clues = alternatives(&prepared.normal);
        Ok(LiveQuery { query: query.clone(), matcher: Matcher::new(prepared.normal), clues })
    }

    /// Whether the document matches.
    ///
    /// # Errors
    /// `Corrupt` if its bytes are damaged.
    pub(crate) fn matches(&self, document: &Document) -> Result<bool> {
        self.matcher.matches(document)
    }

    /// Returns the matching documents of a snapshot, within the limits of the query.
    ///
    /// # Errors
    /// `Stopped` at a limit; `Corrupt` if stored bytes are damaged.
    pub(crate) fn members(&self, snapshot: &Snapshot) -> Result<DocumentSet> {
        let mut cursor = Cursor::open(LimitedSource::new(snapshot, self.query.limits()), &self.query.prepare()?, None)?;
        let mut numbers = Vec::new();
        loop {
            cursor.filtered.source.check_stopped()?;
            let hits = cursor.next_hits(BATCH_COUNT)?;
            if hits.is_empty() {
                return Ok(DocumentSet::from_sorted(numbers));
            }
            numbers.extend(cursor.filtered.verify(hits)?.iter().map(|hit| hit.number));
            self.query.limits().allow_rows(numbers.len() as u64)?;
            cursor.filtered.source.check_memory(numbers.len() * size_of::<DocumentNumber>())?;
        }
    }

    /// The limits of the query.
    pub(crate) fn limits(&self) -> &QueryLimits {
        self.query.limits()
    }

    /// Lists of clues, any one of which suffices. If there is no list, every document must be evaluated.
    pub(crate) fn clues(&self) -> &[Clues] {
        &self.clues
    }
}

/// Returns lists of clues, each of which suffices.
fn alternatives(normal: &Normal) -> Vec<Clues> {
    match normal {
        Normal::Everything => Vec::new(),
        Normal::Nothing => vec![Vec::new()],
        Normal::All(children) => {
            let mut lists: Vec<Clues> = children.iter().flat_map(alternatives).collect();
            join_ranges(&mut lists);
            lists
        }
        Normal::Any(children) => {
            // A document that matches one child has that child's clue: combine one list of each child.
            let best: Option<Vec<Clues>> =
                children.iter().map(|child| alternatives(child).into_iter().min_by_key(unselectivity)).collect();
            best.map(|lists| vec![lists.concat()]).unwrap_or_default()
        }
        Normal::Leaf(leaf) => leaf_clues(leaf).into_iter().collect(),
    }
}

/// Merges the ranges at one path into one range: `x > 1 and x < 3`.
fn join_ranges(lists: &mut Vec<Clues>) {
    let mut joined: Vec<Clue> = Vec::new();
    lists.retain(|list| {
        let [Clue::Range(path, lower, upper)] = list.as_slice() else { return true };
        let existing = joined.iter_mut().find_map(|clue| match clue {
            Clue::Range(existing, lower, upper) if existing == path => Some((lower, upper)),
            _ => None,
        });
        match existing {
            Some((existing_lower, existing_upper)) => {
                if *lower > *existing_lower {
                    existing_lower.clone_from(lower);
                }
                if *upper < *existing_upper {
                    existing_upper.clone_from(upper);
                }
            }
            None => joined.push(list[0].clone()),
        }
        false
    });
    lists.extend(joined.into_iter().map(|clue| vec![clue]));
}

/// Estimates how unselective a list of clues is; lower is better.
fn unselectivity(clues: &Clues) -> usize {
    let vague = |clue: &Clue| match clue {
        Clue::Id(_) | Clue::Value(..) => 1,
        Clue::Range(..) => 100,
        Clue::Present(_) => 100_000,
    };
    clues.iter().map(vague).sum()
}

/// Returns the clues of a condition, or `None` if it implies no property.
fn leaf_clues(leaf: &Leaf) -> Option<Clues> {
    let Target::Path(path) = &leaf.target else { return None };
    match IdentityField::of(path) {
        Some(IdentityField::Id) => return identity_clues(leaf),
        Some(_) => return None,
        None => {}
    }
    if leaf.negated {
        // Except for a negated `Exists`, a value must be present to fail the check.
        return (leaf.check != Check::Exists).then(|| vec![Clue::Present(path.clone())]);
    }
    let values = required_values(&leaf.check);
    if let Some(clues) = values.and_then(|values| values.into_iter().map(|value| clue(path, value)).collect()) {
        return Some(clues);
    }
    Some(vec![match required_range(&leaf.check) {
        Some((lower, upper)) => Clue::Range(path.clone(), lower, upper),
        None => Clue::Present(path.clone()),
    }])
}

fn identity_clues(leaf: &Leaf) -> Option<Clues> {
    let values = required_values(&leaf.check).filter(|_| !leaf.negated)?;
    let ids = values.into_iter().filter_map(|value| match value {
        Value::String(id) => Some(Clue::Id(id.clone())),
        _ => None,
    });
    Some(ids.collect())
}

/// The values of which one must be present, as the value itself or as an element.
fn required_values(check: &Check) -> Option<Vec<&Value>> {
    match check {
        Check::Compare(Comparison::Equal, value) => Some(vec![value]),
        Check::OneOf(values) | Check::In(values) => Some(values.iter().collect()),
        // With a list of one array, `$all` may also mean equality with that array.
        Check::All(values) => {
            values.first().filter(|_| values.len() > 1 || is_scalar(&values[0])).map(|value| vec![value])
        }
        Check::ElemMatch(inner) => match &**inner {
            Normal::Leaf(Leaf { target: Target::Element, negated: false, check }) => match check {
                Check::Compare(Comparison::Equal, value) if is_scalar(value) => Some(vec![value]),
                // The elements may be arrays that contain a listed value, which no clue describes.
                _ => None,
            },
            _ => None,
        },
        _ => None,
    }
}

/// The range in which the value's key must be.
fn required_range(check: &Check) -> Option<(Vec<u8>, Vec<u8>)> {
    let key_of = |value: &Value| {
        let mut encoded = Vec::new();
        key::encode(value, &mut encoded);
        encoded
    };
    let (first, last) = (key::type_range(Kind::Null).0, key::type_range(Kind::Object).1);
    Some(match check {
        Check::Compare(Comparison::Less, value) => (first, key_of(value)),
        Check::Compare(Comparison::LessOrEqual, value) => (first, successor(&key_of(value))),
        Check::Compare(Comparison::Equal, value) => (key_of(value), successor(&key_of(value))),
        Check::Compare(Comparison::GreaterOrEqual, value) => (key_of(value), last),
        Check::Compare(Comparison::Greater, value) => (successor(&key_of(value)), last),
        Check::Compare(Comparison::NotEqual, _) | Check::Exists | Check::OneOf(_) | Check::In(_) => return None,
        Check::BeginsWith(prefix) => key::prefix_range(prefix),
        Check::Type(kind) => key::type_range(*kind),
        Check::Regex(_) => key::type_range(Kind::String),
        Check::Modulo { .. } => key::type_range(Kind::Number),
        Check::Size(_) | Check::All(_) | Check::ElemMatch(_) | Check::AllMatch(_) => key::type_range(Kind::Array),
        Check::KeyMapMatch(_) => key::type_range(Kind::Object),
    })
}

fn is_scalar(value: &Value) -> bool {
    !matches!(value, Value::Array(_) | Value::Object(_))
}

/// The clue that a scalar is at the path; `None` for arrays and objects.
fn clue(path: &Path, value: &Value) -> Option<Clue> {
    let mut encoded = Vec::new();
    key::encode(value, &mut encoded);
    is_scalar(value).then(|| Clue::Value(path.clone(), encoded))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clues(selector: serde_json::Value) -> Vec<String> {
        let selector = crate::Selector::parse(&Value::from_serialize(&selector).unwrap()).unwrap();
        let show = |clue: &Clue| match clue {
            Clue::Id(id) => format!("id {id}"),
            Clue::Value(path, value) => format!("{path}={}", key::decode(value).unwrap().0.to_json()),
            Clue::Range(path, ..) => format!("{path} in a range"),
            Clue::Present(path) => path.to_string(),
        };
        let live = LiveQuery::new(&Query::new(selector)).unwrap();
        live.clues().iter().map(|list| list.iter().map(show).collect::<Vec<_>>().join(" ")).collect()
    }

    #[test]
    fn clues_hold_for_every_match() {
        use serde_json::json;
        assert_eq!(clues(json!({})), [""; 0]);
        assert_eq!(clues(json!({"a": 1, "b": {"$gt": 2}})), ["a=1", "b in a range"]);
        assert_eq!(clues(json!({"a": {"$in": [1, "x"]}})), ["a=1 a=\"x\""]);
        assert_eq!(clues(json!({"a": {"$in": [1, [2]]}})), ["a"]);
        assert_eq!(clues(json!({"a": {"$in": []}})), [""]);
        assert_eq!(clues(json!({"$or": [{"a": 1, "c": {"$exists": true}}, {"b": 2}]})), ["a=1 b=2"]);
        assert_eq!(clues(json!({"$or": [{"a": 1}, {"b": {"$exists": false}}]})), [""; 0]);
        assert_eq!(clues(json!({"a": {"$gt": 1, "$lte": 9, "$exists": true}})), ["a", "a in a range"]);
        assert_eq!(clues(json!({"a": {"$beginsWith": "xy"}})), ["a in a range"]);
        assert_eq!(clues(json!({"a": {"$regex": "xy"}})), ["a in a range"]);
        assert_eq!(clues(json!({"a": {"$ne": 1}})), ["a"]);
        assert_eq!(clues(json!({"a": {"$nin": [1]}})), ["a"]);
        assert_eq!(clues(json!({"$not": {"a": {"$exists": true}}})), [""; 0]);
        assert_eq!(clues(json!({"_id": "x"})), ["id x"]);
        assert_eq!(clues(json!({"_id": {"$in": ["x", "y"]}})), ["id x id y"]);
        assert_eq!(clues(json!({"_id": {"$gt": "x"}})), [""; 0]);
        assert_eq!(clues(json!({"a": {"$all": ["x", "y"]}})), ["a=\"x\""]);
        assert_eq!(clues(json!({"a": {"$all": [["x"]]}})), ["a in a range"]);
        assert_eq!(clues(json!({"a": {"$elemMatch": {"$eq": 1}}})), ["a=1"]);
        assert_eq!(clues(json!({"a": {"$elemMatch": {"b": 1}}})), ["a in a range"]);
    }

    #[test]
    fn live_queries_reject_sort_limit_skip_and_fields() {
        let all = || Query::new(crate::Selector::everything());
        for query in [all().limit(1), all().skip(1), all().sort("a"), all().fields(["a"])] {
            assert_eq!(LiveQuery::new(&query).unwrap_err().kind(), crate::ErrorKind::Invalid);
        }
    }
}
