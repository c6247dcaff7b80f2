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
    ) {
        let mut options = Options::new().background(false);
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
