//! Intersection, union and difference of two containers.
//!
//! Two arrays are merged, or searched if one is far shorter. An array and another representation are filtered if the
//! result is a subset of the array. A bitmap and another representation are combined word by word. Runs and arrays are
//! swept as sorted intervals.

use std::sync::Arc;

use super::bitmap::Bitmap;
use super::{ARRAY_MAX, Array, Container, RUNS_MAX, Repr, Run, Runs, are_apart, normalized, runs_contain};

/// The members of an array this many times shorter than another one are found in it by binary search.
const SEARCH_RATIO: usize = 32;
/// The members of an array this many times shorter than another one are found in it block by block.
const BLOCK_RATIO: usize = 4;
const BLOCK: usize = 16;
/// Longer arrays are marked in a bitmap instead of merged.
const MERGED_MAX: usize = 512;
/// The bits of a longer array are set one by one instead of swept as intervals.
const SWEPT_MAX: usize = 256;

impl Container {
    /// The intersection.
    pub(crate) fn and(&self, other: &Container) -> Container {
        match (&self.0, &other.0) {
            (Repr::Array(a), Repr::Array(b)) => Container(Repr::Array(and_arrays(a, b))),
            (Repr::Array(a), Repr::Bitmap(b)) | (Repr::Bitmap(b), Repr::Array(a)) => {
                Container(Repr::Array(filter(a, |value| b.contains(value))))
            }
            (Repr::Array(a), Repr::Runs(b)) | (Repr::Runs(b), Repr::Array(a)) if b.len() > a.len() => {
                Container(Repr::Array(filter(a, |value| runs_contain(b, value))))
            }
            (Repr::Array(a), Repr::Runs(b)) | (Repr::Runs(b), Repr::Array(a)) => {
                let mut both = Array::new();
                b.iter().for_each(|run| both.extend_from_slice(within(a, *run)));
                Container(Repr::Array(both))
            }
            (Repr::Runs(a), Repr::Runs(b)) => swept(a.iter().copied(), b.iter().copied(), |a, b| a && b),
            (Repr::Bitmap(a), Repr::Bitmap(b)) => {
                normalized(Repr::Bitmap(Arc::new(Bitmap::combined(a, b, |a, b| a & b))))
            }
            (Repr::Bitmap(a), Repr::Runs(b)) | (Repr::Runs(b), Repr::Bitmap(a)) => {
                let mut bitmap = Arc::clone(a);
                gaps(b).for_each(|gap| Arc::make_mut(&mut bitmap).remove_run(gap));
                normalized(Repr::Bitmap(bitmap))
            }
        }
    }

    /// The union.
    #[cfg(test)]
    pub(crate) fn or(&self, other: &Container) -> Container {
        let mut either = self.clone();
        either.or_with(other);
        either
    }

    /// The members of this container that are not in the other.
    #[cfg(test)]
    pub(crate) fn and_not(&self, other: &Container) -> Container {
        let mut rest = self.clone();
        rest.and_not_with(other);
        rest
    }

    /// Adds the members of `other`.
    pub(crate) fn or_with(&mut self, other: &Container) {
        let union = match (&mut self.0, &other.0) {
            (_, Repr::Array(b)) if b.is_empty() => return,
            (Repr::Array(a), _) if a.is_empty() => other.0.clone(),
            (Repr::Array(a), Repr::Array(b)) => or_arrays(a, b),
            (Repr::Bitmap(a), _) => {
                or_into(Arc::make_mut(a), &other.0);
                return;
            }
            (a, Repr::Bitmap(b)) => {
                let mut bitmap = Bitmap::clone(b);
                or_into(&mut bitmap, a);
                Repr::Bitmap(Arc::new(bitmap))
            }
            (Repr::Array(a), Repr::Runs(b)) => or_array_and_runs(a, b),
            (Repr::Runs(a), Repr::Array(b)) => or_array_and_runs(b, a),
            (Repr::Runs(a), Repr::Runs(b)) => sweep(a.iter().copied(), b.iter().copied(), |a, b| a || b),
        };
        self.0 = union;
        self.normalize();
    }

    /// Removes the members of `other`.
    pub(crate) fn and_not_with(&mut self, other: &Container) {
        match (&mut self.0, &other.0) {
            (_, Repr::Array(b)) if b.is_empty() => return,
            (Repr::Array(a), Repr::Array(b)) => *a = and_not_arrays(a, b),
            (Repr::Array(a), Repr::Bitmap(b)) => *a = filter(a, |value| !b.contains(value)),
            (Repr::Array(a), Repr::Runs(b)) => *a = filter(a, |value| !runs_contain(b, value)),
            (Repr::Bitmap(a), Repr::Bitmap(b)) => match Arc::get_mut(a) {
                Some(a) => a.combine(b, |a, b| a & !b),
                None => *a = Arc::new(Bitmap::combined(a, b, |a, b| a & !b)),
            },
            (Repr::Bitmap(a), Repr::Array(b)) => {
                let bitmap = Arc::make_mut(a);
                b.iter().for_each(|&value| bitmap.remove(value));
            }
            (Repr::Bitmap(a), Repr::Runs(b)) => {
                let bitmap = Arc::make_mut(a);
                b.iter().for_each(|&run| bitmap.remove_run(run));
            }
            (Repr::Runs(a), Repr::Array(b)) if b.len() > SWEPT_MAX => {
                let (a, b) = (Bitmap::of_runs(a), Bitmap::of_sorted(b));
                self.0 = Repr::Bitmap(Arc::new(Bitmap::combined(&a, &b, |a, b| a & !b)));
            }
            (Repr::Runs(a), Repr::Array(b)) => self.0 = sweep(a.iter().copied(), units(b), |a, b| a && !b),
            (Repr::Runs(a), Repr::Runs(b)) => self.0 = sweep(a.iter().copied(), b.iter().copied(), |a, b| a && !b),
            (Repr::Runs(a), Repr::Bitmap(b)) => {
                self.0 = Repr::Bitmap(Arc::new(Bitmap::combined(&Bitmap::of_runs(a), b, |a, b| a & !b)));
            }
        }
        self.normalize();
    }

    /// Keeps only the members of `other`.
    pub(crate) fn and_with(&mut self, other: &Container) {
        *self = self.and(other);
    }

    /// The cardinality of the intersection, without building it.
    pub(crate) fn and_len(&self, other: &Container) -> u32 {
        match (&self.0, &other.0) {
            (Repr::Bitmap(a), Repr::Bitmap(b)) => a.and_len(b),
            (Repr::Array(a), Repr::Array(b)) if a.len() > MERGED_MAX && b.len() > MERGED_MAX => {
                let bits = Bitmap::of_sorted(b);
                a.iter().map(|&value| u32::from(bits.contains(value))).sum()
            }
            (Repr::Array(a), Repr::Bitmap(b)) | (Repr::Bitmap(b), Repr::Array(a)) => {
                a.iter().map(|&value| u32::from(b.contains(value))).sum()
            }
            (Repr::Array(a), Repr::Runs(b)) | (Repr::Runs(b), Repr::Array(a)) if b.len() <= a.len() => {
                b.iter().map(|run| within(a, *run).len() as u32).sum()
            }
            (Repr::Bitmap(a), Repr::Runs(b)) | (Repr::Runs(b), Repr::Bitmap(a)) if b.len() <= 8 => {
                b.iter().map(|run| a.rank(run.last) + u32::from(a.contains(run.last)) - a.rank(run.first)).sum()
            }
            _ => self.and(other).len(),
        }
    }
}

/// The members of an array that are in a run.
fn within(array: &[u16], run: Run) -> &[u16] {
    let first = array.partition_point(|value| *value < run.first);
    let count = array[first..].partition_point(|value| *value <= run.last);
    &array[first..first + count]
}

fn or_into(bitmap: &mut Bitmap, members: &Repr) {
    match members {
        Repr::Array(values) => values.iter().for_each(|&value| bitmap.insert(value)),
        Repr::Bitmap(other) => bitmap.combine(other, |a, b| a | b),
        Repr::Runs(runs) => runs.iter().for_each(|&run| bitmap.insert_run(run)),
    }
}

/// Keeps the values for which `keep` returns true. Every value is written, and the position advances only if it is
/// kept, so that there is no branch to mispredict.
fn filter(values: &[u16], mut keep: impl FnMut(u16) -> bool) -> Array {
    let mut kept = Array::from_elem(0, values.len());
    let targets = &mut kept[..];
    let mut count = 0;
    for &value in values {
        targets[count] = value;
        count += usize::from(keep(value));
    }
    kept.truncate(count);
    kept
}

fn and_arrays(a: &[u16], b: &[u16]) -> Array {
    let (short, long) = if a.len() <= b.len() { (a, b) } else { (b, a) };
    if short.len() * SEARCH_RATIO < long.len() {
        let mut rest = long;
        return filter(short, |value| {
            rest = &rest[rest.partition_point(|&member| member < value)..];
            rest.first() == Some(&value)
        });
    }
    if short.len() * BLOCK_RATIO < long.len() {
        let mut rest = long;
        return filter(short, |value| {
            while rest.get(BLOCK - 1).is_some_and(|last| *last < value) {
                rest = &rest[BLOCK..];
            }
            // Compare without early exit, so that the loop is vectorized.
            rest[..rest.len().min(BLOCK)].iter().fold(false, |found, member| found | (*member == value))
        });
    }
    if short.len() > MERGED_MAX {
        let bits = Bitmap::of_sorted(long);
        return filter(short, |value| bits.contains(value));
    }
    let mut both = Array::with_capacity(short.len());
    let (mut i, mut j) = (0, 0);
    while let (Some(&x), Some(&y)) = (short.get(i), long.get(j)) {
        if x == y {
            both.push(x);
        }
        i += usize::from(x <= y);
        j += usize::from(y <= x);
    }
    both
}

fn and_not_arrays(a: &[u16], b: &[u16]) -> Array {
    if a.len() * SEARCH_RATIO < b.len() {
        return filter(a, |value| b.binary_search(&value).is_err());
    }
    if b.len() > MERGED_MAX {
        let bits = Bitmap::of_sorted(b);
        return filter(a, |value| !bits.contains(value));
    }
    let mut rest = b;
    filter(a, |value| {
        while let [before, after @ ..] = rest
            && *before < value
        {
            rest = after;
        }
        rest.first() != Some(&value)
    })
}

fn or_arrays(a: &[u16], b: &[u16]) -> Repr {
    if a.len() + b.len() > 2 * MERGED_MAX {
        let bits = Bitmap::combined(&Bitmap::of_sorted(a), &Bitmap::of_sorted(b), |a, b| a | b);
        return Repr::Bitmap(Arc::new(bits));
    }
    let mut either = Array::with_capacity(a.len() + b.len());
    let (mut i, mut j) = (0, 0);
    while let (Some(&x), Some(&y)) = (a.get(i), b.get(j)) {
        either.push(x.min(y));
        i += usize::from(x <= y);
        j += usize::from(y <= x);
    }
    either.extend_from_slice(&a[i..]);
    either.extend_from_slice(&b[j..]);
    Repr::Array(either)
}

fn or_array_and_runs(a: &[u16], b: &[Run]) -> Repr {
    if a.len() <= SWEPT_MAX {
        return sweep(units(a), b.iter().copied(), |a, b| a || b);
    }
    let bits = Bitmap::combined(&Bitmap::of_sorted(a), &Bitmap::of_runs(b), |a, b| a | b);
    Repr::Bitmap(Arc::new(bits))
}

fn units(values: &[u16]) -> impl Iterator<Item = Run> {
    values.iter().map(|&value| Run { first: value, last: value })
}

/// The complement of `runs`.
fn gaps(runs: &[Run]) -> impl Iterator<Item = Run> {
    let starts = std::iter::once(0).chain(runs.iter().map(|run| u32::from(run.last) + 1));
    let ends = runs.iter().map(|run| u32::from(run.first)).chain([1 << 16]);
    starts
        .zip(ends)
        .filter(|(start, end)| start < end)
        .map(|(start, end)| Run { first: start as u16, last: (end - 1) as u16 })
}

fn swept(a: impl Iterator<Item = Run>, b: impl Iterator<Item = Run>, keep: impl Fn(bool, bool) -> bool) -> Container {
    normalized(sweep(a, b, keep))
}

/// Sweeps two lists of ascending intervals and keeps the stretches for which `keep(in a, in b)` returns true.
fn sweep(a: impl Iterator<Item = Run>, b: impl Iterator<Item = Run>, keep: impl Fn(bool, bool) -> bool) -> Repr {
    let (mut a, mut b) = (IntervalEdges::new(a), IntervalEdges::new(b));
    let mut kept = Runs::new();
    let mut at = 0;
    while at <= u32::from(u16::MAX) {
        let next = a.next.min(b.next);
        if at < next && keep(a.inside, b.inside) {
            push_run(&mut kept, at, next - 1);
        }
        at = next;
        a.pass(at);
        b.pass(at);
    }
    smallest(kept)
}

/// Iterates over the starts and ends of a list of intervals.
struct IntervalEdges<I> {
    runs: I,
    inside: bool,
    next: u32,
    end: u32,
}

impl<I: Iterator<Item = Run>> IntervalEdges<I> {
    const BEYOND: u32 = 1 << 16;

    fn new(runs: I) -> Self {
        let mut edges = IntervalEdges { runs, inside: false, next: Self::BEYOND, end: Self::BEYOND };
        edges.find_next();
        edges
    }

    fn find_next(&mut self) {
        match self.runs.next() {
            Some(run) => (self.next, self.end) = (u32::from(run.first), u32::from(run.last) + 1),
            None => self.next = Self::BEYOND,
        }
    }

    /// Crosses the edges at `at`: one interval may end where the next begins.
    fn pass(&mut self, at: u32) {
        while self.next == at && at < Self::BEYOND {
            if self.inside {
                self.inside = false;
                self.find_next();
            } else {
                self.inside = true;
                self.next = self.end;
            }
        }
    }
}

fn push_run(runs: &mut Runs, first: u32, last: u32) {
    match runs.last_mut() {
        Some(run) if u32::from(run.last) + 1 == first => run.last = last as u16,
        _ => runs.push(Run { first: first as u16, last: last as u16 }),
    }
}

/// The smallest representation of runs.
fn smallest(runs: Runs) -> Repr {
    debug_assert!(are_apart(&runs), "runs are ascending and not adjacent");
    let count: usize = runs.iter().map(|run| run.len() as usize).sum();
    if count <= ARRAY_MAX && count <= 2 * runs.len() {
        return Repr::Array(runs.iter().flat_map(|run| run.first..=run.last).collect());
    }
    if runs.len() > RUNS_MAX { Repr::Bitmap(Arc::new(Bitmap::of_runs(&runs))) } else { Repr::Runs(runs) }
}
