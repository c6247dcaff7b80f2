//! Revisions that were replaced: their records stay in the log until compaction removes them.
//!
//! The tree knows only the records of leaves. Each record names the location of its *predecessor*, the record of the
//! leaf that it replaced, so a branch is read backwards from its leaf, one record for each step.
//!
//! Invariant: a predecessor precedes its successor in the log, so a walk ends. A location may name a segment that
//! compaction removed: the walk then ends there.

use crate::document::Document;
use crate::index::DocumentNumber;
use crate::layout::record::{Origin, Record, RevisionRecord};
use crate::log::LogPosition;
use crate::memtable::{DocumentState, RecordLocation, StoredRevision};
use crate::read::snapshot::Snapshot;
use crate::revision::{DocumentId, Leaf, Revision};
use crate::{Error, Result};

/// A stored revision of a document.
pub(crate) struct StoredPast {
    pub(crate) document: Document,
    /// When it was first written. Its time is 0 if the record does not say: then its frame does.
    pub(crate) origin: Origin,
    /// Who wrote it, if that was recorded.
    pub(crate) author: Option<String>,
    pub(crate) location: RecordLocation,
    /// Whether it replaced a revision that is not stored any more.
    pub(crate) lacks_predecessor: bool,
    is_relocated: bool,
}

/// Which records a walk reads.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reach {
    /// Those that no compaction removed or was asked to remove.
    Uncompacted,
    /// All that are stored, also as history.
    Everything,
}

/// A walk over the stored revisions of one branch, from a leaf on, newest first.
struct Lineage<'s> {
    snapshot: &'s Snapshot,
    id: &'s DocumentId,
    number: DocumentNumber,
    next: Option<RecordLocation>,
    reach: Reach,
}

impl<'s> Lineage<'s> {
    fn from(snapshot: &'s Snapshot, state: &'s DocumentState, leaf: &Leaf<StoredRevision>, reach: Reach) -> Self {
        let StoredRevision { position, length, .. } = leaf.payload;
        // A leaf without a record is part of a transaction that is not committed yet.
        let next = (length > 0).then_some(RecordLocation { position, length });
        Lineage { snapshot, id: &state.id, number: state.number, next, reach }
    }

    /// The revisions before `leaf` that were not compacted. Reads the record of the leaf.
    fn before(snapshot: &'s Snapshot, state: &'s DocumentState, leaf: &Leaf<StoredRevision>) -> Result<Self> {
        let mut lineage = Lineage::from(snapshot, state, leaf, Reach::Uncompacted);
        lineage.next()?;
        Ok(lineage)
    }

    /// The next older revision; `None` if it is not stored.
    fn next(&mut self) -> Result<Option<StoredPast>> {
        let Some(location) = self.next.take() else { return Ok(None) };
        let RecordLocation { position, length } = location;
        let bytes = self.snapshot.read_bytes(position, length)?;
        let (record, _) = self.snapshot.parts.record(&bytes, position)?;
        let Record::Revision(record) = record else { return Err(self.misplaced(position)) };
        let RevisionRecord { number, id, .. } = &record;
        if *number != self.number || *id != self.id.as_str() {
            return Err(self.misplaced(position));
        }
        self.next = match record.predecessor_of(position).filter(|location| location.position < position) {
            Some(location) if self.snapshot.has_superseded_record(location.position, self.reach)? => Some(location),
            _ => None,
        };
        let lacks_predecessor = self.next.is_none() && record.predecessor_of(position).is_some();
        let (revision, deleted, origin) = (record.path[0], record.deleted, record.origin(0));
        let (is_relocated, author) = (record.relocated, record.author.map(str::to_owned));
        let body = self.snapshot.parts.body(&bytes, &record.body, position)?;
        let shapes = self.snapshot.parts.shapes.clone();
        let document = Document::new(self.id.clone(), revision, origin.sequence, deleted, body, shapes);
        Ok(Some(StoredPast { document, origin, author, location, lacks_predecessor, is_relocated }))
    }

    fn misplaced(&self, position: LogPosition) -> Error {
        self.snapshot.misplaced(position, &format!("a revision of document `{}`", self.id))
    }
}

impl StoredPast {
    /// When the revision was first written, in microseconds since 1970; `None` if that was not recorded.
    pub(crate) fn time_us(&self, snapshot: &Snapshot) -> Result<Option<u64>> {
        let time_us = match self.is_relocated {
            true => self.origin.time_us,
            false => snapshot.segments.time_at(self.location.position)?,
        };
        Ok((time_us > 0).then_some(time_us))
    }
}

impl Snapshot {
    /// A leaf of `state` with its own sequence; that of the document is higher if another leaf was written later.
    pub(crate) fn leaf_with_sequence(
        &self,
        state: &DocumentState,
        leaf: &Leaf<StoredRevision>,
    ) -> Result<Option<Document>> {
        Ok(Lineage::from(self, state, leaf, Reach::Uncompacted).next()?.map(|past| past.document))
    }

    /// The ancestors of a leaf of the document `id` whose bodies are still stored, newest first, each with whether it
    /// is a deletion. Empty if `leaf` is not a leaf.
    ///
    /// The bodies of replaced revisions are stored until compaction removes them, which happens in the background, or
    /// by [`Maintenance::compact`](crate::handles::Maintenance::compact). Costs one read of the log for each.
    ///
    /// # Errors
    /// `Corrupt` if the stored bytes are damaged.
    ///
    /// ```
    /// # fn main() -> stemmadb::Result<()> {
    /// # let db = stemmadb::Database::in_memory();
    /// let first = db.insert("solaris", &serde_json::json!({"year": 1960}))?;
    /// let second = db.replace("solaris", &first, &serde_json::json!({"year": 1961}))?;
    /// let snapshot = db.snapshot()?;
    /// assert_eq!(snapshot.stored_ancestors("solaris", &second)?, [(first, false)]);
    /// assert_eq!(snapshot.get_revision("solaris", &first)?.unwrap().to_json()?, r#"{"year":1960}"#);
    /// # Ok(())
    /// # }
    /// ```
    pub fn stored_ancestors(&self, id: &str, leaf: &Revision) -> Result<Vec<(Revision, bool)>> {
        let Some(state) = self.state_by_id(id)? else { return Ok(Vec::new()) };
        let Some(leaf) = state.tree.leaf(leaf).cloned() else { return Ok(Vec::new()) };
        let known = state.tree.ancestry(&leaf.revision);
        let mut lineage = Lineage::before(self, &state, &leaf)?;
        let mut found = Vec::new();
        while let Some(StoredPast { document, .. }) = lineage.next()? {
            if known.contains(document.revision()) && self.has_contents(&document)? {
                found.push((*document.revision(), document.is_deleted()));
            }
        }
        Ok(found)
    }

    /// A revision that is not a leaf, if its record and the contents of its attachments are stored.
    pub(super) fn superseded(&self, state: &DocumentState, revision: &Revision) -> Result<Option<Document>> {
        for leaf in state.tree.leaves() {
            if !state.tree.ancestry(&leaf.revision).contains(revision) {
                continue;
            }
            let mut lineage = Lineage::before(self, state, leaf)?;
            while let Some(StoredPast { document, .. }) = lineage.next()? {
                if document.revision() == revision {
                    return Ok(if self.has_contents(&document)? { Some(document) } else { None });
                }
                if document.revision().generation() <= revision.generation() {
                    break;
                }
            }
        }
        Ok(None)
    }

    /// Whether the contents of all attachments are stored. Those that no leaf refers to are swept.
    fn has_contents(&self, document: &Document) -> Result<bool> {
        for file in document.attachments()? {
            if self.pin_content(&file)?.is_none() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The stored revisions of the branch that ends with `leaf`, the leaf first.
    pub(crate) fn stored_revisions<'s>(
        &'s self,
        state: &'s DocumentState,
        leaf: &Leaf<StoredRevision>,
    ) -> impl Iterator<Item = Result<StoredPast>> + 's {
        let mut lineage = Lineage::from(self, state, leaf, Reach::Everything);
        std::iter::from_fn(move || lineage.next().transpose())
    }

    /// Whether a superseded record at `position` may be read: neither its segment nor, unless the walk reads
    /// everything, logically the record itself was removed by a compaction.
    fn has_superseded_record(&self, position: LogPosition, reach: Reach) -> Result<bool> {
        let is_in_reach = reach == Reach::Everything || position >= self.parts.compacted_before();
        Ok(is_in_reach && self.segments.has_record(position)?)
    }
}
