//! How is it measured? Samples, turns, memory, disk, rows: nothing here knows what is measured.

mod contest;
mod histogram;
mod machine;
mod memory;
mod place;
mod plot;
mod processor;
mod published;
mod random;
mod row;
mod stopwatch;
mod summary;
mod table;

pub(crate) use contest::{Contender, alternate, hold};
pub(crate) use histogram::Histogram;
pub(crate) use machine::{Machine, commit};
pub(crate) use memory::{MemoryWatch, process_kib};
pub(crate) use place::{Place, allocated_bytes, remove, settle};
pub(crate) use plot::{Axis, Figure, Panel, Scale, Series};
pub(crate) use processor::processor_ns;
pub(crate) use random::Random;
pub(crate) use row::{Heading, Results, Row};
pub(crate) use stopwatch::{Clock, Stopwatch};
pub(crate) use summary::{Samples, Summary, Unit};
pub(crate) use table::wide;
