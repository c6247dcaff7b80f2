//! Salvage: recovers what is readable from a damaged database. That is every record of the log and of the history files
//! whose own checksum is right, and every attachment content that is intact. It changes nothing on disk. Of the tree,
//! it only uses the names of fields and the dictionaries of compressed bodies whose records are damaged, if the tree
//! can be read.
//!
//! It makes two passes over history files and log: the first collects the shape names and the revisions that are known
//! not to be leaves; the second reports records. If some revisions have parents that no record describes, a pass in
//! between looks for those parents.

mod lineage;
mod surviving;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::Result;
use crate::compression::{Dictionary, DocumentCompression};
use crate::document::attachment::{self, Attachment};
use crate::engine::directory;
use crate::index::DocumentNumber;
use crate::layout::record::{Record, RevisionRecord};
use crate::layout::{DocumentRow, meta};
use crate::log::{BlobReader, Blobs, Digest, LogPosition, Skipped};
use crate::options::Options;
use crate::revision::{DocumentId, Revision, Sequence};
use crate::value::{PackedValue, ShapeNumber, Shapes, Value};
use crate::vfs::Vfs;

use lineage::{Ancestry, Lineage};
use surviving::Survivors;

/// Describes records that can't be decoded because they need other, damaged records.
const UNDECODABLE: &str = "whole records that need others";

/// One item recovered from a damaged database.
///
/// Passed to the callback of [`salvage_database`](crate::salvage::salvage_database).
#[derive(Debug)]
#[non_exhaustive]
pub enum Salvaged {
    /// A revision of a document, including its body.
    Revision(SalvagedRevision),
    /// A version of a `_local` document; of several versions, the last reported is the newest.
    Local {
        /// The document's id.
        id: DocumentId,
        /// Whether this version is a deletion.
        deleted: bool,
        /// The body, an object.
        body: Value,
    },
    /// Settings: the index policy, declared indexes and schemas, as one object. The last reported are the newest.
    Settings(Value),
    /// The content of an attachment. It was intact when it was verified; read it to its end to be certain.
    Content {
        /// The digest that identifies the content.
        digest: Digest,
        /// A reader of the content.
        content: BlobReader,
    },
}

/// A revision recovered from the log; see [`Salvaged`].
#[derive(Debug)]
pub struct SalvagedRevision {
    /// The document's id.
    pub id: DocumentId,
    /// The revision, then the ancestors that its record names, newest first. If its parent's record is lost and only
    /// one revision can have been the parent's parent, the ancestors of that revision follow.
    pub revisions: Vec<Revision>,
    /// The sequence of the write.
    pub sequence: Sequence,
    /// Whether the revision is a deletion.
    pub deleted: bool,
    /// The body, an object.
    pub body: Value,
    /// The attachments; their contents are identified by digest.
    pub files: Vec<Attachment>,
}

/// The totals of a salvage.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SalvageReport {
    /// Revisions reported, including deletions and replaced revisions.
    pub revision_count: u64,
    /// Versions of `_local` documents reported.
    pub local_count: u64,
    /// Attachment contents reported.
    pub content_count: u64,
    /// Intact revisions that can't be decoded because the records with their field names are damaged.
    pub undecodable_count: u64,
    /// Revisions with lost parents that were attached to the only revision that can have preceded those.
    pub reattached_count: u64,
    /// Documents with an older revision whose successor may be lost, so that a replaced or deleted revision may look
    /// current.
    pub ambiguous_count: u64,
    /// Byte ranges that could not be read or decoded.
    pub skipped: Vec<Skipped>,
}

/// Reports everything that can be recovered from the database in `vfs`.
///
/// # Errors
/// `Unavailable` if its directory can't be read; any error that `visit` returns.
pub(crate) fn salvage(vfs: Arc<dyn Vfs>, visit: &mut dyn FnMut(Salvaged) -> Result<()>) -> Result<SalvageReport> {
    let survivors = Survivors::find(&*vfs)?;
    let (mut facts, mut ancestry) = (LogFacts::default(), Ancestry::default());
    survivors.records(&mut |_, position, record| {
        facts.learn(position, &record);
        match &record {
            Record::Revision(record) => ancestry.learn(record),
            Record::Snapshot { number, .. } => {
                facts.snapshot_paths(*number).for_each(|path| ancestry.learn_path(*number, path))
            }
            _ => {}
        }
        Ok(())
    })?;
    facts.learn_from_tree(&vfs).ok();
    let mut lineage = Lineage::new(ancestry);
    if lineage.has_orphans() {
        survivors.records(&mut |_, position, record| {
            if let Record::Revision(record) = &record
                && !facts.is_not_leaf(position, record)
            {
                lineage.consider(record);
            }
            Ok(())
        })?;
    }
    let (reattached_count, ambiguous_count) = lineage.counts();
    let mut report = SalvageReport { reattached_count, ambiguous_count, ..SalvageReport::default() };
    let mut reported = HashSet::new();
    let gaps = survivors.records(&mut |range, position, record| match facts.salvaged(position, record, &lineage) {
        Ok(Some(Salvaged::Content { digest, .. })) if !reported.insert(digest) => Ok(()),
        Ok(Some(found)) => {
            report.count(&found);
            visit(found)
        }
        Ok(None) => Ok(()),
        Err(error) => {
            report.undecodable_count += 1;
            report.skipped.push(Skipped { what: format!("{UNDECODABLE}: {}", error.message()), ..range });
            Ok(())
        }
    })?;
    report.skipped.extend(gaps);
    report.skipped.extend(survivors.into_skipped());
    contents_of_files(&vfs, &reported, &mut report, visit)?;
    report.merge_gaps();
    Ok(report)
}

/// Facts about the whole log that are needed to interpret a record.
struct LogFacts {
    shapes: Shapes,
    compression: DocumentCompression,
    /// The leaves of documents as last recorded, with the position of that record.
    leaves: HashMap<DocumentNumber, (LogPosition, Vec<LeafPath>)>,
}

impl Default for LogFacts {
    fn default() -> Self {
        // Nothing is compressed here.
        let compression = DocumentCompression::new(u64::MAX);
        LogFacts { shapes: Shapes::default(), compression, leaves: HashMap::new() }
    }
}

/// A recorded leaf: either alone, or followed by all of its known ancestors.
type LeafPath = Vec<Revision>;

impl LogFacts {
    fn learn(&mut self, position: LogPosition, record: &Record<'_>) {
        match record {
            Record::Shape { number, names } => {
                if let Some(number) = ShapeNumber::new(u64::from(*number)) {
                    self.shapes.restore_sparse(number, names.iter().copied());
                }
            }
            // One that can't be is not used either.
            Record::Dictionary { number, bytes } => _ = self.compression.add(Dictionary::new(*number, bytes)),
            Record::Leaves { number, leaves } => {
                self.leaves.insert(*number, (position, leaves.iter().map(|leaf| vec![*leaf]).collect()));
            }
            Record::Snapshot { number, row } => {
                if let Ok(state) = DocumentRow::decode(row).and_then(|row| row.state(*number)) {
                    let paths = state.tree.leaves().map(|leaf| state.tree.ancestry(&leaf.revision));
                    self.leaves.insert(*number, (position, paths.collect()));
                }
            }
            Record::Revision(_) | Record::Local { .. } | Record::Settings(_) | Record::Content { .. } => {}
        }
    }

    /// Learns the names and dictionaries that the log lacks, as far as the tree can be read.
    fn learn_from_tree(&self, vfs: &Arc<dyn Vfs>) -> Result<()> {
        let tree = directory::open_tree(vfs.clone(), &Options { read_only: true, ..Options::new() })?;
        meta::salvage_dictionaries(&tree.read(), &self.shapes, &self.compression)
    }

    /// The item in the record at `position`; none if the record adds nothing.
    fn salvaged(&self, position: LogPosition, record: Record<'_>, lineage: &Lineage) -> Result<Option<Salvaged>> {
        Ok(match record {
            Record::Revision(record) => match self.is_not_leaf(position, &record) {
                true => None,
                false => {
                    let mut revision = self.revision(&record)?;
                    match self.snapshot_path(position, &record) {
                        Some(path) => revision.revisions = path.clone(),
                        None => lineage.lengthen(record.number, &mut revision.revisions),
                    }
                    Some(Salvaged::Revision(revision))
                }
            },
            Record::Local { deleted, id, body, .. } => {
                let body = PackedValue::new(body, &self.shapes)?.to_value()?;
                Some(Salvaged::Local { id: DocumentId::new(id)?, deleted, body })
            }
            Record::Settings(settings) => Some(Salvaged::Settings(Value::parse(settings)?)),
            Record::Content { removed: false, digest, bytes, .. } => {
                let content = || BlobReader::in_memory(format!("log {position}"), digest, bytes.into(), 0..bytes.len());
                std::io::copy(&mut content(), &mut std::io::sink())?;
                Some(Salvaged::Content { digest, content: content() })
            }
            Record::Shape { .. }
            | Record::Leaves { .. }
            | Record::Snapshot { .. }
            | Record::Content { .. }
            | Record::Dictionary { .. } => None,
        })
    }

    /// Whether a later record shows that this revision is not a leaf of its document.
    fn is_not_leaf(&self, position: LogPosition, record: &RevisionRecord<'_>) -> bool {
        let later = self.leaves.get(&record.number).filter(|(recorded_at, _)| *recorded_at > position);
        later.is_some_and(|(_, leaves)| leaves.iter().all(|leaf| leaf.first() != record.path.first()))
    }

    /// The path that a later snapshot record gives for this revision, itself included.
    fn snapshot_path(&self, position: LogPosition, record: &RevisionRecord<'_>) -> Option<&LeafPath> {
        let (_, leaves) = self.leaves.get(&record.number).filter(|(recorded_at, _)| *recorded_at > position)?;
        leaves.iter().find(|leaf| leaf.first() == record.path.first() && leaf.len() > 1)
    }

    /// The paths of a document's leaves as last recorded.
    fn snapshot_paths(&self, number: DocumentNumber) -> impl Iterator<Item = &LeafPath> {
        self.leaves.get(&number).into_iter().flat_map(|(_, leaves)| leaves)
    }

    fn revision(&self, record: &RevisionRecord<'_>) -> Result<SalvagedRevision> {
        let packed = self.compression.packed(&record.body)?;
        let packed = PackedValue::new(&packed, &self.shapes)?;
        let files = attachment::from_packed(packed)?;
        let mut body = packed.to_value()?;
        if let Some(object) = body.as_object_mut() {
            object.remove(attachment::FIELD);
        }
        Ok(SalvagedRevision {
            id: DocumentId::new(record.id)?,
            revisions: record.path.to_vec(),
            sequence: record.sequence,
            deleted: record.deleted,
            body,
            files,
        })
    }
}

/// Reports the attachment contents in files that are intact, except those reported already.
fn contents_of_files(
    vfs: &Arc<dyn Vfs>,
    reported: &HashSet<Digest>,
    report: &mut SalvageReport,
    visit: &mut dyn FnMut(Salvaged) -> Result<()>,
) -> Result<()> {
    let blobs = Blobs::new(Arc::clone(vfs));
    let mut digests = blobs.list()?;
    digests.retain(|digest| !reported.contains(digest));
    digests.sort_unstable();
    for digest in digests {
        let verified =
            blobs.read(&digest).and_then(|mut content| Ok(std::io::copy(&mut content, &mut std::io::sink())?));
        match verified.and_then(|_| blobs.read(&digest)) {
            Ok(content) => {
                let found = Salvaged::Content { digest, content };
                report.count(&found);
                visit(found)?;
            }
            Err(error) => {
                let what = format!("the content of a file is damaged: {error}");
                report.skipped.push(Skipped { file: blobs.file_name(&digest), start: 0, end: 0, what });
            }
        }
    }
    Ok(())
}

impl SalvageReport {
    fn count(&mut self, found: &Salvaged) {
        match found {
            Salvaged::Revision(_) => self.revision_count += 1,
            Salvaged::Local { .. } => self.local_count += 1,
            Salvaged::Content { .. } => self.content_count += 1,
            Salvaged::Settings(_) => {}
        }
    }

    /// Sorts the gaps by position, and joins those that touch or that have the same missing names.
    fn merge_gaps(&mut self) {
        self.skipped.sort_by(|one, other| (&one.file, one.start).cmp(&(&other.file, other.start)));
        self.skipped.dedup_by(|next, gap| {
            let is_same = next.what == gap.what && next.what.starts_with(UNDECODABLE);
            let joins = next.file == gap.file && next.start > 0 && (next.start <= gap.end || is_same);
            if joins {
                gap.end = gap.end.max(next.end);
            }
            joins
        });
    }
}
