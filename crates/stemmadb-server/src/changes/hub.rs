//! The waiting feeds of a database: one read of new changes for all of them.
//!
//! A task per database waits for new sequences and reads what is new, once. It writes each change as a row of each
//! group of feeds that it concerns, and wakes only the feeds of these groups. After a read it pauses for as long as
//! the woken feeds may take: the more feeds there are, the more changes each of them gets at once, so that the cost of
//! notifications is bounded. A single feed is notified without delay.
//!
//! Invariant: a feed subscribes before it reads for itself. What was published before it subscribed is in its own read;
//! what is published later is in its group's batches. Rows that are in both are recognized by their sequence.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use stemmadb::{Change, Sequence, Snapshot};
use tokio::sync::{broadcast, watch};
use tokio::time::Instant;

use super::filter::ChangesFilter;
use super::group::{BatchWriter, FeedGroup, RowBatch, group_key};
use super::request::ChangesRequest;
use crate::directory::ServedDatabase;
use crate::error::Result;
use crate::http::{notified_read, server_runtime};

/// The pause after a read for each further feed that it woke, or group whose filter it evaluated: about ten times as
/// long as the processor needs for one, so that notifications take about a tenth of a core.
const PAUSE_PER_FEED: Duration = Duration::from_micros(200);
const PAUSE_MAX: Duration = Duration::from_millis(500);
/// The pause after a failed read. The feeds read for themselves then, and report the error.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_secs(1);

/// The most changes, and the approximate bytes of rows, of one read.
const CHANGES_MAX: usize = 1024;
const READ_BYTES_MAX: usize = 1 << 20;

/// The waiting feeds of a database.
#[derive(Default)]
pub(super) struct FeedHub(Mutex<HubState>);

/// Each group is in `groups`, and by its filter in one of the three after it.
#[derive(Default)]
struct HubState {
    groups: HashMap<String, Arc<FeedGroup>>,
    /// The groups that want all changes, or those of design documents.
    unfiltered: Vec<Arc<FeedGroup>>,
    /// The groups that want only changes of certain ids, by id.
    by_id: HashMap<String, Vec<Arc<FeedGroup>>>,
    /// The groups with a selector, patterns of paths, or an access rule.
    with_selector: Vec<Arc<FeedGroup>>,
    /// The number of groups without a selector whose rows include documents.
    document_group_count: usize,
    is_reading: bool,
    /// All changes up to this sequence were passed to the groups.
    reached: Sequence,
}

/// A feed's membership in its group.
pub(super) struct Subscription {
    hub: Arc<FeedHub>,
    group: Arc<FeedGroup>,
    receiver: Option<broadcast::Receiver<Arc<RowBatch>>>,
}

/// A notification of a subscribed feed.
pub(super) enum FeedEvent {
    Rows(Arc<RowBatch>),
    /// The feed has missed rows, or has to subscribe again: it must read for itself.
    Missed,
}

impl FeedHub {
    /// Adds a feed to its group; `None` if it shares its rows with no other.
    pub(super) fn subscribe(served: &Arc<ServedDatabase>, request: &ChangesRequest) -> Option<Subscription> {
        let key = group_key(request)?;
        let hub = served.extension::<FeedHub>();
        let mut state = hub.0.lock();
        let group = match state.groups.entry(key) {
            Entry::Occupied(known) => known.get().clone(),
            Entry::Vacant(vacant) => {
                let group = Arc::new(FeedGroup::new(vacant.key().clone(), request));
                vacant.insert(group.clone());
                state.add(&group);
                group
            }
        };
        let receiver = group.subscribe();
        if !state.is_reading {
            state.is_reading = true;
            state.reached = served.database().sequence();
            server_runtime().spawn(read_for_groups(hub.clone(), Arc::downgrade(served), served.published()));
        }
        drop(state);
        Some(Subscription { hub, group, receiver })
    }

    fn groups_of_id(&self, id: &str) -> Vec<Arc<FeedGroup>> {
        self.0.lock().by_id.get(id).cloned().unwrap_or_default()
    }

    /// Whether there is no feed; the reader then ends.
    fn ends_without_feeds(&self) -> bool {
        let mut state = self.0.lock();
        state.is_reading = !state.groups.is_empty();
        !state.is_reading
    }

    /// Ends all subscriptions.
    fn end(&self) {
        let ended = std::mem::take(&mut *self.0.lock());
        ended.groups.values().for_each(|group| group.end());
    }
}

impl HubState {
    fn add(&mut self, group: &Arc<FeedGroup>) {
        if group.request.has_selector() {
            return self.with_selector.push(group.clone());
        }
        match &group.request.filter {
            ChangesFilter::Ids(ids) => {
                for id in ids {
                    self.by_id.entry(id.clone()).or_default().push(group.clone());
                }
            }
            _ => self.unfiltered.push(group.clone()),
        }
        self.document_group_count += usize::from(group.request.include_docs);
    }

    fn remove(&mut self, group: &Arc<FeedGroup>) {
        self.groups.remove(&group.key);
        let is_other = |listed: &Arc<FeedGroup>| !Arc::ptr_eq(listed, group);
        if group.request.has_selector() {
            return self.with_selector.retain(is_other);
        }
        match &group.request.filter {
            ChangesFilter::Ids(ids) => {
                for id in ids {
                    if let Entry::Occupied(mut listed) = self.by_id.entry(id.clone()) {
                        listed.get_mut().retain(is_other);
                        if listed.get().is_empty() {
                            listed.remove();
                        }
                    }
                }
            }
            _ => self.unfiltered.retain(is_other),
        }
        self.document_group_count -= usize::from(group.request.include_docs);
    }
}

impl Subscription {
    /// Waits for rows. Cancel safe.
    pub(super) async fn next(&mut self) -> FeedEvent {
        let Some(receiver) = &mut self.receiver else { return FeedEvent::Missed };
        match receiver.recv().await {
            Ok(batch) => FeedEvent::Rows(batch),
            Err(_) => FeedEvent::Missed,
        }
    }

    /// The sequence up to which the group has nothing for the feed; `None` if the feed has rows to take.
    pub(super) fn reached(&mut self) -> Option<Sequence> {
        let reached = self.hub.0.lock().reached;
        let is_empty = self.receiver.as_ref().is_some_and(broadcast::Receiver::is_empty);
        is_empty.then_some(reached)
    }
}

/// The last feed of a group removes it.
impl Drop for Subscription {
    fn drop(&mut self) {
        let mut state = self.hub.0.lock();
        self.receiver = None;
        let is_listed = state.groups.get(&self.group.key).is_some_and(|listed| Arc::ptr_eq(listed, &self.group));
        if is_listed && !self.group.has_feeds() {
            state.remove(&self.group);
        }
    }
}

/// Reads new changes for all groups, until there is none or the database is closed. Does not keep the database open.
async fn read_for_groups(hub: Arc<FeedHub>, served: Weak<ServedDatabase>, mut published: watch::Receiver<Sequence>) {
    loop {
        let newest = *published.borrow_and_update();
        if hub.ends_without_feeds() {
            return;
        }
        let mut has_more = hub.0.lock().reached < newest;
        while has_more {
            let Some(served) = served.upgrade() else { return hub.end() };
            let begun = Instant::now();
            let reading = hub.clone();
            let read = notified_read(move || GroupRead::new(&reading, &served)?.run()).await;
            let pause = match &read {
                Ok(outcome) => (PAUSE_PER_FEED * outcome.feed_count.saturating_sub(1)).min(PAUSE_MAX),
                Err(_) => PAUSE_AFTER_FAILURE,
            };
            tokio::time::sleep_until(begun + pause).await;
            let Ok(outcome) = read else { return hub.end() };
            has_more = outcome.has_more;
        }
        if published.changed().await.is_err() {
            return hub.end();
        }
    }
}

/// One read of new changes for all groups of a database.
struct GroupRead<'a> {
    hub: &'a FeedHub,
    served: &'a Arc<ServedDatabase>,
    snapshot: Snapshot,
    after: Sequence,
    batches: HashMap<*const FeedGroup, (Arc<FeedGroup>, BatchWriter)>,
    byte_count: usize,
}

struct ReadOutcome {
    /// The number of feeds that were woken, and of selectors that were evaluated.
    feed_count: u32,
    has_more: bool,
}

impl<'a> GroupRead<'a> {
    fn new(hub: &'a FeedHub, served: &'a Arc<ServedDatabase>) -> Result<Self> {
        let (snapshot, after) = (served.database().snapshot()?, hub.0.lock().reached);
        Ok(GroupRead { hub, served, snapshot, after, batches: HashMap::new(), byte_count: 0 })
    }

    /// Reads, and passes the rows to the groups. Blocks.
    fn run(mut self) -> Result<ReadOutcome> {
        // The groups are listed after the snapshot was taken: the feeds of a later one read this snapshot's changes.
        let changes = self.served.database().changes(self.after)?;
        let (unfiltered, with_selector, with_documents) = {
            let state = self.hub.0.lock();
            (state.unfiltered.clone(), state.with_selector.clone(), state.document_group_count > 0)
        };
        let (mut reached, mut has_more) = (changes.last_sequence(), false);
        for (index, change) in changes.documents(with_documents).run().enumerate() {
            let change = change?;
            self.add_change(&change, &unfiltered)?;
            if index + 1 >= CHANGES_MAX || self.byte_count >= READ_BYTES_MAX {
                (reached, has_more) = (change.sequence, true);
                break;
            }
        }
        for group in &with_selector {
            self.add_matching(group, reached)?;
        }
        let mut feed_count = with_selector.len();
        for (group, batch) in self.batches.into_values() {
            feed_count += group.send(batch.finish());
        }
        // After the rows were sent: a feed without rows to take has seen everything up to here.
        let mut state = self.hub.0.lock();
        state.reached = state.reached.max(reached);
        Ok(ReadOutcome { feed_count: u32::try_from(feed_count).unwrap_or(u32::MAX), has_more })
    }

    fn add_change(&mut self, change: &Change, unfiltered: &[Arc<FeedGroup>]) -> Result<()> {
        for group in unfiltered {
            if change.id.is_design() || matches!(group.request.filter, ChangesFilter::All) {
                self.add_row(group, change)?;
            }
        }
        for group in self.hub.groups_of_id(change.id.as_str()) {
            self.add_row(&group, change)?;
        }
        Ok(())
    }

    /// Adds the changes up to `reached` that match the group's selector and paths.
    fn add_matching(&mut self, group: &Arc<FeedGroup>, reached: Sequence) -> Result<()> {
        let changes = self.served.database().changes(self.after)?.documents(group.request.include_docs);
        for change in group.request.restrict(changes)?.run() {
            let change = change?;
            if change.sequence > reached {
                break;
            }
            if !group.request.filter.accepts(&change) {
                continue;
            }
            self.add_row(group, &change)?;
        }
        Ok(())
    }

    fn add_row(&mut self, group: &Arc<FeedGroup>, change: &Change) -> Result<()> {
        let (_, batch) =
            self.batches.entry(Arc::as_ptr(group)).or_insert_with(|| (group.clone(), BatchWriter::default()));
        let before = batch.byte_count();
        batch.add(self.served, &self.snapshot, &group.request, change)?;
        self.byte_count += batch.byte_count() - before;
        Ok(())
    }
}
