//! Facade over the `stemmadb` library: the only module that opens databases and accesses their contents.
//!
//! Commands pass ids and revisions as text and documents as JSON objects, and get [`Failure`]s with exit statuses.

mod attachments;
mod backup;
mod bulk;
mod encryption;
mod history;
mod indexes;
mod keys;
mod mirror;
mod pipeline;
mod query;
mod remote;
mod replicate;
mod salvage;
mod update;
mod views;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use stemmadb::{
    Document, DocumentId, Durability, Edit, ErrorKind, Explanation, Find, IndexPolicy, Object, Options, QueryRows,
    Revision, Selector, Sequence, Snapshot, Value, field,
};

use crate::arguments::DurabilityChoice;
use crate::failure::{Exit, Failure, Result, WriteObstacle};
use crate::output::Printable;
use crate::progress::Progress;
pub(crate) use attachments::AttachmentReader;
pub(crate) use backup::{check_restore, list_backups, restore, state, verify_backups};
pub(crate) use encryption::{KeySource, decrypt, encrypt, key_file, use_key};
pub(crate) use indexes::NewIndex;
pub(crate) use keys::KeyValue;
pub(crate) use mirror::{MirrorProgress, MirrorTarget, RemoteDatabase};
use query::query_of;
pub(crate) use remote::{ServerDatabase, is_remote, request};
pub(crate) use replicate::{ReplicationNotice, ReplicationRequest, ReplicationSide};
pub(crate) use salvage::{RevisionHistory, SalvagedItem, parse_salvaged_line, salvage};
pub(crate) use views::{ViewKeys, ViewOutput, ViewRequest};

/// How long a command retries when another process holds the database lock. Most commands hold it only briefly.
const LOCK_TIMEOUT: Duration = Duration::from_secs(2);

/// Maximum time between acknowledging and flushing a write with `--durability interval`.
const FLUSH_INTERVAL: Duration = Duration::from_secs(1);

/// An open database.
pub(crate) struct Database {
    inner: stemmadb::Database,
    /// Why it was opened for reading only, if the disk is full.
    full_disk: Option<Failure>,
    /// The state of the past that is read, instead of the newest.
    past: Option<Snapshot>,
}

/// A document to write.
pub(crate) struct DocumentWrite {
    pub(crate) id: String,
    pub(crate) body: Object,
    pub(crate) mode: WriteMode,
}

/// How a write treats an existing document with the same id.
pub(crate) enum WriteMode {
    /// Fails if the document exists.
    Insert,
    /// Replaces this revision; fails if another one is current.
    Replace(String),
    /// Inserts the document, or replaces whichever revision is current.
    Upsert,
    /// Stores a replicated revision with its ancestors, without a conflict check.
    WithHistory(RevisionHistory),
}

/// Options of [`Database::get`].
#[derive(Clone, Copy)]
pub(crate) struct GetOptions<'a> {
    /// Read this revision instead of the winning one.
    pub(crate) revision: Option<&'a str>,
    /// Add `_revisions`, the revision's ancestors.
    pub(crate) with_ancestors: bool,
    /// Add `_conflicts`, the other leaf revisions that are not deleted.
    pub(crate) with_conflicts: bool,
}

/// A query with its output options.
#[derive(Default)]
pub(crate) struct FindRequest {
    pub(crate) selector: Value,
    pub(crate) sort: Vec<SortKey>,
    /// BCP 47 tag of the language whose collation sorts text.
    pub(crate) collation: Option<String>,
    pub(crate) limit: Option<u64>,
    pub(crate) skip: u64,
    pub(crate) fields: Vec<String>,
    pub(crate) ids: bool,
    /// Continuation token of the previous page.
    pub(crate) page: Option<String>,
    /// The time limit.
    pub(crate) timeout: Option<Duration>,
}

/// One sort key.
pub(crate) struct SortKey {
    pub(crate) path: String,
    pub(crate) descending: bool,
}

/// Filter and bounds of a changes feed request.
pub(crate) struct ChangesRequest {
    pub(crate) since: u64,
    pub(crate) documents: bool,
    pub(crate) ids: Vec<String>,
    pub(crate) selector: Option<Value>,
    pub(crate) paths: Vec<String>,
    pub(crate) limit: Option<u64>,
}

/// Opening and closing.
impl Database {
    /// Opens the existing database at `path`; read-only if the file system does not permit writes, or has no space for
    /// those of recovery.
    pub(crate) fn open_existing(path: &Path) -> Result<Self> {
        let refused = match Self::open(path, encryption::options().create(false)) {
            Err(failure) if failure.write_obstacle().is_some() => failure,
            opened => return opened,
        };
        // If the read-only open fails too, report the original error: it names the cause.
        match Self::open(path, encryption::options().create(false).read_only(true)) {
            Ok(opened) => Ok(Database { full_disk: Some(refused).filter(is_of_full_disk), ..opened }),
            Err(_) => Err(refused),
        }
    }

    /// The error for `failure`: on a full disk, that of opening the database for writing.
    pub(crate) fn cause_of(&mut self, failure: Failure) -> Failure {
        let is_refused_write = failure.exit() == Exit::Unavailable && failure.write_obstacle().is_none();
        self.full_disk.take().filter(|_| is_refused_write).unwrap_or(failure)
    }

    /// Opens the database at `path`, creating it if it does not exist. An index policy, given as JSON, becomes that of
    /// the database; one that differs rebuilds the index.
    pub(crate) fn open_or_create(path: &Path, index_policy: Option<&Value>) -> Result<Self> {
        let options = match index_policy {
            Some(policy) => encryption::options().index(IndexPolicy::from_value(policy)?),
            None => encryption::options(),
        };
        Self::open(path, options)
    }

    /// Opens the database at `path`; returns `None` if another process has it open.
    pub(crate) fn open_if_unlocked(path: &Path) -> Result<Option<Self>> {
        match stemmadb::Database::open_with(path, encryption::options().create(false)) {
            Ok(inner) => Ok(Some(Database { inner, full_disk: None, past: None })),
            Err(error) if is_locked(&error) => Ok(None),
            Err(error) => Err(open_failure(error)),
        }
    }

    /// Opens the database at `path` and shows the progress if that rebuilds its tree.
    fn open(path: &Path, options: Options) -> Result<Self> {
        let bar: Arc<Mutex<Option<Progress>>> = Arc::default();
        let shown = bar.clone();
        let options = options.on_rebuild(move |step| {
            let mut bar = shown.lock().unwrap_or_else(PoisonError::into_inner);
            let bar = bar.get_or_insert_with(|| Progress::for_steps("rebuilding"));
            bar.set_position_and_length(step.done, step.total);
        });
        let start = Instant::now();
        let opened = loop {
            match stemmadb::Database::open_with(path, options.clone()) {
                Err(error) if is_locked(&error) && start.elapsed() < LOCK_TIMEOUT => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                opened => break opened,
            }
        };
        // The options, and so the function that holds the bar, live as long as the database.
        bar.lock().unwrap_or_else(PoisonError::into_inner).take();
        Ok(Database { inner: opened.map_err(open_failure)?, full_disk: None, past: None })
    }

    /// Rebuilds all derived data of the database at `path` from its log, and opens it.
    pub(crate) fn rebuild(path: &Path, progress: &Progress) -> Result<Self> {
        let show = |step: stemmadb::Progress| progress.set_position_and_length(step.done, step.total);
        let inner =
            stemmadb::Database::rebuild(path, encryption::options().create(false), show).map_err(open_failure)?;
        Ok(Database { inner, full_disk: None, past: None })
    }

    /// The state that is read.
    fn snapshot(&self) -> Result<Snapshot> {
        match &self.past {
            Some(past) => Ok(past.clone()),
            None => Ok(self.inner.snapshot()?),
        }
    }

    /// Flushes all writes and closes the database.
    pub(crate) fn close(self) -> Result<()> {
        Ok(self.inner.close()?)
    }
}

fn is_of_full_disk(failure: &Failure) -> bool {
    failure.write_obstacle() == Some(WriteObstacle::Full)
}

/// Whether opening failed because the database is open in this or another process.
fn is_locked(error: &stemmadb::Error) -> bool {
    error.kind() == ErrorKind::Locked
}

/// Reports a missing database as wrong usage, to distinguish it from a missing document.
fn open_failure(error: stemmadb::Error) -> Failure {
    let missing = error.kind() == ErrorKind::NotFound;
    let failure = Failure::from(error);
    if missing { failure.with_exit(Exit::Usage) } else { failure }
}

/// Documents.
impl Database {
    /// Writes one document; returns its revision.
    pub(crate) fn put(&self, write: DocumentWrite, durability: DurabilityChoice) -> Result<String> {
        let is_new = matches!(write.mode, WriteMode::Insert);
        let id = write.id.clone();
        let Some(edit) = self.edit_of(write)? else { return Ok(String::new()) };
        match self.inner.with_durability(durability_of(durability)).edit(edit) {
            Ok(revision) => Ok(revision.to_string()),
            // The conflict may also come from a unique view, when no document with this id exists.
            Err(error) if is_new && error.kind() == ErrorKind::Conflict && self.inner.get(&id)?.is_some() => {
                Err(Failure::new(Exit::NotFound, error.message())
                    .with_hint("--rev REVISION replaces that revision, --upsert replaces any revision"))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Converts a write to an edit; `None` if the write has already been done.
    fn edit_of(&self, write: DocumentWrite) -> Result<Option<Edit>> {
        if let WriteMode::WithHistory(history) = write.mode {
            return self.edit_with_history(&write.id, write.body, history);
        }
        let id = DocumentId::new(&write.id)?;
        let body = Value::Object(write.body);
        Ok(Some(match write.mode {
            WriteMode::Replace(revision) => Edit::Replace { id, revision: revision.parse()?, body },
            WriteMode::Upsert => Edit::Upsert { id, body },
            WriteMode::Insert | WriteMode::WithHistory(_) => Edit::Insert { id, body },
        }))
    }

    /// Deletes `revision` of a document, or its current revision; returns the revision of the deletion.
    pub(crate) fn delete(&self, id: &str, revision: Option<&str>, durability: DurabilityChoice) -> Result<String> {
        let revision = self.revision_or_current(id, revision)?;
        let edit = Edit::Delete { id: DocumentId::new(id)?, revision };
        Ok(self.inner.with_durability(durability_of(durability)).edit(edit)?.to_string())
    }

    /// Parses `revision`, or returns the current revision of the document if it is `None`.
    fn revision_or_current(&self, id: &str, revision: Option<&str>) -> Result<Revision> {
        match revision {
            Some(revision) => Ok(revision.parse()?),
            None => Ok(*self.inner.get(id)?.ok_or_else(|| document_not_found(id))?.revision()),
        }
    }

    /// Reads one document; `_id` and `_rev` are its first fields.
    pub(crate) fn get(&self, id: &str, options: GetOptions<'_>) -> Result<Object> {
        let id = DocumentId::new(id)?;
        let revision: Option<Revision> = options.revision.map(str::parse).transpose()?;
        let snapshot = self.snapshot()?;
        let found = match &revision {
            None => snapshot.get(id.as_str())?,
            Some(revision) => snapshot.get_revision(id.as_str(), revision)?,
        };
        let document = found.ok_or_else(|| match revision {
            None => document_not_found(id.as_str()),
            Some(revision) => {
                Failure::not_found(format!("there is no revision {revision} of document {:?}", id.as_str())).with_hint(
                    "bodies of replaced revisions are not kept; --conflicts lists the current leaf revisions",
                )
            }
        })?;
        let mut object = document_object(&document)?;
        if !options.with_ancestors && !options.with_conflicts {
            return Ok(object);
        }
        let branches = snapshot.revisions(id.as_str())?;
        if options.with_ancestors {
            let ancestors = branches.iter().find_map(|branch| {
                let at = branch.revisions.iter().position(|revision| revision == document.revision())?;
                Some(&branch.revisions[at..])
            });
            let names: Vec<Value> =
                ancestors.unwrap_or_default().iter().map(|revision| revision.to_string().into()).collect();
            object.insert("_revisions", Value::Array(names));
        }
        if options.with_conflicts {
            let others = branches.iter().filter(|branch| !branch.deleted);
            let others =
                others.filter_map(|branch| branch.revisions.first()).filter(|leaf| *leaf != document.revision());
            object.insert("_conflicts", Value::Array(others.map(|leaf| leaf.to_string().into()).collect()));
        }
        Ok(object)
    }

    /// The number of documents, without deleted ones.
    pub(crate) fn document_count(&self) -> Result<u64> {
        match &self.past {
            Some(past) => Ok(past.find(Selector::everything()).count()?),
            None => Ok(self.inner.info()?.document_count),
        }
    }

    /// Iterates over all documents in the order of their latest changes. A damaged document yields an error, and
    /// iteration continues with the next one.
    pub(crate) fn all_documents(&self) -> AllDocuments<'_> {
        AllDocuments { database: self, last_sequence: Sequence::ZERO, changes: None, reads_singly: false }
    }
}

/// Iterator over all documents; see [`Database::all_documents`].
pub(crate) struct AllDocuments<'a> {
    database: &'a Database,
    last_sequence: Sequence,
    changes: Option<Box<dyn Iterator<Item = stemmadb::Result<stemmadb::Change>>>>,
    /// Set after the first damaged document: the feed is then read without documents, and each document is read singly.
    reads_singly: bool,
}

impl AllDocuments<'_> {
    fn next_row(&mut self) -> Result<Option<ResultRow>> {
        loop {
            let changes = match &mut self.changes {
                Some(changes) => changes,
                none => {
                    let changes = self.database.snapshot()?.changes(self.last_sequence).documents(!self.reads_singly);
                    none.insert(Box::new(changes.run()))
                }
            };
            let change = match changes.next() {
                None => return Ok(None),
                Some(Ok(change)) => change,
                Some(Err(error)) if error.kind() == ErrorKind::Corrupt && !self.reads_singly => {
                    self.reads_singly = true;
                    self.changes = None;
                    continue;
                }
                Some(Err(error)) => {
                    // The feed itself cannot be read: stop after this error.
                    self.changes = Some(Box::new(std::iter::empty()));
                    return Err(error.into());
                }
            };
            self.last_sequence = change.sequence;
            if change.deleted {
                continue;
            }
            let document = match change.document {
                Some(document) => Some(document),
                None => self.database.snapshot()?.get(change.id.as_str()).map_err(|error| {
                    Failure::from(error).with_context(format_args!("document {:?}", change.id.as_str()))
                })?,
            };
            if let Some(document) = document {
                return Ok(Some(ResultRow::Document(document)));
            }
        }
    }
}

impl Iterator for AllDocuments<'_> {
    type Item = Result<ResultRow>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_row().transpose()
    }
}

fn durability_of(choice: DurabilityChoice) -> Durability {
    match choice {
        DurabilityChoice::Sync => Durability::Sync,
        DurabilityChoice::Interval => Durability::Interval(FLUSH_INTERVAL),
        DurabilityChoice::None => Durability::None,
    }
}

/// Appends the JSON text of [`document_object`] to `out`, without decoding the body.
fn write_document(document: &Document, out: &mut Vec<u8>) -> Result<()> {
    out.extend_from_slice(b"{\"_id\":");
    Value::from(document.id().as_str()).write_json(out);
    out.extend_from_slice(b",\"_rev\":\"");
    out.extend_from_slice(document.revision().to_string().as_bytes());
    out.extend_from_slice(if document.is_deleted() { b"\",\"_deleted\":true" } else { b"\"" });
    let body = document.to_json()?;
    match body.strip_prefix('{') {
        Some("}") => {}
        Some(fields) => {
            out.push(b',');
            out.extend_from_slice(&fields.as_bytes()[..fields.len() - 1]);
        }
        None => debug_assert!(false, "a body is an object"),
    }
    out.push(b'}');
    Ok(())
}

fn document_object(document: &Document) -> Result<Object> {
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

fn document_not_found(id: &str) -> Failure {
    Failure::not_found(format!("there is no document {id:?}"))
}

/// Queries.
impl Database {
    /// Runs a query.
    pub(crate) fn find(&self, request: &FindRequest) -> Result<FindResults> {
        let mut find = self.build_find(request)?;
        if let Some(limit) = request.limit {
            // One extra row shows whether another page exists.
            find = find.limit(limit.saturating_add(1));
        }
        let rows = match request {
            FindRequest { ids: true, .. } => ResultRows::Ids(find.ids()?),
            FindRequest { fields, .. } if !fields.is_empty() => ResultRows::Fields(find.fields(fields).values()?),
            _ => ResultRows::Documents(find.run()?),
        };
        Ok(FindResults { rows, remaining: request.limit })
    }

    /// Returns the query plan; with `analyze`, also runs the query and reports actual rows and time.
    pub(crate) fn explain(&self, request: &FindRequest, analyze: bool) -> Result<Explanation> {
        let find = self.build_find(request)?;
        Ok(if analyze { find.explain_analyze()? } else { find.explain()? })
    }

    /// Hints for a query that finds nothing.
    pub(crate) fn query_hints(&self, request: &FindRequest) -> Result<Vec<String>> {
        Ok(self.build_find(request)?.hints()?)
    }

    /// Counts the documents that match.
    pub(crate) fn count(&self, selector: &Value, timeout: Option<Duration>) -> Result<u64> {
        let find = self.snapshot()?.find(Selector::parse(selector)?);
        Ok(match timeout {
            Some(time) => find.time_limit(time).count()?,
            None => find.count()?,
        })
    }

    /// Hints for a selector that matches nothing.
    pub(crate) fn selector_hints(&self, selector: &Value) -> Result<Vec<String>> {
        Ok(self.snapshot()?.find(Selector::parse(selector)?).hints()?)
    }

    /// Computes the figures of an aggregation: the value of each group, and its figures. Also returns hints for paths
    /// that need brackets.
    pub(crate) fn aggregate(&self, request: &Value, timeout: Option<Duration>) -> Result<AggregatedRows> {
        let (mut aggregation, snapshot) = (stemmadb::Aggregation::parse(request)?, self.snapshot()?);
        if let Some(time) = timeout {
            aggregation = aggregation.time_limit(time);
        }
        Ok((aggregation.rows(&snapshot)?, aggregation.hints(&snapshot)?))
    }

    /// Returns up to `limit` ids that begin with `prefix`, in order.
    pub(crate) fn ids(&self, prefix: &str, limit: usize) -> Result<Vec<String>> {
        let ids = self.inner.find(field("_id").begins_with(prefix)).sort("_id").limit(limit as u64).ids()?;
        ids.map(|id| Ok(id?.as_str().to_owned())).collect()
    }

    /// Returns the dotted field paths of the first [`SAMPLE_COUNT`] documents.
    pub(crate) fn fields(&self) -> Result<Vec<String>> {
        let mut paths = BTreeSet::new();
        for document in self.inner.find(Selector::everything()).limit(SAMPLE_COUNT).run()? {
            collect_paths("", &document?.value()?, &mut paths);
        }
        Ok(paths.into_iter().collect())
    }

    fn build_find(&self, request: &FindRequest) -> Result<Find> {
        Ok(self.snapshot()?.find(query_of(request)?))
    }
}

/// The rows of an aggregation, and hints.
type AggregatedRows = (Vec<(Value, Object)>, Vec<String>);

/// Number of documents that [`Database::fields`] reads.
const SAMPLE_COUNT: u64 = 200;

/// Adds the paths of all fields within `value`, which is located at `path`.
fn collect_paths(path: &str, value: &Value, paths: &mut BTreeSet<String>) {
    let Value::Object(object) = value else { return };
    for (name, field) in object {
        let name = name.replace('\\', "\\\\").replace('.', "\\.");
        let path = if path.is_empty() { name } else { format!("{path}.{name}") };
        collect_paths(&path, field, paths);
        paths.insert(path);
    }
}

/// Result rows of a query, up to its limit.
pub(crate) struct FindResults {
    rows: ResultRows,
    remaining: Option<u64>,
}

impl FindResults {
    /// Returns the next row.
    pub(crate) fn next(&mut self) -> Result<Option<ResultRow>> {
        if let Some(remaining) = &mut self.remaining {
            let Some(rest) = remaining.checked_sub(1) else { return Ok(None) };
            *remaining = rest;
        }
        self.rows.next()
    }

    /// Returns the continuation token if more rows follow. Reads one extra row to find out.
    pub(crate) fn next_page_token(&mut self) -> Result<Option<String>> {
        if self.remaining != Some(0) {
            return Ok(None);
        }
        let token = self.rows.token()?;
        // A row that cannot be read also counts as a further row.
        Ok(token.filter(|_| !matches!(self.rows.next(), Ok(None))))
    }
}

enum ResultRows {
    Documents(QueryRows<Document>),
    Fields(QueryRows<Value>),
    Ids(QueryRows<DocumentId>),
}

impl ResultRows {
    fn next(&mut self) -> Result<Option<ResultRow>> {
        Ok(match self {
            ResultRows::Documents(found) => found.next().transpose()?.map(ResultRow::Document),
            ResultRows::Fields(found) => {
                found.next().transpose()?.map(|value| ResultRow::Object(object_or_empty(value)))
            }
            ResultRows::Ids(found) => {
                found.next().transpose()?.map(|id| ResultRow::Object([("_id", id.as_str())].into_iter().collect()))
            }
        })
    }

    /// The continuation token of the last row returned.
    fn token(&self) -> Result<Option<String>> {
        Ok(match self {
            ResultRows::Documents(found) => found.token()?,
            ResultRows::Fields(found) => found.token()?,
            ResultRows::Ids(found) => found.token()?,
        })
    }
}

/// One result row.
pub(crate) enum ResultRow {
    /// A stored document, whose JSON is written without decoding it.
    Document(Document),
    /// A projection of a document.
    Object(Object),
}

impl Printable for ResultRow {
    fn write_json(&self, out: &mut Vec<u8>) -> Result<()> {
        match self {
            ResultRow::Document(document) => write_document(document, out),
            ResultRow::Object(object) => object.write_json(out),
        }
    }

    fn into_object(self) -> Result<Object> {
        match self {
            ResultRow::Document(document) => document_object(&document),
            ResultRow::Object(object) => Ok(object),
        }
    }
}

fn object_or_empty(value: Value) -> Object {
    if let Value::Object(object) = value { object } else { Object::new() }
}

/// Changes feed.
impl Database {
    /// Reads the changes feed.
    pub(crate) fn changes(&self, feed: &ChangesRequest) -> Result<impl Iterator<Item = Result<ChangeRow>> + use<>> {
        let mut changes = self.snapshot()?.changes(Sequence::new(feed.since)).documents(feed.documents);
        if let Some(selector) = &feed.selector {
            changes = changes.selector(&Selector::parse(selector)?)?;
        }
        changes = if feed.paths.is_empty() { changes } else { changes.paths(&feed.paths)? };
        changes = if feed.ids.is_empty() { changes } else { changes.ids(feed.ids.iter().cloned()) };
        if let Some(limit) = feed.limit {
            changes = changes.limit(usize::try_from(limit).unwrap_or(usize::MAX));
        }
        Ok(changes.run().map(|change| ChangeRow::from_change(change?)))
    }

    /// The newest sequence.
    pub(crate) fn sequence(&self) -> u64 {
        self.inner.sequence().get()
    }
}

/// A live query that closes the database between polls.
pub(crate) struct LiveQuery {
    selector: Value,
    documents: bool,
    /// State of the query after the last poll.
    suspended: Option<stemmadb::SuspendedWatch>,
}

impl LiveQuery {
    pub(crate) fn new(selector: Value, documents: bool) -> Self {
        LiveQuery { selector, documents, suspended: None }
    }

    /// Calls `visit` with each new event: first one for each document in the initial result, later the changes to it.
    pub(crate) fn poll(&mut self, db: &Database, mut visit: impl FnMut(Object) -> Result<()>) -> Result<()> {
        let mut watch = match self.suspended.take() {
            Some(suspended) => suspended.resume(&db.inner)?,
            None => db.inner.watch(Selector::parse(&self.selector)?)?,
        };
        while let Some(delta) = watch.next_within(Duration::ZERO)? {
            for event in delta.events() {
                visit(self.event_object(delta.sequence(), event?)?)?;
            }
        }
        self.suspended = Some(watch.suspend()?);
        Ok(())
    }

    fn event_object(&self, sequence: Sequence, event: stemmadb::DeltaEvent) -> Result<Object> {
        let (name, document) = match &event {
            stemmadb::DeltaEvent::Added(document) => ("added", Some(document)),
            stemmadb::DeltaEvent::Changed(document) => ("changed", Some(document)),
            stemmadb::DeltaEvent::Removed { .. } => ("removed", None),
        };
        let mut object = Object::with_capacity(5);
        object.insert("seq", sequence.get());
        object.insert("event", name);
        object.insert("id", event.id().as_str());
        if let Some(document) = document {
            object.insert("rev", document.revision().to_string());
            if self.documents {
                object.insert("doc", document_object(document)?);
            }
        }
        if matches!(event, stemmadb::DeltaEvent::Removed { deleted: true, .. }) {
            object.insert("deleted", true);
        }
        Ok(object)
    }
}

/// A row of the changes feed: a document's latest change.
pub(crate) struct ChangeRow {
    pub(crate) sequence: u64,
    /// The row as printed.
    pub(crate) object: Object,
}

impl ChangeRow {
    fn from_change(change: stemmadb::Change) -> Result<Self> {
        let sequence = change.sequence.get();
        let mut object = Object::with_capacity(5);
        object.insert("seq", sequence);
        object.insert("id", change.id.as_str());
        object.insert("rev", change.revision.to_string());
        if change.deleted {
            object.insert("deleted", true);
        }
        if let Some(document) = &change.document {
            object.insert("doc", document_object(document)?);
        }
        Ok(ChangeRow { sequence, object })
    }
}

/// Maintenance.
impl Database {
    /// Returns sizes, counts and settings.
    pub(crate) fn info(&self) -> Result<Object> {
        let info = self.inner.info()?;
        let directory = self.inner.path().map(|path| path.display().to_string());
        let fields: [(&str, Value); 16] = [
            ("directory", directory.map_or(Value::Null, Value::from)),
            ("document_count", info.document_count.into()),
            ("deleted_count", info.deleted_count.into()),
            ("sequence", info.sequence.get().into()),
            ("durability", info.durability.to_string().into()),
            ("log_bytes", info.log_bytes.into()),
            ("log_live_bytes", info.live_bytes.into()),
            ("tree_bytes", info.tree_bytes.into()),
            ("tree_live_bytes", info.tree_live_bytes.into()),
            ("tree_held_bytes", info.tree_held_bytes.into()),
            ("memtable_bytes", info.memory_bytes.into()),
            ("segment_count", info.segment_count.into()),
            ("history_bytes", info.history_bytes.into()),
            ("path_count", info.path_count.into()),
            ("shape_count", info.shape_count.into()),
            ("format_version", info.format_version.into()),
        ];
        Ok(fields.into_iter().collect())
    }

    /// Verifies the log, all index entries and all attachments.
    pub(crate) fn check(&self, progress: &Progress) -> Result<CheckResult> {
        let report = self
            .inner
            .maintenance()
            .check_with_progress(|step| progress.set_position_and_length(step.done, step.total))?;
        let fields: [(&str, Value); 6] = [
            ("document_count", report.document_count.into()),
            ("index_entry_count", report.term_count.into()),
            ("log_record_count", report.record_count.into()),
            ("change_count", report.event_count.into()),
            ("attachment_count", report.file_count.into()),
            ("errors", report.damages.iter().map(|damage| damage.what.as_str()).collect::<Vec<_>>().into()),
        ];
        let rebuild_helps = report.damages.iter().all(|damage| damage.rebuild_helps);
        let errors = report.damages.into_iter().map(|damage| damage.what).collect();
        Ok(CheckResult { report: fields.into_iter().collect(), errors, rebuild_helps })
    }

    /// Compacts the log; returns the number of bytes freed.
    pub(crate) fn compact(&self, progress: &Progress) -> Result<u64> {
        Ok(self
            .inner
            .maintenance()
            .compact_with_progress(|step| progress.set_position_and_length(step.done, step.total))?)
    }

    /// Lists the field paths, each with the number of documents that have it, the count per value type, and the number
    /// of distinct scalars.
    pub(crate) fn paths(&self) -> Result<impl Iterator<Item = Object> + use<>> {
        let paths = self.inner.indexes().paths()?;
        Ok(paths.into_iter().map(|info| {
            let mut object = Object::with_capacity(4);
            object.insert("path", info.path);
            object.insert("documents", info.document_count);
            let kinds = info.kinds.into_iter().map(|(kind, count)| (kind.to_string(), Value::from(count)));
            object.insert("kinds", Value::Object(kinds.collect()));
            object.insert("values", info.value_count);
            object
        }))
    }
}

/// Result of [`Database::check`].
pub(crate) struct CheckResult {
    /// The report as printed.
    pub(crate) report: Object,
    /// Descriptions of what is damaged.
    pub(crate) errors: Vec<String>,
    /// Whether a rebuild repairs all of them.
    pub(crate) rebuild_helps: bool,
}
