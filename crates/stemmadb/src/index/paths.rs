//! The dictionary of paths: each path that some document has, by number.
//!
//! A path is a sequence of steps from the document: into a field by name, or into the elements of an array. A declared index
//! has a path of its own, one step from the document. Numbers are dense and never reused, and a path's number is greater than
//! its parent's, so the dictionary is persisted as a list.
//!
//! **Bounds.** At most [`PATHS_MAX`] paths and [`TEXT_BYTES_MAX`] bytes of names: a database whose field names are data would
//! else fill memory. Beyond them no path is added and documents that have others overflow.
//!
//! **Concurrency.** Any thread may read and add at any time.

mod plan;
#[cfg(test)]
mod tests;

use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use hashbrown::{DefaultHashBuilder, HashTable};

use super::number::{PathNumber, put_ordered, take_ordered};
use crate::sync::RwLock;
use crate::{Error, Result};
pub(super) use plan::Field;
use plan::Plans;

const PATHS_MAX: usize = 1_000_000;
const TEXT_BYTES_MAX: usize = 32 << 20;

/// One step of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Step<'a> {
    /// Into the field of this name.
    Field(&'a str),
    /// Into each element of an array.
    Element,
    /// To the key that the declared index of this number has for the document; from the root only.
    Index(u32),
}

/// A step that is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum KeptStep {
    Field(Box<str>),
    Element,
    Index(u32),
}

/// A path as it is persisted: its parent, and the last step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PathEntry {
    pub(crate) number: PathNumber,
    pub(crate) parent: PathNumber,
    pub(crate) step: KeptStep,
}

impl KeptStep {
    fn as_step(&self) -> Step<'_> {
        match self {
            KeptStep::Field(name) => Step::Field(name),
            KeptStep::Element => Step::Element,
            KeptStep::Index(index) => Step::Index(*index),
        }
    }

    fn name(&self) -> Option<&str> {
        match self {
            KeptStep::Field(name) => Some(name),
            KeptStep::Element | KeptStep::Index(_) => None,
        }
    }
}

impl From<Step<'_>> for KeptStep {
    fn from(step: Step<'_>) -> Self {
        match step {
            Step::Field(name) => KeptStep::Field(name.into()),
            Step::Element => KeptStep::Element,
            Step::Index(index) => KeptStep::Index(index),
        }
    }
}

/// All paths of a database.
#[derive(Debug)]
pub(crate) struct Paths {
    /// Tells this dictionary from every other one of the process.
    identity: u64,
    /// How many paths there are, the root included.
    count: AtomicUsize,
    tree: RwLock<Tree>,
    plans: RwLock<Plans>,
    hasher: DefaultHashBuilder,
}

#[derive(Debug, Default)]
struct Tree {
    /// All paths but the root: path `n` is at `n - 1`.
    nodes: Vec<Node>,
    by_step: HashTable<u32>,
    text_bytes: usize,
}

#[derive(Debug)]
struct Node {
    parent: u32,
    step: KeptStep,
}

impl Default for Paths {
    fn default() -> Self {
        Self::new()
    }
}

impl Paths {
    /// A dictionary that has only the root.
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let identity = NEXT.fetch_add(1, Ordering::Relaxed);
        let hasher = DefaultHashBuilder::default();
        Paths { identity, count: AtomicUsize::new(1), tree: RwLock::default(), plans: RwLock::default(), hasher }
    }

    /// What tells this dictionary, with all that it will ever hold, from every other one.
    pub(crate) fn identity(&self) -> u64 {
        self.identity
    }

    /// How many paths there are, the root included; also the next number.
    pub(crate) fn len(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// The path of one more step, if there is one.
    pub(crate) fn child(&self, parent: PathNumber, step: Step<'_>) -> Option<PathNumber> {
        self.tree.read().find(self.hash(parent, step), parent, step)
    }

    /// The path of these steps from the document, if there is one.
    #[cfg(test)]
    pub(crate) fn lookup<'a>(&self, steps: impl IntoIterator<Item = Step<'a>>) -> Option<PathNumber> {
        let tree = self.tree.read();
        let mut path = PathNumber::ROOT;
        for step in steps {
            path = tree.find(self.hash(path, step), path, step)?;
        }
        Some(path)
    }

    /// The path of one more step, added if need be; none if the dictionary is full.
    pub(crate) fn intern(&self, parent: PathNumber, step: Step<'_>) -> Option<PathNumber> {
        let hash = self.hash(parent, step);
        if let Some(known) = self.tree.read().find(hash, parent, step) {
            return Some(known);
        }
        let mut tree = self.tree.write();
        if let Some(known) = tree.find(hash, parent, step) {
            return Some(known);
        }
        let name_bytes = if let Step::Field(name) = step { name.len() } else { 0 };
        if tree.nodes.len() + 1 >= PATHS_MAX || tree.text_bytes + name_bytes > TEXT_BYTES_MAX {
            return None;
        }
        Some(self.add(&mut tree, hash, parent, step))
    }

    /// Whether it leads into the elements of an array, so that a document may have several values there.
    pub(crate) fn enters_array(&self, path: PathNumber) -> bool {
        let tree = self.tree.read();
        tree.line(path).is_some_and(|line| line.iter().any(|node| node.step == KeptStep::Element))
    }

    /// The number of the declared index whose path it is, if it is one's.
    pub(crate) fn index_of(&self, path: PathNumber) -> Option<u32> {
        let tree = self.tree.read();
        match tree.nodes.get(path.0.checked_sub(1)? as usize)?.step {
            KeptStep::Index(index) => Some(index),
            _ => None,
        }
    }

    /// The path as text, as in `items[].price`; a dot, bracket or backslash within a name has a backslash before it.
    /// The root is empty. None if there is no such path.
    pub(crate) fn text(&self, path: PathNumber) -> Option<String> {
        let mut text = String::new();
        let tree = self.tree.read();
        for node in tree.line(path)? {
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

    /// The paths numbered `from` and above, in order: what is not yet persisted. The root never is.
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

    /// Adds a persisted path, in the order of numbers. One that is known already changes nothing.
    ///
    /// # Errors
    /// `Corrupt` if it contradicts what is known.
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

    /// The names of the fields on the way to a path, arrays left out.
    fn names(&self, path: PathNumber) -> Vec<String> {
        let tree = self.tree.read();
        tree.line(path).unwrap_or_default().iter().filter_map(|node| node.step.name()).map(str::to_owned).collect()
    }

    fn add(&self, tree: &mut Tree, hash: u64, parent: PathNumber, step: Step<'_>) -> PathNumber {
        let step = KeptStep::from(step);
        tree.text_bytes += step.name().map_or(0, str::len);
        tree.nodes.push(Node { parent: parent.0, step });
        let Tree { nodes, by_step, .. } = tree;
        let number = nodes.len() as u32;
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

impl Tree {
    fn find(&self, hash: u64, parent: PathNumber, step: Step<'_>) -> Option<PathNumber> {
        let same = |&number: &u32| {
            let node = &self.nodes[number as usize - 1];
            node.parent == parent.0 && node.step.as_step() == step
        };
        self.by_step.find(hash, same).map(|&number| PathNumber(number))
    }

    /// The nodes from the root, which has none, to the path.
    fn line(&self, path: PathNumber) -> Option<Vec<&Node>> {
        let mut line = Vec::new();
        let mut at = path;
        while at != PathNumber::ROOT {
            let node = self.nodes.get(at.0 as usize - 1)?;
            line.push(node);
            at = PathNumber(node.parent);
        }
        line.reverse();
        Some(line)
    }
}

impl PathEntry {
    /// Appends the stored form, without the number: the parent as an ordered integer, then 0 for elements, 1 and the
    /// name of a field, or 2 and the number of a declared index as an ordered integer.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        put_ordered(u64::from(self.parent.0), out);
        match &self.step {
            KeptStep::Element => out.push(0),
            KeptStep::Field(name) => {
                out.push(1);
                out.extend_from_slice(name.as_bytes());
            }
            KeptStep::Index(index) => {
                out.push(2);
                put_ordered(u64::from(*index), out);
            }
        }
    }

    /// The entry of this number in its stored form.
    ///
    /// # Errors
    /// `Corrupt` if these bytes are not one.
    pub(crate) fn decode(number: PathNumber, bytes: &[u8]) -> Result<PathEntry> {
        let damaged = || Error::corrupt(format!("the stored path {} is damaged", number.0));
        let mut rest = bytes;
        let parent = u32::try_from(take_ordered(&mut rest)?).map_err(|_| damaged())?;
        let step = match rest {
            [0] => KeptStep::Element,
            [1, name @ ..] => KeptStep::Field(str::from_utf8(name).map_err(|_| damaged())?.into()),
            [2, index @ ..] => {
                let mut rest = index;
                let index = u32::try_from(take_ordered(&mut rest)?).map_err(|_| damaged())?;
                if !rest.is_empty() || parent != PathNumber::ROOT.0 {
                    return Err(damaged());
                }
                KeptStep::Index(index)
            }
            _ => return Err(damaged()),
        };
        Ok(PathEntry { number, parent: PathNumber(parent), step })
    }
}
