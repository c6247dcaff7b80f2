//! Revisions that were replaced: their records stay in the log until compaction removes them.
//!
//! The tree knows only the records of leaves. Each record names the location of its *predecessor*, the record of the
//! leaf that it replaced, so a branch is read backwards from its leaf, one record for each step.
//!
//! Invariant: a predecessor precedes its successor in the log, so a walk ends. A location may name a segment that
//! compaction removed: the walk then ends there.

use crate::document::Document;
use crate::index::DocumentNumber;
use crate::layout::record::{Record, RevisionRecord};
use crate::log::LogPosition;
use crate::memtable::{DocumentState, RecordLocation, StoredRevision};
use crate::read::snapshot::Snapshot;
use crate::revision::{DocumentId, Leaf, Revision};
use crate::{Error, Result};

/// A walk over the stored revisions that precede a leaf, newest first.
struct Lineage<'s> {
    snapshot: &'s Snapshot,
    id: &'s DocumentId,
    number: DocumentNumber,
    next: Option<RecordLocation>,
}

impl<'s> Lineage<'s> {
    /// The revisions before `leaf`. Reads the record of the leaf.
    fn before(snapshot: &'s Snapshot, state: &'s DocumentState, leaf: &Leaf<StoredRevision>) -> Result<Self> {
        let StoredRevision { position, length, .. } = leaf.payload;
        // A leaf without a record is part of a transaction that is not committed yet.
        let next = (length > 0).then_some(RecordLocation { position, length });
        let mut lineage = Lineage { snapshot, id: &state.id, number: state.number, next };
        lineage.next()?;
        Ok(lineage)
    }

    /// The next older revision; `None` if it is not stored.
    fn next(&mut self) -> Result<Option<Document>> {
        let Some(RecordLocation { position, length }) = self.next.take() else { return Ok(None) };
        let bytes = self.snapshot.read_bytes(position, length)?;
        let (record, _) = Record::decode(&bytes).map_err(|error| error.within(format!("log {position}")))?;
        let Record::Revision(record) = record else { return Err(self.misplaced(position)) };
        let RevisionRecord { number, id, .. } = &record;
        if *number != self.number || *id != self.id.as_str() {
            return Err(self.misplaced(position));
        }
        let is_stored = |location: &RecordLocation| {
            location.position < position && self.snapshot.has_superseded_record(location.position)
        };
        self.next = record.predecessor_of(position).filter(is_stored);
        let (revision, deleted, sequence) = (record.path[0], record.deleted, record.sequence);
        let body = self.snapshot.parts.body(&bytes, &record.body, position)?;
        let shapes = self.snapshot.parts.shapes.clone();
        Ok(Some(Document::new(self.id.clone(), revision, sequence, deleted, body, shapes)))
    }

    fn misplaced(&self, position: LogPosition) -> Error {
        self.snapshot.misplaced(position, &format!("a revision of document `{}`", self.id))
    }
}

impl Snapshot {
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
        while let Some(document) = lineage.next()? {
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
            while let Some(document) = lineage.next()? {
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

    /// Whether a superseded record at `position` may be read: neither its segment nor, logically, the record itself was
    /// removed by a compaction.
    fn has_superseded_record(&self, position: LogPosition) -> bool {
        position >= self.parts.compacted_before() && self.segments.contains(position.segment())
    }
}
