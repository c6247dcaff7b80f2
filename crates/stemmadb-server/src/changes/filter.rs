//! Which changes are wanted.

use std::collections::BTreeSet;
use std::sync::Arc;

use stemmadb::{Change, Changes, Selector, Value};

use crate::app::Call;
use crate::design::{self, Functions, document_json, request_value};
use crate::directory::Served;
use crate::error::{Failure, Result};
use crate::http::{JsonPurpose, Query, blocking, read_json};
use crate::script::Verb;

/// Which changes are wanted.
#[derive(Debug, Clone)]
pub(crate) enum Filter {
    All,
    /// Of these documents.
    Ids(BTreeSet<String>),
    /// Of documents that match.
    Selector(Box<Selector>),
    /// Of design documents.
    Design,
    /// Of documents that a function of a design document keeps, or maps to rows.
    Function(Box<Function>),
}

/// A function that keeps some documents.
#[derive(Clone)]
pub(crate) struct Function {
    functions: Functions,
    verb: Verb,
    path: Vec<String>,
    /// The request, as functions see it.
    request: String,
}

impl std::fmt::Debug for Function {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Function({})", self.path.join("/"))
    }
}

impl Filter {
    /// What the query and the body ask for. A function is found now, and stays the same while the feed lasts.
    pub(crate) async fn parse(call: &Call, served: &Arc<Served>, body: Option<&Value>) -> Result<Self> {
        let query = &call.query;
        match query.text("filter") {
            None | Some("") => Ok(Filter::All),
            Some("_doc_ids") => ids(query, body).map(Filter::Ids),
            Some("_selector") => {
                let selector = body.and_then(|body| body.get("selector"));
                let selector =
                    selector.ok_or_else(|| Failure::bad_request("Selector must be specified in POST payload"))?;
                Ok(Filter::Selector(Box::new(Selector::parse(selector)?)))
            }
            Some("_design") => Ok(Filter::Design),
            Some("_view") => {
                let name = query.text("view").unwrap_or_default();
                let (design, view) = named(name, "`view` must be of the form `designname/viewname`")?;
                let path = ["views", view, "map"].map(str::to_owned).to_vec();
                Self::function(call, served, design, Verb::ViewFilter, path).await
            }
            Some(name) => {
                let (design, filter) = named(name, "filter parameter must be of the form `designname/filtername`")?;
                let path = ["filters", filter].map(str::to_owned).to_vec();
                Self::function(call, served, design, Verb::Filter, path).await
            }
        }
    }

    async fn function(call: &Call, served: &Arc<Served>, design: &str, verb: Verb, path: Vec<String>) -> Result<Self> {
        let request = request_value(served, &call.user, &call.parts, &call.query, "", None).to_json();
        let (served, scripts, design) = (served.clone(), call.state.scripts.clone(), design.to_owned());
        blocking(move || {
            let design = design::open(&served.database().snapshot()?, &design)?;
            let functions = Functions::new(&served, &scripts, &design)?;
            let function = Function { functions, verb, path, request };
            // What is no function is told now, not when the first document comes.
            function.keep(&[])?;
            Ok(Filter::Function(Box::new(function)))
        })
        .await
    }

    /// Whether documents are asked for before it is known that they are wanted.
    pub(super) fn needs_documents(&self) -> bool {
        matches!(self, Filter::Function(_))
    }

    /// Which of some changes are wanted, of those that are left. Blocks.
    pub(super) fn keep(&self, served: &Served, changes: &[Change]) -> Result<Vec<bool>> {
        let Filter::Function(function) = self else {
            return Ok(changes.iter().map(|change| self.keeps(change)).collect());
        };
        let json = |change: &Change| match &change.document {
            Some(document) => Ok(document_json(served, document)?),
            None => {
                let id = Value::from(change.id.as_str()).to_json();
                let revision = change.leaves.first().map(ToString::to_string).unwrap_or_default();
                Ok(format!("{{\"_id\":{id},\"_rev\":\"{revision}\",\"_deleted\":true}}"))
            }
        };
        function.keep(&changes.iter().map(json).collect::<Result<Vec<_>>>()?)
    }

    /// The changes that the library can tell to be wanted.
    pub(super) fn narrow(&self, changes: Changes) -> Result<Changes> {
        match self {
            Filter::All | Filter::Design | Filter::Function(_) => Ok(changes),
            Filter::Ids(ids) => Ok(changes.ids(ids.iter().cloned())),
            Filter::Selector(selector) => Ok(changes.selector(selector)?),
        }
    }

    /// Whether a change that is left is wanted.
    fn keeps(&self, change: &Change) -> bool {
        !matches!(self, Filter::Design) || change.id.is_design()
    }
}

impl Function {
    fn keep(&self, documents: &[String]) -> Result<Vec<bool>> {
        let path: Vec<&str> = self.path.iter().map(String::as_str).collect();
        self.functions.filter(self.verb, &path, documents, &self.request)
    }
}

/// The two parts of `design/name`.
fn named<'a>(text: &'a str, wrong: &'static str) -> Result<(&'a str, &'a str)> {
    let parts = text.split_once('/').filter(|(design, name)| !design.is_empty() && !name.is_empty());
    parts.ok_or_else(|| Failure::bad_request(wrong))
}

fn ids(query: &Query, body: Option<&Value>) -> Result<BTreeSet<String>> {
    let from_query =
        query.text("doc_ids").map(|text| read_json(text.as_bytes(), JsonPurpose::Parameters)).transpose()?;
    let list = body.and_then(|body| body.get("doc_ids")).or(from_query.as_ref()).and_then(Value::as_array);
    let list = list.ok_or_else(|| Failure::bad_request("`doc_ids` filter parameter is not a list of doc ids."))?;
    Ok(list.iter().filter_map(|id| id.as_str().map(str::to_owned)).collect())
}
