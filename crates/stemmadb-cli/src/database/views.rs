//! Views of a database: definitions and queries.

use std::ops::Bound;

use stemmadb::{Access, DeclaredView, Object, Value};

use super::{Database, ServerDatabase, document_object};
use crate::failure::Result;

/// A view query.
pub(crate) struct ViewRequest {
    pub(crate) keys: ViewKeys,
    pub(crate) descending: bool,
    pub(crate) limit: Option<u64>,
    pub(crate) skip: u64,
    pub(crate) output: ViewOutput,
    /// When the view is updated.
    pub(crate) access: Access,
}

/// The keys a view query selects.
pub(crate) enum ViewKeys {
    Exact(Vec<Value>),
    /// Both bounds are inclusive.
    Range(Option<Value>, Option<Value>),
    Prefix(Value),
}

/// What a view query returns.
pub(crate) enum ViewOutput {
    Rows {
        documents: bool,
    },
    /// One reduced value for each group of keys with the same first N elements, or for each key.
    Groups(Option<usize>),
    /// One reduced value for all rows.
    Reduced,
}

/// Runs a query of a view, embedded or remote, and visits its rows.
macro_rules! run_query {
    ($query:expr, $request:ident, $visit:ident) => {{
        let (request, visit) = ($request, $visit);
        let query = $query.access(request.access).skip(request.skip).limit(request.limit.unwrap_or(u64::MAX));
        let query = if request.descending { query.descending() } else { query };
        let query = match &request.keys {
            ViewKeys::Exact(keys) => query.keys(keys),
            ViewKeys::Prefix(prefix) => query.prefix(prefix),
            ViewKeys::Range(from, to) => {
                let bound = |key: &Option<Value>| key.clone().map_or(Bound::Unbounded, Bound::Included);
                query.range((bound(from), bound(to)))
            }
        };
        let pair = |key: Value, value: Value| [("key", key), ("value", value)].into_iter().collect::<Object>();
        match request.output {
            ViewOutput::Reduced => visit([("value", query.reduce()?.unwrap_or(Value::Null))].into_iter().collect()),
            ViewOutput::Groups(None) => {
                query.group()?.try_for_each(|group| group.map(|(key, value)| visit(pair(key, value)))?)
            }
            ViewOutput::Groups(Some(level)) => {
                query.group_level(level)?.try_for_each(|group| group.map(|(key, value)| visit(pair(key, value)))?)
            }
            ViewOutput::Rows { documents } => {
                let query = if documents { query.with_documents() } else { query };
                query.rows()?.try_for_each(|row| {
                    let row = row?;
                    let mut object: Object = [("id", Value::from(row.id.as_str()))].into_iter().collect();
                    object.extend(pair(row.key, row.value));
                    if documents {
                        let document = row.document.map(|document| document_object(&document)).transpose()?;
                        object.insert("doc", document.map_or(Value::Null, Value::from));
                    }
                    visit(object)
                })
            }
        }
    }};
}

impl Database {
    /// Lists the views: the name and definition of each.
    pub(crate) fn views(&self) -> Result<Vec<Object>> {
        let views = self.inner.views().definitions()?.into_iter();
        Ok(views
            .map(|(name, definition)| [("name", Value::from(name)), ("definition", definition)].into_iter().collect())
            .collect())
    }

    /// Defines a view and maps the documents. Returns hints for paths that lead through arrays.
    pub(crate) fn define_view(&self, name: &str, definition: &Value) -> Result<Vec<String>> {
        self.inner.views().define(name, definition)?.update()?;
        Ok(DeclaredView::parse(name, definition)?.hints(&self.inner.snapshot()?))
    }

    /// Returns hints for paths of a view that lead through arrays.
    pub(crate) fn view_hints(&self, name: &str) -> Result<Vec<String>> {
        let mut definitions = self.inner.views().definitions()?.into_iter();
        let Some((_, definition)) = definitions.find(|(defined, _)| defined == name) else { return Ok(Vec::new()) };
        Ok(DeclaredView::parse(name, &definition)?.hints(&self.inner.snapshot()?))
    }

    pub(crate) fn drop_view(&self, name: &str) -> Result<()> {
        Ok(self.inner.views().remove(name)?)
    }

    /// Runs a view query and calls `visit` with each result row.
    pub(crate) fn query_view(
        &self,
        name: &str,
        request: &ViewRequest,
        visit: &mut dyn FnMut(Object) -> Result<()>,
    ) -> Result<()> {
        let query = self.inner.views().open(name)?.query();
        let query = match &self.past {
            Some(past) => query.as_of(past),
            None => query,
        };
        run_query!(query, request, visit)
    }
}

impl ServerDatabase {
    /// Runs a view query and calls `visit` with each result row.
    pub(crate) fn query_view(
        &self,
        name: &str,
        request: &ViewRequest,
        visit: &mut dyn FnMut(Object) -> Result<()>,
    ) -> Result<()> {
        let query = self.database.views().open(name)?.query();
        let query = match self.past {
            Some(past) => query.as_of(past),
            None => query,
        };
        run_query!(query, request, visit)
    }
}
