//! Transactions on documents of one bucket.

use stemmadb::{Edit, Error, Result, Revision};
use stemmadb_client::AnyDatabase;

use super::VirtualDatabase;

/// A transaction: checks of what was read before, and edits. It commits if all checks hold and all edits succeed, else
/// nothing is written. All its documents are in one bucket, which [`Grouping::ByPrefix`](super::Grouping::ByPrefix)
/// arranges.
///
/// ```
/// use stemmadb::{Database, DocumentId, Edit, ErrorKind, Value};
/// use stemmadb_federation::{Grouping, VirtualDatabase};
///
/// # fn main() -> stemmadb::Result<()> {
/// let shards = (0..4).map(|_| Database::in_memory());
/// let orders = VirtualDatabase::create(shards, Grouping::ByPrefix(':'))?;
/// let line = |id: &str| Ok::<_, stemmadb::Error>(Edit::Insert { id: DocumentId::new(id)?, body: "{}".parse()? });
/// orders.transact().edit(line("order-7:1")?).edit(line("order-7:2")?).commit()?;
/// let refused = orders.transact().edit(line("order-8:1")?).edit(line("order-9:1")?).commit();
/// assert_eq!(refused.unwrap_err().kind(), ErrorKind::Invalid);
/// # Ok(())
/// # }
/// ```
#[must_use = "a transaction does nothing until it is committed"]
#[derive(Clone, Debug)]
pub struct VirtualTransact {
    database: VirtualDatabase,
    checks: Vec<(String, Option<Revision>)>,
    edits: Vec<Edit>,
}

impl VirtualTransact {
    pub(super) fn new(database: VirtualDatabase) -> Self {
        VirtualTransact { database, checks: Vec::new(), edits: Vec::new() }
    }

    /// Requires that the document `id` is at `revision`; `None`: that it does not exist.
    pub fn check(mut self, id: &str, revision: Option<&Revision>) -> Self {
        self.checks.push((id.to_owned(), revision.copied()));
        self
    }

    /// Adds an edit.
    pub fn edit(mut self, edit: Edit) -> Self {
        self.edits.push(edit);
        self
    }

    /// Commits; returns the new revisions, in the order of the edits.
    ///
    /// # Errors
    /// `Invalid` if documents are in different buckets, or there are none; `Conflict` if a check does not hold; those
    /// of the edits. Nothing is written then.
    pub fn commit(self) -> Result<Vec<Revision>> {
        let VirtualTransact { database, checks, edits } = self;
        let gate = database.gate.read();
        let mut ids = checks.iter().map(|(id, _)| id.as_str()).chain(edits.iter().map(|edit| edit.id().as_str()));
        let first = ids.next().ok_or_else(|| Error::invalid("the transaction has neither checks nor edits"))?;
        let bucket = gate.placement.bucket(first);
        if let Some(other) = ids.find(|id| gate.placement.bucket(id) != bucket) {
            let message = format!("the documents `{first}` and `{other}` lie in different buckets");
            return Err(Error::invalid(message)
                .with_hint("a transaction writes one bucket: give documents that change together a common prefix"));
        }
        let owner = gate.owner(first);
        match &owner.database {
            AnyDatabase::Embedded(shard) => shard.optimistic(|attempt| {
                for (id, revision) in &checks {
                    if attempt.get(id)?.map(|document| *document.revision()) != *revision {
                        return Err(Error::conflict(format!("the document `{id}` has changed")));
                    }
                }
                edits.iter().map(|edit| attempt.edit(edit.clone())).collect()
            }),
            AnyDatabase::Remote(shard) => {
                let mut transact = shard.transact();
                for (id, revision) in &checks {
                    transact = transact.check(id, revision.as_ref());
                }
                for edit in edits.iter().cloned() {
                    transact = transact.edit(edit)?;
                }
                transact.commit()
            }
        }
    }
}
