//! Queries: a selector with sort, limit, skip, fields, continuation token and limits.

use std::sync::Arc;
use std::time::Duration;

use super::catalog::{Catalog, CatalogVersion};
use super::planner;
use super::{Node, Order, Plan};
use crate::index::PathNumber;
use crate::query::language::normal::Normal;
use crate::query::language::operators::kind_with_article;
use crate::query::language::page_token::{Position, QueryHash};
use crate::query::language::projection::Fields;
use crate::query::language::row_key::RowKey;
use crate::query::language::selector::Selector;
use crate::query::language::sort::Sort;
use crate::query::source::limits::{Cancellation, QueryLimits};
use crate::sync::{Mutex, RwLock};
use crate::value::collate::Language;
use crate::value::{Object, Value};
use crate::{Error, Result};

/// The largest number of cached plans per query.
const PLANS_MAX: usize = 4;

/// A selector with an order, a limit and the returned fields. Run it with [`Database::find`](crate::Database::find).
///
/// ```
/// # use stemmadb::{Query, field};
/// let first_ten = Query::new(field("year").ge(1960)).sort("year").limit(10);
/// ```
#[derive(Clone, Debug)]
pub struct Query {
    selector: Selector,
    sort: Sort,
    limit: Option<u64>,
    skip: u64,
    fields: Option<Fields>,
    after: Option<String>,
    after_key: Option<RowKey>,
    limits: QueryLimits,
    /// The normal form and the plans of a prepared query.
    plan_cache: Option<Arc<QueryPlanCache>>,
    /// The first error of a builder method; returned when the query is used.
    deferred_error: Option<Arc<Error>>,
}

/// A validated query, ready for planning.
#[derive(Clone, Debug)]
pub(crate) struct Prepared {
    pub(crate) selector: Selector,
    pub(crate) normal: Arc<Normal>,
    plan_cache: Option<Arc<QueryPlanCache>>,
    pub(crate) sort: Sort,
    pub(crate) limit: Option<u64>,
    pub(crate) skip: u64,
    pub(crate) fields: Option<Fields>,
    pub(crate) after: Option<Position>,
}

/// State shared by all executions of a prepared query.
#[derive(Debug)]
struct QueryPlanCache {
    normal: Arc<Normal>,
    plans: Mutex<Vec<CachedPlan>>,
    /// The term that the query looks up, if it looks up a single one.
    term: RwLock<Option<CachedTerm>>,
}

#[derive(Debug)]
struct CachedTerm {
    planned_for: CatalogVersion,
    path: PathNumber,
    key: Box<[u8]>,
}

type CachedPlan = (PlanKey, Arc<Plan>);

/// The inputs of a plan other than the selector and the sort paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PlanKey {
    catalog: CatalogVersion,
    is_sorted: bool,
    is_limited: bool,
}

impl Query {
    /// Creates a query for all documents that match `selector`.
    ///
    /// Without a sort and a limit, rows are in order of the documents' first insertion. With a limit they are in the
    /// order that finds them fastest, which further pages keep.
    pub fn new(selector: Selector) -> Self {
        Query {
            selector,
            sort: Sort::default(),
            limit: None,
            skip: 0,
            fields: None,
            after: None,
            after_key: None,
            limits: QueryLimits::default(),
            plan_cache: None,
            deferred_error: None,
        }
    }

    /// Parses the body of a CouchDB `_find` request: an object with `selector` and optionally `sort`, `limit`, `skip`,
    /// `fields` and `bookmark`. Without a limit, all rows are returned.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid), with the invalid field.
    pub fn parse(json: &Value) -> Result<Self> {
        let Value::Object(object) = json else {
            return Err(Error::invalid(format!("a query is an object, not {}", kind_with_article(json.kind())))
                .with_hint("write for example {\"selector\": {\"year\": 1960}, \"limit\": 10}"));
        };
        let selector = object.get("selector").ok_or_else(|| {
            Error::invalid("a query needs a selector").with_hint("write {\"selector\": {}} for every document")
        })?;
        let mut query = Query::new(Selector::parse(selector)?);
        for (name, value) in object.iter() {
            match (name, value) {
                ("selector", _) => {}
                ("sort", _) => query.sort = Sort::parse(value)?,
                ("limit", _) => query.limit = Some(count(name, value)?),
                ("skip", _) => query.skip = count(name, value)?,
                ("fields", _) => query.fields = Fields::parse(value)?,
                // CouchDB's bookmarks for the positions after the last row and before the first.
                ("bookmark", Value::Null) => {}
                ("bookmark", Value::String(bookmark)) if bookmark == "nil" || bookmark.is_empty() => {}
                ("bookmark", Value::String(bookmark)) => query.after = Some(bookmark.clone()),
                ("bookmark", _) => return Err(Error::invalid("bookmark is a string")),
                _ => {
                    let shown: String = name.chars().take(64).collect();
                    return Err(Error::invalid(format!("a query does not know \"{shown}\""))
                        .with_hint("it knows selector, sort, limit, skip, fields and bookmark"));
                }
            }
        }
        Ok(query)
    }

    /// Sorts by the value at `path`, ascending; documents without a value come first.
    ///
    /// Further calls add further sort paths, which break the ties of the earlier ones; the document id breaks the
    /// remaining ties.
    #[must_use]
    pub fn sort(self, path: impl AsRef<str>) -> Self {
        self.sorted_by(path.as_ref(), false, None)
    }

    /// Sorts by the value at `path`, descending; documents without a value come last.
    #[must_use]
    pub fn sort_descending(self, path: impl AsRef<str>) -> Self {
        self.sorted_by(path.as_ref(), true, None)
    }

    /// Sorts by the value at `path`, ascending, with strings in the collation order of a language: a BCP 47 tag such as
    /// `de`, or `und` for the root collation. Other values keep their order. An index with the [same
    /// collation](crate::Index::collated) avoids sorting.
    #[must_use]
    pub fn sort_collated(self, path: impl AsRef<str>, language: impl AsRef<str>) -> Self {
        self.sorted_in(path.as_ref(), false, language.as_ref())
    }

    /// As [`Query::sort_collated`], descending.
    #[must_use]
    pub fn sort_collated_descending(self, path: impl AsRef<str>, language: impl AsRef<str>) -> Self {
        self.sorted_in(path.as_ref(), true, language.as_ref())
    }

    /// Replaces the sort order by `sort`.
    #[must_use]
    pub fn order(mut self, sort: Sort) -> Self {
        self.plan_cache = None;
        self.sort = sort;
        self
    }

    /// Returns at most `count` rows. Without a sort these are any `count` matching documents.
    #[must_use]
    pub fn limit(mut self, count: u64) -> Self {
        self.limit = Some(count);
        self
    }

    /// Skips the first `count` rows. Ignored if the query continues after a token.
    #[must_use]
    pub fn skip(mut self, count: u64) -> Self {
        self.skip = count;
        self
    }

    /// Returns only these paths of each document; `_id` and `_rev` only if they are listed. No paths means whole
    /// documents.
    #[must_use]
    pub fn fields<P: AsRef<str>>(mut self, paths: impl IntoIterator<Item = P>) -> Self {
        match Fields::new(paths) {
            Ok(fields) => self.fields = fields,
            Err(error) => self.record_error(error),
        }
        self
    }

    /// Continues after the row that a continuation token refers to. Selector and sort must be those of the query that
    /// returned the token; limit and fields may differ. If the database
    /// [keeps its past](crate::handles::History::keep), all pages show the state that the first one showed.
    #[must_use]
    pub fn after(mut self, token: impl Into<String>) -> Self {
        self.after = Some(token.into());
        self
    }

    /// Continues after the row with this key, which may be of another database: for merging the rows of several. The
    /// query must be sorted, in the order that the key has.
    #[must_use]
    pub fn after_key(mut self, key: RowKey) -> Self {
        self.after_key = Some(key);
        self
    }

    /// Fails with `Stopped` if execution takes longer than `time`. The time starts when execution starts.
    #[must_use]
    pub fn time_limit(mut self, time: Duration) -> Self {
        self.limits.time = Some(time);
        self
    }

    /// Fails with `Stopped` if there are more than `count` rows. Unlike [`Query::limit`], it never truncates the result
    /// silently.
    #[must_use]
    pub fn rows_max(mut self, count: u64) -> Self {
        self.limits.rows = Some(count);
        self
    }

    /// Fails with `Stopped` if a sort, a grouping or a set of documents would need more than about `bytes` of memory.
    #[must_use]
    pub fn memory_max(mut self, bytes: usize) -> Self {
        self.limits.memory_bytes = Some(bytes);
        self
    }

    /// Fails with `Stopped` once `cancellation` is cancelled.
    #[must_use]
    pub fn cancelled_by(mut self, cancellation: &Cancellation) -> Self {
        self.limits.cancellation = Some(cancellation.clone());
        self
    }

    pub(crate) fn limits(&self) -> &QueryLimits {
        &self.limits
    }

    pub(in crate::query) fn into_selector(self) -> Selector {
        self.selector
    }

    /// The query without [`Query::after`] and [`Query::after_key`].
    #[must_use]
    pub fn without_continuation(self) -> Self {
        Query { after: None, after_key: None, ..self }
    }

    /// Returns the selector.
    pub fn selector(&self) -> &Selector {
        &self.selector
    }

    /// Checks that the query is valid.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) with the error of the builder method that was called with an invalid
    /// argument.
    pub fn check(&self) -> Result<()> {
        self.prepare().map(|_| ())
    }

    /// Prints the query in the form that [`Query::parse`] reads, for another process to run. Leaves out the execution
    /// limits: see [`Query::execution_limits`].
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) if a builder method was called with an invalid argument.
    pub fn to_value(&self) -> Result<Value> {
        if let Some(deferred_error) = &self.deferred_error {
            return Err(deferred_error.duplicate());
        }
        let mut object = Object::new();
        object.insert("selector", self.selector.to_value()?);
        if !self.sort.keys.is_empty() {
            object.insert("sort", self.sort.to_value());
        }
        if let Some(limit) = self.limit {
            object.insert("limit", limit);
        }
        if self.skip > 0 {
            object.insert("skip", self.skip);
        }
        if let Some(fields) = &self.fields {
            object.insert("fields", fields.paths().iter().map(|path| Value::from(path.as_str())).collect::<Vec<_>>());
        }
        if let Some(token) = &self.after {
            object.insert("bookmark", token.as_str());
        }
        Ok(Value::Object(object))
    }

    /// The limits of [`Query::time_limit`], [`Query::rows_max`] and [`Query::memory_max`].
    pub fn execution_limits(&self) -> (Option<Duration>, Option<u64>, Option<usize>) {
        (self.limits.time, self.limits.rows, self.limits.memory_bytes)
    }

    /// The handle of [`Query::cancelled_by`].
    pub fn cancellation(&self) -> Option<&Cancellation> {
        self.limits.cancellation.as_ref()
    }

    /// The key of [`Query::after_key`].
    pub fn first_after(&self) -> Option<&RowKey> {
        self.after_key.as_ref()
    }

    /// The sort order.
    pub fn sort_order(&self) -> &Sort {
        &self.sort
    }

    /// The most rows that are returned, and the number of rows that are skipped.
    pub fn row_range(&self) -> (Option<u64>, u64) {
        (self.limit, self.skip)
    }

    /// The continuation token of [`Query::after`].
    pub fn continuation(&self) -> Option<&str> {
        self.after.as_deref()
    }

    pub(in crate::query) fn projection(&self) -> Option<&Fields> {
        self.fields.as_ref()
    }

    /// The continuation token.
    pub(crate) fn token(&self) -> Option<&str> {
        self.after.as_deref()
    }

    /// The query without its continuation token.
    pub(crate) fn without_token(&self) -> Query {
        Query { after: None, ..self.clone() }
    }

    /// Validates the query and normalizes its selector.
    pub(crate) fn prepare(&self) -> Result<Prepared> {
        if let Some(deferred_error) = &self.deferred_error {
            return Err(deferred_error.duplicate());
        }
        let normal = match &self.plan_cache {
            Some(plan_cache) => plan_cache.normal.clone(),
            None => Arc::new(self.selector.normal()?),
        };
        let mut prepared = Prepared {
            selector: self.selector.clone(),
            normal,
            plan_cache: self.plan_cache.clone(),
            sort: self.sort.clone(),
            limit: self.limit,
            skip: self.skip,
            fields: self.fields.clone(),
            after: None,
        };
        if let Some(token) = &self.after {
            prepared.after = Some(Position::of_token(token, prepared.hash()?)?);
            prepared.skip = 0;
        }
        if let Some(key) = &self.after_key {
            if self.sort.keys.is_empty() {
                return Err(Error::invalid("a query without a sort order cannot continue after a row key"));
            }
            prepared.after = Some(Position::Sorted(key.0.clone()));
            prepared.skip = 0;
        }
        Ok(prepared)
    }

    /// Returns the query with a plan cache: its normal form is computed now, each plan when it is first needed.
    pub(crate) fn with_plan_cache(mut self) -> Result<Query> {
        let normal = self.prepare()?.normal;
        self.plan_cache = Some(Arc::new(QueryPlanCache { normal, plans: Mutex::default(), term: RwLock::default() }));
        Ok(self)
    }

    /// Whether a cached result can answer the query: it is prepared, has neither order, limit, skip nor token, and no
    /// execution limits.
    pub(in crate::query) fn is_lookup(&self) -> bool {
        let is_whole = self.limit.is_none() && self.skip == 0 && self.after.is_none() && self.deferred_error.is_none();
        self.plan_cache.is_some() && is_whole && self.sort.keys.is_empty() && self.limits.is_none()
    }

    /// Calls `ask` with the term that the query looks up, if it is prepared, looks up a single term, and has been
    /// executed before.
    pub(crate) fn with_cached_term<T>(
        &self,
        catalog: CatalogVersion,
        lookup: impl FnOnce(PathNumber, &[u8]) -> Option<T>,
    ) -> Option<T> {
        let plan_cache = self.plan_cache.as_ref().filter(|_| self.is_lookup())?;
        let term = plan_cache.term.read();
        let term = term.as_ref().filter(|term| term.planned_for == catalog)?;
        lookup(term.path, &term.key)
    }

    /// Caches the term of the query and returns it, if its plan looks up a single term.
    pub(in crate::query) fn cache_term(&self, catalog: CatalogVersion, plan: &Plan) -> Option<(PathNumber, Vec<u8>)> {
        let plan_cache = self.plan_cache.as_ref().filter(|_| self.is_lookup())?;
        let (Node::Equal { path, key }, Order::Insertion) = (&plan.filter, &plan.order) else { return None };
        *plan_cache.term.write() = Some(CachedTerm { planned_for: catalog, path: *path, key: key.as_slice().into() });
        Some((*path, key.clone()))
    }

    /// The query without order, limit, skip and token.
    pub(in crate::query) fn unordered(&self) -> Query {
        Query { after: None, after_key: None, sort: Sort::default(), limit: None, skip: 0, ..self.clone() }
    }

    /// The query without order, limit, skip and token, whose number of documents is not limited.
    pub(in crate::query) fn every_document(&self) -> Query {
        let mut query = self.unordered();
        query.limits.rows = None;
        query
    }

    /// Restricts the query to documents that also match `selector`; its order, limit and other options stay.
    #[must_use]
    pub fn within(self, selector: Selector) -> Query {
        Query { selector: selector.and(self.selector), plan_cache: None, ..self }
    }

    /// The query restricted to documents that also match `further`, without order, limit, skip and token.
    pub(in crate::query) fn narrowed(&self, further: Selector) -> Query {
        Query { selector: self.selector.clone().and(further), plan_cache: None, ..self.unordered() }
    }

    /// As [`Query::prepare`], without order, limit, skip and token.
    pub(crate) fn prepare_unordered(&self) -> Result<Prepared> {
        self.unordered().prepare()
    }

    fn sorted_by(mut self, path: &str, descending: bool, language: Option<Language>) -> Self {
        self.plan_cache = None;
        if let Err(error) = self.sort.push(path, descending, language) {
            self.record_error(error);
        }
        self
    }

    fn sorted_in(mut self, path: &str, descending: bool, language: &str) -> Self {
        match Language::new(language) {
            Ok(language) => self.sorted_by(path, descending, Some(language)),
            Err(error) => {
                self.record_error(error);
                self
            }
        }
    }

    fn record_error(&mut self, error: Error) {
        self.deferred_error.get_or_insert(Arc::new(error));
    }
}

impl From<Selector> for Query {
    fn from(selector: Selector) -> Self {
        Query::new(selector)
    }
}

impl From<&Query> for Query {
    fn from(query: &Query) -> Self {
        query.clone()
    }
}

impl Prepared {
    /// Returns the plan of the query for this catalog; reuses a cached plan while the catalog is unchanged.
    pub(crate) fn plan(&self, is_limited: bool, catalog: Catalog<'_>) -> Arc<Plan> {
        let make = || Arc::new(planner::plan(&self.normal, &self.sort, is_limited, catalog));
        let Some(plan_cache) = &self.plan_cache else { return make() };
        let plan_key = PlanKey { catalog: catalog.state(), is_sorted: !self.sort.keys.is_empty(), is_limited };
        let mut plans = plan_cache.plans.lock();
        if let Some((_, plan)) = plans.iter().find(|(key, _)| *key == plan_key) {
            return plan.clone();
        }
        let plan = make();
        if plans.len() == PLANS_MAX {
            plans.remove(0);
        }
        plans.push((plan_key, plan.clone()));
        plan
    }

    /// The hash that continuation tokens of this query contain.
    pub(crate) fn hash(&self) -> Result<QueryHash> {
        Ok(QueryHash::new(&self.selector.to_value()?, &self.sort))
    }
}

fn count(name: &str, value: &Value) -> Result<u64> {
    value.as_u64().ok_or_else(|| Error::invalid(format!("{name} is a whole number from 0")))
}
