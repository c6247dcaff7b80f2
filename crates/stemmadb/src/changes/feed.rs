//! A single read of the changes feed, from a snapshot.

use std::collections::{BTreeSet, VecDeque};

use super::candidates::{self, FeedPlan};
use super::live::Patterns;
use crate::Result;
use crate::document::Document;
use crate::index::DocumentNumber;
use crate::memtable::DocumentState;
use crate::query::{Matcher, Selector};
use crate::read::Snapshot;
use crate::revision::{DocumentId, Revision, Sequence};

/// The latest event of one document. See [`Changes`] for an example.
#[derive(Debug, Clone, PartialEq)]
pub struct Change {
    /// Sequence of the write; pass it as `since` to continue after this change.
    pub sequence: Sequence,
    /// Id of the document.
    pub id: DocumentId,
    /// Its winning revision.
    pub revision: Revision,
    /// Whether the winner is a deletion.
    pub deleted: bool,
    /// Every leaf of its revision tree, the winner first.
    pub leaves: Vec<Revision>,
    /// The winning revision's content, if [`Changes::documents`] was requested.
    pub document: Option<Document>,
}

/// A read of the changes feed: every changed document after a sequence, unless filtered.
///
/// Create one with [`Database::changes`](crate::Database::changes), and run it with [`Changes::run`].
///
/// ```
/// # use stemmadb::{Database, Sequence};
/// # fn main() -> stemmadb::Result<()> {
/// let db = Database::in_memory();
/// db.insert("solaris", &serde_json::json!({"year": 1961}))?;
/// for change in db.changes(Sequence::ZERO)?.documents(true).run() {
///     assert_eq!(change?.id.as_str(), "solaris");
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Changes {
    snapshot: Snapshot,
    filter: Filter,
    since: Sequence,
    limit: Option<usize>,
    descending: bool,
}

/// Which changes to return, and whether with documents.
#[derive(Debug, Clone, Default)]
pub(super) struct Filter {
    pub(super) ids: Option<BTreeSet<String>>,
    pub(super) selector: Option<(Selector, Matcher)>,
    pub(super) paths: Option<Patterns>,
    pub(super) documents: bool,
    /// Also documents that left those of the selector: see [`Changes::departures`].
    pub(super) departures: bool,
}

impl Filter {
    /// A selector that every document matches that passes the filter, apart from its ids.
    pub(super) fn indexed_selector(&self) -> Option<Selector> {
        let paths = self.paths.as_ref().and_then(Patterns::selector);
        match (&self.selector, paths) {
            (Some((selector, _)), Some(paths)) => Some(selector.clone().and(paths)),
            (Some((selector, _)), None) => Some(selector.clone()),
            (None, paths) => paths,
        }
    }

    /// The document, if it matches the selector.
    pub(super) fn present(&self, document: Option<Document>) -> Result<Option<Document>> {
        match (&document, &self.selector) {
            (Some(found), Some((_, matcher))) if !matcher.matches(found)? => Ok(None),
            _ => Ok(document),
        }
    }

    /// Returns the change for `state` if it passes the filter. `since` is the position of the feed.
    pub(super) fn change(&self, snapshot: &Snapshot, state: &DocumentState, since: Sequence) -> Result<Option<Change>> {
        if self.ids.as_ref().is_some_and(|ids| !ids.contains(state.id.as_str())) {
            return Ok(None);
        }
        let document = match self.documents || self.selector.is_some() || self.paths.is_some() {
            true => Some(snapshot.winner(state)?),
            false => None,
        };
        if let (Some((_, matcher)), Some(document)) = (&self.selector, &document)
            && !matcher.matches(document)?
        {
            return if self.departures { self.departure(snapshot, state, since) } else { Ok(None) };
        }
        if let (Some(paths), Some(document)) = (&self.paths, &document)
            && !paths.matches(state.id.as_str(), document.packed()?)?
        {
            return Ok(None);
        }
        let leaves: Vec<_> = state.tree.leaves().map(|leaf| leaf.revision).collect();
        Ok(Some(Change {
            sequence: state.sequence,
            id: state.id.clone(),
            revision: leaves[0],
            deleted: !state.is_live(),
            leaves,
            document: document.filter(|_| self.documents),
        }))
    }

    /// The deletions since `since` on branches of a document whose winner does not match the selector.
    fn departure(&self, snapshot: &Snapshot, state: &DocumentState, since: Sequence) -> Result<Option<Change>> {
        let Some((_, matcher)) = &self.selector else { return Ok(None) };
        let winner = state.tree.winner().map(|leaf| leaf.revision);
        let mut found = Vec::new();
        for leaf in state.tree.leaves().filter(|leaf| leaf.deleted && Some(leaf.revision) != winner) {
            let Some(document) = snapshot.leaf_with_sequence(state, leaf)? else { continue };
            let is_matched = document.sequence() > since && matcher.matches(&document)?;
            let is_at_path = match &self.paths {
                Some(paths) => is_matched && paths.matches(state.id.as_str(), document.packed()?)?,
                None => is_matched,
            };
            if is_at_path {
                found.push(document);
            }
        }
        // The newest first.
        found.sort_by_key(|document| std::cmp::Reverse((document.sequence(), *document.revision())));
        let leaves: Vec<Revision> = found.iter().map(|document| *document.revision()).collect();
        let Some(newest) = found.into_iter().next() else { return Ok(None) };
        Ok(Some(Change {
            sequence: state.sequence,
            id: state.id.clone(),
            revision: *newest.revision(),
            deleted: true,
            leaves,
            document: Some(newest).filter(|_| self.documents),
        }))
    }
}

impl Snapshot {
    /// The changes after `since`, up to the sequence of the snapshot: the latest of each document.
    pub fn changes(&self, since: Sequence) -> Changes {
        Changes::new(self.clone(), since)
    }
}

impl Changes {
    pub(crate) fn new(snapshot: Snapshot, since: Sequence) -> Self {
        Changes { snapshot, filter: Filter::default(), since, limit: None, descending: false }
    }

    pub(super) fn with_filter(snapshot: Snapshot, since: Sequence, filter: Filter) -> Self {
        Changes { snapshot, filter, since, limit: None, descending: false }
    }

    /// Returns at most `limit` changes. Default: no limit.
    #[must_use]
    pub fn limit(mut self, limit: usize) -> Self {
        self.limit = Some(limit);
        self
    }

    /// Returns the newest changes first. Default: oldest first.
    #[must_use]
    pub fn descending(mut self, descending: bool) -> Self {
        self.descending = descending;
        self
    }

    /// Includes the winning revision's content in each change. Default: no content.
    #[must_use]
    pub fn documents(mut self, documents: bool) -> Self {
        self.filter.documents = documents;
        self
    }

    /// Returns only changes of these documents.
    #[must_use]
    pub fn ids<I: Into<String>>(mut self, ids: impl IntoIterator<Item = I>) -> Self {
        self.filter.ids = Some(ids.into_iter().map(Into::into).collect());
        self
    }

    /// Returns only documents whose winning revision matches the selector. A deletion is matched by its own body,
    /// usually `{}`.
    ///
    /// # Errors
    /// `Invalid` if the selector is malformed.
    pub fn selector(mut self, selector: &Selector) -> Result<Self> {
        self.filter.selector = Some((selector.clone(), selector.matcher()?));
        Ok(self)
    }

    /// With a selector, also returns documents whose winning revision does not match it, but of which a revision that
    /// did was deleted on a branch ([`Edit::Depart`](crate::Edit::Depart)) after the position of the feed: as
    /// deletions, with the revision of that branch. Default: no.
    ///
    /// Costs one lookup per change, also if the index answers the selector.
    ///
    /// ```
    /// # use stemmadb::{Database, DocumentId, Edit, Value, field};
    /// # fn main() -> stemmadb::Result<()> {
    /// let db = Database::in_memory();
    /// let first = db.insert("note", &serde_json::json!({"owner": "ada"}))?;
    /// let since = db.sequence();
    /// db.replace("note", &first, &serde_json::json!({"owner": "bob"}))?;
    /// let body = Value::from_serialize(&serde_json::json!({"owner": "ada"}))?;
    /// db.bulk(vec![Edit::Depart { id: DocumentId::new("note")?, replaced: first, body }])?;
    /// let of_ada = db.changes(since)?.selector(&field("owner").eq("ada"))?.departures(true);
    /// assert!(of_ada.run().all(|change| change.unwrap().deleted));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn departures(mut self, departures: bool) -> Self {
        self.filter.departures = departures;
        self
    }

    /// Returns only documents whose winning revision has a value at a path that matches one of the patterns. The syntax
    /// is that of [`Database::subscribe_paths`](crate::Database::subscribe_paths): `color/+`, `orders/#`,
    /// `_id/shops/+`. A deletion is matched by its id and its own body, usually `{}`.
    ///
    /// ```
    /// # use stemmadb::{Database, Sequence};
    /// # fn main() -> stemmadb::Result<()> {
    /// let db = Database::in_memory();
    /// db.insert("car", &serde_json::json!({"color": {"roof": "red"}}))?;
    /// db.insert("bike", &serde_json::json!({"gears": 7}))?;
    /// assert_eq!(db.changes(Sequence::ZERO)?.paths(["color/+"])?.run().count(), 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `Invalid` if a pattern is malformed, or if there is none.
    pub fn paths<P: AsRef<str>>(mut self, patterns: impl IntoIterator<Item = P>) -> Result<Self> {
        self.filter.paths = Some(Patterns::parse(patterns)?);
        Ok(self)
    }

    /// The newest sequence of the snapshot that this reads. Pass it as `since` of the next read once the iterator is
    /// exhausted.
    pub fn last_sequence(&self) -> Sequence {
        self.snapshot.sequence()
    }

    /// Counts the changes, ignoring filters, and stops at `count_max`.
    ///
    /// Costs tens of nanoseconds per change.
    ///
    /// # Errors
    /// `Corrupt` if stored bytes are damaged.
    pub fn count_up_to(&self, count_max: u64) -> Result<u64> {
        let (mut position, mut count) = (self.since, 0);
        while position < self.snapshot.sequence() && count < count_max {
            let found = self.snapshot.events_after(position, BATCH_COUNT)?;
            count += found.events.len() as u64;
            position = found.reached;
        }
        Ok(count.min(count_max))
    }

    /// Returns how the changes will be read. Looks up the candidates if the read uses candidates.
    ///
    /// # Errors
    /// `Corrupt` if stored bytes are damaged.
    pub fn explain(&self) -> Result<FeedPlan> {
        Ok(match candidates::events(&self.snapshot, &self.filter, self.since, self.limit)? {
            Some(events) => FeedPlan::Candidates { count: events.len() as u64 },
            None => FeedPlan::Changes { count_max: self.snapshot.sequence().get().saturating_sub(self.since.get()) },
        })
    }

    /// Streams the changes.
    ///
    /// Costs one lookup per change, and one read of the log per change if documents, a selector or paths were
    /// requested. With ids, a selective selector or rare paths, only the candidate documents are looked up and read.
    pub fn run(self) -> impl Iterator<Item = Result<Change>> + use<> {
        let limit = self.limit.unwrap_or(usize::MAX);
        ChangesIter {
            position: if self.descending { self.snapshot.sequence().next() } else { self.since },
            changes: self,
            candidates: None,
            batch: VecDeque::new(),
            is_started: false,
            is_done: false,
        }
        .take(limit)
    }
}

/// Events looked up in one call.
const BATCH_COUNT: usize = 256;

struct ChangesIter {
    changes: Changes,
    /// The last sequence that was read.
    position: Sequence,
    /// The remaining candidate events, the next one last; `None` if every change is scanned.
    candidates: Option<Vec<(Sequence, DocumentNumber)>>,
    batch: VecDeque<Result<Change>>,
    is_started: bool,
    is_done: bool,
}

impl ChangesIter {
    /// Decides between candidates and a scan.
    fn choose_plan(&mut self) -> Result<()> {
        let Changes { snapshot, filter, since, limit, descending } = &self.changes;
        let Some(mut events) = candidates::events(snapshot, filter, *since, *limit)? else { return Ok(()) };
        match descending {
            true if filter.departures => {
                candidates::add_branched(&mut events, snapshot, *since, snapshot.sequence())?;
            }
            true => {}
            false => events.reverse(),
        }
        self.candidates = Some(events);
        Ok(())
    }

    /// Returns the next events to read.
    fn events(&mut self) -> Result<Vec<(Sequence, DocumentNumber)>> {
        if let Some(left) = &mut self.candidates {
            let taken = left.split_off(left.len().saturating_sub(BATCH_COUNT));
            self.is_done = left.is_empty();
            let mut taken: Vec<_> = taken.into_iter().rev().collect();
            let Changes { snapshot, filter, descending, .. } = &self.changes;
            if filter.departures && !descending {
                let last =
                    taken.last().filter(|_| !self.is_done).map_or(snapshot.sequence(), |(sequence, _)| *sequence);
                candidates::add_branched(&mut taken, snapshot, self.position, last)?;
                self.position = last;
            }
            return Ok(taken);
        }
        let Changes { snapshot, since, descending, .. } = &self.changes;
        let (events, reached) = match descending {
            false => {
                let found = snapshot.events_after(self.position, BATCH_COUNT)?;
                (found.events, found.reached)
            }
            true => {
                let events = snapshot.events_before(self.position, *since, BATCH_COUNT)?;
                let reached = events.last().map_or(*since, |event| event.0);
                (events, reached)
            }
        };
        self.position = reached;
        self.is_done = reached == if *descending { *since } else { snapshot.sequence() };
        Ok(events)
    }

    fn fill(&mut self) {
        if !std::mem::replace(&mut self.is_started, true)
            && let Err(error) = self.choose_plan()
        {
            return self.fail(error);
        }
        let events = match self.events() {
            Ok(events) => events,
            Err(error) => return self.fail(error),
        };
        let Changes { snapshot, filter, since, .. } = &self.changes;
        for (_, number) in events {
            let change = snapshot.state(number).and_then(|state| match state {
                Some(state) => filter.change(snapshot, &state, *since),
                None => Ok(None),
            });
            match change {
                Ok(None) => {}
                Ok(Some(change)) => self.batch.push_back(Ok(change)),
                Err(error) => return self.fail(error),
            }
        }
    }

    fn fail(&mut self, error: crate::Error) {
        self.batch.push_back(Err(error));
        self.is_done = true;
    }
}

impl Iterator for ChangesIter {
    type Item = Result<Change>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.batch.is_empty() && !self.is_done {
            self.fill();
        }
        self.batch.pop_front()
    }
}
