//! Keep this summary: what do documents map to, and what do those rows come to?
//!
//! A [`View`] maps each document to rows. They lie in the tree in the order of their keys, with partial reductions at several levels,
//! so that any range is reduced in O(log n). It is brought forward from the feed of changes; what a document's rows were is told by
//! its back reference.
//!
//! Invariants: what a view says at a sequence is what mapping every document of that sequence anew would say; the tree holds of a view
//! only what the durable log has; deleting the tree loses nothing.
//!
//! It does not know how documents are stored, nor of connections or formats.

mod cell;
mod check;
mod declared;
mod definition;
mod guard;
mod layered;
mod layout;
mod merge;
mod partials;
mod program;
mod query;
mod reduce;
mod registry;
mod select;
mod state;
mod within;

pub use declared::DeclaredView;
pub use definition::{Emitter, Reduction, Refresh, View};
pub use program::{
    EmittedRows, ProgramGroups, ProgramQuery, ProgramReducer, ProgramRow, ProgramRows, ProgramView, RowBound,
    RowChoice, ViewProgram,
};
pub use query::{Access, Groups, OpenView, ViewInfo, ViewQuery, ViewRow, ViewRows};
pub use reduce::Stats;
pub(crate) use registry::ViewRegistry;
pub use within::ViewSession;

/// For docs/format.md.
#[cfg(test)]
pub(crate) fn example_row_key(text: &str) -> Vec<u8> {
    let mut key = Vec::new();
    crate::value::collate::key::encode_string(text, &mut key);
    let row = layout::row_key(&key, crate::index::DocumentNumber(1), 0);
    [layout::slot_prefix(layout::SlotNumber(1)), layout::row_place(&row)].concat()
}

/// For docs/format.md.
#[cfg(test)]
pub(crate) fn example_sum(number: u64) -> Vec<u8> {
    use reduce::Reducer;
    let mut fold = reduce::BuiltIn::Sum.begin();
    fold.row(&[], number.to_string().as_bytes()).unwrap();
    fold.finish().unwrap()
}

#[cfg(test)]
mod tests;
