//! JSON parser fuzz target.

use crate::value::{DEPTH_MAX, Limits, Value};

/// A parsed value prints to text that parses to the same value, and `serde_json` agrees on it; text accepted by
/// `serde_json` prints to text accepted here.
pub fn json(data: &[u8]) {
    let other = serde_json::from_slice::<serde_json::Value>(data).ok();
    match Value::parse(data) {
        Ok(parsed) => {
            for printed in [parsed.to_json(), parsed.to_json_pretty()] {
                assert_eq!(Value::parse(printed.as_bytes()).ok().as_ref(), Some(&parsed), "printed as {printed}");
            }
            // `serde_json` rejects depths from 128 on, which are valid here up to `DEPTH_MAX`.
            let Some(other) = other else {
                assert!(depth(&parsed) >= DEPTH_MAX, "only this parser accepts {parsed}");
                return;
            };
            assert!(is_equal_to_other(&parsed, &other), "{parsed} parses as {other} in serde_json");
            let few = Limits { nodes: 1, ..Limits::default() };
            let is_single_node = match &parsed {
                Value::Array(elements) => elements.is_empty(),
                Value::Object(object) => object.is_empty(),
                _ => true,
            };
            assert_eq!(Value::parse_with(data, &few).is_ok(), is_single_node);
        }
        Err(_) => {
            // Printed again, its names are unique and its numbers are doubles: no reason to reject it remains.
            if let Some(other) = other {
                let printed = other.to_string();
                assert!(Value::parse(printed.as_bytes()).is_ok(), "{printed} is rejected");
            }
        }
    }
}

fn depth(value: &Value) -> usize {
    match value {
        Value::Array(elements) => 1 + elements.iter().map(depth).max().unwrap_or(0),
        Value::Object(object) => 1 + object.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

fn is_equal_to_other(parsed: &Value, other: &serde_json::Value) -> bool {
    use serde_json::Value as Other;
    match (parsed, other) {
        (Value::Null, Other::Null) => true,
        (Value::Bool(parsed), Other::Bool(other)) => parsed == other,
        (Value::String(parsed), Other::String(other)) => parsed == other,
        (Value::Number(parsed), Other::Number(other)) => {
            // Their doubles may be off by one unit in the last place.
            let (parsed, other) = (parsed.as_f64(), other.as_f64().unwrap_or(f64::NAN));
            (parsed - other).abs() <= parsed.abs() * 1e-15 + f64::from_bits(1)
        }
        (Value::Array(parsed), Other::Array(other)) => {
            parsed.len() == other.len()
                && parsed.iter().zip(other).all(|(parsed, other)| is_equal_to_other(parsed, other))
        }
        (Value::Object(parsed), Other::Object(other)) => {
            let same =
                |(name, parsed): (&str, &Value)| other.get(name).is_some_and(|other| is_equal_to_other(parsed, other));
            parsed.len() == other.len() && parsed.iter().all(same)
        }
        _ => false,
    }
}
