//! Which Mango index CouchDB would choose for a query, and what it says about the others.
//!
//! The library plans every query itself. The choice decides only whether the documents of a partial index are meant,
//! and what `_explain` and warnings report.

use hyper::StatusCode;
use stemmadb::{Object, Value};

use super::index::ListedIndex;
use super::request::FindRequest;
use crate::error::{Failure, Result};

/// The text of a query's selector and sort order, in which the names of its fields are looked up.
fn query_text(request: &FindRequest) -> Result<String> {
    let sort = request.sort.as_ref().map_or_else(String::new, Value::to_json);
    Ok(request.selector.to_value()?.to_json() + &sort)
}

/// Whether all fields of an index occur in the query, and it has partitions exactly if the query names one.
fn is_usable(index: &ListedIndex, request: &FindRequest, query: &str) -> bool {
    index.is_partitioned == request.partition.is_some()
        && index.field_names().all(|name| query.contains(&format!("\"{name}\"")))
}

/// The index that CouchDB would choose: the one that the request names, or else the one with the most fields, all of
/// which must occur in the query. A partial index must be named. `None`: the index on `_id`.
pub(crate) fn chosen_index<'a>(known: &'a [ListedIndex], request: &FindRequest) -> Result<Option<&'a ListedIndex>> {
    if let Some(index) = named_index(known, request)? {
        return Ok(Some(index));
    }
    let query = query_text(request)?;
    let usable = known.iter().filter(|index| index.partial().is_none() && is_usable(index, request, &query));
    Ok(usable.max_by_key(|index| index.field_names().count()))
}

/// The index that `use_index` names, if it can be used.
fn named_index<'a>(known: &'a [ListedIndex], request: &FindRequest) -> Result<Option<&'a ListedIndex>> {
    let Some((ddoc, name)) = request.named_index() else { return Ok(None) };
    let query = query_text(request)?;
    Ok(known.iter().find(|index| index.is_named(ddoc, name) && is_usable(index, request, &query)))
}

/// CouchDB's warning that the index named by `use_index` can't be used.
///
/// # Errors
/// 400 if the request does not allow another index.
pub(crate) fn unused_index_warning(known: &[ListedIndex], request: &FindRequest) -> Result<Option<String>> {
    let Some((ddoc, name)) = request.named_index() else { return Ok(None) };
    if named_index(known, request)?.is_some() {
        return Ok(None);
    }
    let warning = match name {
        None => format!("_design/{ddoc} was not used because it does not contain a valid index for this query."),
        Some(name) => format!("_design/{ddoc}, {name} was not used because it is not a valid index for this query."),
    };
    match request.allow_fallback {
        true => Ok(Some(warning)),
        false => Err(Failure::new(StatusCode::BAD_REQUEST, "invalid_index", warning)),
    }
}

/// The indexes besides the chosen one, each with why it was not chosen, as in CouchDB.
pub(crate) fn index_candidates(
    known: &[ListedIndex],
    chosen: Option<&ListedIndex>,
    request: &FindRequest,
) -> Result<Value> {
    let query = query_text(request)?;
    let candidate = |index: Value, is_usable: bool, reason: &str, ranking: usize| {
        let reason: Object = [("name", Value::from(reason))].into_iter().collect();
        let mut analysis = Object::new();
        analysis.insert("usable", is_usable);
        analysis.insert("reasons", Value::Array(vec![reason.into()]));
        analysis.insert("ranking", ranking);
        analysis.insert("covering", Value::Null);
        let mut candidate = Object::new();
        candidate.insert("index", index);
        candidate.insert("analysis", analysis);
        Value::Object(candidate)
    };
    let mut candidates = Vec::new();
    if chosen.is_some() {
        candidates.push(candidate(ListedIndex::special(), true, "unfavored_type", 1));
    }
    for index in known.iter().filter(|index| chosen.is_none_or(|chosen| !std::ptr::eq(*index, chosen))) {
        let (is_usable, reason) = match (is_usable(index, request, &query), index.partial()) {
            _ if index.is_partitioned != request.partition.is_some() => (false, "scope_mismatch"),
            (false, _) => (false, "field_mismatch"),
            (true, Some(_)) => (false, "is_partial"),
            (true, None) => (true, "less_overlap"),
        };
        let ranking = if is_usable { candidates.len() + 1 } else { 0 };
        candidates.push(candidate(index.to_value(), is_usable, reason, ranking));
    }
    Ok(Value::Array(candidates))
}
