//! The library's edits, with validation functions and the rules of `_users` applied.

use stemmadb::{Document, DocumentId, Edit, ErrorKind, Revision, Value};

use super::departures::departures;
use super::write::{WriteOptions, validate_documents};
use crate::auth::USERS_DATABASE;
use crate::design::{Validators, WriteValidator, may_validate, rule_fields};
use crate::directory::ServedDatabase;
use crate::documents::{IncomingContent, IncomingDocument, IncomingFile};
use crate::error::{Failure, Result, library_error};

/// The result of one edit: an error of the library, or a refusal of the server.
pub(crate) type EditOutcome = Result<Revision, EditError>;

/// Why an edit was not applied.
#[derive(Debug)]
pub(crate) enum EditError {
    /// The library's error.
    Library(stemmadb::Error),
    /// The server refused it: rights, validation.
    Refused(Failure),
}

impl From<EditError> for stemmadb::Error {
    fn from(error: EditError) -> Self {
        match error {
            EditError::Library(error) => error,
            EditError::Refused(failure) => library_error(&failure),
        }
    }
}

impl EditError {
    /// Whether another writer changed the document in between.
    fn is_conflict(&self) -> bool {
        matches!(self, EditError::Library(error) if error.kind() == ErrorKind::Conflict)
    }
}

/// How often an update of parts of a document is attempted while other writers change the document.
const ATTEMPTS_MAX: usize = 100;

/// Whether edits may be refused, or changed, by more than the library's own rules.
pub(crate) fn needs_validation(served: &ServedDatabase, edits: &[Edit], validator: &WriteValidator) -> bool {
    if validator.copies(served) {
        return false;
    }
    let has_functions = may_validate(served) || served.name() == USERS_DATABASE;
    let is_restricted = validator.restriction.is_some() || served.security().has_rule();
    has_functions
        || is_restricted
        || served.is_partitioned()
        || edits.iter().any(|edit| edit.id().as_str().starts_with('_'))
}

/// Validates edits. An update of parts of a document becomes the replacement of the body that was read.
///
/// # Errors
/// As `write`. The result of each edit may be an error of its own.
pub(crate) fn prepare_edits(
    served: &ServedDatabase,
    edits: Vec<Edit>,
    options: &WriteOptions,
) -> Result<Vec<Result<Edit, EditError>>> {
    if !needs_validation(served, &edits, &options.validator) {
        return Ok(edits.into_iter().map(Ok).collect());
    }
    let mut prepared = Vec::with_capacity(edits.len());
    let (mut positions, mut documents, mut kinds) = (Vec::new(), Vec::new(), Vec::new());
    for edit in edits {
        match resolved(served, edit, options).and_then(|edit| Ok((incoming(served, &edit)?, edit))) {
            Ok((document, edit)) => {
                positions.push(prepared.len());
                documents.push(document);
                kinds.push(edit.clone());
                prepared.push(Ok(edit));
            }
            Err(error) => prepared.push(Err(error)),
        }
    }
    let validated = validate_documents(served, documents, options)?;
    for ((position, kind), (_, document, verdict)) in positions.into_iter().zip(kinds).zip(validated) {
        prepared[position] = match verdict {
            Ok(()) => Ok(with_body(kind, document.body)),
            Err(failure) => Err(EditError::Refused(failure)),
        };
    }
    Ok(prepared)
}

/// Replaces edits that depend on the current document by those that don't: see [`resolve`].
fn resolved(served: &ServedDatabase, edit: Edit, options: &WriteOptions) -> Result<Edit, EditError> {
    resolve(served, edit, &options.validator, |id| served.database().get(id))
}

/// Replaces an update of parts of a document by a replacement of its body; if the database has an access rule, also a
/// deletion by one that keeps the fields of the rule, and an upsert of a restricted user by an insertion or a
/// replacement, so that the document that is replaced is the one that was checked. `read` reads the current document.
///
/// # Errors
/// `NotFound` for a document that the user may not read, as if it did not exist: other errors would reveal it.
pub(crate) fn resolve(
    served: &ServedDatabase,
    edit: Edit,
    validator: &WriteValidator,
    mut read: impl FnMut(&str) -> stemmadb::Result<Option<Document>>,
) -> Result<Edit, EditError> {
    let mut current = |id: &DocumentId| read(id.as_str()).map_err(EditError::Library);
    let not_found =
        |id: &DocumentId| EditError::Library(stemmadb::Error::not_found(format!("there is no document `{id}`")));
    let may_read = |document: &Document| validator.may_read(document).map_err(EditError::Refused);
    match edit {
        Edit::Update { id, revision, patch } => {
            let Some(current) = current(&id)? else { return Err(not_found(&id)) };
            if !may_read(&current)? {
                return Err(not_found(&id));
            }
            let revision = revision.unwrap_or(*current.revision());
            let base = match revision == *current.revision() {
                true => Some(current),
                false => leaf(served, &id, &revision).map_err(EditError::Library)?,
            };
            let conflict = || stemmadb::Error::conflict(format!("document `{id}` is not at {revision}"));
            let base = base.ok_or_else(|| EditError::Library(conflict()))?;
            if !may_read(&base)? {
                return Err(not_found(&id));
            }
            let body = base.value().and_then(|body| patch.apply(&body)).map_err(EditError::Library)?;
            Ok(Edit::Replace { id, revision, body })
        }
        Edit::Upsert { id, body } if validator.restriction.is_some() => Ok(match current(&id)? {
            Some(current) => Edit::Replace { id, revision: *current.revision(), body },
            None => Edit::Insert { id, body },
        }),
        Edit::Attach { .. } | Edit::Detach { .. } if validator.restriction.is_some() => match current(edit.id())? {
            Some(current) if !may_read(&current)? => Err(not_found(edit.id())),
            _ => Ok(edit),
        },
        Edit::Delete { id, revision } if validator.restriction.is_some() || served.security().has_rule() => {
            let Some(current) = current(&id)? else { return Ok(Edit::Delete { id, revision }) };
            if !may_read(&current)? {
                return Err(not_found(&id));
            }
            let deleted = match *current.revision() == revision {
                true => Some(current),
                false => served.database().get_revision(id.as_str(), &revision).map_err(EditError::Library)?,
            };
            let kept = deleted.filter(|deleted| !deleted.is_deleted()).map(|deleted| rule_fields(served, &deleted));
            match kept.transpose().map_err(EditError::Refused)? {
                Some(body) if !body.is_empty() => {
                    let (parent, body) = (Some(revision), Value::Object(body));
                    Ok(Edit::Put { id, parent, deleted: true, body, files: Vec::new() })
                }
                _ => Ok(Edit::Delete { id, revision }),
            }
        }
        edit => Ok(edit),
    }
}

/// The document at a revision that is the newest of its branch.
fn leaf(served: &ServedDatabase, id: &DocumentId, revision: &Revision) -> stemmadb::Result<Option<Document>> {
    let leaf = served.database().snapshot()?.get_leaf(id.as_str(), revision)?;
    Ok(leaf.filter(|leaf| !leaf.is_deleted()))
}

/// The document that validation functions see.
fn incoming(served: &ServedDatabase, edit: &Edit) -> Result<IncomingDocument, EditError> {
    if let Edit::Attach { id, revision, .. } | Edit::Detach { id, revision, .. } = edit {
        return with_changed_files(served, edit, id.as_str(), *revision).map_err(EditError::Library);
    }
    let (revision, deleted, body) = match edit {
        Edit::Insert { body, .. } | Edit::Upsert { body, .. } => (None, false, body.clone()),
        Edit::Replace { revision, body, .. } => (Some(*revision), false, body.clone()),
        Edit::Delete { revision, .. } => (Some(*revision), true, Value::Object(Default::default())),
        Edit::Put { parent, deleted: true, body, .. } => (*parent, true, body.clone()),
        _ => return Err(EditError::Refused(Failure::not_implemented("this kind of edit can't be sent"))),
    };
    let id = edit.id().as_str();
    if id.starts_with("_local/") {
        return Err(EditError::Library(stemmadb::Error::invalid(format!("`{id}` is a local document"))));
    }
    Ok(IncomingDocument { id: Some(id.to_owned()), revision, deleted, body, ..IncomingDocument::default() })
}

/// The document that validation functions see if a file is attached or removed.
fn with_changed_files(
    served: &ServedDatabase,
    edit: &Edit,
    id: &str,
    revision: Revision,
) -> stemmadb::Result<IncomingDocument> {
    let read = served.database().get_revision(id, &revision)?;
    let read = read.ok_or_else(|| stemmadb::Error::conflict(format!("document `{id}` is not at {revision}")))?;
    let changed = match edit {
        Edit::Attach { name, .. } | Edit::Detach { name, .. } => name.as_str(),
        _ => "",
    };
    let kept = read.attachments()?.into_iter().filter(|file| file.name != changed);
    let stub = |file: stemmadb::Attachment| (file.name, file.content_type, IncomingContent::Stub);
    let added = match edit {
        Edit::Attach { name, content_type, content, .. } => {
            let content = IncomingContent::Stored { blob: content.clone(), md5: [0; 16] };
            Some((name.clone(), content_type.clone(), content))
        }
        _ => None,
    };
    let file = |(name, content_type, content)| IncomingFile { name, content_type, revpos: None, content };
    Ok(IncomingDocument {
        id: Some(id.to_owned()),
        revision: Some(revision),
        body: read.value()?,
        files: kept.map(stub).chain(added).map(file).collect(),
        ..IncomingDocument::default()
    })
}

fn with_body(edit: Edit, new_body: Value) -> Edit {
    match edit {
        Edit::Insert { id, .. } => Edit::Insert { id, body: new_body },
        Edit::Upsert { id, .. } => Edit::Upsert { id, body: new_body },
        Edit::Replace { id, revision, .. } => Edit::Replace { id, revision, body: new_body },
        edit => edit,
    }
}

/// Applies edits independently, with one flush. `record` makes a `_local` document, from the results, that is written
/// in the same transaction unless it is none. Blocks.
///
/// # Errors
/// Those of [`prepare_edits`] and of the library's `bulk`.
pub(crate) fn apply_edits(
    served: &ServedDatabase,
    edits: Vec<Edit>,
    options: &WriteOptions,
    record_id: Option<&str>,
    record: impl Fn(&[EditOutcome]) -> Option<Value>,
) -> Result<Vec<EditOutcome>, EditError> {
    // A single edit of the current document is repeated if others change the document in between.
    let single = match &edits[..] {
        [edit @ Edit::Update { revision: None, .. }] => Some(edit.clone()),
        [edit @ Edit::Upsert { .. }] if options.validator.restriction.is_some() => Some(edit.clone()),
        _ => None,
    };
    let mut outcomes = apply_once(served, edits, options, record_id, &record)?;
    if let Some(edit) = single {
        for _ in 0..ATTEMPTS_MAX {
            match &outcomes[..] {
                [Err(error)] if error.is_conflict() => {}
                _ => break,
            }
            outcomes = apply_once(served, vec![edit.clone()], options, record_id, &record)?;
        }
    }
    Ok(outcomes)
}

fn apply_once(
    served: &ServedDatabase,
    edits: Vec<Edit>,
    options: &WriteOptions,
    record_id: Option<&str>,
    record: impl Fn(&[EditOutcome]) -> Option<Value>,
) -> Result<Vec<EditOutcome>, EditError> {
    let prepared = prepare_edits(served, edits, options).map_err(EditError::Refused)?;
    let writes_design = prepared.iter().flatten().any(|edit| edit.id().is_design());
    let (mut outcomes, mut positions, mut ready) = (Vec::new(), Vec::new(), Vec::new());
    for edit in prepared {
        match edit {
            Ok(edit) => {
                positions.push(outcomes.len());
                ready.push(edit);
                outcomes.push(None);
            }
            Err(error) => outcomes.push(Some(Err(error))),
        }
    }
    let database = served.database().with_durability(options.durability);
    // After the edits, whose results are the first ones.
    ready.extend(departures(served, &options.validator, &ready).map_err(EditError::Refused)?);
    let user = &options.validator.user;
    let written = user.writing(|| match record_id {
        Some(id) => database.local_documents().put_with(
            id,
            ready,
            |_| true,
            |written| {
                // The record has the results in the order of the request, with those of refused edits.
                let mut written = written.iter();
                let all: Vec<EditOutcome> = outcomes
                    .iter()
                    .map(|outcome| match outcome {
                        Some(Err(error)) => Err(error.duplicate()),
                        _ => match written.next() {
                            Some(Ok(revision)) => Ok(*revision),
                            Some(Err(error)) => Err(EditError::Library(error.duplicate())),
                            None => Err(EditError::Library(stemmadb::Error::internal("a result is missing"))),
                        },
                    })
                    .collect();
                record(&all)
            },
        ),
        None => database.bulk(ready),
    });
    let written = written.map_err(EditError::Library)?;
    if writes_design {
        served.extension::<Validators>().invalidate();
    }
    for (position, outcome) in positions.into_iter().zip(written) {
        outcomes[position] = Some(outcome.map_err(EditError::Library));
    }
    Ok(outcomes.into_iter().flatten().collect())
}

impl EditError {
    fn duplicate(&self) -> Self {
        match self {
            EditError::Library(error) => EditError::Library(error.duplicate()),
            EditError::Refused(failure) => EditError::Refused(failure.clone()),
        }
    }
}
