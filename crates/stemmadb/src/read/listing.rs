//! The documents by id: a walk over the tree's ids, with what the memtables know put in its place.
//!
//! Ids longer than the tree's keys can be are in the order of their beginnings, and then of a hash.

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

/// Rows looked up at once.
const BATCH_COUNT: usize = 256;

/// A document of a listing.
#[derive(Debug, Clone, PartialEq)]
pub struct Listed {
    /// Its id.
    pub id: DocumentId,
    /// Its current revision.
    pub revision: Revision,
    /// The sequence of its latest write.
    pub sequence: Sequence,
    /// The document, when documents were asked for.
    pub document: Option<Document>,
}

/// A request for the living documents in the order of their ids: all of them, unless narrowed. Run it with [`Listing::run`].
#[derive(Debug, Clone)]
pub struct Listing {
    snapshot: Snapshot,
    lower: Bound<Vec<u8>>,
    upper: Bound<Vec<u8>>,
    descending: bool,
    documents: bool,
}

impl Snapshot {
    /// The living documents in the order of their ids, which is that of their bytes.
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
    /// Only ids from this one on, whichever way they come.
    #[must_use]
    pub fn from(mut self, id: Bound<&str>) -> Self {
        self.lower = id.map(|id| layout::id_key(id).into_owned());
        self
    }

    /// Only ids up to this one, whichever way they come.
    #[must_use]
    pub fn to(mut self, id: Bound<&str>) -> Self {
        self.upper = id.map(|id| layout::id_key(id).into_owned());
        self
    }

    /// From the last id to the first.
    #[must_use]
    pub fn descending(mut self, descending: bool) -> Self {
        self.descending = descending;
        self
    }

    /// With the documents.
    #[must_use]
    pub fn documents(mut self, documents: bool) -> Self {
        self.documents = documents;
        self
    }

    /// Streams them. Costs a look at the ids within the bounds that are in memory to begin with, and at those that came since ids were asked
    /// for last; then a look-up for each that comes, and a read of the log, where documents are asked for.
    pub fn run(self) -> impl Iterator<Item = Result<Listed>> + use<> {
        let recent = self.recent();
        Run { listing: self, recent, batch: VecDeque::new(), is_done: false }
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

    /// What the memtables know within the bounds, in the order of the walk: deletions too, since they hide what the tree has.
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
        // The newest memtable's state of a document came first, and stays.
        recent.sort_by(|a, b| a.0.cmp(&b.0));
        recent.dedup_by(|later, kept| later.0 == kept.0);
        if self.descending {
            recent.reverse();
        }
        recent.into()
    }

    /// The next rows of the tree within the bounds, the deleted ones among them.
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

    /// Goes on after `key`.
    fn advance(&mut self, key: Vec<u8>) {
        match self.descending {
            false => self.lower = Bound::Excluded(key),
            true => self.upper = Bound::Excluded(key),
        }
    }

    /// What is listed of a document in the tree.
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

struct Run {
    listing: Listing,
    recent: VecDeque<(Vec<u8>, Arc<DocumentState>)>,
    batch: VecDeque<Result<Listed>>,
    is_done: bool,
}

impl Run {
    fn fill(&mut self) -> Result<()> {
        let mut rows = self.listing.rows()?;
        self.is_done = rows.len() < BATCH_COUNT;
        let reached = rows.last().map(|(key, _)| key.clone());
        // What memory knows better is not looked up.
        rows.retain(|(key, row)| {
            let order = |entry: &(Vec<u8>, Arc<DocumentState>)| match self.listing.descending {
                false => entry.0.cmp(key),
                true => key.cmp(&entry.0),
            };
            !row.deleted && self.recent.binary_search_by(order).is_err()
        });
        let numbers: Vec<_> = rows.iter().map(|(_, row)| layout::number_key(row.number.0)).collect();
        let keys: Vec<&[u8]> = numbers.iter().map(|key| key.as_slice()).collect();
        let snapshot = self.listing.snapshot.clone();
        let values = snapshot.tree.get_many(Table::Docs, &keys)?;
        for ((key, row), value) in rows.into_iter().zip(values) {
            self.take_recent(Some(&key))?;
            if !has_ended(&snapshot, row.number)? {
                let value = value.ok_or_else(|| layout::damaged(Table::Docs))?;
                self.batch.push_back(Ok(self.listing.stored(&row, value)?));
            }
        }
        if self.is_done {
            self.take_recent(None)
        } else if let Some(reached) = reached {
            self.listing.advance(reached);
            Ok(())
        } else {
            Ok(())
        }
    }

    /// Hands out what memory knows before `key`; all of it at the end.
    fn take_recent(&mut self, key: Option<&[u8]>) -> Result<()> {
        let is_before = |entry: &(Vec<u8>, Arc<DocumentState>)| match (key, self.listing.descending) {
            (None, _) => true,
            (Some(key), false) => entry.0.as_slice() < key,
            (Some(key), true) => entry.0.as_slice() > key,
        };
        while self.recent.front().is_some_and(is_before)
            && let Some((_, state)) = self.recent.pop_front()
        {
            if state.is_live() && !has_ended(&self.listing.snapshot, state.number)? {
                self.batch.push_back(Ok(self.listing.listed(&state)?));
            }
        }
        Ok(())
    }
}

fn has_ended(snapshot: &Snapshot, number: DocumentNumber) -> Result<bool> {
    Ok(snapshot.ended()?.is_some_and(|ended| ended.contains(number)))
}

impl Iterator for Run {
    type Item = Result<Listed>;

    fn next(&mut self) -> Option<Self::Item> {
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
