//! Measurement tools: samples, alternating turns, memory, disk space, result rows and tables. They do not depend on
//! databases.

mod contest;
mod histogram;
mod machine;
mod memory;
mod plot;
mod processor;
mod published;
mod random;
mod row;
mod scratch;
mod stopwatch;
mod summary;
mod table;
mod write_calls;

pub(crate) use contest::{Contender, alternate, measure_row};
pub(crate) use histogram::Histogram;
pub(crate) use machine::{Machine, commit, now};
pub(crate) use memory::{MemoryWatch, process_kib};
pub(crate) use plot::{Axis, Figure, Panel, Scale, Series};
pub(crate) use processor::{processor_ns, thread_processor_ns};
pub(crate) use random::Random;
pub(crate) use row::{Heading, ResultRow, Results};
pub(crate) use scratch::{ScratchDirectory, allocated_bytes, remove, sync_file_system};
pub(crate) use stopwatch::{Clock, Stopwatch};
pub(crate) use summary::{Samples, Summary, Unit};
pub(crate) use table::{PeerColumn, SeriesLine, distributions, grouped, list, marked, number, series, wide};
pub(crate) use write_calls::WriteCalls;
