//! A view's contents up to a sequence, and how documents change them.
//!
//! Invariant: a document's back reference tells exactly which rows are its own; its rows are replaced by it as a whole.

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

/// What a view says at one sequence, over the tree.
#[derive(Clone, Default)]
pub(super) struct State {
    /// Everything up to here is in it.
    pub(super) position: Sequence,
    pub(super) overlay: Overlay,
    pub(super) row_count: u64,
    /// Documents whose map failed.
    pub(super) failed_count: u64,
}

/// Documents are mapped at once until they take so much memory.
const BATCH_BYTES: usize = 8 << 20;

/// Whether a document can have rows at all.
pub(super) fn is_mapped(mapping: &dyn Mapping, document: &Document) -> bool {
    !document.is_deleted() && (mapping.includes_design_documents() || !document.id().is_design())
}

/// A state that is being brought forward.
pub(super) struct Working<'a> {
    mapping: &'a dyn Mapping,
    layered: Layered,
    position: Sequence,
    row_count: u64,
    failed_count: u64,
    /// Rows that were put, changed or removed since partial reductions were right.
    changed: BTreeSet<Vec<u8>>,
    /// Whether a document that can't be mapped ends the work.
    is_strict: bool,
}

impl<'a> Working<'a> {
    pub(super) fn begin(
        mapping: &'a dyn Mapping,
        tree: Arc<dyn TreeSnapshot>,
        prefix: Arc<[u8]>,
        state: &State,
    ) -> Self {
        Working {
            mapping,
            layered: Layered::new(tree, prefix, state.overlay.clone()),
            position: state.position,
            row_count: state.row_count,
            failed_count: state.failed_count,
            changed: BTreeSet::new(),
            is_strict: false,
        }
    }

    /// To be done within a write, beside merges: a document that can't be mapped ends it.
    pub(super) fn within_write(self) -> Self {
        Working { layered: self.layered.beside_merges(), is_strict: true, ..self }
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

    /// Takes the next piece of the feed: about `limit` documents.
    pub(super) fn follow(&mut self, snapshot: &Snapshot, limit: usize) -> Result<()> {
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
            self.take(*number, document, emitted)?;
        }
        Ok(())
    }

    /// Replaces the rows of one document by what it emits now.
    pub(super) fn apply(&mut self, number: DocumentNumber, document: Option<&Document>) -> Result<()> {
        let Some(document) = document.filter(|document| is_mapped(self.mapping, document)) else {
            return self.replace(number, &[], &BackReference::Rows(Vec::new()));
        };
        match self.map(&[document])?.pop() {
            Some(emitted) => self.take(number, document, emitted),
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
        Error::internal(format!("view `{}` did not tell of each document what it emits", self.mapping.name()))
    }

    /// Replaces the rows of one document by what it emitted.
    fn take(&mut self, number: DocumentNumber, document: &Document, emitted: Result<Emitted>) -> Result<()> {
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
        let place = layout::document_place(number);
        let old = match self.layered.get(&place)? {
            Some(stored) => BackReference::decode(stored)?,
            None => BackReference::Rows(Vec::new()),
        };
        self.failed_count += u64::from(matches!(new, BackReference::Failed(_)));
        self.failed_count -= u64::from(matches!(old, BackReference::Failed(_))).min(self.failed_count);
        let new_rows = new.rows(number);
        for (row, (_, value)) in new_rows.iter().zip(emitted) {
            let row_place = layout::row_place(row);
            let is_new = self.layered.get(&row_place)?.is_none();
            if self.layered.put(&row_place, value)? {
                self.row_count += u64::from(is_new);
                self.changed.insert(row.clone());
            }
        }
        let kept: BTreeSet<&Vec<u8>> = new_rows.iter().collect();
        for row in old.rows(number).into_iter().filter(|row| !kept.contains(row)) {
            if self.layered.remove(&layout::row_place(&row))? {
                self.row_count = self.row_count.saturating_sub(1);
                self.changed.insert(row);
            }
        }
        if *new == BackReference::Rows(Vec::new()) {
            self.layered.remove(&place)?;
        } else {
            self.layered.put(&place, &new.encode())?;
        }
        Ok(())
    }

    /// The rows changed since partial reductions were right.
    pub(super) fn changed(&self) -> &BTreeSet<Vec<u8>> {
        &self.changed
    }

    /// Makes partial reductions right.
    pub(super) fn settle(&mut self, reducer: Option<&dyn Reducer>) -> Result<()> {
        if let Some(reducer) = reducer {
            partials::refresh(&mut self.layered, reducer, &self.changed)?;
        }
        self.changed.clear();
        Ok(())
    }

    /// Makes every partial reduction anew, in memory.
    pub(super) fn reduce_all(&mut self, reducer: Option<&dyn Reducer>) -> Result<()> {
        self.changed.clear();
        let Some(reducer) = reducer else { return Ok(()) };
        let mut made = Vec::new();
        partials::rebuild(&self.layered, reducer, &mut |level, row, partial| {
            made.push((layout::partial_place(level, row), partial.to_vec()));
            Ok(())
        })?;
        made.iter().try_for_each(|(place, partial)| self.layered.put(place, partial).map(|_| ()))
    }

    pub(super) fn finish(self) -> State {
        let Working { layered, position, row_count, failed_count, .. } = self;
        State { position, overlay: layered.into_overlay(), row_count, failed_count }
    }
}
