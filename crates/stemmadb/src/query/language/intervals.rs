//! Sets of values as sorted lists of disjoint intervals: what several conditions on one path leave, each of which is a
//! disjunction of comparisons.

use super::interval::Interval;
use super::normal::{Check, Leaf};
use super::selector::Comparison;
use crate::value::Value;

/// Disjoint intervals in ascending order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Intervals(Vec<Interval>);

impl Intervals {
    /// The values that meet one of several comparisons with scalars or, except for equality, with any value. `None` if
    /// a leaf is another check.
    pub(crate) fn of_any<'l>(leaves: impl IntoIterator<Item = &'l Leaf>, text_bytes_max: usize) -> Option<Self> {
        let mut intervals = Vec::new();
        let interval = |comparison, operand| Interval::of(comparison, operand, text_bytes_max);
        for leaf in leaves {
            match &leaf.check {
                Check::Compare(Comparison::Equal, Value::Array(_) | Value::Object(_)) => return None,
                Check::Compare(Comparison::NotEqual, operand) => {
                    intervals.push(interval(Comparison::Less, operand)?);
                    intervals.push(interval(Comparison::Greater, operand)?);
                }
                Check::Compare(comparison, operand) => intervals.push(interval(*comparison, operand)?),
                Check::OneOf(values) if !leaf.negated => {
                    for value in values {
                        intervals.push(interval(Comparison::Equal, value)?);
                    }
                }
                _ => return None,
            }
        }
        Some(Intervals::union(intervals))
    }

    /// The values in one of the intervals.
    fn union(mut intervals: Vec<Interval>) -> Self {
        intervals.retain(|interval| !interval.is_empty());
        intervals.sort_by(Interval::compare_lower);
        let mut disjoint: Vec<Interval> = Vec::with_capacity(intervals.len());
        for interval in intervals {
            match disjoint.pop_if(|last| last.touches(&interval)) {
                Some(last) => disjoint.push(last.hull(interval)),
                None => disjoint.push(interval),
            }
        }
        Intervals(disjoint)
    }

    /// The values in all of the sets. Costs as much as sorting all intervals.
    pub(crate) fn intersection(mut sets: Vec<Intervals>) -> Option<Self> {
        while sets.len() > 1 {
            let mut pairs = sets.into_iter();
            let mut halved = Vec::with_capacity(pairs.len().div_ceil(2));
            while let Some(left) = pairs.next() {
                halved.push(match pairs.next() {
                    Some(right) => left.and(&right),
                    None => left,
                });
            }
            sets = halved;
        }
        sets.pop()
    }

    fn and(&self, other: &Intervals) -> Intervals {
        let (mut left, mut right) = (self.0.as_slice(), other.0.as_slice());
        let mut common = Vec::new();
        while let ([a, left_rest @ ..], [b, right_rest @ ..]) = (left, right) {
            let both = a.clone().intersection(b.clone());
            if !both.is_empty() {
                common.push(both);
            }
            match a.ends_before(b) {
                true => left = left_rest,
                false => right = right_rest,
            }
        }
        Intervals(common)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Interval> {
        self.0.iter()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::query::language::selector::Target;
    use crate::value::{Path, collate};

    fn value() -> BoxedStrategy<Value> {
        prop_oneof![
            4 => (0_i64..6).prop_map(Value::from),
            1 => prop::sample::select(vec!["", "a", "b"]).prop_map(Value::from),
            1 => Just(Value::Null),
            1 => Just(Value::Array(vec![Value::from(1)])),
        ]
        .boxed()
    }

    fn comparison() -> BoxedStrategy<Comparison> {
        use Comparison::{Equal, Greater, GreaterOrEqual, Less, LessOrEqual, NotEqual};
        prop::sample::select(vec![Less, LessOrEqual, Equal, NotEqual, GreaterOrEqual, Greater]).boxed()
    }

    fn holds(set: &Intervals, value: &Value) -> bool {
        let point = Interval::of(Comparison::Equal, value, 100).expect("an interval");
        set.iter().any(|interval| !interval.clone().intersection(point.clone()).is_empty())
    }

    proptest! {
        #[test]
        fn sets_contain_what_the_comparisons_hold_for(
            disjunctions in prop::collection::vec(prop::collection::vec((comparison(), value()), 1..4), 1..6),
            value in value(),
        ) {
            let leaves = |one: &[(Comparison, Value)]| -> Vec<Leaf> {
                let target = Target::Path(Path::parse("a").expect("a path"));
                one.iter()
                    .map(|(comparison, operand)| Leaf {
                        target: target.clone(),
                        negated: false,
                        check: Check::Compare(*comparison, operand.clone()),
                    })
                    .collect()
            };
            let sets: Option<Vec<Intervals>> =
                disjunctions.iter().map(|one| Intervals::of_any(&leaves(one), 100)).collect();
            prop_assume!(sets.is_some());
            let set = Intervals::intersection(sets.unwrap_or_default()).expect("at least one");
            let meets = |(comparison, operand): &(Comparison, Value)| {
                comparison.holds(collate::compare(&value, operand))
            };
            prop_assert_eq!(holds(&set, &value), disjunctions.iter().all(|one| one.iter().any(meets)));
            let is_sorted = set.0.windows(2).all(|pair| pair[0].ends_before(&pair[1]) && !pair[0].touches(&pair[1]));
            prop_assert!(is_sorted, "{:?}", set);
        }
    }
}
