//! Runs the `validate_doc_update` functions of all design documents before documents are written.

use std::sync::Arc;

use parking_lot::Mutex;
use stemmadb::{Document, Object, Revision, Sequence, Snapshot, Value};

use super::functions::{DesignFunctions, document_json, user_context};
use crate::auth::{Restriction, User, write_refused};
use crate::directory::ServedDatabase;
use crate::documents::IncomingDocument;
use crate::error::{Failure, Result};
use crate::script::{CallKind, Scripts};

/// The number of changes to scan for design documents; after more, all design documents are listed instead.
const CHANGES_MAX: usize = 10_000;

/// The validation functions of a database, cached until a design document changes.
#[derive(Default)]
pub(crate) struct Validators(Mutex<CachedValidators>);

#[derive(Default)]
struct CachedValidators {
    /// The sequence at which they were loaded; `None` before that.
    at: Option<Sequence>,
    /// The design documents that were loaded.
    designs: Vec<(String, Revision)>,
    functions: Arc<Vec<DesignFunctions>>,
}

impl Validators {
    /// Whether there may be validation functions: there were when they were last loaded, or they are not loaded yet.
    pub(crate) fn may_exist(&self) -> bool {
        self.0.try_lock().is_none_or(|cached| cached.at.is_none() || !cached.functions.is_empty())
    }

    /// Invalidates the cache after a design document was written.
    pub(crate) fn invalidate(&self) {
        self.0.lock().at = None;
    }

    /// Returns the functions as of `snapshot`.
    fn at_snapshot(
        &self,
        served: &ServedDatabase,
        scripts: &Arc<Scripts>,
        snapshot: &Snapshot,
    ) -> Result<Arc<Vec<DesignFunctions>>> {
        let at = snapshot.sequence();
        let mut cached = self.0.lock();
        if cached.is_stale(served)? {
            cached.reload(served, scripts, snapshot)?;
        }
        cached.at = cached.at.max(Some(at));
        Ok(cached.functions.clone())
    }
}

impl CachedValidators {
    /// Whether a design document may have changed. Scans all changes since the functions were loaded.
    fn is_stale(&self, served: &ServedDatabase) -> Result<bool> {
        let Some(since) = self.at else { return Ok(true) };
        let mut left = CHANGES_MAX;
        for change in served.database().changes(since)?.run() {
            // Changes after `at` count as well: the feed has each document once, at its last change.
            left -= 1;
            if left == 0 || change?.id.as_str().starts_with("_design/") {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn reload(&mut self, served: &ServedDatabase, scripts: &Arc<Scripts>, snapshot: &Snapshot) -> Result<()> {
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
                functions.push(DesignFunctions::new(served, scripts, &design)?);
            }
        }
        (self.designs, self.functions) = (designs, Arc::new(functions));
        Ok(())
    }
}

/// Validates writes of a user.
#[derive(Clone)]
pub(crate) struct WriteValidator {
    pub(crate) user: User,
    pub(crate) scripts: Arc<Scripts>,
    /// The documents that the user may read and write; `None`: all.
    pub(crate) restriction: Option<Restriction>,
}

/// The JSON of a document to be written, as validation functions receive it.
fn incoming_json(id: &str, document: &IncomingDocument) -> String {
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
            let mut stub = Object::new();
            stub.insert("content_type", file.content_type.as_str());
            stub.insert("stub", true);
            files.insert(&file.name, stub);
        }
        shown.insert("_attachments", files);
    }
    let body = document.body.as_object().into_iter().flat_map(Object::iter);
    body.for_each(|(name, value)| drop(shown.insert(name, value.clone())));
    Value::Object(shown).to_json()
}

impl WriteValidator {
    /// Returns for each document, in order, why it must not be written, if so. `_local` documents are not validated.
    ///
    /// # Errors
    /// 500 if a function can't be called. Then nothing may be written.
    pub(crate) fn validate(
        &self,
        served: &ServedDatabase,
        documents: &[(&str, &IncomingDocument)],
    ) -> Result<Vec<Result<()>>> {
        let security = served.security();
        let is_admin = security.is_admin(&self.user);
        let mut verdicts: Vec<Result<()>> =
            documents.iter().map(|(id, _)| self.check_design_document(id, is_admin)).collect();
        let snapshot = served.database().snapshot()?;
        if let Some(restriction) = &self.restriction {
            for ((id, document), verdict) in documents.iter().zip(&mut verdicts) {
                if verdict.is_ok() && !id.starts_with("_local/") {
                    *verdict = check_rule(&snapshot, id, document, restriction)?;
                }
            }
        }
        let validators = served.extension::<Validators>().at_snapshot(served, &self.scripts, &snapshot)?;
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
            let previous = predecessor(&snapshot, id, document)?;
            let previous = previous.map(|previous| document_json(served, &previous)).transpose()?.unwrap_or_default();
            Ok([incoming_json(id, document), previous, user.clone(), security.clone()])
        };
        let calls = validated.iter().map(call).collect::<Result<Vec<_>>>()?;
        for functions in &*validators {
            if calls.is_empty() {
                break;
            }
            let answers = functions.call(CallKind::Validate, &["validate_doc_update"], &calls)?;
            for (at, answer) in validated.iter().zip(answers) {
                if let (true, Err(thrown)) = (verdicts[*at].is_ok(), answer) {
                    verdicts[*at] = Err(super::thrown_failure(thrown));
                }
            }
        }
        Ok(verdicts)
    }

    /// Whether the user may read a document of the database.
    pub(crate) fn may_read(&self, document: &Document) -> Result<bool> {
        match &self.restriction {
            Some(restriction) => restriction.allows(document),
            None => Ok(true),
        }
    }

    /// Checks that only administrators write design documents, by any route.
    fn check_design_document(&self, id: &str, is_admin: bool) -> Result<()> {
        match (id.starts_with("_design/") && !is_admin, &self.user.name) {
            (false, _) => Ok(()),
            (true, None) => Err(Failure::unauthorized("You are not a db or server admin.")),
            (true, Some(_)) => Err(Failure::forbidden("You are not a db or server admin.")),
        }
    }
}

/// Checks that a user may read a document before and after a write: the winning revision, the one that is replaced, and
/// the new one. Returns why not.
fn check_rule(
    snapshot: &Snapshot,
    id: &str,
    document: &IncomingDocument,
    restriction: &Restriction,
) -> Result<Result<()>> {
    let mut is_allowed = restriction.allows_body(id, &document.body)?;
    for before in [snapshot.get(id)?, predecessor(snapshot, id, document)?].into_iter().flatten() {
        is_allowed &= restriction.allows(&before)?;
    }
    Ok(if is_allowed { Ok(()) } else { Err(write_refused()) })
}

/// Adds the fields that the access rule reads to a deletion, from the revision that it deletes, so that those who could
/// read the document are told that it is deleted.
pub(crate) fn keep_rule_fields(served: &ServedDatabase, id: &str, document: &mut IncomingDocument) -> Result<()> {
    let Some(before) = predecessor(&served.database().snapshot()?, id, document)? else { return Ok(()) };
    let Some(body) = document.body.as_object_mut() else { return Ok(()) };
    for (field, value) in &rule_fields(served, &before)? {
        if !body.contains(field) {
            body.insert(field, value.clone());
        }
    }
    Ok(())
}

/// The fields of a revision that the access rule reads.
pub(crate) fn rule_fields(served: &ServedDatabase, document: &Document) -> Result<Object> {
    let (security, mut fields) = (served.security(), Object::new());
    for field in security.rule_fields() {
        if let Some(value) = document.get(field)? {
            fields.insert(field, value);
        }
    }
    Ok(fields)
}

/// Reads the predecessor of a document: the revision that it names, or else the newest of its ancestors that is stored.
fn predecessor(snapshot: &Snapshot, id: &str, document: &IncomingDocument) -> Result<Option<Document>> {
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
