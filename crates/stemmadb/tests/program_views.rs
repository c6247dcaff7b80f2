//! Program views, whose functions are given at run time: CouchDB's collation, ranges, groups and reducers, compared
//! with naive computations.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value as Json, json};
use stemmadb::views::{EmittedRows, ProgramReducer, ProgramRow, ProgramView, RowBound, RowChoice, ViewProgram};
use stemmadb::{Access, Database, Document, Error, ErrorKind, Reduction, Result, Value};

/// Emits the `rows` of each document: `[[key, value], …]`.
struct Rows {
    name: String,
    reducer: ProgramReducer,
    mapped: Arc<AtomicUsize>,
}

impl ViewProgram for Rows {
    fn name(&self) -> &str {
        &self.name
    }

    fn map(&self, documents: &[&Document]) -> Result<Vec<Result<EmittedRows>>> {
        self.mapped.fetch_add(documents.len(), Ordering::Relaxed);
        documents.iter().map(|document| Ok(rows_of(document))).collect()
    }

    fn reducer(&self) -> ProgramReducer {
        self.reducer
    }

    /// Concatenates keys, ids and values, so that the order is visible.
    fn reduce(&self, rows: &[ProgramRow]) -> Result<Value> {
        assert!(!rows.is_empty());
        let joined = rows.iter().map(|row| format!("{}@{}={};", row.key.to_json(), row.id, row.value.to_json()));
        Ok(joined.collect::<String>().into())
    }

    fn rereduce(&self, parts: &[Value]) -> Result<Value> {
        assert!(parts.len() > 1);
        Ok(parts.iter().map(|part| part.as_str().unwrap()).collect::<String>().into())
    }
}

fn rows_of(document: &Document) -> Result<EmittedRows> {
    if document.get("stop")?.is_some() {
        return Err(Error::invalid("it can't be mapped"));
    }
    let rows = document.get("rows")?.unwrap_or_default();
    let row = |row: &Value| {
        let row = row.as_array().unwrap();
        (row[0].clone(), row[1].clone())
    };
    Ok(rows.as_array().unwrap_or_default().iter().map(row).collect())
}

fn view(db: &Database, reducer: ProgramReducer) -> (ProgramView, Arc<AtomicUsize>) {
    let mapped = Arc::new(AtomicUsize::new(0));
    let program = Rows { name: format!("rows {reducer:?}"), reducer, mapped: mapped.clone() };
    (db.views().open_program(Arc::new(program)).unwrap(), mapped)
}

fn value(json: &Json) -> Value {
    Value::parse(json.to_string().as_bytes()).unwrap()
}

fn to_json(value: &Value) -> Json {
    serde_json::from_str(&value.to_json()).unwrap()
}

fn put(db: &Database, id: &str, rows: &Json) {
    db.upsert(id, &json!({ "rows": rows })).unwrap();
}

/// `[key, id, value]` of each row.
fn rows(view: &ProgramView, choice: RowChoice, descending: bool) -> Vec<Json> {
    let rows = view.query().among(choice).descending(descending).rows().unwrap();
    rows.map(|row| row.map(|row| json!([to_json(&row.key), row.id, to_json(&row.value)])).unwrap()).collect()
}

fn bound(key: Json, id: Option<&str>, is_inclusive: bool) -> Option<RowBound> {
    Some(RowBound { key: value(&key), id: id.map(str::to_owned), is_inclusive })
}

/// Keys in ascending order; each is distinct under ICU.
fn ascending() -> Vec<Json> {
    vec![
        json!(null),
        json!(false),
        json!(true),
        json!(-1e300),
        json!(-7),
        json!(0),
        json!(1.5),
        json!(2),
        json!(1e300),
        json!(""),
        json!("_"),
        json!("-"),
        json!("1"),
        json!("a"),
        json!("A"),
        json!("á"),
        json!("aa"),
        json!("Aa"),
        json!("b"),
        json!("ba"),
        json!("z"),
        json!("Z"),
        json!("ω"),
        json!("日"),
        json!([]),
        json!([null]),
        json!(["a"]),
        json!(["a", "A"]),
        json!(["A"]),
        json!([["b"]]),
        json!({}),
        json!({"a": "a"}),
        json!({"a": "A"}),
        json!({"a": "A", "b": 1}),
        json!({"B": 1}),
    ]
}

#[test]
fn rows_are_in_icu_order_then_by_id() {
    let db = Database::in_memory();
    let keys = ascending();
    // Ids in the reverse order of insertion.
    for (at, key) in keys.iter().enumerate().rev() {
        put(&db, &format!("z{at:03}"), &json!([[key, 1]]));
        put(&db, &format!("b{at:03}"), &json!([[key, 2]]));
    }
    let (view, _) = view(&db, ProgramReducer::None);
    let expected: Vec<Json> = keys
        .iter()
        .enumerate()
        .flat_map(|(at, key)| [json!([key, format!("b{at:03}"), 2]), json!([key, format!("z{at:03}"), 1])])
        .collect();
    assert_eq!(rows(&view, RowChoice::All, false), expected);
    assert_eq!(rows(&view, RowChoice::All, true), expected.iter().rev().cloned().collect::<Vec<_>>());
    // Every range, in both directions, with inclusive and exclusive bounds.
    for lower in (0..keys.len()).step_by(3) {
        for upper in lower..keys.len() {
            for (from, to) in [(true, true), (true, false), (false, true), (false, false)] {
                let choice =
                    RowChoice::Range(bound(keys[lower].clone(), None, from), bound(keys[upper].clone(), None, to));
                let (first, last) = (2 * (lower + usize::from(!from)), 2 * (upper + usize::from(to)));
                let expected_rows = expected.get(first..last).unwrap_or_default();
                assert_eq!(rows(&view, choice.clone(), false), expected_rows, "{choice:?}");
                let answer = view.query().among(choice).rows().unwrap();
                assert_eq!((answer.total(), answer.offset() as usize), (expected.len() as u64, first));
            }
        }
    }
}

#[test]
fn bounds_can_include_document_ids() {
    let db = Database::in_memory();
    for id in ["a", "ab", "b", "c\u{0}", "c", "d"] {
        put(&db, id, &json!([["k", null], ["k", 1], ["l", null]]));
    }
    let (view, _) = view(&db, ProgramReducer::None);
    let ids = |lower, upper, descending| -> Vec<String> {
        let found = rows(&view, RowChoice::Range(lower, upper), descending);
        let mut ids: Vec<String> = found.iter().map(|row| row[1].as_str().unwrap().to_owned()).collect();
        ids.dedup();
        ids
    };
    let at = |id: &str, is_inclusive| bound(json!("k"), Some(id), is_inclusive);
    assert_eq!(ids(at("ab", true), at("c", true), false), ["ab", "b", "c"]);
    assert_eq!(ids(at("a", false), at("c\u{0}", true), false), ["ab", "b", "c", "c\u{0}"]);
    assert_eq!(ids(at("a", true), at("c", false), false), ["a", "ab", "b"]);
    assert_eq!(ids(at("aa", true), at("bb", true), true), ["b", "ab"]);
    assert_eq!(ids(at("x", true), bound(json!("l"), Some("a"), true), false), ["a"]);
}

#[test]
fn keys_are_returned_in_the_requested_order() {
    let db = Database::in_memory();
    for n in 0..10 {
        put(&db, &format!("d{n}"), &json!([[n % 3, n], [["x", n % 2], 1]]));
    }
    let (view, _) = view(&db, ProgramReducer::Sum);
    let keys = RowChoice::Keys(vec![value(&json!(2)), value(&json!(7)), value(&json!(0)), value(&json!(2))]);
    let found = rows(&view, keys.clone(), false);
    let values: Vec<i64> = found.iter().map(|row| row[2].as_i64().unwrap()).collect();
    assert_eq!(values, [2, 5, 8, 0, 3, 6, 9, 2, 5, 8]);
    let groups: Vec<_> = view
        .query()
        .among(keys)
        .groups(None)
        .unwrap()
        .map(|group| group.map(|(key, sum)| json!([to_json(&key), to_json(&sum)])).unwrap())
        .collect();
    assert_eq!(groups, [json!([2, 15]), json!([0, 18]), json!([2, 15])]);
}

#[test]
fn reducers_match_couchdb() {
    let cases = [
        (ProgramReducer::Count, json!([null, "x", {}]), json!(3)),
        (ProgramReducer::Sum, json!([1, 2, 0.5]), json!(3.5)),
        (ProgramReducer::Sum, json!([[1, 2], [10, 20, 30], 5]), json!([16, 22, 30])),
        (
            ProgramReducer::Sum,
            json!([{"a": 1, "b": {"c": 2}}, {"b": {"c": 3, "d": [1]}}]),
            json!({"a": 1, "b": {"c": 5, "d": [1]}}),
        ),
        (ProgramReducer::Stats, json!([2, 4, -1]), json!({"sum": 5, "count": 3, "min": -1, "max": 4, "sumsqr": 21})),
        (
            ProgramReducer::Stats,
            json!([[1, 2], [3, 4]]),
            json!([
                {"sum": 4, "count": 2, "min": 1, "max": 3, "sumsqr": 10},
                {"sum": 6, "count": 2, "min": 2, "max": 4, "sumsqr": 20}
            ]),
        ),
        (
            ProgramReducer::Stats,
            json!([{"sum": 5, "count": 3, "min": -1, "max": 4, "sumsqr": 21}, 7]),
            json!({"sum": 12, "count": 4, "min": -1, "max": 7, "sumsqr": 70}),
        ),
        (ProgramReducer::First, json!([null, 2, 3]), json!(null)),
        (ProgramReducer::First, json!([{"a": 1}, 2]), json!({"a": 1})),
        (ProgramReducer::Last, json!([1, 2, [3]]), json!([3])),
        (ProgramReducer::Top(3), json!([5, "b", 7, "a", null, 5, 7, "A"]), json!(["b", "A", "a"])),
        (ProgramReducer::Bottom(4), json!([5, "b", 7, "a", null, 5.0, 7, "A"]), json!([null, 5, 7, "a"])),
        (ProgramReducer::Bottom(9), json!([2, 1, 2]), json!([1, 2])),
        (ProgramReducer::Typed(Reduction::Sum), json!([1, "x", 2]), json!(3)),
        (ProgramReducer::Typed(Reduction::Average), json!([1, "x", 2]), json!(1.5)),
        (ProgramReducer::Typed(Reduction::Min), json!([3, null, "x"]), json!(null)),
        (ProgramReducer::Typed(Reduction::Max), json!([3, null, "x"]), json!("x")),
        (ProgramReducer::Typed(Reduction::Count), json!([3, null]), json!(2)),
        (ProgramReducer::Custom, json!([1, 2]), json!("0@d=1;1@d=2;")),
    ];
    for (reducer, values, expected) in cases {
        let db = Database::in_memory();
        let emitted: Vec<Json> =
            values.as_array().unwrap().iter().enumerate().map(|(at, value)| json!([at, value])).collect();
        put(&db, "d", &json!(emitted));
        let (view, _) = view(&db, reducer);
        assert_eq!(to_json(&view.query().reduce().unwrap().unwrap()), expected, "{reducer:?} of {values}");
    }
    for (reducer, values) in [
        (ProgramReducer::Sum, json!([1, "x"])),
        (ProgramReducer::Sum, json!([null])),
        (ProgramReducer::Sum, json!([{"a": 1}, 2])),
        (ProgramReducer::Sum, json!([["x"]])),
        (ProgramReducer::Stats, json!([1, "x"])),
        (ProgramReducer::Stats, json!([[1], [1, 2]])),
        (ProgramReducer::Stats, json!([{"sum": 1}])),
    ] {
        let db = Database::in_memory();
        for (at, value) in values.as_array().unwrap().iter().enumerate() {
            put(&db, &format!("d{at}"), &json!([[at, value]]));
        }
        let (view, _) = view(&db, reducer);
        let reduced = to_json(&view.query().reduce().unwrap().unwrap());
        assert_eq!(reduced["error"], "builtin_reduce_error", "{reducer:?} of {values}: {reduced}");
        assert!(reduced["reason"].as_str().unwrap().contains("function requires that"), "{reduced}");
        // Values that can't be summed can still be read as rows.
        assert_eq!(rows(&view, RowChoice::All, false).len(), values.as_array().unwrap().len());
    }
    let db = Database::in_memory();
    (0..500).for_each(|n| put(&db, &format!("d{n}"), &json!([[n % 100, 0]])));
    let (view, _) = view(&db, ProgramReducer::ApproxCountDistinct);
    let about = view.query().reduce().unwrap().unwrap().as_f64().unwrap();
    assert!((95.0..105.0).contains(&about), "{about}");
}

#[test]
fn first_last_top_and_bottom_are_correct_for_any_range() {
    let db = Database::in_memory();
    let numbers: Vec<i64> = (0..3000).map(|n| (n * 7919) % 1009).collect();
    for (at, number) in numbers.iter().enumerate() {
        put(&db, &format!("d{at:04}"), &json!([[at, number]]));
    }
    for (from, to) in [(0, 2999), (0, 0), (17, 18), (1, 2998), (1000, 2500), (2999, 2999)] {
        let mut expected_rows: Vec<i64> = numbers[from..=to].to_vec();
        let ends = (expected_rows[0], *expected_rows.last().unwrap());
        expected_rows.sort_unstable();
        expected_rows.dedup();
        let least: Vec<_> = expected_rows.iter().take(5).copied().collect();
        let greatest: Vec<_> = expected_rows.iter().rev().take(100).copied().collect();
        for (reducer, expected) in [
            (ProgramReducer::First, json!(ends.0)),
            (ProgramReducer::Last, json!(ends.1)),
            (ProgramReducer::Bottom(5), json!(least)),
            (ProgramReducer::Top(100), json!(greatest)),
        ] {
            let choice = RowChoice::Range(bound(json!(from), None, true), bound(json!(to), None, true));
            let reduced = view(&db, reducer).0.query().among(choice).reduce().unwrap().unwrap();
            assert_eq!(to_json(&reduced), expected, "{reducer:?} of {from} to {to}");
        }
    }
    for (name, expected) in [
        ("_first", Some(ProgramReducer::First)),
        ("_top_1", Some(ProgramReducer::Top(1))),
        ("_bottom_100", Some(ProgramReducer::Bottom(100))),
        ("_top_0", None),
        ("_top_101", None),
        ("_top_x", None),
        ("_min", None),
    ] {
        assert_eq!(ProgramReducer::built_in(name), expected, "{name}");
    }
}

#[test]
fn sums_that_grow_with_the_view_are_rejected() {
    let db = Database::in_memory();
    let counted = |n: usize| json!([[n, {format!("name {n} of a hundred and more letters {}", "x".repeat(100)): 1}]]);
    (0..20).for_each(|n| put(&db, &format!("d{n}"), &counted(n)));
    let (view, _) = view(&db, ProgramReducer::Sum);
    let sum = || to_json(&view.query().reduce().unwrap().unwrap());
    assert_eq!(sum().as_object().unwrap().len(), 20);
    (20..200).for_each(|n| put(&db, &format!("d{n}"), &counted(n)));
    assert_eq!(sum()["error"], "builtin_reduce_error");
    assert!(sum()["reason"].as_str().unwrap().contains("must shrink more rapidly"), "{}", sum());
    // Large sums of much larger input are allowed.
    let wide = |n: usize| json!([[n, {"a": vec![n; 2000]}]]);
    let db = Database::in_memory();
    (0..20).for_each(|n| put(&db, &format!("d{n}"), &wide(n)));
    let (view, _) = self::view(&db, ProgramReducer::Sum);
    assert_eq!(to_json(&view.query().reduce().unwrap().unwrap())["a"], json!(vec![190; 2000]));
}

#[test]
fn groups_by_level_within_ranges_in_both_directions() {
    let db = Database::in_memory();
    let mut expected = std::collections::BTreeMap::new();
    for n in 0..600_i64 {
        put(&db, &format!("d{n}"), &json!([[[n % 3, n % 5, n], n], ["text", 1]]));
        *expected.entry((n % 3, n % 5)).or_insert(0) += n;
    }
    let (view, _) = view(&db, ProgramReducer::Sum);
    let groups = |query: stemmadb::views::ProgramQuery, level| -> Vec<Json> {
        query
            .groups(level)
            .unwrap()
            .map(|group| group.map(|(key, sum)| json!([to_json(&key), to_json(&sum)])).unwrap())
            .collect()
    };
    let expected_rows: Vec<Json> = std::iter::once(json!(["text", 600]))
        .chain(expected.iter().map(|((a, b), sum)| json!([[a, b], sum])))
        .collect();
    assert_eq!(groups(view.query(), Some(2)), expected_rows);
    assert_eq!(groups(view.query().descending(true), Some(2)), expected_rows.iter().rev().cloned().collect::<Vec<_>>());
    assert_eq!(groups(view.query().skip(2).limit(3), Some(2)), expected_rows[2..5]);
    assert_eq!(groups(view.query(), Some(1)).len(), 4);
    assert_eq!(groups(view.query(), None).len(), 601);
    // A range that cuts groups at both ends.
    let choice = RowChoice::Range(bound(json!([0, 4, 300]), None, true), bound(json!([1, 1]), None, true));
    let from = (0..600).filter(|n| n % 3 == 0 && n % 5 == 4 && *n >= 300).sum::<i64>();
    let cut = groups(view.query().among(choice.clone()), Some(2));
    assert_eq!(cut, [json!([[0, 4], from]), json!([[1, 0], expected[&(1, 0)]])]);
    let whole = view.query().among(choice).reduce().unwrap().unwrap();
    assert_eq!(whole.as_i64().unwrap(), from + expected[&(1, 0)]);
}

#[test]
fn only_changed_documents_are_mapped_and_custom_reductions_see_all_rows() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.stemma");
    let mut model = std::collections::BTreeMap::new();
    let mut seed = 7_u64;
    let mut random = |bound: u64| {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (seed >> 33) % bound
    };
    let db = Database::open(&path).unwrap();
    let (opened, mapped) = view(&db, ProgramReducer::Custom);
    for round in 0..30 {
        for _ in 0..40 {
            let id = format!("d{:03}", random(200));
            let keys: Vec<Json> = (0..random(3)).map(|_| json!([random(50), random(9)])).collect();
            put(&db, &id, &json!(keys));
            model.insert(id, keys);
        }
        if round % 7 == 3 {
            let id = model.keys().next().unwrap().clone();
            let revision = *db.get(&id).unwrap().unwrap().revision();
            db.delete(&id, &revision).unwrap();
            model.remove(&id);
        }
        let before = mapped.load(Ordering::Relaxed);
        let found = rows(&opened, RowChoice::All, false);
        assert!(mapped.load(Ordering::Relaxed) - before <= 41, "only changed documents are mapped");
        let mut expected_rows: Vec<(u64, String, u64)> = model
            .iter()
            .flat_map(|(id, keys)| {
                keys.iter().map(move |row| (row[0].as_u64().unwrap(), id.clone(), row[1].as_u64().unwrap()))
            })
            .collect();
        expected_rows.sort_by(|a, b| (a.0, &a.1).cmp(&(b.0, &b.1)));
        let found: Vec<(u64, String, u64)> = found
            .iter()
            .map(|row| (row[0].as_u64().unwrap(), row[1].as_str().unwrap().to_owned(), row[2].as_u64().unwrap()))
            .collect();
        let concatenated = |rows: &[(u64, String, u64)]| -> String {
            rows.iter().map(|(key, id, value)| format!("{key}@{id}={value};")).collect()
        };
        let in_order =
            |rows: &[(u64, String, u64)]| rows.iter().map(|(key, id, _)| (*key, id.clone())).collect::<Vec<_>>();
        assert_eq!(in_order(&found), in_order(&expected_rows));
        let reduced = opened.query().reduce().unwrap();
        assert_eq!(reduced.map(|text| text.as_str().unwrap().to_owned()).unwrap_or_default(), concatenated(&found));
        let part: Vec<_> = found.iter().filter(|row| (10..30).contains(&row.0)).cloned().collect();
        let choice = RowChoice::Range(bound(json!(10), None, true), bound(json!(30), None, false));
        let reduced = opened.query().among(choice).reduce().unwrap();
        assert_eq!(reduced.map(|text| text.as_str().unwrap().to_owned()).unwrap_or_default(), concatenated(&part));
    }
    let all = rows(&opened, RowChoice::All, false);
    assert!(db.maintenance().check().unwrap().damages.is_empty());
    drop(opened);
    db.close().unwrap();
    let db = Database::open(&path).unwrap();
    let (opened, mapped) = view(&db, ProgramReducer::Custom);
    assert_eq!(rows(&opened, RowChoice::All, false), all);
    assert_eq!(mapped.load(Ordering::Relaxed), 0, "no document is mapped again");
    assert_eq!(db.views().names().unwrap(), ["rows Custom"]);
    db.views().remove("rows Custom").unwrap();
    assert!(db.views().names().unwrap().is_empty());
    assert!(db.maintenance().check().unwrap().damages.is_empty());
}

#[test]
fn long_keys_are_sorted_and_grouped() {
    let db = Database::in_memory();
    let long = |first: &str, last: &str| format!("{first}{}{last}", "x".repeat(2000));
    put(&db, "1", &json!([[long("a", "1"), 1], [long("a", "2"), 2]]));
    put(&db, "2", &json!([[long("b", ""), 3], [["p", long("c", ""), "q"], 4], ["b", 5]]));
    put(&db, &"i".repeat(1000), &json!([["k", 6], [long("k", ""), 7]]));
    let (view, _) = view(&db, ProgramReducer::Sum);
    let found = rows(&view, RowChoice::All, false);
    let values: Vec<i64> = found.iter().map(|row| row[2].as_i64().unwrap()).collect();
    assert_eq!(values[2..], [5, 3, 6, 7, 4]);
    assert_eq!(found[3][0], long("b", ""), "the whole key is returned");
    for (key, sum) in
        [(json!(long("a", "1")), 1), (json!(long("a", "2")), 2), (json!(["p", long("c", ""), "q"]), 4), (json!("k"), 6)]
    {
        let reduced = view.query().among(RowChoice::Keys(vec![value(&key)])).reduce().unwrap();
        assert_eq!(reduced, Some(sum.into()), "{key}");
    }
    assert_eq!(view.query().groups(None).unwrap().count(), 7);
    assert!(db.maintenance().check().unwrap().damages.is_empty());
}

#[test]
fn unmappable_documents_have_no_rows_and_failing_programs_store_nothing() {
    let db = Database::in_memory();
    put(&db, "good", &json!([[1, 1]]));
    db.insert("bad", &json!({"stop": true})).unwrap();
    db.insert("_design/x", &json!({"rows": [[2, 2]]})).unwrap();
    let (opened, _) = view(&db, ProgramReducer::Sum);
    assert_eq!(rows(&opened, RowChoice::All, false).len(), 1);
    assert_eq!(opened.info().unwrap().failed_count, 1);

    struct Failing;
    impl ViewProgram for Failing {
        fn name(&self) -> &str {
            "failing"
        }
        fn map(&self, _: &[&Document]) -> Result<Vec<Result<EmittedRows>>> {
            Err(Error::stopped("it took too long"))
        }
    }
    let failing = db.views().open_program(Arc::new(Failing)).unwrap();
    assert_eq!(failing.query().rows().err().unwrap().kind(), ErrorKind::Stopped);
    assert_eq!(failing.query().access(Access::NoUpdate).rows().unwrap().count(), 0);
    assert!(failing.query().access(Access::NoUpdate).rows().unwrap().is_stale());
}

/// [`Rows`] stored by partition.
struct PartitionedRows(Rows);

impl ViewProgram for PartitionedRows {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn map(&self, documents: &[&Document]) -> Result<Vec<Result<EmittedRows>>> {
        self.0.map(documents)
    }

    fn is_partitioned(&self) -> bool {
        true
    }

    fn reducer(&self) -> ProgramReducer {
        self.0.reducer()
    }

    fn reduce(&self, rows: &[ProgramRow]) -> Result<Value> {
        self.0.reduce(rows)
    }

    fn rereduce(&self, parts: &[Value]) -> Result<Value> {
        self.0.rereduce(parts)
    }
}

#[test]
fn partitions_are_queried_separately() {
    let db = Database::in_memory();
    let partitions = ["a", "a9", "b", &"long".repeat(100)];
    for partition in partitions {
        for (at, key) in ascending().iter().enumerate() {
            let rows = json!([[key, at], [[partition, at / 10, at], 1]]);
            put(&db, &format!("{partition}:{at:03}"), &rows);
        }
    }
    let whole = Database::in_memory();
    for (at, key) in ascending().iter().enumerate() {
        put(&whole, &format!("a:{at:03}"), &json!([[key, at], [["a", at / 10, at], 1]]));
    }
    let program = Rows { name: "p".into(), reducer: ProgramReducer::Custom, mapped: Arc::default() };
    let view_of = |db: &Database, program| db.views().open_program(Arc::new(PartitionedRows(program))).unwrap();
    let (opened, _) = view(&whole, ProgramReducer::Custom);
    let partitioned = view_of(&db, program);
    let a = |choice: &RowChoice| partitioned.query().within("a").among(choice.clone());
    let alone = |choice: &RowChoice| opened.query().among(choice.clone());
    for choice in [
        RowChoice::All,
        RowChoice::Range(bound(json!(-7), None, true), None),
        RowChoice::Range(None, bound(json!("a"), Some("a:013"), true)),
        RowChoice::Range(bound(json!(["a", 1]), None, true), bound(json!(["a", 1, {}]), None, false)),
        RowChoice::Keys(vec![value(&json!("á")), value(&json!(0)), value(&json!("missing"))]),
    ] {
        for descending in [false, true] {
            let all = |query: stemmadb::views::ProgramQuery| {
                let rows = query.descending(descending).skip(1).rows().unwrap();
                (rows.total(), rows.offset(), rows.collect::<Result<Vec<_>>>().unwrap())
            };
            assert_eq!(all(a(&choice)), all(alone(&choice)), "{choice:?}");
        }
        assert_eq!(a(&choice).reduce().unwrap(), alone(&choice).reduce().unwrap(), "{choice:?}");
        for level in [None, Some(1), Some(2)] {
            let groups =
                |query: stemmadb::views::ProgramQuery| query.groups(level).unwrap().collect::<Result<Vec<_>>>();
            assert_eq!(groups(a(&choice)).unwrap(), groups(alone(&choice)).unwrap(), "{choice:?} by {level:?}");
        }
    }
    for partition in partitions {
        assert_eq!(partitioned.query().within(partition).rows().unwrap().count(), 2 * ascending().len());
    }
    assert_eq!(partitioned.query().within("c").rows().unwrap().count(), 0);
    assert!(db.maintenance().check().unwrap().damages.is_empty());
}
