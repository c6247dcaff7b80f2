//! Routes a written document to the watchers it may concern. Watchers are registered under their clues, and a document
//! is walked only along paths that have clues.
//!
//! The walk follows names as the matcher does (fields of objects, positions of arrays) and reads the document itself,
//! so it depends neither on the index's policy nor on its limits.
//!
//! Cost per document: one lookup for each object on a watched path, which gives the positions of the watched fields in
//! objects of its shape, and one for each scalar found there, independent of the number of watchers.

use hashbrown::HashMap;
use smallvec::SmallVec;

use super::hub::WatcherNumber;
use super::ranges::Ranges;
use crate::Result;
use crate::document::Document;
use crate::query::{Clue, Clues};
use crate::value::{Packed, PackedObject, PackedValue, Shape, ShapeNumber, collate::key};

/// Deeper clues are reduced to a presence check at this depth, which bounds the recursion over the tree of paths.
const DEPTH_MAX: usize = 32;

/// Watchers registered under one clue.
type WatcherList = SmallVec<[WatcherNumber; 4]>;

/// Watchers by their clues.
#[derive(Default)]
pub(super) struct Router {
    root: Node,
    by_id: HashMap<String, WatcherList>,
    /// Watchers without a clue, which receive every document.
    without_clues: WatcherList,
    scratch: Vec<u8>,
}

/// The watchers of one path.
#[derive(Default)]
struct Node {
    children: Vec<Child>,
    /// Index into `children` by name.
    by_name: HashMap<String, u32>,
    /// For each object shape seen at this path: the positions of watched fields, and the child each leads to.
    routes: HashMap<ShapeNumber, Box<[FieldRoute]>>,
    /// Watchers by the key of a scalar at this path, or of an element of an array at this path.
    by_value: HashMap<Vec<u8>, WatcherList>,
    /// Watchers by ranges that contain the key of a value at this path.
    ranges: Ranges,
    /// Watchers of any value at this path.
    present: WatcherList,
}

/// A child path.
struct Child {
    name: String,
    node: Node,
}

/// Maps the field at a position of an object to a child.
#[derive(Clone, Copy)]
struct FieldRoute {
    position: u32,
    child: u32,
}

/// Maximum number of shapes remembered per path.
const ROUTES_MAX: usize = 1_024;

impl Router {
    /// Registers a watcher under one of the clue lists. Returns the index of the list, which [`Router::remove`] needs;
    /// `None` if it has no clues.
    pub(super) fn add(&mut self, watcher: WatcherNumber, alternatives: &[Clues]) -> Option<usize> {
        let chosen = (0..alternatives.len()).min_by_key(|&at| self.load(&alternatives[at]));
        match chosen {
            None => self.without_clues.push(watcher),
            Some(at) => alternatives[at].iter().for_each(|clue| self.insert_clue(watcher, clue)),
        }
        chosen
    }

    /// Removes a watcher that was registered under these clues, or under none.
    pub(super) fn remove(&mut self, watcher: WatcherNumber, clues: Option<&Clues>) {
        let Some(clues) = clues else { return remove_watcher(&mut self.without_clues, watcher) };
        for clue in clues {
            match clue {
                Clue::Id(id) => {
                    if let Some(watchers) = self.by_id.get_mut(id.as_str()) {
                        remove_watcher(watchers, watcher);
                        if watchers.is_empty() {
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

    /// Appends the watchers that may be concerned by a document changing from `old` to `new`; a watcher may appear more
    /// than once.
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
        found.extend_from_slice(&self.without_clues);
        if !self.by_id.is_empty()
            && let Some(watchers) = self.by_id.get(id)
        {
            found.extend_from_slice(watchers);
        }
        if !self.root.children.is_empty() {
            for document in [old, new].into_iter().flatten() {
                self.root.visit(document.packed()?, &mut self.scratch, found)?;
            }
        }
        Ok(())
    }

    /// Whether no watcher is registered.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.root.is_empty() && self.by_id.is_empty() && self.without_clues.is_empty()
    }

    /// Estimates how many watchers are already registered under these clues; the least loaded list is the most
    /// selective.
    fn load(&self, clues: &Clues) -> usize {
        let each = clues.iter().map(|clue| match clue {
            Clue::Id(id) => self.by_id.get(id.as_str()).map_or(0, |watchers| watchers.len()),
            Clue::Value(path, value) => {
                let node = self.root.at(path.segments().take(DEPTH_MAX));
                node.and_then(|node| node.by_value.get(value.as_slice())).map_or(0, |watchers| watchers.len())
            }
            Clue::Range(path, ..) => (1 << 16) + self.root.at(path.segments()).map_or(0, |node| node.ranges.len()),
            // Most documents have most fields, so presence is worse than any value.
            Clue::Present(_) => 1 << 32,
        });
        each.map(|load| load + 1).sum()
    }

    fn insert_clue(&mut self, watcher: WatcherNumber, clue: &Clue) {
        let path = match clue {
            Clue::Id(id) => return push_once(self.by_id.entry_ref(id.as_str()).or_default(), watcher),
            Clue::Value(path, _) | Clue::Range(path, ..) | Clue::Present(path) => path,
        };
        let node = path.segments().take(DEPTH_MAX).fold(&mut self.root, Node::child_mut);
        match clue {
            _ if path.segments().len() > DEPTH_MAX => push_once(&mut node.present, watcher),
            Clue::Value(_, value) => push_once(node.by_value.entry_ref(value.as_slice()).or_default(), watcher),
            Clue::Range(_, lower, upper) => node.ranges.add(watcher, lower, upper),
            _ => push_once(&mut node.present, watcher),
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

    /// Removes a watcher below these names, at most `depth_left` of them, and then the nodes that became empty.
    fn remove(&mut self, names: &[&str], depth_left: usize, watcher: WatcherNumber, clue: &Clue) {
        let Some((first, rest)) = names.split_first() else {
            match clue {
                Clue::Value(_, value) => {
                    if let Some(watchers) = self.by_value.get_mut(value.as_slice()) {
                        remove_watcher(watchers, watcher);
                        if watchers.is_empty() {
                            self.by_value.remove(value.as_slice());
                        }
                    }
                }
                Clue::Range(_, lower, upper) => self.ranges.remove(watcher, lower, upper),
                Clue::Present(_) | Clue::Id(_) => remove_watcher(&mut self.present, watcher),
            }
            return;
        };
        if depth_left == 0 {
            return remove_watcher(&mut self.present, watcher);
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

    /// Visits the watched fields of an object by position, without comparing names or visiting other fields.
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
        let field_routes = routes.entry(shape.number()).or_insert_with(|| {
            let field_route = |(position, name): (usize, &str)| {
                by_name.get(name).map(|child| FieldRoute { position: position as u32, child: *child })
            };
            shape.names().enumerate().filter_map(field_route).collect()
        });
        for field_route in field_routes {
            if let Some(value) = object.value(field_route.position as usize)? {
                children[field_route.child as usize].node.visit(value, scratch, found)?;
            }
        }
        Ok(())
    }

    /// Appends the watchers of this value or of one of its elements.
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
        // Only the matcher compares arrays and objects with a bound; every range that includes their kind is a
        // candidate.
        let (first, after) = key::type_range(kind);
        self.ranges.find(&first, &after, found);
        Ok(())
    }

    fn look_up_key(&self, key: &[u8], found: &mut Vec<WatcherNumber>) {
        if let Some(watchers) = self.by_value.get(key) {
            found.extend_from_slice(watchers);
        }
    }
}

/// Writes the key of a scalar to `out`; returns false for an array or object.
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

/// Adds a watcher once; all clues of one watcher are added consecutively.
fn push_once(watchers: &mut WatcherList, watcher: WatcherNumber) {
    if watchers.last() != Some(&watcher) {
        watchers.push(watcher);
    }
}

fn remove_watcher(watchers: &mut WatcherList, watcher: WatcherNumber) {
    if let Some(at) = watchers.iter().position(|known| *known == watcher) {
        watchers.swap_remove(at);
    }
}
