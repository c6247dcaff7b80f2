//! Keys: the order of their bytes is the order of values.

use std::cmp::Ordering;

use arbitrary::Unstructured;

use super::given;
use crate::value::Value;
use crate::value::collate::{compare, key};

/// Two values are ordered as their keys are, and come back out of them; bytes that are no key are refused.
pub fn keys(data: &[u8]) {
    raw(data);
    let mut given = Unstructured::new(data);
    if let (Ok(a), Ok(b)) = (given::value(&mut given), given::value(&mut given)) {
        ordered(&a, &b);
    }
    let mut given = Unstructured::new(data);
    if let (Ok(a), Ok(b), Ok(bound)) = (given::text(&mut given), given::text(&mut given), given.int_in_range(0..=24)) {
        bounded(&a, &b, bound);
    }
}

fn encoded(value: &Value) -> Vec<u8> {
    let mut bytes = Vec::new();
    key::encode(value, &mut bytes);
    bytes
}

fn ordered(a: &Value, b: &Value) {
    let (key_a, key_b) = (encoded(a), encoded(b));
    assert_eq!(key_a.cmp(&key_b), compare(a, b), "{a} and {b}");
    assert_eq!(compare(a, b), compare(b, a).reverse(), "{a} and {b}");
    for (value, bytes) in [(a, key_a), (b, key_b)] {
        let (decoded, length) = key::decode(&bytes).expect("encoded here");
        assert_eq!((length, compare(&decoded, value)), (bytes.len(), Ordering::Equal), "{value}");
        assert_eq!(key::length(&bytes).expect("encoded here"), bytes.len());
        for cut in 0..bytes.len() {
            assert!(key::decode(&bytes[..cut]).is_err(), "{value} without its end");
        }
    }
}

/// Cut strings are ordered rightly unless both agree up to the cut.
fn bounded(a: &str, b: &str, bound: usize) {
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

/// Bytes that are a key are the only key of their value.
fn raw(data: &[u8]) {
    if let Ok((value, length)) = key::decode(data) {
        assert_eq!(encoded(&value), &data[..length], "{value} has two keys");
    }
    key::length(data).ok();
    key::decode_string(data).ok();
    key::decode_joined(data).ok();
}
