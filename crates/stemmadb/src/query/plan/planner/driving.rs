//! Choice of conditions that can drive a walk over their values in order.
//!
//! A walk must visit each document once, including on later pages. Its path therefore has no name that could be an
//! array index: then a document has one value there, whatever is written later.

use super::{DrivingPaths, PathCondition, Planner, Predicate, Reach, equal_any, presence};
use crate::index::PathNumber;
use crate::query::language::interval::{Interval, KeyRange};
use crate::query::language::normal::Check;
use crate::query::language::selector::Target;
use crate::query::plan::catalog::is_position;
use crate::query::plan::{DrivingCondition, Node, Values};
use crate::value::Kind;

/// The largest number of driving conditions of a plan.
const DRIVING_CONDITIONS_MAX: usize = 4;

impl Planner<'_> {
    /// Returns the conditions that can drive a walk. `nodes` are the sets of `conditions`, followed by those of the
    /// other parts of the selector.
    pub(super) fn driving_conditions(
        &self,
        conditions: &[PathCondition<'_>],
        nodes: &[Node],
        driving_paths: DrivingPaths<'_>,
    ) -> Vec<DrivingCondition> {
        if matches!(driving_paths, DrivingPaths::None) || nodes.contains(&Node::Empty) {
            return Vec::new();
        }
        let walkable = conditions.iter().take(usize::from(u8::MAX)).enumerate().filter_map(|(at, condition)| {
            // A single term is a lookup.
            let is_term = matches!(nodes.get(at), Some(Node::Equal { .. }));
            let (path, values, others) = if is_term { None } else { self.walkable(condition, driving_paths) }?;
            Some((at, path, values, others))
        });
        let driving = |(at, path, values, others): (usize, PathNumber, Values, Node)| {
            let rest = nodes.iter().enumerate().filter(|(other, _)| *other != at).map(|(_, node)| node.clone());
            DrivingCondition { ordinal: at as u8, path, values, others, rest: Node::intersection(rest) }
        };
        walkable.take(DRIVING_CONDITIONS_MAX).map(driving).collect()
    }

    fn walkable(
        &self,
        condition: &PathCondition<'_>,
        driving_paths: DrivingPaths<'_>,
    ) -> Option<(PathNumber, Values, Node)> {
        let Target::Path(path) = condition.target else { return None };
        let is_allowed = match driving_paths {
            DrivingPaths::None => false,
            DrivingPaths::Only(only) => only == path,
            DrivingPaths::Any => true,
        };
        if !is_allowed || condition.negated {
            return None;
        }
        let names: Vec<&str> = path.segments().collect();
        if matches!(names.as_slice(), ["_id" | "_rev", ..])
            || names.iter().skip(1).any(|name| is_position(name))
            || !self.catalog.covers(&names)
        {
            return None;
        }
        let mut number = PathNumber::ROOT;
        for name in names {
            number = self.catalog.field(number, name)?;
        }
        let (values, others) = self.values(number, &condition.predicate)?;
        Some((number, values, others))
    }

    fn values(&self, path: PathNumber, predicate: &Predicate<'_>) -> Option<(Values, Node)> {
        match predicate {
            Predicate::Within(interval) => {
                let scalars = interval.scalars().filter(|scalars| !scalars.is_empty())?;
                // A single value is a lookup.
                let is_range = !matches!(super::within(Some(path), Reach::Straight, interval), Node::Equal { .. });
                is_range.then(|| (Values::Range(scalars), containers(path, interval)))
            }
            Predicate::Container(_) | Predicate::WithinAny(_) => None,
            Predicate::Check(check @ Check::OneOf(_)) => match self.check(Some(path), Reach::Straight, &[], check) {
                Node::EqualAny { keys, .. } => Some((Values::Keys(keys), Node::Empty)),
                _ => None,
            },
            Predicate::Check(Check::In(values)) => {
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
            Predicate::Check(check @ (Check::BeginsWith(_) | Check::Regex(_) | Check::Modulo { .. })) => {
                match self.check(Some(path), Reach::Straight, &[], check) {
                    Node::Range { range, .. } => Some((Values::Range(range), Node::Empty)),
                    Node::Matching { range, test, .. } => Some((Values::Matching(range, test), Node::Empty)),
                    _ => None,
                }
            }
            Predicate::Check(_) => None,
        }
    }
}

/// Documents with an array or object in the interval.
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
