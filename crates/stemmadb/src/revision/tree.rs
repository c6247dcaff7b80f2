//! Revision tree of one document: the known revisions, their ancestry, and the winning leaf.
//!
//! **Layout.** The tree has one [`Chain`] per leaf: the leaf with its payload, and those ancestors that no other chain
//! has, oldest first, as bare hashes (generations count up by one). A chain that branches off another stores its fork
//! point. Almost every document has one chain, and an edit pushes one hash onto it.
//!
//! **Invariants.** Each revision is in exactly one chain. Chains are sorted by rank, the winner first. The fork point
//! of a chain is an ancestor (never the leaf) in another chain. A chain without a fork point begins at a root: the
//! first edit of the document, or the oldest known one. A chain has fewer ancestors than its leaf has generations.
//!
//! **Merging** is the union of known paths, so the order in which paths arrive makes no difference. If a path
//! contradicts the known parent of a revision, the path is ignored from there on: a correct peer never sends one,
//! because the hash of a revision depends on its parent.

mod stored;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;

use smallvec::{SmallVec, smallvec};

use super::revision_id::{Hash, Revision};
use crate::{Error, Result};

/// A revision without known descendants, and its payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Leaf<T> {
    pub(crate) revision: Revision,
    pub(crate) deleted: bool,
    pub(crate) payload: T,
}

impl<T> Leaf<T> {
    /// The sort key of leaves: living before deleted, then the greater revision. The greatest rank wins.
    fn rank(&self) -> (bool, Revision) {
        (!self.deleted, self.revision)
    }
}

#[derive(Debug, Clone)]
struct Chain<T> {
    leaf: Leaf<T>,
    /// The leaf's ancestors in this chain, oldest first.
    ancestors: Vec<Hash>,
    /// The hash of the fork point: the parent of the oldest revision here, if it is known. It is in another chain.
    fork: Option<Hash>,
}

/// The effect of a merge on the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MergeOutcome {
    /// The revision replaced a leaf, or is the first of its document.
    NewLeaf,
    /// The revision is an additional leaf.
    NewBranch,
    /// The revision was known, and the path connected it to further ancestors. The tree may have fewer leaves now.
    Connected,
    /// The whole path was known: nothing changed.
    Unchanged,
}

/// The effect of a merge, and the payloads of revisions that are no longer leaves.
#[derive(Debug, Clone)]
pub(crate) struct Merged<T> {
    pub(crate) outcome: MergeOutcome,
    pub(crate) superseded: SmallVec<[T; 1]>,
}

/// The revisions of a document that a replica lacks, compared with those of a peer.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Missing {
    /// The unknown revisions, in the order of the request.
    pub missing: Vec<Revision>,
    /// Known leaves from which the missing revisions may descend.
    pub possible_ancestors: Vec<Revision>,
}

/// The known revisions of one document. `T` is the payload of a leaf.
#[derive(Debug, Clone)]
pub(crate) struct RevisionTree<T> {
    chains: SmallVec<[Chain<T>; 1]>,
}

/// The location of a revision: its chain, and the number of older ancestors in that chain.
#[derive(Clone, Copy, PartialEq, Eq)]
struct RevisionLocation {
    chain: usize,
    index: usize,
}

impl<T> Default for RevisionTree<T> {
    fn default() -> Self {
        RevisionTree { chains: SmallVec::new() }
    }
}

impl<T: Clone> RevisionTree<T> {
    /// A tree without revisions.
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// The tree of a new document. Does not allocate.
    #[cfg(test)]
    pub(crate) fn of_first(revision: Revision, deleted: bool, payload: T) -> Self {
        let leaf = Leaf { revision, deleted, payload };
        RevisionTree { chains: smallvec![Chain { leaf, ancestors: Vec::new(), fork: None }] }
    }

    /// Merges a revision with its ancestry `path`, newest first. `deleted` and `payload` belong to the newest revision.
    ///
    /// An edit of a leaf, `[new, leaf]`, costs one push; other paths cost (path length × leaves) comparisons.
    ///
    /// # Errors
    /// `Invalid` if the path is empty or its generations don't count down by one. The tree is then unchanged.
    pub(crate) fn merge(&mut self, path: &[Revision], deleted: bool, payload: T) -> Result<Merged<T>> {
        let Some(&newest) = path.first() else {
            return Err(Error::invalid("a revision path must not be empty"));
        };
        if !path.windows(2).all(|pair| pair[0].generation().checked_sub(1) == Some(pair[1].generation())) {
            return Err(Error::invalid(format!("the ancestry of revision {newest} does not count down by one")));
        }
        let leaf = Leaf { revision: newest, deleted, payload };
        let known = path.iter().enumerate().find_map(|(at, revision)| Some((at, self.locate(revision)?)));
        let mut merged = match known {
            None => self.add_root_chain(leaf, path),
            Some((0, _)) => Merged { outcome: MergeOutcome::Unchanged, superseded: SmallVec::new() },
            Some((at, location)) => self.extend_from(leaf, &path[..at], path[at], location),
        };
        if let Some((at, _)) = known
            && self.connect_roots(&path[at..], &mut merged.superseded)
            && merged.outcome == MergeOutcome::Unchanged
        {
            merged.outcome = MergeOutcome::Connected;
        }
        if self.chains.len() > 1 {
            self.chains.sort_by_key(|chain| Reverse(chain.leaf.rank()));
        }
        debug_assert!(
            self.chains.is_sorted_by(|a, b| a.leaf.rank() > b.leaf.rank()),
            "leaves are distinct and sorted, the winner first"
        );
        Ok(merged)
    }

    /// Adds a path of which no revision is known.
    fn add_root_chain(&mut self, leaf: Leaf<T>, path: &[Revision]) -> Merged<T> {
        let outcome = if self.chains.is_empty() { MergeOutcome::NewLeaf } else { MergeOutcome::NewBranch };
        self.chains.push(Chain { leaf, ancestors: hashes(&path[1..]).collect(), fork: None });
        Merged { outcome, superseded: SmallVec::new() }
    }

    /// Adds a path of new revisions that descends from the known revision `parent`.
    fn extend_from(
        &mut self,
        leaf: Leaf<T>,
        path: &[Revision],
        parent: Revision,
        location: RevisionLocation,
    ) -> Merged<T> {
        let chain = &mut self.chains[location.chain];
        if location.index < chain.ancestors.len() {
            let fork = Some(*parent.hash());
            self.chains.push(Chain { leaf, ancestors: hashes(&path[1..]).collect(), fork });
            return Merged { outcome: MergeOutcome::NewBranch, superseded: SmallVec::new() };
        }
        // Memtables hold one tree per document version, so reserve exactly.
        chain.ancestors.reserve_exact(path.len());
        chain.ancestors.push(*parent.hash());
        chain.ancestors.extend(hashes(&path[1..]));
        let former = std::mem::replace(&mut chain.leaf, leaf);
        Merged { outcome: MergeOutcome::NewLeaf, superseded: smallvec![former.payload] }
    }

    /// Connects known roots to their parents in `path`, whose first revision is known. Returns whether anything was
    /// new.
    fn connect_roots(&mut self, path: &[Revision], superseded: &mut SmallVec<[T; 1]>) -> bool {
        let mut changed = false;
        let mut rest = path;
        while let [child, older @ ..] = rest
            && let Some(parent) = older.first()
            && let Some(location) = self.locate(child)
        {
            match self.parent_hash(location) {
                Some(known) if known == *parent.hash() => rest = older,
                Some(_) => break,
                None => {
                    self.attach_ancestors(location.chain, older, superseded);
                    changed = true;
                }
            }
        }
        changed
    }

    /// Prepends the ancestors `older`, newest first, to a chain that begins at a root.
    fn attach_ancestors(&mut self, chain: usize, older: &[Revision], superseded: &mut SmallVec<[T; 1]>) {
        let parent = older[0];
        debug_assert!(self.chains[chain].fork.is_none(), "a chain that begins at a root has no fork point");
        debug_assert_eq!(
            parent.generation() + 1,
            self.chains[chain].first_generation(),
            "a chain is extended by the parent of its oldest revision"
        );
        match self.locate(&parent) {
            None => {
                let unknown = older.iter().take_while(|revision| self.locate(revision).is_none()).count();
                self.chains[chain].ancestors.splice(0..0, hashes(&older[..unknown]));
            }
            Some(location) if location.index < self.chains[location.chain].ancestors.len() => {
                self.chains[chain].fork = Some(*parent.hash());
            }
            Some(location) => {
                // The parent was a leaf until now: its chain becomes the beginning of this one.
                debug_assert_ne!(location.chain, chain, "the parent of a chain's oldest revision is in another chain");
                let former = std::mem::take(&mut self.chains[location.chain].ancestors);
                let fork = self.chains[location.chain].fork;
                let this = &mut self.chains[chain];
                this.ancestors.splice(0..0, former.into_iter().chain([*parent.hash()]));
                this.fork = fork;
                superseded.push(self.chains.remove(location.chain).leaf.payload);
            }
        }
    }

    /// The winning leaf: a living one if there is one, and of those the highest revision. Equal on all replicas.
    pub(crate) fn winner(&self) -> Option<&Leaf<T>> {
        self.chains.first().map(|chain| &chain.leaf)
    }

    /// All leaves, the winner first.
    pub(crate) fn leaves(&self) -> impl ExactSizeIterator<Item = &Leaf<T>> {
        self.chains.iter().map(|chain| &chain.leaf)
    }

    /// The living leaves except the winner, highest rank first.
    #[cfg(test)]
    pub(crate) fn conflicts(&self) -> impl Iterator<Item = &Leaf<T>> {
        self.leaves().skip(1).filter(|leaf| !leaf.deleted)
    }

    /// The leaf with this revision, if the revision is a leaf.
    pub(crate) fn leaf(&self, revision: &Revision) -> Option<&Leaf<T>> {
        self.leaves().find(|leaf| leaf.revision == *revision)
    }

    /// Whether the revision is known, as a leaf or as an ancestor.
    pub(crate) fn contains(&self, revision: &Revision) -> bool {
        self.locate(revision).is_some()
    }

    /// The number of known revisions.
    pub(crate) fn revision_count(&self) -> usize {
        self.chains.iter().map(|chain| chain.ancestors.len() + 1).sum()
    }

    /// The heap bytes of the tree.
    pub(crate) fn heap_bytes(&self) -> usize {
        let chains = if self.chains.spilled() { self.chains.capacity() * size_of::<Chain<T>>() } else { 0 };
        chains + self.chains.iter().map(|chain| chain.ancestors.capacity() * size_of::<Hash>()).sum::<usize>()
    }

    /// The revision and its known ancestors, newest first; empty if the revision is not known.
    pub(crate) fn ancestry(&self, revision: &Revision) -> Vec<Revision> {
        let mut path = Vec::new();
        let mut next = self.locate(revision);
        while let Some(RevisionLocation { chain, index }) = next {
            let chain = &self.chains[chain];
            path.extend((0..=index).rev().map(|index| chain.revision(index)));
            next = chain.fork_point().and_then(|fork| self.locate(&fork));
        }
        path
    }

    /// Whether `path`, newest first, is a known line of ancestry.
    pub(crate) fn has_path(&self, path: &[Revision]) -> bool {
        path.first().is_none_or(|revision| self.ancestry(revision).starts_with(path))
    }

    /// The unknown ones of a peer's revisions, and the leaves from which they may descend.
    pub(crate) fn missing(&self, revisions: &[Revision]) -> Missing {
        let missing: Vec<_> = revisions.iter().copied().filter(|revision| !self.contains(revision)).collect();
        let newest = missing.iter().map(Revision::generation).max().unwrap_or(0);
        let possible_ancestors =
            self.leaves().map(|leaf| leaf.revision).filter(|leaf| leaf.generation() < newest).collect();
        Missing { missing, possible_ancestors }
    }

    /// Replaces the payload of a leaf. Returns false if the revision is not a leaf.
    pub(crate) fn update_payload(&mut self, revision: &Revision, payload: T) -> bool {
        let chain = self.chains.iter_mut().find(|chain| chain.leaf.revision == *revision);
        chain.map(|chain| chain.leaf.payload = payload).is_some()
    }

    /// Whether the ancestry of every leaf is known back to generation 1. If not, older revisions existed and were
    /// forgotten.
    pub(crate) fn is_complete(&self) -> bool {
        self.chains.iter().all(|chain| chain.fork.is_some() || chain.first_generation() == 1)
    }

    /// Removes the leaves for which `keep` returns false, and the ancestors that only they have. Does nothing if that
    /// would remove all leaves. Returns whether anything was removed.
    pub(crate) fn retain_leaves(&mut self, keep: impl Fn(&Leaf<T>) -> bool) -> bool {
        let kept: SmallVec<[&Leaf<T>; 4]> = self.leaves().filter(|leaf| keep(leaf)).collect();
        if kept.is_empty() || kept.len() == self.chains.len() {
            return false;
        }
        let mut retained = Self::new();
        for leaf in kept {
            let merged = retained.merge(&self.ancestry(&leaf.revision), leaf.deleted, leaf.payload.clone());
            debug_assert!(merged.is_ok_and(|merged| merged.superseded.is_empty()), "leaves stay leaves");
        }
        *self = retained;
        true
    }

    /// Removes ancestors that are `revs_limit` or more edits older than every leaf that descends from them. Leaves are
    /// never removed. Returns whether anything was removed.
    pub(crate) fn prune(&mut self, revs_limit: usize) -> bool {
        let kept = revs_limit.max(1);
        if let [chain] = &mut self.chains[..] {
            let excess = (chain.ancestors.len() + 1).saturating_sub(kept);
            chain.ancestors.drain(..excess);
            return excess > 0;
        }
        self.revision_count() > kept && self.prune_branches(kept)
    }

    fn prune_branches(&mut self, kept: usize) -> bool {
        let paths: Vec<_> = self.leaves().map(|leaf| self.ancestry(&leaf.revision)).collect();
        if paths.iter().all(|path| path.len() <= kept) {
            return false;
        }
        let mut pruned = Self::new();
        for (leaf, path) in self.leaves().zip(&paths) {
            let path = &path[..path.len().min(kept)];
            let merged = pruned.merge(path, leaf.deleted, leaf.payload.clone());
            debug_assert!(merged.is_ok_and(|merged| merged.superseded.is_empty()), "leaves stay leaves");
        }
        debug_assert_eq!(pruned.chains.len(), self.chains.len(), "pruning removes no leaf");
        let is_shorter = |(leaf, path): (&Leaf<T>, &Vec<_>)| pruned.ancestry(&leaf.revision).len() < path.len();
        let is_any_shorter = self.leaves().zip(&paths).any(is_shorter);
        *self = pruned;
        is_any_shorter
    }

    fn locate(&self, revision: &Revision) -> Option<RevisionLocation> {
        let locate = |(number, chain): (usize, &Chain<T>)| {
            Some(RevisionLocation { chain: number, index: chain.index_of(revision)? })
        };
        self.chains.iter().enumerate().find_map(locate)
    }

    fn parent_hash(&self, location: RevisionLocation) -> Option<Hash> {
        let chain = &self.chains[location.chain];
        match location.index.checked_sub(1) {
            Some(parent) => Some(chain.ancestors[parent]),
            None => chain.fork,
        }
    }
}

impl<T> Chain<T> {
    /// The generation of the oldest revision held here.
    fn first_generation(&self) -> u32 {
        debug_assert!(
            self.ancestors.len() < self.leaf.revision.generation() as usize,
            "a chain has fewer ancestors than its leaf has generations"
        );
        self.leaf.revision.generation().saturating_sub(self.ancestors.len() as u32)
    }

    fn index_of(&self, revision: &Revision) -> Option<usize> {
        let index = revision.generation().checked_sub(self.first_generation())? as usize;
        let is_here = match self.ancestors.get(index) {
            Some(hash) => hash == revision.hash(),
            None => self.leaf.revision == *revision,
        };
        is_here.then_some(index)
    }

    fn revision(&self, index: usize) -> Revision {
        match self.ancestors.get(index) {
            Some(&hash) => Revision::from_parts(self.first_generation() + index as u32, hash),
            None => self.leaf.revision,
        }
    }

    fn fork_point(&self) -> Option<Revision> {
        Some(Revision::from_parts(self.first_generation().checked_sub(1)?, self.fork?))
    }
}

/// The hashes of a path, which is newest first, in reverse order.
fn hashes(path: &[Revision]) -> impl Iterator<Item = Hash> {
    path.iter().rev().map(|revision| *revision.hash())
}
