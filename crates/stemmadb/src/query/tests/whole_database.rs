//! Property tests of a whole database against the reference evaluator: results do not depend on whether documents are
//! in the memtable, the tree, or both.

use proptest::prelude::*;

use super::super::{Selector, field};
use super::arbitrary;
use super::queries::policy;
use super::write_steps::{WriteStep, apply, pages, step};
use crate::database::Database;
use crate::options::Options;
use crate::value::{ExactSum, Object, Path, Value, collate};

const DOCUMENT_COUNT: usize = 12;

fn id(at: usize) -> String {
    format!("{}{at}", ["b:", "a:", "c"][at % 3])
}

/// Executes the steps; returns the documents afterwards, with `_id` and `_rev`.
fn documents_after(db: &Database, write_steps: &[WriteStep]) -> Vec<Value> {
    apply(db, write_steps, id);
    let whole = |at: usize| {
        let found = db.get(&id(at)).expect("sound")?;
        let mut whole = Object::new();
        whole.insert("_id", found.id().as_str());
        whole.insert("_rev", found.revision().to_string());
        let Value::Object(body) = found.value().expect("sound") else { return None };
        whole.extend(body);
        Some(Value::Object(whole))
    };
    (0..DOCUMENT_COUNT).filter_map(whole).collect()
}

fn id_of(whole: &Value) -> String {
    whole.as_object().and_then(|whole| whole.get("_id")).and_then(Value::as_str).unwrap_or_default().to_owned()
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: super::cases(1024),
        max_shrink_iters: 20_000,
        ..ProptestConfig::default()
    })]

    #[test]
    fn results_do_not_depend_on_storage_level(
        policy in policy(),
        write_steps in prop::collection::vec(step(DOCUMENT_COUNT, 8, arbitrary::body()), 0..24),
        selectors in prop::collection::vec(arbitrary::selector(), 1..6),
        path in arbitrary::sort_path(),
        descending in any::<bool>(),
        limit in 1u64..5,
        has_columns in any::<bool>(),
        is_merged in any::<bool>(),
    ) {
        let mut options = Options::new().background(false).index(policy);
        options.column_cost_max = if has_columns { 0 } else { u64::MAX };
        let db = Database::in_memory_with(options).expect("in memory");
        let documents = documents_after(&db, &write_steps);
        if is_merged {
            db.maintenance().checkpoint().expect("in memory");
        }
        let sort_path = Path::parse(&path).expect("a good path");
        for (at, selector) in selectors.into_iter().enumerate() {
            let selector = Selector::parse(&selector).expect("a good selector");
            let selector = match at % 3 {
                0 => selector.and(field("_id").begins_with("b:")),
                1 => selector.or(crate::not(field("_id").begins_with("a:"))),
                _ => selector,
            };
            let mut expected: Vec<&Value> =
                documents.iter().filter(|whole| selector.matches(whole).expect("a good selector")).collect();
            expected.sort_by(|a, b| {
                let order = match (sort_path.get(a), sort_path.get(b)) {
                    (Some(a), Some(b)) => collate::compare(a, b),
                    (a, b) => a.is_some().cmp(&b.is_some()),
                };
                let order = if descending { order.reverse() } else { order };
                order.then_with(|| id_of(a).cmp(&id_of(b)))
            });
            let expected: Vec<String> = expected.into_iter().map(id_of).collect();
            let sorted = |find: crate::Find| if descending { find.sort_descending(&path) } else { find.sort(&path) };
            let found = |find: crate::Find| -> Vec<String> {
                find.ids().expect("good").map(|id| id.expect("sound").to_string()).collect()
            };
            let plan = || sorted(db.find(selector.clone())).explain_analyze().expect("good").to_string();
            prop_assert_eq!(&found(sorted(db.find(selector.clone()))), &expected, "{} {}", &selector, plan());
            let first: Vec<String> = expected.iter().take(limit as usize).cloned().collect();
            prop_assert_eq!(&found(sorted(db.find(selector.clone())).limit(limit)), &first, "{} {}", &selector, plan());
            prop_assert_eq!(db.find(selector.clone()).count().expect("good"), expected.len() as u64);
            prop_assert_eq!(db.find(selector.clone()).exists().expect("good"), !expected.is_empty());

            let found = pages(|| sorted(db.find(selector.clone())).limit(limit));
            prop_assert_eq!(&found, &expected, "{} {}", &selector, plan());

            // Unsorted.
            let mut found = pages(|| db.find(selector.clone()).limit(limit));
            found.sort();
            let mut all = expected.clone();
            all.sort();
            prop_assert_eq!(&found, &all, "{}", &selector);

            let matching: Vec<&Value> = documents.iter().filter(|whole| all.contains(&id_of(whole))).collect();
            let values = || matching.iter().filter_map(|whole| sort_path.get(whole));
            let least = values().min_by(|a, b| collate::compare(a, b));
            let found = db.find(selector.clone()).min(&path).expect("good");
            prop_assert_eq!(found.is_some(), least.is_some());
            prop_assert!(found.zip(least).is_none_or(|(found, least)| collate::compare(&found, least).is_eq()));
            let mut sum = ExactSum::default();
            for value in values() {
                if let Value::Number(number) = value {
                    sum.add(*number, 1);
                }
            }
            match (db.find(selector.clone()).sum(&path), sum.total()) {
                (Ok(found), Some(expected)) => {
                    prop_assert!(found.compare(expected).is_eq(), "{found:?} {expected:?} {selector}");
                }
                (found, expected) => prop_assert_eq!(found.is_err(), expected.is_none()),
            }
            let distinct = db.find(selector.clone()).group_by(&path).counts().expect("good");
            prop_assert_eq!(distinct.iter().map(|(_, count)| *count).sum::<u64>(), values().count() as u64);
        }
    }
}
