//! May this be written? What every design document's `validate_doc_update` says of a document, before it is.

use std::sync::Arc;

use parking_lot::Mutex;
use stemmadb::{Document, Object, Revision, Sequence, Snapshot, Value};

use super::functions::{Functions, document_json, user_context};
use crate::auth::User;
use crate::directory::Served;
use crate::documents::Incoming;
use crate::error::{Failure, Result};
use crate::script::{Scripts, Verb};

/// After more changes design documents are listed instead of looking at each change.
const CHANGES_MAX: usize = 10_000;

/// The validations of a database, kept until a design document changes.
#[derive(Default)]
pub(crate) struct Validators(Mutex<KnownValidators>);

#[derive(Default)]
struct KnownValidators {
    /// The state that they were looked for in; none if they were not yet.
    at: Option<Sequence>,
    /// The design documents that they were found in.
    designs: Vec<(String, Revision)>,
    functions: Arc<Vec<Functions>>,
}

impl Validators {
    /// Whether there may be functions to ask: there were when they were looked for last, or that has yet to be done.
    pub(crate) fn may_be_any(&self) -> bool {
        self.0.try_lock().is_none_or(|known| known.at.is_none() || !known.functions.is_empty())
    }

    /// A design document was written: they have to be looked for again.
    pub(crate) fn design_changed(&self) {
        self.0.lock().at = None;
    }

    /// Those of the state `snapshot`.
    fn of(&self, served: &Served, scripts: &Arc<Scripts>, snapshot: &Snapshot) -> Result<Arc<Vec<Functions>>> {
        let at = snapshot.sequence();
        let mut known = self.0.lock();
        if known.is_stale(served)? {
            known.look(served, scripts, snapshot)?;
        }
        known.at = known.at.max(Some(at));
        Ok(known.functions.clone())
    }
}

impl KnownValidators {
    /// Whether a design document may have changed. Costs a look at each write since.
    fn is_stale(&self, served: &Served) -> Result<bool> {
        let Some(since) = self.at else { return Ok(true) };
        let mut left = CHANGES_MAX;
        for change in served.database().changes(since)?.run() {
            // Those after `at` as well: each document comes up once, where it changed last.
            left -= 1;
            if left == 0 || change?.id.as_str().starts_with("_design/") {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn look(&mut self, served: &Served, scripts: &Arc<Scripts>, snapshot: &Snapshot) -> Result<()> {
        let mut designs = Vec::new();
        for listed in super::listing(snapshot).run() {
            let listed = listed?;
            designs.push((listed.id.as_str().to_owned(), listed.revision));
        }
        if self.designs == designs {
            return Ok(());
        }
        let mut functions = Vec::new();
        for design in super::all(snapshot)? {
            if design.get("validate_doc_update")?.is_some() && super::is_javascript(&design.value()?) {
                functions.push(Functions::new(served, scripts, &design)?);
            }
        }
        (self.designs, self.functions) = (designs, Arc::new(functions));
        Ok(())
    }
}

/// Who writes, and what must agree to it.
#[derive(Clone)]
pub(crate) struct WriteValidator {
    pub(crate) user: User,
    pub(crate) scripts: Arc<Scripts>,
}

/// What functions see of a document that is to be written.
fn incoming_json(id: &str, document: &Incoming) -> String {
    let mut shown = Object::new();
    shown.insert("_id", id);
    if let Some(revision) = &document.revision {
        shown.insert("_rev", revision.to_string());
    }
    if document.deleted {
        shown.insert("_deleted", true);
    }
    if let Some(ancestry) = document.ancestry.as_ref().filter(|ancestry| !ancestry.is_empty()) {
        let hash = |revision: &Revision| {
            let text = revision.to_string();
            Value::from(text.split_once('-').map_or("", |(_, hash)| hash))
        };
        let mut revisions = Object::new();
        revisions.insert("start", ancestry[0].generation());
        revisions.insert("ids", ancestry.iter().map(hash).collect::<Vec<_>>());
        shown.insert("_revisions", revisions);
    }
    if !document.files.is_empty() {
        let mut files = Object::new();
        for file in &document.files {
            let mut told = Object::new();
            told.insert("content_type", file.content_type.as_str());
            told.insert("stub", true);
            files.insert(&file.name, told);
        }
        shown.insert("_attachments", files);
    }
    let body = document.body.as_object().into_iter().flat_map(Object::iter);
    body.for_each(|(name, value)| drop(shown.insert(name, value.clone())));
    Value::Object(shown).to_json()
}

impl WriteValidator {
    /// For each document, in their order, why it may not be written, if so. `_local` documents are nobody's business.
    ///
    /// # Errors
    /// 500 if a function can't be called: then nothing is written.
    pub(crate) fn validate(&self, served: &Served, documents: &[(&str, &Incoming)]) -> Result<Vec<Result<()>>> {
        let security = served.security();
        let is_admin = security.is_admin(&self.user);
        let mut verdicts: Vec<Result<()>> = documents.iter().map(|(id, _)| self.may_touch(id, is_admin)).collect();
        let snapshot = served.database().snapshot()?;
        let validators = served.extension::<Validators>().of(served, &self.scripts, &snapshot)?;
        if validators.is_empty() {
            return Ok(verdicts);
        }
        let validated: Vec<usize> = (0..documents.len())
            .filter(|at| {
                verdicts[*at].is_ok()
                    && !documents[*at].0.starts_with("_design/")
                    && !documents[*at].0.starts_with("_local/")
            })
            .collect();
        let user = user_context(served, &self.user).to_json();
        let security = security.value().to_json();
        let call = |at: &usize| {
            let (id, document) = documents[*at];
            let before = before(&snapshot, id, document)?;
            let before = before.map(|before| document_json(served, &before)).transpose()?.unwrap_or_default();
            Ok([incoming_json(id, document), before, user.clone(), security.clone()])
        };
        let calls = validated.iter().map(call).collect::<Result<Vec<_>>>()?;
        for functions in &*validators {
            if calls.is_empty() {
                break;
            }
            let answers = functions.call(Verb::Validate, &["validate_doc_update"], &calls)?;
            for (at, answer) in validated.iter().zip(answers) {
                if let (true, Err(thrown)) = (verdicts[*at].is_ok(), answer) {
                    verdicts[*at] = Err(super::thrown_failure(thrown));
                }
            }
        }
        Ok(verdicts)
    }

    /// Design documents are for administrators, by whichever route they come.
    fn may_touch(&self, id: &str, is_admin: bool) -> Result<()> {
        match (id.starts_with("_design/") && !is_admin, &self.user.name) {
            (false, _) => Ok(()),
            (true, None) => Err(Failure::unauthorized("You are not a db or server admin.")),
            (true, Some(_)) => Err(Failure::forbidden("You are not a db or server admin.")),
        }
    }
}

/// The revision that a document succeeds: the one it names, else the newest of its ancestors that is there.
fn before(snapshot: &Snapshot, id: &str, document: &Incoming) -> Result<Option<Document>> {
    if let Some(revision) = &document.revision
        && let Some(found) = snapshot.get_revision(id, revision)?
    {
        return Ok(Some(found));
    }
    for ancestor in document.ancestry.iter().flatten() {
        if let Some(found) = snapshot.get_revision(id, ancestor)? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}
