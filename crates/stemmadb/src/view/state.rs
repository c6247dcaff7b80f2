//! A view's contents up to a sequence, and how documents change them.
//!
//! Invariant: a document's back reference tells exactly which rows are its own; its rows are replaced by it as a whole.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::definition::Mapping;
use super::layered::{Layered, Overlay};
use super::layout::{self, BackReference, KEY_BYTES_MAX};
use super::partials;
use super::reduce::{Reducer, stored_value};
use crate::index::DocumentNumber;
use crate::revision::Sequence;
use crate::store::{Document, Snapshot};
use crate::tree::TreeSnapshot;
use crate::value::Value;
use crate::value::collate::key;
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

/// What one document emits: its rows by key in collation form, in order, with their values as they are stored.
type Emitted = Vec<(Vec<u8>, Vec<u8>)>;

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
        snapshot.load(&numbers, &mut |number, document| self.apply(number, Some(&document)))?;
        self.position = found.reached;
        Ok(())
    }

    /// Replaces the rows of one document by what it emits now.
    pub(super) fn apply(&mut self, number: DocumentNumber, document: Option<&Document>) -> Result<()> {
        let document = document.filter(|document| !document.is_deleted() && !document.id().is_design());
        let emitted = document.map_or(Ok(Vec::new()), |document| self.emitted(document));
        let (emitted, new) = match emitted {
            Ok(emitted) => {
                let keys = emitted.iter().map(|(key, _)| key.clone()).collect();
                (emitted, BackReference::Rows(keys))
            }
            Err(error) if self.is_strict || error.kind() == crate::ErrorKind::Corrupt => {
                let id = document.map(|document| document.id().to_string()).unwrap_or_default();
                return Err(error.within(format!("view `{}`, document `{id}`", self.mapping.name())));
            }
            Err(error) => (Vec::new(), BackReference::Failed(error.message().to_owned())),
        };
        self.replace(number, &emitted, &new)
    }

    fn replace(&mut self, number: DocumentNumber, emitted: &Emitted, new: &BackReference) -> Result<()> {
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

    fn emitted(&self, document: &Document) -> Result<Emitted> {
        let mut rows: Vec<(Value, Value)> = Vec::new();
        self.mapping.map(document, &mut rows)?;
        let mut emitted = Vec::with_capacity(rows.len());
        for (emitted_key, value) in &rows {
            let mut bytes = Vec::new();
            key::encode(emitted_key, &mut bytes);
            if bytes.len() > KEY_BYTES_MAX {
                return Err(Error::invalid(format!("a key of {} bytes is too long for a view", bytes.len()))
                    .with_hint(format!(
                        "at most {KEY_BYTES_MAX} bytes are possible: emit the beginning of a long text, or a hash of it"
                    )));
            }
            emitted.push((bytes, stored_value(value)));
        }
        emitted.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(emitted)
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
