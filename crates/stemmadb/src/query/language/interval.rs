//! Intervals of values as ranges of ordered keys, split into the parts that the index can answer.
//!
//! The comparisons on one field are intersected to one interval. The index answers each kind of value differently: a
//! whole kind is a presence, a part of the scalars is a range of terms, and a part of the arrays or objects is only a
//! set of candidates.
//!
//! Strings above the policy's length bound are indexed by *cut keys*: their first bytes and a hash. Compared with a
//! string within the bound, a cut key orders correctly. Compared with a longer one, the keys that share its first bytes
//! (its *cut region*) are undecided.

use std::cmp::Ordering;

use super::selector::Comparison;
use crate::value::collate::key::{self, Tag};
use crate::value::{Kind, Value};

/// Length of the hash at the end of a cut key.
const CUT_HASH_BYTES: usize = 16;

/// A range of term keys from `lower` (inclusive) to `upper` (exclusive). A bound never separates keys that begin with
/// the same whole key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct KeyRange {
    pub(crate) lower: Vec<u8>,
    pub(crate) upper: Vec<u8>,
}

impl KeyRange {
    /// All keys of one kind.
    pub(crate) fn of_kind(kind: Kind) -> Self {
        let (lower, upper) = key::type_range(kind);
        KeyRange { lower, upper }
    }

    /// All keys of the scalars of these kinds, and maybe of others.
    pub(crate) fn of_kinds(kinds: &[Kind]) -> Self {
        match kinds {
            [only] => KeyRange::of_kind(*only),
            _ => KeyRange::of_scalars(),
        }
    }

    /// All keys of scalars.
    pub(crate) fn of_scalars() -> Self {
        KeyRange { lower: key::type_range(Kind::Null).0, upper: key::type_range(Kind::String).1 }
    }

    /// Whether the range contains a key.
    pub(crate) fn holds(&self, value_key: &[u8]) -> bool {
        self.lower.as_slice() <= value_key && value_key < self.upper.as_slice()
    }

    /// The keys in both ranges.
    pub(crate) fn intersection(&self, other: &KeyRange) -> Self {
        let lower = (&self.lower).max(&other.lower).clone();
        KeyRange { lower, upper: (&self.upper).min(&other.upper).clone() }
    }

    /// Whether no key can be in the range.
    pub(crate) fn is_empty(&self) -> bool {
        self.lower >= self.upper
    }
}

/// The smallest byte string above everything that begins with `bytes`: the exclusive upper bound of a prefix.
pub(crate) fn successor(bytes: &[u8]) -> Vec<u8> {
    let mut next = bytes.to_vec();
    while next.pop_if(|last| *last == u8::MAX).is_some() {}
    if let Some(last) = next.last_mut() {
        *last += 1;
    }
    next
}

/// The values between two bounds, in collation order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Interval {
    lower: IntervalBound,
    upper: IntervalBound,
}

/// A bound between two values.
#[derive(Clone, Debug, PartialEq, Eq)]
struct IntervalBound {
    /// Keys below these bytes are before the bound, all others after it.
    bytes: Vec<u8>,
    /// Set if the bound is at a string above the length bound.
    cut: Option<Cut>,
}

/// The keys of a string above the length bound.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Cut {
    /// The string's own cut key.
    key: Vec<u8>,
    /// All cut keys that share its first bytes.
    region: KeyRange,
}

/// A part of an interval that the index answers in one way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum IntervalPart {
    /// Every value of a kind.
    Whole(Kind),
    /// Exactly the scalars with this key.
    Key(Vec<u8>),
    /// Exactly the scalars with keys in a range.
    Keys(KeyRange),
    /// Candidates: the strings with this cut key.
    CutKey(Vec<u8>),
    /// Candidates: the strings with cut keys in a range.
    CutKeys(KeyRange),
    /// Candidates: all arrays, or all objects.
    Candidates(Kind),
}

impl Interval {
    /// Every value.
    pub(crate) fn everything() -> Self {
        let bound = |bytes: Vec<u8>| IntervalBound { bytes, cut: None };
        Interval { lower: bound(key::type_range(Kind::Null).0), upper: bound(key::type_range(Kind::Object).1) }
    }

    /// The values that compare to `operand` like this. `None` for `NotEqual`, which is two intervals.
    pub(crate) fn of(comparison: Comparison, operand: &Value, text_bytes_max: usize) -> Option<Self> {
        let mut whole = Interval::everything();
        let mut encoded = Vec::new();
        key::encode(operand, &mut encoded);
        let cut = Cut::of(operand, text_bytes_max);
        let before = IntervalBound { bytes: encoded.clone(), cut: cut.clone() };
        let after = IntervalBound { bytes: successor(&encoded), cut };
        match comparison {
            Comparison::Less => whole.upper = before,
            Comparison::LessOrEqual => whole.upper = after,
            Comparison::Equal => whole = Interval { lower: before, upper: after },
            Comparison::NotEqual => return None,
            Comparison::GreaterOrEqual => whole.lower = before,
            Comparison::Greater => whole.lower = after,
        }
        Some(whole)
    }

    /// The values in both intervals.
    pub(crate) fn intersection(self, other: Interval) -> Self {
        let lower = if self.lower.bytes >= other.lower.bytes { self.lower } else { other.lower };
        let upper = if self.upper.bytes <= other.upper.bytes { self.upper } else { other.upper };
        Interval { lower, upper }
    }

    /// The uncut keys of the interval.
    pub(crate) fn whole_keys(&self) -> KeyRange {
        KeyRange { lower: self.lower.bytes.clone(), upper: self.upper.bytes.clone() }
    }

    /// The scalars of the interval as one range of keys, or `None` if a bound is a string above the policy's length
    /// bound.
    pub(crate) fn scalars(&self) -> Option<KeyRange> {
        if self.lower.cut.is_some() || self.upper.cut.is_some() {
            return None;
        }
        let all = KeyRange::of_scalars();
        let lower = self.lower.bytes.clone().max(all.lower);
        Some(KeyRange { lower, upper: self.upper.bytes.clone().min(all.upper) })
    }

    /// Whether the interval contains all of a range of keys (`true`) or a part of it (`false`), or `None` if nothing.
    pub(crate) fn overlap(&self, range: &KeyRange) -> Option<bool> {
        if self.is_empty() || self.lower.bytes >= range.upper || self.upper.bytes <= range.lower {
            return None;
        }
        Some(self.lower.bytes <= range.lower && self.upper.bytes >= range.upper)
    }

    /// The parts of the interval, in collation order.
    pub(crate) fn parts(&self) -> Vec<IntervalPart> {
        let mut parts = Vec::new();
        for kind in Kind::ALL {
            let range = KeyRange::of_kind(kind);
            let Some(is_whole) = self.overlap(&range) else { continue };
            let from_first = self.lower.bytes <= range.lower;
            let to_last = self.upper.bytes >= range.upper;
            match kind {
                _ if is_whole => parts.push(IntervalPart::Whole(kind)),
                Kind::Array | Kind::Object => parts.push(IntervalPart::Candidates(kind)),
                _ => {
                    let lower = IntervalBound { bytes: range.lower, cut: None };
                    let upper = IntervalBound { bytes: range.upper, cut: None };
                    let lower = if from_first { &lower } else { &self.lower };
                    let upper = if to_last { &upper } else { &self.upper };
                    scalar_parts(lower, upper, &mut parts);
                }
            }
        }
        parts
    }

    /// Whether no value can be in the interval.
    pub(super) fn is_empty(&self) -> bool {
        self.lower.bytes >= self.upper.bytes
    }

    /// The order of two intervals by their lower bounds.
    pub(super) fn compare_lower(&self, other: &Interval) -> Ordering {
        self.lower.bytes.cmp(&other.lower.bytes)
    }

    /// Whether a later interval begins where this one ends, or before.
    pub(super) fn touches(&self, later: &Interval) -> bool {
        later.lower.bytes <= self.upper.bytes
    }

    /// Whether this interval ends before the other one does.
    pub(super) fn ends_before(&self, other: &Interval) -> bool {
        self.upper.bytes < other.upper.bytes
    }

    /// The smallest interval that contains this one and a later one.
    pub(super) fn hull(self, later: Interval) -> Interval {
        let upper = if self.upper.bytes >= later.upper.bytes { self.upper } else { later.upper };
        Interval { lower: self.lower, upper }
    }
}

fn scalar_parts(lower: &IntervalBound, upper: &IntervalBound, parts: &mut Vec<IntervalPart>) {
    let is_one_key = upper.bytes == successor(&lower.bytes);
    if let (Some(cut), true) = (&lower.cut, is_one_key) {
        parts.push(IntervalPart::CutKey(cut.key.clone()));
        return;
    }
    if is_one_key && key::length(&lower.bytes).is_ok_and(|length| length == lower.bytes.len()) {
        parts.push(IntervalPart::Key(lower.bytes.clone()));
        return;
    }
    if let Some(cut) = &lower.cut {
        parts.push(IntervalPart::CutKeys(cut.region.clone()));
    }
    let exact = KeyRange {
        lower: lower.cut.as_ref().map_or(&lower.bytes, |cut| &cut.region.upper).clone(),
        upper: upper.cut.as_ref().map_or(&upper.bytes, |cut| &cut.region.lower).clone(),
    };
    if !exact.is_empty() {
        parts.push(IntervalPart::Keys(exact));
    }
    match (&lower.cut, &upper.cut) {
        (Some(lower), Some(upper)) if lower.region == upper.region => {}
        (_, Some(cut)) => parts.push(IntervalPart::CutKeys(cut.region.clone())),
        _ => {}
    }
}

impl Cut {
    fn of(operand: &Value, text_bytes_max: usize) -> Option<Self> {
        let Value::String(text) = operand else { return None };
        let mut cut_key = Vec::new();
        if !key::encode_string_bounded(text, text_bytes_max, &mut cut_key) {
            return None;
        }
        let region = cut_region(&cut_key);
        Some(Cut { key: cut_key, region })
    }
}

/// All cut keys that share the first bytes of this cut key. The index does not know their order among each other.
pub(crate) fn cut_region(cut_key: &[u8]) -> KeyRange {
    let lower = cut_key[..cut_key.len().saturating_sub(CUT_HASH_BYTES)].to_vec();
    let upper = successor(&lower);
    KeyRange { lower, upper }
}

/// Returns the string of a key that is neither cut nor contains a zero byte, so that it needs no unescaping. Nearly all
/// keys are like that.
pub(crate) fn plain_text(value_key: &[u8]) -> Option<&str> {
    let [tag, text @ .., 0, 0] = value_key else { return None };
    if *tag != Tag::String as u8 || text.contains(&0) {
        return None;
    }
    std::str::from_utf8(text).ok()
}
