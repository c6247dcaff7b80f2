//! Text that may be JSON.

use crate::value::{DEPTH_MAX, Limits, Value};

/// What is read prints to what reads the same, and another parser agrees on it; what that one takes, prints to what is taken here.
pub fn json(data: &[u8]) {
    let theirs = serde_json::from_slice::<serde_json::Value>(data).ok();
    match Value::parse(data) {
        Ok(ours) => {
            for printed in [ours.to_json(), ours.to_json_pretty()] {
                assert_eq!(Value::parse(printed.as_bytes()).ok().as_ref(), Some(&ours), "printed as {printed}");
            }
            // It refuses depths from 128 on, which are fine here up to it.
            let Some(theirs) = theirs else {
                assert!(depth(&ours) >= DEPTH_MAX, "only we read {ours}");
                return;
            };
            assert!(is_alike(&ours, &theirs), "{ours} is {theirs} to others");
            let few = Limits { nodes: 1, ..Limits::default() };
            let is_one = match &ours {
                Value::Array(elements) => elements.is_empty(),
                Value::Object(object) => object.is_empty(),
                _ => true,
            };
            assert_eq!(Value::parse_with(data, &few).is_ok(), is_one);
        }
        Err(_) => {
            // Printed again its names are unique and its numbers doubles: nothing is left to refuse.
            if let Some(theirs) = theirs {
                let printed = theirs.to_string();
                assert!(Value::parse(printed.as_bytes()).is_ok(), "{printed} is refused");
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

fn is_alike(ours: &Value, theirs: &serde_json::Value) -> bool {
    use serde_json::Value as Theirs;
    match (ours, theirs) {
        (Value::Null, Theirs::Null) => true,
        (Value::Bool(ours), Theirs::Bool(theirs)) => ours == theirs,
        (Value::String(ours), Theirs::String(theirs)) => ours == theirs,
        (Value::Number(ours), Theirs::Number(theirs)) => {
            // Their doubles may be the neighbour of the nearest.
            let (ours, theirs) = (ours.as_f64(), theirs.as_f64().unwrap_or(f64::NAN));
            (ours - theirs).abs() <= ours.abs() * 1e-15 + f64::from_bits(1)
        }
        (Value::Array(ours), Theirs::Array(theirs)) => {
            ours.len() == theirs.len() && ours.iter().zip(theirs).all(|(ours, theirs)| is_alike(ours, theirs))
        }
        (Value::Object(ours), Theirs::Object(theirs)) => {
            let same = |(name, ours): (&str, &Value)| theirs.get(name).is_some_and(|theirs| is_alike(ours, theirs));
            ours.len() == theirs.len() && ours.iter().all(same)
        }
        _ => false,
    }
}
