//! The one module that knows how the library is called: the verbs speak in ids, revisions as text and JSON objects.

use std::path::Path;
use std::time::{Duration, Instant};

use stemmadb::{DocumentId, Durability, Edit, ErrorKind, Object, Options, Revision, Sequence, Value};

use crate::arguments::DurabilityChoice;
use crate::failure::{Exit, Failure, Result};
use crate::progress::Progress;

/// A command waits this long for another one that has the database open: most are done in no time.
const LOCK_PATIENCE: Duration = Duration::from_millis(1000);

/// How much later than acknowledged a write is flushed with `--durability interval`.
const FLUSH_INTERVAL: Duration = Duration::from_secs(1);

/// An open database.
pub(crate) struct Database {
    inner: stemmadb::Database,
}

/// A document to write.
pub(crate) struct Write {
    pub(crate) id: String,
    pub(crate) body: Object,
    pub(crate) over: Over,
}

/// What a write may replace.
pub(crate) enum Over {
    /// The document is new.
    Nothing,
    /// This revision.
    Revision(String),
    /// Whatever is there.
    Anything,
}

/// What to show of a document.
#[derive(Clone, Copy)]
pub(crate) struct Wanted<'a> {
    /// This revision instead of the winner.
    pub(crate) revision: Option<&'a str>,
    /// With the revisions it descends from.
    pub(crate) ancestry: bool,
    /// With the other current revisions.
    pub(crate) conflicts: bool,
}

/// A query.
pub(crate) struct Question {
    pub(crate) selector: Value,
    pub(crate) sort: Vec<SortKey>,
    pub(crate) limit: Option<u64>,
    pub(crate) skip: u64,
    pub(crate) fields: Vec<String>,
    pub(crate) ids: bool,
    pub(crate) page: Option<String>,
}

/// One key of the order of results.
pub(crate) struct SortKey {
    pub(crate) path: String,
    pub(crate) descending: bool,
}

/// Which changes are asked for.
pub(crate) struct Feed {
    pub(crate) since: u64,
    pub(crate) documents: bool,
    pub(crate) ids: Vec<String>,
    pub(crate) selector: Option<Value>,
    pub(crate) limit: Option<u64>,
}

/// Opening.
impl Database {
    /// Opens the database at `path`, which must be there.
    pub(crate) fn existing(path: &Path) -> Result<Self> {
        Self::open(path, Options::new().create(false))
    }

    /// Opens the database at `path`, and makes it if there is none.
    pub(crate) fn or_new(path: &Path) -> Result<Self> {
        Self::open(path, Options::new())
    }

    /// Opens the database at `path` if no other process has it open.
    pub(crate) fn existing_if_free(path: &Path) -> Result<Option<Self>> {
        match stemmadb::Database::open_with(path, Options::new().create(false)) {
            Ok(inner) => Ok(Some(Database { inner })),
            Err(error) if is_locked(&error) => Ok(None),
            Err(error) => Err(unopened(error)),
        }
    }

    fn open(path: &Path, options: Options) -> Result<Self> {
        let start = Instant::now();
        loop {
            match stemmadb::Database::open_with(path, options.clone()) {
                Err(error) if is_locked(&error) && start.elapsed() < LOCK_PATIENCE => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                opened => return Ok(Database { inner: opened.map_err(unopened)? }),
            }
        }
    }

    /// Opens the database at `path` after making everything anew that is made from the log.
    pub(crate) fn rebuild(path: &Path, progress: &Progress) -> Result<Self> {
        let show = |step: stemmadb::Progress| progress.reached_of(step.done, step.total);
        let inner = stemmadb::Database::rebuild(path, Options::new().create(false), show).map_err(unopened)?;
        Ok(Database { inner })
    }

    /// Everything written is safe, and the database closed.
    pub(crate) fn close(self) -> Result<()> {
        Ok(self.inner.close()?)
    }
}

/// Whether the database is only open elsewhere.
fn is_locked(error: &stemmadb::Error) -> bool {
    error.kind() == ErrorKind::Unavailable && error.message().starts_with("the database is open already")
}

/// A database that is not there is a wrong argument: to be told apart from a document that is not there.
fn unopened(error: stemmadb::Error) -> Failure {
    let missing = error.kind() == ErrorKind::NotFound;
    let failure = Failure::from(error);
    if missing { failure.of_kind(Exit::Usage) } else { failure }
}

/// Documents.
impl Database {
    /// Writes one document; returns its revision.
    pub(crate) fn put(&self, write: Write, durability: DurabilityChoice) -> Result<String> {
        let is_new = matches!(write.over, Over::Nothing);
        match self.inner.edit_with(durability_of(durability), edit_of(write)?) {
            Ok(revision) => Ok(revision.to_string()),
            Err(error) if is_new && error.kind() == ErrorKind::Conflict => {
                Err(Failure::new(Exit::NotFound, error.message())
                    .with_hint("--rev REVISION replaces that revision, --upsert whatever is there"))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Writes documents independently of each other, acknowledged together.
    pub(crate) fn bulk(&self, writes: Vec<Write>, durability: DurabilityChoice) -> Result<Vec<Result<()>>> {
        let edits: Vec<Result<Edit>> = writes.into_iter().map(edit_of).collect();
        let mut refused = Vec::new();
        let mut valid = Vec::with_capacity(edits.len());
        for (at, edit) in edits.into_iter().enumerate() {
            match edit {
                Ok(edit) => valid.push(edit),
                Err(failure) => refused.push((at, failure)),
            }
        }
        let written = self.inner.bulk_with(durability_of(durability), valid)?;
        let mut outcomes: Vec<Result<()>> =
            written.into_iter().map(|outcome| outcome.map(|_| ()).map_err(Failure::from)).collect();
        for (at, failure) in refused {
            outcomes.insert(at, Err(failure));
        }
        Ok(outcomes)
    }

    /// Deletes `revision` of a document, or whatever is current; returns the revision of the deletion.
    pub(crate) fn delete(&self, id: &str, revision: Option<&str>, durability: DurabilityChoice) -> Result<String> {
        let revision = match revision {
            Some(revision) => revision.parse()?,
            None => *self.inner.get(id)?.ok_or_else(|| no_document(id))?.revision(),
        };
        let edit = Edit::Delete { id: DocumentId::new(id)?, revision };
        Ok(self.inner.edit_with(durability_of(durability), edit)?.to_string())
    }

    /// One document with `_id` and `_rev` first.
    pub(crate) fn get(&self, id: &str, wanted: Wanted<'_>) -> Result<Object> {
        let id = DocumentId::new(id)?;
        let revision: Option<Revision> = wanted.revision.map(str::parse).transpose()?;
        let found = match &revision {
            None => self.inner.get(id.as_str())?,
            Some(revision) => self.inner.get_revision(id.as_str(), revision)?,
        };
        let document = found.ok_or_else(|| match revision {
            None => no_document(id.as_str()),
            Some(revision) => {
                Failure::not_found(format!("there is no revision {revision} of document {:?}", id.as_str())).with_hint(
                    "bodies of replaced revisions are not kept; --conflicts shows which current ones there are",
                )
            }
        })?;
        let mut shown = object_of(&document)?;
        if !wanted.ancestry && !wanted.conflicts {
            return Ok(shown);
        }
        let branches = self.inner.revisions(id.as_str())?;
        if wanted.ancestry {
            let line = branches.iter().find_map(|branch| {
                let at = branch.revisions.iter().position(|revision| revision == document.revision())?;
                Some(&branch.revisions[at..])
            });
            let names: Vec<Value> = line.unwrap_or_default().iter().map(|line| line.to_string().into()).collect();
            shown.insert("_revisions", Value::Array(names));
        }
        if wanted.conflicts {
            let others = branches.iter().filter(|branch| !branch.deleted);
            let others =
                others.filter_map(|branch| branch.revisions.first()).filter(|leaf| *leaf != document.revision());
            shown.insert("_conflicts", Value::Array(others.map(|leaf| leaf.to_string().into()).collect()));
        }
        Ok(shown)
    }

    /// How many documents there are.
    pub(crate) fn documents_count(&self) -> Result<u64> {
        Ok(self.inner.info()?.document_count)
    }

    /// Every document with `_id` and `_rev` first.
    pub(crate) fn everything(&self) -> Result<impl Iterator<Item = Result<Object>>> {
        let changes = self.inner.changes(Sequence::ZERO)?.documents(true).run();
        Ok(changes.filter_map(|change| match change {
            Ok(change) => change.document.filter(|_| !change.deleted).map(|document| object_of(&document)),
            Err(error) => Some(Err(error.into())),
        }))
    }
}

fn durability_of(choice: DurabilityChoice) -> Durability {
    match choice {
        DurabilityChoice::Sync => Durability::Sync,
        DurabilityChoice::Interval => Durability::Interval(FLUSH_INTERVAL),
        DurabilityChoice::None => Durability::None,
    }
}

fn edit_of(write: Write) -> Result<Edit> {
    let id = DocumentId::new(&write.id)?;
    let body = Value::Object(write.body);
    Ok(match write.over {
        Over::Nothing => Edit::Insert { id, body },
        Over::Revision(revision) => Edit::Replace { id, revision: revision.parse()?, body },
        Over::Anything => Edit::Upsert { id, body },
    })
}

fn object_of(document: &stemmadb::Document) -> Result<Object> {
    let mut object = Object::with_capacity(16);
    object.insert("_id", document.id().as_str());
    object.insert("_rev", document.revision().to_string());
    if document.is_deleted() {
        object.insert("_deleted", true);
    }
    if let Value::Object(body) = document.value()? {
        object.extend(body);
    }
    Ok(object)
}

fn no_document(id: &str) -> Failure {
    Failure::not_found(format!("there is no document {id:?}"))
}

/// Queries.
impl Database {
    /// Documents that match.
    pub(crate) fn find(&self, _question: &Question) -> Result<Rows> {
        Err(unbuilt())
    }

    /// How documents that match would be found.
    pub(crate) fn explain(&self, _question: &Question, _analyze: bool) -> Result<String> {
        Err(unbuilt())
    }

    /// How many documents match.
    pub(crate) fn count(&self, _selector: &Value) -> Result<u64> {
        Err(unbuilt())
    }

    /// Ids that begin with `prefix`, at most `limit`.
    pub(crate) fn ids(&self, _prefix: &str, _limit: usize) -> Result<Vec<String>> {
        Err(unbuilt())
    }

    /// Dotted paths of the fields there are.
    pub(crate) fn fields(&self) -> Result<Vec<String>> {
        Err(unbuilt())
    }
}

fn unbuilt() -> Failure {
    Failure::new(Exit::Internal, "this verb is not built yet")
}

/// Documents that match, one after the other.
pub(crate) struct Rows {}

impl Rows {
    /// The next document.
    pub(crate) fn next(&mut self) -> Result<Option<Object>> {
        Err(unbuilt())
    }

    /// The token of the next page, if there is one.
    pub(crate) fn more(&mut self) -> Result<Option<String>> {
        Err(unbuilt())
    }
}

/// The feed.
impl Database {
    /// What changed.
    pub(crate) fn changes(&self, feed: &Feed) -> Result<impl Iterator<Item = Result<Change>> + use<>> {
        let mut changes = self.inner.changes(Sequence::new(feed.since))?.documents(feed.documents);
        if !feed.ids.is_empty() {
            changes = changes.ids(feed.ids.iter().cloned());
        }
        if let Some(limit) = feed.limit {
            changes = changes.limit(usize::try_from(limit).unwrap_or(usize::MAX));
        }
        Ok(changes.run().map(|change| Change::of(change?)))
    }

    /// The newest sequence.
    pub(crate) fn sequence(&self) -> u64 {
        self.inner.sequence().get()
    }
}

/// One document's latest change.
pub(crate) struct Change {
    pub(crate) sequence: u64,
    /// As it is shown.
    pub(crate) object: Object,
}

impl Change {
    fn of(change: stemmadb::Change) -> Result<Self> {
        let sequence = change.sequence.get();
        let mut object = Object::with_capacity(5);
        object.insert("seq", sequence);
        object.insert("id", change.id.as_str());
        object.insert("rev", change.revision.to_string());
        if change.deleted {
            object.insert("deleted", true);
        }
        if let Some(document) = &change.document {
            object.insert("doc", object_of(document)?);
        }
        Ok(Change { sequence, object })
    }
}

/// Care.
impl Database {
    /// Sizes, counts and settings.
    pub(crate) fn info(&self) -> Result<Object> {
        let info = self.inner.info()?;
        let directory = self.inner.path().map(|path| path.display().to_string());
        let fields: [(&str, Value); 13] = [
            ("directory", directory.map_or(Value::Null, Value::from)),
            ("document_count", info.document_count.into()),
            ("deleted_count", info.deleted_count.into()),
            ("sequence", info.sequence.get().into()),
            ("durability", info.durability.to_string().into()),
            ("log_bytes", info.log_bytes.into()),
            ("live_bytes", info.live_bytes.into()),
            ("tree_bytes", info.tree_bytes.into()),
            ("memory_bytes", info.memory_bytes.into()),
            ("segment_count", info.segment_count.into()),
            ("path_count", info.path_count.into()),
            ("shape_count", info.shape_count.into()),
            ("format_version", info.format_version.into()),
        ];
        Ok(fields.into_iter().collect())
    }

    /// Verifies everything.
    pub(crate) fn check(&self, progress: &Progress) -> Result<Checked> {
        let report = self.inner.check(|step| progress.reached_of(step.done, step.total))?;
        let fields: [(&str, Value); 5] = [
            ("document_count", report.document_count.into()),
            ("term_count", report.term_count.into()),
            ("record_count", report.record_count.into()),
            ("event_count", report.event_count.into()),
            ("damages", report.damages.iter().map(|damage| damage.what.as_str()).collect::<Vec<_>>().into()),
        ];
        let rebuild_helps = report.damages.iter().all(|damage| damage.rebuild_helps);
        let damages = report.damages.into_iter().map(|damage| damage.what).collect();
        Ok(Checked { record: fields.into_iter().collect(), damages, rebuild_helps })
    }

    /// Gives back space; returns how many bytes.
    pub(crate) fn compact(&self) -> Result<u64> {
        Ok(self.inner.compact()?)
    }
}

/// What a check found.
pub(crate) struct Checked {
    /// What was looked at.
    pub(crate) record: Object,
    /// What is wrong.
    pub(crate) damages: Vec<String>,
    /// Whether a rebuild repairs all of it.
    pub(crate) rebuild_helps: bool,
}
