//! Translation of query specs to SQL with parameters.

use rusqlite::types::Value as SqlValue;
use serde_json::Value;

use crate::Result;
use crate::workload::{Condition, Predicate, Projection, QuerySpec};

/// Returns the SELECT statement for `spec` on `table`, which may name an index.
pub(super) fn statement(spec: &QuerySpec, table: &str) -> Result<String> {
    let columns = match spec.projection {
        Projection::Ids => "id",
        Projection::Documents | Projection::Json => "id, body",
        Projection::Count => "count(*)",
    };
    let mut sql = format!("SELECT {columns} FROM {table} WHERE {}", condition(&spec.condition)?);
    if let Some(order) = spec.order {
        // Sort keys are unique in every workload, so no tiebreaker is needed.
        sql.push_str(&format!(" ORDER BY {}{}", value_at(order.field), if order.descending { " DESC" } else { "" }));
    }
    if let Some(limit) = spec.limit {
        sql.push_str(&format!(" LIMIT {limit}"));
    }
    Ok(sql)
}

/// Returns the WHERE expression, with a `?` for each value.
pub(super) fn condition(condition: &Condition) -> Result<String> {
    let joined = |all: &[Condition], word: &str| {
        let all: Vec<String> = all.iter().map(self::condition).collect::<Result<_>>()?;
        Ok::<_, crate::Failure>(format!("({})", all.join(word)))
    };
    Ok(match condition {
        Condition::Everything => "TRUE".to_owned(),
        Condition::Field(path, predicate) => {
            let value = value_at(path);
            match predicate {
                Predicate::Equal(_) => format!("{value} = ?"),
                Predicate::Between(..) | Predicate::Prefix(_) => format!("{value} >= ? AND {value} < ?"),
                Predicate::Above(_) => format!("{value} > ?"),
                Predicate::Exists => format!("{} IS NOT NULL", kind_at(path)),
                Predicate::Regex(_) => return Err("SQLite has no regular expressions".into()),
            }
        }
        Condition::All(all) => joined(all, " AND ")?,
        Condition::Any(any) => joined(any, " OR ")?,
        Condition::Not(one) => format!("NOT ({})", self::condition(one)?),
    })
}

/// Returns the SQL expression of the value at a path.
pub(super) fn value_at(path: &str) -> String {
    format!("json_extract(body, '$.{path}')")
}

/// Returns the SQL expression of the JSON type at a path; NULL if the path is missing.
pub(super) fn kind_at(path: &str) -> String {
    format!("json_type(body, '$.{path}')")
}

/// Appends the condition's values in the order of its `?` placeholders.
pub(super) fn parameters(condition: &Condition, values: &mut Vec<SqlValue>) {
    match condition {
        Condition::Field(_, Predicate::Equal(value)) => values.push(sql_value(value)),
        Condition::Field(_, Predicate::Between(lower, upper)) => values.extend([(*lower).into(), (*upper).into()]),
        Condition::Field(_, Predicate::Above(lower)) => values.push((*lower).into()),
        Condition::Field(_, Predicate::Prefix(prefix)) => {
            values.extend([prefix.clone().into(), after_prefix(prefix).into()])
        }
        Condition::Everything | Condition::Field(_, Predicate::Exists | Predicate::Regex(_)) => {}
        Condition::All(all) | Condition::Any(all) => all.iter().for_each(|one| parameters(one, values)),
        Condition::Not(one) => parameters(one, values),
    }
}

/// Returns the least string greater than every string with this prefix. Prefixes are ASCII.
fn after_prefix(prefix: &str) -> String {
    let mut bytes = prefix.as_bytes().to_vec();
    if let Some(last) = bytes.last_mut() {
        *last += 1;
    }
    String::from_utf8(bytes).expect("one more than a letter or digit is ASCII")
}

fn sql_value(value: &Value) -> SqlValue {
    match value {
        Value::Null => SqlValue::Null,
        Value::Bool(flag) => i64::from(*flag).into(),
        Value::Number(number) => match number.as_i64() {
            Some(number) => number.into(),
            None => number.as_f64().map_or(SqlValue::Null, SqlValue::from),
        },
        other => other.as_str().map_or_else(|| other.to_string(), str::to_owned).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_translate_to_sql_with_parameters() {
        let all = Condition::All(vec![
            Condition::Field("a.b", Predicate::Equal("x".into())),
            Condition::Field("c", Predicate::Prefix("ab".to_owned())),
        ]);
        let spec = QuerySpec::all(all, Projection::Ids).descending("d").limit(3);
        let expected = "SELECT id FROM t WHERE (json_extract(body, '$.a.b') = ? AND json_extract(body, '$.c') >= ? \
                        AND json_extract(body, '$.c') < ?) ORDER BY json_extract(body, '$.d') DESC LIMIT 3";
        assert_eq!(statement(&spec, "t").unwrap(), expected);
        let mut values = Vec::new();
        parameters(&spec.condition, &mut values);
        assert_eq!(values, ["x", "ab", "ac"].map(|text| SqlValue::from(text.to_owned())));
    }

    #[test]
    fn prefix_upper_bound_is_exclusive() {
        assert_eq!(after_prefix("ab"), "ac");
        assert!("abzzz" < &*after_prefix("ab"));
    }
}
