//! Tests of estimates on skewed values: they are accurate, and a good estimate saves work without changing results.

use super::super::Query;
use crate::options::Options;
use crate::value::Value;
use crate::{Database, Edit, field};

const COUNT: u64 = 20_000;

/// Twenty thousand documents, most of them checkpointed, with fields of different value distributions.
fn skewed() -> Database {
    let db = Database::in_memory_with(Options::new().background(false)).unwrap();
    let mut state = 7u64;
    let mut random = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as f64 / f64::from(1u32 << 31)
    };
    let body = |at: u64| {
        let (uniform, zipf) = ((random() * 1_000.0) as u64, (2_000f64.powf(random()) - 1.0) as u64);
        let clock = 1_700_000_000 + at * 7;
        let (unique, name) =
            ((random() * 1e12) as u64, format!("{} {:06}", ["ann", "bob", "eve"][at as usize % 3], at));
        let json = format!(
            r#"{{"constant":5,"uniform":{uniform},"zipf":{zipf},"clock":{clock},"unique":{unique},"name":"{name}",
                "tags":[{zipf},{uniform}]}}"#
        );
        Value::parse(json.as_bytes()).unwrap()
    };
    let bodies: Vec<Value> = (0..COUNT).map(body).collect();
    for (at, part) in bodies.chunks(2_500).enumerate() {
        let edits = part.iter().enumerate().map(|(within, body)| Edit::Insert {
            id: crate::DocumentId::new(format!("d{}", at * 2_500 + within)).unwrap(),
            body: body.clone(),
        });
        for result in db.bulk(edits.collect()).unwrap() {
            result.unwrap();
        }
        if at < 7 {
            db.maintenance().checkpoint().unwrap();
        }
    }
    assert!(db.maintenance().check().unwrap().is_sound());
    db
}

fn parsed(query: &str) -> Query {
    Query::parse(&Value::parse(query.as_bytes()).unwrap()).unwrap()
}

/// The estimate is correct within a factor of two, plus two percent of all documents.
fn assert_estimated(db: &Database, selector: &str) {
    let query = || parsed(&format!(r#"{{"selector": {selector}}}"#));
    let rows = db.find(query()).count().unwrap() as f64;
    let plan = db.find(query()).explain().unwrap();
    let plan = plan.to_value();
    let filter = plan.as_object().and_then(|plan| plan.get("filter")).and_then(Value::as_object).unwrap();
    let estimated = filter.get("estimated_rows").and_then(Value::as_f64).unwrap();
    let slack = COUNT as f64 / 50.0;
    assert!(
        estimated <= rows * 2.0 + slack && rows <= estimated * 2.0 + slack,
        "{selector}: estimated {estimated}, found {rows}"
    );
}

#[test]
fn estimates_are_correct_within_a_factor_of_two() {
    let db = skewed();
    for path in ["constant", "uniform", "zipf", "clock", "unique"] {
        for (lower, upper) in [
            (0, 10),
            (5, 6),
            (0, 500),
            (100, 300),
            (900, 2_000),
            (20, 1_000_000),
            (1_700_000_000, 1_700_070_000),
            (1_700_100_000, 1_700_110_000),
            (100_000_000_000u64, 300_000_000_000u64),
        ] {
            assert_estimated(&db, &format!(r#"{{"{path}": {{"$gte": {lower}, "$lt": {upper}}}}}"#));
            assert_estimated(&db, &format!(r#"{{"{path}": {{"$lt": {upper}}}}}"#));
            assert_estimated(&db, &format!(r#"{{"tags[]": {{"$gte": {lower}, "$lt": {upper}}}}}"#));
        }
    }
    for selector in [
        r#"{"name": {"$beginsWith": "ann"}}"#,
        r#"{"name": {"$beginsWith": "eve 01"}}"#,
        r#"{"name": {"$regex": "[05]$"}}"#,
        r#"{"name": {"$regex": "^bob .*3$"}}"#,
        r#"{"unique": {"$mod": [2, 1]}}"#,
        r#"{"zipf": {"$ne": 0}}"#,
        r#"{"uniform": {"$lt": 200}, "unique": {"$lt": 500000000000}}"#,
        r#"{"$or": [{"uniform": {"$lt": 200}}, {"uniform": {"$gte": 700}}]}"#,
    ] {
        assert_estimated(&db, selector);
    }
}

/// The range has fifteen thousand values, but the wanted rows are among the first documents in sort order.
#[test]
fn limited_sort_avoids_evaluating_a_long_range() {
    let db = skewed();
    let find = || db.find(field("unique").gt(250_000_000_000i64)).sort("clock");
    let plan = find().limit(1).explain_analyze().unwrap().to_value();
    let read = plan.as_object().and_then(|plan| plan.get("documents_read")).and_then(Value::as_u64).unwrap();
    assert!((1..50).contains(&read), "{plan}");
    let ids = |find: crate::Find| -> Vec<String> { find.ids().unwrap().map(|id| id.unwrap().to_string()).collect() };
    let all = ids(find());
    for limit in [1, 2, 10, 300] {
        assert_eq!(ids(find().limit(limit)), all[..limit as usize]);
    }
    // Nothing matches at the beginning of the walk, so the filter is evaluated after all.
    let late = || db.find(field("clock").ge(1_700_000_000 + 7 * (COUNT - 4_000))).sort("name");
    let all = ids(late());
    assert_eq!(all.len(), 4_000);
    assert_eq!(ids(late().limit(2)), all[..2]);
}
