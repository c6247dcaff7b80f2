//! The revision tree of one document: which edits are known, how they descend, which leaf wins.
//!
//! **Layout.** One [`Chain`] per leaf: the leaf with its payload, and the ancestors that no earlier chain holds already,
//! oldest first, as bare hashes (generations count up by one). A chain that branches off another names its fork point.
//! Almost every document has one chain, and an edit pushes one hash onto it.
//!
//! **Invariants.** Each revision is in exactly one chain. Chains are sorted, the winner first. A chain's fork point
//! is an ancestor (never the leaf) in another chain. A chain without one begins at a root: the first
//! edit of all, or the oldest edit that is known here.
//!
//! **Merging** is the union of what is known, so the order in which paths arrive makes no difference. A
//! path that claims another parent for a known revision is not believed from there on: no honest
//! peer can claim that, since a revision's hash depends on its parent.

mod stored;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;

use smallvec::{SmallVec, smallvec};

use super::edit::{Hash, Revision};
use crate::{Error, Result};

/// A revision that nothing descends from, and what is stored for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Leaf<T> {
    pub(crate) revision: Revision,
    pub(crate) deleted: bool,
    pub(crate) payload: T,
}

impl<T> Leaf<T> {
    /// What the winner has most of: being alive, then its revision.
    fn rank(&self) -> (bool, Revision) {
        (!self.deleted, self.revision)
    }
}

#[derive(Debug, Clone)]
struct Chain<T> {
    leaf: Leaf<T>,
    /// The leaf's ancestors in this chain, oldest first.
    ancestors: Vec<Hash>,
    /// The hash of the parent of the oldest revision here, if that parent is known; it is in another chain.
    fork: Option<Hash>,
}

/// What a merge did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The revision succeeds a leaf, or is the first of its document.
    NewLeaf,
    /// The revision is a new leaf beside the others.
    NewBranch,
    /// The revision was known; what is new is how it descends. There may be fewer leaves now.
    Joined,
    /// All of it was known: nothing changed.
    Known,
}

/// What a merge did, and the payloads that no leaf holds any longer.
#[derive(Debug, Clone)]
pub(crate) struct Merged<T> {
    pub(crate) outcome: Outcome,
    pub(crate) superseded: SmallVec<[T; 1]>,
}

/// What a replica lacks of a peer's revisions of a document.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Missing {
    /// The revisions that are not known here, in the order asked.
    pub missing: Vec<Revision>,
    /// Leaves here that the missing ones may descend from.
    pub possible_ancestors: Vec<Revision>,
}

/// The known edits of one document. `T` is whatever the owner stores for a leaf.
#[derive(Debug, Clone)]
pub(crate) struct RevisionTree<T> {
    chains: SmallVec<[Chain<T>; 1]>,
}

/// Where a revision is: which chain, and how many ancestors in that chain are older.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Place {
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

    /// The tree of a new document. No allocation.
    #[cfg(test)]
    pub(crate) fn of_first(revision: Revision, deleted: bool, payload: T) -> Self {
        let leaf = Leaf { revision, deleted, payload };
        RevisionTree { chains: smallvec![Chain { leaf, ancestors: Vec::new(), fork: None }] }
    }

    /// Adds a revision with its ancestry, `path`, newest first; `deleted` and `payload` belong to the newest.
    ///
    /// An edit of a leaf, `[new, leaf]`, costs one push; else (path × leaves) comparisons.
    ///
    /// # Errors
    /// `Invalid`, and nothing changed, if the path is empty or its generations don't count down by one.
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
            None => self.begin(leaf, path),
            Some((0, _)) => Merged { outcome: Outcome::Known, superseded: SmallVec::new() },
            Some((at, place)) => self.descend(leaf, &path[..at], path[at], place),
        };
        if let Some((at, _)) = known
            && self.join(&path[at..], &mut merged.superseded)
            && merged.outcome == Outcome::Known
        {
            merged.outcome = Outcome::Joined;
        }
        if self.chains.len() > 1 {
            self.chains.sort_by_key(|chain| Reverse(chain.leaf.rank()));
        }
        Ok(merged)
    }

    /// A path that shares nothing with what is known.
    fn begin(&mut self, leaf: Leaf<T>, path: &[Revision]) -> Merged<T> {
        let outcome = if self.chains.is_empty() { Outcome::NewLeaf } else { Outcome::NewBranch };
        self.chains.push(Chain { leaf, ancestors: hashes(&path[1..]).collect(), fork: None });
        Merged { outcome, superseded: SmallVec::new() }
    }

    /// A path of new revisions, `path`, that descends from the known `parent`.
    fn descend(&mut self, leaf: Leaf<T>, path: &[Revision], parent: Revision, place: Place) -> Merged<T> {
        let chain = &mut self.chains[place.chain];
        if place.index < chain.ancestors.len() {
            let fork = Some(*parent.hash());
            self.chains.push(Chain { leaf, ancestors: hashes(&path[1..]).collect(), fork });
            return Merged { outcome: Outcome::NewBranch, superseded: SmallVec::new() };
        }
        // No more room than that: memtables hold one of these for each version.
        chain.ancestors.reserve_exact(path.len());
        chain.ancestors.push(*parent.hash());
        chain.ancestors.extend(hashes(&path[1..]));
        let former = std::mem::replace(&mut chain.leaf, leaf);
        Merged { outcome: Outcome::NewLeaf, superseded: smallvec![former.payload] }
    }

    /// Connects known roots to what `path` knows about their parents. True if anything was new.
    ///
    /// The first revision of the path is known.
    fn join(&mut self, path: &[Revision], superseded: &mut SmallVec<[T; 1]>) -> bool {
        let mut changed = false;
        let mut rest = path;
        while let [child, older @ ..] = rest
            && let Some(parent) = older.first()
            && let Some(place) = self.locate(child)
        {
            match self.parent_hash(place) {
                Some(known) if known == *parent.hash() => rest = older,
                Some(_) => break,
                None => {
                    self.attach(place.chain, older, superseded);
                    changed = true;
                }
            }
        }
        changed
    }

    /// Gives a chain that begins at a root the parents in `older`, of which the first at least is news to it.
    fn attach(&mut self, chain: usize, older: &[Revision], superseded: &mut SmallVec<[T; 1]>) {
        let parent = older[0];
        match self.locate(&parent) {
            None => {
                let unknown = older.iter().take_while(|revision| self.locate(revision).is_none()).count();
                self.chains[chain].ancestors.splice(0..0, hashes(&older[..unknown]));
            }
            Some(place) if place.index < self.chains[place.chain].ancestors.len() => {
                self.chains[chain].fork = Some(*parent.hash());
            }
            Some(place) => {
                // A leaf turns out to be an ancestor: its chain becomes the beginning of this one.
                let former = std::mem::take(&mut self.chains[place.chain].ancestors);
                let fork = self.chains[place.chain].fork;
                let this = &mut self.chains[chain];
                this.ancestors.splice(0..0, former.into_iter().chain([*parent.hash()]));
                this.fork = fork;
                superseded.push(self.chains.remove(place.chain).leaf.payload);
            }
        }
    }

    /// The leaf that everybody agrees on: alive if any is, then the highest revision.
    pub(crate) fn winner(&self) -> Option<&Leaf<T>> {
        self.chains.first().map(|chain| &chain.leaf)
    }

    /// All leaves, the winner first.
    pub(crate) fn leaves(&self) -> impl ExactSizeIterator<Item = &Leaf<T>> {
        self.chains.iter().map(|chain| &chain.leaf)
    }

    /// The living leaves beside the winner, best first.
    #[cfg(test)]
    pub(crate) fn conflicts(&self) -> impl Iterator<Item = &Leaf<T>> {
        self.leaves().skip(1).filter(|leaf| !leaf.deleted)
    }

    /// The leaf of this revision, if it is one.
    pub(crate) fn leaf(&self, revision: &Revision) -> Option<&Leaf<T>> {
        self.leaves().find(|leaf| leaf.revision == *revision)
    }

    /// Whether the revision is known, as leaf or as ancestor.
    pub(crate) fn contains(&self, revision: &Revision) -> bool {
        self.locate(revision).is_some()
    }

    /// How many revisions are known.
    pub(crate) fn revision_count(&self) -> usize {
        self.chains.iter().map(|chain| chain.ancestors.len() + 1).sum()
    }

    /// The bytes that it takes beside itself.
    pub(crate) fn heap_bytes(&self) -> usize {
        let chains = if self.chains.spilled() { self.chains.capacity() * size_of::<Chain<T>>() } else { 0 };
        chains + self.chains.iter().map(|chain| chain.ancestors.capacity() * size_of::<Hash>()).sum::<usize>()
    }

    /// The revision and its known ancestors, newest first; empty if it is not known.
    pub(crate) fn ancestry(&self, revision: &Revision) -> Vec<Revision> {
        let mut path = Vec::new();
        let mut next = self.locate(revision);
        while let Some(Place { chain, index }) = next {
            let chain = &self.chains[chain];
            path.extend((0..=index).rev().map(|index| chain.revision(index)));
            next = chain.fork_point().and_then(|fork| self.locate(&fork));
        }
        path
    }

    /// Whether all of `path`, newest first, is known to be one line of descent.
    pub(crate) fn has_path(&self, path: &[Revision]) -> bool {
        path.first().is_none_or(|revision| self.ancestry(revision).starts_with(path))
    }

    /// Which of a peer's revisions are not known, and which leaves they may descend from.
    pub(crate) fn missing(&self, revisions: &[Revision]) -> Missing {
        let missing: Vec<_> = revisions.iter().copied().filter(|revision| !self.contains(revision)).collect();
        let newest = missing.iter().map(Revision::generation).max().unwrap_or(0);
        let possible_ancestors =
            self.leaves().map(|leaf| leaf.revision).filter(|leaf| leaf.generation() < newest).collect();
        Missing { missing, possible_ancestors }
    }

    /// Stores another payload for a leaf. False if the revision is not a leaf.
    pub(crate) fn update_payload(&mut self, revision: &Revision, payload: T) -> bool {
        let chain = self.chains.iter_mut().find(|chain| chain.leaf.revision == *revision);
        chain.map(|chain| chain.leaf.payload = payload).is_some()
    }

    /// Whether every line of descent is known from its first edit on. If not, revisions there were are unknown here.
    pub(crate) fn is_complete(&self) -> bool {
        self.chains.iter().all(|chain| chain.fork.is_some() || chain.first_generation() == 1)
    }

    /// Forgets the leaves for which `keeps` is false, and what only they descend from. Does nothing if none would be left, or
    /// all; returns whether anything was forgotten.
    pub(crate) fn retain_leaves(&mut self, keeps: impl Fn(&Leaf<T>) -> bool) -> bool {
        let kept: SmallVec<[&Leaf<T>; 4]> = self.leaves().filter(|leaf| keeps(leaf)).collect();
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

    /// Forgets ancestors that are `revs_limit` or more edits older than every leaf that descends from them; returns whether there were
    /// any. Leaves are never forgotten.
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
        debug_assert_eq!(pruned.chains.len(), self.chains.len(), "no leaf is forgotten");
        let is_shorter = |(leaf, path): (&Leaf<T>, &Vec<_>)| pruned.ancestry(&leaf.revision).len() < path.len();
        let is_any_shorter = self.leaves().zip(&paths).any(is_shorter);
        *self = pruned;
        is_any_shorter
    }

    fn locate(&self, revision: &Revision) -> Option<Place> {
        self.chains.iter().enumerate().find_map(|(chain, held)| Some(Place { chain, index: held.index_of(revision)? }))
    }

    fn parent_hash(&self, place: Place) -> Option<Hash> {
        let chain = &self.chains[place.chain];
        match place.index.checked_sub(1) {
            Some(parent) => Some(chain.ancestors[parent]),
            None => chain.fork,
        }
    }
}

impl<T> Chain<T> {
    /// The generation of the oldest revision held here.
    fn first_generation(&self) -> u32 {
        // Paths count down by one to at least 1, so there are never more ancestors than generations.
        self.leaf.revision.generation().saturating_sub(self.ancestors.len() as u32)
    }

    fn index_of(&self, revision: &Revision) -> Option<usize> {
        let index = revision.generation().checked_sub(self.first_generation())? as usize;
        let known = match self.ancestors.get(index) {
            Some(hash) => hash == revision.hash(),
            None => self.leaf.revision == *revision,
        };
        known.then_some(index)
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

/// The hashes of a path that is newest first, oldest first.
fn hashes(path: &[Revision]) -> impl Iterator<Item = Hash> {
    path.iter().rev().map(|revision| *revision.hash())
}
