//! Reconstructs the ancestry of revisions whose parent's record is lost.
//!
//! A record names its revision and the parent. If the parent's own record is damaged, all earlier revisions would look
//! like a conflicting branch: a replaced revision would appear twice, and a deleted document would reappear. So if
//! exactly one revision can have preceded the lost parent (one generation older, and not known to be replaced by
//! another revision), it is taken as its predecessor.

use std::hash::{BuildHasher, RandomState};

use hashbrown::{HashMap, HashSet};

use crate::index::DocumentNumber;
use crate::layout::record::RevisionRecord;
use crate::revision::{Revision, Sequence};

/// The parent relations that all records name. Takes some tens of bytes for each record.
#[derive(Default)]
pub(super) struct Ancestry {
    hasher: RandomState,
    /// Hashes of the revisions whose parent a record names, or that have none.
    rooted: HashSet<u64>,
    /// Hashes of the revisions that are parents of others.
    replaced: HashSet<u64>,
    /// For each record, the oldest revision that it names, and the record's sequence.
    oldest: Vec<(DocumentNumber, Revision, Sequence)>,
}

/// The revisions that records name but whose parents no record names.
pub(super) struct Lineage {
    ancestry: Ancestry,
    orphans: HashMap<DocumentNumber, Vec<Orphan>>,
}

struct Orphan {
    revision: Revision,
    /// The sequence of the first record that names it.
    sequence: Sequence,
    /// The candidates for its parent, one generation older, each with its ancestors.
    parents: Vec<Vec<Revision>>,
    /// Whether there is an older revision whose successor may be lost.
    has_older: bool,
}

impl Ancestry {
    pub(super) fn learn(&mut self, record: &RevisionRecord<'_>) {
        let key = |revision: &Revision| self.hasher.hash_one((record.number, revision));
        for pair in record.path.windows(2) {
            self.rooted.insert(key(&pair[0]));
            self.replaced.insert(key(&pair[1]));
        }
        // A record without any parent was replicated without one; every edit written here names its parent.
        match *record.path {
            [.., oldest] if oldest.generation() == 1 => drop(self.rooted.insert(key(&oldest))),
            [_, .., oldest] => self.oldest.push((record.number, oldest, record.sequence)),
            _ => {}
        }
    }

    /// Adds a leaf and all of its known ancestors: nothing before the oldest is lost.
    pub(super) fn learn_path(&mut self, number: DocumentNumber, path: &[Revision]) {
        let key = |revision: &Revision| self.hasher.hash_one((number, revision));
        self.rooted.extend(path.iter().map(key));
        self.replaced.extend(path.iter().skip(1).map(key));
    }

    fn is_replaced(&self, number: DocumentNumber, revision: &Revision) -> bool {
        self.replaced.contains(&self.hasher.hash_one((number, revision)))
    }
}

impl Lineage {
    /// Builds the lineage from the relations of all records.
    pub(super) fn new(mut ancestry: Ancestry) -> Self {
        let mut orphans: HashMap<DocumentNumber, Vec<Orphan>> = HashMap::new();
        for (number, revision, sequence) in std::mem::take(&mut ancestry.oldest) {
            if ancestry.rooted.contains(&ancestry.hasher.hash_one((number, revision))) {
                continue;
            }
            let of_document = orphans.entry(number).or_default();
            match of_document.iter_mut().find(|orphan| orphan.revision == revision) {
                Some(orphan) => orphan.sequence = orphan.sequence.min(sequence),
                None => of_document.push(Orphan { revision, sequence, parents: Vec::new(), has_older: false }),
            }
        }
        Lineage { ancestry, orphans }
    }

    /// Whether any parent is lost.
    pub(super) fn has_orphans(&self) -> bool {
        !self.orphans.is_empty()
    }

    /// Adds the revision as a candidate parent where it fits.
    pub(super) fn consider(&mut self, record: &RevisionRecord<'_>) {
        let Some(orphans) = self.orphans.get_mut(&record.number) else { return };
        let Some(revision) = record.path.first() else { return };
        if self.ancestry.is_replaced(record.number, revision) {
            return;
        }
        for orphan in orphans.iter_mut().filter(|orphan| orphan.sequence > record.sequence) {
            let next = revision.generation() + 1;
            if orphan.revision.generation() == next && orphan.parents.iter().all(|path| path.first() != Some(revision))
            {
                orphan.parents.push(record.path.to_vec());
            }
            orphan.has_older |= orphan.revision.generation() > next;
        }
    }

    /// Extends a path by the parent of its oldest revision, repeatedly.
    pub(super) fn lengthen(&self, number: DocumentNumber, path: &mut Vec<Revision>) {
        let Some(orphans) = self.orphans.get(&number) else { return };
        let parent_of =
            |oldest: &Revision| match orphans.iter().find(|orphan| orphan.revision == *oldest)?.parents.as_slice() {
                [parent] => Some(parent),
                _ => None,
            };
        // Terminates, because each parent has a lower generation.
        while let Some(parent) = path.last().and_then(parent_of) {
            path.extend_from_slice(parent);
        }
    }

    /// How many lost parents were found, and how many documents have an older revision that only looks current because
    /// its successor is lost.
    pub(super) fn counts(&self) -> (u64, u64) {
        let joined = self.orphans.values().flatten().filter(|orphan| orphan.parents.len() == 1).count();
        let is_parted = |orphan: &Orphan| orphan.parents.len() > 1 || (orphan.has_older && orphan.parents.is_empty());
        let parted = self.orphans.values().filter(|orphans| orphans.iter().any(is_parted)).count();
        (joined as u64, parted as u64)
    }
}
