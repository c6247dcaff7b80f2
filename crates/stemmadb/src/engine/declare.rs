//! Declaring indexes: they are defined in the log, built while others read and write, and taken away again.
//!
//! Invariants:
//! - A definition is in the log before any term of its index is in a memtable, so the tree never holds terms of an index that the
//!   durable log does not define. From then on every write brings its terms; the builder brings those of what was there before.
//! - That an index is ready is noted in the tree after a checkpoint that holds all of its terms. What is defined and not ready is
//!   built again from its beginning: a term that is there already changes nothing.
//! - The rows of an index that is no longer defined are taken out of the tree after every memtable that may bring some was merged;
//!   what a crash leaves of them is found by the path, whose number no other index gets.
//!
//! Concurrency: definitions change under the writer lock. The builder holds it for one batch at a time, to put terms into the
//! memtable; it reads the documents before.

use std::ops::Bound;

use hashbrown::HashMap;

use crate::engine::Progress;
use crate::engine::Store;
use crate::engine::unique;
use crate::engine::write::Writer;
use crate::index::{
    self, DeclaredIndexes, DeclaredKey, DocumentNumber, ExpirationRule, Expiry, Index, IndexDefinition, IndexPath,
    OwnedStep, PathNumber,
};
use crate::layout::record::Record;
use crate::layout::{FIRST_NUMBER, meta};
use crate::log::Level;
use crate::revision::{DocumentId, Sequence};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::tree::{Direction, Table};
use crate::value::collate;
use crate::{Error, ErrorKind, Result};

/// Documents whose terms are added under one hold of the writer lock.
const BATCH_COUNT: u64 = 256;

/// What goes on with declared indexes.
#[derive(Default)]
pub(super) struct Declaring {
    /// The index that is being built, and how far it has come.
    now_building: AtomicU64,
    done: AtomicU64,
    total: AtomicU64,
    /// Paths of indexes that are no longer defined, whose rows are to go.
    garbage: Mutex<Vec<PathNumber>>,
    /// Why indexes could not be completed when the database was opened, by their numbers.
    failed: Mutex<HashMap<u32, String>>,
    stopped: AtomicBool,
}

/// A declared index, as it is now.
#[derive(Debug, Clone, PartialEq)]
pub struct IndexInfo {
    /// Its name.
    pub name: String,
    /// The paths it orders documents by.
    pub paths: Vec<IndexPath>,
    /// Whether no two documents may have the same values.
    pub unique: bool,
    /// Whether it is used.
    pub state: IndexState,
}

/// Whether a declared index is used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IndexState {
    /// Its terms are being gathered, or wait to be: writes keep it, and queries are answered without it.
    Building(Progress),
    /// It is complete.
    Ready,
    /// It is unique, its making was interrupted, and when it went on, two documents had the same values. Writes keep it, and queries are
    /// answered without it. Correct the documents and declare it again, or drop it.
    Failed {
        /// Which documents, and what they share.
        why: String,
    },
}

/// Documents that have the same values in a unique index: revisions from elsewhere brought them together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Duplicates {
    /// Two ids at least, in the order in which the documents were first inserted.
    pub ids: Vec<DocumentId>,
}

/// The form of an index's keys: where it is another, they are made again.
pub(super) fn form_of(definition: &IndexDefinition) -> Vec<u8> {
    let order = if definition.is_collated() { collate::VERSION } else { "" };
    [b"1 ", order.as_bytes()].concat()
}

impl Store {
    /// Declares an index and builds it. One that is declared in the same way already is no error; it is complete on return.
    pub(crate) fn create_index(&self, index: &Index, progress: &mut dyn FnMut(Progress)) -> Result<()> {
        let definition = index.define(0)?;
        self.parts.refuse_needless(&definition)?;
        let number = self.define(definition)?;
        match self.build(number, progress) {
            Err(error) if error.kind() == ErrorKind::Duplicate => {
                self.forget(number)?;
                Err(error)
            }
            built => built,
        }
    }

    /// Puts a rule of expiry in force. One that is already is no error.
    pub(crate) fn expire_by(&self, rule: &ExpirationRule, progress: &mut dyn FnMut(Progress)) -> Result<()> {
        let number = self.define(IndexDefinition::for_expiration(rule, 0))?;
        self.build(number, progress)
    }

    /// Takes a rule of expiry back. Its rows go in the background.
    pub(crate) fn drop_expiry(&self, rule: &ExpirationRule) -> Result<()> {
        let Some(number) = self.parts.declared().expiring(rule).map(|index| index.definition.number) else {
            return Err(Error::not_found(format!("there is no rule `{rule}`")).with_hint("list the rules to see them"));
        };
        self.forget(number)
    }

    /// The rules of expiry, in the order they were declared.
    pub(crate) fn expiries(&self) -> Vec<Expiry> {
        let declared = self.parts.declared();
        declared.indexes.iter().filter_map(|index| index.definition.expiry.as_ref()).map(Expiry::from_rule).collect()
    }

    /// Takes an index away. Its rows go in the background.
    pub(crate) fn drop_index(&self, name: &str) -> Result<()> {
        let Some(number) = self.parts.declared().named(name).map(|index| index.definition.number) else {
            return Err(not_found(name));
        };
        self.forget(number)
    }

    /// The declared indexes, in the order they were declared.
    pub(crate) fn indexes(&self) -> Vec<IndexInfo> {
        let info = |index: &index::DeclaredIndex| IndexInfo {
            name: index.definition.name.clone(),
            paths: index.definition.paths.clone(),
            unique: index.definition.is_unique,
            state: if index.is_ready { IndexState::Ready } else { self.declaring.state(index.definition.number) },
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
            let documents = snapshot.without_ended(term.take()?)?;
            let Some(first) = documents.iter().next().filter(|_| documents.len() > 1) else { continue };
            // All documents of one term lack a value, or none does.
            let state = snapshot.state(first)?.ok_or_else(|| Error::internal("a term of no document"))?;
            let key = index.definition.key(state.id.as_str(), snapshot.winner(&state)?.packed()?)?;
            if key.is_some_and(|key| !key.is_partial) {
                let numbers: Vec<_> = documents.iter().collect();
                found.push(Duplicates { ids: snapshot.ids(&numbers)? });
            }
        }
        Ok(found)
    }

    /// Puts a definition into the log; its number, or that of the same one which is there already.
    fn define(&self, mut definition: IndexDefinition) -> Result<u32> {
        let mut writer = self.writer.lock();
        self.refuse_if_closed()?;
        let mut declared = DeclaredIndexes::clone(&self.parts.declared());
        let known = match &definition.expiry {
            Some(rule) => declared.expiring(rule),
            None => declared.named(&definition.name),
        };
        if let Some(known) = known {
            let known = &known.definition;
            if known.is_same(&definition) {
                return Ok(known.number);
            }
            return Err(Error::invalid(format!("there is another index `{}` already", known.name))
                .with_hint("give this one a name of its own, or drop the other first"));
        }
        definition.number = declared.next_number;
        let number = definition.number;
        declared.add(definition, &self.parts.paths)?;
        self.redefine(&mut writer, declared)?;
        Ok(number)
    }

    /// Takes a definition out of the log, and marks its rows to go.
    fn forget(&self, number: u32) -> Result<()> {
        let mut writer = self.writer.lock();
        self.refuse_if_closed()?;
        let mut declared = DeclaredIndexes::clone(&self.parts.declared());
        let Some(path) = declared.numbered(number).map(|index| index.path) else { return Ok(()) };
        declared.remove(number);
        self.redefine(&mut writer, declared)?;
        self.seal(&mut writer);
        drop(writer);
        self.parts.log.commit(self.parts.log.end(), Level::Flushed)?;
        self.declaring.garbage.lock().push(path);
        if self.parts.options.background {
            self.wanted.ask();
            return Ok(());
        }
        self.merge_sealed()?;
        while self.sweep()? {}
        Ok(())
    }

    /// Logs these definitions and puts them in force.
    pub(super) fn redefine(&self, writer: &mut Writer, declared: DeclaredIndexes) -> Result<()> {
        let mut payload = Vec::new();
        let settings = crate::layout::settings::Settings::encode(&self.parts.policy, &declared);
        Record::Settings(&settings).encode(&mut payload);
        let appended = self.parts.log.append(writer.next_sequence, &payload)?;
        writer.log_end = appended.end;
        let _view = self.view.write();
        self.parts.set_declared(declared);
        Ok(())
    }

    /// Gathers the terms of the documents that were there before the index was; then it is ready.
    fn build(&self, number: u32, progress: &mut dyn FnMut(Progress)) -> Result<()> {
        let _building = self.building.lock();
        if self.parts.declared().numbered(number).ok_or_else(dropped)?.is_ready {
            return Ok(());
        }
        self.declaring.failed.lock().remove(&number);
        // The definition has to survive before anyone relies on it.
        self.parts.log.commit(self.parts.log.end(), Level::Flushed)?;
        let end = self.writer.lock().next_number;
        let total = end.0 - FIRST_NUMBER.0;
        let mut from = FIRST_NUMBER;
        loop {
            self.declaring.show(number, Progress { done: from.0 - FIRST_NUMBER.0, total });
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
        self.refuse_if_closed()?;
        self.declaring.refuse_if_stopped()?;
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

    /// The keys of documents as they are now; what changes before they are used is made again.
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
            let known = snapshot.postings(index.path, &key.key)?;
            let other = known.iter().find(|other| other != at).or_else(|| first.insert(&key.key, *at));
            let Some(other) = other else { continue };
            let state = snapshot.state(*at)?.ok_or_else(|| Error::internal("a term of no document"))?;
            let document = snapshot.winner(&state)?;
            let holder = snapshot.id(other)?;
            let error = unique::taken(declared, index.path, document.packed()?, holder.as_str());
            return Err(error
                .within(format!("document `{}`", state.id))
                .with_hint("change one of the two documents, then declare the index again"));
        }
        Ok(())
    }

    /// Notes that an index is ready: every term of it is in the tree.
    fn finish_build(&self, number: u32) -> Result<()> {
        let form = form_of(&self.parts.declared().numbered(number).ok_or_else(dropped)?.definition);
        let mut tree = self.parts.tree.write()?;
        meta::put_ready_index(&mut *tree, number, &form)?;
        tree.commit()?;
        let _writer = self.writer.lock();
        let mut declared = DeclaredIndexes::clone(&self.parts.declared());
        declared.numbered(number).ok_or_else(dropped)?;
        declared.set_ready(number);
        let _view = self.view.write();
        self.parts.set_declared(declared);
        // What it found may have ended long ago.
        self.sweeping.note(i64::MIN);
        Ok(())
    }

    /// After recovery: finds which indexes are ready, gives those whose keys had another form a new beginning, and what is left of indexes
    /// that are no longer defined.
    pub(super) fn settle_declared(&self) -> Result<()> {
        let tree = self.parts.tree.read()?;
        let ready = meta::ready_indexes(&*tree)?;
        drop(tree);
        let mut declared = DeclaredIndexes::clone(&self.parts.declared());
        let mut outdated = Vec::new();
        for index in declared.indexes.clone() {
            let number = index.definition.number;
            match ready.iter().find(|(ready, _)| *ready == u64::from(number)) {
                Some((_, form)) if *form == form_of(&index.definition) => declared.set_ready(number),
                Some(_) => outdated.push(index),
                None => {}
            }
        }
        if !self.parts.options.read_only && !outdated.is_empty() {
            let mut writer = self.writer.lock();
            for index in outdated {
                declared.remove(index.definition.number);
                let number = declared.next_number;
                declared
                    .add(IndexDefinition { number, ..IndexDefinition::clone(&index.definition) }, &self.parts.paths)?;
            }
            self.redefine(&mut writer, declared)?;
            self.seal(&mut writer);
        } else {
            self.parts.set_declared(declared);
        }
        self.find_garbage()
    }

    fn find_garbage(&self) -> Result<()> {
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
            // Else a loss of power could bring a definition back whose rows are gone.
            self.parts.log.commit(self.parts.log.end(), Level::Flushed)?;
            *self.declaring.garbage.lock() = garbage;
        }
        Ok(())
    }

    /// Whether something was left to do when the database was opened.
    pub(super) fn has_unfinished_indexes(&self) -> bool {
        self.parts.declared().indexes.iter().any(|index| !index.is_ready)
    }

    /// Does what was left to do when the database was opened, where no thread does it.
    pub(super) fn finish_declaring(&self) -> Result<()> {
        self.merge_sealed()?;
        while self.sweep()? {}
        self.build_unfinished()
    }

    /// Builds what is defined and not ready. One that turns out not to be unique stays as it is, and says so.
    pub(super) fn build_unfinished(&self) -> Result<()> {
        let has_failed = |number| self.declaring.failed.lock().contains_key(&number);
        let unfinished = |index: &&index::DeclaredIndex| !index.is_ready && !has_failed(index.definition.number);
        while let Some(index) = self.parts.declared().indexes.iter().find(unfinished).cloned() {
            let number = index.definition.number;
            match self.build(number, &mut |_| ()) {
                Err(error) if error.kind() == ErrorKind::Duplicate => {
                    self.declaring.failed.lock().insert(number, error.message().to_owned());
                }
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                built => built?,
            }
        }
        Ok(())
    }

    /// No index is built any further.
    pub(super) fn stop_building(&self) {
        self.declaring.stopped.store(true, Ordering::Release);
    }

    /// Takes some rows of an index that is no longer defined out of the tree; whether there is more to do. Call it after the memtables
    /// were merged.
    pub(super) fn sweep(&self) -> Result<bool> {
        let Some(path) = self.declaring.garbage.lock().last().copied() else { return Ok(false) };
        let _upkeep = self.upkeep.lock();
        let (from, to) = (index::first_posting(path, &[]), index::after_postings(path, &[]));
        let snapshot = self.parts.tree.read()?;
        let mut rows =
            snapshot.scan(Table::Postings, Bound::Included(&from), Bound::Excluded(&to), Direction::Ascending)?;
        let mut keys = Vec::new();
        while let Some((key, _)) = rows.next()?
            && keys.len() < self.parts.options.slice_rows
        {
            keys.push(key.to_vec());
        }
        drop(rows);
        drop(snapshot);
        let mut tree = self.parts.tree.write()?;
        for key in &keys {
            tree.delete(Table::Postings, key)?;
        }
        let is_done = keys.len() < self.parts.options.slice_rows;
        if let Some(number) = self.parts.paths.index_of(path) {
            meta::forget_ready_index(&mut *tree, number)?;
        }
        self.parts.forget_statistics(&mut *tree, path)?;
        tree.commit()?;
        let mut garbage = self.declaring.garbage.lock();
        if is_done {
            garbage.retain(|other| *other != path);
        }
        Ok(!garbage.is_empty())
    }
}

impl crate::read::StoreParts {
    /// Refuses an index that does nothing which the index of every path does not do.
    fn refuse_needless(&self, definition: &IndexDefinition) -> Result<()> {
        let [path] = definition.paths.as_slice() else { return Ok(()) };
        if definition.is_unique || path.language.is_some() || !self.policy.covers(&path.path) {
            return Ok(());
        }
        Err(Error::invalid(format!("`{}` is indexed already, as every path is", path.path)).with_hint(
            "declare an index to make values unique, to have an order of several paths, or that of a language",
        ))
    }
}

impl Declaring {
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
