//! The measured engines, Stemma and its peers, behind one interface.
//!
//! Timing and verification run the same code and differ only in the sink: a [`RowCounter`] counts rows, so that every
//! timed answer is checked against its expected row count; a [`RowCollector`] keeps all rows for comparison with the
//! expected result.

pub(crate) mod shop;
mod sql;
mod sqlite;
mod stemma;

use crate::Result;
use crate::workload::{Projection, QueryResult, QuerySpec};

pub(crate) use sqlite::{AccessPath, Layout, SETTINGS, Sqlite, SqliteWithAccess};
pub(crate) use stemma::{Caching, Stemma, insert_json};

/// A loaded database.
pub(crate) trait Engine {
    /// Returns the engine's name in results.
    fn name(&self) -> &'static str;

    /// Prepares queries that differ only in their values. A single query may be prepared as a statement.
    fn query_runner(&self, specs: &[QuerySpec]) -> Result<QueryRunner<'_>>;

    /// Prepares reading a whole result page by page.
    fn page_reader(&self, spec: &QuerySpec, row_count: usize) -> Result<PageReader<'_>>;

    /// Prepares reading documents by id.
    fn document_reader(&self, form: DocumentForm) -> Result<DocumentReader<'_>>;
}

/// Runs a query and passes every row to the sink.
pub(crate) type QueryRunner<'a> = Box<dyn FnMut(&QuerySpec, &mut dyn Sink) -> Result<()> + 'a>;

/// Passes the next page to the sink (the first page if the flag is set); returns whether more pages may follow.
pub(crate) type PageReader<'a> = Box<dyn FnMut(bool, &mut dyn Sink) -> Result<bool> + 'a>;

/// Reads the document with an id; passes nothing to the sink if it does not exist.
pub(crate) type DocumentReader<'a> = Box<dyn FnMut(&str, &mut dyn Sink) -> Result<()> + 'a>;

/// The form in which a document is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DocumentForm {
    /// The engine's native form.
    Document,
    /// As JSON text.
    Json,
    /// One string field of the document.
    Field(&'static str),
}

/// A document body in the form in which an engine returns it.
pub(crate) enum Body<'a> {
    Text(&'a str),
    Packed(&'a stemmadb::Document),
    /// The value of one string field.
    Field(&'a str),
}

/// Receives the rows of a result.
pub(crate) trait Sink {
    /// Receives a row that consists of an id.
    fn id(&mut self, id: &str) -> Result<()>;
    /// Receives a row that consists of a document, or of one of its fields.
    fn document(&mut self, id: &str, body: Body<'_>) -> Result<()>;
    /// Receives a count.
    fn count(&mut self, count: u64);
}

/// Counts rows. A count adds its value.
#[derive(Default)]
pub(crate) struct RowCounter {
    pub(crate) row_count: u64,
    /// Sums body lengths, so that the compiler cannot skip reading bodies.
    byte_count: usize,
}

/// Keeps all rows.
#[derive(Default)]
pub(crate) struct RowCollector {
    pub(crate) result: QueryResult,
}

impl Sink for RowCounter {
    fn id(&mut self, id: &str) -> Result<()> {
        self.row_count += 1;
        self.byte_count += id.len();
        Ok(())
    }

    fn document(&mut self, id: &str, body: Body<'_>) -> Result<()> {
        self.row_count += 1;
        self.byte_count += id.len();
        if let Body::Text(text) | Body::Field(text) = body {
            self.byte_count += text.len();
        }
        Ok(())
    }

    fn count(&mut self, count: u64) {
        self.row_count += count;
    }
}

impl Sink for RowCollector {
    fn id(&mut self, id: &str) -> Result<()> {
        self.result.ids.push(id.to_owned());
        Ok(())
    }

    fn document(&mut self, id: &str, body: Body<'_>) -> Result<()> {
        self.result.ids.push(id.to_owned());
        self.result.bodies.push(match body {
            Body::Text(text) | Body::Field(text) => text.to_owned(),
            Body::Packed(document) => document.to_json()?,
        });
        Ok(())
    }

    fn count(&mut self, count: u64) {
        self.result.count = Some(count);
    }
}

/// Runs a query and returns its complete result.
pub(crate) fn collect(query_runner: &mut QueryRunner<'_>, spec: &QuerySpec) -> Result<QueryResult> {
    let mut sink = RowCollector::default();
    query_runner(spec, &mut sink)?;
    Ok(sink.result)
}

impl Projection {
    /// Returns the name used in row names.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Projection::Ids => "ids",
            Projection::Documents => "documents",
            Projection::Json => "documents as JSON",
            Projection::Count => "count",
        }
    }
}
