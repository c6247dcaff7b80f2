//! One view of an open database: its contents, and how they are kept up to date.
//!
//! A state is the tree's contents at some position plus an in-memory overlay of later changes. It is updated from the
//! changes feed when the view is queried, and merged into the tree when the overlay becomes large and on close.
//!
//! Concurrency: `updating` is held while updating or merging, `live` only briefly. A reader takes the tree snapshot and
//! the state under one lock of `live`, so that no merge happens in between; while a merge is running, the state still
//! contains everything that is being merged.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use super::commit_hook;
use super::definition::{Mapping, Refresh};
use super::layered::Layered;
use super::layout::{self, Phase, SlotNumber, SlotRecord};
use super::merge::{self, SlotWriter};
use super::partials;
use super::reduce::Reducer;
use super::state::{ViewState, ViewUpdate};
use crate::engine::{ActiveTaskKind, CommitHook, Operation, RunningOperation, Store};
use crate::options::Progress;
use crate::read::Snapshot;
use crate::revision::Sequence;
use crate::sync::{Mutex, MutexGuard, RwLock};
use crate::tree::TreeSnapshot;
use crate::{Error, Result};

/// Documents mapped between two checks of the overlay's size.
const BATCH_COUNT: usize = 512;

/// A view of an open database.
pub(crate) struct MaterializedView {
    pub(super) mapping: Arc<dyn Mapping>,
    pub(super) reducer: Option<Arc<dyn Reducer>>,
    store: Weak<Store>,
    slot: SlotNumber,
    prefix: Arc<[u8]>,
    /// An overlay larger than this is merged into the tree.
    overlay_bytes_max: usize,
    updating: Mutex<()>,
    live: RwLock<LiveContents>,
    done: AtomicU64,
    total: AtomicU64,
    /// Whether a background thread is updating the view.
    is_updating_in_background: AtomicBool,
    /// The precommit check that keeps an eager view up to date.
    commit_hook: OnceLock<Arc<dyn CommitHook>>,
    /// Whether the database is being closed.
    is_closing: Arc<AtomicBool>,
}

/// The state that queries read.
struct LiveContents {
    /// Oldest first; the last is the newest. Only an eager view has more than one.
    versions: VecDeque<Arc<ViewState>>,
    /// The record in the tree, if `is_in_tree`.
    record: SlotRecord,
    is_in_tree: bool,
    is_ready: bool,
    /// The previous version of the view, which answers queries until this one is ready.
    old: Option<(SlotNumber, SlotRecord)>,
    /// Whether another version has replaced this one.
    is_replaced: bool,
}

/// A view's contents at one sequence, for reading.
#[derive(Clone)]
pub(super) struct ViewReading {
    pub(super) snapshot: Snapshot,
    pub(super) rows: Layered,
    pub(super) reducer: Option<Arc<dyn Reducer>>,
    /// Whether documents changed since, or the rows are those of an older version.
    pub(super) is_stale: bool,
    /// Everything up to this sequence is in the rows.
    pub(super) position: Sequence,
}

/// A state, with the tree snapshot beneath it and its key prefix there.
pub(super) struct NewestState {
    pub(super) tree: Arc<TreeSnapshot>,
    pub(super) prefix: Arc<[u8]>,
    pub(super) state: Arc<ViewState>,
}

/// The slots found for a view when it is opened.
pub(super) struct SlotAssignment {
    pub(super) slot: SlotNumber,
    /// The slot's record, if the tree has one.
    pub(super) record: Option<SlotRecord>,
    pub(super) old: Option<(SlotNumber, SlotRecord)>,
}

impl MaterializedView {
    pub(super) fn new(
        mapping: Arc<dyn Mapping>,
        store: &Arc<Store>,
        found: SlotAssignment,
        overlay_bytes_max: usize,
        is_closing: Arc<AtomicBool>,
    ) -> Self {
        let SlotAssignment { slot, record, old } = found;
        let is_ready = record.as_ref().is_some_and(|record| record.phase == Phase::Ready);
        let is_in_tree = record.is_some();
        let record = record.unwrap_or_else(|| merge::record(&*mapping, &ViewState::default(), Phase::Unfinished));
        let state = ViewState {
            position: record.position,
            row_count: record.row_count,
            failed_count: record.failed_count,
            ..ViewState::default()
        };
        let versions = VecDeque::from([Arc::new(state)]);
        let live = LiveContents { versions, is_ready, record, is_in_tree, old, is_replaced: false };
        MaterializedView {
            reducer: mapping.reducer(),
            mapping,
            store: Arc::downgrade(store),
            slot,
            prefix: layout::slot_prefix(slot).into(),
            overlay_bytes_max,
            updating: Mutex::new(()),
            live: RwLock::new(live),
            done: AtomicU64::new(0),
            total: AtomicU64::new(0),
            is_updating_in_background: AtomicBool::new(false),
            commit_hook: OnceLock::new(),
            is_closing,
        }
    }

    pub(super) fn slot(&self) -> SlotNumber {
        self.slot
    }

    pub(super) fn store(&self) -> Result<Arc<Store>> {
        self.store.upgrade().ok_or_else(|| Error::closed("the database is closed"))
    }

    /// Whether the rows were built completely.
    pub(super) fn is_ready(&self) -> bool {
        self.live.read().is_ready
    }

    /// Whether an older version answers until this one is ready.
    pub(super) fn has_old(&self) -> bool {
        self.live.read().old.is_some()
    }

    /// Takes the slot of the version that answered until this one became ready, so that it can be removed. Returns it
    /// once.
    pub(super) fn take_old(&self) -> Option<(SlotNumber, SlotRecord)> {
        let mut live = self.live.write();
        if live.is_ready { live.old.take() } else { None }
    }

    /// Marks the view as replaced: it no longer answers queries or writes to the tree. Waits for a running update to
    /// stop.
    pub(super) fn replace(&self) {
        self.live.write().is_replaced = true;
        drop(self.updating.lock());
    }

    /// Locks the view's contents for an update.
    ///
    /// # Errors
    /// `Invalid` if this thread runs the map function of a view: it may hold the same lock, or another thread may wait
    /// for this one.
    fn begin_update<'a>(&'a self, store: &'a Store) -> Result<(RunningOperation<'a>, MutexGuard<'a, ()>)> {
        let running = store.begin(Operation::UpdateView)?;
        Ok((running, self.updating.lock()))
    }

    /// Whether a precommit check keeps the view up to date.
    pub(super) fn has_commit_hook(&self) -> bool {
        self.commit_hook.get().is_some()
    }

    /// Keeps the precommit check alive as long as the view.
    pub(super) fn set_commit_hook(&self, commit_hook: Arc<dyn CommitHook>) {
        self.commit_hook.set(commit_hook).ok();
    }

    /// Whether another version has replaced this one.
    pub(super) fn is_replaced(&self) -> bool {
        self.live.read().is_replaced
    }

    /// Claims the background update; returns false if one is already running.
    pub(super) fn begin_background(&self) -> bool {
        !self.is_updating_in_background.swap(true, Ordering::AcqRel)
    }

    pub(super) fn end_background(&self) {
        self.is_updating_in_background.store(false, Ordering::Release);
    }

    /// Progress of building the rows, in changes; `None` once they are built.
    pub(super) fn progress(&self) -> Option<Progress> {
        let (done, total) = (self.done.load(Ordering::Relaxed), self.total.load(Ordering::Relaxed));
        (!self.is_ready()).then_some(Progress { done, total })
    }

    /// The number of rows, the number of documents that could not be mapped, and the position of the newest state.
    pub(super) fn counts(&self) -> (u64, u64, Sequence) {
        let live = self.live.read();
        let state = live.newest();
        (state.row_count, state.failed_count, state.position)
    }

    /// Returns the current contents, up to date or not.
    pub(super) fn reading(&self) -> Result<ViewReading> {
        let store = self.store()?;
        let live = self.live.read();
        if live.is_replaced {
            return Err(self.replaced());
        }
        let snapshot = store.snapshot()?;
        let tree = snapshot.tree().clone();
        let reading = |slot_prefix: Arc<[u8]>, state: &ViewState, is_stale| ViewReading {
            rows: Layered::new(tree, slot_prefix, state.overlay.clone()),
            reducer: self.reducer.clone(),
            is_stale,
            position: state.position,
            snapshot: snapshot.clone(),
        };
        if live.is_ready {
            let published = snapshot.sequence();
            let state = live.versions.iter().rev().find(|state| state.position <= published);
            let state = state.unwrap_or_else(|| live.newest()).clone();
            let mut reading = reading(self.prefix.clone(), &state, state.position < published);
            drop(live);
            self.hide_expired(&state, &mut reading)?;
            return Ok(reading);
        }
        // If there is no older version, read a slot number that is never used, so the result is empty.
        let old = live.old.as_ref().map_or(SlotNumber(u64::MAX), |(slot, _)| *slot);
        Ok(reading(layout::slot_prefix(old).into(), &ViewState::default(), true))
    }

    /// Returns the newest state; `None` if the rows were never built.
    pub(super) fn newest(&self) -> Result<Option<NewestState>> {
        let store = self.store()?;
        let live = self.live.read();
        if live.is_replaced {
            return Err(self.replaced());
        }
        let tree = store.parts.tree.read();
        Ok(live.is_ready.then(|| NewestState { tree, prefix: self.prefix.clone(), state: live.newest().clone() }))
    }

    /// Hides the rows of expired documents from this reading. The change is not stored.
    fn hide_expired(&self, state: &ViewState, reading: &mut ViewReading) -> Result<()> {
        let Some(expired) = reading.snapshot.expired()? else { return Ok(()) };
        let tree = reading.snapshot.tree().clone();
        let mut update = ViewUpdate::begin(&*self.mapping, tree, self.prefix.clone(), state);
        expired.iter().try_for_each(|number| update.apply(number, None))?;
        update.refresh_partials(self.reducer.as_deref())?;
        reading.rows = update.layered().clone();
        Ok(())
    }

    /// Whether everything published is in the rows.
    pub(super) fn is_current(&self, store: &Store) -> bool {
        let live = self.live.read();
        live.is_ready && live.newest().position >= store.parts.publisher.published()
    }

    /// Updates the view to the newest published sequence.
    pub(super) fn update(&self) -> Result<()> {
        let store = self.store()?;
        if self.is_current(&store) {
            return Ok(());
        }
        let _updating = self.begin_update(&store)?;
        let snapshot = store.snapshot()?;
        self.catch_up(&store, &snapshot, true)
    }

    fn replaced(&self) -> Error {
        Error::closed(format!(
            "another version of the view `{}` has taken its place, or it was dropped",
            self.mapping.name()
        ))
        .with_hint("ask the database for the view again")
    }

    fn refuse_if_closing(&self) -> Result<()> {
        if self.is_closing.load(Ordering::Acquire) {
            return Err(Error::closed("the database is being closed"));
        }
        if self.is_replaced() { Err(self.replaced()) } else { Ok(()) }
    }

    /// Updates the view to `snapshot`. During a write, nothing is merged, because merging waits for the disk. Call with
    /// `updating` locked.
    fn catch_up(&self, store: &Store, snapshot: &Snapshot, may_merge: bool) -> Result<()> {
        let may_merge = may_merge && !store.parts.options.read_only;
        let bytes_max = if may_merge { self.overlay_bytes_max } else { usize::MAX };
        let (mut state, is_ready) = {
            let live = self.live.read();
            (live.newest().clone(), live.is_ready)
        };
        if is_ready && state.position >= snapshot.sequence() {
            return Ok(());
        }
        self.refuse_if_closing()?;
        let total = snapshot.sequence().get();
        self.total.store(total, Ordering::Relaxed);
        // Most updates are by a few changes, and over at once.
        let is_long = !is_ready || total - state.position.get() > BATCH_COUNT as u64;
        let begun = Progress { done: state.position.get(), total };
        let task = is_long.then(|| store.list_task_at(ActiveTaskKind::View, self.mapping.name(), begun));
        loop {
            let tree = store.parts.tree.read();
            let mut update = ViewUpdate::begin(&*self.mapping, tree, self.prefix.clone(), &state);
            while update.position() < snapshot.sequence() && update.byte_count() <= bytes_max {
                self.refuse_if_closing()?;
                update.apply_feed_batch(snapshot, BATCH_COUNT)?;
                let done = update.position().get();
                self.done.store(done, Ordering::Relaxed);
                task.iter().for_each(|task| task.show(Progress { done, total }));
            }
            if is_ready {
                update.refresh_partials(self.reducer.as_deref())?;
            }
            let is_done = update.position() >= snapshot.sequence();
            state = Arc::new(update.finish());
            if is_ready {
                self.set_state(state.clone());
            }
            if state.overlay.byte_count() > bytes_max {
                state = self.merge(store, &state, if is_ready { Phase::Ready } else { Phase::Unfinished })?;
            }
            if is_done {
                break;
            }
        }
        if is_ready { Ok(()) } else { self.complete(store, state) }
    }

    /// Builds the partial reductions once all rows exist, and marks the view ready. Call with `updating` locked.
    fn complete(&self, store: &Store, state: Arc<ViewState>) -> Result<()> {
        let is_in_tree = self.live.read().is_in_tree;
        let state = if is_in_tree && !store.parts.options.read_only {
            let state = self.merge(store, &state, Phase::Unfinished)?;
            let rows = Layered::new(store.parts.tree.read(), self.prefix.clone(), state.overlay.clone());
            let mut after = merge::record(&*self.mapping, &state, Phase::Ready);
            after.row_count = partials::count_rows(&rows, &[], None)?;
            after.failed_count = merge::failures(&rows, usize::MAX)?.len() as u64;
            SlotWriter::new(store, self.slot).reduce_all(&rows, self.reducer.as_deref(), &after)?;
            let state = ViewState { row_count: after.row_count, failed_count: after.failed_count, ..(*state).clone() };
            self.live.write().record = after;
            Arc::new(state)
        } else {
            let tree = store.parts.tree.read();
            let mut update = ViewUpdate::begin(&*self.mapping, tree, self.prefix.clone(), &state);
            update.reduce_all(self.reducer.as_deref())?;
            Arc::new(update.finish())
        };
        let mut live = self.live.write();
        live.versions = VecDeque::from([state]);
        live.is_ready = true;
        Ok(())
    }

    fn set_state(&self, state: Arc<ViewState>) {
        self.live.write().versions = VecDeque::from([state]);
    }

    /// Updates the view to `base`, the newest appended sequence, and verifies that a unique view has no duplicate keys.
    /// Call under the writer lock.
    pub(super) fn enable_commit_hook(&self, base: &Snapshot) -> Result<()> {
        let store = self.store()?;
        {
            let _updating = self.begin_update(&store)?;
            self.catch_up(&store, base, false)?;
        }
        if self.mapping.refresh() != Refresh::Unique {
            return Ok(());
        }
        let live = self.live.read();
        let tree = store.parts.tree.read();
        let rows = Layered::new(tree, self.prefix.clone(), live.newest().overlay.clone());
        match commit_hook::find_duplicate_key(&rows, base.expired()?)? {
            None => Ok(()),
            Some((one, other)) => Err(Error::conflict(format!(
                "the unique view `{}` has one key of two documents, `{}` and `{}`",
                self.mapping.name(),
                base.id(one)?,
                base.id(other)?
            ))
            .with_hint("change one of them, or let the view be eager")),
        }
    }

    /// Begins an update of the newest state, within a write based on `base`.
    pub(super) fn begin_commit_update(&self, base: &Snapshot) -> Result<ViewUpdate<'_>> {
        let store = self.store()?;
        if self.live.read().newest().position < base.sequence() {
            let _updating = self.begin_update(&store)?;
            self.catch_up(&store, base, false)?;
        }
        let live = self.live.read();
        let tree = store.parts.tree.read();
        Ok(ViewUpdate::begin(&*self.mapping, tree, self.prefix.clone(), live.newest()).within_write())
    }

    /// Adds the state that a write produced; readers see it once the write is published.
    pub(super) fn add_version(&self, state: ViewState) {
        let Ok(store) = self.store() else { return };
        let published = store.parts.publisher.published();
        let mut live = self.live.write();
        live.versions.push_back(Arc::new(state));
        while live.versions.get(1).is_some_and(|next| next.position <= published) {
            live.versions.pop_front();
        }
    }

    /// Whether the overlay should be merged into the tree.
    pub(super) fn is_large(&self) -> bool {
        self.live.read().newest().overlay.byte_count() > self.overlay_bytes_max
    }

    /// Writes a state into the tree; returns the state that remains in memory. Call with `updating` locked.
    fn merge(&self, store: &Store, state: &ViewState, phase: Phase) -> Result<Arc<ViewState>> {
        store.flush()?;
        let after = merge::record(&*self.mapping, state, phase);
        // Set before writing, so that it holds even if the merge is interrupted.
        self.live.write().is_in_tree = true;
        SlotWriter::new(store, self.slot).write(&state.overlay, &after)?;
        let merged = Arc::new(ViewState { overlay: Default::default(), ..state.clone() });
        let mut live = self.live.write();
        live.record = after;
        // States of later writes remain as overlays on top of what was merged.
        let newer: Vec<_> = live.versions.iter().filter(|newer| newer.position > state.position).cloned().collect();
        live.versions = VecDeque::from([merged.clone()]);
        live.versions.extend(
            newer.iter().map(|newer| {
                Arc::new(ViewState { overlay: newer.overlay.without(&state.overlay), ..(**newer).clone() })
            }),
        );
        Ok(merged)
    }

    /// Merges the overlay into the tree, if there is one and the database is writable.
    pub(super) fn save(&self) -> Result<()> {
        let store = self.store()?;
        let _updating = self.begin_update(&store)?;
        let (state, is_ready, recorded, is_replaced) = {
            let live = self.live.read();
            (live.newest().clone(), live.is_ready, live.record.position, live.is_replaced)
        };
        let can_write = !store.parts.options.read_only && !store.parts.log.is_poisoned();
        if !is_ready || is_replaced || !can_write || state.position <= recorded {
            return Ok(());
        }
        self.merge(&store, &state, Phase::Ready).map(|_| ())
    }
}

impl ViewReading {
    /// Returns the reducer, or an error if the view has none.
    pub(super) fn reducer(&self) -> Result<&dyn Reducer> {
        self.reducer
            .as_deref()
            .ok_or_else(|| Error::invalid("the view has no reduction").with_hint("give it one, or ask for rows"))
    }
}

impl LiveContents {
    fn newest(&self) -> &Arc<ViewState> {
        self.versions.back().expect("there is always a state")
    }
}
