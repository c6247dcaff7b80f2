//! One read of the feed, from a snapshot.

use std::collections::{BTreeSet, VecDeque};

use super::candidates::{self, FeedPlan};
use crate::Result;
use crate::document::Document;
use crate::index::DocumentNumber;
use crate::memtable::DocumentState;
use crate::query::{Matcher, Selector};
use crate::read::Snapshot;
use crate::revision::{DocumentId, Revision, Sequence};

/// The latest event of one document.
#[derive(Debug, Clone, PartialEq)]
pub struct Change {
    /// When it was written: the feed's position to continue after.
    pub sequence: Sequence,
    /// The document.
    pub id: DocumentId,
    /// Its winning revision.
    pub revision: Revision,
    /// Whether the winner is a deletion.
    pub deleted: bool,
    /// Every leaf of its revision tree, the winner first.
    pub leaves: Vec<Revision>,
    /// The winner, when documents were asked for.
    pub document: Option<Document>,
}

/// A request for changes: everything after a sequence, unless narrowed. Run it with [`Changes::run`].
#[derive(Debug, Clone)]
pub struct Changes {
    snapshot: Snapshot,
    filter: Filter,
    since: Sequence,
    limit: Option<usize>,
    descending: bool,
}

/// Which changes are wanted, and whether with documents.
#[derive(Debug, Clone, Default)]
pub(super) struct Filter {
    pub(super) ids: Option<BTreeSet<String>>,
    pub(super) selector: Option<(Selector, Matcher)>,
    pub(super) documents: bool,
}

impl Filter {
    /// The change that `state` is, if it is wanted.
    fn change(&self, snapshot: &Snapshot, state: &DocumentState) -> Result<Option<Change>> {
        if self.ids.as_ref().is_some_and(|ids| !ids.contains(state.id.as_str())) {
            return Ok(None);
        }
        let document = match self.documents || self.selector.is_some() {
            true => Some(snapshot.winner(state)?),
            false => None,
        };
        if let (Some((_, matcher)), Some(document)) = (&self.selector, &document)
            && !matcher.matches(document)?
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
}

impl Changes {
    pub(crate) fn new(snapshot: Snapshot, since: Sequence) -> Self {
        Changes { snapshot, filter: Filter::default(), since, limit: None, descending: false }
    }

    pub(super) fn with_filter(snapshot: Snapshot, since: Sequence, filter: Filter) -> Self {
        Changes { snapshot, filter, since, limit: None, descending: false }
    }

    /// At most this many changes.
    #[must_use]
    pub fn limit(mut self, limit: usize) -> Self {
        self.limit = Some(limit);
        self
    }

    /// Newest first.
    #[must_use]
    pub fn descending(mut self, descending: bool) -> Self {
        self.descending = descending;
        self
    }

    /// With the winning documents.
    #[must_use]
    pub fn documents(mut self, documents: bool) -> Self {
        self.filter.documents = documents;
        self
    }

    /// Only of these documents.
    #[must_use]
    pub fn ids<I: Into<String>>(mut self, ids: impl IntoIterator<Item = I>) -> Self {
        self.filter.ids = Some(ids.into_iter().map(Into::into).collect());
        self
    }

    /// Only of documents whose winner the selector matches. A deletion is matched by its own body, mostly `{}`.
    ///
    /// # Errors
    /// `Invalid` if the selector is wrong.
    pub fn selector(mut self, selector: &Selector) -> Result<Self> {
        self.filter.selector = Some((selector.clone(), selector.matcher()?));
        Ok(self)
    }

    /// The newest sequence of the snapshot this reads: to continue after once the iterator is used up.
    pub fn last_sequence(&self) -> Sequence {
        self.snapshot.sequence()
    }

    /// How many changes there are, whatever they are filtered by, but `count_max` at most: where it doesn't matter whether there are more.
    /// Costs tens of nanoseconds for each.
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

    /// How they will be read. Finds the candidates, if it is by them.
    ///
    /// # Errors
    /// `Corrupt` if stored bytes are damaged.
    pub fn explain(&self) -> Result<FeedPlan> {
        Ok(match candidates::events(&self.snapshot, &self.filter, self.since, self.limit)? {
            Some(events) => FeedPlan::Candidates { count: events.len() as u64 },
            None => FeedPlan::Changes { count_max: self.snapshot.sequence().get().saturating_sub(self.since.get()) },
        })
    }

    /// Streams the changes. Costs a look-up for each change, and a read of the log where documents or a selector are asked for; with ids or
    /// a selector that few of many documents can match, a look-up and a read for each of these.
    pub fn run(self) -> impl Iterator<Item = Result<Change>> + use<> {
        let limit = self.limit.unwrap_or(usize::MAX);
        Run {
            position: if self.descending { self.snapshot.sequence().next() } else { self.since },
            changes: self,
            candidates: None,
            batch: VecDeque::new(),
            is_begun: false,
            is_done: false,
        }
        .take(limit)
    }
}

/// Events looked up at once.
const BATCH_COUNT: usize = 256;

struct Run {
    changes: Changes,
    /// The last sequence looked at.
    position: Sequence,
    /// The events that are left, the next one last, if not all changes are looked at.
    candidates: Option<Vec<(Sequence, DocumentNumber)>>,
    batch: VecDeque<Result<Change>>,
    is_begun: bool,
    is_done: bool,
}

impl Run {
    /// Finds out whether all changes are to be looked at.
    fn begin(&mut self) -> Result<()> {
        let Changes { snapshot, filter, since, limit, descending } = &self.changes;
        self.candidates = candidates::events(snapshot, filter, *since, *limit)?.map(|mut events| {
            if !descending {
                events.reverse();
            }
            events
        });
        Ok(())
    }

    /// The next events to be looked at.
    fn events(&mut self) -> Result<Vec<(Sequence, DocumentNumber)>> {
        if let Some(left) = &mut self.candidates {
            let taken = left.split_off(left.len().saturating_sub(BATCH_COUNT));
            self.is_done = left.is_empty();
            return Ok(taken.into_iter().rev().collect());
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
        if !std::mem::replace(&mut self.is_begun, true)
            && let Err(error) = self.begin()
        {
            return self.fail(error);
        }
        let events = match self.events() {
            Ok(events) => events,
            Err(error) => return self.fail(error),
        };
        let Changes { snapshot, filter, .. } = &self.changes;
        for (_, number) in events {
            let change = snapshot.state(number).and_then(|state| match state {
                Some(state) => filter.change(snapshot, &state),
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

impl Iterator for Run {
    type Item = Result<Change>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.batch.is_empty() && !self.is_done {
            self.fill();
        }
        self.batch.pop_front()
    }
}
