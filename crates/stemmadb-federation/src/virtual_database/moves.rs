//! Moving buckets from one shard to another while clients read and write.
//!
//! A move has these steps, each of which can be interrupted by a crash and is then repeated:
//!
//! 1. The move is stored in the placement.
//! 2. The documents of the buckets are copied with their revisions, as replication does it, several times, until a pass
//!    copies little. Reads skip the copies.
//! 3. The fence: with all reads and writes held back, a last pass copies what is left, and the next placement is stored
//!    in one shard, which decides. From then on the target has the buckets, and reads skip the source's documents.
//! 4. The source's documents are deleted, after a check that the target has their revisions; or the source is no shard
//!    any more.
//! 5. The end of the move is stored.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use stemmadb::replication::{
    ChangesPage, DocumentLeaves, MissingRevisions, Peer, Replication, ReplicationScope, ReplicationStats, Transfer,
    WriteOutcome,
};
use stemmadb::{DocumentId, Edit, Error, ErrorKind, Result, Sequence, Value};
use stemmadb_client::AnyDatabase;

use super::holder::Holder;
use super::placement::{Grouping, Placement, PlannedMove, bucket_of};
use super::{VirtualDatabase, check_is_empty, ids_in, store};
use crate::member::{Member, OpenMember};

/// A pass that copies fewer revisions is followed by the fence.
const FENCE_BELOW: u64 = 100;
/// The most passes before the fence.
const PASSES_MAX: u32 = 20;
/// About how many documents are read for an estimate.
const SAMPLE_COUNT: usize = 200;
/// The documents that are removed from the source in one step. Writes to the source wait for its end.
const CLEAN_COUNT: usize = 50;

/// What a step of a move did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MoveStep {
    /// Copied so many revisions.
    Copied(u64),
    /// Gave the buckets to the target.
    Switched,
    /// Removed so many documents from the source.
    Cleaned(usize),
    /// The move is complete.
    Done,
}

/// The documents and bytes that a move has to copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MoveEstimate {
    /// The number of documents.
    pub documents: u64,
    /// Their size in bytes as JSON, estimated from a sample, without files.
    pub bytes: u64,
}

/// Shows the progress of a [`ShardMove`] to other threads, and stops it. Cloning is cheap; clones belong to the same
/// move.
///
/// ```
/// # use stemmadb::Database;
/// # use stemmadb_federation::{Grouping, VirtualDatabase};
/// # fn main() -> stemmadb::Result<()> {
/// let db = VirtualDatabase::create([("one", Database::in_memory())], Grouping::ById)?;
/// (0..100).try_for_each(|n| db.insert(&format!("d{n}"), &serde_json::json!({})).map(drop))?;
/// let moving = db.split("one", ("two", Database::in_memory()))?;
/// let control = moving.control();
/// moving.run()?;
/// assert!(control.copied_count() > 30);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct MoveControl {
    copied_count: Arc<AtomicU64>,
    is_stopped: Arc<AtomicBool>,
}

impl MoveControl {
    /// The number of revisions that were copied so far by this run of the move.
    pub fn copied_count(&self) -> u64 {
        self.copied_count.load(Ordering::Relaxed)
    }

    /// Lets the running step end soon, with an error of the kind `Stopped`, if it copies documents.
    pub fn stop(&self) {
        self.is_stopped.store(true, Ordering::Relaxed);
    }

    fn refuse_if_stopped(&self) -> Result<()> {
        match self.is_stopped.load(Ordering::Relaxed) {
            true => Err(Error::new(ErrorKind::Stopped, "the move was stopped")),
            false => Ok(()),
        }
    }
}

/// A move of buckets that is in progress. Dropping it interrupts the move; [`VirtualDatabase::pending_move`] continues.
///
/// ```
/// use stemmadb::{Database, Selector};
/// use stemmadb_federation::{Grouping, VirtualDatabase};
///
/// # fn main() -> stemmadb::Result<()> {
/// let db = VirtualDatabase::create([("one", Database::in_memory())], Grouping::ById)?;
/// for n in 0..100 {
///     db.insert(&format!("d{n}"), &serde_json::json!({"n": n}))?;
/// }
/// db.split("one", ("two", Database::in_memory()))?.run()?;
/// assert_eq!(db.shards(), [("one".to_owned(), 2_048), ("two".to_owned(), 2_048)]);
/// assert_eq!(db.find(Selector::everything()).count()?, 100);
/// # Ok(())
/// # }
/// ```
#[must_use = "a move does nothing until it is run"]
pub struct ShardMove {
    database: VirtualDatabase,
    planned: PlannedMove,
    grouping: Grouping,
    source: MovePart,
    target: MovePart,
    /// Whether the target had buckets before, so that reads have to skip the copies.
    is_target_read: bool,
    passes: u32,
    last_copied: u64,
    /// The documents of the source that move.
    ids: Mutex<HashSet<DocumentId>>,
    is_done: bool,
    control: MoveControl,
    _running: Running,
}

/// A shard that takes part in a move.
struct MovePart {
    database: AnyDatabase,
    peer: Arc<dyn Peer>,
}

impl MovePart {
    /// # Errors
    /// `Invalid` for a shard on a server that documents can't be copied from.
    fn of(member: &OpenMember) -> Result<Self> {
        Ok(MovePart { database: member.database.clone(), peer: member.peer()? })
    }
}

/// Only one move runs at a time.
struct Running(Arc<AtomicBool>);

impl Running {
    fn start(flag: &Arc<AtomicBool>) -> Result<Self> {
        match flag.swap(true, Ordering::AcqRel) {
            true => Err(Error::conflict("another move is in progress").with_hint("wait for its end")),
            false => Ok(Running(flag.clone())),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl VirtualDatabase {
    /// Adds an empty database as a shard without buckets.
    ///
    /// # Errors
    /// `Invalid` if it has documents, or its name is taken; `Conflict` if it is a shard.
    pub fn add_shard(&self, shard: impl Into<Member>) -> Result<()> {
        let member = shard.into().open(self.gate.read().members.len())?;
        check_is_empty(&member)?;
        let mut gate = self.gate.write();
        if gate.placement.shards.contains(&member.name) {
            return Err(Error::invalid(format!("a shard is named `{}` already", member.name)));
        }
        if gate.placement.planned.is_some() {
            return Err(pending());
        }
        let placement = gate.placement.next(|next| next.shards.push(member.name.clone()));
        let mut members = gate.members.to_vec();
        members.push(member);
        decide(gate.holder.as_ref(), &members, None, &placement)?;
        gate.replace(placement, members);
        Ok(())
    }

    /// Puts another database in the place of a shard, under a new name: a replica of it, for example because the
    /// shard's server does not answer. What the replica lacks is lost. A move that was interrupted goes on with the
    /// replica.
    ///
    /// ```
    /// # use stemmadb::Database;
    /// # use stemmadb_federation::{Grouping, VirtualDatabase};
    /// # fn main() -> stemmadb::Result<()> {
    /// let (shard, replica) = (Database::in_memory(), Database::in_memory());
    /// let db = VirtualDatabase::create([("one", shard.clone())], Grouping::ById)?;
    /// db.insert("solaris", &serde_json::json!({"year": 1961}))?;
    /// shard.replicate_to(&replica)?;
    /// db.replace_shard("one", ("two", replica))?;
    /// assert_eq!(db.shards(), [("two".to_owned(), 4_096)]);
    /// assert!(db.get("solaris")?.is_some());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `NotFound` if there is no such shard; `Invalid` if the new name is taken; `Conflict` if a move is running.
    pub fn replace_shard(&self, shard: &str, replica: impl Into<Member>) -> Result<()> {
        let _no_move = Running::start(&self.is_moving)?;
        let member = replica.into().open(self.gate.read().members.len())?;
        member.database.flush().map_err(|error| member.error(error))?;
        let mut gate = self.gate.write();
        let index = gate.placement.index(shard)?;
        if gate.placement.shards.contains(&member.name) {
            return Err(Error::invalid(format!("a shard is named `{}` already", member.name)));
        }
        let (name, sequence) = (member.name.clone(), sequence(&member)?);
        let placement = gate.placement.next(|next| {
            // The replica has the documents from now on: what it was before is not what the shard was.
            next.remember((shard, 0), (&name, sequence));
            next.rename_shard(index, &name);
        });
        let mut members = gate.members.to_vec();
        members[index] = member;
        decide(gate.holder.as_ref(), &members, Some(&name), &placement)?;
        // The documents that shards have without owning them stay the same.
        gate.place(placement);
        gate.members = members.into();
        Ok(())
    }

    /// Moves buckets, all of one shard, to another one. A shard on a server needs a peer: [`Member::copied_by`].
    ///
    /// # Errors
    /// `NotFound` if there is no such shard; `Invalid` if the buckets are of several shards, the target had some of
    /// them before, or one of the two is on a server without a peer; `Conflict` if another move is in progress or
    /// interrupted.
    pub fn move_buckets(&self, buckets: impl IntoIterator<Item = u16>, to: &str) -> Result<ShardMove> {
        let mut buckets: Vec<u16> = buckets.into_iter().collect();
        buckets.sort_unstable();
        buckets.dedup();
        let from = self.gate.read().placement.owner_of_all(&buckets)?.to_owned();
        self.plan(PlannedMove { from, to: to.to_owned(), buckets, is_switched: false, removes_source: false })
    }

    /// Moves half of the buckets of a shard to a new one.
    ///
    /// # Errors
    /// Those of [`VirtualDatabase::add_shard`] and [`VirtualDatabase::move_buckets`].
    pub fn split(&self, shard: &str, new: impl Into<Member>) -> Result<ShardMove> {
        let (index, count) = {
            let gate = self.gate.read();
            (gate.placement.index(shard)?, gate.members.len())
        };
        let new: Member = new.into();
        self.add_shard(new)?;
        let (mut buckets, to) = {
            let gate = self.gate.read();
            (gate.placement.buckets_of(index), gate.placement.shards[count].clone())
        };
        let upper = buckets.split_off(buckets.len() / 2);
        self.move_buckets(upper, &to)
    }

    /// Moves all buckets of a shard to another one. Then it is no shard any more; its documents stay in it.
    ///
    /// # Errors
    /// Those of [`VirtualDatabase::move_buckets`].
    pub fn merge(&self, shard: &str, into: &str) -> Result<ShardMove> {
        let buckets = {
            let placement = &self.gate.read().placement;
            placement.buckets_of(placement.index(shard)?)
        };
        let (from, to) = (shard.to_owned(), into.to_owned());
        self.plan(PlannedMove { from, to, buckets, is_switched: false, removes_source: true })
    }

    /// The move that was interrupted, if there is one.
    ///
    /// # Errors
    /// `Conflict` if it runs.
    pub fn pending_move(&self) -> Result<Option<ShardMove>> {
        let planned = self.gate.read().placement.planned.clone();
        planned.map(|planned| self.begin(planned)).transpose()
    }

    /// What a move of these buckets, all of one shard, has to copy. Reads the ids of the shard.
    ///
    /// ```
    /// # use stemmadb::Database;
    /// # use stemmadb_federation::{Grouping, VirtualDatabase};
    /// # fn main() -> stemmadb::Result<()> {
    /// let db = VirtualDatabase::create([Database::in_memory()], Grouping::ById)?;
    /// db.insert("solaris", &serde_json::json!({"year": 1961}))?;
    /// assert_eq!(db.estimate(0..4_096)?.documents, 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `Invalid` if the buckets are of several shards.
    pub fn estimate(&self, buckets: impl IntoIterator<Item = u16>) -> Result<MoveEstimate> {
        let mut buckets: Vec<u16> = buckets.into_iter().collect();
        buckets.sort_unstable();
        buckets.dedup();
        let (grouping, source) = {
            let gate = self.gate.read();
            let from = gate.placement.owner_of_all(&buckets)?;
            (gate.placement.grouping, gate.member(from)?.database.clone())
        };
        let ids = ids_in(&source, grouping, &buckets)?;
        let (mut sampled_count, mut sampled_bytes) = (0_u64, 0_u64);
        for id in ids.iter().step_by(ids.len() / SAMPLE_COUNT + 1) {
            if let Some(document) = source.get(id.as_str())? {
                sampled_count += 1;
                sampled_bytes += document.value()?.to_json().len() as u64;
            }
        }
        let documents = ids.len() as u64;
        Ok(MoveEstimate { documents, bytes: sampled_bytes * documents / sampled_count.max(1) })
    }

    /// Stores a move.
    fn plan(&self, planned: PlannedMove) -> Result<ShardMove> {
        {
            let mut gate = self.gate.write();
            if gate.placement.planned.is_some() {
                return Err(pending());
            }
            let (from, to) = (gate.member(&planned.from)?, gate.member(&planned.to)?);
            if planned.from == planned.to {
                return Err(Error::invalid("the buckets are in this shard already"));
            }
            MovePart::of(from)?;
            MovePart::of(to)?;
            let had = |(shard, buckets): &(String, Vec<u16>)| {
                *shard == planned.to && planned.buckets.iter().any(|bucket| buckets.binary_search(bucket).is_ok())
            };
            if gate.placement.former.iter().any(had) {
                return Err(Error::invalid(format!("buckets that left the shard `{}` can't come back", planned.to))
                    .with_hint("move them to a new shard"));
            }
            let placement = gate.placement.next(|next| next.planned = Some(planned.clone()));
            decide(gate.holder.as_ref(), &gate.members, None, &placement)?;
            gate.place(placement);
        }
        self.begin(planned)
    }

    fn begin(&self, planned: PlannedMove) -> Result<ShardMove> {
        let running = Running::start(&self.is_moving)?;
        let (grouping, source, target, is_target_read) = {
            let gate = self.gate.read();
            let (source, target) = (gate.member(&planned.from)?, gate.member(&planned.to)?);
            let is_read = gate.placement.is_owner(gate.placement.index(&planned.to)?);
            (gate.placement.grouping, MovePart::of(source)?, MovePart::of(target)?, is_read)
        };
        let ids = ids_in(&source.database, grouping, &planned.buckets)?;
        Ok(ShardMove {
            database: self.clone(),
            planned,
            grouping,
            source,
            target,
            is_target_read,
            passes: 0,
            last_copied: 0,
            ids: Mutex::new(ids.into_iter().collect()),
            is_done: false,
            control: MoveControl::default(),
            _running: running,
        })
    }

    /// Lets reads skip what an interrupted move left in shards that do not own it.
    pub(super) fn hide_copies(&self) -> Result<()> {
        let mut gate = self.gate.write();
        let Some(planned) = gate.placement.planned.clone() else { return Ok(()) };
        let shard = if planned.is_switched { &planned.from } else { &planned.to };
        let index = gate.placement.index(shard)?;
        let ids = ids_in(&gate.members[index].database, gate.placement.grouping, &planned.buckets)?;
        gate.hide(index, ids);
        Ok(())
    }
}

/// The newest sequence of a shard.
fn sequence(member: &OpenMember) -> Result<u64> {
    let sequence = match &member.database {
        AnyDatabase::Embedded(database) => Ok(database.sequence()),
        AnyDatabase::Remote(database) => database.sequence(),
    };
    sequence.map(Sequence::get).map_err(|error| member.error(error))
}

fn pending() -> Error {
    Error::conflict("a move is not complete").with_hint("continue it with pending_move")
}

/// Stores a placement. It counts once one database has it: the holder; or, without one, the shard `first`, or the first
/// embedded one. The others get it as far as they answer, because opening reads all of them.
fn decide(holder: Option<&Holder>, members: &[OpenMember], first: Option<&str>, placement: &Placement) -> Result<()> {
    if let Some(holder) = holder {
        holder.store(placement)?;
        members.iter().for_each(|member| drop(store(member, placement)));
        return Ok(());
    }
    let is_embedded = |member: &OpenMember| matches!(member.database, AnyDatabase::Embedded(_));
    let chosen = match first {
        Some(first) => members.iter().position(|member| member.name == first),
        None => members.iter().position(is_embedded),
    };
    let chosen = chosen.unwrap_or(0);
    store(&members[chosen], placement)?;
    // Whatever its durability is: documents are deleted because of it.
    members[chosen].database.flush().map_err(|error| members[chosen].error(error))?;
    for (at, member) in members.iter().enumerate() {
        if at != chosen {
            // It is stored again with the next change.
            store(member, placement).ok();
        }
    }
    Ok(())
}

impl ShardMove {
    /// The shard whose buckets move, and the one that gets them.
    pub fn shards(&self) -> (&str, &str) {
        (&self.planned.from, &self.planned.to)
    }

    /// Whether the target has the buckets already, and only the copies of the source are left.
    pub fn is_switched(&self) -> bool {
        self.planned.is_switched
    }

    /// The number of documents that move and are not removed from the source, as far as they are known.
    pub fn document_count(&self) -> u64 {
        self.ids.lock().len() as u64
    }

    /// Shows the progress to other threads, and stops the move.
    pub fn control(&self) -> MoveControl {
        self.control.clone()
    }

    /// Whether the next step holds back all reads and writes: it changes which shard has the buckets, or removes one.
    pub fn is_fence_next(&self) -> bool {
        match self.planned.is_switched {
            _ if self.is_done => false,
            false => self.is_ready(),
            true => self.planned.removes_source || self.ids.lock().is_empty(),
        }
    }

    fn is_ready(&self) -> bool {
        self.passes > 0 && self.last_copied < FENCE_BELOW || self.passes >= PASSES_MAX
    }

    /// Copies again before the fence, because others have written since.
    pub fn copy_again(&mut self) {
        self.last_copied = self.last_copied.max(FENCE_BELOW);
        self.passes = self.passes.min(PASSES_MAX - 1);
    }

    /// Takes a move back that has not given the buckets to the target: returns the move that deletes the copies in it.
    /// A target without other buckets is no shard any more afterwards; another one can't get these buckets again.
    ///
    /// ```
    /// # use stemmadb::Database;
    /// # use stemmadb_federation::{Grouping, VirtualDatabase};
    /// # fn main() -> stemmadb::Result<()> {
    /// let db = VirtualDatabase::create([("one", Database::in_memory())], Grouping::ById)?;
    /// db.insert("solaris", &serde_json::json!({"year": 1961}))?;
    /// let mut moving = db.split("one", ("two", Database::in_memory()))?;
    /// moving.step()?;
    /// moving.cancel()?.run()?;
    /// assert_eq!(db.shards(), [("one".to_owned(), 4_096)]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `Invalid` if the target has the buckets already; those of the shards.
    pub fn cancel(self) -> Result<ShardMove> {
        if self.planned.is_switched {
            return Err(Error::invalid(format!("the shard `{}` has the buckets already", self.planned.to))
                .with_hint("let the move end"));
        }
        let database = self.database.clone();
        let planned = PlannedMove {
            from: self.planned.to.clone(),
            to: self.planned.from.clone(),
            buckets: self.planned.buckets.clone(),
            is_switched: true,
            removes_source: !self.is_target_read,
        };
        {
            let mut gate = database.gate.write();
            let placement = gate.placement.next(|next| next.planned = Some(planned.clone()));
            decide(gate.holder.as_ref(), &gate.members, Some(&planned.to), &placement)?;
            gate.place(placement);
        }
        // The copies are hidden from reads already if the target is read.
        drop(self);
        database.begin(planned)
    }

    /// Runs all steps.
    ///
    /// # Errors
    /// Those of [`ShardMove::step`].
    pub fn run(mut self) -> Result<()> {
        while self.step()? != MoveStep::Done {}
        Ok(())
    }

    /// Runs the next step. All but the fence let clients read and write.
    ///
    /// # Errors
    /// Those of the shards; `Invalid` if the target refuses a document, for example because of a schema. The move can
    /// be continued.
    pub fn step(&mut self) -> Result<MoveStep> {
        if self.is_done {
            return Ok(MoveStep::Done);
        }
        if !self.planned.is_switched {
            return if self.is_ready() { self.switch() } else { self.copy() };
        }
        if self.planned.removes_source || self.ids.lock().is_empty() { self.finish() } else { self.clean() }
    }

    fn copy(&mut self) -> Result<MoveStep> {
        let copied = {
            let source = BucketSource { of: self, is_fenced: false };
            let replication = Replication::new(&source, &*self.target.peer);
            // The first pass compares everything, so that nothing depends on what an earlier run had achieved.
            let replication = if self.passes == 0 { replication.since(Value::from(0_u64)) } else { replication };
            self.checked(&replication.run()?)?
        };
        self.passes += 1;
        self.last_copied = copied;
        Ok(MoveStep::Copied(copied))
    }

    /// The number of copied revisions.
    fn checked(&self, stats: &ReplicationStats) -> Result<u64> {
        match stats.failed_count {
            0 => Ok(stats.written_count),
            count => Err(Error::invalid(format!("the shard `{}` refuses {count} documents", self.planned.to))
                .with_hint("give it the schemas and unique indexes of the shard that they come from")),
        }
    }

    /// The fence.
    fn switch(&mut self) -> Result<MoveStep> {
        let gate = self.database.gate.clone();
        let mut gate = gate.write();
        let copied = {
            let source = BucketSource { of: self, is_fenced: true };
            Replication::new(&source, &*self.target.peer).run()?
        };
        if let Err(error) = self.checked(&copied) {
            // The next pass compares everything again.
            self.passes = 0;
            return Err(error);
        }
        self.target.database.flush()?;
        let (from, to) = (gate.placement.index(&self.planned.from)?, gate.placement.index(&self.planned.to)?);
        let planned = PlannedMove { is_switched: true, ..self.planned.clone() };
        let (source_sequence, target_sequence) = (sequence(&gate.members[from])?, sequence(&gate.members[to])?);
        let placement = gate.placement.next(|next| {
            next.remember((&planned.from, source_sequence), (&planned.to, target_sequence));
            planned.buckets.iter().for_each(|bucket| next.owners[usize::from(*bucket)] = to as u16);
            next.planned = Some(planned.clone());
        });
        decide(gate.holder.as_ref(), &gate.members, Some(&planned.to), &placement)?;
        let members = gate.members.to_vec();
        gate.replace(placement, members);
        gate.hide(from, self.ids.lock().iter().cloned());
        self.planned = planned;
        Ok(MoveStep::Switched)
    }

    /// Deletes some of the source's documents.
    fn clean(&mut self) -> Result<MoveStep> {
        let some: Vec<DocumentId> = self.ids.lock().iter().take(CLEAN_COUNT).cloned().collect();
        let (mut leaves, mut edits) = (Vec::new(), Vec::new());
        let documents = self.source.database.get_many(some.iter().map(DocumentId::as_str))?;
        for (id, document) in some.iter().zip(documents) {
            match document {
                None => drop(self.ids.lock().remove(id)),
                Some(document) => {
                    let revision = *document.revision();
                    leaves.push(DocumentLeaves { id: id.clone(), revisions: vec![revision] });
                    edits.push(Edit::Delete { id: id.clone(), revision });
                }
            }
        }
        if let Some(missing) = self.target.peer.missing_revisions(&leaves)?.first() {
            return Err(Error::invalid(format!(
                "the shard `{}` lacks a revision of the document `{}`, which is therefore not deleted",
                self.planned.to, missing.id
            )));
        }
        let count = edits.len();
        for outcome in self.source.database.bulk(edits)? {
            // Of a document with conflicts, the next leaf is deleted by the next step.
            outcome?;
        }
        Ok(MoveStep::Cleaned(count))
    }

    fn finish(&mut self) -> Result<MoveStep> {
        let gate = self.database.gate.clone();
        let mut gate = gate.write();
        let from = gate.placement.index(&self.planned.from)?;
        let planned = &self.planned;
        let placement = gate.placement.next(|next| {
            next.planned = None;
            match planned.removes_source {
                true => next.remove_shard(from),
                false => next.former.push((planned.from.clone(), planned.buckets.clone())),
            }
        });
        let mut members = gate.members.to_vec();
        if planned.removes_source {
            members.remove(from);
        }
        decide(gate.holder.as_ref(), &members, Some(&planned.to), &placement)?;
        gate.replace(placement, members);
        self.is_done = true;
        Ok(MoveStep::Done)
    }
}

impl std::fmt::Debug for ShardMove {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ShardMove")
            .field("from", &self.planned.from)
            .field("to", &self.planned.to)
            .finish_non_exhaustive()
    }
}

/// The source of a move as a replication peer: only the documents of its buckets.
struct BucketSource<'a> {
    of: &'a ShardMove,
    /// Whether the caller holds the gate for writing, so that nobody reads.
    is_fenced: bool,
}

impl Peer for BucketSource<'_> {
    /// Each set of buckets has its own checkpoints.
    fn identity(&self) -> Result<String> {
        let bytes: Vec<u8> = self.of.planned.buckets.iter().flat_map(|bucket| bucket.to_le_bytes()).collect();
        Ok(format!("{} {:08x} {}", self.of.source.peer.identity()?, crc32c::crc32c(&bytes), bytes.len()))
    }

    fn get_checkpoint(&self, id: &str) -> Result<Option<Value>> {
        self.of.source.peer.get_checkpoint(id)
    }

    fn put_checkpoint(&self, id: &str, body: &Value) -> Result<()> {
        self.of.source.peer.put_checkpoint(id, body)
    }

    fn changes(&self, since: Option<&Value>, count: usize, scope: &ReplicationScope) -> Result<ChangesPage> {
        self.of.control.refuse_if_stopped()?;
        let mut page = self.of.source.peer.changes(since, count, scope)?;
        let buckets = &self.of.planned.buckets;
        page.leaves.retain(|leaves| buckets.binary_search(&bucket_of(self.of.grouping, leaves.id.as_str())).is_ok());
        self.of.ids.lock().extend(page.leaves.iter().map(|leaves| leaves.id.clone()));
        if self.of.is_target_read && !self.is_fenced && !page.leaves.is_empty() {
            // Before they are written: a read takes its snapshots first, and then looks at what it has to skip.
            let mut gate = self.of.database.gate.write();
            let target = gate.placement.index(&self.of.planned.to)?;
            gate.hide(target, page.leaves.iter().map(|leaves| leaves.id.clone()));
        }
        Ok(page)
    }

    fn missing_revisions(&self, leaves: &[DocumentLeaves]) -> Result<Vec<MissingRevisions>> {
        self.of.source.peer.missing_revisions(leaves)
    }

    fn read(&self, missing: &[MissingRevisions], take: &mut dyn FnMut(Transfer) -> Result<()>) -> Result<()> {
        self.of.control.refuse_if_stopped()?;
        self.of.source.peer.read(missing, &mut |transfer| {
            self.of.control.copied_count.fetch_add(1, Ordering::Relaxed);
            take(transfer)
        })
    }

    fn write(&self, transfers: Vec<Transfer>, outcome: &mut WriteOutcome) -> Result<()> {
        self.of.source.peer.write(transfers, outcome)
    }

    fn wait(&self, since: &Value, timeout: Duration) -> Result<()> {
        self.of.source.peer.wait(since, timeout)
    }
}
