//! Filters of the changes feed.

use std::collections::BTreeSet;
use std::sync::Arc;

use stemmadb::{Change, Changes, Document, Selector, Value};

use crate::app::Call;
use crate::design::{self, DesignFunctions, document_json, request_value};
use crate::directory::ServedDatabase;
use crate::error::{Failure, Result};
use crate::http::{JsonPurpose, Query, blocking, read_json};
use crate::script::CallKind;

/// The filter of a changes feed.
#[derive(Debug, Clone)]
pub(crate) enum ChangesFilter {
    All,
    /// Changes of these documents.
    Ids(BTreeSet<String>),
    /// Changes of documents that match a selector.
    Selector(Box<Selector>),
    /// Changes of design documents.
    Design,
    /// Changes of documents that a filter function accepts, or for which a map function emits rows.
    Function(Box<FilterFunction>),
}

/// A filter or map function of a design document.
#[derive(Clone)]
pub(crate) struct FilterFunction {
    functions: DesignFunctions,
    verb: CallKind,
    path: Vec<String>,
    /// The request object that is passed to the function, as JSON.
    request: String,
}

impl std::fmt::Debug for FilterFunction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Function({})", self.path.join("/"))
    }
}

impl ChangesFilter {
    /// Parses the filter of a request. A function is resolved once: later changes of the design document do not affect
    /// the feed.
    pub(crate) async fn parse(call: &Call, served: &Arc<ServedDatabase>, body: Option<&Value>) -> Result<Self> {
        let query = &call.query;
        match query.text("filter") {
            None | Some("") => Ok(ChangesFilter::All),
            Some("_doc_ids") => parse_ids(query, body).map(ChangesFilter::Ids),
            Some("_selector") => {
                let selector = body.and_then(|body| body.get("selector"));
                let selector =
                    selector.ok_or_else(|| Failure::bad_request("Selector must be specified in POST payload"))?;
                Ok(ChangesFilter::Selector(Box::new(Selector::parse(selector)?)))
            }
            Some("_design") => Ok(ChangesFilter::Design),
            Some("_view") => {
                let name = query.text("view").unwrap_or_default();
                let (design, view) = split_name(name, "`view` must be of the form `designname/viewname`")?;
                let path = ["views", view, "map"].map(str::to_owned).to_vec();
                Self::function(call, served, design, CallKind::ViewFilter, path).await
            }
            Some(name) => {
                let (design, filter) =
                    split_name(name, "filter parameter must be of the form `designname/filtername`")?;
                let path = ["filters", filter].map(str::to_owned).to_vec();
                Self::function(call, served, design, CallKind::Filter, path).await
            }
        }
    }

    async fn function(
        call: &Call,
        served: &Arc<ServedDatabase>,
        design: &str,
        verb: CallKind,
        path: Vec<String>,
    ) -> Result<Self> {
        let request = request_value(served, &call.user, &call.parts, &call.query, "", None).to_json();
        let (served, scripts, name) = (served.clone(), call.state.scripts.clone(), design.to_owned());
        let of_whole = match &call.virtual_database {
            Some(entered) => Some(entered.design(design).await?),
            None => None,
        };
        blocking(move || {
            let functions = match of_whole {
                Some(design) => DesignFunctions::of_whole(&served, &scripts, &design)?,
                None => {
                    let design = design::open(&served.database().snapshot()?, &name)?;
                    DesignFunctions::new(&served, &scripts, &design)?
                }
            };
            let function = FilterFunction { functions, verb, path, request };
            // Compile the function now, so that an invalid one fails the request and not the open feed.
            function.evaluate(&[])?;
            Ok(ChangesFilter::Function(Box::new(function)))
        })
        .await
    }

    /// Whether the filter needs the documents of all changes.
    pub(crate) fn needs_documents(&self) -> bool {
        matches!(self, ChangesFilter::Function(_))
    }

    /// Evaluates the filter on changes that passed [`ChangesFilter::restrict`]: whether each is accepted. Blocks.
    pub(super) fn evaluate(&self, served: &ServedDatabase, changes: &[Change]) -> Result<Vec<bool>> {
        self.evaluate_with(changes, |_, document| Ok(document_json(served, document)?))
    }

    /// As [`ChangesFilter::evaluate`]; `print` prints the document of a change as functions receive it.
    ///
    /// # Errors
    /// Those of `print` and of the function.
    pub(crate) fn evaluate_with(
        &self,
        changes: &[Change],
        print: impl Fn(&Change, &Document) -> Result<String>,
    ) -> Result<Vec<bool>> {
        let ChangesFilter::Function(function) = self else {
            return Ok(changes.iter().map(|change| self.accepts(change)).collect());
        };
        let json = |change: &Change| match &change.document {
            Some(document) => print(change, document),
            None => {
                let id = Value::from(change.id.as_str()).to_json();
                let revision = change.leaves.first().map(ToString::to_string).unwrap_or_default();
                Ok(format!("{{\"_id\":{id},\"_rev\":\"{revision}\",\"_deleted\":true}}"))
            }
        };
        function.evaluate(&changes.iter().map(json).collect::<Result<Vec<_>>>()?)
    }

    /// Applies the part of the filter that the library evaluates.
    pub(super) fn restrict(&self, changes: Changes) -> Result<Changes> {
        match self {
            ChangesFilter::All | ChangesFilter::Design | ChangesFilter::Function(_) => Ok(changes),
            ChangesFilter::Ids(ids) => Ok(changes.ids(ids.iter().cloned())),
            ChangesFilter::Selector(selector) => Ok(changes.selector(selector)?),
        }
    }

    /// Evaluates the part of a filter that needs neither the library nor a function.
    pub(super) fn accepts(&self, change: &Change) -> bool {
        !matches!(self, ChangesFilter::Design) || change.id.is_design()
    }
}

impl FilterFunction {
    fn evaluate(&self, documents: &[String]) -> Result<Vec<bool>> {
        let path: Vec<&str> = self.path.iter().map(String::as_str).collect();
        self.functions.filter(self.verb, &path, documents, &self.request)
    }
}

/// Splits `design/name`.
fn split_name<'a>(text: &'a str, reason: &'static str) -> Result<(&'a str, &'a str)> {
    let parts = text.split_once('/').filter(|(design, name)| !design.is_empty() && !name.is_empty());
    parts.ok_or_else(|| Failure::bad_request(reason))
}

/// The ids of the filter `_doc_ids`.
///
/// # Errors
/// 400 if they are no list.
fn parse_ids(query: &Query, body: Option<&Value>) -> Result<BTreeSet<String>> {
    let from_query =
        query.text("doc_ids").map(|text| read_json(text.as_bytes(), JsonPurpose::Parameters)).transpose()?;
    let list = body.and_then(|body| body.get("doc_ids")).or(from_query.as_ref()).and_then(Value::as_array);
    let list = list.ok_or_else(|| Failure::bad_request("`doc_ids` filter parameter is not a list of doc ids."))?;
    Ok(list.iter().filter_map(|id| id.as_str().map(str::to_owned)).collect())
}
