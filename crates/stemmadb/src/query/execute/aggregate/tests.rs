//! Property tests of aggregates against the same aggregates computed from whole documents.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::group::{MissingGroup, summaries};
use super::scan::canonical;
use super::{FigurePath, Summary, SummaryBuilder, combined_groups, distinct, summary};
use crate::index::Policy;
use crate::query::tests::memory::MemorySource;
use crate::query::tests::{arbitrary, filled, policy};
use crate::query::{Query, Selector};
use crate::value::{ElementPath, Path, PathStep, Value};

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

/// Groups by one path are the same whether they come from the index or are combined from documents.
fn check_combined(source: &MemorySource, query: &Query, group: &str, path: &str) -> Result<(), TestCaseError> {
    let figure = FigurePath { path, has_distinct: true };
    let combined = combined_groups(source, query, &[group], &[figure]).expect("sound");
    let counts = distinct(source, query, group).expect("sound");
    let found: Vec<(Value, u64)> = combined.iter().map(|group| (group.key.clone(), group.document_count)).collect();
    prop_assert_eq!(found, counts, "{} by {}", path, group);
    let all: crate::Result<Vec<Summary>> = combined.iter().map(|group| group.figures[0].numbers.finish(path)).collect();
    match (summaries(source, query, group, path, MissingGroup::Omit), all) {
        (Ok(summaries), Ok(all)) => {
            prop_assert_eq!(summaries.len(), all.len());
            prop_assert!(summaries.iter().zip(&all).all(|((_, a), b)| same(a, b)), "{path} by {group}");
        }
        (summaries, all) => prop_assert_eq!(summaries.is_err(), all.is_err()),
    }
    Ok(())
}

/// The path with `[]` after the names whose bits are set in `arrays`.
fn with_arrays(path: &str, arrays: u32) -> String {
    let names = path.split('.').enumerate();
    let names = names.map(|(at, name)| if arrays >> at & 1 == 1 { format!("{name}[]") } else { name.to_owned() });
    names.collect::<Vec<_>>().join(".")
}

fn children<'v>(value: &'v Value, step: &PathStep) -> Vec<&'v Value> {
    match (step, value) {
        (PathStep::Elements, Value::Array(elements)) => elements.iter().collect(),
        (PathStep::Elements, _) => Vec::new(),
        (PathStep::Field(name), value) => Path::new([&**name]).unwrap().get(value).into_iter().collect(),
    }
}

fn reference_values(value: &Value, steps: &[PathStep]) -> Vec<Value> {
    match steps {
        [] if matches!(value, Value::Array(_) | Value::Object(_)) => Vec::new(),
        [] => vec![value.clone()],
        [step, rest @ ..] => {
            children(value, step).into_iter().flat_map(|child| reference_values(child, rest)).collect()
        }
    }
}

/// Visits each group with its values, paired by the elements of the arrays that both paths enter.
fn pairs(value: &Value, group: &[PathStep], path: &[PathStep], visit: &mut impl FnMut(Vec<u8>, Value, &[Value])) {
    if let ([left, group_rest @ ..], [right, path_rest @ ..]) = (group, path)
        && left == right
    {
        children(value, left).into_iter().for_each(|child| pairs(child, group_rest, path_rest, visit));
        return;
    }
    let groups = reference_values(value, group);
    let groups: BTreeMap<_, _> = groups.iter().map(|group| canonical(group).expect("a good value")).collect();
    let values = reference_values(value, path);
    groups.into_iter().for_each(|(key, group)| visit(key, group, &values));
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

        let found = summaries(&source, &query, &group, &path, MissingGroup::Omit);
        let all: crate::Result<Vec<Summary>> =
            expected.values().map(|(.., builder)| builder.finish(&path)).collect();
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

        check_combined(&source, &query, &group, &path)?;

        let mut builder = SummaryBuilder::default();
        for document in &documents {
            if let Some(Value::Number(number)) = value_path.get(document) {
                builder.add(*number, 1);
            }
        }
        match (summary(&source, &query, &path), builder.finish(&path)) {
            (Ok(found), Ok(expected)) => {
                prop_assert!(same(&found, &expected), "{found:?} {expected:?} {selector} {path}");
            }
            (found, expected) => prop_assert_eq!(found.is_err(), expected.is_err()),
        }
    }

    #[test]
    fn aggregates_of_elements_equal_those_of_whole_documents(
        policy in policy(),
        bodies in prop::collection::vec(arbitrary::body(), 0..20),
        selector in prop_oneof![Just(Value::Object(Default::default())), arbitrary::selector()],
        (group, group_arrays) in (arbitrary::sort_path(), 1..8_u32),
        (path, path_arrays) in (arbitrary::sort_path(), 0..8_u32),
        shares_path in any::<bool>(),
    ) {
        let group = match with_arrays(&group, group_arrays) {
            path if ElementPath::is_in(&path) => path,
            path => format!("{path}[]"),
        };
        let path = if shares_path { format!("{group}.a") } else { with_arrays(&path, path_arrays) };
        let source = filled(policy, &bodies);
        let selector = Selector::parse(&selector).expect("a good selector");
        let query = Query::new(selector.clone());
        let documents = source.documents.values().map(crate::query::tests::memory::MemorySource::whole);
        let documents: Vec<Value> = documents.filter(|whole| selector.matches(whole).expect("good")).collect();
        let (group_path, value_path) = (ElementPath::parse(&group).unwrap(), ElementPath::parse(&path).unwrap());

        let mut counts = BTreeMap::new();
        let mut expected: BTreeMap<Vec<u8>, (Value, SummaryBuilder)> = BTreeMap::new();
        let mut total = SummaryBuilder::default();
        for document in &documents {
            let mut groups = BTreeMap::new();
            pairs(document, group_path.steps(), value_path.steps(), &mut |key, group, values| {
                groups.insert(key.clone(), group.clone());
                let (_, builder) = expected.entry(key).or_insert_with(|| (group, SummaryBuilder::default()));
                values.iter().filter_map(Value::as_number).for_each(|number| builder.add(number, 1));
            });
            for (key, group) in groups {
                counts.entry(key).or_insert((group, 0)).1 += 1;
            }
            let values = reference_values(document, value_path.steps());
            values.iter().filter_map(Value::as_number).for_each(|number| total.add(number, 1));
        }
        let counts: Vec<(Value, u64)> = counts.into_values().collect();
        prop_assert_eq!(distinct(&source, &query, &group).expect("sound"), counts, "{} by {}", &selector, &group);

        check_combined(&source, &query, &group, &path)?;

        match (summary(&source, &query, &path), total.finish(&path)) {
            (Ok(found), Ok(expected)) => prop_assert!(same(&found, &expected), "{found:?} {expected:?} {path}"),
            (found, expected) => prop_assert_eq!(found.is_err(), expected.is_err()),
        }
        let all: crate::Result<Vec<Summary>> = expected.values().map(|(_, builder)| builder.finish(&path)).collect();
        match (summaries(&source, &query, &group, &path, MissingGroup::Omit), all) {
            (Ok(found), Ok(all)) => {
                prop_assert_eq!(found.len(), all.len());
                for (((value, found), (expected, _)), summary) in found.iter().zip(expected.values()).zip(&all) {
                    prop_assert_eq!(value, expected);
                    prop_assert!(same(found, summary), "{found:?} {summary:?} {selector} {path} by {group}");
                }
            }
            (found, all) => prop_assert_eq!(found.is_err(), all.is_err()),
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
        prop_assert!(same(&found, &builder.finish("a").expect("small")));
    }
}
