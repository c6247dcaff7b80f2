//! Tests of limits over several chunks of documents: evaluating chunk by chunk returns the same rows as evaluating at
//! once.

use super::write_steps::pages;
use crate::options::Options;
use crate::{Database, Edit, Find, Selector, all_of, any_of, field, not};

const COUNT: u64 = 150_000;

/// Documents whose field `rare` begins in the second chunk; the last ones are written after a checkpoint.
fn filled() -> Database {
    filled_with(Options::new().background(false))
}

fn filled_with(options: Options) -> Database {
    let db = Database::in_memory_with(options).unwrap();
    let write = |numbers: std::ops::Range<u64>| {
        let edits = numbers.map(|n| {
            let body = if n < 100_000 {
                serde_json::json!({"seven": n % 7, "two": n % 2, "even": n % 200})
            } else {
                serde_json::json!({"seven": n % 7, "two": n % 2, "even": n % 200, "rare": n % 5})
            };
            let body = crate::Value::from_serialize(&body).unwrap();
            Edit::Insert { id: crate::DocumentId::new(format!("{n:06}")).unwrap(), body }
        });
        db.bulk(edits.collect()).unwrap().into_iter().for_each(|outcome| _ = outcome.unwrap());
    };
    write(0..COUNT - 1_000);
    db.maintenance().checkpoint().unwrap();
    write(COUNT - 1_000..COUNT);
    for n in [3, 10, 70_001, 140_003] {
        let id = format!("{n:06}");
        db.delete(&id, db.get(&id).unwrap().unwrap().revision()).unwrap();
    }
    db
}

fn ids(find: Find) -> Vec<String> {
    find.ids().unwrap().map(|id| id.unwrap().to_string()).collect()
}

#[test]
fn limited_rows_are_a_prefix_of_all_rows() {
    let db = filled();
    let seven = |n: i64| field("seven").eq(n);
    let selectors: Vec<Selector> = vec![
        all_of([seven(3), field("two").eq(1)]),
        all_of([seven(3), field("rare").eq(2)]),
        all_of([field("two").eq(1), not(seven(2))]),
        any_of([field("rare").eq(4), all_of([seven(0), field("even").eq(0)])]),
        field("rare").exists(),
        not(field("rare").exists()),
        all_of([seven(3), field("none").eq(1)]),
        Selector::everything(),
    ];
    for selector in selectors {
        let all = ids(db.find(selector.clone()));
        assert_eq!(all.len() as u64, db.find(selector.clone()).count().unwrap(), "{selector}");
        for limit in [1, 10, 3_000] {
            let found = ids(db.find(selector.clone()).limit(limit));
            assert_eq!(found, all[..all.len().min(limit as usize)], "{selector}");
            let skipped = ids(db.find(selector.clone()).skip(all.len() as u64 / 2).limit(limit));
            assert_eq!(skipped, all[all.len() / 2..][..limit.min(all.len().div_ceil(2) as u64) as usize], "{selector}");
        }
        assert_eq!(pages(|| db.find(selector.clone()).limit(4_000)), all, "{selector}");
    }
}

#[test]
fn pages_of_a_range_return_each_document_once() {
    let db = filled();
    let selectors: Vec<Selector> = vec![
        field("even").ge(150),
        all_of([field("even").ge(150), field("two").eq(1)]),
        all_of([field("even").ge(20), field("rare").eq(1)]),
        all_of([field("even").ge(198), any_of([field("rare").eq(1), field("seven").eq(1)])]),
        all_of([field("even").lt(3), field("none").eq(1)]),
    ];
    for selector in selectors {
        let mut all = ids(db.find(selector.clone()));
        all.sort();
        for limit in [700, 4_000] {
            let mut found = pages(|| db.find(selector.clone()).limit(limit));
            found.sort();
            assert_eq!(found, all, "{selector}");
        }
        let few = ids(db.find(selector.clone()).limit(10));
        assert_eq!(few.len(), all.len().min(10), "{selector}");
        assert!(few.iter().all(|id| all.binary_search(id).is_ok()), "{selector}");
    }
}

#[test]
fn limited_sorted_rows_are_a_prefix_of_all_rows() {
    let mut options = Options::new().background(false);
    options.column_cost_max = 0;
    let db = filled_with(options);
    db.maintenance().checkpoint().unwrap();
    let selectors: Vec<Selector> = vec![
        field("seven").eq(3),
        all_of([field("seven").eq(3), field("rare").eq(2)]),
        not(field("two").eq(1)),
        any_of([field("rare").eq(4), field("seven").eq(5)]),
        field("none").eq(1),
    ];
    for selector in selectors {
        for path in ["even", "rare"] {
            let ascending = || db.find(selector.clone()).sort(path);
            let descending = || db.find(selector.clone()).sort_descending(path);
            let orders: [&dyn Fn() -> Find; 2] = [&ascending, &descending];
            for sorted in orders {
                let all = ids(sorted());
                let few = ids(sorted().limit(10));
                assert_eq!(few, all[..all.len().min(10)], "{selector} by {path}");
                let token = {
                    let mut first = sorted().limit(10).ids().unwrap();
                    first.by_ref().for_each(|id| _ = id.unwrap());
                    first.token().unwrap()
                };
                let second = token.map(|token| ids(sorted().limit(10).after(token))).unwrap_or_default();
                assert_eq!(second, all[few.len()..all.len().min(20)], "{selector} by {path}");
            }
        }
    }
}
