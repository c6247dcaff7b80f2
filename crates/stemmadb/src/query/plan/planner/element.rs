//! Conditions on the elements of an array: does some element meet them?
//!
//! Scalars within arrays are terms, so one condition on one value of an element is as exact as on a document: a document
//! has the term if and only if some element meets the condition. Two conditions may be met by two different elements, so
//! *and* is only a bound; *or* is exact.

use super::{Planner, Question, Reach};
use crate::index::PathNumber;
use crate::query::language::normal::Normal;
use crate::query::language::selector::Place;
use crate::query::plan::Node;

/// The elements of an array.
struct Elements<'n> {
    /// Their path; none if no element is indexed.
    path: Option<PathNumber>,
    /// The fields on the way to the array.
    names: &'n [&'n str],
    /// Documents that may have such an array.
    anchor: &'n Node,
}

impl Planner<'_> {
    /// Documents in which some element of the array at `array` meets `inner`. All of them are in `anchor`.
    pub(super) fn in_array(&self, inner: &Normal, array: Option<PathNumber>, anchor: Node, names: &[&str]) -> Node {
        let path = array.and_then(|array| self.facts.element(array));
        self.some_element(inner, &Elements { path, names, anchor: &anchor })
    }

    fn some_element(&self, inner: &Normal, elements: &Elements<'_>) -> Node {
        match inner {
            // Also an array without elements is in the set.
            Normal::Everything => Node::check(elements.anchor.clone()),
            Normal::Nothing => Node::Empty,
            Normal::Any(children) => Node::union(children.iter().map(|child| self.some_element(child, elements))),
            Normal::All(children) => {
                let (questions, others) = self.questions(children);
                let several = questions.len() + others.len() > 1;
                let answers = questions.iter().map(|question| self.element_answer(question, elements));
                let others = others.iter().map(|other| self.some_element(other, elements));
                let node = Node::intersection(answers.chain(others));
                if several { Node::check(node) } else { node }
            }
            Normal::Leaf(leaf) => self.element_answer(&self.question(leaf), elements),
        }
    }

    fn element_answer(&self, question: &Question<'_>, elements: &Elements<'_>) -> Node {
        if question.negated {
            return Node::check(elements.anchor.clone());
        }
        let path = match question.place {
            Place::Itself => {
                return self.positive(elements.path, Reach::Crossing(elements.anchor), elements.names, &question.ask);
            }
            Place::At(path) => path,
        };
        let names: Vec<&str> = path.segments().collect();
        let ways = self.facts.ways(elements.path, elements.names, true, &names);
        if ways.is_excluded || ways.is_cut {
            return Node::check(elements.anchor.clone());
        }
        let all_names: Vec<&str> = elements.names.iter().copied().chain(names).collect();
        let answer = |number| self.positive(number, Reach::Crossing(elements.anchor), &all_names, &question.ask);
        match ways.ways.as_slice() {
            [way] => answer(way.number),
            several => Node::check(Node::union(several.iter().map(|way| answer(way.number)))),
        }
    }
}
