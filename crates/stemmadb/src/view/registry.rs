//! The views of an open database: which there are, in which slot each is, and who works on them in the background.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use hashbrown::HashMap;

use super::cell::{Cell, Found, Reading};
use super::check;
use super::declared::{self, DeclaredView};
use super::definition::{Mapping, Refresh, Typed, View};
use super::guard;
use super::layout::{Phase, SlotNumber, SlotRecord};
use super::merge::{self, Merge};
use super::program::{ProgramMapping, ProgramView, ViewProgram};
use super::query::{Access, OpenView, ViewInfo};
use crate::engine::{CheckReport, Damage, Store};
use crate::options::Durability;
use crate::sync::Mutex;
use crate::value::Value;
use crate::{Error, Result};

/// States that take more memory than this are merged into the tree.
const OVERLAY_BYTES_MAX: usize = 8 << 20;

/// The views of an open database.
pub(crate) struct ViewRegistry {
    store: Weak<Store>,
    cells: Mutex<HashMap<String, Arc<Cell>>>,
    threads: Mutex<Vec<std::thread::JoinHandle<()>>>,
    is_closing: Arc<AtomicBool>,
    overlay_bytes_max: usize,
}

impl ViewRegistry {
    pub(crate) fn new(store: &Arc<Store>) -> Arc<Self> {
        Arc::new(ViewRegistry {
            store: Arc::downgrade(store),
            cells: Mutex::default(),
            threads: Mutex::default(),
            is_closing: Arc::default(),
            overlay_bytes_max: OVERLAY_BYTES_MAX.min(store.parts.options.memory_bytes / 4),
        })
    }

    /// The view of a program's type.
    pub(crate) fn open<V: View>(self: &Arc<Self>, view: V) -> Result<OpenView<V>> {
        let cell = self.cell(Arc::new(Typed(Arc::new(view))))?;
        if cell.mapping.refresh() != Refresh::Lazy {
            self.begin_guarding(&cell)?;
        }
        Ok(OpenView::new(self.clone(), cell))
    }

    /// The view of a program.
    pub(crate) fn open_program(self: &Arc<Self>, program: Arc<dyn ViewProgram>) -> Result<ProgramView> {
        let cell = self.cell(Arc::new(ProgramMapping::new(program)))?;
        Ok(ProgramView::new(self.clone(), cell))
    }

    /// The names of all views that rows are kept of, in order.
    pub(crate) fn names(&self) -> Result<Vec<String>> {
        let slots = merge::slots(&*self.store()?.parts.tree.read()?)?;
        let kept = slots.into_iter().filter(|(_, record)| record.phase != Phase::Dropped);
        let mut names: Vec<String> = kept.map(|(_, record)| record.name.to_string()).collect();
        names.extend(self.cells.lock().keys().cloned());
        names.sort();
        names.dedup();
        Ok(names)
    }

    /// The view that `definition` tells; writes the definition down under its name.
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

    /// The view whose definition is written down under `name`.
    pub(crate) fn declared(self: &Arc<Self>, name: &str) -> Result<OpenView<DeclaredView>> {
        let definition = declared::definition(&self.store()?.snapshot()?, name)?;
        let definition = definition.ok_or_else(|| no_view(name))?;
        self.open(DeclaredView::parse(name, &definition)?)
    }

    /// Names and definitions of the views that are written down.
    pub(crate) fn definitions(&self) -> Result<Vec<(String, Value)>> {
        declared::definitions(&self.store()?.snapshot()?)
    }

    /// Forgets a view: its definition, if one is written down, and its rows.
    pub(crate) fn forget(&self, name: &str) -> Result<()> {
        let store = self.store()?;
        let is_declared = declared::definition(&store.snapshot()?, name)?.is_some();
        if is_declared {
            let durability = store.parts.options.durability;
            store.write(durability, |transaction| declared::put(transaction, name, None))?;
        }
        let mut cells = self.cells.lock();
        let cell = cells.remove(name);
        if let Some(cell) = &cell {
            cell.replace();
        }
        let mut slots = merge::slots(&*store.parts.tree.read()?)?;
        slots.retain(|(_, record)| *record.name == *name);
        if !is_declared && cell.is_none() && slots.is_empty() {
            return Err(no_view(name));
        }
        slots.iter().try_for_each(|(slot, record)| Merge::new(&store, *slot).remove(record))
    }

    /// Keeps the declared views that are eager in step from now on.
    pub(crate) fn start(self: &Arc<Self>) -> Result<()> {
        for (name, definition) in self.definitions()? {
            // What is wrong with one is told to whoever asks for it; the others don't suffer.
            let Ok(view) = DeclaredView::parse(&name, &definition) else { continue };
            if view.refresh() != Refresh::Lazy {
                self.open(view).ok();
            }
        }
        Ok(())
    }

    /// Keeps the view in step with every write from now on.
    fn begin_guarding(self: &Arc<Self>, cell: &Arc<Cell>) -> Result<()> {
        let store = self.store()?;
        if store.parts.options.read_only || cell.is_guarding() {
            return Ok(());
        }
        // What is written meanwhile is made up for under the writer lock, so that others wait for little.
        self.update(cell)?;
        store.write(Durability::None, |transaction| {
            cell.begin_guarding(transaction.base())?;
            let guard = guard::of(self, cell);
            store.add_commit_hook(Arc::downgrade(&guard));
            cell.keep_guard(guard);
            Ok(())
        })
    }

    fn store(&self) -> Result<Arc<Store>> {
        self.store.upgrade().ok_or_else(|| Error::closed("the database is closed"))
    }

    fn cell(self: &Arc<Self>, mapping: Arc<dyn Mapping>) -> Result<Arc<Cell>> {
        let store = self.store()?;
        let mut cells = self.cells.lock();
        if let Some(cell) = cells.get(mapping.name()) {
            if cell.mapping.version() == mapping.version() {
                return Ok(cell.clone());
            }
            // What it has answers until the new version is ready.
            cell.save()?;
            cell.replace();
            cells.remove(mapping.name());
        }
        let tree = store.parts.tree.read()?;
        let slots = merge::slots(&*tree)?;
        let taken = slots.iter().map(|(slot, _)| *slot).chain(cells.values().map(|cell| cell.slot()));
        let next_slot = SlotNumber(taken.map(|slot| slot.0 + 1).max().unwrap_or(1));
        let (found, useless) = choose(&store, &*mapping, slots, next_slot);
        let cell = Arc::new(Cell::new(mapping.clone(), &store, found, self.overlay_bytes_max, self.is_closing.clone()));
        cells.insert(mapping.name().to_owned(), cell.clone());
        drop(cells);
        if !store.parts.options.read_only {
            for (slot, record) in useless {
                Merge::new(&store, slot).remove(&record)?;
            }
        }
        Ok(cell)
    }

    /// The view as it is to be read.
    pub(super) fn read(self: &Arc<Self>, cell: &Arc<Cell>, access: Access) -> Result<Reading> {
        match access {
            Access::UpdateBefore if cell.has_old() && !cell.is_ready() => self.update_in_background(cell)?,
            Access::UpdateBefore => self.update(cell)?,
            Access::UpdateAfter | Access::NoUpdate => {}
        }
        let reading = cell.reading()?;
        if access == Access::UpdateAfter {
            self.update_in_background(cell)?;
        }
        Ok(reading)
    }

    pub(super) fn update(&self, cell: &Cell) -> Result<()> {
        cell.update()?;
        if cell.is_large() {
            cell.save()?;
        }
        if let Some((slot, record)) = cell.take_old() {
            let store = self.store()?;
            if !store.parts.options.read_only {
                Merge::new(&store, slot).remove(&record)?;
            }
        }
        Ok(())
    }

    /// Brings the view up to date on a thread of its own; at once where there are to be none.
    fn update_in_background(self: &Arc<Self>, cell: &Arc<Cell>) -> Result<()> {
        if !self.store()?.parts.options.background {
            return self.update(cell);
        }
        self.in_background(cell, |views, cell| views.update(cell))
    }

    /// Merges what the view has in memory, on a thread of its own; where there are to be none, whoever asks next does.
    pub(super) fn save_in_background(self: &Arc<Self>, cell: &Arc<Cell>) {
        if self.store().is_ok_and(|store| store.parts.options.background) {
            // It is tried again after the next write.
            self.in_background(cell, |_, cell| cell.save()).ok();
        }
    }

    fn in_background(self: &Arc<Self>, cell: &Arc<Cell>, work: fn(&ViewRegistry, &Cell) -> Result<()>) -> Result<()> {
        if self.is_closing.load(Ordering::Acquire) || !cell.begin_background() {
            return Ok(());
        }
        let (views, working) = (self.clone(), cell.clone());
        let work = move || {
            // Whoever asks next meets the error again.
            work(&views, &working).ok();
            working.end_background();
        };
        let thread = std::thread::Builder::new().name("stemma-view".to_owned()).spawn(work);
        let thread = thread.map_err(|error| Error::io("start a thread", error))?;
        let mut threads = self.threads.lock();
        threads.retain(|thread| !thread.is_finished());
        threads.push(thread);
        Ok(())
    }

    pub(super) fn info(&self, cell: &Cell, failures_max: usize) -> Result<ViewInfo> {
        let reading = cell.reading()?;
        let (row_count, failed_count, sequence) = cell.counts();
        let failures = if failed_count == 0 { Vec::new() } else { merge::failures(&reading.rows, failures_max)? };
        let failures = failures.into_iter().map(|(number, why)| Ok((reading.snapshot.id(number)?, why)));
        Ok(ViewInfo {
            name: cell.mapping.name().to_owned(),
            row_count,
            failed_count,
            failures: failures.collect::<Result<_>>()?,
            sequence,
            progress: cell.progress(),
        })
    }

    /// Adds what is wrong with views in the tree to a report.
    pub(crate) fn check(&self, report: &mut CheckReport) -> Result<()> {
        let tree = self.store()?.parts.tree.read()?;
        let problems = match check::check(&tree) {
            Ok(problems) => problems,
            Err(error) if error.kind() == crate::ErrorKind::Corrupt => vec![error.message().to_owned()],
            Err(error) => return Err(error),
        };
        report.damages.extend(problems.into_iter().map(|what| Damage { what, rebuild_helps: true }));
        Ok(())
    }

    /// Ends what runs in the background, and writes what is in memory.
    pub(crate) fn close(&self) -> Result<()> {
        self.is_closing.store(true, Ordering::Release);
        let threads = std::mem::take(&mut *self.threads.lock());
        for thread in threads {
            if thread.join().is_err() {
                return Err(Error::internal("a thread that brought a view up to date panicked"));
            }
        }
        let cells: Vec<_> = self.cells.lock().drain().map(|(_, cell)| cell).collect();
        cells.iter().try_for_each(|cell| cell.save())
    }
}

fn no_view(name: &str) -> Error {
    Error::not_found(format!("there is no view `{name}`")).with_hint("define it first")
}

type Slots = Vec<(SlotNumber, SlotRecord)>;

/// Which slot is the view's, which one answers until it is ready, and which are of no use.
fn choose(store: &Store, mapping: &dyn Mapping, slots: Slots, next_slot: SlotNumber) -> (Found, Slots) {
    let (published, version) = (store.parts.publisher.published(), mapping.version());
    let mut found = Found { slot: next_slot, record: None, old: None };
    let mut useless = Vec::new();
    for (slot, record) in slots {
        // A slot that has come further than the log is of another log's past.
        let is_usable = record.phase != Phase::Dropped && record.position <= published;
        if is_usable && *record.name != *mapping.name() {
            continue;
        }
        if is_usable && *record.version == *version && found.record.is_none() {
            (found.slot, found.record) = (slot, Some(record));
        } else if is_usable && record.phase == Phase::Ready && found.old.is_none() {
            found.old = Some((slot, record));
        } else {
            useless.push((slot, record));
        }
    }
    if found.record.as_ref().is_some_and(|record| record.phase == Phase::Ready) {
        useless.extend(found.old.take());
    }
    (found, useless)
}
