//! Options for opening a database.

pub(crate) mod clock;
mod log_storage;
mod progress;
mod rebuild_observer;

use std::sync::Arc;
use std::time::Duration;

use crate::cipher::EncryptionKey;
use crate::compression::Compression;
use crate::index::Policy;
use crate::log::Level;
use crate::value::Limits;
use crate::vfs::{LogCopies, LogStorage};
pub use clock::Clock;
pub(crate) use log_storage::LogStorageOption;
pub use progress::Progress;
pub(crate) use rebuild_observer::RebuildObserver;

/// How durable a write has to be before it returns and before readers see it.
///
/// Set the default with [`Options::durability`], which has an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// Flushed to disk: survives a power loss. One flush serves all writes that wait for it.
    #[default]
    Sync,
    /// Passed to the operating system, and flushed at most this much later. Survives a crash of the process; a power
    /// loss may lose the writes of the last interval, but never part of a transaction and never an earlier one than one
    /// that survives.
    Interval(Duration),
    /// Passed to the operating system: survives a crash of the process; a power loss may lose the newest writes.
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

/// The size of a file of the tree. A run of more bytes has several; a step of a merge writes one.
const TREE_FILE_BYTES: u64 = 32 << 20;

/// The time after which a replica has seen that a segment is retired, unless it does not reach the store.
const RETIRED_SEGMENT_DELAY: Duration = Duration::from_secs(60);

/// The first dictionary for compressed documents is made after this many bytes of small documents.
const DICTIONARY_BYTES: u64 = 256 << 10;

/// Options for opening a database. The defaults suit most applications.
///
/// ```no_run
/// use stemmadb::{Database, Durability, Options};
/// let options = Options::new().durability(Durability::None).memory_bytes(16 << 20);
/// let db = Database::open_with("library", options)?;
/// # Ok::<(), stemmadb::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Options {
    pub(crate) durability: Durability,
    pub(crate) memory_bytes: usize,
    pub(crate) cache_bytes: u64,
    pub(crate) index_cache_bytes: Option<u64>,
    pub(crate) document_cache_bytes: Option<u64>,
    pub(crate) segment_bytes: u32,
    pub(crate) revs_limit: usize,
    pub(crate) index: Option<Policy>,
    pub(crate) compression: Option<Compression>,
    pub(crate) encryption: Option<EncryptionKey>,
    pub(crate) limits: Limits,
    pub(crate) read_only: bool,
    /// Whether the database is a replica: its log has another owner, and everything else is written as usual.
    pub(crate) is_replica: bool,
    pub(crate) create: bool,
    pub(crate) background: bool,
    pub(crate) tree_file_bytes: u64,
    /// After how many bytes of small documents the first dictionary is made.
    pub(crate) dictionary_bytes: u64,
    pub(crate) clock: Clock,
    pub(crate) rebuild_observer: RebuildObserver,
    pub(crate) log_storage: LogStorageOption,
    pub(crate) log_copies: Option<LogCopies>,
    /// How long the bytes of a retired segment are kept in a log storage, for replicas that have not read its end.
    pub(crate) retired_segment_delay: Duration,
    /// An upper bound on the estimated cost of a column, in rows; tests set it to build columns early.
    pub(crate) column_cost_max: u64,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            durability: Durability::Sync,
            memory_bytes: 64 << 20,
            cache_bytes: 256 << 20,
            index_cache_bytes: None,
            document_cache_bytes: None,
            segment_bytes: 64 << 20,
            revs_limit: 1000,
            index: None,
            compression: None,
            encryption: default_key(),
            limits: Limits::default(),
            create: true,
            read_only: false,
            is_replica: false,
            background: true,
            tree_file_bytes: TREE_FILE_BYTES,
            dictionary_bytes: DICTIONARY_BYTES,
            clock: Clock::default(),
            rebuild_observer: RebuildObserver::default(),
            log_storage: LogStorageOption::default(),
            log_copies: None,
            retired_segment_delay: RETIRED_SEGMENT_DELAY,
            column_cost_max: u64::MAX,
        }
    }
}

/// The key of databases whose options set none. Test builds take it from the environment, so that whole test suites run
/// encrypted.
fn default_key() -> Option<EncryptionKey> {
    #[cfg(all(any(test, feature = "testing"), feature = "encryption"))]
    if std::env::var_os(crate::testing::KEY_VARIABLE).is_some() {
        return Some(EncryptionKey::from_variable(crate::testing::KEY_VARIABLE));
    }
    None
}

impl Options {
    /// Creates the default options.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the durability of writes that do not request their own. Default: [`Durability::Sync`].
    ///
    /// ```
    /// use std::time::Duration;
    /// use stemmadb::{Durability, Options};
    /// let options = Options::new().durability(Durability::Interval(Duration::from_millis(100)));
    /// ```
    #[must_use]
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// Sets the maximum size of memtables, in bytes; they hold writes until a checkpoint merges them. Writers are
    /// slowed down when the limit is reached. Default: 64 MiB; at least 1 MiB.
    #[must_use]
    pub fn memory_bytes(mut self, bytes: usize) -> Self {
        self.memory_bytes = bytes.max(1 << 20);
        self
    }

    /// Sets the maximum size of the read caches, in bytes; zero disables them. Default: 256 MiB.
    ///
    /// Three eighths hold the values of frequently read paths, a quarter documents, an eighth document ids, and a
    /// quarter the tree's block indexes, filters and blocks. The tree's share is at least 16 MiB: below 64 MiB, that
    /// makes the sum larger than the option. [`Info::cache_bytes`](crate::Info::cache_bytes) is the memory in use.
    #[must_use]
    pub fn cache_bytes(mut self, bytes: u64) -> Self {
        self.cache_bytes = bytes;
        self
    }

    /// Sets the memory for caches of the index, in bytes, instead of three quarters of [`Options::cache_bytes`]: ids,
    /// values of frequently read paths, and the tree, whose share is at least 16 MiB even for zero.
    ///
    /// With [`Options::document_cache_bytes`] of zero, queries find their rows in memory and read documents from the
    /// log, which the operating system caches.
    ///
    /// ```
    /// use stemmadb::Options;
    /// let options = Options::new().index_cache_bytes(512 << 20).document_cache_bytes(0);
    /// ```
    #[must_use]
    pub fn index_cache_bytes(mut self, bytes: u64) -> Self {
        self.index_cache_bytes = Some(bytes);
        self
    }

    /// Sets the memory for cached documents, in bytes, instead of a quarter of [`Options::cache_bytes`]; zero disables
    /// the cache.
    #[must_use]
    pub fn document_cache_bytes(mut self, bytes: u64) -> Self {
        self.document_cache_bytes = Some(bytes);
        self
    }

    /// Sets the size of a log segment, in bytes. Default: 64 MiB; clamped to 64 KiB to 1 GiB.
    #[must_use]
    pub fn segment_bytes(mut self, bytes: u32) -> Self {
        self.segment_bytes = bytes.clamp(64 << 10, 1 << 30);
        self
    }

    /// Sets how many revisions of each branch are kept in a revision tree: their ids, not their bodies. Default: 1000;
    /// at least 1.
    #[must_use]
    pub fn revs_limit(mut self, revs_limit: usize) -> Self {
        self.revs_limit = revs_limit.max(1);
        self
    }

    /// Sets which paths are indexed. Default: the database's own policy; every path for a new database.
    ///
    /// Queries on other paths return the same results, but read more. A change rebuilds the index when the database is
    /// opened.
    #[must_use]
    pub fn index(mut self, policy: Policy) -> Self {
        self.index = Some(policy);
        self
    }

    /// Sets how documents and the index are compressed from now on, which is kept with the database. Default: as the
    /// database has it; [`Compression::None`] for a new one.
    ///
    /// What is stored already stays as it is until merges and compaction rewrite it;
    /// [`Maintenance::compact`](crate::handles::Maintenance::compact) rewrites everything. Attachments and local
    /// documents are never compressed.
    ///
    /// ```
    /// use stemmadb::{Compression, Database, Options};
    /// # let directory = std::env::temp_dir().join(format!("stemma-doc-compression-{}", std::process::id()));
    /// let db = Database::open_with(&directory, Options::new().compression(Compression::Zstd))?;
    /// # drop(db); std::fs::remove_dir_all(&directory).ok();
    /// # Ok::<(), stemmadb::Error>(())
    /// ```
    #[must_use]
    pub fn compression(mut self, compression: Compression) -> Self {
        self.compression = Some(compression);
        self
    }

    /// Sets the key of an encrypted database. A database that does not exist yet is created encrypted.
    ///
    /// Everything is encrypted: documents, index, attachments, history, and the backups that are made. Writes take a
    /// few percent longer, reads of cached documents as long as otherwise. See
    /// [`EncryptionKey`] for an example, and
    /// [`encrypt`](crate::encryption::encrypt) for a database that exists.
    ///
    /// Opening returns `KeyRequired` if the database is encrypted and no key is set, `WrongKey` if another one is, and
    /// `Invalid` if one is set and the database is not encrypted.
    #[must_use]
    pub fn encryption(mut self, key: EncryptionKey) -> Self {
        self.encryption = Some(key);
        self
    }

    /// Sets the size limits of a document. Default: [`Limits::default`].
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Opens the database for reading only. Default: false.
    ///
    /// Nothing in its directory is changed, so it may be on a read-only disk, and any number of processes may read it
    /// at the same time (each with one handle, which threads share), as long as none writes it. Writes return
    /// `Unavailable`. Writes that a crash left unmerged are merged in memory on each open; without a tree, the whole
    /// index is built in memory.
    #[must_use]
    pub fn read_only(mut self, read_only: bool) -> Self {
        self.read_only = read_only;
        self
    }

    /// Whether to create the database if it does not exist. Default: true.
    #[must_use]
    pub fn create(mut self, create: bool) -> Self {
        self.create = create;
        self
    }

    /// Sets a function that receives the progress while opening rebuilds the tree: for a database of an older format, a
    /// changed index policy, or a tree that was deleted. Opening takes about 15 s for each GiB of log then. Called on
    /// the opening thread, with bytes of the log.
    ///
    /// ```
    /// use stemmadb::{Database, Options};
    /// # let directory = std::env::temp_dir().join(format!("stemma-doc-rebuild-{}", std::process::id()));
    /// let options = Options::new().on_rebuild(|progress| eprintln!("{} of {} bytes", progress.done, progress.total));
    /// let db = Database::open_with(&directory, options)?;
    /// # drop(db); std::fs::remove_dir_all(&directory).ok();
    /// # Ok::<(), stemmadb::Error>(())
    /// ```
    #[must_use]
    pub fn on_rebuild(mut self, observe: impl Fn(Progress) + Send + Sync + 'static) -> Self {
        self.rebuild_observer = RebuildObserver::new(observe);
        self
    }

    /// Keeps the log in a store, not in the database's directory: the directory then has only derived data and copies,
    /// and can be lost at any time. Opening takes the log over from whoever has it open. See [`LogStorage`].
    ///
    /// [`Durability::Sync`] waits for the store. Other writes are in the memory of the process until the next flush, so
    /// a crash of the process may lose the newest ones.
    #[must_use]
    pub fn log_storage(mut self, storage: Arc<dyn LogStorage>) -> Self {
        self.log_storage = LogStorageOption::Store(storage);
        self
    }

    /// Bounds the local copies of a log in a store, together with other databases that have the same bound. Default:
    /// the directory keeps a copy of the whole log. Replicas always do.
    ///
    /// A read of what is not there costs a request to the store, for a MiB.
    ///
    /// ```
    /// use stemmadb::Options;
    /// use stemmadb::log_storage::LogCopies;
    ///
    /// let options = Options::new().log_copies(LogCopies::up_to(10 << 30));
    /// # drop(options);
    /// ```
    #[must_use]
    pub fn log_copies(mut self, copies: LogCopies) -> Self {
        self.log_copies = Some(copies);
        self
    }

    /// Whether background threads checkpoint, compact and flush. Default: true. Without them, writers do this work. For
    /// tests.
    #[doc(hidden)]
    #[must_use]
    pub fn background(mut self, background: bool) -> Self {
        self.background = background;
        self
    }

    /// Sets the clock that determines when views' keys and documents expire. Default: the system clock. For tests.
    #[doc(hidden)]
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }
}
