//! How a database is opened.

pub(crate) mod clock;

use std::time::Duration;

use crate::index::Policy;
use crate::log::Level;
use crate::value::Limits;
pub use clock::Clock;

/// What a write waits for before it returns, and before anyone sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// Flushed to the disk: survives a power loss. One flush serves every write that waits for it.
    #[default]
    Sync,
    /// Handed to the operating system, and flushed at most this much later: survives a crash of the process; a
    /// power loss may take the writes of the last interval, never a part of one and never an earlier one.
    Interval(Duration),
    /// Handed to the operating system: survives a crash of the process; a power loss may take the newest writes.
    None,
}

impl Durability {
    pub(crate) fn level(self) -> Level {
        match self {
            Durability::Sync => Level::Flushed,
            Durability::Interval(_) | Durability::None => Level::Written,
        }
    }
}

impl std::fmt::Display for Durability {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Durability::Sync => f.write_str("sync"),
            Durability::Interval(interval) => write!(f, "interval {} ms", interval.as_millis()),
            Durability::None => f.write_str("none"),
        }
    }
}

/// Rows of the tree changed by one slice of a checkpoint, which ends with a flush. At most a page each: held in memory until then, and
/// free in the file afterwards until later slices reuse them.
const SLICE_ROWS: usize = 6_000;

/// How to open a database. Every default is meant to be right.
#[derive(Debug, Clone)]
pub struct Options {
    pub(crate) durability: Durability,
    pub(crate) memory_bytes: usize,
    pub(crate) cache_bytes: u64,
    pub(crate) segment_bytes: u32,
    pub(crate) revs_limit: usize,
    pub(crate) index: Option<Policy>,
    pub(crate) limits: Limits,
    pub(crate) read_only: bool,
    pub(crate) create: bool,
    pub(crate) background: bool,
    pub(crate) slice_rows: usize,
    pub(crate) clock: Clock,
    /// What a path's column is taken to cost at most; tests make it cheap.
    pub(crate) column_price_max: u64,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            durability: Durability::Sync,
            memory_bytes: 64 << 20,
            cache_bytes: 256 << 20,
            segment_bytes: 64 << 20,
            revs_limit: 1000,
            index: None,
            limits: Limits::default(),
            create: true,
            read_only: false,
            background: true,
            slice_rows: SLICE_ROWS,
            clock: Clock::default(),
            column_price_max: u64::MAX,
        }
    }
}

impl Options {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// What a write waits for, unless it says otherwise. Default: [`Durability::Sync`].
    #[must_use]
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// The bound on writes that are in memory until a checkpoint merges them, in bytes. Writers slow down when it is reached.
    /// Default: 64 MiB; at least 1 MiB.
    #[must_use]
    pub fn memory_bytes(mut self, bytes: usize) -> Self {
        self.memory_bytes = bytes.max(1 << 20);
        self
    }

    /// The bound on what is kept of reads, in bytes: an eighth for documents read by id, a quarter for those that were rows of queries, an
    /// eighth for the ids of such rows, half of it for the values of paths that queries keep coming back to. Zero keeps nothing.
    /// Default: 256 MiB.
    #[must_use]
    pub fn cache_bytes(mut self, bytes: u64) -> Self {
        self.cache_bytes = bytes;
        self
    }

    /// The size of a segment of the log, in bytes. Default: 64 MiB; from 64 KiB to 1 GiB.
    #[must_use]
    pub fn segment_bytes(mut self, bytes: u32) -> Self {
        self.segment_bytes = bytes.clamp(64 << 10, 1 << 30);
        self
    }

    /// How many revisions of a line of descent are remembered (not their bodies: ids only). Default: 1000.
    #[must_use]
    pub fn revs_limit(mut self, revs_limit: usize) -> Self {
        self.revs_limit = revs_limit.max(1);
        self
    }

    /// Which paths are indexed; other paths answer queries just as well, only slower. Default: what the database was
    /// made with, and every path for a new one. A change builds the index again when the database is opened.
    #[must_use]
    pub fn index(mut self, policy: Policy) -> Self {
        self.index = Some(policy);
        self
    }

    /// The bounds of one document. Default: [`Limits::default`].
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Whether the database is only read: nothing in its directory is changed, so it may lie on a disk that takes no writes, and any
    /// number of processes may read it at once (each by one handle, which threads share), as long as none writes it. Writes are
    /// refused. What a crash left unmerged is merged in memory, each time it is opened; where there is no tree, all of it is
    /// built in memory. Default: no.
    #[must_use]
    pub fn read_only(mut self, read_only: bool) -> Self {
        self.read_only = read_only;
        self
    }

    /// Whether a database is made where there is none. Default: yes.
    #[must_use]
    pub fn create(mut self, create: bool) -> Self {
        self.create = create;
        self
    }

    /// Whether threads of their own checkpoint, compact and flush. Without them, whoever writes does it. For tests.
    #[doc(hidden)]
    #[must_use]
    pub fn background(mut self, background: bool) -> Self {
        self.background = background;
        self
    }

    /// What tells when keys and documents end. For tests.
    #[doc(hidden)]
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }
}
