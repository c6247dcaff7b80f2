//! The changes of a tiered database.

use stemmadb::{Change, Result, Sequence};

use super::TieredDatabase;
use super::marker::is_marker;

/// A read of the changes after a sequence of the hot tier. Building it reads nothing.
///
/// A document that moved to a lower tier is reported as it is there, once more with the same revision; one that
/// returned has a new revision. Sequences are those of the hot tier.
///
/// ```
/// # use std::time::Duration;
/// # use stemmadb::{Database, Sequence};
/// # use stemmadb_federation::{Tier, TierPolicy, TieredDatabase};
/// # fn main() -> stemmadb::Result<()> {
/// # let (hot, cold) = (Database::in_memory(), Database::in_memory());
/// # let policy = TierPolicy::new().documents_max(0);
/// let db = TieredDatabase::open(&hot, [Tier::new("cold", &cold, policy)])?;
/// let revision = db.insert("a", &serde_json::json!({}))?;
/// db.migrate()?;
/// let change = db.changes(Sequence::ZERO).run()?.next().expect("one change")?;
/// assert_eq!((change.revision, change.deleted), (revision, false));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a read of the feed does nothing until it is run"]
pub struct TieredChanges {
    database: TieredDatabase,
    since: Sequence,
    limit: Option<usize>,
    documents: bool,
}

impl TieredChanges {
    pub(super) fn new(database: TieredDatabase, since: Sequence) -> Self {
        TieredChanges { database, since, limit: None, documents: false }
    }

    /// Returns at most `count` changes.
    pub fn limit(self, count: usize) -> Self {
        TieredChanges { limit: Some(count), ..self }
    }

    /// Whether to return the documents, too.
    pub fn documents(self, documents: bool) -> Self {
        TieredChanges { documents, ..self }
    }

    /// Reads the changes.
    ///
    /// # Errors
    /// Those of [`Database::changes`](stemmadb::Database::changes), and those of the lower tiers, with their names.
    pub fn run(self) -> Result<impl Iterator<Item = Result<Change>> + use<>> {
        let TieredChanges { database, since, limit, documents } = self;
        let changes = database.inner.hot.changes(since)?.documents(documents);
        let changes = match limit {
            Some(count) => changes.limit(count),
            None => changes,
        };
        Ok(changes.run().map(move |change| database.of_tier(change?, documents)))
    }
}

impl TieredDatabase {
    /// The change as it is in the document's tier.
    fn of_tier(&self, change: Change, documents: bool) -> Result<Change> {
        if !is_marker(&change.revision) {
            return Ok(change);
        }
        Ok(match self.locate(change.id.as_str())? {
            Some((_, document)) => Change {
                revision: *document.revision(),
                deleted: false,
                leaves: vec![*document.revision()],
                document: documents.then_some(document),
                ..change
            },
            // It expired there.
            None => Change { deleted: true, document: None, ..change },
        })
    }
}
