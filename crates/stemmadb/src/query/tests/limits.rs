//! Tests of query limits and cancellation.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::super::{Query, Selector, all_of, any_of, count, documents, field, ids, not};
use super::memory::{MemorySource, Stored};
use crate::index::{DocumentNumber, Policy};
use crate::query::source::limits::{Cancellation, LimitedSource};
use crate::value::Value;
use crate::{Database, ErrorKind, Find, Result};

fn source() -> MemorySource {
    let mut source = MemorySource::new(Policy::default());
    for at in 0..1000u64 {
        let body = format!(r#"{{"at": {at}, "text": "{at} and a few words more"}}"#);
        source.put(DocumentNumber(at), &format!("id{at}"), Value::parse(body.as_bytes()).expect("good JSON"));
    }
    source
}

fn stopped<T>(result: Result<T>) {
    assert_eq!(result.err().map(|error| error.kind()), Some(ErrorKind::Stopped));
}

fn guarded<'s>(source: &'s MemorySource, query: &Query) -> LimitedSource<&'s MemorySource> {
    LimitedSource::new(source, query.limits())
}

#[test]
fn time_rows_memory_and_cancellation_stop_a_query() {
    let source = source();
    let all = Query::new(field("at").ge(0)).sort("text");
    let late = all.clone().time_limit(Duration::ZERO);
    stopped(ids(guarded(&source, &late), &late).map(|_| ()));
    stopped(count(guarded(&source, &late), &late));
    let in_time = all.clone().time_limit(Duration::from_secs(600)).memory_max(10_000_000).rows_max(1000);
    assert_eq!(ids(guarded(&source, &in_time), &in_time).expect("good").filter(|id| id.is_ok()).count(), 1000);

    let few = all.clone().rows_max(10);
    let rows: Vec<_> = documents(guarded(&source, &few), &few).expect("good").collect();
    assert_eq!(rows.len(), 11);
    assert!(rows[..10].iter().all(Result::is_ok));
    stopped(rows.into_iter().collect::<Result<Vec<_>>>());

    let small = Query::new(Selector::everything()).sort("_id").memory_max(20_000);
    stopped(ids(guarded(&source, &small), &small).and_then(|rows| rows.collect::<Result<Vec<_>>>()));
    let limited = Query::new(Selector::everything()).sort("text").limit(3).memory_max(20_000);
    assert_eq!(ids(guarded(&source, &limited), &limited).expect("little memory").count(), 3);

    let cancellation = Cancellation::new();
    let cancelled = all.cancelled_by(&cancellation);
    let mut rows = ids(guarded(&source, &cancelled), &cancelled).expect("good");
    assert!(rows.next().is_some_and(|row| row.is_ok()));
    cancellation.cancel();
    assert!(rows.any(|row| row.is_err_and(|error| error.kind() == ErrorKind::Stopped)));
    assert!(rows.next().is_none());
}

/// Each inequality was planned as the documents with a value minus those with this one, so that `$nor` of 10,000
/// equalities read the documents with a value 10,000 times, which took 15 seconds on documents that were just written.
#[test]
fn inequalities_read_the_documents_with_a_value_once() {
    let source = source();
    let selectors = [
        not(any_of((0..10_000).map(|at| field("at").eq(at * 2)))),
        all_of((0..10_000).map(|at| field("at").ne(at * 2))),
        not(any_of((0..5_000).map(|at| field("at").eq(at * 2))))
            .and(not(field("at").one_of((0..999).map(|at| at * 2)))),
    ];
    for selector in selectors {
        source.presence_reads.store(0, Ordering::Relaxed);
        assert_eq!(count(&source, &Query::new(selector)).expect("good"), 500);
        let reads = source.presence_reads.load(Ordering::Relaxed);
        assert!(reads <= 20, "{reads} reads");
    }
    // Several targets, arrays and patterns are separate conditions.
    let mixed =
        Selector::parse_text(r#"{"$nor": [{"at": 1}, {"at": 2}, {"at": [3]}, {"text": "x"}, {"at": {"$gt": 9}}]}"#);
    assert_eq!(count(&source, &Query::new(mixed.expect("good"))).expect("good"), 8);
}

/// Conditions other than scalar equality were planned one by one: each read the documents with a value, or took a pass
/// over the values.
#[test]
fn many_negated_conditions_read_what_one_reads() {
    const CONDITIONS: u64 = 2_000;
    let mut source = MemorySource::new(Policy::default());
    for at in 0..500u64 {
        let extra = if at % 2 == 0 { r#", "even": true"# } else { "" };
        let body = format!(r#"{{"at": {at}, "b": {}, "tags": [{at}], "text": "word {at}"{extra}}}"#, at % 100);
        source.put(DocumentNumber(at), &format!("id{at}"), Value::parse(body.as_bytes()).expect("good JSON"));
    }
    let conditions: [&dyn Fn(u64) -> String; 13] = [
        &|at| format!(r#"{{"at": {{"$gt": {at}}}}}"#),
        &|at| format!(r#"{{"at": {{"$gt": {}, "$lt": {}}}}}"#, at * 4, at * 4 + 3),
        &|at| format!(r#"{{"at": {{"$in": [{}, {}, [1]]}}}}"#, at * 3, at * 3 + 1),
        &|at| format!(r#"{{"text": {{"$regex": "{at}$"}}}}"#),
        &|at| format!(r#"{{"text": {{"$regex": "^word {at}[05]"}}}}"#),
        &|at| format!(r#"{{"text": {{"$beginsWith": "word {at}"}}}}"#),
        &|at| format!(r#"{{"at": {{"$mod": [{}, 1]}}}}"#, at + 7),
        &|_| r#"{"even": {"$exists": true}}"#.to_owned(),
        &|at| format!(r#"{{"x{at}": {{"$exists": true}}}}"#),
        &|at| format!(r#"{{"tags": {{"$elemMatch": {{"$gt": {}}}}}}}"#, at + 100),
        &|at| format!(r#"{{"at": {at}, "b": {{"$ne": {}}}}}"#, at % 3),
        &|at| format!(r#"{{"at": {at}, "b": {{"$in": [{at}, {}]}}}}"#, at + 1),
        &|at| format!(r#"{{"at": {{"$gt": {at}}}, "b": {{"$gt": {at}}}}}"#),
    ];
    for condition in conditions {
        // A selector has at most 64 patterns.
        let count_max = if condition(0).contains("$regex") { 64 } else { CONDITIONS };
        let all: Vec<String> = (0..count_max).map(condition).collect();
        let selector = Selector::parse_text(&format!(r#"{{"$nor": [{}]}}"#, all.join(", "))).expect("good");
        let counters = [&source.presence_reads, &source.values_walked, &source.documents_read];
        counters.iter().for_each(|counter| counter.store(0, Ordering::Relaxed));
        let found = count(&source, &Query::new(selector.clone())).expect("good");
        let [presences, values, documents] = counters.map(|counter| counter.load(Ordering::Relaxed));
        let matches = |stored: &&Stored| selector.matches(&MemorySource::whole(stored)).expect("good");
        assert_eq!(found, source.documents.values().filter(matches).count() as u64, "{}", all[1]);
        assert!(presences <= 10, "{presences} reads of presence: {}", all[1]);
        assert!(values <= 5_000, "{values} values walked: {}", all[1]);
        assert!(documents <= 500, "{documents} documents read: {}", all[1]);
    }
}

/// A thousand documents, half of them in the tree; the matching ones are scattered.
fn database() -> Database {
    let db = Database::in_memory();
    for at in 0..1000u64 {
        let body =
            format!(r#"{{"at": {}, "group": {}, "text": "{at} and a few words more"}}"#, at * 7919 % 1000, at % 100);
        db.insert(&format!("id{at}"), &Value::parse(body.as_bytes()).unwrap()).unwrap();
        if at == 500 {
            db.maintenance().checkpoint().unwrap();
        }
    }
    db
}

type RunQuery = fn(&Database, Query) -> Result<()>;

/// Every way to run a query to its end.
const WAYS: [(&str, RunQuery); 18] = [
    ("run", |db, query| find(db, query).run()?.try_for_each(|row| row.map(|_| ()))),
    ("documents", |db, query| find(db, query).documents().map(|_| ())),
    ("values", |db, query| find(db, query).values()?.try_for_each(|row| row.map(|_| ()))),
    ("ids", |db, query| find(db, query).ids()?.try_for_each(|row| row.map(|_| ()))),
    ("sorted", |db, query| find(db, query).sort("text").ids()?.try_for_each(|row| row.map(|_| ()))),
    ("walked", |db, query| find(db, query).sort("at").ids()?.try_for_each(|row| row.map(|_| ()))),
    ("distinct", |db, query| find(db, query).distinct("text").map(|_| ())),
    ("groups", |db, query| find(db, query).group_by("text").counts().map(|_| ())),
    ("summaries", |db, query| find(db, query).group_by("text").summaries("at").map(|_| ())),
    ("explain_analyze", |db, query| find(db, query).explain_analyze().map(|_| ())),
    ("watch", |db, query| db.watch(query)?.next_delta().map(|_| ())),
    ("first", |db, query| find(db, query).first().map(|_| ())),
    ("count", |db, query| find(db, query).count().map(|_| ())),
    ("exists", |db, query| find(db, query).exists().map(|_| ())),
    ("min", |db, query| find(db, query).min("at").map(|_| ())),
    ("max", |db, query| find(db, query).max("at").map(|_| ())),
    ("summary", |db, query| find(db, query).summary("at").map(|_| ())),
    ("explain", |db, query| find(db, query).explain().map(|_| ())),
];
/// The first ones, which return rows or values that count as rows.
const GIVE_ROWS: usize = 11;

fn find(db: &Database, query: Query) -> Find {
    db.find(query)
}

#[test]
fn every_execution_method_enforces_every_limit() {
    let db = database();
    let cancellation = Cancellation::new();
    cancellation.cancel();
    let scattered = || Query::new(field("at").lt(500));
    let message = |run: RunQuery, query: Query| match run(&db, query) {
        Ok(()) => String::new(),
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Stopped, "{error}");
            error.message().to_owned()
        }
    };
    for (at, (way, run)) in WAYS.into_iter().enumerate() {
        let late = message(run, scattered().time_limit(Duration::ZERO));
        assert!(late.contains("longer than its 0 ms"), "{way}: {late}");
        let cancelled = message(run, scattered().cancelled_by(&cancellation));
        assert!(cancelled.contains("was cancelled"), "{way}: {cancelled}");
        let many = message(run, scattered().rows_max(499));
        assert_eq!(many.contains("more than its 499 rows"), at < GIVE_ROWS, "{way}: {many}");
        let large = message(run, scattered().memory_max(100));
        // A walk over values holds one value at a time, and `first` returns a single row.
        let holds_little = way == "walked" || at >= GIVE_ROWS;
        assert!(large.contains("more than its 100 bytes") || holds_little && large.is_empty(), "{way}: {large}");
        let enough = scattered().time_limit(Duration::from_secs(600)).rows_max(500).memory_max(10_000_000);
        assert_eq!(message(run, enough.cancelled_by(&Cancellation::new())), "", "{way}");
    }
}

#[test]
fn watch_respects_limits_and_ends_when_cancelled() {
    let db = database();
    let cancellation = Cancellation::new();
    let mut watch = db.watch(Query::new(field("at").lt(10)).rows_max(10).cancelled_by(&cancellation)).unwrap();
    let first = watch.next_delta().unwrap().expect("an answer");
    assert_eq!((first.is_first(), first.len()), (true, 10));
    let other = cancellation.clone();
    let canceller = std::thread::spawn(move || other.cancel());
    stopped(watch.next_delta());
    canceller.join().unwrap();
    stopped(first.events().collect::<Result<Vec<_>>>());

    // The watch tries again, and fewer documents match now.
    let mut watch = db.watch(Query::new(field("at").lt(10)).rows_max(9)).unwrap();
    stopped(watch.next_delta());
    let gone = db.find(field("at").eq(3)).first().unwrap().unwrap();
    db.delete(gone.id().as_str(), gone.revision()).unwrap();
    assert_eq!(watch.next_delta().unwrap().expect("an answer").len(), 9);
}
