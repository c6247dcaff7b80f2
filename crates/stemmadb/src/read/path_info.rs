//! The paths that occur in documents, with counts.

use crate::Result;
use crate::index::{OwnedStep, PathNumber, Presence};
use crate::read::snapshot::Snapshot;
use crate::value::{Kind, collate::key};

/// A path that occurs in documents, with its counts.
///
/// Returned by [`Indexes::paths`](crate::handles::Indexes::paths).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathInfo {
    /// The path: names separated by dots, `[]` for the elements of an array. A dot, bracket or backslash in a name is
    /// preceded by a backslash.
    pub path: String,
    /// Documents that have a value at the path.
    pub document_count: u64,
    /// The kinds of values, each with its number of documents. Within arrays a document may have several kinds, and
    /// only scalars count.
    pub kinds: Vec<(Kind, u64)>,
    /// Distinct scalars at the path. If more than a thousand values changed since the last checkpoint, all of them are
    /// counted as new.
    pub value_count: u64,
}

/// The number of documents with a value at a path, in total and by kind.
type Counts = (u64, Vec<(Kind, u64)>);

impl Snapshot {
    /// The paths that occur in documents of this snapshot, in order.
    pub(crate) fn path_infos(&self) -> Result<Vec<PathInfo>> {
        let mut infos = Vec::new();
        // Indexed by path number; a path comes after its parent.
        let mut is_within_array = vec![false];
        for entry in self.paths().entries_since(1) {
            self.parts.refuse_if_closed()?;
            let parent = is_within_array.get(entry.parent.0 as usize).copied().unwrap_or_default();
            is_within_array.push(parent || entry.step == OwnedStep::Element);
            if matches!(entry.step, OwnedStep::Index(_)) {
                continue;
            }
            let (document_count, kinds) = match is_within_array.last() {
                Some(true) => self.element_info(entry.number)?,
                _ => self.field_info(entry.number)?,
            };
            if document_count > 0 {
                let path = self.paths().text(entry.number).unwrap_or_default();
                let value_count = self.distinct_count(entry.number)?;
                infos.push(PathInfo { path, document_count, kinds, value_count });
            }
        }
        infos.sort_unstable_by(|left, right| left.path.cmp(&right.path));
        Ok(infos)
    }

    /// Counts a path that crosses no array: a document has at most one value there.
    fn field_info(&self, path: PathNumber) -> Result<Counts> {
        let mut kinds = Vec::new();
        for kind in Kind::ALL {
            let count = self.presence_count(path, &[Presence::from(kind)])?;
            kinds.extend((count > 0).then_some((kind, count)));
        }
        Ok((kinds.iter().map(|(_, count)| count).sum(), kinds))
    }

    fn element_info(&self, path: PathNumber) -> Result<Counts> {
        let mut kinds = Vec::new();
        let mut all = crate::index::DocumentSet::new();
        for kind in [Kind::Null, Kind::Bool, Kind::Number, Kind::String] {
            let (lower, upper) = key::type_range(kind);
            let documents = self.range(path, &lower, &upper)?;
            kinds.extend((!documents.is_empty()).then(|| (kind, documents.len())));
            all.or_with(&documents);
        }
        Ok((all.len(), kinds))
    }
}
