//! Test oracle: the expected content of a database in the simplest form, a map of documents, each a set of revisions
//! with their parents.
//!
//! It shares only types with the library. It takes what it can't compute (the hash of a new revision) from the
//! library's result, checking that equal edits always get equal revisions.

#![allow(dead_code, reason = "each test uses a different part of this module")]

pub(crate) mod bodies;
pub(crate) mod compare;

use std::collections::{BTreeMap, BTreeSet};

use stemmadb::{Edit, ErrorKind, Revision, Value};

/// Attachments have their own tests.
pub(crate) const NO_FILES: &str = "the model's documents have no files";

/// The engine turns an update into a replacement; updates have their own tests.
pub(crate) const NO_UPDATES: &str = "the model replaces documents";

/// The expected contents of a database.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Oracle {
    pub(crate) documents: BTreeMap<String, Document>,
    pub(crate) locals: BTreeMap<String, (u64, Value)>,
    pub(crate) sequence: u64,
    pub(crate) revs_limit: usize,
}

/// The known revisions of one document.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Document {
    /// Sequence of its latest write.
    pub(crate) sequence: u64,
    /// Each known revision, with its parent if known.
    pub(crate) parents: BTreeMap<Revision, Option<Revision>>,
    /// The bodies of the leaves.
    pub(crate) bodies: BTreeMap<Revision, Body>,
}

/// Content of one revision.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Body {
    pub(crate) deleted: bool,
    pub(crate) value: Value,
}

impl Oracle {
    pub(crate) fn new(revs_limit: usize) -> Self {
        Oracle { documents: BTreeMap::new(), locals: BTreeMap::new(), sequence: 0, revs_limit }
    }

    /// The expected result of an edit: the parent of the new revision, or the kind of error.
    pub(crate) fn expect(&self, edit: &Edit) -> Result<Option<Revision>, ErrorKind> {
        let current = self.documents.get(edit.id().as_str());
        let winner = current.map(|document| document.winner().0);
        let is_live = current.is_some_and(Document::is_live);
        match edit {
            Edit::Insert { .. } if is_live => Err(ErrorKind::Conflict),
            Edit::Insert { .. } | Edit::Upsert { .. } => Ok(winner),
            Edit::Replace { revision, .. } | Edit::Delete { revision, .. } => match current {
                Some(document) if is_live => match document.leaves().iter().find(|(leaf, _)| leaf == revision) {
                    Some((_, body)) if !body.deleted => Ok(Some(*revision)),
                    _ => Err(ErrorKind::Conflict),
                },
                _ => Err(ErrorKind::NotFound),
            },
            Edit::Foreign { revisions, .. } => {
                let counts_down = revisions.windows(2).all(|pair| pair[1].generation() + 1 == pair[0].generation());
                if revisions.is_empty() || !counts_down { Err(ErrorKind::Invalid) } else { Ok(None) }
            }
            Edit::Depart { replaced, .. } => {
                let is_known = current.is_some_and(|document| document.parents.contains_key(replaced));
                let is_leaf =
                    current.is_some_and(|document| document.leaves().iter().any(|(leaf, _)| leaf == replaced));
                if is_known && !is_leaf { Ok(Some(*replaced)) } else { Err(ErrorKind::Conflict) }
            }
            Edit::Update { .. } => unreachable!("{NO_UPDATES}"),
            Edit::Attach { .. } | Edit::Detach { .. } | Edit::Put { .. } => unreachable!("{NO_FILES}"),
        }
    }

    /// Applies an edit that succeeded as `revision`. Returns true if it is an event of the feed.
    pub(crate) fn apply(&mut self, edit: &Edit, parent: Option<Revision>, revision: Revision) -> bool {
        let (path, body) = match edit {
            Edit::Foreign { revisions, deleted, body, .. } => {
                (revisions.clone(), Body { deleted: *deleted, value: body.clone() })
            }
            Edit::Insert { body, .. } | Edit::Replace { body, .. } | Edit::Upsert { body, .. } => {
                (std::iter::once(revision).chain(parent).collect(), Body { deleted: false, value: body.clone() })
            }
            Edit::Depart { body, .. } => {
                (std::iter::once(revision).chain(parent).collect(), Body { deleted: true, value: body.clone() })
            }
            Edit::Delete { .. } => {
                let value = Value::Object(Default::default());
                (std::iter::once(revision).chain(parent).collect(), Body { deleted: true, value })
            }
            Edit::Update { .. } => unreachable!("{NO_UPDATES}"),
            Edit::Attach { .. } | Edit::Detach { .. } | Edit::Put { .. } => unreachable!("{NO_FILES}"),
        };
        let document = self.documents.entry(edit.id().as_str().to_owned()).or_default();
        if !document.merge_path(&path, body) {
            return false;
        }
        document.prune(self.revs_limit);
        self.sequence += 1;
        document.sequence = self.sequence;
        true
    }

    /// The expected result of writing or deleting a local document: its new number, or the kind of error.
    pub(crate) fn expect_local(&self, id: &str, expected: Option<u64>, deletes: bool) -> Result<u64, ErrorKind> {
        let current = self.locals.get(id).map(|(number, _)| *number);
        if expected.is_some() && expected != current {
            return Err(ErrorKind::Conflict);
        }
        if deletes && current.is_none() {
            return Err(ErrorKind::NotFound);
        }
        Ok(current.unwrap_or(0) + 1)
    }

    pub(crate) fn apply_local(&mut self, id: &str, number: u64, body: Option<Value>) {
        match body {
            Some(body) => self.locals.insert(id.to_owned(), (number, body)),
            None => self.locals.remove(id),
        };
    }

    /// The feed: each document at its latest sequence.
    pub(crate) fn feed(&self) -> BTreeMap<u64, (&String, &Document)> {
        self.documents.iter().map(|(id, document)| (document.sequence, (id, document))).collect()
    }

    pub(crate) fn live_count(&self) -> usize {
        self.documents.values().filter(|document| document.is_live()).count()
    }
}

impl Document {
    /// Adds the revisions of `path`. Returns false if it contains nothing new.
    fn merge_path(&mut self, path: &[Revision], body: Body) -> bool {
        let mut is_new = false;
        for (at, revision) in path.iter().enumerate() {
            let parent = path.get(at + 1).copied();
            match self.parents.get_mut(revision) {
                None => {
                    self.parents.insert(*revision, parent);
                    is_new = true;
                    if at == 0 {
                        self.bodies.insert(*revision, body.clone());
                    }
                }
                Some(known @ None) if parent.is_some() => {
                    *known = parent;
                    is_new = true;
                }
                Some(known) => {
                    assert!(parent.is_none() || *known == parent, "the test generated contradictory ancestries")
                }
            }
        }
        let interior = self.interior();
        self.bodies.retain(|revision, _| !interior.contains(revision));
        is_new
    }

    /// Removes all but the newest `limit` revisions on the path to each leaf.
    fn prune(&mut self, limit: usize) {
        let mut parents: BTreeMap<Revision, Option<Revision>> = BTreeMap::new();
        for leaf in self.leaf_revisions() {
            let path: Vec<Revision> = self.ancestry(&leaf).into_iter().take(limit).collect();
            for (at, revision) in path.iter().enumerate() {
                let parent = parents.entry(*revision).or_default();
                *parent = parent.or(path.get(at + 1).copied());
            }
        }
        self.parents = parents;
    }

    fn interior(&self) -> BTreeSet<Revision> {
        self.parents.values().flatten().copied().collect()
    }

    fn leaf_revisions(&self) -> Vec<Revision> {
        let interior = self.interior();
        self.parents.keys().filter(|revision| !interior.contains(revision)).copied().collect()
    }

    /// The leaves, winner first, in the order in which they would win.
    pub(crate) fn leaves(&self) -> Vec<(Revision, &Body)> {
        let mut leaves: Vec<_> =
            self.leaf_revisions().into_iter().map(|revision| (revision, &self.bodies[&revision])).collect();
        leaves.sort_by_key(|(revision, body)| std::cmp::Reverse((!body.deleted, *revision)));
        leaves
    }

    pub(crate) fn winner(&self) -> (Revision, &Body) {
        self.leaves()[0]
    }

    pub(crate) fn is_live(&self) -> bool {
        !self.winner().1.deleted
    }

    /// The revision and its known ancestors, newest first.
    pub(crate) fn ancestry(&self, revision: &Revision) -> Vec<Revision> {
        let mut path = vec![*revision];
        while let Some(Some(parent)) = self.parents.get(&path[path.len() - 1]) {
            path.push(*parent);
        }
        path
    }
}
