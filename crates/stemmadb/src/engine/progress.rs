//! The progress of long work, as its caller is shown it.

/// How far a long piece of work has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Bytes (or documents) done.
    pub done: u64,
    /// Bytes (or documents) in all.
    pub total: u64,
}
