//! Tests of the built-in reducers with known results.

use crate::value::Value;
use crate::value::collate::key;
use crate::view::reduce::{BuiltIn, Reducer};

fn fold(reducer: BuiltIn, values: &[&str], cut: usize) -> Option<String> {
    let part = |values: &[&str]| {
        let mut fold = reducer.begin();
        for (at, json) in values.iter().enumerate() {
            let mut bytes = Vec::new();
            key::encode(&Value::from(at as u64 % 3), &mut bytes);
            fold.row(&bytes, if *json == "null" { b"" } else { json.as_bytes() }).unwrap();
        }
        fold.finish().unwrap()
    };
    let (left, right) = values.split_at(cut.min(values.len()));
    let mut whole = reducer.begin();
    let mut is_empty = true;
    for partial in [part(left), part(right)].iter().filter(|partial| !partial.is_empty()) {
        whole.part(partial).unwrap();
        is_empty = false;
    }
    let whole = whole.finish().unwrap();
    assert_eq!(whole.is_empty(), is_empty);
    (!is_empty).then(|| reducer.result(&whole).unwrap().to_json())
}

#[test]
fn built_in_reducers_do_not_depend_on_partition() {
    let values = ["3", "-1.5", "null", "\"text\"", "1e300", "[2]", "-1e300", "4"];
    let expected = [
        (BuiltIn::Count, "8"),
        (BuiltIn::Sum, "5.5"),
        (BuiltIn::Min, "null"),
        (BuiltIn::Max, "[2]"),
        (BuiltIn::Average, "1.1"),
    ];
    for cut in 0..=values.len() {
        for (reducer, expected) in expected {
            assert_eq!(fold(reducer, &values, cut).as_deref(), Some(expected), "{}", reducer.name());
        }
        assert_eq!(fold(BuiltIn::Sum, &["9007199254740993", "1", "0.5"], cut).as_deref(), Some("9007199254740994.0"));
        let stats = fold(BuiltIn::Stats, &["1", "2", "0.5"], cut);
        assert_eq!(stats.as_deref(), Some(r#"{"sum":3.5,"count":3,"min":0.5,"max":2,"sumsqr":5.25}"#));
        let stats = fold(BuiltIn::Stats, &["null"], cut);
        assert_eq!(stats.as_deref(), Some(r#"{"sum":0,"count":0,"min":null,"max":null,"sumsqr":0}"#));
        assert_eq!(fold(BuiltIn::Average, &["null"], cut).as_deref(), Some("null"));
        assert_eq!(fold(BuiltIn::Min, &["2", "null", "1"], cut).as_deref(), Some("null"));
        assert_eq!(fold(BuiltIn::Max, &["null"], cut).as_deref(), Some("null"));
    }
    for reducer in BuiltIn::ALL {
        assert_eq!(fold(reducer, &[], 0), None);
    }
}

#[test]
fn distinct_key_estimate_is_within_seven_percent() {
    for count in [1u64, 10, 500, 5_000, 200_000] {
        let mut fold = BuiltIn::ApproxCountDistinct.begin();
        for at in 0..count * 2 {
            let mut bytes = Vec::new();
            key::encode(&Value::from(at % count), &mut bytes);
            fold.row(&bytes, b"").unwrap();
        }
        let estimate = BuiltIn::ApproxCountDistinct.result(&fold.finish().unwrap()).unwrap().as_f64().unwrap();
        assert!((estimate / count as f64 - 1.0).abs() < 0.07, "{count} distinct keys, estimated at {estimate}");
    }
}
