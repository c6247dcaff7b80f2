//! The change that the current thread makes to the list of runs, for tests that have to reach each kind of change.

use std::cell::Cell;

/// A change of the list of runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum TreeChange {
    Commit,
    MergeStep,
    RangeRemoval,
    ManifestRewrite,
}

thread_local! {
    static CURRENT: Cell<Option<TreeChange>> = const { Cell::new(None) };
}

/// Marks a change until it is dropped. The innermost one counts.
pub(super) struct ChangeMark(Option<TreeChange>);

pub(super) fn mark(change: TreeChange) -> ChangeMark {
    ChangeMark(CURRENT.replace(Some(change)))
}

impl Drop for ChangeMark {
    fn drop(&mut self) {
        CURRENT.set(self.0);
    }
}

/// The change that the current thread makes.
pub(crate) fn current_change() -> Option<TreeChange> {
    CURRENT.get()
}
