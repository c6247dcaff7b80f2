//! Moving documents between tiers, so that a crash at any step leaves each document in one tier.
//!
//! A batch of documents moves in these steps:
//!
//! 1. The ids are stored in the hot tier, and flushed: their copies in the target do not count.
//! 2. The documents are copied with their histories and attachments, as replication does.
//! 3. The target is flushed, and each copy is compared with its source.
//! 4. **In one transaction of the source, the documents get markers.** From then on, the copies count.
//! 5. Copies of documents that changed meanwhile are deleted; the target is flushed; the ids of step 1 are removed.
//!
//! After a crash before step 4, the copies do not count; after it, they do. The next run completes what is left.
//!
//! A document returns by one write to the hot tier, whose revision succeeds the marker: from then on its copy does not
//! count, and the next run deletes it.

use std::collections::{HashMap, HashSet};
use std::time::{Instant, SystemTime};

use stemmadb::replication::{DocumentLeaves, MissingRevisions, Peer, Transfer, WriteOutcome};
use stemmadb::{Branch, Database, DocumentId, Edit, Error, Object, Result, Revision, Selector, Sequence, Value};
use stemmadb_client::AnyDatabase;

use super::candidates::Chooser;
use super::gate::{HOT, is_moved, only_revision, winner};
use super::marker::{FIELD, is_marker, marker_of, returned};
use super::{MOVING, NAMESPACE, SETTLED, TIER_RECORD, Tier, TieredDatabase};

/// The most documents of a batch.
const BATCH: usize = 256;
/// The most bytes of documents, without attachments, that are written to a tier at once.
const PORTION_BYTES: usize = 4 << 20;
/// The progress of the hot tier's changes, in sequences, after which it is stored even if there was nothing to delete.
const SETTLED_LAG: u64 = 10_000;

/// What a migration did. Returned by [`TieredDatabase::migrate`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MigrationReport {
    /// Documents that moved to a lower tier; a document that moved twice counts twice.
    pub moved_count: u64,
    /// Copies that were deleted because their documents returned or changed.
    pub deleted_count: u64,
    /// Documents that the policies name, but which could not be moved: they have conflicts, or changed meanwhile.
    pub refused_count: u64,
}

/// What a tier holds. Returned by [`TieredDatabase::status`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TierStatus {
    /// The tier's name.
    pub name: String,
    /// Documents that count as those of the tier.
    pub document_count: u64,
    /// Stubs of documents of lower tiers.
    pub stub_count: u64,
    /// The bytes of its documents in its log; `None` for a tier on a server.
    pub byte_count: Option<u64>,
}

/// What migrations remember.
pub(super) struct Progress {
    /// For each lower tier, how much of the changes of the one above it was searched for large documents.
    sized: Vec<Sequence>,
}

impl Progress {
    pub(super) fn new(tier_count: usize) -> Self {
        Progress { sized: vec![Sequence::ZERO; tier_count] }
    }
}

/// The documents of a batch, as the hot tier stores them.
struct Batch {
    /// The position of the target among the members.
    to: usize,
    ids: Vec<DocumentId>,
}

impl Batch {
    fn to_value(&self) -> Value {
        let ids: Value = self.ids.iter().map(DocumentId::as_str).collect();
        Value::Object([("to", Value::from(self.to as u64)), ("ids", ids)].into_iter().collect())
    }

    fn parse(value: &Value) -> Option<Result<Self>> {
        let object = value.as_object()?;
        let to = usize::try_from(object.get("to")?.as_u64()?).ok()?;
        let ids = object.get("ids")?.as_array()?.iter().filter_map(Value::as_str).map(DocumentId::new);
        Some(ids.collect::<Result<_>>().map(|ids| Batch { to, ids }))
    }
}

impl TieredDatabase {
    /// Moves the documents that the policies name to lower tiers, and completes a move that was interrupted.
    ///
    /// # Errors
    /// Those of reading and writing the tiers, with their names. What was moved before stays moved.
    pub fn migrate(&self) -> Result<MigrationReport> {
        self.migrate_at(SystemTime::now(), &|| false)
    }

    /// As [`TieredDatabase::migrate`], with another time in place of the current one; it ends early, after a batch,
    /// once `is_stopped` says so.
    ///
    /// # Errors
    /// Those of [`TieredDatabase::migrate`].
    pub fn migrate_at(&self, now: SystemTime, is_stopped: &dyn Fn() -> bool) -> Result<MigrationReport> {
        let mut progress = self.inner.migration.lock();
        let mut report = MigrationReport::default();
        self.inner.access.save(&self.inner.hot.keys(NAMESPACE)?, now)?;
        self.settle(&mut report)?;
        for to in HOT + 1..self.federation.members.len() {
            self.fill_tier(to, now, is_stopped, &mut progress, &mut report)?;
        }
        Ok(report)
    }

    /// What each tier holds, from the hot one on.
    ///
    /// # Errors
    /// Those of reading the tiers, with their names.
    pub fn status(&self) -> Result<Vec<TierStatus>> {
        let hidden = self.inner.gate.state.lock().hidden.clone();
        let mut tiers = Vec::new();
        for (at, member) in self.federation.members.iter().enumerate() {
            let all = member.database.find(Selector::everything()).count().map_err(|error| member.error(error))?;
            let stub_count = match at {
                HOT => self.inner.hot.find(stemmadb::field(FIELD).exists()).count()?,
                _ => 0,
            };
            let byte_count = match &member.database {
                AnyDatabase::Embedded(database) => Some(database.info()?.live_bytes),
                AnyDatabase::Remote(_) => None,
            };
            let document_count = all.saturating_sub(stub_count + hidden[at].len() as u64);
            tiers.push(TierStatus { name: member.name.clone(), document_count, stub_count, byte_count });
        }
        Ok(tiers)
    }

    fn lower(&self, to: usize) -> Result<&Tier> {
        self.inner.tiers.get(to.wrapping_sub(1)).ok_or_else(|| Error::invalid("a move names a tier that is missing"))
    }

    /// The database of a tier from which documents move.
    fn source(&self, at: usize) -> Result<&Database> {
        match &self.federation.members[at].database {
            AnyDatabase::Embedded(database) => Ok(database),
            AnyDatabase::Remote(_) => Err(Error::invalid("documents do not move from a tier on a server")),
        }
    }

    fn in_tier<T>(&self, at: usize, result: Result<T>) -> Result<T> {
        result.map_err(|error| self.federation.members[at].error(error))
    }

    /// Marks a new lower tier as such, and hides the copies of a move that was interrupted.
    pub(super) fn recover(&self) -> Result<()> {
        for at in HOT + 1..self.federation.members.len() {
            let recorded = self.in_tier(at, self.recognize(at))?;
            if let AnyDatabase::Embedded(database) = &self.federation.members[at].database {
                // Documents expire wherever they are.
                let rules = self.inner.hot.expiration().rules();
                let added = rules.into_iter().try_for_each(|rule| database.expiration().add_rule(rule));
                self.in_tier(at, added)?;
            }
            if recorded > self.inner.hot.sequence() {
                self.in_tier(at, self.compare_all(at))?;
            }
        }
        let Some(batch) = self.pending_batch()? else { return Ok(()) };
        let (source, hot) = (self.source(batch.to - 1)?.snapshot()?, self.inner.hot.snapshot()?);
        let mut copies = Vec::new();
        for id in batch.ids {
            let is_in_source = only_revision(&source.revisions(id.as_str())?).is_some();
            if is_in_source || !is_moved(&hot.revisions(id.as_str())?) {
                copies.push(id);
            }
        }
        self.inner.gate.state.lock().hide(batch.to, copies);
        Ok(())
    }

    /// Checks that a database is this tier, or empty. Returns the newest sequence of the hot tier that it has seen.
    fn recognize(&self, at: usize) -> Result<Sequence> {
        let tier = self.lower(at)?;
        if let Some(record) = tier.peer.get_checkpoint(TIER_RECORD)? {
            let field = |name| record.as_object().and_then(|record| record.get(name));
            return match field("tier").and_then(Value::as_str) {
                Some(name) if name == tier.name => {
                    Ok(Sequence::new(field("sequence").and_then(Value::as_u64).unwrap_or(0)))
                }
                other => Err(Error::conflict(format!("the database is the tier `{}`", other.unwrap_or_default()))),
            };
        }
        let is_empty = tier.database.changes(Sequence::ZERO, false).map(|changes| changes.is_empty())?;
        if !is_empty {
            return Err(Error::invalid("the database has documents").with_hint("a tier begins empty"));
        }
        self.record(tier, Sequence::ZERO)?;
        Ok(Sequence::ZERO)
    }

    /// Flushes a tier, and stores the sequence of the hot tier in it.
    fn record(&self, tier: &Tier, sequence: Sequence) -> Result<()> {
        let record = [("tier", Value::from(tier.name.as_str())), ("sequence", Value::from(sequence.get()))];
        tier.peer.put_checkpoint(TIER_RECORD, &Value::Object(record.into_iter().collect()))
    }

    /// Compares a tier with the hot tier, which is older than the tier knows it: it was restored from a backup. Copies
    /// of documents that the hot tier has do not count; documents that it does not know get markers.
    fn compare_all(&self, at: usize) -> Result<()> {
        let (hot, tier) = (self.inner.hot.snapshot()?, self.lower(at)?);
        let (mut copies, mut markers) = (Vec::new(), Vec::new());
        for change in tier.database.changes(Sequence::ZERO, false)?.into_iter().filter(|change| !change.deleted) {
            let branches = hot.revisions(change.id.as_str())?;
            match winner(&branches) {
                None => markers.push(marker(change.id, &[change.revision], &tier.name)?),
                Some((revision, _)) if is_marker(&revision) => {}
                Some(_) => copies.push(change.id),
            }
        }
        self.inner.hot.bulk(markers)?.into_iter().try_for_each(|outcome| outcome.map(drop))?;
        self.inner.gate.state.lock().hide(at, copies);
        Ok(())
    }

    fn pending_batch(&self) -> Result<Option<Batch>> {
        let stored: Option<Value> = self.inner.hot.keys(NAMESPACE)?.get(MOVING)?;
        let batch = stored.as_ref().and_then(Batch::parse).transpose()?;
        Ok(batch.filter(|batch| (HOT + 1..self.federation.members.len()).contains(&batch.to)))
    }

    /// Completes an interrupted batch, and deletes the copies that do not count.
    fn settle(&self, report: &mut MigrationReport) -> Result<()> {
        if let Some(batch) = self.pending_batch()? {
            self.finish(&batch, report)?;
        }
        let (hidden, followed) = {
            let hot = self.inner.hot.snapshot()?;
            let mut state = self.inner.gate.state.lock();
            state.follow(&hot)?;
            (state.hidden.clone(), state.followed)
        };
        let has_copies = hidden.iter().any(|ids| !ids.is_empty());
        if has_copies {
            // Nothing is deleted before what replaces it is durable.
            self.inner.hot.flush()?;
        }
        for (at, ids) in hidden.iter().enumerate().filter(|(_, ids)| !ids.is_empty()) {
            let ids: Vec<DocumentId> = ids.iter().cloned().collect();
            for some in ids.chunks(BATCH) {
                report.deleted_count += self.in_tier(at, self.delete_copies(at, some))?;
            }
            self.in_tier(at, self.record(self.lower(at)?, followed))?;
            self.step("copies deleted");
            self.inner.gate.state.lock().unhide(at, &ids);
        }
        let keys = self.inner.hot.keys(NAMESPACE)?;
        let settled = keys.get::<u64>(SETTLED)?.unwrap_or(0);
        if has_copies || followed.get() > settled + SETTLED_LAG {
            keys.set(SETTLED, &followed.get())?;
        }
        Ok(())
    }

    /// Deletes documents of a lower tier. They get the markers of their revisions there, as in the hot tier.
    fn delete_copies(&self, at: usize, ids: &[DocumentId]) -> Result<u64> {
        let tier = self.lower(at)?;
        let copies = tier.database.get_many(ids.iter().map(DocumentId::as_str))?;
        let mut transfers = Vec::new();
        for copy in copies.into_iter().flatten() {
            let revisions = vec![marker_of(copy.revision())?, *copy.revision()];
            let (id, body) = (copy.id().clone(), Value::Object(Object::new()));
            transfers.push(Transfer { id, revisions, deleted: true, body, files: Vec::new(), byte_count: 100 });
        }
        let count = transfers.len() as u64;
        write(&*tier.peer, transfers)?;
        Ok(count)
    }

    /// Moves what the policy of a tier names to it.
    fn fill_tier(
        &self,
        to: usize,
        now: SystemTime,
        is_stopped: &dyn Fn() -> bool,
        progress: &mut Progress,
        report: &mut MigrationReport,
    ) -> Result<()> {
        let mut refused = HashSet::new();
        loop {
            let chosen = Chooser {
                source: self.source(to - 1)?,
                policy: &self.lower(to)?.policy,
                access: &self.inner.access,
                now,
                refused: &refused,
                sized: &mut progress.sized[to - 1],
            }
            .choose();
            let chosen = self.in_tier(to - 1, chosen)?;
            for ids in chosen.chunks(BATCH) {
                if is_stopped() {
                    return Ok(());
                }
                let moved = self.move_batch(to, ids, report)?;
                refused.extend(ids.iter().filter(|id| !moved.contains(*id)).cloned());
            }
            if chosen.is_empty() {
                report.refused_count += refused.len() as u64;
                return Ok(());
            }
        }
    }

    /// Moves some documents to a tier. Returns those that moved.
    fn move_batch(&self, to: usize, ids: &[DocumentId], report: &mut MigrationReport) -> Result<HashSet<DocumentId>> {
        let revisions = self.movable(to, ids)?;
        if revisions.is_empty() {
            return Ok(HashSet::new());
        }
        let hot = &self.inner.hot;
        let batch = Batch { to, ids: revisions.keys().cloned().collect() };
        hot.keys(NAMESPACE)?.set(MOVING, &batch.to_value())?;
        hot.flush()?;
        self.inner.gate.state.lock().hide(to, batch.ids.iter().cloned());
        self.step("ids stored");
        self.copy(to, &revisions)?;
        self.step("copied");
        self.finish(&batch, report)
    }

    /// The revisions of the documents that can be moved: those without conflicts.
    fn movable(&self, to: usize, ids: &[DocumentId]) -> Result<HashMap<DocumentId, Revision>> {
        let (source, hot) = (self.source(to - 1)?.snapshot()?, self.inner.hot.snapshot()?);
        let hidden = {
            let mut state = self.inner.gate.state.lock();
            state.follow(&hot)?;
            state.hidden.clone()
        };
        let mut revisions = HashMap::new();
        // Of a document that returned, the old copy is deleted before it can move again.
        let held = self.inner.held.lock().clone();
        let may_move = |id: &&DocumentId| {
            let is_held = held.get(*id).is_some_and(|end| *end > Instant::now());
            !is_held && !hidden.iter().any(|hidden| hidden.contains(*id))
        };
        for id in ids.iter().filter(may_move) {
            let is_there = to - 1 == HOT || is_moved(&hot.revisions(id.as_str())?);
            if let Some(revision) = only_revision(&source.revisions(id.as_str())?).filter(|_| is_there) {
                revisions.insert(id.clone(), revision);
            }
        }
        Ok(revisions)
    }

    /// Copies documents that the target lacks, with their histories and attachments.
    fn copy(&self, to: usize, revisions: &HashMap<DocumentId, Revision>) -> Result<()> {
        let (source, tier) = (self.source(to - 1)?, self.lower(to)?);
        let leaf =
            |(id, revision): (&DocumentId, &Revision)| DocumentLeaves { id: id.clone(), revisions: vec![*revision] };
        let leaves: Vec<DocumentLeaves> = revisions.iter().map(leaf).collect();
        let missing = self.in_tier(to, tier.peer.missing_revisions(&leaves))?;
        let (mut portion, mut bytes) = (Vec::new(), 0);
        let copied = Peer::read(source, &missing, &mut |transfer| {
            bytes += transfer.byte_count;
            portion.push(transfer);
            if bytes < PORTION_BYTES {
                return Ok(());
            }
            bytes = 0;
            self.step("partly copied");
            write(&*tier.peer, std::mem::take(&mut portion))
        });
        self.in_tier(to, copied.and_then(|()| write(&*tier.peer, portion)))
    }

    /// Marks the documents of a batch whose copies are durable and equal, and deletes the other copies.
    fn finish(&self, batch: &Batch, report: &mut MigrationReport) -> Result<HashSet<DocumentId>> {
        let (to, tier) = (batch.to, self.lower(batch.to)?);
        self.in_tier(to, self.record(tier, self.inner.hot.sequence()))?;
        self.step("flushed");
        let copies = tier.database.get_many(batch.ids.iter().map(DocumentId::as_str));
        let copies = self.in_tier(to, copies)?.into_iter().flatten();
        let copies: HashMap<DocumentId, Revision> = copies.map(|copy| (copy.id().clone(), *copy.revision())).collect();
        let moved = self.mark(to, &copies)?;
        self.step("marked");
        report.moved_count += moved.len() as u64;
        self.in_tier(to - 1, self.source(to - 1)?.flush())?;
        self.inner.hot.flush()?;

        let (source, hot) = (self.source(to - 1)?.snapshot()?, self.inner.hot.snapshot()?);
        let (mut obsolete, mut unmovable) = (Vec::new(), Vec::new());
        for id in batch.ids.iter().filter(|id| !moved.contains(*id)) {
            let in_source = only_revision(&source.revisions(id.as_str())?);
            if in_source.is_some() || !is_moved(&hot.revisions(id.as_str())?) {
                obsolete.push(id.clone());
            }
            unmovable.extend(in_source.filter(|_| !copies.contains_key(id)).map(|revision| (id.clone(), revision)));
        }
        report.deleted_count += self.in_tier(to, self.delete_copies(to, &obsolete))?;
        self.in_tier(to, self.record(tier, hot.sequence()))?;
        self.renew(to, unmovable)?;
        self.step("batch cleaned");
        self.inner.gate.state.lock().unhide(to, &obsolete);
        self.inner.hot.keys(NAMESPACE)?.remove(MOVING)?;
        Ok(moved)
    }

    /// Replaces documents of the source by markers, in one transaction, if they still have the revisions of the copies.
    fn mark(&self, to: usize, copies: &HashMap<DocumentId, Revision>) -> Result<HashSet<DocumentId>> {
        let (source, tier) = (self.source(to - 1)?, self.lower(to)?);
        let _no_writes = self.inner.gate.moves.write();
        let mut state = self.inner.gate.state.lock();
        let hot = self.inner.hot.snapshot()?;
        state.follow(&hot)?;
        let snapshot = source.snapshot()?;
        let (mut ids, mut edits) = (Vec::new(), Vec::new());
        let (held, now) = (self.inner.held.lock(), Instant::now());
        for (id, copied) in copies.iter().filter(|(id, _)| held.get(*id).is_none_or(|end| *end <= now)) {
            let branches = snapshot.revisions(id.as_str())?;
            let is_there = to - 1 == HOT || is_moved(&hot.revisions(id.as_str())?);
            if !is_there || only_revision(&branches) != Some(*copied) {
                continue;
            }
            let path = branches.iter().map(|branch: &Branch| branch.path_from(copied)).find(|path| !path.is_empty());
            let mut edit = marker(id.clone(), path.unwrap_or(&[*copied]), &tier.name)?;
            if let (HOT, Some(fields), Edit::Foreign { deleted, body: Value::Object(stub), .. }) =
                (to - 1, &tier.policy.stub, &mut edit)
            {
                *deleted = false;
                state.has_stubs = true;
                for name in fields {
                    let kept = snapshot.get(id.as_str())?.map(|document| document.get(name)).transpose()?.flatten();
                    kept.into_iter().for_each(|value| drop(stub.insert(name, value)));
                }
            }
            ids.push(id.clone());
            edits.push(edit);
        }
        let outcomes = self.in_tier(to - 1, source.bulk(edits))?;
        let mut moved = HashSet::new();
        for (id, outcome) in ids.into_iter().zip(outcomes) {
            self.in_tier(to - 1, outcome)?;
            moved.insert(id);
        }
        // A document that was written directly at the same time did not move: following finds it.
        state.unhide(to, &moved);
        state.follow(&self.inner.hot.snapshot()?)?;
        Ok(moved)
    }

    /// Gives documents a new revision whose copies were deleted although they did not change: a tier does not take a
    /// revision twice. The next run moves them.
    fn renew(&self, to: usize, documents: Vec<(DocumentId, Revision)>) -> Result<()> {
        let source = self.source(to - 1)?;
        for (id, revision) in documents {
            if source.get(id.as_str())?.is_none() {
                // It expired.
                continue;
            }
            let leaves = DocumentLeaves { id: id.clone(), revisions: vec![revision] };
            if self.in_tier(to, self.lower(to)?.peer.missing_revisions(&[leaves]))?.is_empty() {
                let _no_moves = self.inner.gate.moves.read();
                self.in_tier(to - 1, copy_returned(source, source, &id, revision))?;
            }
        }
        Ok(())
    }

    /// Brings a document back to the hot tier, if it is in another one.
    pub(super) fn return_document(&self, id: &DocumentId) -> Result<bool> {
        let hot = &self.inner.hot;
        if !is_moved(&hot.snapshot()?.revisions(id.as_str())?) {
            return Ok(false);
        }
        for (at, tier) in self.inner.tiers.iter().enumerate() {
            let found = self.in_tier(at + 1, tier.database.get(id.as_str()))?;
            if let Some(document) = found {
                self.in_tier(at + 1, copy_returned(&*tier.peer, hot, id, *document.revision()))?;
                self.step("returned");
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// The edit that replaces a document by a marker. `path` is its revision and the ancestors.
fn marker(id: DocumentId, path: &[Revision], tier: &str) -> Result<Edit> {
    let newest = path.first().ok_or_else(|| Error::invalid("a document without revisions can't be moved"))?;
    let revisions = std::iter::once(marker_of(newest)?).chain(path.iter().copied()).collect();
    let body = Value::Object([(FIELD, Value::from(tier))].into_iter().collect());
    Ok(Edit::Foreign { id, revisions, deleted: true, body, files: Vec::new() })
}

/// Copies a revision of a document as the one with which it returns.
fn copy_returned(from: &dyn Peer, to: &dyn Peer, id: &DocumentId, revision: Revision) -> Result<()> {
    let missing = MissingRevisions { id: id.clone(), revisions: vec![revision], possible_ancestors: Vec::new() };
    let mut transfers = Vec::new();
    from.read(&[missing], &mut |mut transfer| {
        transfer.revisions.splice(0..0, [returned(&revision)?, marker_of(&revision)?]);
        transfers.push(transfer);
        Ok(())
    })?;
    write(to, transfers)
}

/// Writes revisions, all of which must be accepted.
fn write(peer: &dyn Peer, transfers: Vec<Transfer>) -> Result<()> {
    if transfers.is_empty() {
        return Ok(());
    }
    let mut outcome = WriteOutcome::default();
    peer.write(transfers, &mut outcome)?;
    outcome.refusals.into_iter().next().map_or(Ok(()), Err)
}
