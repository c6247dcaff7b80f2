//! Which watchers can a document concern? Watchers are filed under their clues; a document is walked along the paths that
//! someone has clues at, and nowhere else.
//!
//! The walk follows names as the matcher does (fields of objects, positions of arrays), on the document itself: neither the
//! index's policy nor its bounds can hide anything from it.
//!
//! Cost for a document: a look-up for each object, which says where in objects of its shape the watched fields are, and one for each
//! scalar found there; no matter how many watchers there are.

use hashbrown::HashMap;
use smallvec::SmallVec;

use super::hub::WatcherNumber;
use super::ranges::Ranges;
use crate::Result;
use crate::document::Document;
use crate::query::{Clue, Clues};
use crate::value::{Packed, PackedObject, PackedValue, Shape, ShapeNumber, collate::key};

/// Deeper clues are cut to a presence at this depth, so that every walk over the tree of paths may recurse.
const DEPTH_MAX: usize = 32;

/// Watchers under one clue.
type Filed = SmallVec<[WatcherNumber; 4]>;

/// Watchers by their clues.
#[derive(Default)]
pub(super) struct Router {
    root: Node,
    by_id: HashMap<String, Filed>,
    /// Those without a clue.
    unfiled: Filed,
    scratch: Vec<u8>,
}

/// One path.
#[derive(Default)]
struct Node {
    children: Vec<Child>,
    /// Where among the children a name is.
    by_name: HashMap<String, u32>,
    /// For shapes of objects that were here: at which positions which children are found.
    routes: HashMap<ShapeNumber, Box<[Turn]>>,
    /// By the key of a scalar here, or of an element of an array here.
    by_value: HashMap<Vec<u8>, Filed>,
    /// By ranges in which the key of a value here is.
    ranges: Ranges,
    /// Those that want anything that is here.
    present: Filed,
}

/// What is below a path, under one name.
struct Child {
    name: String,
    node: Node,
}

/// The field at a position of an object leads to this child.
#[derive(Clone, Copy)]
struct Turn {
    position: u32,
    child: u32,
}

/// So many shapes are remembered at one path.
const ROUTES_MAX: usize = 1_024;

impl Router {
    /// Files a watcher under one of the lists of clues; returns which, to remove it later. None: it is filed under no clue.
    pub(super) fn add(&mut self, watcher: WatcherNumber, alternatives: &[Clues]) -> Option<usize> {
        let chosen = (0..alternatives.len()).min_by_key(|&at| self.crowd(&alternatives[at]));
        match chosen {
            None => self.unfiled.push(watcher),
            Some(at) => alternatives[at].iter().for_each(|clue| self.file(watcher, clue)),
        }
        chosen
    }

    /// Takes a watcher away that was filed under these clues, or under none.
    pub(super) fn remove(&mut self, watcher: WatcherNumber, clues: Option<&Clues>) {
        let Some(clues) = clues else { return take(&mut self.unfiled, watcher) };
        for clue in clues {
            match clue {
                Clue::Id(id) => {
                    if let Some(filed) = self.by_id.get_mut(id.as_str()) {
                        take(filed, watcher);
                        if filed.is_empty() {
                            self.by_id.remove(id.as_str());
                        }
                    }
                }
                Clue::Value(path, _) | Clue::Range(path, ..) | Clue::Present(path) => {
                    let names: Vec<&str> = path.segments().take(DEPTH_MAX + 1).collect();
                    self.root.remove(&names, DEPTH_MAX, watcher, clue);
                }
            }
        }
    }

    /// The watchers that a document can concern which was `old` and is `new` now, each perhaps more than once.
    ///
    /// # Errors
    /// `Corrupt` if a document's bytes are damaged.
    pub(super) fn find(
        &mut self,
        id: &str,
        old: Option<&Document>,
        new: Option<&Document>,
        found: &mut Vec<WatcherNumber>,
    ) -> Result<()> {
        found.extend_from_slice(&self.unfiled);
        if !self.by_id.is_empty()
            && let Some(filed) = self.by_id.get(id)
        {
            found.extend_from_slice(filed);
        }
        if !self.root.children.is_empty() {
            for document in [old, new].into_iter().flatten() {
                self.root.visit(document.packed()?, &mut self.scratch, found)?;
            }
        }
        Ok(())
    }

    /// Whether nobody is filed.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.root.is_empty() && self.by_id.is_empty() && self.unfiled.is_empty()
    }

    /// How many are filed under these clues already: of two ways to file a watcher, the emptier tells more.
    fn crowd(&self, clues: &Clues) -> usize {
        let each = clues.iter().map(|clue| match clue {
            Clue::Id(id) => self.by_id.get(id.as_str()).map_or(0, |filed| filed.len()),
            Clue::Value(path, value) => {
                let node = self.root.at(path.segments().take(DEPTH_MAX));
                node.and_then(|node| node.by_value.get(value.as_slice())).map_or(0, |filed| filed.len())
            }
            Clue::Range(path, ..) => (1 << 16) + self.root.at(path.segments()).map_or(0, |node| node.ranges.len()),
            // Most documents have most fields: worse than any value.
            Clue::Present(_) => 1 << 32,
        });
        each.map(|crowd| crowd + 1).sum()
    }

    fn file(&mut self, watcher: WatcherNumber, clue: &Clue) {
        let path = match clue {
            Clue::Id(id) => return push(self.by_id.entry_ref(id.as_str()).or_default(), watcher),
            Clue::Value(path, _) | Clue::Range(path, ..) | Clue::Present(path) => path,
        };
        let node = path.segments().take(DEPTH_MAX).fold(&mut self.root, Node::child_mut);
        match clue {
            _ if path.segments().len() > DEPTH_MAX => push(&mut node.present, watcher),
            Clue::Value(_, value) => push(node.by_value.entry_ref(value.as_slice()).or_default(), watcher),
            Clue::Range(_, lower, upper) => node.ranges.add(watcher, lower, upper),
            _ => push(&mut node.present, watcher),
        }
    }
}

impl Node {
    fn child(&self, name: &str) -> Option<&Node> {
        self.by_name.get(name).map(|at| &self.children[*at as usize].node)
    }

    fn child_mut(&mut self, name: &str) -> &mut Node {
        let at = match self.by_name.get(name) {
            Some(at) => *at as usize,
            None => {
                self.routes.clear();
                self.by_name.insert(name.to_owned(), self.children.len() as u32);
                self.children.push(Child { name: name.to_owned(), node: Node::default() });
                self.children.len() - 1
            }
        };
        &mut self.children[at].node
    }

    fn remove_child(&mut self, name: &str) {
        let Some(at) = self.by_name.remove(name) else { return };
        self.routes.clear();
        self.children.swap_remove(at as usize);
        if let Some(moved) = self.children.get(at as usize)
            && let Some(place) = self.by_name.get_mut(&moved.name)
        {
            *place = at;
        }
    }

    fn at<'a>(&self, mut names: impl Iterator<Item = &'a str>) -> Option<&Node> {
        names.try_fold(self, |node, name| node.child(name))
    }

    fn is_empty(&self) -> bool {
        self.children.is_empty() && self.by_value.is_empty() && self.ranges.is_empty() && self.present.is_empty()
    }

    /// Takes a watcher away from below these names, at most so many of them, and then what is empty on the way.
    fn remove(&mut self, names: &[&str], depth_left: usize, watcher: WatcherNumber, clue: &Clue) {
        let Some((first, rest)) = names.split_first() else {
            match clue {
                Clue::Value(_, value) => {
                    if let Some(filed) = self.by_value.get_mut(value.as_slice()) {
                        take(filed, watcher);
                        if filed.is_empty() {
                            self.by_value.remove(value.as_slice());
                        }
                    }
                }
                Clue::Range(_, lower, upper) => self.ranges.remove(watcher, lower, upper),
                Clue::Present(_) | Clue::Id(_) => take(&mut self.present, watcher),
            }
            return;
        };
        if depth_left == 0 {
            return take(&mut self.present, watcher);
        }
        if let Some(at) = self.by_name.get(*first) {
            let child = &mut self.children[*at as usize].node;
            child.remove(rest, depth_left - 1, watcher, clue);
            if child.is_empty() {
                self.remove_child(first);
            }
        }
    }

    fn visit(&mut self, value: PackedValue<'_>, scratch: &mut Vec<u8>, found: &mut Vec<WatcherNumber>) -> Result<()> {
        found.extend_from_slice(&self.present);
        if !self.by_value.is_empty() || !self.ranges.is_empty() {
            self.look_up(value, scratch, found)?;
        }
        if self.children.is_empty() {
            return Ok(());
        }
        match value.read()? {
            Packed::Object(object) => match object.shape() {
                Some(shape) => self.follow(object, shape, scratch, found)?,
                None => {
                    for field in object.iter() {
                        let (name, value) = field?;
                        if let Some(at) = self.by_name.get(name) {
                            self.children[*at as usize].node.visit(value, scratch, found)?;
                        }
                    }
                }
            },
            Packed::Array(_) => {
                for Child { name, node } in &mut self.children {
                    if let Some(value) = value.child(name)? {
                        node.visit(value, scratch, found)?;
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Visits the watched fields of an object, without a look at the others or at names.
    fn follow(
        &mut self,
        object: PackedObject<'_>,
        shape: &Shape,
        scratch: &mut Vec<u8>,
        found: &mut Vec<WatcherNumber>,
    ) -> Result<()> {
        if self.routes.len() > ROUTES_MAX {
            self.routes.clear();
        }
        let Node { children, by_name, routes, .. } = self;
        let route = routes.entry(shape.number()).or_insert_with(|| {
            let turn = |(position, name): (usize, &str)| {
                by_name.get(name).map(|child| Turn { position: position as u32, child: *child })
            };
            shape.names().enumerate().filter_map(turn).collect()
        });
        for turn in route {
            if let Some(value) = object.value(turn.position as usize)? {
                children[turn.child as usize].node.visit(value, scratch, found)?;
            }
        }
        Ok(())
    }

    /// Those that want the value, or an element of it.
    fn look_up(&self, value: PackedValue<'_>, scratch: &mut Vec<u8>, found: &mut Vec<WatcherNumber>) -> Result<()> {
        let kind = value.kind();
        match value.read()? {
            Packed::Array(elements) if !self.by_value.is_empty() => {
                for element in elements.iter() {
                    if encode_scalar(element?.read()?, scratch) {
                        self.look_up_key(scratch, found);
                    }
                }
            }
            Packed::Array(_) | Packed::Object(_) => {}
            scalar => {
                encode_scalar(scalar, scratch);
                self.look_up_key(scratch, found);
                self.ranges.find(scratch, scratch, found);
                return Ok(());
            }
        }
        // Where among its kind it would stand is for the matcher.
        let (first, after) = key::type_range(kind);
        self.ranges.find(&first, &after, found);
        Ok(())
    }

    fn look_up_key(&self, key: &[u8], found: &mut Vec<WatcherNumber>) {
        if let Some(filed) = self.by_value.get(key) {
            found.extend_from_slice(filed);
        }
    }
}

/// Makes `key` that of a scalar; false for an array or object.
fn encode_scalar(value: Packed<'_>, out: &mut Vec<u8>) -> bool {
    out.clear();
    match value {
        Packed::Null => key::encode_null(out),
        Packed::Bool(truth) => key::encode_bool(truth, out),
        Packed::Number(number) => key::encode_number(number, out),
        Packed::String(text) => key::encode_string(text, out),
        Packed::Array(_) | Packed::Object(_) => return false,
    }
    true
}

/// Files a watcher, once: all clues of one watcher are filed in a row.
fn push(filed: &mut Filed, watcher: WatcherNumber) {
    if filed.last() != Some(&watcher) {
        filed.push(watcher);
    }
}

fn take(filed: &mut Filed, watcher: WatcherNumber) {
    if let Some(at) = filed.iter().position(|known| *known == watcher) {
        filed.swap_remove(at);
    }
}
