//! A view's contents up to a sequence, and incremental updates of them.
//!
//! Invariant: a document's back reference names exactly its rows; the rows of a document are replaced as a whole.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::definition::{Emitted, Mapping};
use super::layered::{Layered, Overlay};
use super::layout::{self, BackReference};
use super::partials;
use super::reduce::Reducer;
use crate::document::Document;
use crate::index::DocumentNumber;
use crate::read::Snapshot;
use crate::revision::Sequence;
use crate::tree::TreeSnapshot;
use crate::{Error, Result};

/// A view's contents at one sequence, relative to the tree.
#[derive(Clone, Default)]
pub(super) struct ViewState {
    /// The sequence up to which changes are included.
    pub(super) position: Sequence,
    pub(super) overlay: Overlay,
    pub(super) row_count: u64,
    /// Number of documents whose map failed.
    pub(super) failed_count: u64,
}

/// Documents are mapped in batches of about this many bytes.
const BATCH_BYTES: usize = 8 << 20;

/// Whether a document can have rows.
pub(super) fn is_mapped(mapping: &dyn Mapping, document: &Document) -> bool {
    !document.is_deleted() && (mapping.includes_design_documents() || !document.id().is_design())
}

/// A state that is being updated.
pub(super) struct ViewUpdate<'a> {
    mapping: &'a dyn Mapping,
    layered: Layered,
    position: Sequence,
    row_count: u64,
    failed_count: u64,
    /// Rows that changed since the partial reductions were last updated.
    changed: BTreeSet<Vec<u8>>,
    /// Whether a document that can't be mapped fails the update.
    is_strict: bool,
}

impl<'a> ViewUpdate<'a> {
    pub(super) fn begin(
        mapping: &'a dyn Mapping,
        tree: Arc<TreeSnapshot>,
        prefix: Arc<[u8]>,
        state: &ViewState,
    ) -> Self {
        ViewUpdate {
            mapping,
            layered: Layered::new(tree, prefix, state.overlay.clone()),
            position: state.position,
            row_count: state.row_count,
            failed_count: state.failed_count,
            changed: BTreeSet::new(),
            is_strict: false,
        }
    }

    /// Prepares for an update within a write, possibly during a merge: a document that can't be mapped fails it.
    pub(super) fn within_write(self) -> Self {
        ViewUpdate { layered: self.layered.beside_merges(), is_strict: true, ..self }
    }

    pub(super) fn position(&self) -> Sequence {
        self.position
    }

    pub(super) fn byte_count(&self) -> usize {
        self.layered.overlay().byte_count()
    }

    pub(super) fn layered(&self) -> &Layered {
        &self.layered
    }

    /// Applies the next batch of the changes feed, about `limit` documents.
    pub(super) fn apply_feed_batch(&mut self, snapshot: &Snapshot, limit: usize) -> Result<()> {
        let found = snapshot.events_after(self.position, limit)?;
        let numbers: Vec<DocumentNumber> = found.events.iter().map(|(_, number)| *number).collect();
        let (mut loaded, mut byte_count) = (Vec::with_capacity(numbers.len()), 0);
        snapshot.load(&numbers, &mut |number, document| {
            byte_count += document.byte_count();
            loaded.push((number, document));
            if byte_count < BATCH_BYTES {
                return Ok(());
            }
            byte_count = 0;
            self.apply_all(&std::mem::take(&mut loaded))
        })?;
        self.apply_all(&loaded)?;
        self.position = found.reached;
        Ok(())
    }

    fn apply_all(&mut self, loaded: &[(DocumentNumber, Document)]) -> Result<()> {
        let (mapped, others): (Vec<_>, Vec<_>) =
            loaded.iter().partition(|(_, document)| is_mapped(self.mapping, document));
        others.iter().try_for_each(|(number, _)| self.replace(*number, &[], &BackReference::Rows(Vec::new())))?;
        let documents: Vec<&Document> = mapped.iter().map(|(_, document)| document).collect();
        let emitted = self.map(&documents)?;
        for ((number, document), emitted) in mapped.into_iter().zip(emitted) {
            self.apply_emitted(*number, document, emitted)?;
        }
        Ok(())
    }

    /// Replaces the rows of one document by those of its new content.
    pub(super) fn apply(&mut self, number: DocumentNumber, document: Option<&Document>) -> Result<()> {
        let Some(document) = document.filter(|document| is_mapped(self.mapping, document)) else {
            return self.replace(number, &[], &BackReference::Rows(Vec::new()));
        };
        match self.map(&[document])?.pop() {
            Some(emitted) => self.apply_emitted(number, document, emitted),
            None => Err(self.not_all_mapped()),
        }
    }

    fn map(&self, documents: &[&Document]) -> Result<Vec<Result<Emitted>>> {
        if documents.is_empty() {
            return Ok(Vec::new());
        }
        let emitted = self.mapping.map(documents)?;
        if emitted.len() == documents.len() { Ok(emitted) } else { Err(self.not_all_mapped()) }
    }

    fn not_all_mapped(&self) -> Error {
        Error::internal(format!("view `{}` did not return a result for each document", self.mapping.name()))
    }

    /// Replaces the rows of one document by those it emitted.
    fn apply_emitted(&mut self, number: DocumentNumber, document: &Document, emitted: Result<Emitted>) -> Result<()> {
        match emitted {
            Ok(emitted) => {
                let keys = emitted.iter().map(|(key, _)| key.clone()).collect();
                self.replace(number, &emitted, &BackReference::Rows(keys))
            }
            Err(error) if self.is_strict || error.kind() == crate::ErrorKind::Corrupt => {
                Err(error.within(format!("view `{}`, document `{}`", self.mapping.name(), document.id())))
            }
            Err(error) => self.replace(number, &[], &BackReference::Failed(error.message().to_owned())),
        }
    }

    fn replace(&mut self, number: DocumentNumber, emitted: &[(Vec<u8>, Vec<u8>)], new: &BackReference) -> Result<()> {
        let local_key = layout::local_back_reference_key(number);
        let old = match self.layered.get(&local_key)? {
            Some(stored) => BackReference::decode(&stored)?,
            None => BackReference::Rows(Vec::new()),
        };
        self.failed_count += u64::from(matches!(new, BackReference::Failed(_)));
        self.failed_count -= u64::from(matches!(old, BackReference::Failed(_))).min(self.failed_count);
        let new_rows = new.rows(number);
        for (row, (_, value)) in new_rows.iter().zip(emitted) {
            let local_row_key = layout::local_row_key(row);
            let is_new = self.layered.get(&local_row_key)?.is_none();
            if self.layered.put(&local_row_key, value)? {
                self.row_count += u64::from(is_new);
                self.changed.insert(row.clone());
            }
        }
        let kept: BTreeSet<&Vec<u8>> = new_rows.iter().collect();
        for row in old.rows(number).into_iter().filter(|row| !kept.contains(row)) {
            if self.layered.remove(&layout::local_row_key(&row))? {
                self.row_count = self.row_count.saturating_sub(1);
                self.changed.insert(row);
            }
        }
        if *new == BackReference::Rows(Vec::new()) {
            self.layered.remove(&local_key)?;
        } else {
            self.layered.put(&local_key, &new.encode())?;
        }
        Ok(())
    }

    /// The rows that changed since the partial reductions were last updated.
    pub(super) fn changed(&self) -> &BTreeSet<Vec<u8>> {
        &self.changed
    }

    /// Updates the partial reductions.
    pub(super) fn refresh_partials(&mut self, reducer: Option<&dyn Reducer>) -> Result<()> {
        if let Some(reducer) = reducer {
            partials::refresh(&mut self.layered, reducer, &self.changed)?;
        }
        self.changed.clear();
        Ok(())
    }

    /// Rebuilds all partial reductions in memory.
    pub(super) fn reduce_all(&mut self, reducer: Option<&dyn Reducer>) -> Result<()> {
        self.changed.clear();
        let Some(reducer) = reducer else { return Ok(()) };
        let mut made = Vec::new();
        partials::rebuild(&self.layered, reducer, &mut |level, row, partial| {
            made.push((layout::local_partial_key(level, row), partial.to_vec()));
            Ok(())
        })?;
        made.iter().try_for_each(|(local_key, partial)| self.layered.put(local_key, partial).map(|_| ()))
    }

    pub(super) fn finish(self) -> ViewState {
        let ViewUpdate { layered, position, row_count, failed_count, .. } = self;
        ViewState { position, overlay: layered.into_overlay(), row_count, failed_count }
    }
}
