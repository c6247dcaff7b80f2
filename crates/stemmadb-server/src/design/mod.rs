//! Design documents: their views, filters, validation functions and update functions.
//!
//! A view is registered with the library as a view program, under a name derived from its functions, so changed
//! functions are another view. The validation functions of every design document are called before a document is
//! written.

mod functions;
mod program;
mod rewrite_rules;
mod validate;
mod value_order;

use std::ops::Bound;

use stemmadb::{Document, Listing, Snapshot, Value};

use crate::directory::ServedDatabase;
use crate::error::{Failure, Result};
use crate::script::{ScriptError, ThrownError};

pub(crate) use functions::{DesignFunctions, document_json, request_value};
pub(crate) use program::{DesignView, OVERFLOW, PROGRAM_PREFIX, compile_views, declared_views};
pub(crate) use rewrite_rules::{insecure, rewrite_by_rules};
pub(crate) use validate::{
    Validators, WriteValidator, is_shared, keep_rule_fields, may_validate, rule_fields, shared_designs,
};

/// Reads the design document `name` (without `_design/`).
///
/// # Errors
/// 404 if there is none.
pub(crate) fn open(snapshot: &Snapshot, name: &str) -> Result<Document> {
    let id = format!("_design/{name}");
    match snapshot.get(&id)? {
        Some(document) => Ok(document),
        None if snapshot.revisions(&id)?.is_empty() => Err(Failure::missing()),
        None => Err(Failure::not_found("deleted")),
    }
}

/// Lists the design documents by id, without their content.
fn listing(snapshot: &Snapshot) -> Listing {
    snapshot.list().from(Bound::Included("_design/")).to(Bound::Excluded("_design0"))
}

/// Reads all design documents.
pub(crate) fn all(snapshot: &Snapshot) -> Result<Vec<Document>> {
    let documents =
        listing(snapshot).documents(true).run().filter_map(|listed| listed.map(|listed| listed.document).transpose());
    Ok(documents.collect::<stemmadb::Result<_>>()?)
}

/// The number of design documents.
pub(crate) fn count(snapshot: &Snapshot) -> Result<u64> {
    let mut count = 0;
    for listed in listing(snapshot).run() {
        listed?;
        count += 1;
    }
    Ok(count)
}

/// Whether there are design documents, which queries exclude. Costs one lookup.
pub(crate) fn has_any(snapshot: &Snapshot) -> Result<bool> {
    Ok(listing(snapshot).run().next().transpose()?.is_some())
}

/// Whether the functions are in JavaScript, which is the default language.
pub(crate) fn is_javascript(design: &Value) -> bool {
    design.get("language").and_then(Value::as_str).is_none_or(|language| language == "javascript")
}

/// Whether a design document's views are for queries within a partition. Default: whether the database has partitions.
pub(crate) fn is_partitioned(served: &ServedDatabase, design: &Value) -> bool {
    let option = design.get("options").and_then(|options| options.get("partitioned")).and_then(Value::as_bool);
    option.unwrap_or_else(|| served.is_partitioned())
}

/// The names of a design document's views that can be queried.
pub(crate) fn view_names(design: &Value) -> Vec<String> {
    let views = design.get("views").and_then(Value::as_object).filter(|_| program::has_views(design));
    let names = views.into_iter().flat_map(|views| views.names());
    names.filter(|name| !(*name == "lib" && is_javascript(design))).map(str::to_owned).collect()
}

/// The error response for functions that could not be called.
pub(crate) fn script_failure(error: &ScriptError) -> Failure {
    let internal = hyper::StatusCode::INTERNAL_SERVER_ERROR;
    match error {
        ScriptError::Uncallable(ThrownError { error, reason }) if error == "not_found" => {
            Failure::not_found(reason.clone())
        }
        ScriptError::Uncallable(ThrownError { error, reason }) => Failure::new(internal, error.clone(), reason.clone()),
        ScriptError::Timeout(_) => Failure::new(internal, "os_process_timeout", error.to_string()),
        ScriptError::Busy => {
            Failure::new(hyper::StatusCode::SERVICE_UNAVAILABLE, "service_unavailable", error.to_string())
        }
        ScriptError::TooLarge | ScriptError::Crashed(_) => {
            Failure::new(internal, "os_process_error", error.to_string())
        }
    }
}

/// The error response for an exception that a function threw.
pub(crate) fn thrown_failure(thrown: ThrownError) -> Failure {
    let ThrownError { error, reason } = thrown;
    match error.as_str() {
        "forbidden" => Failure::forbidden(reason),
        "unauthorized" => Failure::unauthorized(reason),
        "not_found" => Failure::not_found(reason),
        "not_acceptable" => Failure::new(hyper::StatusCode::NOT_ACCEPTABLE, error, reason),
        _ => Failure::new(hyper::StatusCode::INTERNAL_SERVER_ERROR, error, reason),
    }
}

/// The error response for a failed view: that of its functions, if they failed.
pub(crate) fn view_failure(error: stemmadb::Error) -> Failure {
    let source = std::error::Error::source(&error).and_then(|source| source.downcast_ref::<ScriptError>());
    source.map(script_failure).unwrap_or_else(|| error.into())
}
