//! Precommit check of eager and unique views: maps each write before it is appended.
//!
//! Only documents written locally are checked for uniqueness: replicated revisions are never refused because of a
//! duplicate key.
//!
//! Invariant: the state that a write produces is visible to nobody before the write is published.

use std::collections::BTreeSet;
use std::ops::{Bound, ControlFlow};
use std::sync::{Arc, Weak};

use super::definition::Refresh;
use super::layered::Layered;
use super::layout::{self, RowKey, prefix_end};
use super::materialized::MaterializedView;
use super::registry::ViewRegistry;
use super::state::ViewUpdate;
use crate::engine::{CommitHook, OnAppended};
use crate::index::{DocumentNumber, DocumentSet};
use crate::publish::Written;
use crate::read::Snapshot;
use crate::tree::Direction;
use crate::{Error, Result};

/// The precommit check of one view.
pub(super) struct ViewCommitHook {
    pub(super) views: Weak<ViewRegistry>,
    pub(super) materialized: Weak<MaterializedView>,
}

impl CommitHook for ViewCommitHook {
    fn admit(&self, base: &Snapshot, written: &[Written]) -> Result<OnAppended> {
        let Some(materialized) = self.materialized() else { return Ok(Box::new(|_| ())) };
        let mut update = apply_written(&materialized, base, written)?;
        if materialized.mapping.refresh() == Refresh::Unique
            && let Some((holder, other)) = find_holder(&materialized, base, written, &update)?
        {
            return Err(duplicate_key_error(&materialized, base, written, holder, other));
        }
        update.refresh_partials(materialized.reducer.as_deref())?;
        let mut state = update.finish();
        let (views, materialized) = (self.views.clone(), materialized.clone());
        Ok(Box::new(move |sequence| {
            state.position = sequence;
            materialized.add_version(state);
            if let (true, Some(views)) = (materialized.is_large(), views.upgrade()) {
                views.save_in_background(&materialized);
            }
        }))
    }

    fn displaced(&self, base: &Snapshot, written: &[Written]) -> Result<Vec<DocumentNumber>> {
        let mut displaced = Vec::new();
        let is_unique = |materialized: &Arc<MaterializedView>| materialized.mapping.refresh() == Refresh::Unique;
        if let (Some(materialized), Some(ended)) = (self.materialized().filter(is_unique), base.expired()?) {
            let update = apply_written(&materialized, base, written)?;
            visit_holders(&materialized, base, written, &update, |holder, _| {
                displaced.extend(Some(holder).filter(|holder| ended.contains(*holder)));
                ControlFlow::Continue(())
            })?;
        }
        Ok(displaced)
    }
}

impl ViewCommitHook {
    fn materialized(&self) -> Option<Arc<MaterializedView>> {
        self.materialized.upgrade().filter(|materialized| !materialized.is_replaced())
    }
}

/// Applies the written documents to the view's newest state.
fn apply_written<'c>(
    materialized: &'c MaterializedView,
    base: &Snapshot,
    written: &[Written],
) -> Result<ViewUpdate<'c>> {
    let mut update = materialized.begin_commit_update(base)?;
    for Written { number, new, .. } in written {
        update.apply(*number, new.as_ref())?;
    }
    Ok(update)
}

fn duplicate_key_error(
    materialized: &MaterializedView,
    base: &Snapshot,
    written: &[Written],
    holder: DocumentNumber,
    other: DocumentNumber,
) -> Error {
    let id = |number| match written.iter().find(|written| written.number == number) {
        Some(written) => written.id.to_string(),
        None => base.id(number).map(|id| id.to_string()).unwrap_or_default(),
    };
    // The document that existed before is the holder of the key.
    let is_new = |number| written.iter().any(|written| written.number == number);
    let (holder, other) = if is_new(holder) && !is_new(other) { (other, holder) } else { (holder, other) };
    let (name, holder, other) = (materialized.mapping.name(), id(holder), id(other));
    Error::conflict(format!(
        "document `{holder}` has the key already that `{other}` would have in the unique view `{name}`"
    ))
    .with_hint("write another key, or change the document that has it")
}

/// Finds a document that already holds a key which a written document adds; returns the holder and the written
/// document. Expired documents hold no key.
fn find_holder(
    materialized: &MaterializedView,
    base: &Snapshot,
    written: &[Written],
    update: &ViewUpdate<'_>,
) -> Result<Option<(DocumentNumber, DocumentNumber)>> {
    let (ended, mut shared) = (base.expired()?, None);
    visit_holders(materialized, base, written, update, |holder, other| {
        if ended.is_some_and(|ended| ended.contains(holder)) {
            return ControlFlow::Continue(());
        }
        shared = Some((holder, other));
        ControlFlow::Break(())
    })?;
    Ok(shared)
}

/// Calls `visit` for each document that already holds a key which a written document adds, with both documents. Keys
/// that a document had before the write are not checked.
fn visit_holders(
    materialized: &MaterializedView,
    base: &Snapshot,
    written: &[Written],
    update: &ViewUpdate<'_>,
    mut visit: impl FnMut(DocumentNumber, DocumentNumber) -> ControlFlow<()>,
) -> Result<()> {
    let checked: BTreeSet<DocumentNumber> =
        written.iter().filter(|written| written.checks_uniqueness).map(|written| written.number).collect();
    let (before, rows) = (materialized.begin_commit_update(base)?, update.layered());
    for row in update.changed() {
        let (RowKey { key, document }, local_key) = (RowKey::decode(row)?, layout::local_row_key(row));
        let is_added = rows.get(&local_key)?.is_some() && before.layered().get(&local_key)?.is_none();
        if !is_added || !checked.contains(&document) {
            continue;
        }
        let upper = prefix_end(key).map_or_else(layout::rows_end, |end| layout::local_row_key(&end));
        let lower = layout::local_row_key(key);
        let mut scan = rows.scan(Bound::Included(&lower), Bound::Excluded(&upper), Direction::Ascending)?;
        while let Some((local_key, _)) = scan.next()? {
            let holder = RowKey::decode(layout::row_of_local_key(local_key).unwrap_or_default())?.document;
            if holder != document && visit(holder, document).is_break() {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// Finds two unexpired documents with the same key. Costs a scan of all rows.
pub(super) fn find_duplicate_key(
    rows: &Layered,
    ended: Option<&DocumentSet>,
) -> Result<Option<(DocumentNumber, DocumentNumber)>> {
    let (lower, upper) = (layout::local_row_key(&[]), layout::rows_end());
    let mut scan = rows.scan(Bound::Included(&lower), Bound::Excluded(&upper), Direction::Ascending)?;
    let mut last: Option<(Vec<u8>, DocumentNumber)> = None;
    while let Some((local_key, _)) = scan.next()? {
        let RowKey { key, document } = RowKey::decode(layout::row_of_local_key(local_key).unwrap_or_default())?;
        if ended.is_some_and(|ended| ended.contains(document)) {
            continue;
        }
        if let Some((last_key, holder)) = &last
            && last_key == key
            && *holder != document
        {
            return Ok(Some((*holder, document)));
        }
        last = Some((key.to_vec(), document));
    }
    Ok(None)
}

/// Creates the precommit check of a view; it lasts as long as the view.
pub(super) fn new_commit_hook(views: &Arc<ViewRegistry>, materialized: &Arc<MaterializedView>) -> Arc<dyn CommitHook> {
    Arc::new(ViewCommitHook { views: Arc::downgrade(views), materialized: Arc::downgrade(materialized) })
}
