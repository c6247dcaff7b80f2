//! Lists documents by id: a walk over the tree's ids, merged with the memtables.
//!
//! Ids longer than the tree's keys are ordered by their prefix, and then by a hash.

use std::collections::VecDeque;
use std::ops::Bound;
use std::sync::Arc;

use crate::document::Document;
use crate::index::DocumentNumber;
use crate::layout::{self, DocumentRow, IdRow};
use crate::memtable::DocumentState;
use crate::read::snapshot::Snapshot;
use crate::revision::{DocumentId, Revision, Sequence};
use crate::tree::{Direction, Table};
use crate::{Error, Result};

/// Rows read in one batch.
const BATCH_COUNT: usize = 256;

/// One document of a [`Listing`].
#[derive(Debug, Clone, PartialEq)]
pub struct Listed {
    /// The document's id.
    pub id: DocumentId,
    /// The current revision.
    pub revision: Revision,
    /// The sequence of the latest write.
    pub sequence: Sequence,
    /// The document, if [`Listing::documents`] was set.
    pub document: Option<Document>,
}

/// A request for the live documents in id order; by default all of them, without their bodies.
///
/// Create one with [`Snapshot::list`], which has an example, and run it with [`Listing::run`].
#[derive(Debug, Clone)]
pub struct Listing {
    snapshot: Snapshot,
    lower: Bound<Vec<u8>>,
    upper: Bound<Vec<u8>>,
    descending: bool,
    documents: bool,
}

impl Snapshot {
    /// Starts a listing of the live documents, ordered by the bytes of their ids.
    ///
    /// ```
    /// # fn main() -> stemmadb::Result<()> {
    /// # let db = stemmadb::Database::in_memory();
    /// db.insert("solaris", &serde_json::json!({"year": 1961}))?;
    /// for listed in db.snapshot()?.list().run() {
    ///     assert_eq!(listed?.id.as_str(), "solaris");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn list(&self) -> Listing {
        Listing {
            snapshot: self.clone(),
            lower: Bound::Unbounded,
            upper: Bound::Unbounded,
            descending: false,
            documents: false,
        }
    }
}

impl Listing {
    /// Sets the lower bound of ids, in either direction. Default: unbounded.
    #[must_use]
    pub fn from(mut self, id: Bound<&str>) -> Self {
        self.lower = id.map(|id| layout::id_key(id).into_owned());
        self
    }

    /// Sets the upper bound of ids, in either direction. Default: unbounded.
    #[must_use]
    pub fn to(mut self, id: Bound<&str>) -> Self {
        self.upper = id.map(|id| layout::id_key(id).into_owned());
        self
    }

    /// Whether to list from the last id to the first. Default: false.
    #[must_use]
    pub fn descending(mut self, descending: bool) -> Self {
        self.descending = descending;
        self
    }

    /// Whether to include the documents. Default: false.
    #[must_use]
    pub fn documents(mut self, documents: bool) -> Self {
        self.documents = documents;
        self
    }

    /// Streams the documents.
    ///
    /// Costs a pass over the ids within the bounds that are in memtables, then a lookup for each document, and a read
    /// of the log if documents are included.
    ///
    /// # Errors
    /// Each item may be `Corrupt` if stored bytes are damaged; the stream ends after an error.
    pub fn run(self) -> impl Iterator<Item = Result<Listed>> + use<> {
        let recent = self.recent();
        ListingIter { listing: self, recent, batch: VecDeque::new(), is_done: false }
    }

    fn contains(&self, key: &[u8]) -> bool {
        let above = match &self.lower {
            Bound::Included(lower) => key >= lower.as_slice(),
            Bound::Excluded(lower) => key > lower.as_slice(),
            Bound::Unbounded => true,
        };
        above
            && match &self.upper {
                Bound::Included(upper) => key <= upper.as_slice(),
                Bound::Excluded(upper) => key < upper.as_slice(),
                Bound::Unbounded => true,
            }
    }

    /// The states in memtables within the bounds, in the order of the walk. Includes deletions, which hide the tree's
    /// rows.
    fn recent(&self) -> VecDeque<(Vec<u8>, Arc<DocumentState>)> {
        let mut recent = Vec::new();
        let (lower, is_past) =
            layout::id_span(self.lower.as_ref().map(Vec::as_slice), self.upper.as_ref().map(Vec::as_slice));
        for memtable in self.snapshot.memtables.iter().rev() {
            for state in memtable.documents_between(self.snapshot.at, lower, &is_past) {
                let key = layout::id_key(state.id.as_str());
                if self.contains(&key) {
                    recent.push((key.into_owned(), state));
                }
            }
        }
        // The newest memtable's state of a document comes first, and is kept.
        recent.sort_by(|a, b| a.0.cmp(&b.0));
        recent.dedup_by(|later, first| later.0 == first.0);
        if self.descending {
            recent.reverse();
        }
        debug_assert!(
            recent.is_sorted_by(|a, b| if self.descending { b.0 < a.0 } else { a.0 < b.0 }),
            "each id is listed once, in order"
        );
        recent.into()
    }

    /// The next rows of the tree within the bounds, including deleted documents.
    fn rows(&self) -> Result<Vec<(Vec<u8>, IdRow)>> {
        let direction = if self.descending { Direction::Descending } else { Direction::Ascending };
        let (lower, upper) = (self.lower.as_ref().map(Vec::as_slice), self.upper.as_ref().map(Vec::as_slice));
        let mut scan = self.snapshot.tree.scan(Table::Ids, lower, upper, direction)?;
        let mut rows = Vec::with_capacity(BATCH_COUNT);
        while rows.len() < BATCH_COUNT
            && let Some((key, value)) = scan.next()?
        {
            rows.push((key.to_vec(), IdRow::decode(value)?));
        }
        Ok(rows)
    }

    /// Continues after `key`.
    fn advance(&mut self, key: Vec<u8>) {
        match self.descending {
            false => self.lower = Bound::Excluded(key),
            true => self.upper = Bound::Excluded(key),
        }
    }

    /// The listing entry of a document in the tree.
    fn stored(&self, row: &IdRow, value: &[u8]) -> Result<Listed> {
        let state = DocumentRow::decode(value)?.state(row.number)?;
        self.listed(&state)
    }

    fn listed(&self, state: &DocumentState) -> Result<Listed> {
        let winner = state.tree.winner().ok_or_else(|| Error::internal("a document without any revision"))?;
        let document = if self.documents { Some(self.snapshot.winner(state)?) } else { None };
        Ok(Listed { id: state.id.clone(), revision: winner.revision, sequence: state.sequence, document })
    }
}

struct ListingIter {
    listing: Listing,
    recent: VecDeque<(Vec<u8>, Arc<DocumentState>)>,
    batch: VecDeque<Result<Listed>>,
    is_done: bool,
}

impl ListingIter {
    fn fill(&mut self) -> Result<()> {
        let mut rows = self.listing.rows()?;
        self.is_done = rows.len() < BATCH_COUNT;
        let reached = rows.last().map(|(key, _)| key.clone());
        // A row whose document is in a memtable is not looked up.
        rows.retain(|(key, row)| {
            let order = |entry: &(Vec<u8>, Arc<DocumentState>)| match self.listing.descending {
                false => entry.0.cmp(key),
                true => key.cmp(&entry.0),
            };
            !row.deleted && self.recent.binary_search_by(order).is_err()
        });
        let numbers: Vec<_> = rows.iter().map(|(_, row)| layout::number_key(row.number.0)).collect();
        let snapshot = self.listing.snapshot.clone();
        snapshot.tree.get_many(Table::Docs, numbers.iter().map(|key| key.as_slice()), |at, value| {
            let (key, row) = &rows[at];
            self.take_recent(Some(key))?;
            if !has_expired(&snapshot, row.number)? {
                let value = value.ok_or_else(|| layout::damaged(Table::Docs))?;
                self.batch.push_back(Ok(self.listing.stored(row, value)?));
            }
            Ok(())
        })?;
        if self.is_done {
            self.take_recent(None)
        } else if let Some(reached) = reached {
            self.listing.advance(reached);
            Ok(())
        } else {
            Ok(())
        }
    }

    /// Adds the memtables' documents before `key` to the batch; at the end, all that are left.
    fn take_recent(&mut self, key: Option<&[u8]>) -> Result<()> {
        let is_before = |entry: &(Vec<u8>, Arc<DocumentState>)| match (key, self.listing.descending) {
            (None, _) => true,
            (Some(key), false) => entry.0.as_slice() < key,
            (Some(key), true) => entry.0.as_slice() > key,
        };
        while self.recent.front().is_some_and(is_before)
            && let Some((_, state)) = self.recent.pop_front()
        {
            if state.is_live() && !has_expired(&self.listing.snapshot, state.number)? {
                self.batch.push_back(Ok(self.listing.listed(&state)?));
            }
        }
        Ok(())
    }
}

fn has_expired(snapshot: &Snapshot, number: DocumentNumber) -> Result<bool> {
    Ok(snapshot.expired()?.is_some_and(|expired| expired.contains(number)))
}

impl Iterator for ListingIter {
    type Item = Result<Listed>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Err(error) = self.listing.snapshot.parts.refuse_if_closed() {
            let is_ended = self.batch.is_empty() && self.is_done;
            self.batch.clear();
            self.is_done = true;
            return (!is_ended).then_some(Err(error));
        }
        while self.batch.is_empty() && !self.is_done {
            if let Err(error) = self.fill() {
                self.is_done = true;
                self.batch.push_back(Err(error));
            }
        }
        self.batch.pop_front()
    }
}

#[cfg(test)]
mod tests;
