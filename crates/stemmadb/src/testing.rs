//! For Stemma's own tests of what must never happen. No part of what this crate promises.

use crate::Options;

pub use crate::log::{Call, Failure, FaultVfs, Random};

/// Bounds far smaller than anyone may ask for, so that a few hundred writes fill memtables, roll segments and cut checkpoints
/// into many slices.
#[must_use]
pub fn small(mut options: Options, memory_bytes: usize, segment_bytes: u32, slice_rows: usize) -> Options {
    options.memory_bytes = memory_bytes;
    options.segment_bytes = segment_bytes;
    options.slice_rows = slice_rows;
    options
}
