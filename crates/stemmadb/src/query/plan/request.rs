//! A query: a selector, an order, and which part of the result is wanted.

use std::sync::Arc;
use std::time::Duration;

use super::facts::{Facts, FactsState};
use super::planner;
use super::{Node, Order, Plan};
use crate::index::PathNumber;
use crate::query::language::normal::Normal;
use crate::query::language::operators::kind_with_article;
use crate::query::language::page_token::{Position, QueryHash};
use crate::query::language::projection::Fields;
use crate::query::language::selector::Selector;
use crate::query::language::sort::Sort;
use crate::query::source::limits::{Cancellation, Limits};
use crate::sync::{Mutex, RwLock};
use crate::value::Value;
use crate::value::collate::Language;
use crate::{Error, Result};

/// How many plans of one query are kept.
const PLANS_MAX: usize = 4;

/// A selector with an order, a limit, and the fields that are wanted.
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
    limits: Limits,
    /// The normal form and the plans, of a query that is asked again and again.
    ready: Option<Arc<Ready>>,
    /// What was wrong where the query was made; told when it is used.
    problem: Option<Arc<Error>>,
}

/// A query that was checked, ready to be planned.
#[derive(Clone, Debug)]
pub(crate) struct Prepared {
    pub(crate) selector: Selector,
    pub(crate) normal: Arc<Normal>,
    ready: Option<Arc<Ready>>,
    pub(crate) sort: Sort,
    pub(crate) limit: Option<u64>,
    pub(crate) skip: u64,
    pub(crate) fields: Option<Fields>,
    pub(crate) after: Option<Position>,
}

/// What is made once of a query that is asked again and again.
#[derive(Debug)]
struct Ready {
    normal: Arc<Normal>,
    plans: Mutex<Vec<KeptPlan>>,
    /// The term that it asks for, if it asks for one only.
    term: RwLock<Option<KeptTerm>>,
}

#[derive(Debug)]
struct KeptTerm {
    planned_for: FactsState,
    path: PathNumber,
    key: Box<[u8]>,
}

type KeptPlan = (PlannedFor, Arc<Plan>);

/// What a plan depends on beside selector and sort.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PlannedFor {
    facts: FactsState,
    is_sorted: bool,
    is_limited: bool,
}

impl Query {
    /// All documents that match `selector`. Without a sort and without a limit they come in the order of their first
    /// insertion; with a limit in whichever order finds them soonest, which further pages keep.
    pub fn new(selector: Selector) -> Self {
        Query {
            selector,
            sort: Sort::default(),
            limit: None,
            skip: 0,
            fields: None,
            after: None,
            limits: Limits::default(),
            ready: None,
            problem: None,
        }
    }

    /// The query of a CouchDB `_find` body: an object with `selector`, and perhaps `sort`, `limit`, `skip`, `fields` and
    /// `bookmark`. Without a limit, all rows are meant.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid), naming what is wrong.
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
                // CouchDB's word for the position after the last row, and before the first.
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

    /// Orders by the value at `path`, ascending; documents without one come first. Where earlier paths leave a tie, this
    /// one decides, and at last the document id.
    #[must_use]
    pub fn sort(self, path: impl AsRef<str>) -> Self {
        self.sorted_by(path.as_ref(), false, None)
    }

    /// Orders by the value at `path`, descending; documents without one come last.
    #[must_use]
    pub fn sort_descending(self, path: impl AsRef<str>) -> Self {
        self.sorted_by(path.as_ref(), true, None)
    }

    /// Orders by the value at `path`, ascending, strings as people of a language do: a BCP 47 tag such as `de`, or `und` for the order
    /// of no particular language. Other values stay where they are. An index that is [collated](crate::Index::collated) so spares
    /// sorting.
    #[must_use]
    pub fn sort_collated(self, path: impl AsRef<str>, language: impl AsRef<str>) -> Self {
        self.sorted_in(path.as_ref(), false, language.as_ref())
    }

    /// As [`Query::sort_collated`], descending.
    #[must_use]
    pub fn sort_collated_descending(self, path: impl AsRef<str>, language: impl AsRef<str>) -> Self {
        self.sorted_in(path.as_ref(), true, language.as_ref())
    }

    /// Orders as `sort` says, whatever was asked before.
    #[must_use]
    pub fn order(mut self, sort: Sort) -> Self {
        self.ready = None;
        self.sort = sort;
        self
    }

    /// At most `count` rows. Without a sort, any so many.
    #[must_use]
    pub fn limit(mut self, count: u64) -> Self {
        self.limit = Some(count);
        self
    }

    /// Leaves out the first `count` rows. A query that continues after a token skips nothing.
    #[must_use]
    pub fn skip(mut self, count: u64) -> Self {
        self.skip = count;
        self
    }

    /// Returns only these paths of each document, `_id` and `_rev` among them if they are named. No paths mean all.
    #[must_use]
    pub fn fields<P: AsRef<str>>(mut self, paths: impl IntoIterator<Item = P>) -> Self {
        match Fields::new(paths) {
            Ok(fields) => self.fields = fields,
            Err(error) => self.note(error),
        }
        self
    }

    /// Continues after the row that a continuation token stands for. Selector and sort must be those of the query it came
    /// from; limit and fields may differ.
    #[must_use]
    pub fn after(mut self, token: impl Into<String>) -> Self {
        self.after = Some(token.into());
        self
    }

    /// Fails with `Stopped` once it has run for so long, from the moment it was begun.
    #[must_use]
    pub fn time_limit(mut self, time: Duration) -> Self {
        self.limits.time = Some(time);
        self
    }

    /// Fails with `Stopped` where there is one row more than `count`; unlike [`Query::limit`], which ends the result in silence.
    #[must_use]
    pub fn rows_max(mut self, count: u64) -> Self {
        self.limits.rows = Some(count);
        self
    }

    /// Fails with `Stopped` where a sort, a grouping or a set of documents would take more than about `bytes` of memory.
    #[must_use]
    pub fn memory_max(mut self, bytes: usize) -> Self {
        self.limits.memory_bytes = Some(bytes);
        self
    }

    /// Fails with `Stopped` once `cancellation` is used.
    #[must_use]
    pub fn cancelled_by(mut self, cancellation: &Cancellation) -> Self {
        self.limits.cancellation = Some(cancellation.clone());
        self
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    pub(in crate::query) fn into_selector(self) -> Selector {
        self.selector
    }

    /// The selector.
    pub fn selector(&self) -> &Selector {
        &self.selector
    }

    /// Whether the query can be used.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) with what was wrong where the query was made.
    pub fn check(&self) -> Result<()> {
        self.prepare().map(|_| ())
    }

    /// Checks the query and brings its selector into normal form.
    pub(crate) fn prepare(&self) -> Result<Prepared> {
        if let Some(problem) = &self.problem {
            return Err(problem.duplicate());
        }
        let normal = match &self.ready {
            Some(ready) => ready.normal.clone(),
            None => Arc::new(self.selector.normal()?),
        };
        let mut prepared = Prepared {
            selector: self.selector.clone(),
            normal,
            ready: self.ready.clone(),
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
        Ok(prepared)
    }

    /// The same query, which keeps what is made of it: its normal form now, each plan when it is first needed.
    pub(crate) fn kept(mut self) -> Result<Query> {
        let normal = self.prepare()?.normal;
        self.ready = Some(Arc::new(Ready { normal, plans: Mutex::default(), term: RwLock::default() }));
        Ok(self)
    }

    /// Whether it was prepared and asks for all that match, in no order and within no limits: what a kept answer can be given to.
    pub(in crate::query) fn is_look_up(&self) -> bool {
        let is_whole = self.limit.is_none() && self.skip == 0 && self.after.is_none() && self.problem.is_none();
        self.ready.is_some() && is_whole && self.sort.keys.is_empty() && self.limits.is_none()
    }

    /// Calls `ask` with the term that the query asks for, if it was prepared, asks for one only, and was run.
    pub(crate) fn ask_term<T>(&self, facts: FactsState, ask: impl FnOnce(PathNumber, &[u8]) -> Option<T>) -> Option<T> {
        let ready = self.ready.as_ref().filter(|_| self.is_look_up())?;
        let term = ready.term.read();
        let term = term.as_ref().filter(|term| term.planned_for == facts)?;
        ask(term.path, &term.key)
    }

    /// Notes the term that the query asks for, where the index knows this. Whether it asks for one only.
    pub(in crate::query) fn note_term(&self, facts: FactsState, plan: &Plan) -> Option<(PathNumber, Vec<u8>)> {
        let ready = self.ready.as_ref().filter(|_| self.is_look_up())?;
        let (Node::Equal { path, key }, Order::Insertion) = (&plan.filter, &plan.order) else { return None };
        *ready.term.write() = Some(KeptTerm { planned_for: facts, path: *path, key: key.as_slice().into() });
        Some((*path, key.clone()))
    }

    /// The same without order, limit and place.
    pub(in crate::query) fn unordered(&self) -> Query {
        Query { after: None, sort: Sort::default(), limit: None, skip: 0, ..self.clone() }
    }

    /// The same query among the documents that match `selector`.
    pub(crate) fn within(self, selector: Selector) -> Query {
        Query { selector: selector.and(self.selector), ready: None, ..self }
    }

    /// What also meets `further`, without order, limit and place.
    pub(in crate::query) fn narrowed(&self, further: Selector) -> Query {
        Query { selector: self.selector.clone().and(further), ready: None, ..self.unordered() }
    }

    /// As [`Query::prepare`], where neither order nor place in it matter.
    pub(crate) fn prepare_unordered(&self) -> Result<Prepared> {
        self.unordered().prepare()
    }

    fn sorted_by(mut self, path: &str, descending: bool, language: Option<Language>) -> Self {
        self.ready = None;
        if let Err(error) = self.sort.push(path, descending, language) {
            self.note(error);
        }
        self
    }

    fn sorted_in(mut self, path: &str, descending: bool, language: &str) -> Self {
        match Language::new(language) {
            Ok(language) => self.sorted_by(path, descending, Some(language)),
            Err(error) => {
                self.note(error);
                self
            }
        }
    }

    fn note(&mut self, error: Error) {
        self.problem.get_or_insert(Arc::new(error));
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
    /// How the query is answered where the index knows this; a plan that was kept is used again while it holds.
    pub(crate) fn plan(&self, is_limited: bool, facts: Facts<'_>) -> Arc<Plan> {
        let make = || Arc::new(planner::plan(&self.normal, &self.sort, is_limited, facts));
        let Some(ready) = &self.ready else { return make() };
        let planned_for = PlannedFor { facts: facts.state(), is_sorted: !self.sort.keys.is_empty(), is_limited };
        let mut plans = ready.plans.lock();
        if let Some((_, plan)) = plans.iter().find(|(known, _)| *known == planned_for) {
            return plan.clone();
        }
        let plan = make();
        if plans.len() == PLANS_MAX {
            plans.remove(0);
        }
        plans.push((planned_for, plan.clone()));
        plan
    }

    /// What continuation tokens of this query carry.
    pub(crate) fn hash(&self) -> Result<QueryHash> {
        Ok(QueryHash::new(&self.selector.to_value()?, &self.sort))
    }
}

fn count(name: &str, value: &Value) -> Result<u64> {
    value.as_u64().ok_or_else(|| Error::invalid(format!("{name} is a whole number from 0")))
}
