//! One view of an open database: what it says, and how it is kept up.
//!
//! A state is what the tree held at some position, and over it what was changed since in memory. It is brought forward from
//! the feed when it is asked for, and merged into the tree when it takes too much memory and at the end.
//!
//! Concurrency: `updating` is held by whoever brings it forward or merges; `live` for moments only. A reader takes the tree
//! and the state under one hold of `live`, so that a merge can't come between; while a merge is running, the state still has all
//! that is being merged.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use super::definition::{Mapping, Refresh};
use super::guard;
use super::layered::Layered;
use super::layout::{self, Phase, SlotNumber, SlotRecord};
use super::merge::{self, Merge};
use super::partials;
use super::reduce::Reducer;
use super::state::{State, Working};
use crate::engine::{CommitHook, Progress, Store};
use crate::read::Snapshot;
use crate::revision::Sequence;
use crate::sync::{Mutex, RwLock};
use crate::tree::TreeSnapshot;
use crate::{Error, Result};

/// Documents mapped between two looks at the memory they take.
const BATCH_COUNT: usize = 512;

/// A view of an open database.
pub(crate) struct Cell {
    pub(super) mapping: Arc<dyn Mapping>,
    pub(super) reducer: Option<Arc<dyn Reducer>>,
    store: Weak<Store>,
    slot: SlotNumber,
    prefix: Arc<[u8]>,
    /// States that take more memory are merged.
    overlay_bytes_max: usize,
    updating: Mutex<()>,
    live: RwLock<Live>,
    done: AtomicU64,
    total: AtomicU64,
    /// Whether someone brings it forward in the background.
    is_kept_busy: AtomicBool,
    /// Asks it about each write, if it is eager.
    guard: OnceLock<Arc<dyn CommitHook>>,
    /// Whether the database is being closed.
    is_closing: Arc<AtomicBool>,
}

/// What answers.
struct Live {
    /// Oldest first; the last is what is worked on. All but that of an eager view is one.
    versions: VecDeque<Arc<State>>,
    /// The record in the tree, if there is anything.
    record: SlotRecord,
    is_in_tree: bool,
    is_ready: bool,
    /// Of another version, to answer until this one is ready.
    old: Option<(SlotNumber, SlotRecord)>,
    /// Whether another version has taken its place.
    is_replaced: bool,
}

/// A view at one moment, to be read.
#[derive(Clone)]
pub(super) struct Reading {
    pub(super) snapshot: Snapshot,
    pub(super) rows: Layered,
    pub(super) reducer: Option<Arc<dyn Reducer>>,
    /// Whether documents were changed since, or it is of an older version.
    pub(super) is_stale: bool,
    /// Everything up to here is in the rows.
    pub(super) position: Sequence,
}

/// A state, with the tree beneath it and where it lies there.
pub(super) struct Newest {
    pub(super) tree: Arc<dyn TreeSnapshot>,
    pub(super) prefix: Arc<[u8]>,
    pub(super) state: Arc<State>,
}

/// What is known of a view when it is asked for first.
pub(super) struct Found {
    pub(super) slot: SlotNumber,
    /// Its record, if the tree has one.
    pub(super) record: Option<SlotRecord>,
    pub(super) old: Option<(SlotNumber, SlotRecord)>,
}

impl Cell {
    pub(super) fn new(
        mapping: Arc<dyn Mapping>,
        store: &Arc<Store>,
        found: Found,
        overlay_bytes_max: usize,
        is_closing: Arc<AtomicBool>,
    ) -> Self {
        let Found { slot, record, old } = found;
        let is_ready = record.as_ref().is_some_and(|record| record.phase == Phase::Ready);
        let is_in_tree = record.is_some();
        let record = record.unwrap_or_else(|| merge::record(&*mapping, &State::default(), Phase::Unfinished));
        let state = State {
            position: record.position,
            row_count: record.row_count,
            failed_count: record.failed_count,
            ..State::default()
        };
        let versions = VecDeque::from([Arc::new(state)]);
        let live = Live { versions, is_ready, record, is_in_tree, old, is_replaced: false };
        Cell {
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
            is_kept_busy: AtomicBool::new(false),
            guard: OnceLock::new(),
            is_closing,
        }
    }

    pub(super) fn slot(&self) -> SlotNumber {
        self.slot
    }

    pub(super) fn store(&self) -> Result<Arc<Store>> {
        self.store.upgrade().ok_or_else(|| Error::closed("the database is closed"))
    }

    /// Whether its rows were all made once.
    pub(super) fn is_ready(&self) -> bool {
        self.live.read().is_ready
    }

    /// Whether an older version answers meanwhile.
    pub(super) fn has_old(&self) -> bool {
        self.live.read().old.is_some()
    }

    /// The slot of the version that answered until this one was ready, to be removed; once.
    pub(super) fn take_old(&self) -> Option<(SlotNumber, SlotRecord)> {
        let mut live = self.live.write();
        if live.is_ready { live.old.take() } else { None }
    }

    /// Another version takes its place: it answers no longer, and writes nothing any more. Waits for who brings it forward to
    /// notice.
    pub(super) fn replace(&self) {
        self.live.write().is_replaced = true;
        drop(self.updating.lock());
    }

    /// Whether it is kept in step with every write.
    pub(super) fn is_guarding(&self) -> bool {
        self.guard.get().is_some()
    }

    /// Keeps the guard alive as long as this is.
    pub(super) fn keep_guard(&self, guard: Arc<dyn CommitHook>) {
        self.guard.set(guard).ok();
    }

    /// Whether another version has taken its place.
    pub(super) fn is_replaced(&self) -> bool {
        self.live.read().is_replaced
    }

    /// Says whether the caller is to bring it forward in the background: false if someone does.
    pub(super) fn begin_background(&self) -> bool {
        !self.is_kept_busy.swap(true, Ordering::AcqRel)
    }

    pub(super) fn end_background(&self) {
        self.is_kept_busy.store(false, Ordering::Release);
    }

    /// How far the making of its rows has come, in changes; none once they are made.
    pub(super) fn progress(&self) -> Option<Progress> {
        let (done, total) = (self.done.load(Ordering::Relaxed), self.total.load(Ordering::Relaxed));
        (!self.is_ready()).then_some(Progress { done, total })
    }

    /// Rows, documents that could not be mapped, and position of the newest state.
    pub(super) fn counts(&self) -> (u64, u64, Sequence) {
        let live = self.live.read();
        let state = live.newest();
        (state.row_count, state.failed_count, state.position)
    }

    /// What it says now, up to date or not.
    pub(super) fn reading(&self) -> Result<Reading> {
        let store = self.store()?;
        let live = self.live.read();
        if live.is_replaced {
            return Err(self.replaced());
        }
        let snapshot = store.snapshot()?;
        let tree = snapshot.tree().clone();
        let reading = |slot_prefix: Arc<[u8]>, state: &State, is_stale| Reading {
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
            self.leave_out_ended(&state, &mut reading)?;
            return Ok(reading);
        }
        // A slot that nothing is ever put in, where there is no older version.
        let old = live.old.as_ref().map_or(SlotNumber(u64::MAX), |(slot, _)| *slot);
        Ok(reading(layout::slot_prefix(old).into(), &State::default(), true))
    }

    /// Its newest state; none if its rows were never made.
    pub(super) fn newest(&self) -> Result<Option<Newest>> {
        let store = self.store()?;
        let live = self.live.read();
        if live.is_replaced {
            return Err(self.replaced());
        }
        let tree = store.parts.tree.read()?;
        Ok(live.is_ready.then(|| Newest { tree, prefix: self.prefix.clone(), state: live.newest().clone() }))
    }

    /// Takes the rows of documents that have ended out of what is read. Nothing of that is kept.
    fn leave_out_ended(&self, state: &State, reading: &mut Reading) -> Result<()> {
        let Some(ended) = reading.snapshot.ended()? else { return Ok(()) };
        let tree = reading.snapshot.tree().clone();
        let mut working = Working::begin(&*self.mapping, tree, self.prefix.clone(), state);
        ended.iter().try_for_each(|number| working.apply(number, None))?;
        working.settle(self.reducer.as_deref())?;
        reading.rows = working.layered().clone();
        Ok(())
    }

    /// Brings it up to everything published.
    pub(super) fn update(&self) -> Result<()> {
        let store = self.store()?;
        {
            let live = self.live.read();
            if live.is_ready && live.newest().position >= store.parts.publisher.published() {
                return Ok(());
            }
        }
        let _updating = self.updating.lock();
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

    fn refuse_if_over(&self) -> Result<()> {
        if self.is_closing.load(Ordering::Acquire) {
            return Err(Error::closed("the database is being closed"));
        }
        if self.is_replaced() { Err(self.replaced()) } else { Ok(()) }
    }

    /// Brings it up to `snapshot`; within a write nothing is merged, since that waits for the disk. Call it with `updating` held.
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
        self.refuse_if_over()?;
        self.total.store(snapshot.sequence().get(), Ordering::Relaxed);
        loop {
            let tree = store.parts.tree.read()?;
            let mut working = Working::begin(&*self.mapping, tree, self.prefix.clone(), &state);
            while working.position() < snapshot.sequence() && working.byte_count() <= bytes_max {
                self.refuse_if_over()?;
                working.follow(snapshot, BATCH_COUNT)?;
                self.done.store(working.position().get(), Ordering::Relaxed);
            }
            if is_ready {
                working.settle(self.reducer.as_deref())?;
            }
            let is_done = working.position() >= snapshot.sequence();
            state = Arc::new(working.finish());
            if is_ready {
                self.show(state.clone());
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

    /// Makes the partial reductions of rows that are all there, and answers from then on. Call it with `updating` held.
    fn complete(&self, store: &Store, state: Arc<State>) -> Result<()> {
        let is_in_tree = self.live.read().is_in_tree;
        let state = if is_in_tree && !store.parts.options.read_only {
            let state = self.merge(store, &state, Phase::Unfinished)?;
            let rows = Layered::new(store.parts.tree.read()?, self.prefix.clone(), state.overlay.clone());
            let mut after = merge::record(&*self.mapping, &state, Phase::Ready);
            after.row_count = partials::count_rows(&rows, &[], None)?;
            after.failed_count = merge::failures(&rows, usize::MAX)?.len() as u64;
            Merge::new(store, self.slot).reduce_all(&rows, self.reducer.as_deref(), &after)?;
            let state = State { row_count: after.row_count, failed_count: after.failed_count, ..(*state).clone() };
            self.live.write().record = after;
            Arc::new(state)
        } else {
            let tree = store.parts.tree.read()?;
            let mut working = Working::begin(&*self.mapping, tree, self.prefix.clone(), &state);
            working.reduce_all(self.reducer.as_deref())?;
            Arc::new(working.finish())
        };
        let mut live = self.live.write();
        live.versions = VecDeque::from([state]);
        live.is_ready = true;
        Ok(())
    }

    fn show(&self, state: Arc<State>) {
        self.live.write().versions = VecDeque::from([state]);
    }

    /// Brings it up to `base`, everything appended, and makes sure that a unique view is. Call it under the writer lock.
    pub(super) fn begin_guarding(&self, base: &Snapshot) -> Result<()> {
        let store = self.store()?;
        {
            let _updating = self.updating.lock();
            self.catch_up(&store, base, false)?;
        }
        if self.mapping.refresh() != Refresh::Unique {
            return Ok(());
        }
        let live = self.live.read();
        let tree = store.parts.tree.read()?;
        let rows = Layered::new(tree, self.prefix.clone(), live.newest().overlay.clone());
        match guard::first_shared(&rows, base.ended()?)? {
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

    /// A piece of work upon the newest state, within a write whose base is `base`.
    pub(super) fn work_within_write(&self, base: &Snapshot) -> Result<Working<'_>> {
        let store = self.store()?;
        if self.live.read().newest().position < base.sequence() {
            let _updating = self.updating.lock();
            self.catch_up(&store, base, false)?;
        }
        let live = self.live.read();
        let tree = store.parts.tree.read()?;
        Ok(Working::begin(&*self.mapping, tree, self.prefix.clone(), live.newest()).within_write())
    }

    /// Shows what a write has brought, from when it is published.
    pub(super) fn push(&self, state: State) {
        let Ok(store) = self.store() else { return };
        let published = store.parts.publisher.published();
        let mut live = self.live.write();
        live.versions.push_back(Arc::new(state));
        while live.versions.get(1).is_some_and(|next| next.position <= published) {
            live.versions.pop_front();
        }
    }

    /// Whether what is in memory should be merged.
    pub(super) fn is_large(&self) -> bool {
        self.live.read().newest().overlay.byte_count() > self.overlay_bytes_max
    }

    /// Writes a state into the tree; what is left of it in memory. Call it with `updating` held.
    fn merge(&self, store: &Store, state: &State, phase: Phase) -> Result<Arc<State>> {
        store.flush()?;
        let after = merge::record(&*self.mapping, state, phase);
        let before = {
            let mut live = self.live.write();
            // From now on, even if this is cut short.
            live.is_in_tree = true;
            live.record.clone()
        };
        Merge::new(store, self.slot).write(&state.overlay, &before, &after)?;
        let merged = Arc::new(State { overlay: Default::default(), ..state.clone() });
        let mut live = self.live.write();
        live.record = after;
        // What a write has brought since stands over what was merged.
        let newer: Vec<_> = live.versions.iter().filter(|newer| newer.position > state.position).cloned().collect();
        live.versions = VecDeque::from([merged.clone()]);
        live.versions.extend(
            newer
                .iter()
                .map(|newer| Arc::new(State { overlay: newer.overlay.without(&state.overlay), ..(**newer).clone() })),
        );
        Ok(merged)
    }

    /// Writes what is in memory into the tree, if there is anything and it can be done.
    pub(super) fn save(&self) -> Result<()> {
        let store = self.store()?;
        let _updating = self.updating.lock();
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

impl Reading {
    /// The reducer, if there is one.
    pub(super) fn reducer(&self) -> Result<&dyn Reducer> {
        self.reducer
            .as_deref()
            .ok_or_else(|| Error::invalid("the view has no reduction").with_hint("give it one, or ask for rows"))
    }
}

impl Live {
    fn newest(&self) -> &Arc<State> {
        self.versions.back().expect("there is always a state")
    }
}
