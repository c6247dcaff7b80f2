//! Property tests of planned queries against the reference evaluator: the same rows, the same order, and pages that add
//! up to the whole result.

use std::cmp::Ordering;

use proptest::prelude::*;

use super::super::{Query, Selector, count, documents, explain, ids, values};
use super::arbitrary;
use super::memory::{MemorySource, Stored};
use crate::document::Document;
use crate::index::{DocumentNumber, Policy};
use crate::query::execute::aggregate::distinct;
use crate::value::{Path, Value, collate};
use crate::{ErrorKind, Result};

/// Numbers documents so that they are in several chunks.
pub(super) fn number(at: usize) -> DocumentNumber {
    DocumentNumber(at as u64 * 30_001 + 7)
}

/// Ids in a different order than numbers.
pub(crate) fn id(at: usize) -> String {
    format!("{}{}", ["b", "a", "c"][at % 3], at)
}

pub(crate) fn policy() -> BoxedStrategy<Policy> {
    let policy = |include: &[&'static str], exclude: &[&'static str], terms_max: usize| {
        Policy::new(include.iter().copied(), exclude.iter().copied())
            .and_then(|policy| policy.with_text_bytes_max(arbitrary::LONG))
            .and_then(|policy| policy.with_document_terms_max(terms_max))
            .expect("a good policy")
    };
    prop_oneof![
        4 => Just(policy(&[], &[], 10_000)),
        2 => Just(policy(&[], &[], 5)),
        1 => Just(policy(&[], &["hidden", "a.b", "c.0"], 10_000)),
        1 => Just(policy(&["a", "b.c", "b.0"], &["a.hidden"], 6)),
    ]
    .boxed()
}

fn sort() -> BoxedStrategy<Vec<(String, bool)>> {
    prop_oneof![
        1 => Just(Vec::new()),
        3 => prop::collection::vec((arbitrary::sort_path(), any::<bool>()), 1..2),
        1 => prop::collection::vec((arbitrary::sort_path(), any::<bool>()), 2..4),
    ]
    .prop_map(|mut keys| {
        let mut seen = std::collections::BTreeSet::new();
        keys.retain(|(path, _)| seen.insert(path.clone()));
        keys
    })
    .boxed()
}

fn query(selector: &Selector, sort: &[(String, bool)]) -> Query {
    sort.iter().fold(Query::new(selector.clone()), |query, (path, descending)| match descending {
        true => query.sort_descending(path),
        false => query.sort(path),
    })
}

/// A limit above the number of rows of every result in these tests.
const STREAMED: u64 = 1000;

/// The ids as they are if the query is sorted, otherwise sorted.
fn in_order(ids: &[String], sort: &[(String, bool)]) -> Vec<String> {
    let mut ids = ids.to_vec();
    if sort.is_empty() {
        ids.sort();
    }
    ids
}

/// The expected result of the query, computed from whole documents.
fn expected(source: &MemorySource, selector: &Selector, sort: &[(String, bool)]) -> Vec<String> {
    let matches = |stored: &&Stored| selector.matches(&MemorySource::whole(stored)).expect("a good selector");
    let mut found: Vec<&Stored> = source.documents.values().filter(matches).collect();
    if !sort.is_empty() {
        found.sort_by(|a, b| {
            let (whole_a, whole_b) = (MemorySource::whole(a), MemorySource::whole(b));
            let by_paths = sort.iter().map(|(path, descending)| {
                let path = Path::parse(path).expect("a good path");
                let order = compare(path.get(&whole_a), path.get(&whole_b));
                if *descending { order.reverse() } else { order }
            });
            by_paths.fold(Ordering::Equal, Ordering::then).then_with(|| a.id.cmp(&b.id))
        });
    }
    found.into_iter().map(|stored| stored.id.to_string()).collect()
}

fn compare(a: Option<&Value>, b: Option<&Value>) -> Ordering {
    match (a, b) {
        (Some(a), Some(b)) => collate::compare(a, b),
        (a, b) => a.is_some().cmp(&b.is_some()),
    }
}

pub(super) fn all_ids(source: &MemorySource, query: &Query) -> Vec<String> {
    let rows = ids(source, query).expect("a good query");
    rows.map(|id| id.expect("a sound snapshot").to_string()).collect()
}

fn all_rows(source: &MemorySource, query: &Query) -> Vec<Document> {
    documents(source, query).expect("a good query").collect::<Result<_>>().expect("a sound snapshot")
}

/// The ids of all pages of `rows_per_page` rows.
pub(super) fn all_pages(source: &MemorySource, query: &Query, rows_per_page: u64) -> Vec<String> {
    let mut pages = Vec::new();
    let mut token = None;
    loop {
        let mut page = query.clone().limit(rows_per_page);
        if let Some(token) = token {
            page = page.after(token);
        }
        let mut rows = ids(source, &page).expect("a good query");
        for row in rows.by_ref() {
            pages.push(row.expect("a sound snapshot").to_string());
        }
        token = rows.token().expect("a good query");
        if token.is_none() {
            return pages;
        }
        assert!(pages.len() < 1000, "pages come to an end");
    }
}

pub(crate) fn filled(policy: Policy, bodies: &[Value]) -> MemorySource {
    let mut source = MemorySource::new(policy);
    source.has_wrong_statistics = bodies.len() % 2 == 1;
    for (at, body) in bodies.iter().enumerate() {
        source.put(number(at), &id(at), body.clone());
    }
    source
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: super::cases(4096),
        max_shrink_iters: 20_000,
        ..ProptestConfig::default()
    })]

    #[test]
    fn results_equal_the_reference_evaluator(
        policy in policy(),
        bodies in prop::collection::vec(arbitrary::body(), 0..14),
        selector in arbitrary::selector(),
        sort in sort(),
        skip in 0u64..3,
        limit in 1u64..5,
    ) {
        let source = filled(policy, &bodies);
        let selector = Selector::parse(&selector).expect("a good selector");
        let query = query(&selector, &sort);
        let expected = expected(&source, &selector, &sort);
        let plan = || explain(&source, &query, true).expect("a good query").to_string();

        prop_assert_eq!(&all_ids(&source, &query), &expected, "{} by {:?}\n{}", &selector, &sort, plan());
        prop_assert_eq!(count(&source, &query).expect("a good query"), expected.len() as u64);
        let pages = all_pages(&source, &query, limit);
        let (pages, rows) = (in_order(&pages, &sort), in_order(&expected, &sort));
        prop_assert_eq!(pages, rows, "pages of {} of {}\n{}", limit, &selector, plan());
        // Unsorted rows may come in a different order if they are few, but it is the same order for each part.
        let first = all_ids(&source, &query.clone().limit(STREAMED));
        prop_assert_eq!(in_order(&first, &sort), in_order(&expected, &sort));
        let part: Vec<String> = first.iter().skip(skip as usize).take(limit as usize).cloned().collect();
        let found = all_ids(&source, &query.clone().skip(skip).limit(limit));
        prop_assert_eq!(found.len(), part.len());
        if !sort.is_empty() {
            prop_assert_eq!(found, part);
        } else {
            prop_assert!(found.iter().all(|id| expected.contains(id)), "{found:?} of {expected:?}");
        }
        let rows = all_rows(&source, &query);
        let row_ids: Vec<String> = rows.iter().map(|row| row.id().to_string()).collect();
        prop_assert_eq!(&row_ids, &expected);
        for row in rows {
            let stored = source.documents.values().find(|stored| stored.id == *row.id()).expect("a stored document");
            prop_assert_eq!((&row.value().unwrap(), *row.revision()), (&stored.body, stored.revision));
        }
    }

    #[test]
    fn strings_around_the_length_bound_are_distinguished(
        texts in prop::collection::vec((arbitrary::text(), any::<bool>()), 1..14),
        operator in prop::sample::select(vec!["$eq", "$ne", "$lt", "$lte", "$gt", "$gte", "$beginsWith", "$regex"]),
        operand in arbitrary::long_text(),
        second in arbitrary::text(),
        descending in any::<bool>(),
        rows_per_page in 1u64..4,
    ) {
        let body = |(text, in_array): &(String, bool)| {
            let text = Value::from(text.as_str());
            arbitrary::single("a", if *in_array { Value::Array(vec![text]) } else { text })
        };
        let bodies: Vec<Value> = texts.iter().map(body).collect();
        let policy = Policy::default().with_text_bytes_max(arbitrary::LONG).expect("a good policy");
        let source = filled(policy, &bodies);
        let operand = if operator == "$regex" { format!("^{operand}") } else { operand };
        let test = arbitrary::single(operator, Value::from(operand));
        let range = arbitrary::single("$lt", Value::from(second));
        let sort = [("a".to_owned(), descending)];
        for selector in [
            arbitrary::single("a", test.clone()),
            arbitrary::single("a", arbitrary::single("$elemMatch", test.clone())),
            arbitrary::single("$and", Value::Array(vec![
                arbitrary::single("a", test.clone()),
                arbitrary::single("$not", arbitrary::single("a", range.clone())),
            ])),
            arbitrary::single("$or", Value::Array(vec![arbitrary::single("a", test), arbitrary::single("a", range)])),
        ] {
            let selector = Selector::parse(&selector).expect("a good selector");
            let query = query(&selector, &sort);
            let expected = expected(&source, &selector, &sort);
            let plan = explain(&source, &query, true).expect("good");
            prop_assert_eq!(&all_ids(&source, &query), &expected, "{} {}", &selector, plan);
            prop_assert_eq!(&all_pages(&source, &query, rows_per_page), &expected);
        }
    }

    #[test]
    fn elem_match_conditions_apply_to_one_element(
        bodies in prop::collection::vec(arbitrary::body_of_elements(), 1..14),
        selector in arbitrary::selector_of_elements(),
    ) {
        let source = filled(Policy::default(), &bodies);
        let selector = Selector::parse(&selector).expect("a good selector");
        let query = Query::new(selector.clone());
        let plan = || explain(&source, &query, true).expect("a good query").to_string();
        prop_assert_eq!(all_ids(&source, &query), expected(&source, &selector, &[]), "{}\n{}", &selector, plan());
    }

    #[test]
    fn pages_return_each_row_once_during_concurrent_writes(
        policy in policy(),
        bodies in prop::collection::vec(arbitrary::body(), 1..12),
        others in prop::collection::vec((0usize..20, prop::option::of(arbitrary::body())), 0..12),
        selector in prop_oneof![Just(Value::Object(Default::default())), arbitrary::selector()],
        sort in sort(),
        rows_per_page in 1u64..4,
    ) {
        let mut source = filled(policy, &bodies);
        let selector = Selector::parse(&selector).expect("a good selector");
        let query = query(&selector, &sort);
        let lasting = expected(&source, &selector, &sort);
        let mut others = others.into_iter();
        let mut found = Vec::new();
        let mut token: Option<String> = None;
        loop {
            let page = query.clone().limit(rows_per_page);
            let page = token.iter().fold(page, |page, token| page.after(token));
            let mut rows = ids(&source, &page).expect("a good query");
            for row in rows.by_ref() {
                found.push(row.expect("a sound snapshot").to_string());
            }
            token = rows.token().expect("a good query");
            if token.is_none() {
                break;
            }
            drop(rows);
            if let Some((at, body)) = others.next() {
                match body {
                    Some(body) => source.put(DocumentNumber(at as u64 * 7001 + 3), &format!("other{at}"), body),
                    None => source.remove(DocumentNumber(at as u64 * 7001 + 3)),
                }
            }
        }
        found.retain(|id| !id.starts_with("other"));
        prop_assert_eq!(in_order(&found, &sort), in_order(&lasting, &sort));
    }
}

#[track_caller]
fn assert_found(policy: Policy, body: &str, selectors: &[(&str, bool)]) {
    let source = filled(policy, &[Value::parse(body.as_bytes()).expect("good JSON")]);
    for (selector, found) in selectors {
        let query = Query::new(Selector::parse_text(selector).expect("a good selector"));
        assert_eq!(all_ids(&source, &query).len(), usize::from(*found), "{selector}");
    }
}

#[test]
fn equality_with_an_object_ignores_excluded_paths() {
    assert_found(
        Policy::new([], ["a.b"]).expect("a good policy"),
        r#"{"a": {"b": 1, "c": 2}}"#,
        &[(r#"{"a": {"$eq": {"b": 1, "c": 2}}}"#, true), (r#"{"a": {"$eq": {"b": 1, "c": 3}}}"#, false)],
    );
}

/// As in CouchDB and MongoDB, the order of an object's fields is part of the object.
#[test]
fn objects_are_compared_in_the_order_of_their_fields() {
    let bodies = [r#"{"o": {"b": 1, "a": 2}}"#, r#"{"o": {"a": 2, "b": 1}}"#, r#"{"o": {"a": 2.0, "b": 1.0}}"#];
    let source = filled(Policy::default(), &bodies.map(|body| Value::parse(body.as_bytes()).expect("good JSON")));
    let found = |selector: &str| {
        let selector = Selector::parse_text(selector).expect("a good selector");
        let found = all_ids(&source, &Query::new(selector.clone()).sort("o"));
        assert_eq!(found, expected(&source, &selector, &[("o".to_owned(), false)]), "{selector}");
        found
    };
    assert_eq!(found(r#"{"o": {"$eq": {"a": 2, "b": 1}}}"#), ["a1", "c2"]);
    assert_eq!(found(r#"{"o": {"$eq": {"b": 1, "a": 2}}}"#), ["b0"]);
    assert_eq!(found(r#"{"o": {"$in": [{"b": 1, "a": 2}]}}"#), ["b0"]);
    assert_eq!(found(r#"{"o": {"$gt": {"a": 2, "b": 1}}}"#), ["b0"]);
    assert_eq!(found("{}"), ["a1", "c2", "b0"]);
    // Conditions on the fields ignore their order.
    assert_eq!(found(r#"{"o": {"a": 2, "b": 1}}"#), ["a1", "c2", "b0"]);
    let groups = distinct(&source, &Query::new(Selector::everything()), "o").expect("sound");
    assert_eq!(groups.iter().map(|(_, count)| *count).collect::<Vec<_>>(), [2, 1]);
}

#[test]
fn several_elements_do_not_satisfy_one_elem_match() {
    assert_found(
        Policy::default(),
        r#"{"a": [{"b": [1], "c": 1}, {"b": [2], "c": 2}]}"#,
        &[
            (r#"{"a": {"$elemMatch": {"b": {"$all": [1]}}}}"#, true),
            (r#"{"a": {"$elemMatch": {"b": {"$all": [1, 2]}}}}"#, false),
            (r#"{"a": {"$elemMatch": {"b": {"$all": [1]}, "c": 1}}}"#, true),
            (r#"{"a": {"$elemMatch": {"b": {"$all": [1]}, "c": 2}}}"#, false),
            (r#"{"a": {"$elemMatch": {"c": {"$gt": 1, "$lt": 2}}}}"#, false),
        ],
    );
}

/// The row of a document with these fields.
fn projected<const N: usize>(body: &str, fields: [&str; N]) -> String {
    let source = filled(Policy::default(), &[Value::parse(body.as_bytes()).expect("good JSON")]);
    let query = Query::new(Selector::everything()).fields(fields);
    let rows: Vec<Value> = values(&source, &query).expect("good").collect::<Result<_>>().expect("sound");
    rows[0].to_json()
}

#[test]
fn fields_are_projected() {
    let body = r#"{"a": {"b": 1, "c": 2}, "d": [{"e": 3}], "f": null}"#;
    assert_eq!(projected(body, ["_id", "a.b", "x", "_id.x"]), r#"{"_id":"b0","a":{"b":1}}"#);
    assert_eq!(projected(body, ["a.c", "a", "f"]), r#"{"a":{"b":1,"c":2},"f":null}"#);
    assert_eq!(projected(body, ["a", "a.c", "f.g"]), r#"{"a":{"b":1,"c":2}}"#);
    assert_eq!(projected(body, [&vec!["a"; 10_000].join(".")]), "{}");
    assert!(projected(body, []).starts_with(r#"{"_id":"b0","_rev":"1-"#));
}

/// An array stays an array of those elements that have one of the fields.
#[test]
fn fields_within_arrays_are_projected_to_arrays() {
    let body = r#"{"d": [{"e": 3, "f": 4}, 5, {"e": 6}, {"f": 7}], "g": [], "h": {"0": {"e": 8}}, "m": [[1, 2], [3]]}"#;
    assert_eq!(projected(body, ["d.0.e"]), r#"{"d":[{"e":3}]}"#);
    assert_eq!(projected(body, ["d.2.e", "d.1", "d.9"]), r#"{"d":[5,{"e":6}]}"#);
    assert_eq!(projected(body, ["d.1.e", "d.9", "d.e"]), "{}");
    assert_eq!(projected(body, ["d[].e"]), r#"{"d":[{"e":3},{"e":6}]}"#);
    assert_eq!(projected(body, ["d[].f", "d[].e"]), r#"{"d":[{"f":4,"e":3},{"e":6},{"f":7}]}"#);
    assert_eq!(projected(body, ["d[].f", "d.0.e", "d.2"]), r#"{"d":[{"f":4,"e":3},{"e":6},{"f":7}]}"#);
    assert_eq!(projected(body, ["d[]"]), r#"{"d":[{"e":3,"f":4},5,{"e":6},{"f":7}]}"#);
    assert_eq!(projected(body, ["g[].x", "d[].x"]), r#"{"g":[],"d":[]}"#);
    // A field with a decimal name stays a field.
    assert_eq!(projected(body, ["h.0.e", "h[].e"]), r#"{"h":{"0":{"e":8}}}"#);
    assert_eq!(projected(body, ["m[].0"]), r#"{"m":[[1],[3]]}"#);
    assert_eq!(projected(body, ["m[][]"]), r#"{"m":[[1,2],[3]]}"#);
}

#[test]
fn damaged_or_foreign_tokens_are_rejected() {
    let bodies: Vec<Value> =
        (0..5).map(|at| Value::parse(format!("{{\"a\": {at}}}").as_bytes()).expect("good")).collect();
    let source = filled(Policy::default(), &bodies);
    for query in [Query::new(Selector::everything()), Query::new(Selector::everything()).sort("a")] {
        let mut rows = ids(&source, &query).expect("good");
        assert_eq!(rows.token().expect("good"), None);
        rows.next().expect("a row").expect("sound");
        let token = rows.token().expect("good").expect("a token");
        let rest = ids(&source, &query.clone().after(&token)).expect("good");
        assert_eq!(rest.count(), 4);
        let other = Query::new(Selector::nothing()).after(&token);
        assert!(other.check().expect_err("another query").message().contains("another query"));
        for at in 0..token.len() {
            let mut damaged = token.clone().into_bytes();
            damaged[at] = if damaged[at] == b'A' { b'B' } else { b'A' };
            let damaged = query.clone().after(String::from_utf8(damaged).expect("ASCII"));
            let error = damaged.check().expect_err("damaged");
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.hint().is_some());
        }
        for damaged in ["", "A", "nil", "é", "====", &token[1..], &token[..token.len() - 1]] {
            assert_eq!(query.clone().after(damaged).check().expect_err("damaged").kind(), ErrorKind::Invalid);
        }
    }
}

#[test]
fn queries_are_parsed_from_json() {
    let parse = |text: &str| Query::parse(&Value::parse(text.as_bytes()).expect("good JSON"));
    let query = r#"{"selector": {"a": 1}, "sort": ["a", {"b": "desc"}], "limit": 5, "skip": 1,
        "fields": ["a"], "bookmark": "nil"}"#;
    parse(query).expect("a good query").check().expect("a good query");
    for wrong in [
        "[]",
        "{}",
        r#"{"selector": {}, "limits": 5}"#,
        r#"{"selector": {}, "limit": -5}"#,
        r#"{"selector": {}, "sort": "a"}"#,
        r#"{"selector": {}, "sort": [{"a": "down"}]}"#,
        r#"{"selector": {}, "sort": [{"a": "asc", "b": "asc"}]}"#,
        r#"{"selector": {}, "sort": ["a", "a"]}"#,
        r#"{"selector": {}, "sort": [""]}"#,
        r#"{"selector": {}, "fields": [1]}"#,
    ] {
        assert_eq!(parse(wrong).expect_err(wrong).kind(), ErrorKind::Invalid);
    }
    let wrong = Query::new(Selector::everything()).sort("a..b").fields(["x"]);
    assert_eq!(wrong.check().expect_err("a bad path").kind(), ErrorKind::Invalid);
}

/// A limited query reads documents instead of evaluating its condition on ids. When it had read enough of them, it
/// evaluated the condition after all. The documents of the tail (those with arrays) had been collected before, and were
/// checked only against what the index could not decide, so `_id` was never checked. Found by 200,000 cases of
/// `tests/whole_database.rs`.
#[test]
fn deferred_filter_applies_to_the_tail() {
    let bodies = [r#"{"a": null}"#, r#"{"a": []}"#, r#"{"a": []}"#, r#"{"a": []}"#, r#"{"a": []}"#];
    let bodies: Vec<Value> = bodies.iter().map(|body| Value::parse(body.as_bytes()).expect("good JSON")).collect();
    let source = filled(Policy::default(), &bodies);
    let found = |prefix: &str| {
        let selector = format!(r#"{{"_id": {{"$beginsWith": "{prefix}"}}, "a": {{"$lt": [null]}}}}"#);
        let query = Query::new(Selector::parse_text(&selector).expect("a good selector"));
        let mut found = [1, 2, 100].map(|limit| all_ids(&source, &query.clone().limit(limit)));
        found.iter_mut().for_each(|ids| ids.sort());
        found
    };
    assert_eq!(found("aa"), [vec![], vec![], Vec::<String>::new()]);
    let [one, two, all] = found("b");
    assert_eq!((one.len(), two.len(), all), (1, 2, vec!["b0".to_owned(), "b3".to_owned()]));
}

/// A document with more terms than are indexed is merged into a sorted walk at the position it would have in the index.
/// Its long string was positioned by its uncut key, which sorts elsewhere than the cut keys of the strings with the
/// same first bytes, so it came after all of them. Found by 200,000 cases of `tests/whole_database.rs`.
#[test]
fn overflow_document_with_cut_string_is_sorted_correctly() {
    let policy = Policy::default()
        .with_text_bytes_max(arbitrary::LONG)
        .and_then(|policy| policy.with_document_terms_max(3))
        .expect("a good policy");
    let long = "a".repeat(arbitrary::LONG);
    let bodies = [
        format!(r#"{{"b": {{"a": 1, "b": 2, "c": 3}}, "a": "{long}\u0000"}}"#),
        format!(r#"{{"a": "{long}a"}}"#),
        "{}".to_owned(),
        r#"{"a": []}"#.to_owned(),
    ];
    let bodies: Vec<Value> = bodies.iter().map(|body| Value::parse(body.as_bytes()).expect("good JSON")).collect();
    let source = filled(policy, &bodies);
    for descending in [false, true] {
        let sort = [("a".to_owned(), descending)];
        let query = query(&Selector::everything(), &sort);
        let expected = expected(&source, &Selector::everything(), &sort);
        for limit in 1..=4 {
            assert_eq!(
                all_ids(&source, &query.clone().limit(limit)),
                expected[..limit as usize],
                "{descending} {limit}"
            );
        }
    }
}
