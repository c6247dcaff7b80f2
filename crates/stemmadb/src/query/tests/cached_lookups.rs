//! Tests of cached lookups: repeated prepared queries return the current documents.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use proptest::prelude::*;

use super::super::{Query, Selector, field};
use super::queries::policy;
use super::write_steps::{apply, step};
use crate::database::Database;
use crate::options::Options;
use crate::value::{Object, Value};

const DOCUMENT_COUNT: usize = 6;
const VALUES: [&str; 3] = ["x", "y", "z"];

fn id(at: usize) -> String {
    format!("d{at}")
}

/// Documents with few distinct indexed values, and a field that changes independently of them.
fn body() -> BoxedStrategy<Value> {
    let value = || prop::sample::select(&VALUES[..]);
    let name = prop_oneof![
        6 => value().prop_map(Value::from),
        1 => prop::collection::vec(value(), 0..3).prop_map(|values| values.into_iter().map(Value::from).collect()),
        1 => Just(Value::Null),
    ];
    (name, prop::collection::vec(value(), 0..3), 0i64..3, 0usize..40)
        .prop_map(|(name, tags, beside, more)| {
            let mut body = Object::new();
            body.insert("name", name);
            body.insert("tags", tags.into_iter().map(Value::from).collect::<Value>());
            body.insert("beside", beside);
            // Some documents have more terms than are indexed.
            (0..more.saturating_sub(30)).for_each(|at| _ = body.insert(format!("f{at}"), at as i64));
            Value::Object(body)
        })
        .boxed()
}

fn selectors() -> Vec<Selector> {
    let lookups = |value: &&str| [field("name").eq(*value), field("tags").contains(*value)];
    VALUES.iter().flat_map(lookups).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: super::cases(512), ..ProptestConfig::default() })]

    #[test]
    fn cached_lookups_equal_the_stored_documents(
        policy in policy(),
        write_steps in prop::collection::vec(step(DOCUMENT_COUNT, 8, body()), 1..24),
    ) {
        let db = Database::in_memory_with(Options::new().background(false).index(policy)).expect("in memory");
        let selectors = selectors();
        let prepared: Vec<Query> =
            selectors.iter().map(|selector| db.prepare(selector.clone()).expect("good")).collect();
        for step in &write_steps {
            apply(&db, std::slice::from_ref(step), id);
            let documents: Vec<_> = (0..DOCUMENT_COUNT).filter_map(|at| db.get(&id(at)).expect("sound")).collect();
            for (selector, query) in selectors.iter().zip(&prepared) {
                let expected: Vec<(String, String)> = documents
                    .iter()
                    .filter(|document| selector.matches(&document.value().expect("sound")).expect("good"))
                    .map(|document| (document.id().to_string(), document.revision().to_string()))
                    .collect();
                // The first query caches the result, the second returns it.
                for _ in 0..2 {
                    let mut found: Vec<(String, String)> = Vec::new();
                    let mut rows = db.find(query).run().expect("good");
                    prop_assert!(rows.token().expect("good").is_none());
                    while let Some(document) = rows.next() {
                        let document = document.expect("sound");
                        found.push((document.id().to_string(), document.revision().to_string()));
                        let token = rows.token().expect("good").expect("a row was returned");
                        let rest = db.find(query).after(token).run().expect("good").count();
                        prop_assert_eq!(rest, expected.len() - found.len());
                    }
                    prop_assert!(rows.token().expect("good").is_none());
                    found.sort();
                    prop_assert_eq!(&found, &expected, "{} after {:?}", selector, step);
                    prop_assert_eq!(db.find(query).count().expect("good"), expected.len() as u64);
                    let first = db.find(query).first().expect("good");
                    prop_assert_eq!(first.is_some(), !expected.is_empty());
                }
            }
        }
    }
}

/// A value moves from document to document. A lookup that starts after a move finds the value at that move or a later
/// one, never at an earlier one.
#[test]
fn lookups_never_return_results_older_than_an_acknowledged_write() {
    const MOVES: u64 = 3_000;
    let db = Database::in_memory();
    let write = |at: u64, owner: u64| {
        let body = serde_json::json!({"owner": format!("o{owner}"), "moved": at});
        db.upsert("it", &body).expect("a good document");
    };
    let prepared: Vec<Query> =
        (0..4).map(|owner| db.prepare(field("owner").eq(format!("o{owner}"))).expect("good")).collect();
    let (moved, is_done) = (AtomicU64::new(0), AtomicBool::new(false));
    write(0, 0);
    std::thread::scope(|scope| {
        let read = || {
            let mut lookups = 0u64;
            while !is_done.load(Ordering::Acquire) || lookups < 1_000 {
                lookups += 1;
                let owner = lookups % 4;
                let before = moved.load(Ordering::Acquire);
                let found = db.find(&prepared[owner as usize]).first_of_all();
                let after = moved.load(Ordering::Acquire) + 1;
                // No result: the value belonged to another owner at that time.
                if let Some(at) = found {
                    assert!(at % 4 == owner && before <= at && at <= after, "{at} is not from {before} to {after}");
                }
                if before == MOVES && before % 4 == owner {
                    assert_eq!(found, Some(MOVES));
                }
            }
        };
        let readers = [scope.spawn(read), scope.spawn(read)];
        for at in 1..=MOVES {
            write(at, at % 4);
            moved.store(at, Ordering::Release);
            // Cache the result and use it, before the value moves on.
            for _ in 0..2 {
                assert_eq!(db.find(&prepared[(at % 4) as usize]).first_of_all(), Some(at));
                assert_eq!(db.find(&prepared[((at + 1) % 4) as usize]).first_of_all(), None);
            }
        }
        is_done.store(true, Ordering::Release);
        readers.into_iter().for_each(|reader| reader.join().expect("no assertion failed"));
    });
}

impl crate::Find {
    /// The number of the move that wrote the only matching document.
    fn first_of_all(self) -> Option<u64> {
        let mut rows = self.run().expect("good");
        let found = rows.next()?.expect("sound");
        assert!(rows.next().is_none());
        found.get("moved").expect("sound").and_then(|at| at.as_u64())
    }
}
