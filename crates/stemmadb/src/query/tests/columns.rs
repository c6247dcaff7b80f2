//! Property tests of queries on in-memory columns against the reference evaluator, with plain documents that share many
//! values.

use proptest::prelude::*;
use serde_json::json;

use super::super::Selector;
use super::write_steps::{WriteStep, apply, pages, step};
use crate::database::Database;
use crate::index::Policy;
use crate::options::Options;
use crate::value::{Path, Value, collate};

const DOCUMENT_COUNT: usize = 40;

fn value() -> BoxedStrategy<Option<serde_json::Value>> {
    let texts = vec!["ab", "abc", "xab", "b", "", "ab\u{0}c", "zz"];
    prop_oneof![
        1 => Just(None),
        1 => Just(Some(json!(null))),
        1 => any::<bool>().prop_map(|flag| Some(json!(flag))),
        6 => (0..6).prop_map(|number| Some(json!(number))),
        1 => Just(Some(json!(2.5))),
        5 => prop::sample::select(texts).prop_map(|text| Some(json!(text))),
    ]
    .boxed()
}

fn body() -> BoxedStrategy<Value> {
    // Arrays and strings with cut keys are rare, so that most columns are complete.
    let rare = prop_oneof![
        60 => value(),
        1 => Just(Some(json!([1, "ab"]))),
        1 => Just(Some(json!({"in": 1}))),
        1 => Just(Some(json!("ab".repeat(40)))),
    ];
    (rare, value(), 0..4)
        .prop_map(|(a, b, c)| {
            let mut body = json!({ "c": c });
            for (name, value) in [("a", a), ("b", b)] {
                if let Some(value) = value {
                    body[name] = value;
                }
            }
            Value::from_serialize(&body).expect("JSON is a value")
        })
        .boxed()
}

fn condition() -> BoxedStrategy<serde_json::Value> {
    let field = || prop::sample::select(vec!["a", "b", "c"]);
    let compare = prop::sample::select(vec!["$eq", "$lt", "$lte", "$gt", "$gte"]);
    let operand = || value().prop_map(|value| value.unwrap_or(json!(3)));
    let pattern = prop::sample::select(vec!["ab", "^ab", "^ab.*", "b$", "(ab)+c?", "a.?b", "^$", "xab|zz"]);
    prop_oneof![
        4 => (field(), compare, operand()).prop_map(|(field, compare, operand)| json!({field: {compare: operand}})),
        1 => (field(), prop::collection::vec(operand(), 1..4)).prop_map(|(field, list)| json!({field: {"$in": list}})),
        1 => (field(), prop::collection::vec(operand(), 1..4)).prop_map(|(field, list)| {
            json!({"$or": list.into_iter().map(|value| json!({field: value})).collect::<Vec<_>>()})
        }),
        2 => (field(), pattern).prop_map(|(field, pattern)| json!({field: {"$regex": pattern}})),
        1 => field().prop_map(|field| json!({field: {"$exists": false}})),
    ]
    .boxed()
}

fn selector() -> BoxedStrategy<Selector> {
    prop::collection::vec(condition(), 0..3)
        .prop_map(|all| {
            let json = Value::from_serialize(&json!({ "$and": all })).expect("JSON is a value");
            Selector::parse(&json).expect("a good selector")
        })
        .boxed()
}

fn id(at: usize) -> String {
    format!("{}{at}", ["b", "a", "c"][at % 3])
}

/// Executes the steps; returns the documents afterwards.
fn documents_after(db: &Database, write_steps: &[WriteStep]) -> Vec<(String, Value)> {
    apply(db, write_steps, id);
    let found = |at| db.get(&id(at)).expect("sound").map(|found| (id(at), found.value().expect("sound")));
    (0..DOCUMENT_COUNT).filter_map(found).collect()
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: super::cases(512),
        max_shrink_iters: 20_000,
        ..ProptestConfig::default()
    })]

    #[test]
    fn column_results_equal_the_reference_evaluator(
        write_steps in prop::collection::vec(step(DOCUMENT_COUNT, 20, body()), 0..120),
        is_merged in prop::bool::weighted(0.8),
        later in prop::collection::vec(step(DOCUMENT_COUNT, 20, body()), 0..3),
        selectors in prop::collection::vec(selector(), 1..5),
        path in prop::sample::select(vec!["a", "b", "c", "none"]),
        descending in any::<bool>(),
        limit in 1u64..8,
        price_max in 0u64..8,
        cache_bytes in prop::sample::select(vec![2_048, 4_096, 64 << 20]),
    ) {
        let mut options = Options::new().background(false).cache_bytes(cache_bytes);
        options.column_cost_max = price_max;
        let policy = Policy::default().with_text_bytes_max(16).expect("a good bound");
        let db = Database::in_memory_with(options.index(policy)).expect("in memory");
        let mut documents = documents_after(&db, &write_steps);
        if is_merged {
            db.maintenance().checkpoint().expect("in memory");
        }
        if !later.is_empty() {
            documents = documents_after(&db, &later);
        }
        let sort_path = Path::parse(path).expect("a good path");
        for selector in selectors {
            let mut expected: Vec<&(String, Value)> =
                documents.iter().filter(|(_, body)| selector.matches(body).expect("a good selector")).collect();
            expected.sort_by(|(a_id, a), (b_id, b)| {
                let order = match (sort_path.get(a), sort_path.get(b)) {
                    (Some(a), Some(b)) => collate::compare(a, b),
                    (a, b) => a.is_some().cmp(&b.is_some()),
                };
                let order = if descending { order.reverse() } else { order };
                order.then_with(|| a_id.cmp(b_id))
            });
            let expected: Vec<&str> = expected.into_iter().map(|(id, _)| id.as_str()).collect();
            let sorted = || {
                let find = db.find(selector.clone());
                if descending { find.sort_descending(path) } else { find.sort(path) }
            };
            let found = |find: crate::Find| -> Vec<String> {
                find.ids().expect("good").map(|id| id.expect("sound").to_string()).collect()
            };
            prop_assert_eq!(&found(sorted()), &expected, "{}", &selector);
            let few: Vec<&str> = expected.iter().copied().take(limit as usize).collect();
            prop_assert_eq!(&found(sorted().limit(limit)), &few, "{}", &selector);
            prop_assert_eq!(db.find(selector.clone()).count().expect("good"), expected.len() as u64, "{}", &selector);
            prop_assert_eq!(&pages(|| sorted().limit(limit)), &expected, "{}", &selector);
            let mut all = found(db.find(selector.clone()));
            all.sort();
            let mut expected: Vec<&str> = expected;
            expected.sort();
            prop_assert_eq!(&all, &expected, "{}", &selector);
        }
    }
}

/// The paths that have a column in the newest state of the tree.
fn column_paths(db: &Database) -> Vec<String> {
    let snapshot = db.snapshot().expect("open");
    let paths = snapshot.columns.ready_paths().into_iter();
    paths.map(|path| snapshot.paths().text(path).expect("a known path")).collect()
}

/// 2,000 documents with two unique numbers, of which the memory holds one column.
fn two_paths_and_memory_for_one() -> Database {
    let options = Options::new().background(false).cache_bytes(180_000);
    let db = Database::in_memory_with(options).expect("in memory");
    for at in 0..2_000 {
        db.insert(&format!("{at}"), &json!({"a": at, "b": 2_000 - at})).expect("new");
    }
    db.maintenance().checkpoint().expect("in memory");
    db
}

fn sort_all(db: &Database, path: &str) {
    assert_eq!(db.find(Selector::everything()).sort(path).ids().expect("good").count(), 2_000);
}

/// The first column that was built stayed, read or not, and every other path was read from the tree for good.
#[test]
fn a_column_that_is_no_longer_read_gives_way() {
    let db = two_paths_and_memory_for_one();
    (0..10).for_each(|_| sort_all(&db, "a"));
    assert_eq!(column_paths(&db), ["a"]);
    (0..10).for_each(|_| sort_all(&db, "b"));
    assert_eq!(column_paths(&db), ["b"]);
}

/// A snapshot kept the columns of its state, outside of the cache's bound, for as long as it lived.
#[test]
fn a_held_snapshot_keeps_no_columns() {
    let db = two_paths_and_memory_for_one();
    (0..10).for_each(|_| sort_all(&db, "a"));
    let held = db.snapshot().expect("open");
    assert_eq!(held.columns.ready_paths().len(), 1);
    db.insert("later", &json!({"c": 1})).expect("new");
    db.maintenance().checkpoint().expect("in memory");
    db.snapshot().expect("open");
    assert!(held.columns.ready_paths().is_empty());
    let sorted = || held.find(Selector::everything()).sort("a").ids().expect("good").count();
    (0..10).for_each(|_| assert_eq!(sorted(), 2_000));
    assert!(held.columns.ready_paths().is_empty());
}
