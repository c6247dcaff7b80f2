//! The changes of a virtual database.

use stemmadb::{Change, Result, Selector, Sequence};
use stemmadb_client::AnyDatabase;

use super::VirtualDatabase;
use crate::changes::{FederatedChangeRows, FederatedChanges, Readable};

/// A read of the changes of all shards after a position. Building it reads nothing.
///
/// A document that moves to another shard may be reported again with the same revision; no change is left out, whatever
/// moved between two reads. Sequences are those of the shards: continue with [`VirtualChangeRows::token`].
///
/// ```
/// # use stemmadb::Database;
/// # use stemmadb_federation::{Grouping, VirtualDatabase};
/// # fn main() -> stemmadb::Result<()> {
/// let db = VirtualDatabase::create([Database::in_memory(), Database::in_memory()], Grouping::ById)?;
/// db.insert("a", &serde_json::json!({}))?;
/// let mut changes = db.changes().run()?;
/// assert_eq!(changes.next().expect("one change")?.id.as_str(), "a");
/// let token = changes.token();
/// assert!(db.changes().after(token).run()?.next().is_none());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a read of the feed does nothing until it is run"]
pub struct VirtualChanges {
    database: VirtualDatabase,
    changes: FederatedChanges,
    documents: bool,
    readable: Option<Readable>,
}

/// The changes of a virtual database. An iterator; after an error it returns no further changes.
#[derive(Debug)]
pub struct VirtualChangeRows {
    database: VirtualDatabase,
    rows: FederatedChangeRows,
    documents: bool,
    /// The documents whose changes are returned, if the shards don't choose them.
    readable: Option<Readable>,
    /// How many changes of the shards were read.
    pub(super) read_count: usize,
}

impl VirtualChanges {
    pub(super) fn new(database: VirtualDatabase) -> Self {
        let changes = FederatedChanges::new(database.federation.clone());
        VirtualChanges { database, changes, documents: false, readable: None }
    }

    /// Continues after the position of a token.
    pub fn after(self, token: impl Into<String>) -> Self {
        VirtualChanges { changes: self.changes.after(token), ..self }
    }

    /// The token of the newest position: reading after it returns only what is written from now on. For a shard on a
    /// server that does not answer, it is the beginning.
    pub fn newest_token(&self) -> String {
        self.changes.newest_token()
    }

    /// Reads at most `count` changes of the shards.
    pub fn limit(self, count: usize) -> Self {
        VirtualChanges { changes: self.changes.limit(count), ..self }
    }

    /// Whether to return the documents, too.
    pub fn documents(self, documents: bool) -> Self {
        VirtualChanges { changes: self.changes.documents(documents), documents, ..self }
    }

    /// Returns the newest changes of each shard first. The token of a change then stands before it, and after those
    /// that were not returned yet.
    pub fn descending(self, descending: bool) -> Self {
        VirtualChanges { changes: self.changes.descending(descending), ..self }
    }

    /// Returns only documents whose winning revision matches the selector; with `departures`, also those that left
    /// them, as deletions. See [`Changes::departures`](stemmadb::Changes::departures).
    ///
    /// Costs a lookup per change once documents have moved.
    ///
    /// # Errors
    /// `Invalid` if the selector is malformed.
    pub fn selector(self, selector: &Selector, departures: bool) -> Result<Self> {
        selector.to_value()?;
        let readable = Readable { selector: Some(selector.clone()), departures, ..self.readable.unwrap_or_default() };
        Ok(VirtualChanges { readable: Some(readable), ..self })
    }

    /// Returns only the documents with these ids. Costs a lookup per change once documents have moved.
    pub fn ids<I: Into<String>>(self, ids: impl IntoIterator<Item = I>) -> Self {
        let ids = Some(ids.into_iter().map(Into::into).collect());
        VirtualChanges { readable: Some(Readable { ids, ..self.readable.unwrap_or_default() }), ..self }
    }

    /// Returns only documents that have a path that matches a pattern. See
    /// [`Changes::paths`](stemmadb::Changes::paths).
    ///
    /// Costs a lookup per change once documents have moved.
    pub fn paths<P: AsRef<str>>(self, patterns: impl IntoIterator<Item = P>) -> Self {
        let paths = patterns.into_iter().map(|pattern| pattern.as_ref().to_owned()).collect();
        VirtualChanges { readable: Some(Readable { paths, ..self.readable.unwrap_or_default() }), ..self }
    }

    /// Reads the changes.
    ///
    /// # Errors
    /// Those of [`Database::changes`](stemmadb::Database::changes), with the name of the shard; `Invalid` for a
    /// malformed token.
    pub fn run(self) -> Result<VirtualChangeRows> {
        let VirtualChanges { database, changes, documents, readable } = self;
        let map = database.map();
        // The deletion of a copy that was moved stands for a document, but does not match.
        let is_chosen_by_shards = !map.has_moved() && map.planned_move().is_none();
        let (chosen, readable) = if is_chosen_by_shards { (readable, None) } else { (None, readable) };
        Ok(VirtualChangeRows { database, rows: changes.readable(chosen).run()?, documents, readable, read_count: 0 })
    }
}

impl VirtualChangeRows {
    /// About how many further changes there are: exact for each shard up to `count_max`, and at least the number of
    /// changes in none.
    ///
    /// # Errors
    /// Those of [`Database::changes`](stemmadb::Database::changes), with the name of the shard.
    pub fn pending(&self, count_max: u64) -> Result<u64> {
        self.rows.pending(count_max)
    }

    /// The token that continues after the last returned change.
    pub fn token(&self) -> String {
        self.rows.token()
    }

    /// The sum of the shards' sequences after the last returned change. It grows with each write as long as no shard is
    /// removed, and is no position to continue from.
    pub fn sequence_sum(&self) -> u64 {
        self.rows.sequence_sum()
    }

    /// The change as the document's shard reports it. A copy that is being moved, and the deletion of one that was
    /// moved, stand for the document in its own shard: a reader may know the copy's row and not yet the document's.
    fn of_owner(&self, shard: &str, change: Change) -> Result<Option<Change>> {
        let gate = self.database.gate.read();
        let owner = gate.owner(change.id.as_str());
        let is_owner = owner.name == shard;
        if is_owner && self.readable.is_none() {
            return Ok(Some(change));
        }
        if self.readable.as_ref().is_some_and(|readable| !readable.has_id(change.id.as_str())) {
            return Ok(None);
        }
        // Those who left since then are of interest.
        let since = if is_owner { self.rows.begin_of(shard) } else { Sequence::ZERO };
        let newest = match &owner.database {
            AnyDatabase::Embedded(database) => database.changes(since).and_then(|all| {
                let all = match &self.readable {
                    Some(readable) => readable.choose(all)?,
                    None => all,
                };
                all.ids([change.id.as_str()]).documents(self.documents).run().next().transpose()
            }),
            AnyDatabase::Remote(database) => {
                let all = match &self.readable {
                    Some(readable) => readable.choose_remote(database.changes(since))?,
                    None => database.changes(since),
                };
                all.ids([change.id.as_str()])
                    .documents(self.documents)
                    .run()
                    .and_then(|mut changes| changes.next().transpose())
            }
        };
        newest.map_err(|error| owner.error(error))
    }
}

impl Iterator for VirtualChangeRows {
    type Item = Result<Change>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let row = match self.rows.next()? {
                Ok(row) => row,
                Err(error) => return Some(Err(error)),
            };
            self.read_count += 1;
            if let Some(change) = self.of_owner(&row.member, row.change).transpose() {
                return Some(change);
            }
        }
    }
}
