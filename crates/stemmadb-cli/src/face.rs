//! The one module that knows how the library is called: the verbs speak in ids, revisions as text and JSON objects.

mod files;
mod indexes;
mod mirror;
mod salvage;

use std::collections::BTreeSet;
use std::ops::Bound;
use std::path::Path;
use std::time::{Duration, Instant};

use stemmadb::{
    Document, DocumentId, Durability, Edit, ErrorKind, Explanation, Find, Found, Object, Options, Revision, Selector,
    Sequence, Value, field,
};

use crate::arguments::DurabilityChoice;
use crate::failure::{Exit, Failure, Result};
use crate::progress::Progress;
use crate::show::Shown;
pub(crate) use files::Content;
pub(crate) use indexes::NewIndex;
pub(crate) use mirror::{Copied, Copy, Origin};
pub(crate) use salvage::{Ancestry, Rescued, salvage, write_of};

/// A command waits this long for another one that has the database open: most are done in no time.
const LOCK_PATIENCE: Duration = Duration::from_secs(2);

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
    /// Nothing: the revision is taken as it is, with its ancestors.
    Ancestors(Ancestry),
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
    /// In whose order text is sorted.
    pub(crate) collation: Option<String>,
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
    /// Opens the database at `path`, which must be there; only to read it where the disk takes no writes.
    pub(crate) fn existing(path: &Path) -> Result<Self> {
        let refused = match Self::open(path, Options::new().create(false)) {
            Err(failure) if failure.is_read_only() => failure,
            opened => return opened,
        };
        // What is wrong with the disk is told if reading is no way, either.
        Self::open(path, Options::new().create(false).read_only(true)).map_err(|_| refused)
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
    error.kind() == ErrorKind::Locked
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
        let id = write.id.clone();
        let Some(edit) = self.edit_of(write)? else { return Ok(String::new()) };
        match self.inner.with_durability(durability_of(durability)).edit(edit) {
            Ok(revision) => Ok(revision.to_string()),
            // A unique view may refuse a document that is new.
            Err(error) if is_new && error.kind() == ErrorKind::Conflict && self.inner.get(&id)?.is_some() => {
                Err(Failure::new(Exit::NotFound, error.message())
                    .with_hint("--rev REVISION replaces that revision, --upsert whatever is there"))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Writes documents independently of each other, acknowledged together.
    pub(crate) fn bulk(&self, writes: Vec<Write>, durability: DurabilityChoice) -> Result<Vec<Result<()>>> {
        let mut known = Vec::new();
        let mut valid = Vec::with_capacity(writes.len());
        for (at, write) in writes.into_iter().enumerate() {
            match self.edit_of(write) {
                Ok(Some(edit)) => valid.push(edit),
                Ok(None) => known.push((at, Ok(()))),
                Err(failure) => known.push((at, Err(failure))),
            }
        }
        let written = self.inner.with_durability(durability_of(durability)).bulk(valid)?;
        let mut outcomes: Vec<Result<()>> =
            written.into_iter().map(|outcome| outcome.map(|_| ()).map_err(Failure::from)).collect();
        for (at, outcome) in known {
            outcomes.insert(at, outcome);
        }
        Ok(outcomes)
    }

    /// What does the write; nothing if it is done.
    fn edit_of(&self, write: Write) -> Result<Option<Edit>> {
        if let Over::Ancestors(ancestry) = write.over {
            return self.foreign(&write.id, write.body, ancestry);
        }
        let id = DocumentId::new(&write.id)?;
        let body = Value::Object(write.body);
        Ok(Some(match write.over {
            Over::Revision(revision) => Edit::Replace { id, revision: revision.parse()?, body },
            Over::Anything => Edit::Upsert { id, body },
            Over::Nothing | Over::Ancestors(_) => Edit::Insert { id, body },
        }))
    }

    /// Deletes `revision` of a document, or whatever is current; returns the revision of the deletion.
    pub(crate) fn delete(&self, id: &str, revision: Option<&str>, durability: DurabilityChoice) -> Result<String> {
        let revision = self.revision_or_current(id, revision)?;
        let edit = Edit::Delete { id: DocumentId::new(id)?, revision };
        Ok(self.inner.with_durability(durability_of(durability)).edit(edit)?.to_string())
    }

    /// The revision written so, or else the current one of the document.
    fn revision_or_current(&self, id: &str, revision: Option<&str>) -> Result<Revision> {
        match revision {
            Some(revision) => Ok(revision.parse()?),
            None => Ok(*self.inner.get(id)?.ok_or_else(|| no_document(id))?.revision()),
        }
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

    /// Every document, in the order of their latest changes. One that is damaged is an error in its place: the others
    /// follow.
    pub(crate) fn everything(&self) -> Everything<'_> {
        Everything { database: self, reached: Sequence::ZERO, changes: None, one_by_one: false }
    }
}

/// Every document.
pub(crate) struct Everything<'a> {
    database: &'a Database,
    reached: Sequence,
    changes: Option<Box<dyn Iterator<Item = stemmadb::Result<stemmadb::Change>>>>,
    /// A document was damaged: from there on the feed is read without documents, and each of them by itself.
    one_by_one: bool,
}

impl Everything<'_> {
    fn next_row(&mut self) -> Result<Option<Row>> {
        loop {
            let changes = match &mut self.changes {
                Some(changes) => changes,
                none => {
                    let changes = self.database.inner.changes(self.reached)?.documents(!self.one_by_one);
                    none.insert(Box::new(changes.run()))
                }
            };
            let change = match changes.next() {
                None => return Ok(None),
                Some(Ok(change)) => change,
                Some(Err(error)) if error.kind() == ErrorKind::Corrupt && !self.one_by_one => {
                    self.one_by_one = true;
                    self.changes = None;
                    continue;
                }
                Some(Err(error)) => {
                    // Without the feed there is no way on.
                    self.changes = Some(Box::new(std::iter::empty()));
                    return Err(error.into());
                }
            };
            self.reached = change.sequence;
            if change.deleted {
                continue;
            }
            let document =
                match change.document {
                    Some(document) => Some(document),
                    None => self.database.inner.get(change.id.as_str()).map_err(|error| {
                        Failure::from(error).within(format_args!("document {:?}", change.id.as_str()))
                    })?,
                };
            if let Some(document) = document {
                return Ok(Some(Row::Document(document)));
            }
        }
    }
}

impl Iterator for Everything<'_> {
    type Item = Result<Row>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_row().transpose()
    }
}

pub(crate) fn durability_of(choice: DurabilityChoice) -> Durability {
    match choice {
        DurabilityChoice::Sync => Durability::Sync,
        DurabilityChoice::Interval => Durability::Interval(FLUSH_INTERVAL),
        DurabilityChoice::None => Durability::None,
    }
}

/// The document as [`object_of`] shows it, as JSON.
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

fn object_of(document: &Document) -> Result<Object> {
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
    pub(crate) fn find(&self, question: &Question) -> Result<Page> {
        let mut find = self.ask(question)?;
        if let Some(limit) = question.limit {
            // One more tells whether there is another page.
            find = find.limit(limit.saturating_add(1));
        }
        let rows = match question {
            Question { ids: true, .. } => Rows::Ids(find.ids()?),
            Question { fields, .. } if !fields.is_empty() => Rows::Fields(find.fields(fields).values()?),
            _ => Rows::Documents(find.run()?),
        };
        Ok(Page { rows, left: question.limit })
    }

    /// How documents that match would be found; with `analyze`, how they were.
    pub(crate) fn explain(&self, question: &Question, analyze: bool) -> Result<Explanation> {
        let find = self.ask(question)?;
        Ok(if analyze { find.explain_analyze()? } else { find.explain()? })
    }

    /// How many documents match.
    pub(crate) fn count(&self, selector: &Value) -> Result<u64> {
        Ok(self.inner.find(Selector::parse(selector)?).count()?)
    }

    /// Ids that begin with `prefix`, at most `limit`.
    pub(crate) fn ids(&self, prefix: &str, limit: usize) -> Result<Vec<String>> {
        let ids = self.inner.find(field("_id").begins_with(prefix)).sort("_id").limit(limit as u64).ids()?;
        ids.map(|id| Ok(id?.as_str().to_owned())).collect()
    }

    /// Dotted paths of the fields that the first documents have.
    pub(crate) fn fields(&self) -> Result<Vec<String>> {
        let mut paths = BTreeSet::new();
        for document in self.inner.find(Selector::everything()).limit(SAMPLE_COUNT).run()? {
            collect_paths("", &document?.value()?, &mut paths);
        }
        Ok(paths.into_iter().collect())
    }

    fn ask(&self, question: &Question) -> Result<Find> {
        let mut find = self.inner.find(Selector::parse(&question.selector)?).skip(question.skip);
        for SortKey { path, descending } in &question.sort {
            find = match (&question.collation, *descending) {
                (None, false) => find.sort(path),
                (None, true) => find.sort_descending(path),
                (Some(language), false) => find.sort_collated(path, language),
                (Some(language), true) => find.sort_collated_descending(path, language),
            };
        }
        if let Some(limit) = question.limit {
            find = find.limit(limit);
        }
        if let Some(token) = &question.page {
            find = find.after(token);
        }
        Ok(find)
    }
}

/// A question to a view.
pub(crate) struct SummaryQuestion {
    pub(crate) keys: Keys,
    pub(crate) descending: bool,
    pub(crate) limit: Option<u64>,
    pub(crate) skip: u64,
    pub(crate) wanted: Summary,
}

/// Which keys of a view.
pub(crate) enum Keys {
    Of(Vec<Value>),
    Between(Option<Value>, Option<Value>),
    Prefix(Value),
}

/// What is wanted of a view.
pub(crate) enum Summary {
    Rows {
        documents: bool,
    },
    /// By the first elements of keys, or by whole keys.
    Groups(Option<usize>),
    Whole,
}

/// Views.
impl Database {
    /// Name and definition of each view.
    pub(crate) fn views(&self) -> Result<Vec<Object>> {
        let views = self.inner.views().definitions()?.into_iter();
        Ok(views
            .map(|(name, definition)| [("name", Value::from(name)), ("definition", definition)].into_iter().collect())
            .collect())
    }

    pub(crate) fn define_view(&self, name: &str, definition: &Value) -> Result<()> {
        self.inner.views().define(name, definition)?.update()?;
        Ok(())
    }

    pub(crate) fn drop_view(&self, name: &str) -> Result<()> {
        Ok(self.inner.views().remove(name)?)
    }

    /// Hands each row of the answer to `show`.
    pub(crate) fn ask_view(
        &self,
        name: &str,
        question: &SummaryQuestion,
        show: &mut dyn FnMut(Object) -> Result<()>,
    ) -> Result<()> {
        let view = self.inner.views().open(name)?;
        view.update()?;
        let query = view.query().skip(question.skip).limit(question.limit.unwrap_or(u64::MAX));
        let query = if question.descending { query.descending() } else { query };
        let query = match &question.keys {
            Keys::Of(keys) => query.keys(keys),
            Keys::Prefix(prefix) => query.prefix(prefix),
            Keys::Between(from, to) => {
                let bound = |key: &Option<Value>| key.clone().map_or(Bound::Unbounded, Bound::Included);
                query.range((bound(from), bound(to)))
            }
        };
        let pair = |key: Value, value: Value| [("key", key), ("value", value)].into_iter().collect::<Object>();
        match question.wanted {
            Summary::Whole => show([("value", query.reduce()?.unwrap_or(Value::Null))].into_iter().collect()),
            Summary::Groups(None) => {
                query.group()?.try_for_each(|group| group.map(|(key, value)| show(pair(key, value)))?)
            }
            Summary::Groups(Some(level)) => {
                query.group_level(level)?.try_for_each(|group| group.map(|(key, value)| show(pair(key, value)))?)
            }
            Summary::Rows { documents } => {
                let query = if documents { query.with_documents() } else { query };
                query.rows()?.try_for_each(|row| {
                    let row = row?;
                    let mut object: Object = [("id", Value::from(row.id.as_str()))].into_iter().collect();
                    object.extend(pair(row.key, row.value));
                    if documents {
                        let document = row.document.map(|document| object_of(&document)).transpose()?;
                        object.insert("doc", document.map_or(Value::Null, Value::from));
                    }
                    show(object)
                })
            }
        }
    }
}

/// So many documents are looked at to learn which fields there are.
const SAMPLE_COUNT: u64 = 200;

/// Adds the paths of all fields below `value`, which stands at `path`.
fn collect_paths(path: &str, value: &Value, paths: &mut BTreeSet<String>) {
    let Value::Object(object) = value else { return };
    for (name, field) in object {
        let name = name.replace('\\', "\\\\").replace('.', "\\.");
        let path = if path.is_empty() { name } else { format!("{path}.{name}") };
        collect_paths(&path, field, paths);
        paths.insert(path);
    }
}

/// Documents that match, one after the other, up to the limit.
pub(crate) struct Page {
    rows: Rows,
    left: Option<u64>,
}

impl Page {
    /// The next row.
    pub(crate) fn next(&mut self) -> Result<Option<Row>> {
        if let Some(left) = &mut self.left {
            let Some(rest) = left.checked_sub(1) else { return Ok(None) };
            *left = rest;
        }
        self.rows.next()
    }

    /// The token of the next page, if there is one. Reads one row more.
    pub(crate) fn more(&mut self) -> Result<Option<String>> {
        if self.left != Some(0) {
            return Ok(None);
        }
        let token = self.rows.token()?;
        // A row that can't be read is one, too.
        Ok(token.filter(|_| !matches!(self.rows.next(), Ok(None))))
    }
}

enum Rows {
    Documents(Found<Document>),
    Fields(Found<Value>),
    Ids(Found<DocumentId>),
}

impl Rows {
    fn next(&mut self) -> Result<Option<Row>> {
        Ok(match self {
            Rows::Documents(found) => found.next().transpose()?.map(Row::Document),
            Rows::Fields(found) => found.next().transpose()?.map(|value| Row::Object(object_or_empty(value))),
            Rows::Ids(found) => {
                found.next().transpose()?.map(|id| Row::Object([("_id", id.as_str())].into_iter().collect()))
            }
        })
    }

    /// The token of the row that came last.
    fn token(&self) -> Result<Option<String>> {
        Ok(match self {
            Rows::Documents(found) => found.token()?,
            Rows::Fields(found) => found.token()?,
            Rows::Ids(found) => found.token()?,
        })
    }
}

/// A row of a result.
pub(crate) enum Row {
    /// A stored document, whose JSON is written without decoding it.
    Document(Document),
    /// What was made of one.
    Object(Object),
}

impl Shown for Row {
    fn write_json(&self, out: &mut Vec<u8>) -> Result<()> {
        match self {
            Row::Document(document) => write_document(document, out),
            Row::Object(object) => object.write_json(out),
        }
    }

    fn into_object(self) -> Result<Object> {
        match self {
            Row::Document(document) => object_of(&document),
            Row::Object(object) => Ok(object),
        }
    }
}

fn object_or_empty(value: Value) -> Object {
    match value {
        Value::Object(object) => object,
        _ => Object::new(),
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
        if let Some(selector) = &feed.selector {
            changes = changes.selector(&Selector::parse(selector)?)?;
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

/// A live query that lets go of the database between its readings.
pub(crate) struct Watched {
    selector: Value,
    documents: bool,
    /// What was told so far.
    told: Option<stemmadb::SuspendedWatch>,
}

impl Watched {
    pub(crate) fn new(selector: Value, documents: bool) -> Self {
        Watched { selector, documents, told: None }
    }

    /// Hands everything to `show` that is to be told now: first the answer, later what changed in it.
    pub(crate) fn read(&mut self, db: &Database, mut show: impl FnMut(Object) -> Result<()>) -> Result<()> {
        let mut watch = match self.told.take() {
            Some(told) => db.inner.resume(told)?,
            None => db.inner.watch(Selector::parse(&self.selector)?)?,
        };
        while let Some(delta) = watch.next_within(Duration::ZERO)? {
            for event in delta.events() {
                show(self.shown(delta.sequence(), event?)?)?;
            }
        }
        self.told = Some(watch.suspend()?);
        Ok(())
    }

    fn shown(&self, sequence: Sequence, event: stemmadb::DeltaEvent) -> Result<Object> {
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
                object.insert("doc", object_of(document)?);
            }
        }
        if matches!(event, stemmadb::DeltaEvent::Removed { deleted: true, .. }) {
            object.insert("deleted", true);
        }
        Ok(object)
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
        let report = self.inner.maintenance().check_with_progress(|step| progress.reached_of(step.done, step.total))?;
        let fields: [(&str, Value); 6] = [
            ("document_count", report.document_count.into()),
            ("term_count", report.term_count.into()),
            ("record_count", report.record_count.into()),
            ("event_count", report.event_count.into()),
            ("file_count", report.file_count.into()),
            ("damages", report.damages.iter().map(|damage| damage.what.as_str()).collect::<Vec<_>>().into()),
        ];
        let rebuild_helps = report.damages.iter().all(|damage| damage.rebuild_helps);
        let damages = report.damages.into_iter().map(|damage| damage.what).collect();
        Ok(Checked { record: fields.into_iter().collect(), damages, rebuild_helps })
    }

    /// Gives back space; returns how many bytes.
    pub(crate) fn compact(&self, progress: &Progress) -> Result<u64> {
        Ok(self.inner.maintenance().compact_with_progress(|step| progress.reached_of(step.done, step.total))?)
    }

    /// Each path, with how many documents have something there, of which kinds, and how many distinct scalars.
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

/// What a check found.
pub(crate) struct Checked {
    /// What was looked at.
    pub(crate) record: Object,
    /// What is wrong.
    pub(crate) damages: Vec<String>,
    /// Whether a rebuild repairs all of it.
    pub(crate) rebuild_helps: bool,
}
