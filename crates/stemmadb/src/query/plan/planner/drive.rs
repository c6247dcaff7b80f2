//! Which conditions can be met by walking their values in order.
//!
//! A walk must meet each document once, today and when a later page goes on with it. So its path has no name that could be a
//! position in an array: then a document has one value there, whatever is written later.

use super::{Ask, Planner, Question, Reach, Wanted, equal_any, presence};
use crate::index::PathNumber;
use crate::query::language::interval::{Interval, KeyRange};
use crate::query::language::normal::Check;
use crate::query::language::selector::Place;
use crate::query::plan::facts::is_position;
use crate::query::plan::{Drive, Node, Values};
use crate::value::Kind;

/// So many conditions are considered.
const DRIVES_MAX: usize = 4;

impl Planner<'_> {
    /// The conditions that can be walked; `nodes` are the answers to the questions, and to whatever else is asked.
    pub(super) fn drives(&self, questions: &[Question<'_>], nodes: &[Node], wanted: Wanted<'_>) -> Vec<Drive> {
        if matches!(wanted, Wanted::None) || nodes.contains(&Node::Empty) {
            return Vec::new();
        }
        let walkable = questions.iter().take(usize::from(u8::MAX)).enumerate().filter_map(|(at, question)| {
            // One term alone is a look-up.
            let is_term = matches!(nodes.get(at), Some(Node::Equal { .. }));
            let (path, values, others) = if is_term { None } else { self.walkable(question, wanted) }?;
            Some((at, path, values, others))
        });
        let drive = |(at, path, values, others): (usize, PathNumber, Values, Node)| {
            let rest = nodes.iter().enumerate().filter(|(other, _)| *other != at).map(|(_, node)| node.clone());
            Drive { ordinal: at as u8, path, values, others, rest: Node::intersection(rest) }
        };
        walkable.take(DRIVES_MAX).map(drive).collect()
    }

    fn walkable(&self, question: &Question<'_>, wanted: Wanted<'_>) -> Option<(PathNumber, Values, Node)> {
        let Place::At(path) = question.place else { return None };
        let is_wanted = match wanted {
            Wanted::None => false,
            Wanted::Only(only) => only == path,
            Wanted::Any => true,
        };
        if !is_wanted || question.negated {
            return None;
        }
        let names: Vec<&str> = path.segments().collect();
        if matches!(names.as_slice(), ["_id" | "_rev", ..])
            || names.iter().skip(1).any(|name| is_position(name))
            || !self.facts.covers(&names)
        {
            return None;
        }
        let mut number = PathNumber::ROOT;
        for name in names {
            number = self.facts.field(number, name)?;
        }
        let (values, others) = self.values(number, &question.ask)?;
        Some((number, values, others))
    }

    fn values(&self, path: PathNumber, ask: &Ask<'_>) -> Option<(Values, Node)> {
        match ask {
            Ask::Within(interval) => {
                let scalars = interval.scalars().filter(|scalars| !scalars.is_empty())?;
                // One value alone is a look-up.
                let is_range = !matches!(super::within(Some(path), Reach::Straight, interval), Node::Equal { .. });
                is_range.then(|| (Values::Range(scalars), containers(path, interval)))
            }
            Ask::Container(_) => None,
            Ask::Check(check @ Check::OneOf(_)) => match self.check(Some(path), Reach::Straight, &[], check) {
                Node::EqualAny { keys, .. } => Some((Values::Keys(keys), Node::Empty)),
                _ => None,
            },
            Ask::Check(Check::In(values)) => {
                let (keys, cut_keys, _) = self.keys(values);
                match equal_any(Some(path), keys) {
                    _ if !cut_keys.is_empty() => None,
                    Node::EqualAny { keys, .. } => {
                        let others = self.listed_but_scalars(Some(path), Reach::Straight, values);
                        Some((Values::Keys(keys), others))
                    }
                    _ => None,
                }
            }
            Ask::Check(check @ (Check::BeginsWith(_) | Check::Regex(_) | Check::Modulo { .. })) => {
                match self.check(Some(path), Reach::Straight, &[], check) {
                    Node::Range { range, .. } => Some((Values::Range(range), Node::Empty)),
                    Node::Matching { range, test, .. } => Some((Values::Matching(range, test), Node::Empty)),
                    _ => None,
                }
            }
            Ask::Check(_) => None,
        }
    }
}

/// Documents with an array or object of the interval.
fn containers(path: PathNumber, interval: &Interval) -> Node {
    Node::union([Kind::Array, Kind::Object].into_iter().map(|kind| {
        let range = KeyRange::of_kind(kind);
        match interval.overlap(&range) {
            None => Node::Empty,
            Some(true) => presence(Some(path), kind),
            Some(false) => Node::check(presence(Some(path), kind)),
        }
    }))
}
