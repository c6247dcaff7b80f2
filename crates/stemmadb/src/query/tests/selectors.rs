//! Tests of selectors by example, of their errors, and of the packed matcher against the reference evaluator.

use proptest::prelude::*;

use super::arbitrary;
use crate::ErrorKind;
use crate::query::language::document::DocumentView;
use crate::query::language::matcher;
use crate::query::language::normal::Normal;
use crate::query::{Query, Selector, all_of, any_of, element, field, not};
use crate::revision::Revision;
use crate::value::{Kind, PackedValue, Shapes, Value, pack};

fn json(text: &str) -> Value {
    Value::parse(text.as_bytes()).expect("good JSON")
}

fn revision() -> Revision {
    Revision::of_edit(None, false, b"content")
}

/// The document with its `_id` and `_rev`.
fn with_identity(body: &Value, id: &str) -> Value {
    let mut whole = body.clone();
    let object = whole.as_object_mut().expect("bodies are objects");
    object.insert("_id", id);
    object.insert("_rev", revision().to_string());
    whole
}

/// Whether a selector matches, according to both evaluators.
fn matches(selector: &Selector, body: &Value, id: &str) -> bool {
    let reference = selector.matches(&with_identity(body, id)).expect("a good selector");
    let normal = Normal::of(selector.node().expect("a good selector")).expect("a good selector");
    let shapes = Shapes::new();
    let mut bytes = Vec::new();
    pack(body, &shapes, &mut bytes).expect("a good body");
    let body = PackedValue::new(&bytes, &shapes).expect("packed here");
    let document = DocumentView { id, revision: revision(), body };
    let packed = matcher::matches(&normal, document).expect("packed here");
    assert_eq!(reference, packed, "{selector} on {id}: the reference evaluator and the packed matcher disagree");
    reference
}

#[track_caller]
fn assert_matches(selector: &str, yes: &[&str], no: &[&str]) {
    let selector = Selector::parse_text(selector).expect("a good selector");
    let printed = Selector::parse(&selector.to_value().expect("good")).expect("printed by us");
    assert_eq!(selector, printed);
    for body in yes {
        assert!(matches(&selector, &json(body), "id"), "{selector} matches {body}");
    }
    for body in no {
        assert!(!matches(&selector, &json(body), "id"), "{selector} does not match {body}");
    }
}

#[test]
fn values_and_nested_objects_mean_equality() {
    assert_matches(r#"{"a": 1}"#, &[r#"{"a": 1}"#, r#"{"a": 1.0}"#], &[r#"{"a": 2}"#, r#"{"a": [1]}"#, "{}"]);
    assert_matches(r#"{"a": {"b": 1}}"#, &[r#"{"a": {"b": 1, "c": 2}}"#], &[r#"{"a": 1}"#, r#"{"a": {"b": 2}}"#]);
    assert_matches(r#"{"a": {"$eq": {"b": 1}}}"#, &[r#"{"a": {"b": 1}}"#], &[r#"{"a": {"b": 1, "c": 2}}"#]);
    assert_matches(r#"{"a": {}}"#, &[r#"{"a": {}}"#], &[r#"{"a": {"b": 1}}"#, "{}"]);
    assert_matches(r#"{"a": []}"#, &[r#"{"a": []}"#], &[r#"{"a": [1]}"#]);
    assert_matches(r#"{"a\\.b": 1}"#, &[r#"{"a.b": 1}"#], &[r#"{"a": {"b": 1}}"#]);
    assert_matches(r#"{"\\$a": 1}"#, &[r#"{"$a": 1}"#], &[r#"{"a": 1}"#]);
    assert_matches(
        r#"{"a.1.b": 1}"#,
        &[r#"{"a": [0, {"b": 1}]}"#, r#"{"a": {"1": {"b": 1}}}"#],
        &[r#"{"a": [{"b": 1}]}"#],
    );
    assert_matches("{}", &["{}", r#"{"a": 1}"#], &[]);
}

#[test]
fn comparisons_cross_types() {
    let all = [r#"{"a": null}"#, r#"{"a": false}"#, r#"{"a": 7}"#, r#"{"a": "x"}"#, r#"{"a": []}"#, r#"{"a": {}}"#];
    assert_matches(r#"{"a": {"$gt": null}}"#, &all[1..], &[all[0], "{}"]);
    assert_matches(r#"{"a": {"$lt": "a"}}"#, &all[..3], &all[3..]);
    assert_matches(r#"{"a": {"$gte": 7, "$lt": "y"}}"#, &all[2..4], &[all[0], all[5]]);
    assert_matches(r#"{"a": {"$ne": 7}}"#, &[all[0], all[3]], &[all[2], "{}"]);
    assert_matches(r#"{"a": 9007199254740993}"#, &[r#"{"a": 9007199254740993}"#], &[r#"{"a": 9007199254740992.0}"#]);
}

#[test]
fn negation_does_not_match_missing_fields() {
    assert_matches(r#"{"$not": {"a": {"$gt": 5}}}"#, &[r#"{"a": 5}"#], &["{}", r#"{"a": 6}"#]);
    assert_matches(r#"{"a": {"$not": {"$regex": "^x"}}}"#, &[r#"{"a": "y"}"#, r#"{"a": 1}"#], &["{}", r#"{"a": "x"}"#]);
    assert_matches(
        r#"{"$nor": [{"a": 1}, {"b": 1}]}"#,
        &[r#"{"a": 2, "b": 2}"#],
        &[r#"{"a": 2}"#, r#"{"a": 1, "b": 2}"#],
    );
    assert_matches(r#"{"$not": {"a": {"$exists": true}}}"#, &["{}"], &[r#"{"a": null}"#]);
    assert_matches(
        r#"{"a": {"$nin": [1, 2]}}"#,
        &[r#"{"a": 3}"#, r#"{"a": [3]}"#, r#"{"a": []}"#],
        &["{}", r#"{"a": [1]}"#],
    );
    assert_matches(
        r#"{"$not": {"$and": [{"a": {"$gt": 1}}, {"b": {"$exists": true}}]}}"#,
        &[r#"{"a": 1, "b": 1}"#, r#"{"a": 5}"#],
        &[r#"{"a": 5, "b": 1}"#],
    );
}

#[test]
fn missing_matches_only_fields_of_objects() {
    assert_matches(
        r#"{"a.b": {"$exists": false}}"#,
        &["{}", r#"{"a": {}}"#],
        &[r#"{"a": {"b": null}}"#, r#"{"a": 5}"#, r#"{"a": []}"#],
    );
    assert_matches(r#"{"a.b": {"$exists": true}}"#, &[r#"{"a": {"b": null}}"#], &["{}", r#"{"a": 5}"#]);
}

#[test]
fn positions_that_an_array_lacks_are_missing() {
    let without = ["{}", r#"{"a": []}"#, r#"{"a": [0]}"#, r#"{"a": {}}"#];
    let with = [r#"{"a": [0, null]}"#, r#"{"a": [0, 1, 2]}"#, r#"{"a": {"1": 0}}"#];
    // A scalar has neither fields nor positions, as with field names.
    let no_container = r#"{"a": 5}"#;
    assert_matches(r#"{"a.1": {"$exists": false}}"#, &without, &[&with[..], &[no_container]].concat());
    assert_matches(r#"{"$not": {"a.1": {"$exists": true}}}"#, &without, &[&with[..], &[no_container]].concat());
    assert_matches(r#"{"$not": {"a.1": {"$exists": false}}}"#, &with, &[&without[..], &[no_container]].concat());
    assert_matches(r#"{"a.1": {"$exists": true}}"#, &with, &[&without[..], &[no_container]].concat());
    assert_matches(
        r#"{"a.0.1.b": {"$exists": false}}"#,
        &[r#"{"a": []}"#, r#"{"a": [[]]}"#, r#"{"a": [[0, {}]]}"#],
        &[r#"{"a": [[0, {"b": 1}]]}"#, r#"{"a": [[0, 1]]}"#, r#"{"a": ["x"]}"#],
    );
    assert_matches(
        r#"{"a": {"$elemMatch": {"1": {"$exists": false}}}}"#,
        &[r#"{"a": [[0]]}"#, r#"{"a": [[0, 1], [0]]}"#],
        &[r#"{"a": [[0, 1]]}"#, r#"{"a": []}"#],
    );
    // Other conditions on a missing position stay false, negated or not.
    assert_matches(r#"{"a.1": {"$ne": 7}}"#, &[with[0], with[1], with[2]], &[&without[..], &[no_container]].concat());
}

#[test]
fn operators_on_arrays() {
    assert_matches(
        r#"{"a": {"$in": [1, "x"]}}"#,
        &[r#"{"a": 1}"#, r#"{"a": [0, "x"]}"#],
        &[r#"{"a": 2}"#, r#"{"a": [[1]]}"#],
    );
    assert_matches(r#"{"a": {"$in": [[1]]}}"#, &[r#"{"a": [[1]]}"#], &[r#"{"a": [1]}"#]);
    assert_matches(r#"{"a": {"$all": [1, 2]}}"#, &[r#"{"a": [2, 3, 1]}"#], &[r#"{"a": [1]}"#, r#"{"a": 1}"#]);
    assert_matches(r#"{"a": {"$all": [[1, 2]]}}"#, &[r#"{"a": [1, 2]}"#, r#"{"a": [[1, 2]]}"#], &[r#"{"a": [2, 1]}"#]);
    assert_matches(r#"{"a": {"$all": []}}"#, &[], &[r#"{"a": []}"#, r#"{"a": [1]}"#]);
    assert_matches(r#"{"a": {"$size": 2}}"#, &[r#"{"a": [1, 2]}"#], &[r#"{"a": [1]}"#, r#"{"a": {"x": 1, "y": 2}}"#]);
    assert_matches(
        r#"{"a": {"$elemMatch": {"$gte": 80, "$lt": 85}}}"#,
        &[r#"{"a": [70, 82]}"#],
        &[r#"{"a": [70, 90]}"#, r#"{"a": 82}"#, r#"{"a": []}"#],
    );
    assert_matches(
        r#"{"a": {"$elemMatch": {"b": 1, "c.d": {"$gt": 2}}}}"#,
        &[r#"{"a": [{"b": 1, "c": {"d": 3}}]}"#],
        &[r#"{"a": [{"b": 1}, {"c": {"d": 3}}]}"#],
    );
    assert_matches(r#"{"a": {"$allMatch": {"$gt": 1}}}"#, &[r#"{"a": [2, 3]}"#], &[r#"{"a": []}"#, r#"{"a": [1, 2]}"#]);
    assert_matches(
        r#"{"a": {"$keyMapMatch": {"$beginsWith": "x"}}}"#,
        &[r#"{"a": {"x1": 0}}"#],
        &[r#"{"a": {}}"#, r#"{"a": ["x"]}"#],
    );
}

#[test]
fn operators_on_scalars() {
    assert_matches(
        r#"{"a": {"$mod": [4, 1]}}"#,
        &[r#"{"a": 5}"#, r#"{"a": 5.0}"#],
        &[r#"{"a": 5.5}"#, r#"{"a": -3}"#, r#"{"a": "5"}"#],
    );
    // The remainder has the sign of the integer, as in C, Erlang and MongoDB.
    assert_matches(r#"{"a": {"$mod": [4, -3]}}"#, &[r#"{"a": -3}"#, r#"{"a": -7}"#], &[r#"{"a": 1}"#, r#"{"a": 5}"#]);
    assert_matches(r#"{"a": {"$mod": [-4, 1]}}"#, &[r#"{"a": 5}"#, r#"{"a": 1}"#], &[r#"{"a": -3}"#, r#"{"a": -5}"#]);
    assert_matches(r#"{"a": {"$mod": [4, 0]}}"#, &[r#"{"a": 0}"#, r#"{"a": -8}"#], &[r#"{"a": 2}"#, "{}"]);
    assert_matches(r#"{"a": {"$type": "boolean"}}"#, &[r#"{"a": false}"#], &[r#"{"a": 0}"#, "{}"]);
    assert_matches(r#"{"a": {"$beginsWith": "Jo"}}"#, &[r#"{"a": "John"}"#], &[r#"{"a": "jo"}"#, r#"{"a": ["John"]}"#]);
    assert_matches(r#"{"a": {"$regex": "o.n"}}"#, &[r#"{"a": "John"}"#], &[r#"{"a": "Jon"}"#]);
}

#[test]
fn empty_and_or_nor_are_no_condition() {
    for selector in [r#"{"$and": []}"#, r#"{"$or": []}"#, r#"{"$nor": []}"#, r#"{"$and": [{}]}"#] {
        assert_matches(selector, &["{}", r#"{"a": 1}"#], &[]);
    }
    assert!(!matches(&any_of([]), &json("{}"), "id"));
    assert!(matches(&all_of([]), &json("{}"), "id"));
    assert_eq!(Selector::nothing().to_string(), r#"{"_id":{"$in":[]}}"#);
}

#[test]
fn ids_and_revisions_are_fields() {
    let yes = |selector: &str| matches(&Selector::parse_text(selector).expect("good"), &json(r#"{"a": 1}"#), "book:7");
    assert!(yes(r#"{"_id": "book:7"}"#));
    assert!(yes(r#"{"_id": {"$gt": null, "$beginsWith": "book:"}}"#));
    assert!(yes(r#"{"_rev": {"$regex": "^1-"}}"#));
    assert!(!yes(r#"{"_id": {"$exists": false}}"#));
    assert!(!yes(r#"{"_id.a": {"$exists": false}}"#));
}

#[test]
fn rust_functions_and_mango_build_equal_selectors() {
    let cases: [(Selector, &str); 10] = [
        (field("year").ge(1960), r#"{"year":{"$gte":1960}}"#),
        (field("year").ge(1960).and(field("year").lt(1970)), r#"{"year":{"$gte":1960,"$lt":1970}}"#),
        (field("a").eq(1).and(field("b.c").eq("x")), r#"{"a":1,"b.c":"x"}"#),
        (field("a").eq(1).or(not(field("b").exists())), r#"{"$or":[{"a":1},{"$not":{"b":{"$exists":true}}}]}"#),
        (not(field("a").eq(1).or(field("b").missing())), r#"{"$nor":[{"a":1},{"b":{"$exists":false}}]}"#),
        (field("tags").contains("x"), r#"{"tags":{"$elemMatch":{"$eq":"x"}}}"#),
        (field("tags").contains_all(["x", "y"]), r#"{"tags":{"$all":["x","y"]}}"#),
        (
            field("items").elem_match(field("price").gt(5).and(element().is_type(Kind::Object))),
            r#"{"items":{"$elemMatch":{"price":{"$gt":5},"$type":"object"}}}"#,
        ),
        (field("$x").none_of([1, 2]), r#"{"\\$x":{"$nin":[1,2]}}"#),
        (field("a").eq(1).and(field("a").eq(2)), r#"{"$and":[{"a":1},{"a":2}]}"#),
    ];
    for (selector, text) in cases {
        assert_eq!(selector.to_string(), text);
        assert_eq!(Selector::parse_text(text).expect("good"), selector);
    }
}

#[test]
fn invalid_selectors_report_the_field_and_operator() {
    let cases = [
        ("[]", "a selector is an object, not an array"),
        (r#"{"a": {"$gtt": 1}}"#, "the field a: unknown operator $gtt"),
        (r#"{"a": {"b": {"$where": "x"}}}"#, "the field a.b: the operator $where is not supported"),
        (r#"{"$gt": 1}"#, "the operator $gt is at the top level, without a field"),
        (r#"{"$and": {"a": 1}}"#, "the selector: $and needs an array of selectors, not an object"),
        (r#"{"$or": [1]}"#, "the selector: $or needs selectors in its array, not a number"),
        (r#"{"a": {"$not": 1}}"#, "the field a: $not needs an object, not a number"),
        (r#"{"a": {"$in": 1}}"#, "the field a: $in needs an array of values, not a number"),
        (r#"{"a": {"$exists": 1}}"#, "the field a: $exists needs true or false, not a number"),
        (r#"{"a": {"$type": "text"}}"#, "the field a: $type does not know \"text\""),
        (r#"{"a": {"$mod": [0, 1]}}"#, "the field a: $mod divides by zero"),
        (r#"{"a": {"$mod": [2.5, 1]}}"#, "the field a: $mod needs an array of two whole numbers, not an array"),
        (r#"{"a": {"$size": -1}}"#, "the field a: $size needs a whole number from 0, not a number"),
        (r#"{"a": {"$elemMatch": 5}}"#, "the field a: $elemMatch needs an object, not a number"),
    ];
    for (text, message) in cases {
        let error = Selector::parse_text(text).expect_err(text);
        assert_eq!((error.kind(), error.message()), (ErrorKind::Invalid, message));
    }
    let error = Selector::parse_text(r#"{"a": {"$gtt": 1}}"#).expect_err("unknown");
    assert!(error.hint().expect("a hint").contains("did you mean $gt?"), "{error:?}");
    for text in [r#"{"": 1}"#, r#"{"a..b": 1}"#, r#"{"a": {"$regex": "("}}"#] {
        assert_eq!(Selector::parse_text(text).expect_err(text).kind(), ErrorKind::Invalid);
    }
    for wrong in [field("a..b").eq(1), field("a").matches_regex("("), field("a").modulo(0, 1), element().eq(1)] {
        let outcome = wrong.check().and_then(|()| Normal::of(wrong.node().expect("checked")).map(|_| ()));
        assert_eq!(outcome.expect_err("wrong").kind(), ErrorKind::Invalid);
    }
}

#[test]
fn selectors_are_bounded() {
    let deep = |open: &str, close: &str, depth: usize| format!("{}1{}", open.repeat(depth), close.repeat(depth));
    for (open, close) in [(r#"{"a":"#, "}"), (r#"{"$not":{"a":"#, "}}"), (r#"{"a":{"$elemMatch":{"b":"#, "}}}")] {
        assert!(Selector::parse_text(&deep(open, close, 20)).is_ok(), "{open}");
        assert!(Selector::parse_text(&deep(open, close, 200)).is_err(), "{open}");
    }
    let negated = (0..100_000).fold(field("a").eq(1), |selector, _| not(selector));
    assert!(negated.check().is_err());
    let mut nested = Value::from(1);
    for _ in 0..65 {
        nested = arbitrary::single("$not", arbitrary::single("a", nested));
    }
    assert!(Selector::parse(&nested).expect_err("too deep").message().contains("64 levels"));
    let joined = |count: i64| (0..count).fold(field("a").eq(1), |selector, at| selector.or(field("a").eq(at)));
    assert!(joined(10_000).check().is_ok(), "adding one by one makes no levels");
    assert!(joined(20_000).check().is_err());
    assert!(any_of((0..10_000).map(|at| field("a").eq(at))).check().is_ok());
    assert!(any_of((0..20_000).map(|at| field("a").eq(at))).check().is_err());
    assert!(field("a").one_of(0..65_536).check().is_ok());
    assert!(field("a").one_of(0..65_537).check().is_err());
    assert!(all_of((0..64).map(|_| field("a").matches_regex("x"))).check().is_ok());
    assert!(all_of((0..65).map(|_| field("a").matches_regex("x"))).check().is_err());
    let nested = (0..1000).fold(Value::Null, |inner, _| Value::Array(vec![inner]));
    assert!(field("a").eq(nested).check().is_err());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4096, ..ProptestConfig::default() })]

    #[test]
    fn packed_matcher_equals_the_reference_evaluator(
        selector in arbitrary::selector(),
        bodies in prop::collection::vec(arbitrary::body(), 1..6),
        id in "[ab]{1,2}",
    ) {
        let selector = Selector::parse(&selector).expect("a good selector");
        for body in &bodies {
            matches(&selector, body, &id);
        }
    }

    #[test]
    fn printed_selectors_parse_to_equal_selectors(selector in arbitrary::selector()) {
        let parsed = Selector::parse(&selector).expect("a good selector");
        let printed = parsed.to_value().expect("a good selector");
        prop_assert_eq!(Selector::parse(&printed).expect("printed by us"), parsed);
    }
}

#[test]
fn brackets_stand_for_some_element() {
    let parse = |text: &str| Selector::parse_text(text).unwrap_or_else(|error| panic!("{text}: {error}"));
    for (written, meant) in [
        (r#"{"files[].path": "x"}"#, r#"{"files": {"$elemMatch": {"path": "x"}}}"#),
        (r#"{"files[]": {"path": "x"}}"#, r#"{"files": {"$elemMatch": {"path": "x"}}}"#),
        (r#"{"tags[]": {"$gt": 1, "$lt": 3}}"#, r#"{"tags": {"$elemMatch": {"$gt": 1, "$lt": 3}}}"#),
        (r#"{"a": {"b[].c": 1, "d": 2}}"#, r#"{"a.b": {"$elemMatch": {"c": 1}}, "a.d": 2}"#),
        (r#"{"a[]": {"c": 1, "d[]": 2}}"#, r#"{"a": {"$elemMatch": {"c": 1, "d": {"$elemMatch": {"$eq": 2}}}}}"#),
        (r#"{"tags[]": {"$gt": "x"}}"#, r#"{"tags": {"$elemMatch": {"$gt": "x"}}}"#),
        (r#"{"a.b[][].c": {"$in": [1]}}"#, r#"{"a.b": {"$elemMatch": {"$elemMatch": {"c": {"$in": [1]}}}}}"#),
        (r#"{"$not": {"tags[]": 1}}"#, r#"{"$not": {"tags": {"$elemMatch": {"$eq": 1}}}}"#),
        (r#"{"a": {"$elemMatch": {"b[].c": 1}}}"#, r#"{"a": {"$elemMatch": {"b": {"$elemMatch": {"c": 1}}}}}"#),
    ] {
        assert_eq!(parse(written), parse(meant), "{written}");
        assert_eq!(parse(&parse(written).to_string()), parse(written), "{written}");
    }
    assert_eq!(field("files[].path").eq("x"), parse(r#"{"files[].path": "x"}"#));
    assert_eq!(field("a[].b").elem_match(element().lt(1)), parse(r#"{"a[].b[]": {"$lt": 1}}"#));
    // Other brackets, and escaped ones, are part of a name.
    let document = Value::parse(r#"{"a[]": 1, "b[0]": 2, "c": [{"d": 3}, {"d": 4}], "e": ["x", "y"]}"#).unwrap();
    for (text, matches) in [
        (r#"{"a\\[]": 1}"#, true),
        (r#"{"a[]": 1}"#, false),
        (r#"{"b[0]": 2}"#, true),
        (r#"{"c[].d": 4}"#, true),
        (r#"{"c[].d": {"$ne": 4}}"#, true),
        (r#"{"$not": {"c[].d": 4}}"#, false),
        (r#"{"c[].d": {"$gt": 4}}"#, false),
        (r#"{"e[]": "y"}"#, true),
    ] {
        assert_eq!(parse(text).matches(&document).unwrap(), matches, "{text}");
        assert_eq!(parse(&parse(text).to_string()), parse(text), "{text}");
    }
    for bad in [r#"{"[].a": 1}"#, r#"{"a[].": 1}"#, r#"{"a[]..b": 1}"#] {
        assert_eq!(Selector::parse_text(bad).unwrap_err().kind(), crate::ErrorKind::Invalid, "{bad}");
    }
    assert!(Query::new(field("a").eq(1)).sort("tags[]").check().is_err());
}

#[test]
fn options_of_regular_expressions_are_those_of_mongodb() {
    let document = Value::parse(r#"{"a": "Solaris\nStar"}"#).unwrap();
    for (text, matches) in [
        (r#"{"a": {"$regex": "solaris", "$options": "i"}}"#, true),
        (r#"{"a": {"$options": "i", "$regex": "solaris"}}"#, true),
        (r#"{"a": {"$regex": "solaris"}}"#, false),
        (r#"{"a": {"$regex": "^star$", "$options": "im"}}"#, true),
        (r#"{"a": {"$regex": "solaris.star", "$options": "i"}}"#, false),
        (r#"{"a": {"$regex": "solaris.star", "$options": "is"}}"#, true),
        (r#"{"a": {"$regex": "Solaris", "$options": ""}}"#, true),
    ] {
        let selector = Selector::parse_text(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(selector.matches(&document).unwrap(), matches, "{text}");
        assert_eq!(Selector::parse_text(&selector.to_string()).unwrap(), selector, "{text}");
    }
    for bad in [
        r#"{"a": {"$regex": "x", "$options": "g"}}"#,
        r#"{"a": {"$regex": "x", "$options": 1}}"#,
        r#"{"a": {"$options": "i"}}"#,
        r#"{"a": {"$regex": 1, "$options": "i"}}"#,
    ] {
        assert_eq!(Selector::parse_text(bad).unwrap_err().kind(), crate::ErrorKind::Invalid, "{bad}");
    }
}
