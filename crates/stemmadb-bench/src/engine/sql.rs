//! Questions as SQL, their values as parameters.

use rusqlite::types::Value as SqlValue;
use serde_json::Value;

use crate::Result;
use crate::workload::{Condition, Question, Test, Wanted};

/// The statement that asks `question` of a table called `table`, which may say by which index.
pub(super) fn statement(question: &Question, table: &str) -> Result<String> {
    let columns = match question.wanted {
        Wanted::Ids => "id",
        Wanted::Documents | Wanted::Json => "id, body",
        Wanted::Count => "count(*)",
    };
    let mut sql = format!("SELECT {columns} FROM {table} WHERE {}", condition(&question.condition)?);
    if let Some(order) = question.order {
        // No two documents are equal in an order of ours.
        sql.push_str(&format!(" ORDER BY {}{}", value_at(order.field), if order.descending { " DESC" } else { "" }));
    }
    if let Some(limit) = question.limit {
        sql.push_str(&format!(" LIMIT {limit}"));
    }
    Ok(sql)
}

/// The condition, with a `?` for each value.
pub(super) fn condition(condition: &Condition) -> Result<String> {
    let joined = |all: &[Condition], word: &str| {
        let all: Vec<String> = all.iter().map(self::condition).collect::<Result<_>>()?;
        Ok::<_, crate::Failure>(format!("({})", all.join(word)))
    };
    Ok(match condition {
        Condition::Everything => "TRUE".to_owned(),
        Condition::At(path, test) => {
            let value = value_at(path);
            match test {
                Test::Equal(_) => format!("{value} = ?"),
                Test::Between(..) | Test::Prefix(_) => format!("{value} >= ? AND {value} < ?"),
                Test::Above(_) => format!("{value} > ?"),
                Test::Exists => format!("{} IS NOT NULL", kind_at(path)),
                Test::Regex(_) => return Err("SQLite has no regular expressions".into()),
            }
        }
        Condition::All(all) => joined(all, " AND ")?,
        Condition::Any(any) => joined(any, " OR ")?,
        Condition::Not(one) => format!("NOT ({})", self::condition(one)?),
    })
}

/// What is at a path.
pub(super) fn value_at(path: &str) -> String {
    format!("json_extract(body, '$.{path}')")
}

/// Of which kind it is; NULL if it is not there.
pub(super) fn kind_at(path: &str) -> String {
    format!("json_type(body, '$.{path}')")
}

/// The values of a condition, in the order of its `?`s.
pub(super) fn parameters(condition: &Condition, values: &mut Vec<SqlValue>) {
    match condition {
        Condition::At(_, Test::Equal(value)) => values.push(sql_value(value)),
        Condition::At(_, Test::Between(lower, upper)) => values.extend([(*lower).into(), (*upper).into()]),
        Condition::At(_, Test::Above(lower)) => values.push((*lower).into()),
        Condition::At(_, Test::Prefix(prefix)) => values.extend([prefix.clone().into(), after_prefix(prefix).into()]),
        Condition::Everything | Condition::At(_, Test::Exists | Test::Regex(_)) => {}
        Condition::All(all) | Condition::Any(all) => all.iter().for_each(|one| parameters(one, values)),
        Condition::Not(one) => parameters(one, values),
    }
}

/// The least text after every text that begins with `prefix`. Ours are ASCII.
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
    fn a_question_is_a_statement_and_its_values() {
        let all = Condition::All(vec![
            Condition::At("a.b", Test::Equal("x".into())),
            Condition::At("c", Test::Prefix("ab".to_owned())),
        ]);
        let question = Question::all(all, Wanted::Ids).descending("d").limit(3);
        let expected = "SELECT id FROM t WHERE (json_extract(body, '$.a.b') = ? AND json_extract(body, '$.c') >= ? \
                        AND json_extract(body, '$.c') < ?) ORDER BY json_extract(body, '$.d') DESC LIMIT 3";
        assert_eq!(statement(&question, "t").unwrap(), expected);
        let mut values = Vec::new();
        parameters(&question.condition, &mut values);
        assert_eq!(values, ["x", "ab", "ac"].map(|text| SqlValue::from(text.to_owned())));
    }

    #[test]
    fn the_end_of_a_prefix() {
        assert_eq!(after_prefix("ab"), "ac");
        assert!("abzzz" < &*after_prefix("ab"));
    }
}
