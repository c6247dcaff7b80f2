//! Tests of the collation order, and of keys having the same order.

use proptest::prelude::*;

use super::key::*;
use super::*;
use crate::value::arbitrary::{number, text, value};
use crate::value::{Kind, Limits, Shapes, pack};

fn key(value: &Value) -> Vec<u8> {
    let mut key = Vec::new();
    encode(value, &mut key);
    key
}

fn json(text: &str) -> Value {
    Value::parse(text).expect("good JSON")
}

#[test]
fn types_and_values_are_ordered() {
    let ascending = r#"[null, false, true, -1e300, -9223372036854775808, -1.5, -1, 0, 0.5, 1, 2, 127, 128, 1e10,
        9007199254740992, 9007199254740993, 9223372036854775807, 18446744073709551615, 1e300, "", "\u0000",
        "\u0000\u0000", "\u0000a", "\u0001", "A", "B", "a", "a\u0000", "a\u0000b", "a\u0001", "aa", "b", "é", "€", "😀",
        [], [null], [null, null], [1], [1, null], [[]], {}, {"a": 1}, {"a": 1, "b": 0}, {"a": 2},
        {"a": 2, "a\u0000": 1}, {"b": 0}, {"b": 0, "a": 1}]"#;
    let ascending = json(ascending);
    let ascending = ascending.as_array().expect("an array");
    for (i, a) in ascending.iter().enumerate() {
        for (j, b) in ascending.iter().enumerate() {
            assert_eq!(compare(a, b), i.cmp(&j), "{a} and {b}");
            assert_eq!(key(a).cmp(&key(b)), i.cmp(&j), "{a} and {b}");
        }
    }
}

#[test]
fn small_integers_have_short_keys() {
    for (integer, bytes) in [(0i64, 2), (1, 3), (2, 2), (100, 4), (255, 4), (1960, 4), (-1, 3)] {
        assert!(key(&Value::from(integer)).len() <= bytes, "{integer}: {:?}", key(&Value::from(integer)));
    }
    assert!(key(&Value::from(u64::MAX)).len() <= 12);
}

#[test]
fn type_ranges_contain_exactly_their_kind() {
    let values = json(r#"[null, false, true, -1e300, 1e300, "", "\uffff", [], [[{}]], {}, {"z": {}}]"#);
    for value in values.as_array().expect("an array") {
        for kind in Kind::ALL {
            let (lower, upper) = type_range(kind);
            assert_eq!(lower <= key(value) && key(value) < upper, value.kind() == kind);
        }
        assert_eq!(kind_of(&key(value)), Some(value.kind()));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn keys_have_the_order_of_values(a in value(), b in value()) {
        prop_assert_eq!(key(&a).cmp(&key(&b)), compare(&a, &b));
        prop_assert_eq!(compare(&a, &b), compare(&b, &a).reverse());
    }

    #[test]
    fn keys_have_the_order_of_numbers(a in number(), b in number()) {
        let order = key(&a.into()).cmp(&key(&b.into()));
        prop_assert_eq!(order, a.compare(b));
        if a.is_integer() && b.is_integer() {
            prop_assert_eq!(order, a.to_integer().cmp(&b.to_integer()));
        } else if !a.is_integer() && !b.is_integer() {
            prop_assert_eq!(Some(order), a.as_f64().partial_cmp(&b.as_f64()));
        }
    }

    #[test]
    fn keys_round_trip_and_are_self_delimiting(value in value(), after in prop::collection::vec(any::<u8>(), 0..4)) {
        let mut bytes = key(&value);
        let length = bytes.len();
        bytes.extend(after);
        let (decoded, consumed) = decode(&bytes).expect("encoded by us");
        prop_assert_eq!(consumed, length);
        prop_assert_eq!(compare(&decoded, &value), Ordering::Equal);
        prop_assert_eq!(super::key::length(&bytes).expect("encoded by us"), length);
        for cut in 0..length {
            prop_assert!(decode(&bytes[..cut]).is_err());
            prop_assert!(super::key::length(&bytes[..cut]).is_err());
        }
    }

    #[test]
    fn packed_values_have_the_same_keys_and_order(a in value(), b in value()) {
        let shapes = Shapes::new();
        let mut packed = Vec::new();
        pack(&a, &shapes, &mut packed).expect("small");
        let packed = PackedValue::new(&packed, &shapes).expect("packed by us");
        let mut from_packed = Vec::new();
        encode_packed(packed, &mut from_packed).expect("packed by us");
        prop_assert_eq!(from_packed, key(&a));
        prop_assert_eq!(compare_packed(packed, &b).expect("packed by us"), compare(&a, &b));
        prop_assert_eq!(compare_packed(packed, &a).expect("packed by us"), Ordering::Equal);
    }

    #[test]
    fn cut_strings_sort_correctly_against_short_ones(a in text(), b in text(), bound in 0usize..8) {
        let bounded = |text: &str| {
            let mut key = Vec::new();
            let cut = encode_string_bounded(text, bound, &mut key);
            assert_eq!(cut, text.len() > bound);
            assert_eq!(super::key::length(&key).expect("encoded by us"), key.len());
            let (decoded, consumed) = decode_string(&key).expect("encoded by us");
            assert_eq!(consumed, key.len());
            assert_eq!(decoded.cut, cut);
            assert!(text.as_bytes().starts_with(&decoded.bytes));
            key
        };
        let order = bounded(&a).cmp(&bounded(&b));
        let agree = a.len() > bound && b.len() > bound && a.as_bytes()[..bound] == b.as_bytes()[..bound];
        if agree {
            prop_assert_eq!(order == Ordering::Equal, a == b);
        } else {
            prop_assert_eq!(order, a.cmp(&b));
        }
    }

    #[test]
    fn prefix_ranges_contain_exactly_the_strings_with_the_prefix(text in text(), prefix in text(), cut in 0usize..70) {
        let (lower, upper) = prefix_range(&prefix);
        let key = key(&Value::from(&text));
        prop_assert_eq!(lower <= key && key < upper, text.starts_with(&prefix));
        let own = text.chars().take(cut).collect::<String>();
        let (lower, upper) = prefix_range(&own);
        prop_assert!(lower <= key && key < upper);
        let mut bounded = Vec::new();
        encode_string_bounded(&text, own.len(), &mut bounded);
        prop_assert!(lower <= bounded && bounded < upper);
    }

    #[test]
    fn decoding_random_bytes_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..40), tag in 0u8..0x70) {
        for bytes in [&bytes[..], &[&[tag], &bytes[..]].concat()] {
            match decode(bytes) {
                Ok((value, length)) => prop_assert_eq!(key(&value), &bytes[..length], "keys are unique"),
                Err(_) => {
                    super::key::length(bytes).ok();
                    decode_string(bytes).ok();
                }
            }
        }
    }
}

#[test]
fn too_deep_keys_are_rejected() {
    assert!(decode(&[Tag::Array as u8; 100_000]).is_err());
    assert!(super::key::length(&[Tag::Array as u8; 100_000]).is_err());
    let deepest = (0..Limits::default().depth).fold(Value::Null, |inner, _| Value::Array(vec![inner]));
    assert_eq!(decode(&key(&deepest)).expect("within the limit").0, deepest);
}
