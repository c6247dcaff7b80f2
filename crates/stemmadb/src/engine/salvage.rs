//! What can still be had from a damaged database? Every record of the log whose own checksum is right, and every file's content that
//! is whole; without the tree, and without changing anything.
//!
//! Two passes over the log: the first learns the names that bodies go without, and which old revisions are known to be no leaves
//! any more; the second shows what there is. Between them comes a third, where revisions are named whose parents are not: it looks for
//! those.

mod lineage;

use std::collections::HashMap;
use std::sync::Arc;

use crate::Result;
use crate::document::attachment::{self, Attachment};
use crate::index::DocumentNumber;
use crate::layout::DocumentRow;
use crate::layout::record::{Record, RevisionRecord};
use crate::log::{BlobReader, Blobs, Digest, LogPosition, Remains, Skipped, Vfs, Wreck};
use crate::revision::{DocumentId, Revision, Sequence};
use crate::value::{PackedValue, ShapeNumber, Shapes, Value};

use lineage::{Ancestry, Lineage};

/// What is said of records that can't be understood without others that are damaged.
const NAMELESS: &str = "whole records that need others";

/// What was found in a damaged database, one thing at a time.
#[derive(Debug)]
#[non_exhaustive]
pub enum Salvaged {
    /// A revision of a document, its body included.
    Revision(SalvagedRevision),
    /// A version of a `_local` document; of several, the last shown is the newest.
    Local {
        /// Its id.
        id: DocumentId,
        /// Whether it is a deletion.
        deleted: bool,
        /// Its body, an object.
        body: Value,
    },
    /// Settings: the index policy, declared indexes and schemas, as one object. The last shown are the newest.
    Settings(Value),
    /// The content of a file, whole so far: reading it to its end tells for certain.
    Content {
        /// What it is named by.
        digest: Digest,
        /// The content itself.
        content: BlobReader,
    },
}

/// A revision as the log has it.
#[derive(Debug)]
pub struct SalvagedRevision {
    /// The document.
    pub id: DocumentId,
    /// The revision, then its ancestors as far as they were written with it, newest first. Where the record of its parent is lost, those of
    /// the only revision that this one can have come from.
    pub revisions: Vec<Revision>,
    /// The sequence of its write.
    pub sequence: Sequence,
    /// Whether it is a deletion.
    pub deleted: bool,
    /// Its body, an object.
    pub body: Value,
    /// Its files; their content is told apart by digest.
    pub files: Vec<Attachment>,
}

/// What a salvage came to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SalvageReport {
    /// Revisions of documents shown, deletions and what was replaced since among them.
    pub revision_count: u64,
    /// Versions of `_local` documents shown.
    pub local_count: u64,
    /// Contents of files shown.
    pub content_count: u64,
    /// Revisions that are whole, but the names of whose fields were in records that are damaged.
    pub nameless_count: u64,
    /// Revisions whose parents are lost, and which were joined to the only revision that these can have come from.
    pub joined_count: u64,
    /// Documents with an older revision whose successor may be lost: what was replaced or deleted may look as if it were not.
    pub parted_count: u64,
    /// What could not be read or understood.
    pub skipped: Vec<Skipped>,
}

/// Shows everything that is left of the database in `vfs`.
///
/// # Errors
/// `Unavailable` if its directory can't be read; whatever `visit` returns.
pub(crate) fn salvage(vfs: Arc<dyn Vfs>, visit: &mut dyn FnMut(Salvaged) -> Result<()>) -> Result<SalvageReport> {
    let wreck = Wreck::find(&*vfs)?;
    let (mut known, mut ancestry) = (Known::default(), Ancestry::default());
    wreck.remains(&mut |remains| {
        records(remains, &mut |_, position, record| {
            known.learn(position, &record);
            match &record {
                Record::Revision(record) => ancestry.learn(record),
                Record::Statement { number, .. } => {
                    known.stated_paths(*number).for_each(|path| ancestry.state(*number, path))
                }
                _ => {}
            }
            Ok(())
        })
        .map(|_| ())
    })?;
    let mut lineage = Lineage::new(ancestry);
    if lineage.has_orphans() {
        wreck.remains(&mut |remains| {
            records(remains, &mut |_, position, record| {
                if let Record::Revision(record) = &record
                    && !known.is_no_leaf(position, record)
                {
                    lineage.consider(record);
                }
                Ok(())
            })
            .map(|_| ())
        })?;
    }
    let (joined_count, parted_count) = lineage.counts();
    let mut report = SalvageReport { joined_count, parted_count, ..SalvageReport::default() };
    wreck.remains(&mut |remains| {
        let gaps = records(remains, &mut |place, position, record| match known.salvaged(position, record, &lineage) {
            Ok(Some(found)) => {
                report.count(&found);
                visit(found)
            }
            Ok(None) => Ok(()),
            Err(error) => {
                report.nameless_count += 1;
                report.skipped.push(Skipped { what: format!("{NAMELESS}: {}", error.message()), ..place });
                Ok(())
            }
        })?;
        report.skipped.extend(gaps);
        Ok(())
    })?;
    report.skipped.extend(wreck.into_skipped());
    contents(&vfs, &mut report, visit)?;
    report.join_gaps();
    Ok(report)
}

/// What must be known of the whole log to understand a record.
#[derive(Default)]
struct Known {
    shapes: Shapes,
    /// The newest word on the leaves of documents, and where it stands.
    leaves: HashMap<DocumentNumber, (LogPosition, Vec<Said>)>,
}

/// A leaf of which something is said: itself, or the leaf and all of its ancestors that are known.
type Said = Vec<Revision>;

impl Known {
    fn learn(&mut self, position: LogPosition, record: &Record<'_>) {
        match record {
            Record::Shape { number, names } => {
                if let Some(number) = ShapeNumber::new(u64::from(*number)) {
                    self.shapes.restore_sparse(number, names.iter().copied());
                }
            }
            Record::Leaves { number, leaves } => {
                self.leaves.insert(*number, (position, leaves.iter().map(|leaf| vec![*leaf]).collect()));
            }
            Record::Statement { number, row } => {
                if let Ok(state) = DocumentRow::decode(row).and_then(|row| row.state(*number)) {
                    let paths = state.tree.leaves().map(|leaf| state.tree.ancestry(&leaf.revision));
                    self.leaves.insert(*number, (position, paths.collect()));
                }
            }
            Record::Revision(_) | Record::Local { .. } | Record::Settings(_) => {}
        }
    }

    /// What the record at `position` says; nothing if it is no news to anybody.
    fn salvaged(&self, position: LogPosition, record: Record<'_>, lineage: &Lineage) -> Result<Option<Salvaged>> {
        Ok(match record {
            Record::Revision(record) => match self.is_no_leaf(position, &record) {
                true => None,
                false => {
                    let mut revision = self.revision(&record)?;
                    match self.stated_path(position, &record) {
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
            Record::Shape { .. } | Record::Leaves { .. } | Record::Statement { .. } => None,
        })
    }

    /// Whether a later record says that this revision is not among the document's leaves.
    fn is_no_leaf(&self, position: LogPosition, record: &RevisionRecord<'_>) -> bool {
        let later = self.leaves.get(&record.number).filter(|(said, _)| *said > position);
        later.is_some_and(|(_, leaves)| leaves.iter().all(|leaf| leaf.first() != record.path.first()))
    }

    /// What a later record states of this revision's ancestry, itself included.
    fn stated_path(&self, position: LogPosition, record: &RevisionRecord<'_>) -> Option<&Said> {
        let (_, leaves) = self.leaves.get(&record.number).filter(|(said, _)| *said > position)?;
        leaves.iter().find(|leaf| leaf.first() == record.path.first() && leaf.len() > 1)
    }

    /// The paths of a document's leaves, by the newest word on them.
    fn stated_paths(&self, number: DocumentNumber) -> impl Iterator<Item = &Said> {
        self.leaves.get(&number).into_iter().flat_map(|(_, leaves)| leaves)
    }

    fn revision(&self, record: &RevisionRecord<'_>) -> Result<SalvagedRevision> {
        let packed = PackedValue::new(record.body, &self.shapes)?;
        let files = attachment::of_packed(packed)?;
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

type VisitRecord<'v> = &'v mut dyn FnMut(Skipped, LogPosition, Record<'_>) -> Result<()>;

/// Shows the records among these bytes with their places; returns what lies between them. Where one is damaged, the next is
/// looked for where its length says, or in the next frame, and nowhere else: what is in a document must not pass for a record.
fn records(remains: Remains<'_>, visit: VisitRecord<'_>) -> Result<Vec<Skipped>> {
    let Remains { position, bytes, is_whole } = remains;
    let place = |start: usize, end: usize, what: &str| {
        let at = u64::from(position.offset());
        let (start, end) = (at + start as u64, at + end as u64);
        Skipped { file: position.segment_file(), start, end, what: what.to_owned() }
    };
    let mut gaps = Vec::new();
    let mut offset = 0;
    while bytes[offset..].iter().any(|&byte| byte != 0) {
        if let Ok((record, length)) = Record::decode(&bytes[offset..]) {
            visit(place(offset, offset + length, ""), position.advance(offset as u32), record)?;
            offset += length;
            continue;
        }
        let behind_it = Record::claimed_length(&bytes[offset..]).map(|length| offset + length);
        let candidates = behind_it.into_iter().chain([Wreck::next_payload(offset)]);
        let is_record = |&next: &usize| bytes.get(next..).is_some_and(|rest| Record::decode(rest).is_ok());
        let end = candidates.into_iter().find(is_record).unwrap_or(bytes.len());
        let what = if is_whole { "a record that can't be understood" } else { "the checksum of a record is wrong" };
        gaps.push(place(offset, end, what));
        offset = end;
    }
    Ok(gaps)
}

/// Shows the contents of files that are whole.
fn contents(
    vfs: &Arc<dyn Vfs>,
    report: &mut SalvageReport,
    visit: &mut dyn FnMut(Salvaged) -> Result<()>,
) -> Result<()> {
    let blobs = Blobs::new(Arc::clone(vfs));
    let mut digests = blobs.list()?;
    digests.sort_unstable();
    for digest in digests {
        let verified =
            blobs.read(&digest).and_then(|mut content| Ok(std::io::copy(&mut content, &mut std::io::sink())?));
        match verified.and_then(|_| blobs.read(&digest)) {
            Ok(content) => {
                report.content_count += 1;
                visit(Salvaged::Content { digest, content })?;
            }
            Err(error) => {
                let what = format!("the content of a file is damaged: {error}");
                report.skipped.push(Skipped { file: digest.file_name(), start: 0, end: 0, what });
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
            Salvaged::Settings(_) | Salvaged::Content { .. } => {}
        }
    }

    /// Sorts what was skipped by place, and makes one of what touches, or of many records that lack the same.
    fn join_gaps(&mut self) {
        self.skipped.sort_by(|one, other| (&one.file, one.start).cmp(&(&other.file, other.start)));
        self.skipped.dedup_by(|next, gap| {
            let is_same = next.what == gap.what && next.what.starts_with(NAMELESS);
            let joins = next.file == gap.file && next.start > 0 && (next.start <= gap.end || is_same);
            if joins {
                gap.end = gap.end.max(next.end);
            }
            joins
        });
    }
}
