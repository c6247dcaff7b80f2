//! The views of an open database: assigns slots, opens views, and runs background updates.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use hashbrown::HashMap;

use super::check;
use super::commit_hook;
use super::declared::{self, DeclaredView};
use super::definition::{Mapping, Refresh, TypedMapping, View};
use super::layout::{Phase, SlotNumber, SlotRecord};
use super::materialized::{MaterializedView, SlotAssignment, ViewReading};
use super::merge::{self, SlotWriter};
use super::program::{ProgramMapping, ProgramView, ViewProgram, root_collation};
use super::query::{Access, OpenView, ViewInfo};
use super::transaction;
use crate::engine::{CheckReport, Damage, Operation, Store};
use crate::options::Durability;
use crate::read::Snapshot;
use crate::sync::Mutex;
use crate::value::Value;
use crate::{Error, Result};

/// Overlays larger than this are merged into the tree.
const OVERLAY_BYTES_MAX: usize = 8 << 20;

/// The views of an open database.
pub(crate) struct ViewRegistry {
    store: Weak<Store>,
    materialized_views: Mutex<HashMap<String, Arc<MaterializedView>>>,
    threads: Mutex<Vec<std::thread::JoinHandle<()>>>,
    is_closing: Arc<AtomicBool>,
    overlay_bytes_max: usize,
}

impl ViewRegistry {
    pub(crate) fn new(store: &Arc<Store>) -> Arc<Self> {
        Arc::new(ViewRegistry {
            store: Arc::downgrade(store),
            materialized_views: Mutex::default(),
            threads: Mutex::default(),
            is_closing: Arc::default(),
            overlay_bytes_max: OVERLAY_BYTES_MAX.min(store.parts.options.memory_bytes / 4),
        })
    }

    /// Opens a typed view.
    pub(crate) fn open<V: View>(self: &Arc<Self>, view: V) -> Result<OpenView<V>> {
        let materialized = self.find_or_open(Arc::new(TypedMapping(Arc::new(view))))?;
        if materialized.mapping.refresh() != Refresh::Lazy {
            self.enable_commit_hook(&materialized)?;
        }
        Ok(OpenView::new(self.clone(), materialized))
    }

    /// Opens a program view.
    pub(crate) fn open_program(self: &Arc<Self>, program: Arc<dyn ViewProgram>) -> Result<ProgramView> {
        // Rows of program views are ordered by the root collation, which some builds don't have.
        root_collation()?;
        let materialized = self.find_or_open(Arc::new(ProgramMapping::new(program)))?;
        Ok(ProgramView::new(self.clone(), materialized))
    }

    /// Returns the names of all views that have rows, sorted.
    pub(crate) fn names(&self) -> Result<Vec<String>> {
        let slots = merge::slots(&self.store()?.parts.tree.read())?;
        let mut names: Vec<String> = slots.into_iter().map(|(_, record)| record.name.to_string()).collect();
        names.extend(self.materialized_views.lock().keys().cloned());
        names.sort();
        names.dedup();
        Ok(names)
    }

    /// Opens the view with this definition, and stores the definition under its name.
    pub(crate) fn define(self: &Arc<Self>, name: &str, definition: &Value) -> Result<OpenView<DeclaredView>> {
        let view = DeclaredView::parse(name, definition)?;
        let store = self.store()?;
        let opened = self.open(view)?;
        if declared::definition(&store.snapshot()?, name)?.as_ref() != Some(definition) {
            let durability = store.parts.options.durability;
            store.write(durability, |transaction| declared::put(transaction, name, Some(definition)))?;
        }
        Ok(opened)
    }

    /// Opens the declared view stored under `name`.
    pub(crate) fn declared(self: &Arc<Self>, name: &str) -> Result<OpenView<DeclaredView>> {
        let definition = declared::definition(&self.store()?.snapshot()?, name)?;
        let definition = definition.ok_or_else(|| no_view(name))?;
        self.open(DeclaredView::parse(name, &definition)?)
    }

    /// Returns the names and definitions of the declared views.
    pub(crate) fn definitions(&self) -> Result<Vec<(String, Value)>> {
        declared::definitions(&self.store()?.snapshot()?)
    }

    /// Drops a view: its stored definition, if there is one, and its rows.
    pub(crate) fn forget(&self, name: &str) -> Result<()> {
        let store = self.store()?;
        store.refuse_reentry(Operation::UpdateView)?;
        let is_declared = declared::definition(&store.snapshot()?, name)?.is_some();
        if is_declared {
            let durability = store.parts.options.durability;
            store.write(durability, |transaction| declared::put(transaction, name, None))?;
        }
        let mut materialized_views = self.materialized_views.lock();
        let materialized = materialized_views.remove(name);
        if let Some(materialized) = &materialized {
            materialized.replace();
        }
        let mut slots = merge::slots(&store.parts.tree.read())?;
        slots.retain(|(_, record)| *record.name == *name);
        if !is_declared && materialized.is_none() && slots.is_empty() {
            return Err(no_view(name));
        }
        slots.iter().try_for_each(|(slot, _)| SlotWriter::new(&store, *slot).remove())
    }

    /// Opens the declared views that are eager or unique, so that writes keep them up to date.
    pub(crate) fn start(self: &Arc<Self>) -> Result<()> {
        for (name, definition) in self.definitions()? {
            // A malformed definition is reported when that view is opened; it does not prevent opening the others.
            let Ok(view) = DeclaredView::parse(&name, &definition) else { continue };
            if view.refresh() != Refresh::Lazy {
                self.open(view).ok();
            }
        }
        Ok(())
    }

    /// Registers the view's precommit check, so that every write updates the view.
    fn enable_commit_hook(self: &Arc<Self>, materialized: &Arc<MaterializedView>) -> Result<()> {
        let store = self.store()?;
        // What a replica follows is applied without asking; its views are updated when they are read.
        let takes_no_writes = store.parts.options.read_only || store.parts.options.is_replica;
        if takes_no_writes || materialized.has_commit_hook() {
            return Ok(());
        }
        // The first update runs without the writer lock; only the remaining changes are mapped under it.
        self.update(materialized)?;
        store.write(Durability::None, |transaction| {
            materialized.enable_commit_hook(transaction.base())?;
            let hook = commit_hook::new_commit_hook(self, materialized);
            store.add_commit_hook(Arc::downgrade(&hook));
            materialized.set_commit_hook(hook);
            Ok(())
        })
    }

    fn store(&self) -> Result<Arc<Store>> {
        self.store.upgrade().ok_or_else(|| Error::closed("the database is closed"))
    }

    fn find_or_open(self: &Arc<Self>, mapping: Arc<dyn Mapping>) -> Result<Arc<MaterializedView>> {
        let store = self.store()?;
        // A view that is replaced waits for its running update.
        store.refuse_reentry(Operation::UpdateView)?;
        let mut materialized_views = self.materialized_views.lock();
        if let Some(materialized) = materialized_views.get(mapping.name()) {
            if materialized.mapping.version() == mapping.version() {
                return Ok(materialized.clone());
            }
            // The previous version's contents answer queries until the new version is ready.
            materialized.save()?;
            materialized.replace();
            materialized_views.remove(mapping.name());
        }
        let tree = store.parts.tree.read();
        let slots = merge::slots(&tree)?;
        let taken = slots
            .iter()
            .map(|(slot, _)| *slot)
            .chain(materialized_views.values().map(|materialized| materialized.slot()));
        let next_slot = SlotNumber(taken.map(|slot| slot.0 + 1).max().unwrap_or(1));
        let (assignment, obsolete) = assign_slot(&store, &*mapping, slots, next_slot);
        let materialized = Arc::new(MaterializedView::new(
            mapping.clone(),
            &store,
            assignment,
            self.overlay_bytes_max,
            self.is_closing.clone(),
        ));
        materialized_views.insert(mapping.name().to_owned(), materialized.clone());
        drop(materialized_views);
        if !store.parts.options.read_only {
            for (slot, _) in obsolete {
                SlotWriter::new(&store, slot).remove()?;
            }
        }
        Ok(materialized)
    }

    /// Returns a view's contents for a query, updating the view as `access` requests.
    pub(super) fn read(self: &Arc<Self>, materialized: &Arc<MaterializedView>, access: Access) -> Result<ViewReading> {
        match access {
            Access::UpdateBefore if materialized.has_old() && !materialized.is_ready() => {
                self.update_in_background(materialized)?;
            }
            Access::UpdateBefore => self.update(materialized)?,
            Access::UpdateAfter | Access::NoUpdate => {}
        }
        let reading = materialized.reading()?;
        if access == Access::UpdateAfter {
            self.update_in_background(materialized)?;
        }
        Ok(reading)
    }

    /// Returns a view's contents as of a snapshot. The view itself is updated as `access` requests, so that later
    /// readings have less to map.
    pub(super) fn read_as_of(
        self: &Arc<Self>,
        materialized: &Arc<MaterializedView>,
        access: Access,
        snapshot: &Snapshot,
    ) -> Result<ViewReading> {
        match access {
            Access::UpdateBefore => self.update(materialized)?,
            Access::UpdateAfter => self.update_in_background(materialized)?,
            Access::NoUpdate => {}
        }
        transaction::reading_as_of(materialized, snapshot)
    }

    pub(super) fn update(&self, materialized: &MaterializedView) -> Result<()> {
        materialized.update()?;
        if materialized.is_large() {
            materialized.save()?;
        }
        if let Some((slot, _)) = materialized.take_old() {
            let store = self.store()?;
            if !store.parts.options.read_only {
                SlotWriter::new(&store, slot).remove()?;
            }
        }
        Ok(())
    }

    /// Updates the view on a background thread, or on this thread if background work is disabled.
    fn update_in_background(self: &Arc<Self>, materialized: &Arc<MaterializedView>) -> Result<()> {
        if !self.store()?.parts.options.background {
            return self.update(materialized);
        }
        self.in_background(materialized, |views, materialized| views.update(materialized))
    }

    /// Merges the view's overlay on a background thread. If background work is disabled, the next query merges it.
    pub(super) fn save_in_background(self: &Arc<Self>, materialized: &Arc<MaterializedView>) {
        if self.store().is_ok_and(|store| store.parts.options.background) {
            // An error is ignored: the next write tries again.
            self.in_background(materialized, |_, materialized| materialized.save()).ok();
        }
    }

    fn in_background(
        self: &Arc<Self>,
        materialized: &Arc<MaterializedView>,
        work: fn(&ViewRegistry, &MaterializedView) -> Result<()>,
    ) -> Result<()> {
        if self.is_closing.load(Ordering::Acquire) || !materialized.begin_background() {
            return Ok(());
        }
        let (views, updating) = (self.clone(), materialized.clone());
        let work = move || {
            // An error is ignored: the next query encounters it again.
            work(&views, &updating).ok();
            updating.end_background();
        };
        let thread = std::thread::Builder::new().name("stemma-view".to_owned()).spawn(work);
        let thread = thread.map_err(|error| Error::io("start a thread", error))?;
        let mut threads = self.threads.lock();
        threads.retain(|thread| !thread.is_finished());
        threads.push(thread);
        Ok(())
    }

    pub(super) fn info(&self, materialized: &MaterializedView, failures_max: usize) -> Result<ViewInfo> {
        let reading = materialized.reading()?;
        let (row_count, failed_count, sequence) = materialized.counts();
        let failures = if failed_count == 0 { Vec::new() } else { merge::failures(&reading.rows, failures_max)? };
        let failures = failures.into_iter().map(|(number, why)| Ok((reading.snapshot.id(number)?, why)));
        Ok(ViewInfo {
            name: materialized.mapping.name().to_owned(),
            row_count,
            failed_count,
            failures: failures.collect::<Result<_>>()?,
            sequence,
            progress: materialized.progress(),
        })
    }

    /// Adds the problems of views in the tree to a report.
    pub(crate) fn check(&self, report: &mut CheckReport) -> Result<()> {
        let tree = self.store()?.parts.tree.read();
        let problems = match check::check(&tree) {
            Ok(problems) => problems,
            Err(error) if error.kind() == crate::ErrorKind::Corrupt => vec![error.message().to_owned()],
            Err(error) => return Err(error),
        };
        report.damages.extend(problems.into_iter().map(|what| Damage { what, rebuild_helps: true }));
        Ok(())
    }

    /// Stops background threads, and merges all overlays.
    pub(crate) fn close(&self) -> Result<()> {
        self.is_closing.store(true, Ordering::Release);
        let threads = std::mem::take(&mut *self.threads.lock());
        for thread in threads {
            if thread.join().is_err() {
                return Err(Error::internal("a thread that brought a view up to date panicked"));
            }
        }
        let materialized_views: Vec<_> =
            self.materialized_views.lock().drain().map(|(_, materialized)| materialized).collect();
        materialized_views.iter().try_for_each(|materialized| materialized.save())
    }
}

fn no_view(name: &str) -> Error {
    Error::not_found(format!("there is no view `{name}`")).with_hint("define it first")
}

type Slots = Vec<(SlotNumber, SlotRecord)>;

/// Finds the view's slot, the slot of the previous version that answers until it is ready, and obsolete slots.
fn assign_slot(store: &Store, mapping: &dyn Mapping, slots: Slots, next_slot: SlotNumber) -> (SlotAssignment, Slots) {
    let (published, version) = (store.parts.publisher.published(), mapping.version());
    let mut assignment = SlotAssignment { slot: next_slot, record: None, old: None };
    let mut obsolete = Vec::new();
    for (slot, record) in slots {
        // A slot ahead of the log belongs to another log, for example one that was replaced by an older copy.
        let is_usable = record.position <= published;
        if is_usable && *record.name != *mapping.name() {
            continue;
        }
        if is_usable && *record.version == *version && assignment.record.is_none() {
            (assignment.slot, assignment.record) = (slot, Some(record));
        } else if is_usable && record.phase == Phase::Ready && assignment.old.is_none() {
            assignment.old = Some((slot, record));
        } else {
            obsolete.push((slot, record));
        }
    }
    if assignment.record.as_ref().is_some_and(|record| record.phase == Phase::Ready) {
        obsolete.extend(assignment.old.take());
    }
    (assignment, obsolete)
}
