//! The progress of long-running work, as reported to its caller.

/// The progress of a long-running operation.
///
/// Passed to the callback of operations such as [`Maintenance::check`](crate::handles::Maintenance::check).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Bytes (or documents) done.
    pub done: u64,
    /// Bytes (or documents) in total.
    pub total: u64,
}
