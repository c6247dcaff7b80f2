//! SQLite as an experienced user would configure it: bundled, one connection, write-ahead log, a large page cache,
//! memory mapping, prepared statements, and an expression index for each queried field.
//!
//! Every query plan is checked: a plan that does not use the intended index is rejected, so that no engine wins against
//! an accidental scan.

use std::path::Path;

use rusqlite::types::Value as SqlValue;
use rusqlite::{Connection, OpenFlags, Statement, params_from_iter};

use super::sql::{self, kind_at, value_at};
use super::{Body, DocumentForm, DocumentReader, Engine, PageReader, QueryRunner, Sink};
use crate::Result;
use crate::workload::{Condition, Predicate, Projection, QuerySpec};

/// The table's layout and indexes.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    pub(crate) name: &'static str,
    /// Fields with an expression index.
    pub(crate) indexed: Vec<&'static str>,
    /// Whether rows are stored in the primary-key tree (`WITHOUT ROWID`).
    pub(crate) without_rowid: bool,
    /// Whether a commit is flushed to disk.
    pub(crate) synced: bool,
}

/// A SQLite database.
pub(crate) struct Sqlite {
    connection: Connection,
    name: &'static str,
}

/// The access path that a query must use.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum AccessPath {
    /// Any index that SQLite's planner chooses.
    PlannerChoice,
    /// The named index.
    Index(&'static str),
    /// The named index, which ends with the id, so that queries for ids read no table rows.
    Covering(&'static str),
    /// A full table scan.
    Scan,
}

/// A database queried through a fixed access path.
pub(crate) struct SqliteWithAccess<'a> {
    sqlite: &'a Sqlite,
    name: &'static str,
    access: AccessPath,
}

/// Opens a connection to the file `path`, configured as in [`SETTINGS`].
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

/// Describes the settings of every connection, for the report.
pub(crate) const SETTINGS: &str = "SQLite: WAL, synchronous FULL or OFF as the row says, 1 GiB of page cache, \
    2 GiB mapped, prepared statements; jemalloc within this process";

impl Sqlite {
    /// Creates a database in the file `path`.
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

    /// Opens the database in the file `path`.
    pub(crate) fn open(path: &Path, layout: &Layout) -> Result<Self> {
        let connection = connect(path, layout.synced)?;
        Ok(Sqlite { connection, name: layout.name })
    }

    /// Inserts documents in one transaction.
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

    /// Opens another connection to the file `path`, for reading beside a writer.
    pub(crate) fn open_reader(path: &Path, layout: &Layout) -> Result<Self> {
        let sqlite = Self::open(path, layout)?;
        // Many readers with the usual page cache would not fit into memory; they also read mapped pages.
        sqlite.connection.pragma_update(None, "cache_size", -(32 << 10))?;
        Ok(sqlite)
    }

    /// Inserts a document, or replaces it.
    pub(crate) fn upsert(&self, id: &str, json: &str) -> Result<()> {
        let sql = "INSERT INTO documents VALUES (?1, ?2) ON CONFLICT(id) DO UPDATE SET body = excluded.body";
        self.connection.prepare_cached(sql)?.execute((id, json))?;
        Ok(())
    }

    /// Counts the matching documents by the text in `field`.
    pub(crate) fn group_counts(&self, condition: &Condition, field: &str) -> Result<Vec<(String, u64)>> {
        let filter = sql::condition(condition)?;
        let sql = format!("SELECT {}, count(*) FROM documents WHERE {filter} GROUP BY 1", value_at(field));
        let mut values = Vec::new();
        sql::parameters(condition, &mut values);
        let mut statement = self.connection.prepare_cached(&sql)?;
        let rows = statement.query_map(params_from_iter(&values), |row| Ok((row.get(0)?, row.get::<_, i64>(1)?)))?;
        rows.map(|row| row.map(|(text, count)| (text, count.unsigned_abs())).map_err(Into::into)).collect()
    }

    /// Returns the sum of the integers in `field` of the matching documents.
    pub(crate) fn sum(&self, condition: &Condition, field: &str) -> Result<i64> {
        let sql = format!("SELECT sum({}) FROM documents WHERE {}", value_at(field), sql::condition(condition)?);
        let mut values = Vec::new();
        sql::parameters(condition, &mut values);
        let sum: Option<i64> =
            self.connection.prepare_cached(&sql)?.query_row(params_from_iter(&values), |row| row.get(0))?;
        Ok(sum.unwrap_or(0))
    }

    /// Copies the write-ahead log into the database file and empties it.
    pub(crate) fn checkpoint(&self) -> Result<()> {
        Ok(self.connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?)
    }

    /// Copies the database into the new file `path`.
    pub(crate) fn vacuum_into(&self, path: &Path) -> Result<()> {
        let name = path.to_str().ok_or("the path of a database is not Unicode")?;
        self.connection.execute("VACUUM INTO ?1", [name])?;
        Ok(())
    }

    /// Returns the number of documents.
    pub(crate) fn document_count(&self) -> Result<u64> {
        let count: i64 = self.connection.query_row("SELECT count(*) FROM documents", [], |row| row.get(0))?;
        Ok(u64::try_from(count)?)
    }

    /// Closes the database and checkpoints its write-ahead log.
    pub(crate) fn close(self) -> Result<()> {
        self.connection.close().map_err(|(_, error)| error.into())
    }

    /// Creates an index on the values at `paths`, optionally followed by the id.
    pub(crate) fn index(&self, name: &str, paths: &[&str], with_id: bool) -> Result<()> {
        let mut terms: Vec<String> = paths.iter().map(|path| value_at(path)).collect();
        terms.extend(with_id.then(|| "id".to_owned()));
        Ok(self.connection.execute_batch(&format!("CREATE INDEX {name} ON documents({})", terms.join(", ")))?)
    }

    /// Creates an index on the JSON type at `path`, optionally followed by the id.
    pub(crate) fn index_kind(&self, name: &str, path: &str, with_id: bool) -> Result<()> {
        let id = if with_id { ", id" } else { "" };
        Ok(self.connection.execute_batch(&format!("CREATE INDEX {name} ON documents({}{id})", kind_at(path)))?)
    }

    /// Collects planner statistics.
    pub(crate) fn analyze(&self) -> Result<()> {
        Ok(self.connection.execute_batch("ANALYZE")?)
    }

    /// Returns this database restricted to an access path, under the name `name` in results.
    pub(crate) fn with_access(&self, name: &'static str, access: AccessPath) -> SqliteWithAccess<'_> {
        SqliteWithAccess { sqlite: self, name, access }
    }

    fn prepare(&self, sql: &str, access: AccessPath) -> Result<Statement<'_>> {
        let mut explain = self.connection.prepare(&format!("EXPLAIN QUERY PLAN {sql}"))?;
        let nothing = vec![SqlValue::Null; explain.parameter_count()];
        let steps: Vec<String> =
            explain.query_map(params_from_iter(nothing), |row| row.get(3))?.collect::<rusqlite::Result<_>>()?;
        let some = |part: &str| steps.iter().any(|step| step.contains(part));
        let is_as_asked = match access {
            AccessPath::PlannerChoice => some("USING") && !some("SCAN"),
            AccessPath::Index(index) => some(index),
            AccessPath::Covering(index) => some(&format!("COVERING INDEX {index}")),
            AccessPath::Scan => !some("INDEX"),
        };
        if !is_as_asked {
            return Err(format!("{}: {access:?} does not serve `{sql}`: {}", self.name, steps.join("; ")).into());
        }
        Ok(self.connection.prepare(sql)?)
    }

    /// Prepares queries that must use the given access path and differ only in their values.
    pub(crate) fn query_runner(&self, specs: &[QuerySpec], access: AccessPath) -> Result<QueryRunner<'_>> {
        let first = specs.first().ok_or("no query was given")?;
        let mut statement = self.prepare(&sql::statement(first, &access.table())?, access)?;
        let projection = first.projection;
        let mut values = Vec::new();
        Ok(Box::new(move |spec, sink| {
            values.clear();
            sql::parameters(&spec.condition, &mut values);
            let mut rows = statement.query(params_from_iter(&values))?;
            while let Some(row) = rows.next()? {
                match projection {
                    Projection::Count => sink.count(u64::try_from(row.get::<_, i64>(0)?)?),
                    Projection::Ids => sink.id(row.get_ref(0)?.as_str()?)?,
                    Projection::Documents | Projection::Json => {
                        sink.document(row.get_ref(0)?.as_str()?, Body::Text(row.get_ref(1)?.as_str()?))?;
                    }
                }
            }
            Ok(())
        }))
    }
}

impl AccessPath {
    /// Returns the table reference, with its index hint.
    fn table(self) -> String {
        match self {
            AccessPath::PlannerChoice => "documents".to_owned(),
            AccessPath::Index(index) | AccessPath::Covering(index) => format!("documents INDEXED BY {index}"),
            AccessPath::Scan => "documents NOT INDEXED".to_owned(),
        }
    }
}

impl Engine for SqliteWithAccess<'_> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn query_runner(&self, specs: &[QuerySpec]) -> Result<QueryRunner<'_>> {
        self.sqlite.query_runner(specs, self.access)
    }

    fn page_reader(&self, spec: &QuerySpec, row_count: usize) -> Result<PageReader<'_>> {
        let Condition::Field(path, Predicate::Above(lower)) = spec.condition else {
            return Err("pages are asked for above a number".into());
        };
        match self.access {
            AccessPath::Scan => self.sqlite.pages_by_row(path, lower, row_count),
            access => self.sqlite.pages_by_value(path, lower, row_count, access),
        }
    }

    fn document_reader(&self, form: DocumentForm) -> Result<DocumentReader<'_>> {
        self.sqlite.document_reader(form)
    }
}

impl Sqlite {
    /// Pages in table order; each page continues after the previous page's last row id.
    fn pages_by_row(&self, path: &str, lower: i64, row_count: usize) -> Result<PageReader<'_>> {
        let access = AccessPath::Scan;
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

    /// Pages in index order: first the remaining rows with the last value, then rows with greater values. Two
    /// statements, because SQLite does not seek on a row comparison over computed values.
    fn pages_by_value(&self, path: &str, lower: i64, row_count: usize, access: AccessPath) -> Result<PageReader<'_>> {
        let value = value_at(path);
        let tie = if matches!(access, AccessPath::Covering(_)) { "id" } else { "rowid" };
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
                let missing = row_count - count;
                let (taken, end) = take(further.query((from, missing as i64))?, missing, sink)?;
                (count, last) = (count + taken, end);
            }
            Ok(count == row_count)
        }))
    }
}

/// Passes at most `row_limit` rows to the sink; returns their number and, if the limit was reached, the last row's
/// position.
fn take(
    mut rows: rusqlite::Rows<'_>,
    row_limit: usize,
    sink: &mut dyn Sink,
) -> Result<(usize, Option<(i64, SqlValue)>)> {
    let mut count = 0;
    while let Some(row) = rows.next()? {
        sink.id(row.get_ref(0)?.as_str()?)?;
        count += 1;
        if count == row_limit {
            return Ok((count, Some((row.get(1)?, row.get(2)?))));
        }
    }
    Ok((count, None))
}

impl Engine for Sqlite {
    fn name(&self) -> &'static str {
        self.name
    }

    fn query_runner(&self, specs: &[QuerySpec]) -> Result<QueryRunner<'_>> {
        self.query_runner(specs, AccessPath::PlannerChoice)
    }

    fn page_reader(&self, spec: &QuerySpec, row_count: usize) -> Result<PageReader<'_>> {
        Err(format!("no index is named for {row_count} rows of {spec:?}").into())
    }

    fn document_reader(&self, form: DocumentForm) -> Result<DocumentReader<'_>> {
        let column = match form {
            DocumentForm::Document | DocumentForm::Json => "body".to_owned(),
            DocumentForm::Field(field) => value_at(field),
        };
        let mut statement =
            self.prepare(&format!("SELECT {column} FROM documents WHERE id = ?1"), AccessPath::PlannerChoice)?;
        Ok(Box::new(move |id, sink| {
            let mut rows = statement.query([id])?;
            while let Some(row) = rows.next()? {
                // Copies the text, because an application would own its result, as it owns ours.
                let text: String = row.get(0)?;
                let body = if let DocumentForm::Field(_) = form { Body::Field(&text) } else { Body::Text(&text) };
                sink.document(id, body)?;
            }
            Ok(())
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::ScratchDirectory;

    #[test]
    fn plans_without_an_index_are_rejected() {
        let scratch = ScratchDirectory::new(None).unwrap();
        let layout = Layout { name: "sqlite", indexed: vec!["status"], without_rowid: false, synced: false };
        let sqlite = Sqlite::create(&scratch.path().join("db"), &layout).unwrap();
        let spec = |field| {
            QuerySpec::all(Condition::Field(field, Predicate::Equal("active".into())), Projection::Ids).limit(10)
        };
        assert!(Engine::query_runner(&sqlite, &[spec("status")]).is_ok());
        let error =
            Engine::query_runner(&sqlite, &[spec("country")]).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.starts_with("sqlite: PlannerChoice does not serve"), "{error}");
        assert!(sqlite.with_access("index", AccessPath::Index("by_status")).query_runner(&[spec("status")]).is_ok());
        assert!(sqlite.with_access("scan", AccessPath::Scan).query_runner(&[spec("status")]).is_ok());
        assert!(
            sqlite.with_access("covering", AccessPath::Covering("by_status")).query_runner(&[spec("status")]).is_err()
        );
        sqlite.index("by_status_id", &["status"], true).unwrap();
        assert!(
            sqlite
                .with_access("covering", AccessPath::Covering("by_status_id"))
                .query_runner(&[spec("status")])
                .is_ok()
        );
    }
}
