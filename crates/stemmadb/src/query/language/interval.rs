//! Intervals of values, as bytes of their ordered keys, and the pieces of the index they are made of.
//!
//! The comparisons on one field join to one interval. Per kind of value the index answers differently: a whole kind is a
//! presence, part of the scalars a range of terms, part of the arrays or objects nothing but candidates.
//!
//! Strings above the policy's bound are indexed by cut keys: their first bytes, then a hash. Against a string within
//! the bound a cut key still orders rightly. Against a longer one, the keys that share its first bytes (its *cut
//! region*) are undecided.

use super::selector::Comparison;
use crate::value::collate::key::{self, Tag};
use crate::value::{Kind, Value};

/// The bytes of hash at the end of a cut key.
const CUT_HASH_BYTES: usize = 16;

/// A range of term keys: `lower` and above, below `upper`. No bound divides the bytes that follow one key.
#[derive(Clone, Debug, PartialEq, Eq)]
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

    /// All keys of scalars.
    pub(crate) fn of_scalars() -> Self {
        KeyRange { lower: key::type_range(Kind::Null).0, upper: key::type_range(Kind::String).1 }
    }

    /// Whether a key is within.
    pub(crate) fn holds(&self, value_key: &[u8]) -> bool {
        self.lower.as_slice() <= value_key && value_key < self.upper.as_slice()
    }

    /// The keys in both.
    pub(crate) fn intersection(&self, other: &KeyRange) -> Self {
        let lower = (&self.lower).max(&other.lower).clone();
        KeyRange { lower, upper: (&self.upper).min(&other.upper).clone() }
    }

    /// Whether no key can be within.
    pub(crate) fn is_empty(&self) -> bool {
        self.lower >= self.upper
    }
}

/// The least bytes above everything that begins with `bytes`: the way to exclude a key and all that follows it.
pub(crate) fn successor(bytes: &[u8]) -> Vec<u8> {
    let mut next = bytes.to_vec();
    while next.pop_if(|last| *last == u8::MAX).is_some() {}
    if let Some(last) = next.last_mut() {
        *last += 1;
    }
    next
}

/// The values between two marks, in the order of all values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Interval {
    lower: Mark,
    upper: Mark,
}

/// A place between two values.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mark {
    /// Keys below these bytes are before the mark, all others after it.
    bytes: Vec<u8>,
    /// If the mark stands at a string above the bound: how the index knows it.
    cut: Option<Cut>,
}

/// How the index knows a string above the bound.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Cut {
    /// Its own cut key.
    key: Vec<u8>,
    /// All cut keys that share its first bytes.
    region: KeyRange,
}

/// One piece of an interval, as the index sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// Every value of a kind.
    Whole(Kind),
    /// Exactly the scalars with one key.
    Key(Vec<u8>),
    /// Exactly the scalars with keys in a range.
    Keys(KeyRange),
    /// Perhaps the strings with this cut key.
    CutKey(Vec<u8>),
    /// Perhaps the strings with cut keys in a range.
    CutKeys(KeyRange),
    /// Perhaps arrays, or objects.
    Part(Kind),
}

impl Interval {
    /// Every value.
    pub(crate) fn everything() -> Self {
        let mark = |bytes: Vec<u8>| Mark { bytes, cut: None };
        Interval { lower: mark(key::type_range(Kind::Null).0), upper: mark(key::type_range(Kind::Object).1) }
    }

    /// The values that stand so to `operand`; none for `NotEqual`, which is two intervals.
    pub(crate) fn of(comparison: Comparison, operand: &Value, text_bytes_max: usize) -> Option<Self> {
        let mut whole = Interval::everything();
        let mut encoded = Vec::new();
        key::encode(operand, &mut encoded);
        let cut = Cut::of(operand, text_bytes_max);
        let before = Mark { bytes: encoded.clone(), cut: cut.clone() };
        let after = Mark { bytes: successor(&encoded), cut };
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

    /// The values in both.
    pub(crate) fn intersection(self, other: Interval) -> Self {
        let lower = if self.lower.bytes >= other.lower.bytes { self.lower } else { other.lower };
        let upper = if self.upper.bytes <= other.upper.bytes { self.upper } else { other.upper };
        Interval { lower, upper }
    }

    /// The keys of the interval, as they are uncut.
    pub(crate) fn whole_keys(&self) -> KeyRange {
        KeyRange { lower: self.lower.bytes.clone(), upper: self.upper.bytes.clone() }
    }

    /// The scalars of the interval as one range of keys; none if a bound is a string above the policy's bound.
    pub(crate) fn scalars(&self) -> Option<KeyRange> {
        if self.lower.cut.is_some() || self.upper.cut.is_some() {
            return None;
        }
        let all = KeyRange::of_scalars();
        let lower = self.lower.bytes.clone().max(all.lower);
        Some(KeyRange { lower, upper: self.upper.bytes.clone().min(all.upper) })
    }

    /// Whether a range of keys is within, whole or in part; none if it is not.
    pub(crate) fn overlap(&self, range: &KeyRange) -> Option<bool> {
        if self.is_empty() || self.lower.bytes >= range.upper || self.upper.bytes <= range.lower {
            return None;
        }
        Some(self.lower.bytes <= range.lower && self.upper.bytes >= range.upper)
    }

    /// The pieces it is made of, in the order of values.
    pub(crate) fn pieces(&self) -> Vec<Piece> {
        let mut pieces = Vec::new();
        for kind in Kind::ALL {
            let range = KeyRange::of_kind(kind);
            let Some(is_whole) = self.overlap(&range) else { continue };
            let from_first = self.lower.bytes <= range.lower;
            let to_last = self.upper.bytes >= range.upper;
            match kind {
                _ if is_whole => pieces.push(Piece::Whole(kind)),
                Kind::Array | Kind::Object => pieces.push(Piece::Part(kind)),
                _ => {
                    let lower = Mark { bytes: range.lower, cut: None };
                    let upper = Mark { bytes: range.upper, cut: None };
                    let lower = if from_first { &lower } else { &self.lower };
                    let upper = if to_last { &upper } else { &self.upper };
                    scalar_pieces(lower, upper, &mut pieces);
                }
            }
        }
        pieces
    }

    fn is_empty(&self) -> bool {
        self.lower.bytes >= self.upper.bytes
    }
}

fn scalar_pieces(lower: &Mark, upper: &Mark, pieces: &mut Vec<Piece>) {
    let is_one_key = upper.bytes == successor(&lower.bytes);
    if let (Some(cut), true) = (&lower.cut, is_one_key) {
        pieces.push(Piece::CutKey(cut.key.clone()));
        return;
    }
    if is_one_key && key::length(&lower.bytes).is_ok_and(|length| length == lower.bytes.len()) {
        pieces.push(Piece::Key(lower.bytes.clone()));
        return;
    }
    if let Some(cut) = &lower.cut {
        pieces.push(Piece::CutKeys(cut.region.clone()));
    }
    let exact = KeyRange {
        lower: lower.cut.as_ref().map_or(&lower.bytes, |cut| &cut.region.upper).clone(),
        upper: upper.cut.as_ref().map_or(&upper.bytes, |cut| &cut.region.lower).clone(),
    };
    if !exact.is_empty() {
        pieces.push(Piece::Keys(exact));
    }
    match (&lower.cut, &upper.cut) {
        (Some(lower), Some(upper)) if lower.region == upper.region => {}
        (_, Some(cut)) => pieces.push(Piece::CutKeys(cut.region.clone())),
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

/// All cut keys that share the first bytes of this cut key: those whose order among each other the index does not know.
pub(crate) fn cut_region(cut_key: &[u8]) -> KeyRange {
    let lower = cut_key[..cut_key.len().saturating_sub(CUT_HASH_BYTES)].to_vec();
    let upper = successor(&lower);
    KeyRange { lower, upper }
}

/// The string of a key that was neither cut nor has a zero in it, as nearly all are: nothing has to be unescaped.
pub(crate) fn plain_text(value_key: &[u8]) -> Option<&str> {
    let [tag, text @ .., 0, 0] = value_key else { return None };
    if *tag != Tag::String as u8 || text.contains(&0) {
        return None;
    }
    std::str::from_utf8(text).ok()
}
