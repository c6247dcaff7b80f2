//! Figures of all members: counts, sums, extremes, distinct values and groups.
//!
//! Every member computes the state of the figures of its documents, and the states are merged. Copies of common
//! documents that do not count are excluded by their ids.

use stemmadb::merging::PartialAggregation;
use stemmadb::{Aggregation, Error, Object, Result, Selector, Summary, Value};

use crate::federation::{Federation, Terms, prepared};
use crate::find::{FederatedFind, FederatedGroupBy};
use crate::view::{MemberView, View};

/// An aggregation: its documents, and the rest of its description.
struct Figures {
    selector: Selector,
    rest: Object,
}

pub(crate) fn count(find: &FederatedFind) -> Result<u64> {
    let terms = find.terms();
    find.federation.figures(&terms, |federation, view| {
        let query = prepared(find.query.clone().without_continuation(), &federation.members)?;
        let counts = federation.ask(
            view,
            &terms,
            |at, database| view.remote_find(at, database, terms.bounded(view.narrowed(at, &query))).send_count(),
            |at, snapshot| snapshot.find(terms.bounded(view.narrowed(at, &query))).count(),
        )?;
        Ok(counts.into_iter().sum())
    })
}

pub(crate) fn aggregate(
    federation: &Federation,
    aggregation: &Value,
    within: Option<Selector>,
    terms: &Terms,
) -> Result<Vec<(Value, Object)>> {
    let parsed = Aggregation::parse(aggregation)?;
    let mut rest = aggregation.as_object().cloned().unwrap_or_default();
    let selector = match rest.remove("selector") {
        Some(selector) => Selector::parse(&selector)?,
        None => Selector::everything(),
    };
    let selector = match within {
        Some(within) => selector.and(within),
        None => selector,
    };
    let state = Figures { selector, rest }.state(federation, terms, |aggregation| aggregation)?;
    parsed.finish(state)
}

pub(crate) fn distinct(find: &FederatedFind, path: &str) -> Result<Vec<Value>> {
    let (aggregation, state) = of_find(find, &[], figure("distinct", path))?;
    let rows = aggregation.finish(state)?;
    match rows.into_iter().next().and_then(|(_, mut figures)| figures.remove(FIGURE)) {
        Some(Value::Array(values)) => Ok(values),
        _ => Ok(Vec::new()),
    }
}

pub(crate) fn extreme(find: &FederatedFind, path: &str, is_largest: bool) -> Result<Option<Value>> {
    let (aggregation, state) = of_find(find, &[], figure(if is_largest { "max" } else { "min" }, path))?;
    aggregation.finish_extreme(state, path, is_largest)
}

pub(crate) fn summary(find: &FederatedFind, path: &str) -> Result<Summary> {
    let (aggregation, state) = of_find(find, &[], figure("sum", path))?;
    Ok(aggregation.finish_summaries(state, path)?.pop().map(|(_, summary)| summary).unwrap_or_default())
}

pub(crate) fn group_counts(groups: &FederatedGroupBy) -> Result<Vec<(Value, u64)>> {
    let paths = groups.paths.clone().checked()?;
    let (aggregation, state) = of_find(&groups.find, &paths, "count".into())?;
    let count = |(key, figures): (Value, Object)| Some((key, figures.get(FIGURE)?.as_u64()?));
    let counts = aggregation.finish(state)?.into_iter().map(count).collect::<Option<_>>();
    counts.ok_or_else(|| Error::invalid("a group has no count"))
}

pub(crate) fn group_summaries(groups: &FederatedGroupBy, path: &str) -> Result<Vec<(Value, Summary)>> {
    let paths = groups.paths.clone().checked()?;
    let (aggregation, state) = of_find(&groups.find, &paths, figure("sum", path))?;
    aggregation.finish_summaries(state, path)
}

/// The name of the only figure.
const FIGURE: &str = "figure";

fn figure(function: &str, path: &str) -> Value {
    Value::Object([(function, Value::from(path))].into_iter().collect())
}

/// The state of one figure of the documents that a query finds.
fn of_find(find: &FederatedFind, group_by: &[String], figure: Value) -> Result<(Aggregation, PartialAggregation)> {
    let mut rest = Object::new();
    if !group_by.is_empty() {
        rest.insert("group_by", group_by.iter().map(|path| Value::from(path.as_str())).collect::<Vec<_>>());
    }
    rest.insert("figures", Value::Object([(FIGURE, figure)].into_iter().collect()));
    find.query.clone().without_continuation().check()?;
    let figures = Figures { selector: find.query.selector().clone(), rest };
    let cancellation = find.query.cancellation().cloned();
    let state = figures.state(&find.federation, &find.terms(), |aggregation| match &cancellation {
        Some(cancellation) => aggregation.cancelled_by(cancellation),
        None => aggregation,
    })?;
    Ok((Aggregation::parse(&Value::Object(figures.rest))?, state))
}

impl Figures {
    fn state(
        &self,
        federation: &Federation,
        terms: &Terms,
        with_cancellation: impl Fn(Aggregation) -> Aggregation,
    ) -> Result<PartialAggregation> {
        let aggregation = with_cancellation(Aggregation::parse(&Value::Object(self.rest.clone()))?);
        federation.figures(terms, |federation, view| self.merged(federation, view, terms, &aggregation))
    }

    /// The states of all members, merged.
    fn merged(
        &self,
        federation: &Federation,
        view: &View,
        terms: &Terms,
        aggregation: &Aggregation,
    ) -> Result<PartialAggregation> {
        let selector = |at: usize| match view.counted(at) {
            Some(counted) => self.selector.clone().and(counted),
            None => self.selector.clone(),
        };
        let states = federation.ask(
            view,
            terms,
            |at, database| {
                let mut whole = self.rest.clone();
                whole.insert("selector", selector(at).to_value()?);
                match &view.members[at] {
                    MemberView::Remote(Some(sequence)) => {
                        database.as_of(*sequence).send_aggregation(&Value::Object(whole), terms.time_left())
                    }
                    _ => database.send_aggregation(&Value::Object(whole), terms.time_left()),
                }
            },
            |at, snapshot| {
                let mut aggregation = aggregation.clone().narrowed(selector(at));
                if let Some(time) = terms.time_left() {
                    aggregation = aggregation.time_limit(time);
                }
                aggregation.partial(snapshot)
            },
        )?;
        let mut merged = PartialAggregation::default();
        states.into_iter().for_each(|state| merged.merge(state));
        Ok(merged)
    }
}
