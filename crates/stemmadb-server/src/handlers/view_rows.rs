//! Writing of the results of view queries: rows, groups and reductions, of one database or of all shards of a virtual
//! one.

use std::sync::Arc;

use stemmadb::views::{ProgramRow, ProgramRows};
use stemmadb::{Document, Snapshot, Value};

use super::view_query::ViewQuery;
use crate::auth::Restriction;
use crate::design::{OVERFLOW, view_failure};
use crate::directory::ServedDatabase;
use crate::documents::{DocumentPrinter, ShowOptions, is_readable};
use crate::error::Result;
use crate::http::{ResponseWriter, write_string};

/// The rows of a query in order, and the databases from which their documents are read.
pub(super) trait ViewRows: Send {
    /// The next row.
    fn next_row(&mut self) -> Option<stemmadb::Result<ProgramRow>>;

    /// The number of rows of the view, and of those before the first row; `None` if they would have to be counted.
    fn counts(&self) -> Option<(u64, u64)>;

    /// The database that has a document, and its snapshot.
    fn database_of(&self, id: &str) -> (&Arc<ServedDatabase>, &Snapshot);
}

/// The rows of a view of one database.
pub(super) struct OwnRows {
    pub(super) served: Arc<ServedDatabase>,
    pub(super) rows: ProgramRows,
}

impl ViewRows for OwnRows {
    fn next_row(&mut self) -> Option<stemmadb::Result<ProgramRow>> {
        self.rows.next()
    }

    fn counts(&self) -> Option<(u64, u64)> {
        Some((self.rows.total(), self.rows.offset()))
    }

    fn database_of(&self, _id: &str) -> (&Arc<ServedDatabase>, &Snapshot) {
        (&self.served, self.rows.snapshot())
    }
}

/// Begins a result, with the sequence of the database if it was asked for.
pub(super) fn write_begin(sequence: Option<String>, out: &mut ResponseWriter) {
    out.buffer.push(b'{');
    if let Some(sequence) = sequence {
        out.buffer.extend_from_slice(b"\"update_seq\":");
        out.string(&sequence);
        out.buffer.push(b',');
    }
}

/// Ends a result. Hints say which paths of a view without rows lead through arrays.
pub(super) fn write_end(hints: &[String], out: &mut ResponseWriter) {
    out.buffer.extend_from_slice(b"\n]");
    if !hints.is_empty() {
        out.buffer.extend_from_slice(b",\n\"warning\":");
        out.string(&hints.join("; "));
    }
    out.buffer.push(b'}');
}

/// Writes rows, and returns their number.
pub(super) async fn write_rows(
    rows: &mut impl ViewRows,
    query: &ViewQuery,
    show: &ShowOptions,
    out: &mut ResponseWriter,
) -> Result<u64> {
    if query.is_sorted {
        let head = match rows.counts() {
            Some((total, offset)) => format!("\"total_rows\":{total},\"offset\":{offset},"),
            None => "\"total_rows\":null,\"offset\":null,".to_owned(),
        };
        out.buffer.extend_from_slice(head.as_bytes());
    }
    out.buffer.extend_from_slice(b"\"rows\":[");
    let (mut separator, mut count): (&[u8], u64) = (b"\n", 0);
    while let Some(row) = rows.next_row() {
        let row = row.map_err(view_failure)?;
        count += 1;
        out.buffer.extend_from_slice(std::mem::replace(&mut separator, b",\n"));
        print_row(rows, &row, RowDocument::of(query), show, &mut out.buffer)?;
        out.flush_if_full().await;
    }
    Ok(count)
}

/// Writes the rows of documents that the user may read. A row is of its document's current revision: one that was
/// written after the view was updated is left out, and so is the number of rows of the view.
pub(super) async fn write_readable_rows(
    rows: &mut OwnRows,
    query: &ViewQuery,
    show: &ShowOptions,
    restriction: &Restriction,
    out: &mut ResponseWriter,
) -> Result<u64> {
    out.buffer.extend_from_slice(b"\"rows\":[");
    let (mut separator, mut skipped, mut count): (&[u8], u64, u64) = (b"\n", 0, 0);
    let updated = rows.rows.sequence();
    while count < query.limit.unwrap_or(u64::MAX)
        && let Some(row) = rows.next_row()
    {
        let row = row.map_err(view_failure)?;
        let snapshot = rows.rows.snapshot();
        let document = snapshot.get(&row.id)?.filter(|document| document.sequence() <= updated);
        if !document.map_or(Ok(false), |document| restriction.allows(&document))? {
            continue;
        }
        if skipped < query.skip {
            skipped += 1;
            continue;
        }
        count += 1;
        out.buffer.extend_from_slice(std::mem::replace(&mut separator, b",\n"));
        let document = RowDocument::of(query).readable(snapshot, &row, restriction)?;
        print_row(rows, &row, document, show, &mut out.buffer)?;
        out.flush_if_full().await;
    }
    Ok(count)
}

/// Writes groups, and returns their number.
pub(super) async fn write_groups(
    groups: impl Iterator<Item = stemmadb::Result<(Value, Value)>> + Send,
    out: &mut ResponseWriter,
) -> Result<u64> {
    out.buffer.extend_from_slice(b"\"rows\":[");
    let mut count = 0;
    for (at, group) in groups.enumerate() {
        count += 1;
        let (key, value) = group.map_err(view_failure)?;
        out.buffer.extend_from_slice(if at == 0 { b"\n" } else { b",\n" });
        print_group(&key, &value, &mut out.buffer);
        out.flush_if_full().await;
    }
    Ok(count)
}

/// Writes the reduction of all rows, which is a single row, subject to `skip` and `limit`. Returns whether there are
/// any rows.
pub(super) fn write_reduction(reduction: Option<Value>, query: &ViewQuery, out: &mut ResponseWriter) -> bool {
    out.buffer.extend_from_slice(b"\"rows\":[");
    let has_rows = reduction.is_some();
    if let Some(value) = reduction.filter(|_| query.shows_reduction()) {
        out.buffer.push(b'\n');
        print_group(&Value::Null, &value, &mut out.buffer);
    }
    has_rows
}

/// The member `doc` of a row.
#[derive(Clone, Copy)]
pub(super) enum RowDocument {
    /// There is none.
    Omitted,
    /// The document, or null if it does not exist.
    Shown,
    /// Null, because the user may not read the document.
    Hidden,
}

impl RowDocument {
    pub(super) fn of(query: &ViewQuery) -> Self {
        if query.include_docs { RowDocument::Shown } else { RowDocument::Omitted }
    }

    /// The same, hidden if the user may not read the document that the row links to.
    fn readable(self, snapshot: &Snapshot, row: &ProgramRow, restriction: &Restriction) -> Result<Self> {
        let RowDocument::Shown = self else { return Ok(self) };
        let id = linked_id(row);
        let branches = snapshot.revisions(id)?;
        let is_readable = is_readable(snapshot, id, &branches, Some(restriction))?
            && linked_document(snapshot, row)?.map_or(Ok(false), |document| restriction.allows(&document))?;
        Ok(if is_readable { RowDocument::Shown } else { RowDocument::Hidden })
    }
}

/// Prints a row.
pub(super) fn print_row(
    rows: &impl ViewRows,
    row: &ProgramRow,
    document: RowDocument,
    show: &ShowOptions,
    out: &mut Vec<u8>,
) -> Result<()> {
    out.extend_from_slice(b"{\"id\":");
    write_string(out, &row.id);
    out.extend_from_slice(b",\"key\":");
    row.key.write_json(out);
    out.extend_from_slice(b",\"value\":");
    row.value.write_json(out);
    match document {
        RowDocument::Omitted => {}
        RowDocument::Shown => {
            out.extend_from_slice(b",\"doc\":");
            print_document(rows, row, show, out)?;
        }
        RowDocument::Hidden => out.extend_from_slice(b",\"doc\":null"),
    }
    out.push(b'}');
    Ok(())
}

/// The id of a row's document, or of the document that its value links to with `_id`.
fn linked_id(row: &ProgramRow) -> &str {
    row.value.get("_id").and_then(Value::as_str).unwrap_or(&row.id)
}

/// The document with [`linked_id`], at the revision that the value names with `_rev`.
fn linked_document(snapshot: &Snapshot, row: &ProgramRow) -> Result<Option<Document>> {
    let id = linked_id(row);
    match row.value.get("_rev").and_then(Value::as_str) {
        Some(revision) => match crate::documents::parse_revision(revision) {
            Ok(revision) => Ok(snapshot.get_revision(id, &revision)?),
            Err(_) => Ok(None),
        },
        None => Ok(snapshot.get(id)?),
    }
}

/// Prints the document of a row.
fn print_document(rows: &impl ViewRows, row: &ProgramRow, show: &ShowOptions, out: &mut Vec<u8>) -> Result<()> {
    let (served, snapshot) = rows.database_of(linked_id(row));
    match linked_document(snapshot, row)? {
        Some(document) => DocumentPrinter { served, snapshot, show }.print(&document, out),
        None => {
            out.extend_from_slice(b"null");
            Ok(())
        }
    }
}

/// Prints a group.
pub(super) fn print_group(key: &Value, value: &Value, out: &mut Vec<u8>) {
    // As in CouchDB, a reduction that is too large is an error of its row.
    if let Some(reason) = value.get(OVERFLOW).and_then(Value::as_str) {
        out.extend_from_slice(b"{\"key\":null,\"error\":");
        write_string(out, OVERFLOW);
        out.extend_from_slice(b",\"reason\":");
        write_string(out, reason);
        out.push(b'}');
        return;
    }
    out.extend_from_slice(b"{\"key\":");
    key.write_json(out);
    out.extend_from_slice(b",\"value\":");
    value.write_json(out);
    out.push(b'}');
}
