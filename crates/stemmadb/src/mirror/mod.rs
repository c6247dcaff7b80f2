//! Mirror: a copy of a database in plain files for `ls`, `cat`, `grep` and git, kept up to date from the changes feed.
//!
//! ```text
//! documents/<id>.json             each document as indented JSON, with `_id` and `_rev`
//! by/<path>/<value>/<id>.json     a relative link to the document, for each link path and each value there
//! files/<id>/<name>               the document's files, if enabled
//! .stemma-mirror.json             the source database and the position up to which it was mirrored
//! ```
//!
//! Invariants: a document's file always has either its old or its new content; links are removed before the document
//! from which they derive is replaced, so the document's file always determines which links may exist. The position is
//! written after the changes it covers. An interrupted mirror is therefore repaired by repeating the changes after the
//! position.

mod copy;
mod disk;
mod link;
mod name;
mod state;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::database::Database;
use crate::replicate::{Peer, ReplicationScope};
use crate::value::Value;
use crate::{Error, ErrorKind, Result};
use copy::FileTree;
use disk::Disk;
use link::LinkPath;
use state::{MirrorState, Stage};

/// Number of documents after which the position is written.
const PAGE_COUNT: usize = if cfg!(test) { 7 } else { 1000 };

/// Options of a mirror. See [`Database::mirror_to`] for an example.
#[derive(Debug, Clone)]
pub struct MirrorOptions {
    by: Vec<String>,
    files: bool,
    flush: bool,
    rebuild: bool,
}

impl Default for MirrorOptions {
    fn default() -> Self {
        MirrorOptions { by: Vec::new(), files: false, flush: true, rebuild: false }
    }
}

impl MirrorOptions {
    /// The default options: documents only, flushed to disk.
    pub fn new() -> Self {
        Self::default()
    }

    /// Links each document under the values it has at `path`, such as `author.name`, `tags[]` or `lines[].product`,
    /// where `[]` stands for each element of an array. A backslash escapes a dot, bracket or backslash within a name.
    /// Values that are objects or arrays get no links.
    #[must_use]
    pub fn by(mut self, path: impl Into<String>) -> Self {
        self.by.push(path.into());
        self
    }

    /// Sets whether the documents' files are mirrored. Default: false.
    #[must_use]
    pub fn files(mut self, files: bool) -> Self {
        self.files = files;
        self
    }

    /// Sets whether the mirror is flushed to disk before its position is recorded. Default: true.
    ///
    /// With flushing, changes after the last position are repeated after a power loss. Without it, mirroring is faster,
    /// but after a power loss the mirror has to be rebuilt.
    #[must_use]
    pub fn flush(mut self, flush: bool) -> Self {
        self.flush = flush;
        self
    }

    /// Rebuilds the mirror from scratch, even if the directory contains the mirror of another database. Default: false.
    #[must_use]
    pub fn rebuild(mut self, rebuild: bool) -> Self {
        self.rebuild = rebuild;
        self
    }
}

/// Counters of a mirror run. See [`Database::mirror_to`] for an example.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct MirrorStats {
    /// Documents written, or found up to date.
    pub written_count: u64,
    /// Documents removed, or found already removed.
    pub removed_count: u64,
}

/// A copy of a database in plain files; created by [`Database::mirror_to`]. See [`Database::mirror_to`] for an example.
pub struct Mirror {
    source: Arc<dyn Peer>,
    tree: FileTree,
    state: MirrorState,
}

impl Database {
    /// Opens a mirror of this database in plain files below `directory`, in its last recorded state; creates it if
    /// there is none.
    ///
    /// Bring it up to date with [`Mirror::catch_up`], or keep it up to date with [`Mirror::follow`].
    ///
    /// `documents/` has a file for each document; `by/` has links to the documents by the values at the chosen paths.
    /// Ids and values are used as file names unchanged, except that `/`, `%`, control characters and a leading dot are
    /// percent-encoded, and a name that is too long is truncated and ends in `%~` and a hash. A string that could be
    /// taken for a number, `true`, `false` or `null` is quoted. Each file is replaced atomically, so a reader sees
    /// either the old or the new document; a link may briefly lead to a document that no longer has the value, or to no
    /// document.
    ///
    /// ```
    /// # use stemmadb::{Database, MirrorOptions};
    /// # fn main() -> stemmadb::Result<()> {
    /// # let directory = std::env::temp_dir().join(format!("stemma-mirror-doc-{}", std::process::id()));
    /// # let db = Database::in_memory();
    /// db.insert("corvet", &serde_json::json!({"colour": "red", "keywords": ["fast", "old"]}))?;
    /// let mut mirror = db.mirror_to(&directory, MirrorOptions::new().by("colour").by("keywords[]"))?;
    /// mirror.catch_up()?;
    /// let text = std::fs::read_to_string(directory.join("by/keywords/fast/corvet.json"))?;
    /// assert!(text.contains(r#""colour": "red""#));
    /// # drop(mirror); std::fs::remove_dir_all(&directory).ok();
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `Invalid` if the directory is neither empty nor a mirror of this database, if the mirror is ahead of the
    /// database, or if a link path is malformed; `Locked` if another process uses the mirror; `Unavailable` if the
    /// directory can't be written.
    pub fn mirror_to(&self, directory: impl AsRef<Path>, options: MirrorOptions) -> Result<Mirror> {
        let mirror = Mirror::open(Arc::new(self.clone()), directory, options)?;
        let reached = mirror.state.position.as_ref().and_then(Value::as_u64);
        if reached.is_some_and(|reached| reached > self.sequence().get()) {
            return Err(Error::invalid(
                "the mirror is further than the database: was an older copy of the database restored?",
            )
            .with_hint("rebuild the mirror"));
        }
        Ok(mirror)
    }
}

impl Mirror {
    /// Opens a mirror like [`Database::mirror_to`], of a database accessed through a [`Peer`].
    ///
    /// # Errors
    /// Those of [`Database::mirror_to`], and those of the peer.
    pub fn open(source: Arc<dyn Peer>, directory: impl AsRef<Path>, options: MirrorOptions) -> Result<Mirror> {
        let paths = LinkPath::parse_all(&options.by)?;
        let disk = Disk::open(directory.as_ref(), options.flush)?;
        let database = source.database_id()?;
        let saved = MirrorState::read(&disk)?;
        let initial = MirrorState::new(database.clone(), &paths, options.files);
        let state = match &saved {
            None => {
                disk.refuse_foreign_files()?;
                initial
            }
            Some(_) if options.rebuild => initial.with_stage(Stage::Clearing),
            Some(saved) => {
                saved.refuse_other_database(&database, &disk)?;
                saved.clone().with_options(&paths, options.files)
            }
        };
        let is_modified = saved.as_ref() != Some(&state);
        let mut mirror = Mirror { source, tree: FileTree::new(disk, paths, options.files), state };
        if is_modified {
            mirror.save()?;
        }
        mirror.prepare()?;
        Ok(mirror)
    }

    /// Completes the current stage, which may have been interrupted, so that the tree matches the options.
    fn prepare(&mut self) -> Result<()> {
        match self.state.stage {
            Stage::Clearing => self.tree.clear()?,
            Stage::Linking => self.tree.rebuild_links()?,
            Stage::Following => {}
        }
        self.tree.prepare()?;
        if self.state.stage != Stage::Following {
            self.state = self.state.clone().with_stage(Stage::Following);
            self.save()?;
        }
        Ok(())
    }

    fn save(&mut self) -> Result<()> {
        self.tree.disk().flush_all()?;
        self.state.write(self.tree.disk())
    }

    /// Brings the mirror up to date.
    ///
    /// Costs one file for each document that changed, and one link for each of its values; with flushing, one flush per
    /// thousand documents.
    ///
    /// # Errors
    /// `Unavailable` if the mirror can't be written; `Corrupt` if stored bytes or a file of the mirror are damaged; the
    /// errors of the peer.
    pub fn catch_up(&mut self) -> Result<MirrorStats> {
        self.catch_up_while(|_| true)
    }

    /// Brings the mirror up to date, until `should_continue` returns false; it is called after each document. An
    /// interrupted run is continued by the next call.
    ///
    /// # Errors
    /// As [`Mirror::catch_up`].
    pub fn catch_up_while(&mut self, mut should_continue: impl FnMut(&MirrorStats) -> bool) -> Result<MirrorStats> {
        let mut stats = MirrorStats::default();
        let outcome = self.apply_pages(&mut stats, &mut should_continue);
        ignore_requested_stop(outcome, || should_continue(&stats))?;
        Ok(stats)
    }

    /// Keeps the mirror up to date until `should_continue` returns false; it is called after each document, and at
    /// least once per `timeout`.
    ///
    /// # Errors
    /// As [`Mirror::catch_up`].
    pub fn follow(&mut self, timeout: Duration, mut should_continue: impl FnMut(&MirrorStats) -> bool) -> Result<()> {
        loop {
            let stats = self.catch_up_while(&mut should_continue)?;
            if !should_continue(&stats) {
                return Ok(());
            }
            let start = Value::from(0);
            let waited = self.source.wait(self.state.position.as_ref().unwrap_or(&start), timeout);
            ignore_requested_stop(waited, || should_continue(&stats))?;
        }
    }

    fn apply_pages(
        &mut self,
        stats: &mut MirrorStats,
        should_continue: &mut dyn FnMut(&MirrorStats) -> bool,
    ) -> Result<()> {
        loop {
            let page = self.source.changes(self.state.position.as_ref(), PAGE_COUNT, &ReplicationScope::All)?;
            self.tree.apply_changes(&*self.source, page.leaves, stats, should_continue)?;
            if self.state.position.as_ref() != Some(&page.position) {
                self.state.position = Some(page.position);
                self.save()?;
            }
            if page.is_last {
                return Ok(());
            }
        }
    }
}

/// Treats `Stopped` as success if the caller requested the stop.
fn ignore_requested_stop(outcome: Result<()>, should_continue: impl FnOnce() -> bool) -> Result<()> {
    match outcome {
        Err(error) if error.kind() == ErrorKind::Stopped && !should_continue() => Ok(()),
        outcome => outcome,
    }
}

impl std::fmt::Debug for Mirror {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mirror").field("directory", &self.tree.disk().root()).field("state", &self.state).finish()
    }
}

#[cfg(test)]
mod tests;
