//! SQLite as someone who knows it would set it up: bundled, one connection, write-ahead log, a large page cache and mapped
//! memory, statements prepared once, an expression index for each field that is asked for.
//!
//! Every question's plan is looked at: one that does not use an index is refused, so that nobody wins against a scan, unless a
//! scan is what is measured.

use std::path::Path;

use rusqlite::types::Value as SqlValue;
use rusqlite::{Connection, OpenFlags, Statement, params_from_iter};

use super::sql::{self, kind_at, value_at};
use super::{Asker, Body, Engine, Form, Getter, Pager, Sink};
use crate::Result;
use crate::workload::{Condition, Question, Test, Wanted};

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

/// By which way a question is answered.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Access {
    /// SQLite chooses its indexes, and has to choose some.
    Chosen,
    /// By this index.
    Index(&'static str),
    /// By this one, which ends with the id: no row is looked up for ids alone.
    Covering(&'static str),
    /// By no index: all rows, one after the other.
    Scan,
}

/// The same database, asked one way.
pub(crate) struct Asked<'a> {
    sqlite: &'a Sqlite,
    name: &'static str,
    access: Access,
}

/// A connection to the file `path`, set up as [`SETTINGS`] says.
pub(super) fn connect(path: &Path, synced: bool) -> Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", if synced { "FULL" } else { "OFF" })?;
    connection.pragma_update(None, "cache_size", -(1 << 20))?;
    connection.pragma_update(None, "mmap_size", i64::from(i32::MAX) / 65_536 * 65_536)?;
    connection.pragma_update(None, "temp_store", "MEMORY")?;
    connection.pragma_update(None, "wal_autocheckpoint", 10_000)?;
    Ok(connection)
}

/// What is set on every connection, for the record.
pub(crate) const SETTINGS: &str = "SQLite: WAL, synchronous FULL or OFF as the row says, 1 GiB of page cache, 2 GiB mapped, prepared statements; jemalloc within this process";

impl Sqlite {
    /// A new database in the file `path`.
    pub(crate) fn create(path: &Path, layout: &Layout) -> Result<Self> {
        let sqlite = Self::open(path, layout)?;
        let storage = if layout.without_rowid { " WITHOUT ROWID" } else { "" };
        let schema = format!("CREATE TABLE documents(id TEXT PRIMARY KEY NOT NULL, body TEXT NOT NULL){storage}");
        sqlite.connection.execute(&schema, [])?;
        for field in &layout.indexed {
            let index = format!("CREATE INDEX by_{field} ON documents({})", value_at(field));
            sqlite.connection.execute(&index, [])?;
        }
        Ok(sqlite)
    }

    /// The database in the file `path`.
    pub(crate) fn open(path: &Path, layout: &Layout) -> Result<Self> {
        let connection = connect(path, layout.synced)?;
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

    /// Adds an index of the values at `paths`, one after the other, and perhaps the id.
    pub(crate) fn index(&self, name: &str, paths: &[&str], with_id: bool) -> Result<()> {
        let mut terms: Vec<String> = paths.iter().map(|path| value_at(path)).collect();
        terms.extend(with_id.then(|| "id".to_owned()));
        Ok(self.connection.execute_batch(&format!("CREATE INDEX {name} ON documents({})", terms.join(", ")))?)
    }

    /// Adds an index of the kind of what is at `path`, and perhaps the id.
    pub(crate) fn index_kind(&self, name: &str, path: &str, with_id: bool) -> Result<()> {
        let id = if with_id { ", id" } else { "" };
        Ok(self.connection.execute_batch(&format!("CREATE INDEX {name} ON documents({}{id})", kind_at(path)))?)
    }

    /// Lets SQLite look at its indexes, so that it can choose among them.
    pub(crate) fn analyze(&self) -> Result<()> {
        Ok(self.connection.execute_batch("ANALYZE")?)
    }

    /// This database, asked by one way, called `name` in results.
    pub(crate) fn by(&self, name: &'static str, access: Access) -> Asked<'_> {
        Asked { sqlite: self, name, access }
    }

    fn prepare(&self, sql: &str, access: Access) -> Result<Statement<'_>> {
        let mut explain = self.connection.prepare(&format!("EXPLAIN QUERY PLAN {sql}"))?;
        let nothing = vec![SqlValue::Null; explain.parameter_count()];
        let steps: Vec<String> =
            explain.query_map(params_from_iter(nothing), |row| row.get(3))?.collect::<rusqlite::Result<_>>()?;
        let some = |part: &str| steps.iter().any(|step| step.contains(part));
        let is_as_asked = match access {
            Access::Chosen => some("USING") && !some("SCAN"),
            Access::Index(index) => some(index),
            Access::Covering(index) => some(&format!("COVERING INDEX {index}")),
            Access::Scan => !some("INDEX"),
        };
        if !is_as_asked {
            return Err(format!("{}: {access:?} does not serve `{sql}`: {}", self.name, steps.join("; ")).into());
        }
        Ok(self.connection.prepare(sql)?)
    }

    fn asker(&self, questions: &[Question], access: Access) -> Result<Asker<'_>> {
        let form = questions.first().ok_or("nothing is asked")?;
        let mut statement = self.prepare(&sql::statement(form, &access.table())?, access)?;
        let wanted = form.wanted;
        let mut values = Vec::new();
        Ok(Box::new(move |question, sink| {
            values.clear();
            sql::parameters(&question.condition, &mut values);
            let mut rows = statement.query(params_from_iter(&values))?;
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
}

impl Access {
    /// The table, and which index is to be used.
    fn table(self) -> String {
        match self {
            Access::Chosen => "documents".to_owned(),
            Access::Index(index) | Access::Covering(index) => format!("documents INDEXED BY {index}"),
            Access::Scan => "documents NOT INDEXED".to_owned(),
        }
    }
}

impl Engine for Asked<'_> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn asker(&self, questions: &[Question]) -> Result<Asker<'_>> {
        self.sqlite.asker(questions, self.access)
    }

    fn pager(&self, question: &Question, row_count: usize) -> Result<Pager<'_>> {
        let Condition::At(path, Test::Above(lower)) = question.condition else {
            return Err("pages are asked for above a number".into());
        };
        match self.access {
            Access::Scan => self.sqlite.pages_by_row(path, lower, row_count),
            access => self.sqlite.pages_by_value(path, lower, row_count, access),
        }
    }

    fn getter(&self, form: Form) -> Result<Getter<'_>> {
        self.sqlite.getter(form)
    }
}

impl Sqlite {
    /// Pages in the order of the table: each begins after the row at which the last one ended.
    fn pages_by_row(&self, path: &str, lower: i64, row_count: usize) -> Result<Pager<'_>> {
        let access = Access::Scan;
        let sql = format!(
            "SELECT id, rowid FROM {} WHERE rowid > ? AND {} > {lower} ORDER BY rowid LIMIT {row_count}",
            access.table(),
            value_at(path)
        );
        let mut statement = self.prepare(&sql, access)?;
        let mut last = 0_i64;
        Ok(Box::new(move |is_first, sink| {
            last = if is_first { 0 } else { last };
            let mut rows = statement.query([last])?;
            let mut count = 0;
            while let Some(row) = rows.next()? {
                sink.id(row.get_ref(0)?.as_str()?)?;
                (last, count) = (row.get(1)?, count + 1);
            }
            Ok(count == row_count)
        }))
    }

    /// Pages in the order of an index: first the rest of the value at which the last one ended, then further values. Two
    /// statements, because SQLite does not seek by both at once where the values are computed.
    fn pages_by_value(&self, path: &str, lower: i64, row_count: usize, access: Access) -> Result<Pager<'_>> {
        let value = value_at(path);
        let tie = if matches!(access, Access::Covering(_)) { "id" } else { "rowid" };
        let select = format!("SELECT id, {value}, {tie} FROM {}", access.table());
        let rest = format!("{select} WHERE {value} = ? AND {tie} > ? ORDER BY {tie} LIMIT {row_count}");
        let further = format!("{select} WHERE {value} > ? ORDER BY {value}, {tie} LIMIT ?");
        let (mut rest, mut further) = (self.prepare(&rest, access)?, self.prepare(&further, access)?);
        let mut last: Option<(i64, SqlValue)> = None;
        Ok(Box::new(move |is_first, sink| {
            let mut count = 0;
            if is_first {
                last = None;
            } else if let Some((value, tie)) = &last {
                let (taken, end) = take(rest.query((value, tie))?, row_count, sink)?;
                (count, last) = (taken, end.or(last.take()));
            }
            if count < row_count {
                let from = last.as_ref().map_or(lower, |(value, _)| *value);
                let wanted = row_count - count;
                let (taken, end) = take(further.query((from, wanted as i64))?, wanted, sink)?;
                (count, last) = (count + taken, end);
            }
            Ok(count == row_count)
        }))
    }
}

/// Hands rows out; how many there were, and the place of the last if they are as many as are wanted.
fn take(mut rows: rusqlite::Rows<'_>, wanted: usize, sink: &mut dyn Sink) -> Result<(usize, Option<(i64, SqlValue)>)> {
    let mut count = 0;
    while let Some(row) = rows.next()? {
        sink.id(row.get_ref(0)?.as_str()?)?;
        count += 1;
        if count == wanted {
            return Ok((count, Some((row.get(1)?, row.get(2)?))));
        }
    }
    Ok((count, None))
}

impl Engine for Sqlite {
    fn name(&self) -> &'static str {
        self.name
    }

    fn asker(&self, questions: &[Question]) -> Result<Asker<'_>> {
        self.asker(questions, Access::Chosen)
    }

    fn pager(&self, question: &Question, row_count: usize) -> Result<Pager<'_>> {
        Err(format!("no index is named for {row_count} rows of {question:?}").into())
    }

    fn getter(&self, form: Form) -> Result<Getter<'_>> {
        let column = match form {
            Form::Document | Form::Json => "body".to_owned(),
            Form::Field(field) => value_at(field),
        };
        let mut statement = self.prepare(&format!("SELECT {column} FROM documents WHERE id = ?1"), Access::Chosen)?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::Place;

    #[test]
    fn a_question_without_an_index_is_refused() {
        let place = Place::new(None).unwrap();
        let layout = Layout { name: "sqlite", indexed: vec!["status"], without_rowid: false, synced: false };
        let sqlite = Sqlite::create(&place.path().join("db"), &layout).unwrap();
        let form = |field| Question::all(Condition::At(field, Test::Equal("active".into())), Wanted::Ids).limit(10);
        assert!(Engine::asker(&sqlite, &[form("status")]).is_ok());
        let error = Engine::asker(&sqlite, &[form("country")]).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.starts_with("sqlite: Chosen does not serve"), "{error}");
        assert!(sqlite.by("index", Access::Index("by_status")).asker(&[form("status")]).is_ok());
        assert!(sqlite.by("scan", Access::Scan).asker(&[form("status")]).is_ok());
        assert!(sqlite.by("covering", Access::Covering("by_status")).asker(&[form("status")]).is_err());
        sqlite.index("by_status_id", &["status"], true).unwrap();
        assert!(sqlite.by("covering", Access::Covering("by_status_id")).asker(&[form("status")]).is_ok());
    }
}
