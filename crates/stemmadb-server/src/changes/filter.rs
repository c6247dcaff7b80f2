//! Which changes are wanted.

use std::collections::BTreeSet;

use stemmadb::{Change, Changes, Selector, Value};

use crate::error::{Failure, Result};
use crate::http::{Query, read_json};

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
}

impl Filter {
    pub(crate) fn parse(query: &Query, body: Option<&Value>) -> Result<Self> {
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
            Some(name) => Err(Failure::not_implemented(format!("the filter {name:?} is not known here"))),
        }
    }

    /// The changes that the library can tell to be wanted.
    pub(super) fn narrow(&self, changes: Changes) -> Result<Changes> {
        match self {
            Filter::All | Filter::Design => Ok(changes),
            Filter::Ids(ids) => Ok(changes.ids(ids.iter().cloned())),
            Filter::Selector(selector) => Ok(changes.selector(selector)?),
        }
    }

    /// Whether a change that is left is wanted.
    pub(super) fn keeps(&self, change: &Change) -> bool {
        !matches!(self, Filter::Design) || change.id.is_design()
    }
}

fn ids(query: &Query, body: Option<&Value>) -> Result<BTreeSet<String>> {
    let from_query = query.text("doc_ids").map(|text| read_json(text.as_bytes())).transpose()?;
    let list = body.and_then(|body| body.get("doc_ids")).or(from_query.as_ref()).and_then(Value::as_array);
    let list = list.ok_or_else(|| Failure::bad_request("`doc_ids` filter parameter is not a list of doc ids."))?;
    Ok(list.iter().filter_map(|id| id.as_str().map(str::to_owned)).collect())
}
