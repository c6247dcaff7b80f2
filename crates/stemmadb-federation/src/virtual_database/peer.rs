//! A virtual database as one side of a replication: documents are read and written by the peers of their shards.

use std::time::{Duration, Instant};

use stemmadb::replication::{
    ChangesPage, DocumentLeaves, MissingRevisions, Peer, ReplicationScope, Transfer, WriteOutcome,
};
use stemmadb::{Error, Result, Selector, Value};

use super::VirtualDatabase;

/// How often the shards are asked for changes while there are none.
const WAIT: Duration = Duration::from_millis(200);

/// Shards on servers need peers of their own: [`Member::copied_by`](crate::Member::copied_by). Checkpoints and identity
/// are those of shards, so a replication compares everything once more after their documents have moved.
impl Peer for VirtualDatabase {
    fn identity(&self) -> Result<String> {
        // Shards that are restored from a backup have other identities.
        let gate = self.gate.read();
        let (first, grouping) = (&gate.members[usize::from(gate.placement.owners[0])], gate.placement.grouping);
        Ok(format!("{} {grouping:?}", first.peer()?.identity()?))
    }

    fn get_checkpoint(&self, id: &str) -> Result<Option<Value>> {
        let gate = self.gate.read();
        let owner = gate.owner(id);
        owner.peer()?.get_checkpoint(id).map_err(|error| owner.error(error))
    }

    fn put_checkpoint(&self, id: &str, body: &Value) -> Result<()> {
        self.flush()?;
        let gate = self.gate.read();
        let owner = gate.owner(id);
        owner.peer()?.put_checkpoint(id, body).map_err(|error| owner.error(error))
    }

    fn changes(&self, since: Option<&Value>, count: usize, scope: &ReplicationScope) -> Result<ChangesPage> {
        let mut changes = self.changes().limit(count);
        if let Some(since) = since {
            changes = changes.after(token_of(since)?);
        }
        let mut changes = match scope {
            ReplicationScope::All => changes,
            ReplicationScope::Ids(ids) => changes.ids(ids.iter().cloned()),
            ReplicationScope::Selector(selector) => changes.selector(&Selector::parse(selector)?, false)?,
            ReplicationScope::Filter(name, _) => {
                return Err(Error::invalid(format!("the filter `{name}` can't be run here"))
                    .with_hint("use a selector; filters of design documents are run by the server"));
            }
        }
        .run()?;
        let mut leaves = Vec::new();
        for change in changes.by_ref() {
            let change = change?;
            leaves.push(DocumentLeaves { id: change.id, revisions: change.leaves });
        }
        // Checkpoints are no progress: another one would follow each of them.
        let position = match since.filter(|_| changes.read_count == 0) {
            Some(since) => since.clone(),
            None => Value::from(changes.token()),
        };
        let pending_count = Some(changes.pending(u64::MAX)?);
        Ok(ChangesPage { leaves, position, is_last: changes.read_count < count, pending_count })
    }

    fn missing_revisions(&self, leaves: &[DocumentLeaves]) -> Result<Vec<MissingRevisions>> {
        let mut missing = Vec::new();
        self.each_shard(
            leaves.to_vec(),
            |leaves| leaves.id.as_str(),
            |peer, leaves| {
                missing.extend(peer.missing_revisions(&leaves)?);
                Ok(())
            },
        )?;
        Ok(missing)
    }

    fn read(&self, missing: &[MissingRevisions], take: &mut dyn FnMut(Transfer) -> Result<()>) -> Result<()> {
        self.each_shard(missing.to_vec(), |missing| missing.id.as_str(), |peer, missing| peer.read(&missing, take))
    }

    fn write(&self, transfers: Vec<Transfer>, outcome: &mut WriteOutcome) -> Result<()> {
        self.each_shard(transfers, |transfer| transfer.id.as_str(), |peer, transfers| peer.write(transfers, outcome))
    }

    fn wait(&self, since: &Value, timeout: Duration) -> Result<()> {
        let (since, deadline) = (token_of(since)?, Instant::now() + timeout);
        loop {
            let has_changed = self.changes().after(since).limit(1).run()?.next().transpose()?.is_some();
            let left = deadline.saturating_duration_since(Instant::now());
            if has_changed || left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(WAIT.min(left));
        }
    }
}

impl VirtualDatabase {
    /// Runs an operation for the items of each shard. No document moves in between.
    fn each_shard<I>(
        &self,
        items: Vec<I>,
        id: impl Fn(&I) -> &str,
        mut operation: impl FnMut(&dyn Peer, Vec<I>) -> Result<()>,
    ) -> Result<()> {
        let gate = self.gate.read();
        let mut parts: Vec<Vec<I>> = gate.members.iter().map(|_| Vec::new()).collect();
        for item in items {
            let shard = gate.placement.shard_of(id(&item));
            parts[shard].push(item);
        }
        for (shard, part) in gate.members.iter().zip(parts).filter(|(_, part)| !part.is_empty()) {
            shard.peer().and_then(|peer| operation(&*peer, part)).map_err(|error| shard.error(error))?;
        }
        Ok(())
    }
}

/// The token of a position.
fn token_of(position: &Value) -> Result<&str> {
    position.as_str().ok_or_else(|| Error::invalid("the position is not one of a virtual database"))
}
