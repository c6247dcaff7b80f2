//! Which revision does one come from whose parent is lost?
//!
//! A record names its revision and the parent. Where the parent's own record is damaged, whatever came before it would be taken for a
//! conflicting revision: what was replaced would be there twice, and what was deleted would be back. So where there is just one revision
//! that can have been the lost one's parent, older by one generation and replaced by nothing else that is known, it is taken for it.

use std::hash::{BuildHasher, RandomState};

use hashbrown::{HashMap, HashSet};

use crate::index::DocumentNumber;
use crate::layout::record::RevisionRecord;
use crate::revision::{Revision, Sequence};

/// What all records say of who comes from whom. Takes some tens of bytes for each.
#[derive(Default)]
pub(super) struct Ancestry {
    hasher: RandomState,
    /// Revisions, by their hash here, of which a record names the parent, or which have none.
    rooted: HashSet<u64>,
    /// Revisions, by their hash here, that others come from.
    replaced: HashSet<u64>,
    /// The oldest revision that a record names, with the record's sequence.
    oldest: Vec<(DocumentNumber, Revision, Sequence)>,
}

/// Revisions that are named, but whose parents are not.
pub(super) struct Lineage {
    ancestry: Ancestry,
    orphans: HashMap<DocumentNumber, Vec<Orphan>>,
}

struct Orphan {
    revision: Revision,
    /// That of the first record which names it.
    sequence: Sequence,
    /// What it may come from, one generation before it, with its ancestors.
    parents: Vec<Vec<Revision>>,
    /// Whether something older is there whose successor may be lost.
    has_older: bool,
}

impl Ancestry {
    pub(super) fn learn(&mut self, record: &RevisionRecord<'_>) {
        let key = |revision: &Revision| self.hasher.hash_one((record.number, revision));
        for pair in record.path.windows(2) {
            self.rooted.insert(key(&pair[0]));
            self.replaced.insert(key(&pair[1]));
        }
        // A record that names no parent at all was brought without one; every edit made here names its own.
        match *record.path {
            [.., oldest] if oldest.generation() == 1 => drop(self.rooted.insert(key(&oldest))),
            [_, .., oldest] => self.oldest.push((record.number, oldest, record.sequence)),
            _ => {}
        }
    }

    /// Learns of a leaf and all of its ancestors that are known: nothing is lost before the oldest.
    pub(super) fn state(&mut self, number: DocumentNumber, path: &[Revision]) {
        let key = |revision: &Revision| self.hasher.hash_one((number, revision));
        self.rooted.extend(path.iter().map(key));
        self.replaced.extend(path.iter().skip(1).map(key));
    }

    fn is_replaced(&self, number: DocumentNumber, revision: &Revision) -> bool {
        self.replaced.contains(&self.hasher.hash_one((number, revision)))
    }
}

impl Lineage {
    /// Of what was learned of all records.
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

    /// Looks whether a revision may be what a lost one came from.
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

    /// Lengthens a path by what its oldest revision comes from, and so on.
    pub(super) fn lengthen(&self, number: DocumentNumber, path: &mut Vec<Revision>) {
        let Some(orphans) = self.orphans.get(&number) else { return };
        let parent_of =
            |oldest: &Revision| match orphans.iter().find(|orphan| orphan.revision == *oldest)?.parents.as_slice() {
                [parent] => Some(parent),
                _ => None,
            };
        // Ends: each is of a generation before.
        while let Some(parent) = path.last().and_then(parent_of) {
            path.extend_from_slice(parent);
        }
    }

    /// How many lost parents were found again, and how many documents have something older that may only look as if nothing came after it.
    pub(super) fn counts(&self) -> (u64, u64) {
        let joined = self.orphans.values().flatten().filter(|orphan| orphan.parents.len() == 1).count();
        let is_parted = |orphan: &Orphan| orphan.parents.len() > 1 || (orphan.has_older && orphan.parents.is_empty());
        let parted = self.orphans.values().filter(|orphans| orphans.iter().any(is_parted)).count();
        (joined as u64, parted as u64)
    }
}
