//! SQLite as someone who knows it would set it up: bundled, one connection, write-ahead log, a large page cache and mapped
//! memory, statements prepared once, an expression index for each field that is asked for.
//!
//! Every question's plan is looked at: one that does not use an index is refused, so that nobody wins against a scan.

use std::path::Path;

use rusqlite::types::Value as SqlValue;
use rusqlite::{Connection, OpenFlags, Statement, params_from_iter};
use serde_json::Value;

use super::{Asker, Body, Engine, Form, Getter};
use crate::Result;
use crate::workload::{Condition, Question, Wanted};

/// How the table is laid out.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    pub(crate) name: &'static str,
    /// Fields with an expression index.
    pub(crate) indexed: Vec<&'static str>,
    /// Whether rows lie in the tree of ids itself (`WITHOUT ROWID`) instead of in one of their own.
    pub(crate) without_rowid: bool,
    /// Whether a commit waits for the disk.
    pub(crate) synced: bool,
}

/// A SQLite database.
pub(crate) struct Sqlite {
    connection: Connection,
    name: &'static str,
}

/// What is set on every connection, for the record.
pub(crate) const SETTINGS: &str =
    "SQLite: WAL, synchronous FULL or OFF as the row says, 1 GiB of page cache, 2 GiB mapped, prepared statements";

impl Sqlite {
    /// A new database in the file `path`.
    pub(crate) fn create(path: &Path, layout: &Layout) -> Result<Self> {
        let sqlite = Self::open(path, layout)?;
        let storage = if layout.without_rowid { " WITHOUT ROWID" } else { "" };
        let schema = format!("CREATE TABLE documents(id TEXT PRIMARY KEY NOT NULL, body TEXT NOT NULL){storage}");
        sqlite.connection.execute(&schema, [])?;
        for field in &layout.indexed {
            let index = format!("CREATE INDEX by_{field} ON documents(json_extract(body, '$.{field}'))");
            sqlite.connection.execute(&index, [])?;
        }
        Ok(sqlite)
    }

    /// The database in the file `path`.
    pub(crate) fn open(path: &Path, layout: &Layout) -> Result<Self> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path, flags)?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.pragma_update(None, "synchronous", if layout.synced { "FULL" } else { "OFF" })?;
        connection.pragma_update(None, "cache_size", -(1 << 20))?;
        connection.pragma_update(None, "mmap_size", i64::from(i32::MAX) / 65_536 * 65_536)?;
        connection.pragma_update(None, "temp_store", "MEMORY")?;
        connection.pragma_update(None, "wal_autocheckpoint", 10_000)?;
        Ok(Sqlite { connection, name: layout.name })
    }

    /// Inserts documents, in one transaction.
    pub(crate) fn insert(&self, documents: &[(&str, &str)]) -> Result<()> {
        let transaction = (documents.len() > 1).then(|| self.connection.unchecked_transaction()).transpose()?;
        {
            let mut insert = self.connection.prepare_cached("INSERT INTO documents VALUES (?1, ?2)")?;
            for (id, json) in documents {
                insert.execute((id, json))?;
            }
        }
        Ok(transaction.map_or(Ok(()), |transaction| transaction.commit())?)
    }

    /// How many documents there are.
    pub(crate) fn document_count(&self) -> Result<u64> {
        let count: i64 = self.connection.query_row("SELECT count(*) FROM documents", [], |row| row.get(0))?;
        Ok(u64::try_from(count)?)
    }

    /// Closes it; what is in the write-ahead log goes into the file.
    pub(crate) fn close(self) -> Result<()> {
        self.connection.close().map_err(|(_, error)| error.into())
    }

    fn prepare_with_index(&self, sql: &str) -> Result<Statement<'_>> {
        let mut explain = self.connection.prepare(&format!("EXPLAIN QUERY PLAN {sql}"))?;
        let nothing = vec![SqlValue::Null; explain.parameter_count()];
        let steps: Vec<String> =
            explain.query_map(params_from_iter(nothing), |row| row.get(3))?.collect::<rusqlite::Result<_>>()?;
        if steps.iter().any(|step| step.contains("SCAN")) || !steps.iter().any(|step| step.contains("USING")) {
            return Err(format!("{}: no index serves `{sql}`: {}", self.name, steps.join("; ")).into());
        }
        Ok(self.connection.prepare(sql)?)
    }
}

impl Engine for Sqlite {
    fn name(&self) -> &'static str {
        self.name
    }

    fn asker(&self, form: &Question) -> Result<Asker<'_>> {
        let mut statement = self.prepare_with_index(&sql(form))?;
        let wanted = form.wanted;
        Ok(Box::new(move |question, sink| {
            let mut rows = match parameters(&question.condition) {
                (first, None) => statement.query([first])?,
                (first, Some(second)) => statement.query([first, second])?,
            };
            while let Some(row) = rows.next()? {
                match wanted {
                    Wanted::Count => sink.count(u64::try_from(row.get::<_, i64>(0)?)?),
                    Wanted::Ids => sink.id(row.get_ref(0)?.as_str()?)?,
                    Wanted::Documents | Wanted::Json => {
                        sink.document(row.get_ref(0)?.as_str()?, Body::Text(row.get_ref(1)?.as_str()?))?;
                    }
                }
            }
            Ok(())
        }))
    }

    fn getter(&self, form: Form) -> Result<Getter<'_>> {
        let column = match form {
            Form::Document | Form::Json => "body".to_owned(),
            Form::Field(field) => format!("json_extract(body, '$.{field}')"),
        };
        let mut statement = self.prepare_with_index(&format!("SELECT {column} FROM documents WHERE id = ?1"))?;
        Ok(Box::new(move |id, sink| {
            let mut rows = statement.query([id])?;
            while let Some(row) = rows.next()? {
                // An application keeps what it gets, as it may keep ours.
                let text: String = row.get(0)?;
                let body = if let Form::Field(_) = form { Body::Field(&text) } else { Body::Text(&text) };
                sink.document(id, body)?;
            }
            Ok(())
        }))
    }
}

fn sql(form: &Question) -> String {
    let columns = match form.wanted {
        Wanted::Ids => "id",
        Wanted::Documents | Wanted::Json => "id, body",
        Wanted::Count => "count(*)",
    };
    let field = format!("json_extract(body, '$.{}')", form.field);
    let condition = match form.condition {
        Condition::Equal(_) => format!("{field} = ?1"),
        Condition::Between(..) | Condition::Prefix(_) => format!("{field} >= ?1 AND {field} < ?2"),
    };
    let limit = form.limit.map_or(String::new(), |limit| format!(" LIMIT {limit}"));
    format!("SELECT {columns} FROM documents WHERE {condition}{limit}")
}

fn parameters(condition: &Condition) -> (SqlValue, Option<SqlValue>) {
    match condition {
        Condition::Equal(value) => (sql_value(value), None),
        Condition::Between(lower, upper) => ((*lower).into(), Some((*upper).into())),
        Condition::Prefix(prefix) => (prefix.clone().into(), Some(after_prefix(prefix).into())),
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
    use crate::harness::Place;

    #[test]
    fn a_question_without_an_index_is_refused() {
        let place = Place::new(None).unwrap();
        let layout = Layout { name: "sqlite", indexed: vec!["status"], without_rowid: false, synced: false };
        let sqlite = Sqlite::create(&place.path().join("db"), &layout).unwrap();
        let mut form = Question {
            field: "status",
            condition: Condition::Equal("active".into()),
            limit: Some(10),
            wanted: Wanted::Ids,
        };
        assert!(sqlite.asker(&form).is_ok());
        form.field = "country";
        let error = sqlite.asker(&form).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.starts_with("sqlite: no index serves"), "{error}");
    }

    #[test]
    fn the_end_of_a_prefix() {
        assert_eq!(after_prefix("ab"), "ac");
        assert!("abzzz" < &*after_prefix("ab"));
    }
}
