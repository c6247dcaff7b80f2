//! Declared indexes: defines them in the log, builds them while the database is in use, and drops them.
//!
//! Invariants:
//! - A definition is in the log before any term of its index is in a memtable, so the tree never holds terms of an
//!   index that the durable log does not define. From then on every write adds its terms; the builder adds those of
//!   existing documents.
//! - An index is recorded as ready in the tree after a checkpoint that holds all of its terms. An index that is defined
//!   but not ready is built again from the start: adding an existing term changes nothing.
//! - The rows of a dropped index are removed from the tree after every memtable that may hold some was merged. Rows
//!   that a crash leaves behind are found by their path, whose number no other index gets.
//!
//! Concurrency: definitions change under the writer lock. The builder reads the documents without it, and holds it for
//! one batch at a time to add terms to the memtable.

use std::ops::Bound;

use hashbrown::HashMap;

use crate::engine::unique;
use crate::engine::write::Writer;
use crate::engine::{ActiveTaskKind, Operation, Store};
use crate::index::{
    self, DeclaredIndexes, DeclaredKey, DocumentNumber, ExpirationRule, Expiry, Index, IndexDefinition, IndexPath,
    OwnedStep, PathNumber,
};
use crate::layout::record::Record;
use crate::layout::settings::Settings;
use crate::layout::{FIRST_NUMBER, meta};
use crate::log::Level;
use crate::options::Progress;
use crate::revision::{DocumentId, Sequence};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::tree::{Direction, Table};
use crate::value::collate;
use crate::{Error, ErrorKind, Result};

/// Documents whose terms are added under one hold of the writer lock.
const BATCH_COUNT: u64 = 256;

/// The state of index builds and of the removal of dropped indexes.
#[derive(Default)]
pub(super) struct IndexBuilds {
    /// The index being built, and its progress.
    now_building: AtomicU64,
    done: AtomicU64,
    total: AtomicU64,
    /// Paths of dropped indexes whose rows have to be removed.
    garbage: Mutex<Vec<PathNumber>>,
    /// By index number, why an index could not be completed when the database was opened.
    failed: Mutex<HashMap<u32, String>>,
    stopped: AtomicBool,
}

/// The definition and state of a declared index.
///
/// Returned by [`Indexes::list`](crate::handles::Indexes::list).
#[derive(Debug, Clone, PartialEq)]
pub struct IndexInfo {
    /// The name of the index.
    pub name: String,
    /// The paths that the index orders documents by.
    pub paths: Vec<IndexPath>,
    /// Whether the index rejects two documents with the same values.
    pub unique: bool,
    /// Whether queries can use the index.
    pub state: IndexState,
}

/// Whether queries can use a declared index; part of [`IndexInfo`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IndexState {
    /// The terms of existing documents are being added, or will be. Writes maintain the index; queries do not use it.
    Building(Progress),
    /// The index is complete.
    Ready,
    /// A unique index whose interrupted build was resumed and found two documents with the same values. Writes maintain
    /// the index; queries do not use it. Correct the documents and declare the index again, or drop it.
    Failed {
        /// The documents, and the value that they share.
        why: String,
    },
}

/// Documents that have the same values in a unique index, because replication brought both.
///
/// Returned by [`Indexes::duplicates`](crate::handles::Indexes::duplicates).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Duplicates {
    /// At least two ids, in the order in which the documents were first inserted.
    pub ids: Vec<DocumentId>,
}

/// The format of an index's keys. An index with keys in another format is built again.
pub(super) fn key_format(definition: &IndexDefinition) -> Vec<u8> {
    let order = if definition.is_collated() { collate::VERSION } else { "" };
    [b"1 ", order.as_bytes()].concat()
}

impl Store {
    /// Declares an index and builds it; returns once it is complete. Declaring the same index again is not an error.
    pub(crate) fn create_index(&self, index: &Index, progress: &mut dyn FnMut(Progress)) -> Result<()> {
        let _running = self.begin(Operation::BuildIndex)?;
        let definition = index.define(0)?;
        self.parts.refuse_redundant(&definition)?;
        let number = self.define(definition)?;
        match self.build(number, progress) {
            Err(error) if error.kind() == ErrorKind::Duplicate => {
                self.drop_definition(number)?;
                Err(error)
            }
            built => built,
        }
    }

    /// Adds an expiration rule. Adding the same rule again is not an error.
    pub(crate) fn expire_by(&self, rule: &ExpirationRule, progress: &mut dyn FnMut(Progress)) -> Result<()> {
        let _running = self.begin(Operation::BuildIndex)?;
        let number = self.define(IndexDefinition::for_expiration(rule, 0))?;
        self.build(number, progress)
    }

    /// Removes an expiration rule. Its rows are removed in the background.
    pub(crate) fn drop_expiry(&self, rule: &ExpirationRule) -> Result<()> {
        let Some(number) = self.parts.declared().expiring(rule).map(|index| index.definition.number) else {
            return Err(Error::not_found(format!("there is no rule `{rule}`")).with_hint("list the rules to see them"));
        };
        self.drop_definition(number)
    }

    /// The expiration rules, in the order they were added.
    pub(crate) fn expiries(&self) -> Vec<Expiry> {
        let declared = self.parts.declared();
        declared.indexes.iter().filter_map(|index| index.definition.expiry.as_ref()).map(Expiry::from_rule).collect()
    }

    /// Drops an index. Its rows are removed in the background.
    pub(crate) fn drop_index(&self, name: &str) -> Result<()> {
        let Some(number) = self.parts.declared().named(name).map(|index| index.definition.number) else {
            return Err(not_found(name));
        };
        self.drop_definition(number)
    }

    /// The declared indexes, in the order they were declared.
    pub(crate) fn indexes(&self) -> Vec<IndexInfo> {
        let info = |index: &index::DeclaredIndex| IndexInfo {
            name: index.definition.name.clone(),
            paths: index.definition.paths.clone(),
            unique: index.definition.is_unique,
            state: if index.is_ready { IndexState::Ready } else { self.index_builds.state(index.definition.number) },
        };
        let declared = self.parts.declared();
        declared.indexes.iter().filter(|index| index.definition.expiry.is_none()).map(info).collect()
    }

    /// The documents that share their values in a unique index.
    pub(crate) fn duplicates(&self, name: &str) -> Result<Vec<Duplicates>> {
        let snapshot = self.snapshot()?;
        let index = snapshot.declared.named(name).filter(|index| index.definition.is_unique);
        let index = index.ok_or_else(|| not_found(name))?;
        let mut walk = snapshot.walk(index.path, Bound::Unbounded, Bound::Unbounded, Direction::Ascending)?;
        let mut found = Vec::new();
        while let Some(mut term) = walk.next_term()? {
            let documents = snapshot.without_expired(term.take()?)?;
            let Some(first) = documents.iter().next().filter(|_| documents.len() > 1) else { continue };
            // Either all documents of a term lack a value, or none does.
            let state = snapshot.state(first)?.ok_or_else(|| Error::internal("a term of no document"))?;
            let key = index.definition.key(state.id.as_str(), snapshot.winner(&state)?.packed()?)?;
            if key.is_some_and(|key| !key.is_partial) {
                let numbers: Vec<_> = documents.iter().collect();
                found.push(Duplicates { ids: snapshot.ids(&numbers)? });
            }
        }
        Ok(found)
    }

    /// Logs a definition. Returns its number, or that of an identical existing index.
    fn define(&self, mut definition: IndexDefinition) -> Result<u32> {
        let mut writer = self.writer.lock();
        self.refuse_if_closed()?;
        let mut declared = DeclaredIndexes::clone(&self.parts.declared());
        let existing = match &definition.expiry {
            Some(rule) => declared.expiring(rule),
            None => declared.named(&definition.name),
        };
        if let Some(existing) = existing {
            let existing = &existing.definition;
            if existing.is_same(&definition) {
                return Ok(existing.number);
            }
            return Err(Error::invalid(format!("there is another index `{}` already", existing.name))
                .with_hint("choose another name, or drop the other index first"));
        }
        definition.number = declared.next_number;
        let number = definition.number;
        declared.add(definition, &self.parts.paths)?;
        self.set_definitions(&mut writer, declared)?;
        Ok(number)
    }

    /// Removes a definition from the log, and schedules the removal of its rows.
    fn drop_definition(&self, number: u32) -> Result<()> {
        // Without background work, the rows are removed here, after a checkpoint.
        self.refuse_reentry(Operation::Checkpoint)?;
        let mut writer = self.writer.lock();
        self.refuse_if_closed()?;
        let mut declared = DeclaredIndexes::clone(&self.parts.declared());
        let Some(path) = declared.numbered(number).map(|index| index.path) else { return Ok(()) };
        declared.remove(number);
        self.set_definitions(&mut writer, declared)?;
        self.seal(&mut writer);
        drop(writer);
        self.parts.log.commit(self.parts.log.end(), Level::Flushed)?;
        self.index_builds.garbage.lock().push(path);
        if self.parts.options.background {
            self.request_checkpoint();
            return Ok(());
        }
        self.merge_sealed()?;
        while self.sweep_dropped_index()? {}
        Ok(())
    }

    /// Logs these definitions and puts them in force.
    pub(super) fn set_definitions(&self, writer: &mut Writer, declared: DeclaredIndexes) -> Result<()> {
        let parts = &self.parts;
        let settings = Settings::encode(&parts.policy, &declared, parts.compression_setting());
        self.append_record(writer, &Record::Settings(&settings))?;
        let _view = self.view.write();
        self.parts.set_declared(declared);
        Ok(())
    }

    /// Adds the terms of the documents that are older than the index, then marks it ready.
    fn build(&self, number: u32, progress: &mut dyn FnMut(Progress)) -> Result<()> {
        let _building = self.building.lock();
        let declared = self.parts.declared();
        let index = declared.numbered(number).ok_or_else(dropped)?;
        if index.is_ready {
            return Ok(());
        }
        let task = self.list_task(ActiveTaskKind::Index, &index.definition.name);
        let mut progress = task.showing(progress);
        self.index_builds.failed.lock().remove(&number);
        // The definition has to be durable before any user relies on it.
        self.parts.log.commit(self.parts.log.end(), Level::Flushed)?;
        let end = self.writer.lock().next_number;
        let total = end.0 - FIRST_NUMBER.0;
        let mut from = FIRST_NUMBER;
        loop {
            self.index_builds.show(number, Progress { done: from.0 - FIRST_NUMBER.0, total });
            progress(Progress { done: from.0 - FIRST_NUMBER.0, total });
            if from >= end {
                break;
            }
            let to = DocumentNumber((from.0 + BATCH_COUNT).min(end.0));
            self.wait_for_memory()?;
            self.build_batch(number, from, to)?;
            from = to;
        }
        self.checkpoint()?;
        self.finish_build(number)
    }

    /// Adds the terms of the documents from `from` to `to`.
    fn build_batch(&self, number: u32, from: DocumentNumber, to: DocumentNumber) -> Result<()> {
        let declared = self.parts.declared();
        let index = declared.numbered(number).ok_or_else(dropped)?;
        let mut prepared = self.prepare_batch(&index.definition, from, to)?;
        let mut writer = self.writer.lock();
        self.refuse_if_broken()?;
        self.index_builds.refuse_if_stopped()?;
        if self.parts.declared().numbered(number).is_none() {
            return Err(dropped());
        }
        let snapshot = self.newest_snapshot()?;
        let mut terms = Vec::with_capacity((to.0 - from.0) as usize);
        for at in (from.0..to.0).map(DocumentNumber) {
            let Some(state) = snapshot.state(at)? else { continue };
            let key = match prepared.remove(&at) {
                Some((sequence, key)) if sequence == state.sequence => key,
                _ if state.is_live() => index.definition.key(state.id.as_str(), snapshot.winner(&state)?.packed()?)?,
                _ => None,
            };
            terms.extend(key.map(|key| (at, key)));
        }
        if index.definition.is_unique {
            self.refuse_duplicates(&declared, number, &snapshot, &terms)?;
        }
        let sequence = Sequence(writer.next_sequence.0 - 1);
        let terms = terms.iter().map(|(at, key)| (*at, key.key.as_slice()));
        self.active_memtable().insert_terms(index.path, sequence, terms);
        self.seal_if_full(&mut writer);
        Ok(())
    }

    /// The keys of documents in their current state. A document that changes before its key is used gets a new key.
    fn prepare_batch(
        &self,
        definition: &IndexDefinition,
        from: DocumentNumber,
        to: DocumentNumber,
    ) -> Result<HashMap<DocumentNumber, (Sequence, Option<DeclaredKey>)>> {
        let snapshot = self.snapshot()?;
        let mut keys = HashMap::new();
        let mut live = Vec::new();
        for at in (from.0..to.0).map(DocumentNumber) {
            let Some(state) = snapshot.state(at)? else { continue };
            keys.insert(at, (state.sequence, None));
            if state.is_live() {
                live.push(at);
            }
        }
        snapshot.load(&live, &mut |at, document| {
            if let Some((_, key)) = keys.get_mut(&at) {
                *key = definition.key(document.id().as_str(), document.packed()?)?;
            }
            Ok(())
        })?;
        Ok(keys)
    }

    fn refuse_duplicates(
        &self,
        declared: &DeclaredIndexes,
        number: u32,
        snapshot: &crate::read::Snapshot,
        terms: &[(DocumentNumber, DeclaredKey)],
    ) -> Result<()> {
        let index = declared.numbered(number).ok_or_else(dropped)?;
        let mut first: HashMap<&[u8], DocumentNumber> = HashMap::new();
        for (at, key) in terms.iter().filter(|(_, key)| !key.is_partial) {
            let holders = snapshot.postings(index.path, &key.key)?;
            let other = holders.iter().find(|other| other != at).or_else(|| first.insert(&key.key, *at));
            let Some(other) = other else { continue };
            let state = snapshot.state(*at)?.ok_or_else(|| Error::internal("a term of no document"))?;
            let document = snapshot.winner(&state)?;
            let holder = snapshot.id(other)?;
            let error = unique::duplicate_error(declared, index.path, document.packed()?, holder.as_str());
            return Err(error
                .within(format!("document `{}`", state.id))
                .with_hint("change one of the two documents, then declare the index again"));
        }
        Ok(())
    }

    /// Records that an index is ready: all its terms are in the tree.
    fn finish_build(&self, number: u32) -> Result<()> {
        let declared = self.parts.declared();
        let index = declared.numbered(number).ok_or_else(dropped)?;
        {
            let _upkeep = self.upkeep.lock();
            let mut tree = self.parts.tree.write()?;
            meta::put_ready_index(&mut tree, number, &key_format(&index.definition))?;
            // Documents that were written during the build were counted twice.
            self.parts.recount_statistics(&mut tree, index.path)?;
            tree.commit()?;
        }
        let _writer = self.writer.lock();
        let mut declared = DeclaredIndexes::clone(&self.parts.declared());
        declared.numbered(number).ok_or_else(dropped)?;
        declared.set_ready(number);
        let _view = self.view.write();
        self.parts.set_declared(declared);
        // The index may contain documents that expired long ago.
        self.add_expiration(i64::MIN);
        Ok(())
    }

    /// Restores index states after recovery: marks ready indexes, restarts those whose key format is outdated, and
    /// finds the rows of dropped indexes.
    pub(super) fn restore_index_states(&self) -> Result<()> {
        let tree = self.parts.tree.read();
        let ready = meta::ready_indexes(&tree)?;
        drop(tree);
        let mut declared = DeclaredIndexes::clone(&self.parts.declared());
        let mut outdated = Vec::new();
        for index in declared.indexes.clone() {
            let number = index.definition.number;
            match ready.iter().find(|(ready, _)| *ready == u64::from(number)) {
                Some((_, form)) if *form == key_format(&index.definition) => declared.set_ready(number),
                Some(_) => outdated.push(index),
                None => {}
            }
        }
        if self.parts.options.is_replica {
            // Their owner declares them again.
            let mut failed = self.index_builds.failed.lock();
            let why = || "this version orders values otherwise than the owner's".to_owned();
            failed.extend(outdated.iter().map(|index| (index.definition.number, why())));
            outdated.clear();
        }
        if !self.parts.options.read_only && !outdated.is_empty() {
            let mut writer = self.writer.lock();
            for index in outdated {
                declared.remove(index.definition.number);
                let number = declared.next_number;
                declared
                    .add(IndexDefinition { number, ..IndexDefinition::clone(&index.definition) }, &self.parts.paths)?;
            }
            self.set_definitions(&mut writer, declared)?;
            self.seal(&mut writer);
        } else {
            self.parts.set_declared(declared);
        }
        self.find_garbage()
    }

    /// Finds the rows of dropped indexes.
    pub(super) fn find_garbage(&self) -> Result<()> {
        let declared = self.parts.declared();
        let mut garbage = Vec::new();
        for entry in self.parts.paths.entries_since(1) {
            if let OwnedStep::Index(number) = entry.step
                && declared.numbered(number).is_none()
            {
                garbage.push(entry.number);
            }
        }
        if !garbage.is_empty() && !self.parts.options.read_only {
            // Otherwise a power loss could restore a definition whose rows are gone.
            self.parts.log.commit(self.parts.log.end(), Level::Flushed)?;
            *self.index_builds.garbage.lock() = garbage;
        }
        Ok(())
    }

    /// Whether rows of dropped indexes are left in the tree.
    pub(super) fn has_dropped_indexes(&self) -> bool {
        !self.index_builds.garbage.lock().is_empty()
    }

    /// Whether index work was left unfinished when the database was last closed.
    pub(super) fn has_unfinished_indexes(&self) -> bool {
        self.parts.declared().indexes.iter().any(|index| !index.is_ready)
    }

    /// Whether an index is not ready, and can be built.
    pub(super) fn has_buildable_indexes(&self) -> bool {
        let failed = self.index_builds.failed.lock();
        self.parts
            .declared()
            .indexes
            .iter()
            .any(|index| !index.is_ready && !failed.contains_key(&index.definition.number))
    }

    /// Finishes that work without background threads.
    pub(super) fn finish_index_work(&self) -> Result<()> {
        self.merge_sealed()?;
        while self.sweep_dropped_index()? {}
        self.build_unfinished()
    }

    /// Builds the indexes that are defined but not ready. One that turns out not to be unique is recorded as failed.
    pub(super) fn build_unfinished(&self) -> Result<()> {
        let has_failed = |number| self.index_builds.failed.lock().contains_key(&number);
        let unfinished = |index: &&index::DeclaredIndex| !index.is_ready && !has_failed(index.definition.number);
        while let Some(index) = self.parts.declared().indexes.iter().find(unfinished).cloned() {
            let number = index.definition.number;
            match self.build(number, &mut |_| ()) {
                Err(error) if error.kind() == ErrorKind::Duplicate => {
                    self.index_builds.failed.lock().insert(number, error.message().to_owned());
                }
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                built => built?,
            }
        }
        Ok(())
    }

    /// Stops all index builds.
    pub(super) fn stop_building(&self) {
        self.index_builds.stopped.store(true, Ordering::Release);
    }

    /// Removes the rows of one dropped index from the tree; returns whether there are other dropped indexes. The caller
    /// has merged the memtables.
    pub(super) fn sweep_dropped_index(&self) -> Result<bool> {
        let Some(path) = self.index_builds.garbage.lock().last().copied() else { return Ok(false) };
        let _upkeep = self.upkeep.lock();
        let mut tree = self.parts.tree.write()?;
        tree.remove_range(Table::Postings, &index::first_posting(path, &[]), &index::after_postings(path, &[]));
        if let Some(number) = self.parts.paths.index_of(path) {
            meta::forget_ready_index(&mut tree, number)?;
        }
        self.parts.forget_statistics(&mut tree, path)?;
        tree.commit()?;
        let mut garbage = self.index_builds.garbage.lock();
        garbage.retain(|other| *other != path);
        Ok(!garbage.is_empty())
    }
}

impl crate::read::StoreParts {
    /// Returns an error for an index that adds nothing to the automatic index of every path.
    fn refuse_redundant(&self, definition: &IndexDefinition) -> Result<()> {
        let [path] = definition.paths.as_slice() else { return Ok(()) };
        if definition.is_unique || path.language.is_some() || !self.policy.covers(&path.path) {
            return Ok(());
        }
        Err(Error::invalid(format!("`{}` is indexed already, as every path is", path.path)).with_hint(
            "declare an index to make values unique, to have an order of several paths, or that of a language",
        ))
    }
}

impl IndexBuilds {
    fn show(&self, number: u32, progress: Progress) {
        self.done.store(progress.done, Ordering::Relaxed);
        self.total.store(progress.total, Ordering::Relaxed);
        self.now_building.store(u64::from(number), Ordering::Release);
    }

    pub(super) fn refuse_if_stopped(&self) -> Result<()> {
        match self.stopped.load(Ordering::Acquire) {
            true => Err(Error::closed("the database is being closed")),
            false => Ok(()),
        }
    }

    fn state(&self, number: u32) -> IndexState {
        if let Some(why) = self.failed.lock().get(&number) {
            return IndexState::Failed { why: why.clone() };
        }
        if self.now_building.load(Ordering::Acquire) != u64::from(number) {
            return IndexState::Building(Progress { done: 0, total: 0 });
        }
        let total = self.total.load(Ordering::Relaxed);
        IndexState::Building(Progress { done: self.done.load(Ordering::Relaxed).min(total), total })
    }
}

fn dropped() -> Error {
    Error::not_found("the index was dropped while it was built")
}

fn not_found(name: &str) -> Error {
    Error::not_found(format!("there is no such index: `{name}`")).with_hint("list the indexes to see their names")
}

#[cfg(test)]
mod tests;
