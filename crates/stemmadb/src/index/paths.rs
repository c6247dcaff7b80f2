//! Path dictionary: assigns a number to every path that occurs in a document.
//!
//! A path is a sequence of steps from the document: into a field by name, or into the elements of an array. A declared
//! index is represented by a path of one step from the root.
//!
//! **Invariants.** Numbers are dense and never reused, and a path's number is greater than its parent's, so the
//! dictionary is persisted as a list.
//!
//! **Limits.** At most [`PATHS_MAX`] paths and [`TEXT_BYTES_MAX`] bytes of names, so that a database whose field names
//! are data does not exhaust memory. In a full dictionary no path is added, and documents with further paths overflow.
//!
//! **Concurrency.** Threads may read and add paths concurrently.

mod plan;
#[cfg(test)]
mod tests;

use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use hashbrown::{DefaultHashBuilder, HashTable};

use super::number::{PathNumber, put_ordered, take_ordered};
use crate::sync::RwLock;
use crate::{Error, Result};
pub(super) use plan::FieldPlan;
use plan::PlanCache;

const PATHS_MAX: usize = 1_000_000;
const TEXT_BYTES_MAX: usize = 32 << 20;

/// One step of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Step<'a> {
    /// Into the field of this name.
    Field(&'a str),
    /// Into each element of an array.
    Element,
    /// To the key of the document in the declared index with this number; from the root only.
    Index(u32),
}

/// A step that owns its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum OwnedStep {
    Field(Box<str>),
    Element,
    Index(u32),
}

/// A persisted path: its parent and its last step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PathEntry {
    pub(crate) number: PathNumber,
    pub(crate) parent: PathNumber,
    pub(crate) step: OwnedStep,
}

impl OwnedStep {
    fn as_step(&self) -> Step<'_> {
        match self {
            OwnedStep::Field(name) => Step::Field(name),
            OwnedStep::Element => Step::Element,
            OwnedStep::Index(index) => Step::Index(*index),
        }
    }

    fn name(&self) -> Option<&str> {
        match self {
            OwnedStep::Field(name) => Some(name),
            OwnedStep::Element | OwnedStep::Index(_) => None,
        }
    }
}

impl From<Step<'_>> for OwnedStep {
    fn from(step: Step<'_>) -> Self {
        match step {
            Step::Field(name) => OwnedStep::Field(name.into()),
            Step::Element => OwnedStep::Element,
            Step::Index(index) => OwnedStep::Index(index),
        }
    }
}

/// The path dictionary of a database.
#[derive(Debug)]
pub(crate) struct Paths {
    /// Distinguishes this dictionary from all others of the process.
    identity: u64,
    /// The number of paths, the root included.
    count: AtomicUsize,
    tree: RwLock<PathTree>,
    plans: RwLock<PlanCache>,
    hasher: DefaultHashBuilder,
}

#[derive(Debug, Default)]
struct PathTree {
    /// All paths except the root: path `n` is at `n - 1`.
    nodes: Vec<PathNode>,
    by_step: HashTable<u32>,
    text_bytes: usize,
}

#[derive(Debug)]
struct PathNode {
    parent: u32,
    step: OwnedStep,
}

impl Default for Paths {
    fn default() -> Self {
        Self::new()
    }
}

impl Paths {
    /// A dictionary that contains only the root.
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let identity = NEXT.fetch_add(1, Ordering::Relaxed);
        let hasher = DefaultHashBuilder::default();
        Paths { identity, count: AtomicUsize::new(1), tree: RwLock::default(), plans: RwLock::default(), hasher }
    }

    /// Distinguishes this dictionary from all others of the process, whatever paths are added later.
    pub(crate) fn identity(&self) -> u64 {
        self.identity
    }

    /// The number of paths, the root included, which is also the next path number.
    pub(crate) fn len(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// The path of one more step after `parent`, if it is in the dictionary.
    pub(crate) fn child(&self, parent: PathNumber, step: Step<'_>) -> Option<PathNumber> {
        self.tree.read().find(self.hash(parent, step), parent, step)
    }

    /// The path of these steps from the root, if it is in the dictionary.
    #[cfg(test)]
    pub(crate) fn lookup<'a>(&self, steps: impl IntoIterator<Item = Step<'a>>) -> Option<PathNumber> {
        let tree = self.tree.read();
        let mut path = PathNumber::ROOT;
        for step in steps {
            path = tree.find(self.hash(path, step), path, step)?;
        }
        Some(path)
    }

    /// The path of one more step after `parent`, which is added if needed; `None` if the dictionary is full.
    pub(crate) fn intern(&self, parent: PathNumber, step: Step<'_>) -> Option<PathNumber> {
        let hash = self.hash(parent, step);
        if let Some(known) = self.tree.read().find(hash, parent, step) {
            return Some(known);
        }
        let mut tree = self.tree.write();
        // Another thread may have added it between the two locks.
        if let Some(known) = tree.find(hash, parent, step) {
            return Some(known);
        }
        let name_bytes = if let Step::Field(name) = step { name.len() } else { 0 };
        if tree.nodes.len() + 1 >= PATHS_MAX || tree.text_bytes + name_bytes > TEXT_BYTES_MAX {
            return None;
        }
        Some(self.add(&mut tree, hash, parent, step))
    }

    /// Whether a path enters the elements of an array, so that a document may have several values there.
    pub(crate) fn enters_array(&self, path: PathNumber) -> bool {
        let tree = self.tree.read();
        tree.steps_to(path).is_some_and(|steps| steps.iter().any(|node| node.step == OwnedStep::Element))
    }

    /// The number of the declared index that a path represents, if it represents one.
    pub(crate) fn index_of(&self, path: PathNumber) -> Option<u32> {
        let tree = self.tree.read();
        match tree.nodes.get(path.0.checked_sub(1)? as usize)?.step {
            OwnedStep::Index(index) => Some(index),
            _ => None,
        }
    }

    /// The path as text, such as `items[].price`. A dot, bracket or backslash in a name is escaped by a backslash. The
    /// root is the empty text. `None` if there is no such path.
    pub(crate) fn text(&self, path: PathNumber) -> Option<String> {
        let mut text = String::new();
        let tree = self.tree.read();
        for node in tree.steps_to(path)? {
            match node.step.as_step() {
                Step::Element => text.push_str("[]"),
                Step::Index(index) => text.push_str(&format!("(declared index {index})")),
                Step::Field(name) => {
                    if node.parent != PathNumber::ROOT.0 {
                        text.push('.');
                    }
                    for character in name.chars() {
                        if matches!(character, '.' | '[' | '\\') {
                            text.push('\\');
                        }
                        text.push(character);
                    }
                }
            }
        }
        Some(text)
    }

    /// The paths numbered `from` and above, in order: those that are not yet persisted. The root is never persisted.
    pub(crate) fn entries_since(&self, from: usize) -> Vec<PathEntry> {
        let from = from.max(1);
        let tree = self.tree.read();
        let nodes = tree.nodes.iter().enumerate().skip(from - 1);
        nodes
            .map(|(at, node)| PathEntry {
                number: PathNumber(at as u32 + 1),
                parent: PathNumber(node.parent),
                step: node.step.clone(),
            })
            .collect()
    }

    /// Restores a persisted path. Paths are restored in ascending order of their numbers; restoring one twice is a
    /// no-op.
    ///
    /// # Errors
    /// `Corrupt` if the path contradicts the dictionary.
    pub(crate) fn restore(&self, entry: &PathEntry) -> Result<()> {
        let step = entry.step.as_step();
        let hash = self.hash(entry.parent, step);
        let mut tree = self.tree.write();
        let next = tree.nodes.len() + 1;
        match tree.find(hash, entry.parent, step) {
            Some(known) if known == entry.number => Ok(()),
            None if entry.number.0 as usize == next && entry.parent < entry.number => {
                self.add(&mut tree, hash, entry.parent, step);
                Ok(())
            }
            _ => Err(Error::corrupt(format!("path {} contradicts the {next} paths known", entry.number.0))),
        }
    }

    /// The field names of a path, without array steps.
    fn names(&self, path: PathNumber) -> Vec<String> {
        let tree = self.tree.read();
        tree.steps_to(path).unwrap_or_default().iter().filter_map(|node| node.step.name()).map(str::to_owned).collect()
    }

    fn add(&self, tree: &mut PathTree, hash: u64, parent: PathNumber, step: Step<'_>) -> PathNumber {
        debug_assert!(
            parent == PathNumber::ROOT || !matches!(step, Step::Index(_)),
            "the path of a declared index is one step from the root"
        );
        let step = OwnedStep::from(step);
        tree.text_bytes += step.name().map_or(0, str::len);
        tree.nodes.push(PathNode { parent: parent.0, step });
        let PathTree { nodes, by_step, .. } = tree;
        let number = nodes.len() as u32;
        assert!(parent.0 < number, "the number of a path is greater than its parent's");
        debug_assert_eq!(number as usize, self.len(), "path numbers are dense");
        by_step.insert_unique(hash, number, |&number| {
            let node = &nodes[number as usize - 1];
            self.hash(PathNumber(node.parent), node.step.as_step())
        });
        self.count.store(number as usize + 1, Ordering::Release);
        PathNumber(number)
    }

    fn hash(&self, parent: PathNumber, step: Step<'_>) -> u64 {
        self.hasher.hash_one((parent, step))
    }
}

impl PathTree {
    fn find(&self, hash: u64, parent: PathNumber, step: Step<'_>) -> Option<PathNumber> {
        let same = |&number: &u32| {
            let node = &self.nodes[number as usize - 1];
            node.parent == parent.0 && node.step.as_step() == step
        };
        self.by_step.find(hash, same).map(|&number| PathNumber(number))
    }

    /// The steps from the root to a path; `None` if there is no such path.
    fn steps_to(&self, path: PathNumber) -> Option<Vec<&PathNode>> {
        let mut steps = Vec::new();
        let mut at = path;
        while at != PathNumber::ROOT {
            let node = self.nodes.get(at.0 as usize - 1)?;
            steps.push(node);
            at = PathNumber(node.parent);
        }
        steps.reverse();
        Some(steps)
    }
}

impl PathEntry {
    /// Appends the stored form, without the number: the parent as an ordered integer, then 0 for elements, 1 and the
    /// name for a field, or 2 and the number as an ordered integer for a declared index.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        put_ordered(u64::from(self.parent.0), out);
        match &self.step {
            OwnedStep::Element => out.push(0),
            OwnedStep::Field(name) => {
                out.push(1);
                out.extend_from_slice(name.as_bytes());
            }
            OwnedStep::Index(index) => {
                out.push(2);
                put_ordered(u64::from(*index), out);
            }
        }
    }

    /// Decodes the stored form of the path with this number.
    ///
    /// # Errors
    /// `Corrupt` if the bytes are not a path.
    pub(crate) fn decode(number: PathNumber, bytes: &[u8]) -> Result<PathEntry> {
        let damaged = || Error::corrupt(format!("the stored path {} is damaged", number.0));
        let mut rest = bytes;
        let parent = u32::try_from(take_ordered(&mut rest)?).map_err(|_| damaged())?;
        let step = match rest {
            [0] => OwnedStep::Element,
            [1, name @ ..] => OwnedStep::Field(str::from_utf8(name).map_err(|_| damaged())?.into()),
            [2, index @ ..] => {
                let mut rest = index;
                let index = u32::try_from(take_ordered(&mut rest)?).map_err(|_| damaged())?;
                if !rest.is_empty() || parent != PathNumber::ROOT.0 {
                    return Err(damaged());
                }
                OwnedStep::Index(index)
            }
            _ => return Err(damaged()),
        };
        Ok(PathEntry { number, parent: PathNumber(parent), step })
    }
}
