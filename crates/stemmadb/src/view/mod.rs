//! Materialized views: map documents to rows sorted by key, and reduce ranges of rows.
//!
//! A [`View`] maps each document to rows, which the tree stores in key order, with partial reductions at several
//! levels, so that any range is reduced in O(log n). A view is updated incrementally from the changes feed; a
//! document's back reference names its current rows.
//!
//! Invariants: a view's contents at a sequence equal those of mapping every document of that sequence from scratch; the
//! tree contains only view changes whose documents are in the durable log; deleting the tree loses nothing.
//!
//! This module does not depend on document storage, connections or output formats.

mod check;
mod commit_hook;
mod declared;
mod definition;
mod layered;
mod layout;
mod materialized;
mod merge;
mod partials;
mod program;
mod query;
mod reduce;
mod registry;
mod select;
mod state;
mod transaction;

pub use declared::DeclaredView;
pub use definition::{Emitter, Reduction, Refresh, View};
pub use program::{
    EmittedRows, MergedGroups, MergedQuery, MergedRows, ProgramGroups, ProgramQuery, ProgramReducer, ProgramRow,
    ProgramRows, ProgramView, RowBound, RowChoice, RowPlace, ViewProgram, combine_reductions,
};
pub use query::{Access, Groups, OpenView, ViewInfo, ViewQuery, ViewRow, ViewRows};
pub use reduce::Stats;
pub(crate) use registry::ViewRegistry;
pub use transaction::ViewSession;

/// An example for docs/format.md.
#[cfg(test)]
pub(crate) fn example_row_key(text: &str) -> Vec<u8> {
    let mut key = Vec::new();
    crate::value::collate::key::encode_string(text, &mut key);
    let row = layout::row_key(&key, crate::index::DocumentNumber(1), 0);
    [layout::slot_prefix(layout::SlotNumber(1)), layout::local_row_key(&row)].concat()
}

/// An example for docs/format.md.
#[cfg(test)]
pub(crate) fn example_sum(number: u64) -> Vec<u8> {
    use reduce::Reducer;
    let mut fold = reduce::BuiltIn::Sum.begin();
    fold.row(&[], number.to_string().as_bytes()).unwrap();
    fold.finish().unwrap()
}

#[cfg(test)]
mod tests;
