//! What do design documents say? Their functions, found and called: views, filters, validations, updates.
//!
//! A view is a program's view of the library, under a name made from its functions: other functions, another view. A validation is asked
//! of every design document before a document is written.

mod functions;
mod program;
mod validate;

use std::ops::Bound;

use stemmadb::{Document, Listing, Snapshot, Value};

use crate::error::{Failure, Result};
use crate::script::{ScriptError, Thrown};

pub(crate) use functions::{Functions, document_json, request_value};
pub(crate) use program::{DesignView, PROGRAM_PREFIX, declared_signatures};
pub(crate) use validate::{Validators, WriteValidator};

/// The design document `name` (without `_design/`).
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

/// The design documents in the order of their ids, without what they say.
fn listing(snapshot: &Snapshot) -> Listing {
    snapshot.list().from(Bound::Included("_design/")).to(Bound::Excluded("_design0"))
}

/// All design documents.
pub(crate) fn all(snapshot: &Snapshot) -> Result<Vec<Document>> {
    let documents =
        listing(snapshot).documents(true).run().filter_map(|listed| listed.map(|listed| listed.document).transpose());
    Ok(documents.collect::<stemmadb::Result<_>>()?)
}

/// Whether there are design documents, which no query finds. Costs a look-up.
pub(crate) fn has_any(snapshot: &Snapshot) -> Result<bool> {
    Ok(listing(snapshot).run().next().transpose()?.is_some())
}

/// Whether its functions are in JavaScript, which is what is meant where nothing is said.
pub(crate) fn is_javascript(design: &Value) -> bool {
    design.get("language").and_then(Value::as_str).is_none_or(|language| language == "javascript")
}

/// The names of a design document's views that can be asked.
pub(crate) fn view_names(design: &Value) -> Vec<String> {
    let views = design.get("views").and_then(Value::as_object).filter(|_| program::has_views(design));
    let names = views.into_iter().flat_map(|views| views.names());
    names.filter(|name| !(*name == "lib" && is_javascript(design))).map(str::to_owned).collect()
}

/// What a client is told of functions that could not be called.
pub(crate) fn script_failure(error: &ScriptError) -> Failure {
    let internal = hyper::StatusCode::INTERNAL_SERVER_ERROR;
    match error {
        ScriptError::Uncallable(Thrown { error, reason }) if error == "not_found" => Failure::not_found(reason.clone()),
        ScriptError::Uncallable(Thrown { error, reason }) => Failure::new(internal, error.clone(), reason.clone()),
        ScriptError::Timeout(_) => Failure::new(internal, "os_process_timeout", error.to_string()),
        ScriptError::Busy => {
            Failure::new(hyper::StatusCode::SERVICE_UNAVAILABLE, "service_unavailable", error.to_string())
        }
        ScriptError::TooLarge | ScriptError::Crashed(_) => {
            Failure::new(internal, "os_process_error", error.to_string())
        }
    }
}

/// What a client is told of what a function threw.
pub(crate) fn thrown_failure(thrown: Thrown) -> Failure {
    let Thrown { error, reason } = thrown;
    match error.as_str() {
        "forbidden" => Failure::forbidden(reason),
        "unauthorized" => Failure::unauthorized(reason),
        "not_found" => Failure::not_found(reason),
        _ => Failure::new(hyper::StatusCode::INTERNAL_SERVER_ERROR, error, reason),
    }
}

/// What a client is told of an error of a view: of its functions, if they were what failed.
pub(crate) fn view_failure(error: stemmadb::Error) -> Failure {
    let source = std::error::Error::source(&error).and_then(|source| source.downcast_ref::<ScriptError>());
    source.map(script_failure).unwrap_or_else(|| error.into())
}
