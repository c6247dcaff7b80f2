//! What does a database look like in plain files? A copy for `ls`, `cat`, `grep` and git, kept in step with the feed.
//!
//! ```text
//! documents/<id>.json             each document, printed over lines, with `_id` and `_rev`
//! by/<path>/<value>/<id>.json     a relative link to it, for each chosen path and each value there
//! files/<id>/<name>               its files, if they are wanted
//! .stemma-mirror.json             whose copy it is, and how far it has come
//! ```
//!
//! Invariants: a document's file is whole, the old one or the new one, and links are gone before what they are made from is; so whatever
//! is there tells which links there may be. The position is written after what it counts. A copy that was cut short anywhere is
//! therefore mended by doing again what came after the position.

mod copy;
mod disk;
mod link;
mod name;
mod state;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::database::Database;
use crate::replicate::{Peer, Selection};
use crate::value::Value;
use crate::{Error, ErrorKind, Result};
use copy::Copy;
use disk::Disk;
use link::LinkPath;
use state::{Stage, State};

/// Documents after which the position is written.
const PAGE_COUNT: usize = if cfg!(test) { 7 } else { 1000 };

/// What a copy in plain files has.
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
    /// Documents only, flushed to the disk.
    pub fn new() -> Self {
        Self::default()
    }

    /// Links to each document under the values it has at `path`, as in `author.name`, `tags[]`, `lines[].product`: `[]` is each element of
    /// an array. A dot, bracket or backslash within a name has a backslash before it. Objects and arrays have no links.
    #[must_use]
    pub fn by(mut self, path: impl Into<String>) -> Self {
        self.by.push(path.into());
        self
    }

    /// With the documents' files; by default without.
    #[must_use]
    pub fn files(mut self, files: bool) -> Self {
        self.files = files;
        self
    }

    /// Whether the copy is on the disk before it says how far it has come (by default), so that a power cut costs only what is done again.
    /// Without, it is faster, and after a power cut it has to be made anew.
    #[must_use]
    pub fn flush(mut self, flush: bool) -> Self {
        self.flush = flush;
        self
    }

    /// Makes the copy anew, whatever database the one in the directory is of.
    #[must_use]
    pub fn rebuild(mut self, rebuild: bool) -> Self {
        self.rebuild = rebuild;
        self
    }
}

/// What was done so far.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Mirrored {
    /// Documents written, or found as they should be.
    pub written_count: u64,
    /// Documents removed, or found to be gone.
    pub removed_count: u64,
}

/// A copy of a database in plain files: see [`Database::mirror_to`].
pub struct Mirror {
    source: Arc<dyn Peer>,
    copy: Copy,
    state: State,
}

impl Database {
    /// A copy of this database in plain files below `directory`, as far as it has come; makes it if there is none. Bring it up to date
    /// with [`Mirror::catch_up`], or keep it so with [`Mirror::follow`].
    ///
    /// `documents/` has a file for each document, `by/` links to them by the values at the paths you choose. Ids and values are names as they
    /// are, but for what no name may be: `/`, `%`, control characters and a dot at the beginning are percent-encoded, and what is too
    /// long is cut and ends in `%~` and a hash. A text that could be taken for a number, `true`, `false` or `null` stands in quotes. Each file is
    /// replaced at once, so a reader sees the old document or the new one; a link may lead to a document that has just lost its value, or
    /// to none.
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
    /// `Invalid` if the directory is neither empty nor a copy of this database, if the copy has come further than the database, or for a
    /// path that is none; `Locked` if somebody else is at it; `Unavailable` if it can't be written.
    pub fn mirror_to(&self, directory: impl AsRef<Path>, options: MirrorOptions) -> Result<Mirror> {
        let mirror = Mirror::open(Arc::new(self.clone()), directory, options)?;
        let reached = mirror.state.position.as_ref().and_then(Value::as_u64);
        if reached.is_some_and(|reached| reached > self.sequence().get()) {
            return Err(Error::invalid("the copy has come further than the database: is that an older copy of it?")
                .with_hint("rebuild the mirror"));
        }
        Ok(mirror)
    }
}

impl Mirror {
    /// As [`Database::mirror_to`], of a database that is reached in another way.
    ///
    /// # Errors
    /// As [`Database::mirror_to`]; those of the peer.
    pub fn open(source: Arc<dyn Peer>, directory: impl AsRef<Path>, options: MirrorOptions) -> Result<Mirror> {
        let paths = LinkPath::parse_all(&options.by)?;
        let disk = Disk::open(directory.as_ref(), options.flush)?;
        let database = source.database_id()?;
        let known = State::read(&disk)?;
        let fresh = State::new(database.clone(), &paths, options.files);
        let state = match &known {
            None => {
                disk.refuse_strangers()?;
                fresh
            }
            Some(_) if options.rebuild => fresh.at(Stage::Clearing),
            Some(known) => {
                known.refuse_other(&database, &disk)?;
                known.clone().chosen(&paths, options.files)
            }
        };
        let is_new = known.as_ref() != Some(&state);
        let mut mirror = Mirror { source, copy: Copy::new(disk, paths, options.files), state };
        if is_new {
            mirror.save()?;
        }
        mirror.prepare()?;
        Ok(mirror)
    }

    /// Comes from what is there to what was chosen, again if that was broken off before.
    fn prepare(&mut self) -> Result<()> {
        match self.state.stage {
            Stage::Clearing => self.copy.clear()?,
            Stage::Linking => self.copy.link_anew()?,
            Stage::Following => {}
        }
        self.copy.prepare()?;
        if self.state.stage != Stage::Following {
            self.state = self.state.clone().at(Stage::Following);
            self.save()?;
        }
        Ok(())
    }

    fn save(&mut self) -> Result<()> {
        self.copy.disk().flush_all()?;
        self.state.write(self.copy.disk())
    }

    /// Brings the copy up to date.
    ///
    /// Costs a file for each document that changed since, and a link for each of its values; on the disk, with a flush for each thousand.
    ///
    /// # Errors
    /// `Unavailable` if the copy can't be written; `Corrupt` if stored bytes, or a file of the copy, are damaged; those of the peer.
    pub fn catch_up(&mut self) -> Result<Mirrored> {
        self.catch_up_while(|_| true)
    }

    /// Brings the copy up to date as long as `go_on`, asked after each document, says so. What was broken off is done later.
    ///
    /// # Errors
    /// As [`Mirror::catch_up`].
    pub fn catch_up_while(&mut self, mut go_on: impl FnMut(&Mirrored) -> bool) -> Result<Mirrored> {
        let mut done = Mirrored::default();
        let outcome = self.take_pages(&mut done, &mut go_on);
        unless_told_to_stop(outcome, || go_on(&done))?;
        Ok(done)
    }

    /// Keeps the copy in step with the database, until `go_on` says no; it is asked after each document, and at least once each `patience`.
    ///
    /// # Errors
    /// As [`Mirror::catch_up`].
    pub fn follow(&mut self, patience: Duration, mut go_on: impl FnMut(&Mirrored) -> bool) -> Result<()> {
        loop {
            let done = self.catch_up_while(&mut go_on)?;
            if !go_on(&done) {
                return Ok(());
            }
            let start = Value::from(0);
            let waited = self.source.wait(self.state.position.as_ref().unwrap_or(&start), patience);
            unless_told_to_stop(waited, || go_on(&done))?;
        }
    }

    fn take_pages(&mut self, done: &mut Mirrored, go_on: &mut dyn FnMut(&Mirrored) -> bool) -> Result<()> {
        loop {
            let page = self.source.changes(self.state.position.as_ref(), PAGE_COUNT, &Selection::All)?;
            self.copy.take(&*self.source, page.leaves, done, go_on)?;
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

/// Whoever was told to stop, and did, has not failed.
fn unless_told_to_stop(outcome: Result<()>, go_on: impl FnOnce() -> bool) -> Result<()> {
    match outcome {
        Err(error) if error.kind() == ErrorKind::Stopped && !go_on() => Ok(()),
        outcome => outcome,
    }
}

impl std::fmt::Debug for Mirror {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mirror").field("directory", &self.copy.disk().root()).field("state", &self.state).finish()
    }
}

#[cfg(test)]
mod tests;
