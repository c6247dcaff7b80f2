//! The order of the values that a document emitted with equal keys: CouchDB sorts them as Erlang terms.

use std::cmp::Ordering;

use stemmadb::Value;
use stemmadb::views::EmittedRows;

/// Sorts rows by value. The database keeps this order among the rows of a document with equal keys.
pub(super) fn sort_by_value(rows: &mut EmittedRows) {
    if rows.len() > 1 {
        rows.sort_by(|(_, a), (_, b)| compare(a, b));
    }
}

/// Compares two values in the order of Erlang's terms.
fn compare(a: &Value, b: &Value) -> Ordering {
    match (a, b) {
        (Value::Object(a), Value::Object(b)) => {
            let members = a.iter().zip(b.iter());
            let by_member = |((a_name, a), (b_name, b)): ((&str, &Value), (&str, &Value))| {
                a_name.as_bytes().cmp(b_name.as_bytes()).then_with(|| compare(a, b))
            };
            members.map(by_member).find(|order| order.is_ne()).unwrap_or_else(|| a.len().cmp(&b.len()))
        }
        (Value::Array(a), Value::Array(b)) => {
            let elements = a.iter().zip(b).map(|(a, b)| compare(a, b));
            elements.into_iter().find(|order| order.is_ne()).unwrap_or_else(|| a.len().cmp(&b.len()))
        }
        (Value::String(a), Value::String(b)) => a.as_bytes().cmp(b.as_bytes()),
        (a, b) => rank(a).cmp(&rank(b)).then_with(|| compare_numbers(a, b)),
    }
}

/// Compares numbers by value; other values are equal.
fn compare_numbers(a: &Value, b: &Value) -> Ordering {
    match (a.as_i64(), b.as_i64()) {
        (Some(a), Some(b)) => a.cmp(&b),
        _ => a.as_f64().partial_cmp(&b.as_f64()).unwrap_or(Ordering::Equal),
    }
}

/// Numbers come first, then the atoms by name, then objects, which are tuples, then lists, then strings.
fn rank(value: &Value) -> u8 {
    match value {
        Value::Bool(false) => 1,
        Value::Null => 2,
        Value::Bool(true) => 3,
        Value::Object(_) => 4,
        Value::Array(_) => 5,
        Value::String(_) => 6,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_ordered_as_erlang_terms() {
        let sorted = r#"[-1,0,1.5,2,10,false,null,true,{},{"a":1},{"a":2},{"a":2,"b":0},{"b":0},[],[1],[1,2],[2],"","B",
            "a","aa","b"]"#;
        let Ok(Value::Array(sorted)) = Value::parse(sorted) else { panic!("an array") };
        let mut rows: EmittedRows = sorted.iter().rev().map(|value| (Value::Null, value.clone())).collect();
        sort_by_value(&mut rows);
        let values: Vec<_> = rows.into_iter().map(|(_, value)| value).collect();
        assert_eq!(values, sorted);
    }
}
