//! Property tests of aggregates against the same aggregates computed from whole documents.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::group::summaries;
use super::scan::canonical;
use super::{Summary, SummaryBuilder, distinct, summary};
use crate::index::Policy;
use crate::query::tests::{arbitrary, filled, policy};
use crate::query::{Query, Selector};
use crate::value::{Path, Value};

type Groups = BTreeMap<Vec<u8>, (Value, u64, SummaryBuilder)>;

/// Groups computed by reading every document.
fn expected(documents: &[Value], group: &Path, path: &Path) -> Groups {
    let mut groups = Groups::new();
    for document in documents {
        let Some(value) = group.get(document) else { continue };
        let (key, value) = canonical(value).expect("a good value");
        let (_, count, builder) = groups.entry(key).or_insert_with(|| (value, 0, SummaryBuilder::default()));
        *count += 1;
        if let Some(Value::Number(number)) = path.get(document) {
            builder.add(*number, 1);
        }
    }
    groups
}

/// Whether two summaries are equal; the minima `1` and `1.0` are equal.
fn same(a: &Summary, b: &Summary) -> bool {
    let equal = |a: Option<crate::Number>, b: Option<crate::Number>| match (a, b) {
        (Some(a), Some(b)) => a.compare(b).is_eq(),
        (a, b) => a.is_none() && b.is_none(),
    };
    a.count == b.count && a.sum == b.sum && equal(a.min, b.min) && equal(a.max, b.max)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: crate::query::tests::cases(2048), ..ProptestConfig::default() })]

    #[test]
    fn aggregates_equal_those_of_whole_documents(
        policy in policy(),
        bodies in prop::collection::vec(arbitrary::body(), 0..20),
        selector in prop_oneof![Just(Value::Object(Default::default())), arbitrary::selector()],
        group in arbitrary::sort_path(),
        path in arbitrary::sort_path(),
    ) {
        let source = filled(policy, &bodies);
        let selector = Selector::parse(&selector).expect("a good selector");
        let query = Query::new(selector.clone());
        let documents = source.documents.values().map(crate::query::tests::memory::MemorySource::whole);
        let documents: Vec<Value> = documents.filter(|whole| selector.matches(whole).expect("good")).collect();
        let (group_path, value_path) = (Path::parse(&group).expect("good"), Path::parse(&path).expect("good"));

        let expected = expected(&documents, &group_path, &value_path);
        let counts: Vec<(Value, u64)> = expected.values().map(|(value, count, _)| (value.clone(), *count)).collect();
        prop_assert_eq!(distinct(&source, &query, &group).expect("sound"), counts, "{} by {}", &selector, &group);

        let found = summaries(&source, &query, &group, &path);
        let all: crate::Result<Vec<Summary>> =
            expected.values().map(|(.., builder)| builder.finish(&value_path)).collect();
        match (found, all) {
            (Ok(found), Ok(all)) => {
                prop_assert_eq!(found.len(), all.len());
                for (((value, found), (expected, ..)), summary) in found.iter().zip(expected.values()).zip(&all) {
                    prop_assert_eq!(value, expected);
                    prop_assert!(same(found, summary), "{found:?} {summary:?} {selector} {path} by {group}");
                }
            }
            (found, all) => prop_assert_eq!(found.is_err(), all.is_err()),
        }

        let mut builder = SummaryBuilder::default();
        for document in &documents {
            if let Some(Value::Number(number)) = value_path.get(document) {
                builder.add(*number, 1);
            }
        }
        match (summary(&source, &query, &path), builder.finish(&value_path)) {
            (Ok(found), Ok(expected)) => {
                prop_assert!(same(&found, &expected), "{found:?} {expected:?} {selector} {path}");
            }
            (found, expected) => prop_assert_eq!(found.is_err(), expected.is_err()),
        }
    }

    #[test]
    fn summaries_of_the_path_of_a_range_equal_those_of_whole_documents(
        values in prop::collection::vec(
            prop_oneof![4 => (-4..9_i64).prop_map(Value::from), 1 => Just(Value::from("s")), 1 => Just(Value::Null)],
            0..30,
        ),
        (lower, upper) in (-4..9_i64, -4..9_i64),
        kind in prop_oneof![3 => Just(None), 1 => Just(Some("string"))],
    ) {
        let kind = kind.map_or(String::new(), |kind| format!(r#", "$type": "{kind}""#));
        let selector = format!(r#"{{"a": {{"$gte": {lower}, "$lt": {upper}{kind}}}, "b": 1}}"#);
        let selector = Selector::parse(&Value::parse(&selector).expect("JSON")).expect("a good selector");
        let body = |(at, value): (usize, &Value)| {
            Value::Object(crate::Object::from_iter([("a", value.clone()), ("b", Value::from((at % 5 / 4) as i64 ^ 1))]))
        };
        let bodies: Vec<Value> = values.iter().enumerate().map(body).collect();
        let source = filled(Policy::default(), &bodies);
        let mut builder = SummaryBuilder::default();
        for body in bodies.iter().filter(|body| selector.matches(body).expect("good")) {
            if let Some(Value::Number(number)) = body.get("a") {
                builder.add(*number, 1);
            }
        }
        let found = summary(&source, &Query::new(selector), "a").expect("sound");
        prop_assert!(same(&found, &builder.finish(&Path::parse("a").expect("good")).expect("small")));
    }
}
