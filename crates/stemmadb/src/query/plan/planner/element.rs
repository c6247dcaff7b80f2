//! Planning of conditions on array elements (`$elemMatch`).
//!
//! Scalars within arrays are terms, so a single condition on one value of an element is as exact as on a document: a
//! document has the term if and only if some element meets the condition. Two conditions may be met by two different
//! elements, so the intersection for *and* is only an upper bound; the union for *or* is exact.

use super::{PathCondition, Planner, Reach};
use crate::index::PathNumber;
use crate::query::language::normal::Normal;
use crate::query::language::selector::Target;
use crate::query::plan::Node;

/// The elements of an array.
struct Elements<'n> {
    /// Their path, or `None` if no element is indexed.
    path: Option<PathNumber>,
    /// The fields of the array's path.
    names: &'n [&'n str],
    /// Documents that may have such an array.
    anchor: &'n Node,
}

impl Planner<'_> {
    /// Documents in which some element of the array at `array` matches `inner`. `anchor` contains all of them.
    pub(super) fn in_array(&self, inner: &Normal, array: Option<PathNumber>, anchor: Node, names: &[&str]) -> Node {
        let path = array.and_then(|array| self.catalog.element(array));
        self.some_element(inner, &Elements { path, names, anchor: &anchor })
    }

    fn some_element(&self, inner: &Normal, elements: &Elements<'_>) -> Node {
        match inner {
            // The set also contains documents with an empty array.
            Normal::Everything => Node::check(elements.anchor.clone()),
            Normal::Nothing => Node::Empty,
            Normal::Any(children) => Node::union(children.iter().map(|child| self.some_element(child, elements))),
            Normal::All(children) => {
                let (conditions, others) = self.conditions(children);
                let several = conditions.len() + others.len() > 1;
                let nodes = conditions.iter().map(|condition| self.element_node(condition, elements));
                let others = others.iter().map(|other| self.some_element(other, elements));
                let node = Node::intersection(nodes.chain(others));
                if several { Node::check(node) } else { node }
            }
            Normal::Leaf(leaf) => self.element_node(&self.condition(leaf), elements),
        }
    }

    fn element_node(&self, condition: &PathCondition<'_>, elements: &Elements<'_>) -> Node {
        if condition.negated {
            return Node::check(elements.anchor.clone());
        }
        let path = match condition.target {
            Target::Element => {
                return self.positive(
                    elements.path,
                    Reach::Crossing(elements.anchor),
                    elements.names,
                    &condition.predicate,
                );
            }
            Target::Path(path) => path,
        };
        let names: Vec<&str> = path.segments().collect();
        let readings = self.catalog.readings(elements.path, elements.names, true, &names);
        if readings.is_excluded || readings.is_cut {
            return Node::check(elements.anchor.clone());
        }
        let all_names: Vec<&str> = elements.names.iter().copied().chain(names).collect();
        let answer = |number| self.positive(number, Reach::Crossing(elements.anchor), &all_names, &condition.predicate);
        match readings.readings.as_slice() {
            [reading] => answer(reading.number),
            several => Node::check(Node::union(several.iter().map(|reading| answer(reading.number)))),
        }
    }
}
