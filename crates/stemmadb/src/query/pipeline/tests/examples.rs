//! Pipelines by example: meaning, errors, limits, and what is read.

use std::sync::atomic::Ordering;

use super::super::Pipeline;
use super::{json, naive, run};
use crate::index::{DocumentNumber, Policy};
use crate::query::tests::filled;
use crate::query::tests::memory::MemorySource;
use crate::value::collate;
use crate::{Database, ErrorKind, Result, Value};

fn rows(documents: &[&str], stages: &str) -> String {
    let bodies: Vec<Value> = documents.iter().map(|body| json(body)).collect();
    let rows = run(&filled(Policy::default(), &bodies), &json(stages));
    Value::Array(rows.unwrap_or_else(|error| panic!("{stages}: {error}"))).to_json()
}

const ORDERS: [&str; 4] = [
    r#"{"city": "Oslo", "lines": [{"p": 5, "q": 2}, {"p": 1, "q": 3}], "who": "d0"}"#,
    r#"{"city": "Lviv", "lines": [{"p": 2, "q": 1}]}"#,
    r#"{"city": "Oslo", "lines": [], "n": 4}"#,
    r#"{"n": 0.5}"#,
];

#[test]
fn stages_mean_what_they_mean_in_mongodb() {
    for (stages, expected) in [
        (
            r#"[{"$unwind": "$lines"}, {"$group": {"_id": "$city",
                "total": {"$sum": {"$multiply": ["$lines.p", "$lines.q"]}}, "n": {"$count": {}}}}]"#,
            r#"[{"_id":"Lviv","total":2,"n":1},{"_id":"Oslo","total":13,"n":2}]"#,
        ),
        (
            r#"[{"$group": {"_id": null, "n": {"$sum": 1}, "sum": {"$sum": "$n"}, "avg": {"$avg": "$n"}}}]"#,
            r#"[{"_id":null,"n":4,"sum":4.5,"avg":2.25}]"#,
        ),
        (r#"[{"$match": {"city": "Rome"}}, {"$group": {"_id": null, "n": {"$sum": 1}}}]"#, "[]"),
        (
            r#"[{"$sortByCount": "$city"}]"#,
            r#"[{"_id":"Oslo","count":2},{"_id":null,"count":1},{"_id":"Lviv","count":1}]"#,
        ),
        (r#"[{"$match": {"city": "Oslo"}}, {"$count": "n"}]"#, r#"[{"n":2}]"#),
        (
            r#"[{"$match": {"city": {"$exists": true}}}, {"$sort": {"city": 1}}, {"$limit": 1},
                {"$project": {"_id": 0, "city": 1, "prices": "$lines[].p", "dear": {"$gt": ["$lines.0.p", 3]}}}]"#,
            r#"[{"city":"Lviv","prices":[2],"dear":false}]"#,
        ),
        (
            r#"[{"$match": {"lines[].p": 5}}, {"$project": {"lines[].p": 0, "who": 0, "_rev": 0, "_id": 0}}]"#,
            r#"[{"city":"Oslo","lines":[{"q":2},{"q":3}]}]"#,
        ),
        (
            r#"[{"$match": {"n": 4}}, {"$unwind": {"path": "$lines", "includeArrayIndex": "at",
                "preserveNullAndEmptyArrays": true}}, {"$unset": ["_id", "_rev"]}]"#,
            r#"[{"city":"Oslo","n":4,"at":null}]"#,
        ),
        (
            r#"[{"$match": {"city": "Oslo", "n": 4}}, {"$set": {"a.b": {"$add": ["$n", 1]}, "n": "$none"}},
                {"$replaceRoot": {"newRoot": "$a"}}, {"$set": {"c": {"$literal": "$x"}}}]"#,
            r#"[{"b":5,"c":"$x"}]"#,
        ),
    ] {
        assert_eq!(rows(&ORDERS, stages), expected, "{stages}");
    }
}

#[test]
fn documents_are_looked_up_by_id_and_by_any_path() {
    let documents =
        [r#"{"to": ["a1", "c2", "none"]}"#, r#"{"name": "Ann", "k": 1}"#, r#"{"name": "Ben", "k": 2, "tags": [1, 2]}"#];
    let looked_up = |foreign: &str, local: &str, selector: &str| {
        let stages = format!(
            r#"[{{"$sort": {{"_id": 1}}}}, {{"$lookup": {{"localField": "{local}", "foreignField": "{foreign}",
                "as": "found", "selector": {selector}}}}}, {{"$project": {{"_id": 0, "found": "$found[].name"}}}}]"#
        );
        rows(&documents, &stages)
    };
    assert_eq!(looked_up("_id", "to", "{}"), r#"[{"found":[]},{"found":["Ann","Ben"]},{"found":[]}]"#);
    assert_eq!(looked_up("_id", "to", r#"{"k": 2}"#), r#"[{"found":[]},{"found":["Ben"]},{"found":[]}]"#);
    assert_eq!(looked_up("tags", "k", "{}"), r#"[{"found":["Ben"]},{"found":[]},{"found":["Ben"]}]"#);
    assert_eq!(looked_up("tags[]", "k", "{}"), r#"[{"found":["Ben"]},{"found":[]},{"found":["Ben"]}]"#);
}

#[test]
fn errors_name_the_stage() {
    for (stages, message, hint) in [
        ("{}", "a pipeline is an array, not an object", "write for example"),
        (r#"[{"$limit": 1}, {"$grop": {}}]"#, "stage 2 ($grop): there is no such stage", "$group"),
        (r#"[{"$limit": 0}]"#, "stage 1 ($limit): a limit is a whole number from 1", ""),
        (r#"[{"$match": {}, "$limit": 1}]"#, "stage 1 is not an object with one operator", ""),
        (r#"[{"$match": {"a": {"$gtt": 1}}}]"#, "stage 1 ($match): the field a: unknown operator $gtt", "$gt"),
        (r#"[{"$group": {"n": {"$sum": 1}}}]"#, "stage 1 ($group): the _id to group by is missing", "null"),
        (
            r#"[{"$group": {"_id": 1, "n": {"$median": 1}}}]"#,
            "stage 1 ($group): the field n has no accumulator",
            "$avg",
        ),
        (
            r#"[{"$project": {"a": {"$ad": [1]}}}]"#,
            "stage 1 ($project): a: unknown operator $ad in an expression",
            "$add",
        ),
        (r#"[{"$project": {"a": 1, "b": 0}}]"#, "stage 1 ($project): a projection includes or excludes fields", "_id"),
        (r#"[{"$set": {"a": {"$divide": [1]}}}]"#, "stage 1 ($set): a: $divide needs 2 arguments, not 1", ""),
        (r#"[{"$set": {"a": "$$NOW"}}]"#, "stage 1 ($set): a: the variable $$NOW is not known", "$$ROOT"),
        (r#"[{"$unwind": "lines"}]"#, "stage 1 ($unwind): the path of an array begins with $", "$lines"),
        (r#"[{"$lookup": {"from": "x"}}]"#, "stage 1 ($lookup): there is no `from`", "selector"),
        (r#"[{"$sort": {"lines[].p": 1}}]"#, "stage 1 ($sort): sort: the path \"lines[].p\" leads to the elements", ""),
    ] {
        let error = Pipeline::parse(&json(stages)).expect_err(stages);
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.message().starts_with(message), "{stages}: {error}");
        assert!(error.hint().unwrap_or_default().contains(hint), "{stages}: {error:?}");
    }
    let source = filled(Policy::default(), &[json(r#"{"t": "x", "n": 0}"#)]);
    for (stage, message) in [
        (r#"{"$set": {"a": {"$add": ["$t", 1]}}}"#, "stage 2 ($set): $add needs numbers, not a string"),
        (r#"{"$set": {"a": {"$divide": [1, "$n"]}}}"#, "stage 2 ($set): $divide divides by zero"),
        (r#"{"$set": {"a": {"$size": "$none"}}}"#, "stage 2 ($set): $size needs an array, not a missing value"),
        (r#"{"$replaceWith": "$t"}"#, "stage 2 ($replaceWith): the new root is an object, not a string"),
        (r#"{"$group": {"_id": {"$concat": ["$n"]}}}"#, "stage 2 ($group): $concat needs strings, not a number"),
    ] {
        let stages = json(&format!(r#"[{{"$match": {{}}}}, {stage}]"#));
        assert_eq!(run(&source, &stages).expect_err(stage).message(), message);
    }
}

#[test]
fn rows_and_memory_are_bounded() {
    let db = Database::in_memory();
    for number in 0..300 {
        db.insert(&format!("d{number}"), &json(&format!(r#"{{"n": {number}, "t": "{}"}}"#, "x".repeat(1_000))))
            .unwrap();
    }
    let snapshot = db.snapshot().unwrap();
    let pipeline = |stages: &str| Pipeline::parse(&json(stages)).unwrap();
    let outcome = |pipeline: Pipeline| pipeline.run(&snapshot)?.collect::<Result<Vec<_>>>();
    let stopped = |pipeline: Pipeline| {
        let error = outcome(pipeline).expect_err("a limit is reached");
        assert_eq!(error.kind(), ErrorKind::Stopped);
        error.message().to_owned()
    };
    let collecting = r#"[{"$set": {"m": 1}}, {"$sort": {"n": -1}}]"#;
    assert!(stopped(pipeline(collecting).memory_max(100_000)).starts_with("stage 2 ($sort): the query needs more"));
    assert_eq!(outcome(pipeline(collecting)).unwrap().len(), 300);
    // A limit after the sort bounds its memory: only 1,000 rows more than needed are collected at once.
    let pushing = r#"[{"$set": {"m": 1}}, {"$group": {"_id": null, "all": {"$push": "$t"}}}]"#;
    assert!(stopped(pipeline(pushing).memory_max(100_000)).starts_with("stage 2 ($group)"));
    stopped(pipeline("[]").rows_max(10));
    let doubled = r#"{"$set": {"t": {"$concat": ["$t", "$t", "$t", "$t"]}}}"#;
    let growing = format!("[{}]", [doubled; 12].join(","));
    assert!(stopped(pipeline(&growing)).contains("a row needs more than 16 MiB"));
    let nesting = format!("[{}]", [r#"{"$replaceWith": {"a": {"a": {"a": "$$ROOT"}}}}"#; 60].join(","));
    assert!(stopped(pipeline(&nesting)).contains("nests deeper"));
    let cancellation = crate::Cancellation::new();
    let mut rows = pipeline(r#"[{"$unset": "n"}]"#).cancelled_by(&cancellation).run(&snapshot).unwrap();
    assert!(rows.next().unwrap().is_ok());
    cancellation.cancel();
    assert_eq!(rows.next().unwrap().unwrap_err().kind(), ErrorKind::Stopped);
    assert!(rows.next().is_none());
}

#[test]
fn leading_stages_are_one_query_and_counts_come_from_the_index() {
    let db = Database::in_memory();
    for number in 0..50 {
        db.insert(&format!("d{number}"), &json(&format!(r#"{{"n": {number}, "l": [{{"p": 1}}]}}"#))).unwrap();
    }
    let snapshot = db.snapshot().unwrap();
    let executions = |stages: &str| {
        let explanation = Pipeline::parse(&json(stages)).unwrap().explain(&snapshot).unwrap();
        let stages = explanation.get("stages").and_then(Value::as_array).unwrap();
        let text = |stage: &Value| stage.get("execution").and_then(Value::as_str).unwrap().to_owned();
        (explanation.get("query").unwrap().to_json(), stages.iter().map(text).collect::<Vec<_>>())
    };
    let (query, found) = executions(r#"[{"$match": {"n": 7}}, {"$sort": {"n": 1}}, {"$limit": 3}, {"$unset": "l"}]"#);
    assert_eq!(found, ["part of the query", "part of the query", "part of the query", "streams rows"]);
    assert!(query.contains("equal"), "{query}");
    let counted = executions(r#"[{"$match": {"n": {"$gt": 7}}}, {"$count": "n"}]"#).1;
    assert_eq!(counted[1], "counted in the index");
    let grouped = executions(r#"[{"$group": {"_id": "$n", "sum": {"$sum": "$n"}}}]"#).1;
    assert_eq!(grouped, ["from the index"]);
    assert_eq!(executions(r#"[{"$group": {"_id": "$n", "all": {"$push": "$n"}}}]"#).1, ["collects groups"]);
    let hints = |stages: &str| Pipeline::parse(&json(stages)).unwrap().hints(&snapshot).unwrap();
    assert_eq!(hints(r#"[{"$group": {"_id": "$l.p", "n": {"$sum": "$n"}}}]"#).len(), 1);
    assert_eq!(hints(r#"[{"$match": {"l.p": 1}}]"#).len(), 1);
    assert_eq!(hints(r#"[{"$unwind": "$l"}, {"$group": {"_id": "$l.p"}}]"#), [""; 0]);
}

/// One document without a value at the group's path made the stage read all documents.
#[test]
fn groups_read_no_documents_that_the_index_decides() {
    let mut source = MemorySource::new(Policy::default());
    let mut documents = Vec::new();
    for at in 0..200_u64 {
        let group = match at % 10 {
            0 => r#""h": 1,"#.to_owned(),
            1 => r#""g": null,"#.to_owned(),
            at => format!(r#""g": {at},"#),
        };
        documents.push(json(&format!(r#"{{{group} "n": {}}}"#, at % 7)));
    }
    // The index does not hold arrays as values, so this document is read.
    documents.push(json(r#"{"g": [1], "n": 5}"#));
    for (at, document) in documents.iter().enumerate() {
        source.put(DocumentNumber(at as u64), &format!("d{at}"), document.clone());
    }
    let figures = r#"{"rows": {"$sum": 1}, "sum": {"$sum": "$n"}, "mean": {"$avg": "$n"}}"#;
    let group = |path: &str| json(&format!(r#"[{{"$group": {{"_id": "${path}", {}}}]"#, &figures[1..]));
    for (path, read_max) in [("g", 3), ("h", 0), ("absent", 0)] {
        source.documents_read.store(0, Ordering::Relaxed);
        let found = Value::Array(run(&source, &group(path)).unwrap());
        let read = source.documents_read.load(Ordering::Relaxed);
        assert!(read <= read_max, "{path}: {read} documents read");
        let stages = group(path).as_array().unwrap().to_vec();
        let expected = Value::Array(naive::run(&documents, &stages).unwrap());
        assert!(collate::compare(&found, &expected).is_eq(), "{path}\n{found}\n{expected}");
    }
}
