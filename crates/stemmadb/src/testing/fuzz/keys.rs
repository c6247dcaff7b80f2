//! Index key encoding fuzz target: the order of key bytes is the order of values.

use std::cmp::Ordering;

use arbitrary::Unstructured;

use super::generate;
use crate::value::Value;
use crate::value::collate::{compare, key};

/// Two values order as their keys do and decode from them; bytes that are not a key are rejected.
pub fn keys(data: &[u8]) {
    check_raw_bytes(data);
    let mut input = Unstructured::new(data);
    if let (Ok(a), Ok(b)) = (generate::value(&mut input), generate::value(&mut input)) {
        check_order(&a, &b);
    }
    let mut input = Unstructured::new(data);
    if let (Ok(a), Ok(b), Ok(bound)) =
        (generate::text(&mut input), generate::text(&mut input), input.int_in_range(0..=24))
    {
        check_bounded_strings(&a, &b, bound);
    }
}

fn encoded(value: &Value) -> Vec<u8> {
    let mut bytes = Vec::new();
    key::encode(value, &mut bytes);
    bytes
}

fn check_order(a: &Value, b: &Value) {
    let (key_a, key_b) = (encoded(a), encoded(b));
    assert_eq!(key_a.cmp(&key_b), compare(a, b), "{a} and {b}");
    assert_eq!(compare(a, b), compare(b, a).reverse(), "{a} and {b}");
    for (value, bytes) in [(a, key_a), (b, key_b)] {
        let (decoded, length) = key::decode(&bytes).expect("just encoded");
        assert_eq!((length, compare(&decoded, value)), (bytes.len(), Ordering::Equal), "{value}");
        assert_eq!(key::length(&bytes).expect("just encoded"), bytes.len());
        for cut in 0..bytes.len() {
            assert!(key::decode(&bytes[..cut]).is_err(), "{value} without its end");
        }
    }
}

/// Truncated strings order correctly unless both agree up to the cut.
fn check_bounded_strings(a: &str, b: &str, bound: usize) {
    let cut = |text: &str| {
        let mut bytes = Vec::new();
        assert_eq!(key::encode_string_bounded(text, bound, &mut bytes), text.len() > bound);
        bytes
    };
    let order = cut(a).cmp(&cut(b));
    if a.len() > bound && b.len() > bound && a.as_bytes()[..bound] == b.as_bytes()[..bound] {
        assert_eq!(order.is_eq(), a == b, "{a:?} and {b:?} cut after {bound}");
    } else {
        assert_eq!(order, a.cmp(b), "{a:?} and {b:?} cut after {bound}");
    }
}

/// Bytes that decode as a key are the only key of their value.
fn check_raw_bytes(data: &[u8]) {
    if let Ok((value, length)) = key::decode(data) {
        assert_eq!(encoded(&value), &data[..length], "{value} has two keys");
    }
    key::length(data).ok();
    key::decode_string(data).ok();
    key::decode_composite(data).ok();
}
