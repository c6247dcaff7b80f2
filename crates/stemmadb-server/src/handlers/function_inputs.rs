//! What functions of design documents get: the design document and the document that they are called for, of a database
//! or of a virtual one, whose shards have them.

use std::sync::Arc;

use hyper::StatusCode;
use stemmadb::{Document, Value};

use super::spread::read_document;
use crate::app::Call;
use crate::design::{self, DesignFunctions, document_json};
use crate::directory::ServedDatabase;
use crate::error::Result;
use crate::http::{Query, blocking};
use crate::script::Scripts;

/// What a function gets.
pub(super) struct FunctionInputs {
    pub(super) served: Arc<ServedDatabase>,
    pub(super) design: Value,
    /// None if it does not exist.
    pub(super) document: Option<Value>,
}

impl FunctionInputs {
    /// Reads a design document, without `_design/` in its name, and a document.
    ///
    /// # Errors
    /// 404 if there is no such design document.
    pub(super) async fn read(call: &Call, design: &str, id: Option<&str>) -> Result<Self> {
        let served = call.open_own().await?;
        if let Some(entered) = &call.virtual_database {
            let design = entered.design(design).await?;
            let document = match id {
                None => None,
                Some(id) => match read_document(call, id, &Query::default()).await {
                    Err(failure) if failure.status() == StatusCode::NOT_FOUND => None,
                    read => Some(read?),
                },
            };
            return Ok(FunctionInputs { served, design, document });
        }
        let (design, id) = (design.to_owned(), id.map(str::to_owned));
        blocking(move || {
            let snapshot = served.database().snapshot()?;
            let json = |document: &Document| -> Result<Value> {
                Ok(Value::parse(document_json(&served, document)?.as_bytes())?)
            };
            let design = json(&design::open(&snapshot, &design)?)?;
            let document = id.map(|id| snapshot.get(&id)).transpose()?.flatten();
            let document = document.as_ref().map(json).transpose()?;
            Ok(FunctionInputs { served, design, document })
        })
        .await
    }

    /// The functions of the design document.
    ///
    /// # Errors
    /// 400 if they are in another language than JavaScript.
    pub(super) fn functions(&self, scripts: &Arc<Scripts>) -> Result<DesignFunctions> {
        DesignFunctions::of_whole(&self.served, scripts, &self.design)
    }

    /// The revisions of both documents.
    pub(super) fn revisions(&self) -> [&str; 2] {
        [revision_of(Some(&self.design)), revision_of(self.document.as_ref())]
    }

    /// The document as JSON.
    pub(super) fn document_text(&self) -> String {
        self.document.as_ref().map_or_else(|| "null".to_owned(), Value::to_json)
    }
}

fn revision_of(document: Option<&Value>) -> &str {
    document.and_then(|document| document.get("_rev")).and_then(Value::as_str).unwrap_or_default()
}
