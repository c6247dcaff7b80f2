//! A query that is asked again and again, of each document that is written: what it is about, and which documents to ask at all.
//!
//! A *clue* is something that every matching document shows: a value at a path, anything at a path, an id. Whoever has
//! ten thousand queries to ask finds by their clues the few that a document can concern. Clues are read from the normal form
//! and looked for in the document itself, so neither the index's policy nor its bounds play a part.

use super::execute::cursor::Cursor;
use super::language::document::Identity;
use super::language::interval::successor;
use super::language::matcher::Matcher;
use super::language::normal::{Check, Leaf, Normal};
use super::language::selector::{Comparison, Place};
use super::plan::request::Query;
use super::source::Source as _;
use super::source::limits::{Guarded, Limits};
use crate::document::Document;
use crate::index::{DocumentNumber, DocumentSet};
use crate::read::Snapshot;
use crate::value::collate::key;
use crate::value::{Kind, Path, Value};
use crate::{Error, Result};

/// A selector that stays, with the query it came from.
#[derive(Clone, Debug)]
pub(crate) struct LiveQuery {
    query: Query,
    matcher: Matcher,
    clues: Vec<Clues>,
}

/// Each matching document shows at least one of these.
pub(crate) type Clues = Vec<Clue>;

/// What a matching document shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Clue {
    /// It has this id.
    Id(String),
    /// At the path stands a scalar with this key, or an array that has it as an element.
    Value(Path, Vec<u8>),
    /// At the path stands a scalar whose key is in the range (from `lower` on, below `upper`), or an array or object that
    /// might be.
    Range(Path, Vec<u8>, Vec<u8>),
    /// At the path stands something.
    Present(Path),
}

/// Hits looked at together.
const BATCH_COUNT: usize = 1024;

impl LiveQuery {
    /// Makes a query ready to stay.
    ///
    /// # Errors
    /// `Invalid` if the query is wrong, or asks for more than a set of documents.
    pub(crate) fn new(query: &Query) -> Result<Self> {
        let prepared = query.prepare()?;
        let unsupported = [
            (!prepared.sort.keys.is_empty(), "sort"),
            (prepared.limit.is_some(), "limit"),
            (prepared.skip > 0, "skip"),
            (prepared.after.is_some(), "continuation token"),
            (prepared.fields.is_some(), "fields"),
        ];
        if let Some((_, what)) = unsupported.iter().find(|(is_asked, _)| *is_asked) {
            return Err(Error::invalid(format!("a live query has no {what}")).with_hint(
                "it is the set of all documents that match its selector; order, cut and project what it tells",
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

    /// The documents of a snapshot that match, within the limits of the query.
    ///
    /// # Errors
    /// `Stopped` at a limit; `Corrupt` if stored bytes are damaged.
    pub(crate) fn members(&self, snapshot: &Snapshot) -> Result<DocumentSet> {
        let mut cursor = Cursor::open(Guarded::new(snapshot, self.query.limits()), &self.query.prepare()?, None)?;
        let mut numbers = Vec::new();
        loop {
            cursor.filtered.source.proceed()?;
            let hits = cursor.next_hits(BATCH_COUNT)?;
            if hits.is_empty() {
                return Ok(DocumentSet::from_sorted(numbers));
            }
            numbers.extend(cursor.filtered.verified(hits)?.iter().map(|hit| hit.number));
            self.query.limits().allow_rows(numbers.len() as u64)?;
            cursor.filtered.source.hold(numbers.len() * size_of::<DocumentNumber>())?;
        }
    }

    /// The limits of the query.
    pub(crate) fn limits(&self) -> &Limits {
        self.query.limits()
    }

    /// Clues to choose from: any one of these lists is enough. No list: every document has to be asked.
    pub(crate) fn clues(&self) -> &[Clues] {
        &self.clues
    }
}

/// Lists of clues, each of them enough.
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
            // What matches one child shows that child's clue: so take one list of each.
            let best: Option<Vec<Clues>> =
                children.iter().map(|child| alternatives(child).into_iter().min_by_key(vagueness)).collect();
            best.map(|lists| vec![lists.concat()]).unwrap_or_default()
        }
        Normal::Leaf(leaf) => leaf_clues(leaf).into_iter().collect(),
    }
}

/// Makes one range of the ranges at one path: `x > 1 and x < 3`.
fn join_ranges(lists: &mut Vec<Clues>) {
    let mut joined: Vec<Clue> = Vec::new();
    lists.retain(|list| {
        let [Clue::Range(path, lower, upper)] = list.as_slice() else { return true };
        let known = joined.iter_mut().find_map(|clue| match clue {
            Clue::Range(known, lower, upper) if known == path => Some((lower, upper)),
            _ => None,
        });
        match known {
            Some((known_lower, known_upper)) => {
                if *lower > *known_lower {
                    known_lower.clone_from(lower);
                }
                if *upper < *known_upper {
                    known_upper.clone_from(upper);
                }
            }
            None => joined.push(list[0].clone()),
        }
        false
    });
    lists.extend(joined.into_iter().map(|clue| vec![clue]));
}

/// How little a list of clues says: less is better.
fn vagueness(clues: &Clues) -> usize {
    let vague = |clue: &Clue| match clue {
        Clue::Id(_) | Clue::Value(..) => 1,
        Clue::Range(..) => 100,
        Clue::Present(_) => 100_000,
    };
    clues.iter().map(vague).sum()
}

/// What every document shows that meets the condition; none if there is no telling.
fn leaf_clues(leaf: &Leaf) -> Option<Clues> {
    let Place::At(path) = &leaf.place else { return None };
    match Identity::of(path) {
        Some(Identity::Id) => return identity_clues(leaf),
        Some(_) => return None,
        None => {}
    }
    if leaf.negated {
        // But for the negated `Exists`, a value must be there to fail the check.
        return (leaf.check != Check::Exists).then(|| vec![Clue::Present(path.clone())]);
    }
    let values = wanted_values(&leaf.check);
    if let Some(clues) = values.and_then(|values| values.into_iter().map(|value| clue(path, value)).collect()) {
        return Some(clues);
    }
    Some(vec![match wanted_range(&leaf.check) {
        Some((lower, upper)) => Clue::Range(path.clone(), lower, upper),
        None => Clue::Present(path.clone()),
    }])
}

fn identity_clues(leaf: &Leaf) -> Option<Clues> {
    let values = wanted_values(&leaf.check).filter(|_| !leaf.negated)?;
    let ids = values.into_iter().filter_map(|value| match value {
        Value::String(id) => Some(Clue::Id(id.clone())),
        _ => None,
    });
    Some(ids.collect())
}

/// The values of which one must be there, itself or as an element.
fn wanted_values(check: &Check) -> Option<Vec<&Value>> {
    match check {
        Check::Compare(Comparison::Equal, value) => Some(vec![value]),
        Check::OneOf(values) | Check::In(values) => Some(values.iter().collect()),
        // Of a list of one array, the whole value may be meant.
        Check::All(values) => {
            values.first().filter(|_| values.len() > 1 || is_scalar(&values[0])).map(|value| vec![value])
        }
        Check::ElemMatch(inner) => match &**inner {
            Normal::Leaf(Leaf { place: Place::Itself, negated: false, check }) => match check {
                Check::Compare(Comparison::Equal, value) if is_scalar(value) => Some(vec![value]),
                // Its elements may be arrays that have a listed value, which is no clue.
                _ => None,
            },
            _ => None,
        },
        _ => None,
    }
}

/// The keys between which the value's key must be.
fn wanted_range(check: &Check) -> Option<(Vec<u8>, Vec<u8>)> {
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

/// The clue that is a scalar at the path; arrays and objects are none.
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
    fn clues_are_what_every_match_shows() {
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
    fn only_sets_are_watched() {
        let all = || Query::new(crate::Selector::everything());
        for query in [all().limit(1), all().skip(1), all().sort("a"), all().fields(["a"])] {
            assert_eq!(LiveQuery::new(&query).unwrap_err().kind(), crate::ErrorKind::Invalid);
        }
    }
}
