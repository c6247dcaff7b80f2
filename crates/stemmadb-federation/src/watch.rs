//! Live queries over all members.
//!
//! One thread for each member reads its changes feed. The reader of the deltas decides for each change whether the
//! document matches: of common documents, the copy that counts.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use stemmadb::{Change, DeltaEvent, Document, DocumentId, Error, Query, Result, Revision, Selector, Sequence};
use stemmadb_client::{AnyDatabase, AnySubscription};

use crate::federation::Federation;

/// How long a thread waits before it looks whether the watch was dropped.
const WAIT: Duration = Duration::from_millis(200);
/// The most changes that a thread is ahead of the reader.
const AHEAD_MAX: usize = 256;
/// The most changes of one delta.
const DELTA_MAX: usize = 256;

/// A live query over all members: returns the current result, and then what changes in it.
///
/// Every change of a member is looked at, so the cost of a watch is proportional to the members' writes. It keeps the
/// ids and revisions of its result in memory, and one thread for each member. If members may have common documents,
/// each change costs a read of the document in all members.
///
/// ```
/// # use stemmadb::{Database, field};
/// # use stemmadb_federation::Federation;
/// # fn main() -> stemmadb::Result<()> {
/// # let (north, south) = (Database::in_memory(), Database::in_memory());
/// let orders = Federation::over([north, south.clone()])?;
/// let mut open = orders.watch(field("state").eq("open"))?;
/// assert!(open.next_delta()?.expect("the result").is_first);
/// south.insert("order-1", &serde_json::json!({"state": "open"}))?;
/// let delta = open.next_delta()?.expect("a change");
/// assert_eq!(delta.events[0].id().as_str(), "order-1");
/// # Ok(())
/// # }
/// ```
pub struct FederatedWatch {
    federation: Federation,
    selector: Selector,
    /// The result after the returned deltas.
    result: HashMap<DocumentId, Revision>,
    first: Option<Vec<Document>>,
    arrivals: Receiver<Arrival>,
    is_dropped: Arc<AtomicBool>,
}

/// What changed in the result of a [`FederatedWatch`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct FederatedDelta {
    /// Whether this is the whole result.
    pub is_first: bool,
    /// The events, each document once.
    pub events: Vec<DeltaEvent>,
}

type Arrival = (usize, Result<Change>);

impl FederatedWatch {
    pub(crate) fn start(federation: &Federation, query: &Query) -> Result<Self> {
        let is_whole =
            query.row_range() == (None, 0) && query.sort_order().to_value().as_array().is_some_and(<[_]>::is_empty);
        if !is_whole || query.continuation().is_some() {
            return Err(Error::invalid("a live query has no sort order, limit, skip or token"));
        }
        // The feeds begin before the result is read, so that no change is missed.
        let named = |at: usize, error| federation.members[at].error(error);
        let sequences = federation
            .members
            .iter()
            .enumerate()
            .map(|(at, member)| member.database.sequence().map_err(|error| named(at, error)));
        let sequences: Vec<Sequence> = sequences.collect::<Result<_>>()?;
        let first = federation.find(query.clone()).documents()?;
        let (sender, arrivals) = sync_channel(AHEAD_MAX);
        let is_dropped = Arc::new(AtomicBool::new(false));
        for (at, since) in sequences.into_iter().enumerate() {
            let follower = Follower { at, sender: sender.clone(), is_dropped: is_dropped.clone() };
            let (database, with_documents) = (federation.members[at].database.clone(), !federation.may_overlap());
            std::thread::Builder::new()
                .name("stemma-federation".into())
                .spawn(move || follower.run(&database, since, with_documents))
                .map_err(|error| named(at, Error::unavailable(format!("cannot start a thread: {error}"))))?;
        }
        Ok(FederatedWatch {
            federation: federation.clone(),
            selector: query.selector().clone(),
            result: HashMap::new(),
            first: Some(first),
            arrivals,
            is_dropped,
        })
    }

    /// Returns the next delta, blocking until there is one; the first one is the whole result. `None` once all members
    /// are closed.
    ///
    /// # Errors
    /// Those of [`AnySubscription::next_change`], with the name of the member.
    pub fn next_delta(&mut self) -> Result<Option<FederatedDelta>> {
        self.next_until(None)
    }

    /// As [`FederatedWatch::next_delta`]; `None` if there is none within `timeout`.
    ///
    /// # Errors
    /// Those of [`FederatedWatch::next_delta`].
    pub fn next_within(&mut self, timeout: Duration) -> Result<Option<FederatedDelta>> {
        self.next_until(Instant::now().checked_add(timeout))
    }

    fn next_until(&mut self, deadline: Option<Instant>) -> Result<Option<FederatedDelta>> {
        if let Some(first) = self.first.take() {
            self.result = first.iter().map(|document| (document.id().clone(), *document.revision())).collect();
            let events = first.into_iter().map(DeltaEvent::Added).collect();
            return Ok(Some(FederatedDelta { is_first: true, events }));
        }
        loop {
            let arrival = match deadline {
                None => self.arrivals.recv().ok(),
                Some(deadline) => self.arrivals.recv_timeout(deadline.saturating_duration_since(Instant::now())).ok(),
            };
            let Some(arrival) = arrival else { return Ok(None) };
            let events = self.apply(arrival)?;
            if !events.is_empty() {
                return Ok(Some(FederatedDelta { is_first: false, events }));
            }
        }
    }

    /// The events of a change and of those that have arrived meanwhile.
    fn apply(&mut self, arrival: Arrival) -> Result<Vec<DeltaEvent>> {
        let mut changed: HashMap<DocumentId, Option<Document>> = HashMap::new();
        let mut next = Some(arrival);
        while let Some((member, change)) = next {
            let change = change.map_err(|error| self.federation.members[member].error(error))?;
            let document = match self.federation.may_overlap() {
                true => self.federation.get(change.id.as_str())?,
                false => change.document.filter(|_| !change.deleted),
            };
            changed.insert(change.id, document);
            next = if changed.len() < DELTA_MAX { self.arrivals.try_recv().ok() } else { None };
        }
        let events = changed.into_iter().map(|(id, document)| self.event(id, document));
        events.filter_map(Result::transpose).collect()
    }

    fn event(&mut self, id: DocumentId, document: Option<Document>) -> Result<Option<DeltaEvent>> {
        let deleted = document.is_none();
        let matching = match document {
            Some(document) if self.selector.matches_document(&document)? => Some(document),
            _ => None,
        };
        Ok(match matching {
            Some(document) => match self.result.insert(id, *document.revision()) {
                None => Some(DeltaEvent::Added(document)),
                Some(known) if known != *document.revision() => Some(DeltaEvent::Changed(document)),
                Some(_) => None,
            },
            None => self.result.remove(&id).map(|_| DeltaEvent::Removed { id, deleted }),
        })
    }
}

impl Drop for FederatedWatch {
    fn drop(&mut self) {
        self.is_dropped.store(true, Ordering::Relaxed);
    }
}

impl std::fmt::Debug for FederatedWatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FederatedWatch").field("rows", &self.result.len()).finish_non_exhaustive()
    }
}

/// Sends the changes of one member.
struct Follower {
    at: usize,
    sender: SyncSender<Arrival>,
    is_dropped: Arc<AtomicBool>,
}

impl Follower {
    fn run(self, database: &AnyDatabase, since: Sequence, with_documents: bool) {
        let mut feed: AnySubscription = database.subscribe(since).documents(with_documents);
        while !self.is_dropped.load(Ordering::Relaxed) {
            let arrival = match feed.next_within(WAIT) {
                Ok(None) if database.is_closed() => return,
                Ok(None) => continue,
                Ok(Some(change)) => Ok(change),
                Err(error) => Err(error),
            };
            let is_failed = arrival.is_err();
            // Fails if the watch was dropped.
            if self.sender.send((self.at, arrival)).is_err() || is_failed {
                return;
            }
        }
    }
}
