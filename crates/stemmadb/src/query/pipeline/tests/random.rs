//! Random pipelines, whose rows must be those of the naive evaluator.

use proptest::prelude::*;

use super::{json, naive, run};
use crate::query::tests::memory::Stored;
use crate::query::tests::{arbitrary::single, cases, filled, policy};
use crate::value::{Object, Value, collate};

fn scalar() -> BoxedStrategy<Value> {
    prop_oneof![
        6 => (-2_i64..4).prop_map(Value::from),
        1 => Just(Value::from(1.5)),
        3 => prop::sample::select(vec!["x", "Yz", "", "éa"]).prop_map(Value::from),
        1 => Just(Value::Null),
    ]
    .boxed()
}

fn number() -> BoxedStrategy<Value> {
    prop_oneof![5 => (-2_i64..4).prop_map(Value::from), 1 => Just(Value::from(0.5))].boxed()
}

/// A document: `n` is a number and `t` a text if they are there; `a` may be anything.
fn body() -> BoxedStrategy<Value> {
    let line = (number(), prop::option::of(scalar())).prop_map(|(p, q)| {
        let mut line = Object::from_iter([("p", p)]);
        q.into_iter().for_each(|q| drop(line.insert("q", q)));
        Value::from(line)
    });
    let lines = prop::collection::vec(line, 0..3).prop_map(Value::Array);
    let tags = prop_oneof![4 => prop::collection::vec(scalar(), 0..3).prop_map(Value::Array), 1 => scalar()];
    let text = prop::sample::select(vec!["x", "Yz", "", "éa"]).prop_map(Value::from);
    let optional = |strategy: BoxedStrategy<Value>| prop::option::weighted(0.8, strategy);
    let id = (0_usize..8).prop_map(|at| Value::from(crate::query::tests::id_of(at)));
    let fields = (
        optional(number()),
        optional(text.boxed()),
        optional(scalar()),
        optional(tags.boxed()),
        optional(lines.boxed()),
        optional(id.boxed()),
    );
    fields
        .prop_map(|(n, t, a, tags, lines, other)| {
            let fields = [("n", n), ("t", t), ("a", a), ("tags", tags), ("lines", lines), ("other", other)];
            Value::from(fields.into_iter().filter_map(|(name, value)| Some((name, value?))).collect::<Object>())
        })
        .boxed()
}

fn path() -> BoxedStrategy<String> {
    prop::sample::select(vec![
        "n",
        "n",
        "t",
        "a",
        "a",
        "tags",
        "lines",
        "tags.0",
        "lines.0.p",
        "_id",
        "at",
        "x",
        "other",
    ])
    .prop_map(str::to_owned)
    .boxed()
}

fn leaf() -> BoxedStrategy<Value> {
    prop_oneof![
        5 => path().prop_map(|path| Value::from(format!("${path}"))),
        1 => Just(Value::from("$lines[].p")),
        1 => Just(Value::from("$lines[].q")),
        2 => number(),
    ]
    .boxed()
}

fn call(name: &str, arguments: Vec<Value>) -> Value {
    single(name, Value::Array(arguments))
}

fn expression() -> BoxedStrategy<Value> {
    let numeric = prop::sample::select(vec!["$add", "$multiply", "$subtract", "$divide", "$mod"]);
    let numeric_part = prop_oneof![3 => Just(Value::from("$n")), 1 => Just(Value::from("$lines.0.p")), 2 => number()];
    let arithmetic = (numeric, numeric_part.clone(), numeric_part)
        .prop_map(|(name, left, right)| call(name, vec![left, right]))
        .boxed();
    let compared = prop::sample::select(vec!["$eq", "$ne", "$gt", "$gte", "$lt", "$lte", "$and", "$or", "$ifNull"]);
    let text = prop::sample::select(vec!["$toLower", "$toUpper"]);
    prop_oneof![3 => leaf(), 2 => arithmetic]
        .prop_recursive(2, 8, 2, move |inner| {
            prop_oneof![
                4 => (compared.clone(), inner.clone(), inner.clone())
                    .prop_map(|(name, left, right)| call(name, vec![left, right])),
                1 => inner.clone().prop_map(|part| call("$not", vec![part])),
                2 => (inner.clone(), inner.clone(), inner.clone()).prop_map(|(a, b, c)| call("$cond", vec![a, b, c])),
                1 => text.clone().prop_map(|name| single(name, Value::from("$t"))),
                1 => Just(json(r#"{"$substr": ["$t", 1, 2]}"#)),
                1 => Just(json(r#"{"$concat": ["$t", "_", "$t"]}"#)),
                1 => Just(json(r#"{"$size": {"$ifNull": ["$lines", []]}}"#)),
                1 => (-3_i64..3).prop_map(|at| call("$arrayElemAt", vec![Value::from("$lines"), at.into()])),
                1 => inner.clone().prop_map(|part| call("$in", vec![part, json(r#"[1, "x", null]"#)])),
                1 => (inner.clone(), inner.clone()).prop_map(|(a, b)| Object::from_iter([("p", a), ("q", b)]).into()),
                1 => prop::collection::vec(inner, 0..3).prop_map(Value::Array),
            ]
        })
        .boxed()
}

fn group() -> BoxedStrategy<Value> {
    let functions = vec!["$sum", "$avg", "$min", "$max", "$first", "$last", "$push", "$addToSet"];
    let any = (prop::sample::select(functions), expression()).prop_map(|(name, value)| single(name, value));
    // What the index answers.
    let indexed = (prop::sample::select(vec!["$sum", "$avg"]), prop::sample::select(vec!["$n", "$a", "$lines.0.p"]))
        .prop_map(|(name, path)| single(name, Value::from(path)));
    let count = prop_oneof![Just(json(r#"{"$sum": 1}"#)), Just(json(r#"{"$count": {}}"#))];
    let plain_key = prop_oneof![1 => Just(Value::Null), 3 => path().prop_map(|path| Value::from(format!("${path}")))];
    let plain = (plain_key, prop::collection::vec(prop_oneof![indexed, count], 0..3));
    let general = (expression(), prop::collection::vec(any, 0..3));
    prop_oneof![2 => plain, 3 => general]
        .prop_map(|(key, fields)| {
            let named = ["n", "t", "a"].into_iter().zip(fields);
            single("$group", Object::from_iter([("_id", key)].into_iter().chain(named)).into())
        })
        .boxed()
}

fn stage() -> BoxedStrategy<Value> {
    let selectors = vec![
        r#"{"n": {"$gt": 0}}"#,
        r#"{"a": {"$ne": 1}}"#,
        r#"{"tags": {"$in": ["x", 1]}}"#,
        r#"{"lines[].p": {"$gte": 1}}"#,
        r#"{"$or": [{"n": 1}, {"t": "x"}]}"#,
        r#"{"lines.1": {"$exists": false}}"#,
    ];
    let matching = prop::sample::select(selectors).prop_map(|selector| single("$match", json(selector)));
    let direction = prop::sample::select(vec![1_i64, -1]);
    let sorting = prop::collection::vec((path(), direction), 1..3)
        .prop_map(|keys| single("$sort", keys.into_iter().collect::<Object>().into()));
    let unwinding = (prop::sample::select(vec!["tags", "lines", "a"]), any::<bool>()).prop_map(|(path, keeps)| {
        let mut unwind = Object::from_iter([("path", format!("${path}")), ("includeArrayIndex", "at".to_owned())]);
        if keeps {
            unwind.insert("preserveNullAndEmptyArrays", true);
        }
        single("$unwind", unwind.into())
    });
    let computing = (prop::sample::select(vec!["n", "a", "x"]), expression());
    let adding = computing.clone().prop_map(|(name, value)| single("$addFields", single(name, value)));
    let projecting = computing.prop_map(|(name, value)| {
        let value = if value.as_number().is_some() { single("v", value) } else { value };
        single("$project", Object::from_iter([("_id", Value::from(1)), ("t", 1.into()), (name, value)]).into())
    });
    let lookup = (path(), prop::sample::select(vec!["_id", "n", "tags", "a"]), any::<bool>());
    let looking_up = lookup.prop_map(|(local, foreign, is_narrow)| {
        let selector = json(if is_narrow { r#"{"n": {"$gte": 0}}"# } else { "{}" });
        let fields = [("localField", Value::from(local)), ("foreignField", foreign.into()), ("as", "x".into())];
        single("$lookup", Object::from_iter(fields.into_iter().chain([("selector", selector)])).into())
    });
    prop_oneof![
        4 => matching,
        3 => sorting,
        3 => unwinding,
        4 => group(),
        3 => adding,
        2 => projecting,
        1 => looking_up,
        1 => (1_u64..6).prop_map(|count| single("$limit", count.into())),
        1 => (0_u64..4).prop_map(|count| single("$skip", count.into())),
        1 => Just(json(r#"{"$count": "n"}"#)),
        1 => path().prop_map(|path| single("$sortByCount", Value::from(format!("${path}")))),
        1 => prop::sample::select(vec!["a", "x", "lines"]).prop_map(|name| single("$unset", Value::from(name))),
        1 => Just(json(r#"{"$replaceWith": {"n": "$a", "lines": "$lines", "t": "$$ROOT.t"}}"#)),
    ]
    .boxed()
}

/// Sorts before a limit or skip of documents in any order.
fn ordered(stages: Vec<Value>) -> Vec<Value> {
    let mut ordered = Vec::new();
    let mut is_unordered = true;
    for stage in stages {
        let name = stage.as_object().unwrap().names().next().unwrap().to_owned();
        if is_unordered && matches!(name.as_str(), "$limit" | "$skip") {
            ordered.push(json(r#"{"$sort": {"_id": 1}}"#));
        }
        is_unordered &= name == "$match";
        ordered.push(stage);
    }
    ordered
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(3072), max_shrink_iters: 20_000, ..ProptestConfig::default() })]

    #[test]
    fn pipelines_equal_the_naive_evaluator(
        policy in policy(),
        bodies in prop::collection::vec(body(), 0..10),
        stages in prop::collection::vec(stage(), 1..5),
    ) {
        let source = filled(policy, &bodies);
        let documents: Vec<Value> = source.documents.values().map(whole).collect();
        let stages = ordered(stages);
        let pipeline = Value::Array(stages.clone());
        match (run(&source, &pipeline), naive::run(&documents, &stages)) {
            (Ok(found), Ok(expected)) => {
                let (found, expected) = (sorted_identity(found), sorted_identity(expected));
                prop_assert!(collate::compare(&found, &expected).is_eq(), "{pipeline}\n{found}\n{expected}");
            }
            // A limit can keep the naive evaluator's error from occurring.
            (Ok(_), Err(_)) => prop_assert!(pipeline.to_string().contains("$limit"), "{pipeline} is not refused"),
            (Err(error), expected) => {
                prop_assert!(expected.is_err(), "{pipeline}: {error}");
                prop_assert!(error.message().starts_with("stage "), "{error}");
            }
        }
    }
}

/// The document with its `_id` and `_rev`, which come first.
fn whole(stored: &Stored) -> Value {
    let identity = [("_id", Value::from(stored.id.as_str())), ("_rev", stored.revision.to_string().into())];
    let mut whole = Object::from_iter(identity);
    whole.extend(stored.body.as_object().into_iter().flatten().map(|(name, value)| (name, value.clone())));
    whole.into()
}

/// The rows with their fields in one order.
fn sorted_identity(rows: Vec<Value>) -> Value {
    fn normalized(value: Value) -> Value {
        match value {
            Value::Object(object) => {
                let mut fields: Vec<(String, Value)> =
                    object.into_iter().map(|(name, value)| (name.as_str().to_owned(), normalized(value))).collect();
                fields.sort_by(|a, b| a.0.cmp(&b.0));
                Value::from(fields.into_iter().collect::<Object>())
            }
            Value::Array(elements) => Value::Array(elements.into_iter().map(normalized).collect()),
            scalar => scalar,
        }
    }
    normalized(Value::Array(rows))
}
