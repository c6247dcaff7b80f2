//! Round-trip property tests over all kinds of values.

use proptest::prelude::*;

use super::arbitrary::{document, value};
use super::*;

proptest! {
    #[test]
    fn json_text_round_trips(value in document()) {
        prop_assert_eq!(&Value::parse(value.to_json()).expect("printed by us"), &value);
        prop_assert_eq!(&Value::parse(value.to_json_pretty()).expect("printed by us"), &value);
    }

    #[test]
    fn canonical_bytes_are_equal_only_for_equal_values(a in value(), b in value()) {
        let bytes = |value: &Value| {
            let mut bytes = Vec::new();
            value.canonical(&mut bytes);
            bytes
        };
        prop_assert_eq!(bytes(&a), bytes(&a.clone()));
        prop_assert_eq!(bytes(&a) == bytes(&b), a == b);
    }

    #[test]
    fn serde_json_parses_printed_values(value in document()) {
        let parsed: serde_json::Value = serde_json::from_str(&value.to_json()).expect("printed JSON is valid");
        prop_assert_eq!(parsed.as_object().map(serde_json::Map::len), value.as_object().map(Object::len));
    }
}

#[test]
fn values_print_as_json() {
    let value = Value::parse(r#" {"a" : [1, 1.0, -0, 1e3, "\u00e9\n\"\\\/", {}, [], null, true, false] } "#)
        .expect("good JSON");
    assert_eq!(value.to_json(), r#"{"a":[1,1.0,-0.0,1000.0,"é\n\"\\/",{},[],null,true,false]}"#);
    assert_eq!(Value::from([Value::from(1), Value::Array(vec![])]).to_json_pretty(), "[\n  1,\n  []\n]");
    assert_eq!(format!("{value}"), value.to_json());
}

#[test]
fn values_convert_to_and_from_serde_json() {
    let json = serde_json::json!({
        "none": null, "truth": true, "int": -5, "big": u64::MAX, "double": 1.5, "whole": 2.0,
        "text": "é", "list": [1, [], {"a": {}}],
    });
    let value = Value::from(json.clone());
    assert_eq!(value, Value::parse(json.to_string().as_bytes()).expect("good JSON"));
    assert_eq!(serde_json::Value::from(value), json);
}
