//! Runs the `validate_doc_update` functions of all design documents before documents are written.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use stemmadb::{Document, Object, Revision, Sequence, Snapshot, Value};

use super::functions::{DesignFunctions, document_json, user_context};
use crate::auth::{Restriction, User, write_refused};
use crate::directory::{ServedDatabase, WholeDatabase};
use crate::documents::IncomingDocument;
use crate::error::{Failure, Result};
use crate::script::{CallKind, Scripts};

/// The number of changes to scan for design documents; after more, all design documents are listed instead.
const CHANGES_MAX: usize = 10_000;

/// The validation functions of a database, cached until a design document changes.
#[derive(Default)]
pub(crate) struct Validators {
    cached: Mutex<CachedValidators>,
    /// Those of a shard, which are those of all shards, and the version of its virtual database.
    of_whole: Mutex<Option<(String, Arc<Vec<DesignFunctions>>)>>,
    /// Whether a design document was written since this was last asked.
    is_changed: AtomicBool,
}

#[derive(Default)]
struct CachedValidators {
    /// The sequence at which they were loaded; `None` before that.
    at: Option<Sequence>,
    /// The design documents that were loaded.
    designs: Vec<(String, Revision)>,
    functions: Arc<Vec<DesignFunctions>>,
}

/// Whether a database may have validation functions: there were when they were last loaded, or they are not loaded yet.
pub(crate) fn may_validate(served: &ServedDatabase) -> bool {
    match served.whole() {
        Some(whole) => whole.designs.iter().any(is_validating),
        None => served.extension::<Validators>().may_exist(),
    }
}

impl Validators {
    fn may_exist(&self) -> bool {
        self.cached.try_lock().is_none_or(|cached| cached.at.is_none() || !cached.functions.is_empty())
    }

    /// Invalidates the cache after a design document was written.
    pub(crate) fn invalidate(&self) {
        self.cached.lock().at = None;
        self.is_changed.store(true, Ordering::Release);
    }

    /// Whether a design document was written since this was last called.
    pub(crate) fn take_changed(&self) -> bool {
        self.is_changed.swap(false, Ordering::AcqRel)
    }

    /// Returns the functions as of `snapshot`.
    fn at_snapshot(
        &self,
        served: &ServedDatabase,
        scripts: &Arc<Scripts>,
        snapshot: &Snapshot,
    ) -> Result<Arc<Vec<DesignFunctions>>> {
        if let Some(whole) = served.whole() {
            return self.of_whole(served, scripts, &whole);
        }
        let at = snapshot.sequence();
        let mut cached = self.cached.lock();
        if cached.is_stale(served)? {
            cached.reload(served, scripts, snapshot)?;
        }
        cached.at = cached.at.max(Some(at));
        Ok(cached.functions.clone())
    }

    /// The functions of a shard's virtual database.
    fn of_whole(
        &self,
        served: &ServedDatabase,
        scripts: &Arc<Scripts>,
        whole: &WholeDatabase,
    ) -> Result<Arc<Vec<DesignFunctions>>> {
        let mut known = self.of_whole.lock();
        if let Some((version, functions)) = known.as_ref()
            && *version == whole.version
        {
            return Ok(functions.clone());
        }
        let designs = whole.designs.iter().filter(|design| is_validating(design));
        let functions = designs.map(|design| DesignFunctions::of_whole(served, scripts, design));
        let functions = Arc::new(functions.collect::<Result<Vec<_>>>()?);
        *known = Some((whole.version.clone(), functions.clone()));
        Ok(functions)
    }
}

/// The design documents of a shard that all shards of its virtual database have to know, as functions receive them.
///
/// # Errors
/// 500 if they can't be read.
pub(crate) fn shared_designs(served: &ServedDatabase) -> Result<Vec<Value>> {
    let mut designs = Vec::new();
    for design in super::all(&served.database().snapshot()?)? {
        if is_shared(&design.value()?) {
            designs.push(Value::parse(document_json(served, &design)?.as_bytes())?);
        }
    }
    Ok(designs)
}

/// Whether all shards of a virtual database have to know a design document: it has a validation function, or indexes.
pub(crate) fn is_shared(design: &Value) -> bool {
    is_validating(design) || design.get("language").and_then(Value::as_str) == Some("query")
}

/// Whether a design document has a validation function that is called.
fn is_validating(design: &Value) -> bool {
    design.get("validate_doc_update").is_some() && super::is_javascript(design)
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
    /// Whether a shard is written by a user of its virtual database. Other writes to a shard on another server copy its
    /// documents and delete copies: nothing is validated then.
    pub(crate) is_of_whole: bool,
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
    /// Whether a write copies documents of a shard, or deletes copies.
    pub(crate) fn copies(&self, served: &ServedDatabase) -> bool {
        !self.is_of_whole && !served.is_shard() && served.whole().is_some()
    }

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
