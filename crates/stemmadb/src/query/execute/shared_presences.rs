//! The documents with a value at a path, read once for all nodes of a plan that need them.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::collections::HashMap;

use crate::Result;
use crate::index::{DocumentSet, PathNumber, Presence, Window};
use crate::query::plan::Node;
use crate::query::source::IndexReader;

/// The kinds at the root that every document has.
pub(super) const ALL_DOCUMENTS: &[Presence] = &[Presence::Object];

/// The sets of presence that occur several times in a plan. The first node that needs one reads it.
pub(super) struct SharedPresences<'n>(HashMap<(PathNumber, &'n [Presence]), OnceCell<DocumentSet>>);

impl<'n> SharedPresences<'n> {
    pub(super) fn of(node: &'n Node) -> Self {
        let mut counts = HashMap::new();
        count(node, &mut counts);
        let repeated = counts.into_iter().filter(|(_, count)| *count > 1);
        SharedPresences(repeated.map(|(presence, _)| (presence, OnceCell::new())).collect())
    }

    /// The documents of a window with a value of one of these kinds at the path. Every call must be for the same
    /// window.
    pub(super) fn read<'s>(
        &'s self,
        path: PathNumber,
        kinds: &'s [Presence],
        window: Window,
        source: &impl IndexReader,
    ) -> Result<Cow<'s, DocumentSet>> {
        let Some(shared) = self.0.get(&(path, kinds)) else {
            return source.presence_in(path, kinds, window).map(Cow::Owned);
        };
        if let Some(set) = shared.get() {
            return Ok(Cow::Borrowed(set));
        }
        let set = source.presence_in(path, kinds, window)?;
        Ok(Cow::Borrowed(shared.get_or_init(|| set)))
    }
}

fn count<'n>(node: &'n Node, counts: &mut HashMap<(PathNumber, &'n [Presence]), usize>) {
    match node {
        Node::All => *counts.entry((PathNumber::ROOT, ALL_DOCUMENTS)).or_default() += 1,
        Node::Presence { path, kinds } => *counts.entry((*path, kinds)).or_default() += 1,
        other => other.children().into_iter().for_each(|child| count(child, counts)),
    }
}
