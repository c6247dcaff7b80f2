//! And, or, and-not of two containers.
//!
//! Two arrays are merged, or searched if one is far shorter; an array and anything else is filtered where the result
//! is within the array; a bitmap and anything else is combined word by word; runs and arrays are swept as intervals.

use std::sync::Arc;

use super::bitmap::Bitmap;
use super::{ARRAY_MAX, Array, Container, Form, RUNS_MAX, Run, Runs, runs_contain, settled};

/// An array this many times shorter than another is looked up in it, member by member.
const SEARCH_RATIO: usize = 32;
/// An array this many times shorter is looked up in blocks of the other.
const BLOCK_RATIO: usize = 4;
const BLOCK: usize = 16;
/// Longer arrays are not merged but marked in a bitmap.
const MERGED_MAX: usize = 512;
/// A longer array is not swept as intervals but set bit by bit.
const SWEPT_MAX: usize = 256;

impl Container {
    /// The members of both.
    pub(crate) fn and(&self, other: &Container) -> Container {
        match (&self.0, &other.0) {
            (Form::Array(a), Form::Array(b)) => Container(Form::Array(and_arrays(a, b))),
            (Form::Array(a), Form::Bitmap(b)) | (Form::Bitmap(b), Form::Array(a)) => {
                Container(Form::Array(filter(a, |value| b.contains(value))))
            }
            (Form::Array(a), Form::Runs(b)) | (Form::Runs(b), Form::Array(a)) if b.len() > a.len() => {
                Container(Form::Array(filter(a, |value| runs_contain(b, value))))
            }
            (Form::Array(a), Form::Runs(b)) | (Form::Runs(b), Form::Array(a)) => {
                let mut both = Array::new();
                b.iter().for_each(|run| both.extend_from_slice(within(a, *run)));
                Container(Form::Array(both))
            }
            (Form::Runs(a), Form::Runs(b)) => swept(a.iter().copied(), b.iter().copied(), |a, b| a && b),
            (Form::Bitmap(a), Form::Bitmap(b)) => settled(Form::Bitmap(Arc::new(Bitmap::combined(a, b, |a, b| a & b)))),
            (Form::Bitmap(a), Form::Runs(b)) | (Form::Runs(b), Form::Bitmap(a)) => {
                let mut bitmap = Arc::clone(a);
                gaps(b).for_each(|gap| Arc::make_mut(&mut bitmap).remove_run(gap));
                settled(Form::Bitmap(bitmap))
            }
        }
    }

    /// The members of either.
    #[cfg(test)]
    pub(crate) fn or(&self, other: &Container) -> Container {
        let mut either = self.clone();
        either.or_with(other);
        either
    }

    /// The members of this that are not in the other.
    #[cfg(test)]
    pub(crate) fn and_not(&self, other: &Container) -> Container {
        let mut rest = self.clone();
        rest.and_not_with(other);
        rest
    }

    /// Adds the members of `other`.
    pub(crate) fn or_with(&mut self, other: &Container) {
        let whole = match (&mut self.0, &other.0) {
            (_, Form::Array(b)) if b.is_empty() => return,
            (Form::Array(a), _) if a.is_empty() => other.0.clone(),
            (Form::Array(a), Form::Array(b)) => or_arrays(a, b),
            (Form::Bitmap(a), _) => {
                or_into(Arc::make_mut(a), &other.0);
                return;
            }
            (a, Form::Bitmap(b)) => {
                let mut bitmap = Bitmap::clone(b);
                or_into(&mut bitmap, a);
                Form::Bitmap(Arc::new(bitmap))
            }
            (Form::Array(a), Form::Runs(b)) => or_array_and_runs(a, b),
            (Form::Runs(a), Form::Array(b)) => or_array_and_runs(b, a),
            (Form::Runs(a), Form::Runs(b)) => sweep(a.iter().copied(), b.iter().copied(), |a, b| a || b),
        };
        self.0 = whole;
        self.settle();
    }

    /// Takes out the members of `other`.
    pub(crate) fn and_not_with(&mut self, other: &Container) {
        match (&mut self.0, &other.0) {
            (_, Form::Array(b)) if b.is_empty() => return,
            (Form::Array(a), Form::Array(b)) => *a = and_not_arrays(a, b),
            (Form::Array(a), Form::Bitmap(b)) => *a = filter(a, |value| !b.contains(value)),
            (Form::Array(a), Form::Runs(b)) => *a = filter(a, |value| !runs_contain(b, value)),
            (Form::Bitmap(a), Form::Bitmap(b)) => match Arc::get_mut(a) {
                Some(a) => a.combine(b, |a, b| a & !b),
                None => *a = Arc::new(Bitmap::combined(a, b, |a, b| a & !b)),
            },
            (Form::Bitmap(a), Form::Array(b)) => {
                let bitmap = Arc::make_mut(a);
                b.iter().for_each(|&value| bitmap.remove(value));
            }
            (Form::Bitmap(a), Form::Runs(b)) => {
                let bitmap = Arc::make_mut(a);
                b.iter().for_each(|&run| bitmap.remove_run(run));
            }
            (Form::Runs(a), Form::Array(b)) if b.len() > SWEPT_MAX => {
                let (a, b) = (Bitmap::of_runs(a), Bitmap::of_sorted(b));
                self.0 = Form::Bitmap(Arc::new(Bitmap::combined(&a, &b, |a, b| a & !b)));
            }
            (Form::Runs(a), Form::Array(b)) => self.0 = sweep(a.iter().copied(), units(b), |a, b| a && !b),
            (Form::Runs(a), Form::Runs(b)) => self.0 = sweep(a.iter().copied(), b.iter().copied(), |a, b| a && !b),
            (Form::Runs(a), Form::Bitmap(b)) => {
                self.0 = Form::Bitmap(Arc::new(Bitmap::combined(&Bitmap::of_runs(a), b, |a, b| a & !b)));
            }
        }
        self.settle();
    }

    /// Keeps only the members of `other`.
    pub(crate) fn and_with(&mut self, other: &Container) {
        *self = self.and(other);
    }

    /// How many members both have, without making the set.
    pub(crate) fn and_len(&self, other: &Container) -> u32 {
        match (&self.0, &other.0) {
            (Form::Bitmap(a), Form::Bitmap(b)) => a.and_len(b),
            (Form::Array(a), Form::Array(b)) if a.len() > MERGED_MAX && b.len() > MERGED_MAX => {
                let bits = Bitmap::of_sorted(b);
                a.iter().map(|&value| u32::from(bits.contains(value))).sum()
            }
            (Form::Array(a), Form::Bitmap(b)) | (Form::Bitmap(b), Form::Array(a)) => {
                a.iter().map(|&value| u32::from(b.contains(value))).sum()
            }
            (Form::Array(a), Form::Runs(b)) | (Form::Runs(b), Form::Array(a)) if b.len() <= a.len() => {
                b.iter().map(|run| within(a, *run).len() as u32).sum()
            }
            (Form::Bitmap(a), Form::Runs(b)) | (Form::Runs(b), Form::Bitmap(a)) if b.len() <= 8 => {
                b.iter().map(|run| a.rank(run.last) + u32::from(a.contains(run.last)) - a.rank(run.first)).sum()
            }
            _ => self.and(other).len(),
        }
    }
}

/// The members of an array that lie in a run.
fn within(array: &[u16], run: Run) -> &[u16] {
    let first = array.partition_point(|value| *value < run.first);
    let count = array[first..].partition_point(|value| *value <= run.last);
    &array[first..first + count]
}

fn or_into(bitmap: &mut Bitmap, form: &Form) {
    match form {
        Form::Array(values) => values.iter().for_each(|&value| bitmap.insert(value)),
        Form::Bitmap(other) => bitmap.combine(other, |a, b| a | b),
        Form::Runs(runs) => runs.iter().for_each(|&run| bitmap.insert_run(run)),
    }
}

/// Written always, counted if kept: no branch to mispredict.
fn filter(values: &[u16], mut keep: impl FnMut(u16) -> bool) -> Array {
    let mut kept = Array::from_elem(0, values.len());
    let places = &mut kept[..];
    let mut count = 0;
    for &value in values {
        places[count] = value;
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
            // All of them, so that they are compared at once.
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

fn or_arrays(a: &[u16], b: &[u16]) -> Form {
    if a.len() + b.len() > 2 * MERGED_MAX {
        let bits = Bitmap::combined(&Bitmap::of_sorted(a), &Bitmap::of_sorted(b), |a, b| a | b);
        return Form::Bitmap(Arc::new(bits));
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
    Form::Array(either)
}

fn or_array_and_runs(a: &[u16], b: &[Run]) -> Form {
    if a.len() <= SWEPT_MAX {
        return sweep(units(a), b.iter().copied(), |a, b| a || b);
    }
    let bits = Bitmap::combined(&Bitmap::of_sorted(a), &Bitmap::of_runs(b), |a, b| a | b);
    Form::Bitmap(Arc::new(bits))
}

fn units(values: &[u16]) -> impl Iterator<Item = Run> {
    values.iter().map(|&value| Run { first: value, last: value })
}

/// The runs of what is not in `runs`.
fn gaps(runs: &[Run]) -> impl Iterator<Item = Run> {
    let starts = std::iter::once(0).chain(runs.iter().map(|run| u32::from(run.last) + 1));
    let ends = runs.iter().map(|run| u32::from(run.first)).chain([1 << 16]);
    starts
        .zip(ends)
        .filter(|(start, end)| start < end)
        .map(|(start, end)| Run { first: start as u16, last: (end - 1) as u16 })
}

fn swept(a: impl Iterator<Item = Run>, b: impl Iterator<Item = Run>, keep: impl Fn(bool, bool) -> bool) -> Container {
    settled(sweep(a, b, keep))
}

/// Walks two lists of ascending intervals and keeps the stretches where `keep` says so of (in a, in b).
fn sweep(a: impl Iterator<Item = Run>, b: impl Iterator<Item = Run>, keep: impl Fn(bool, bool) -> bool) -> Form {
    let (mut a, mut b) = (Edges::of(a), Edges::of(b));
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

/// Where one list of intervals begins or ends next.
struct Edges<I> {
    runs: I,
    inside: bool,
    next: u32,
    end: u32,
}

impl<I: Iterator<Item = Run>> Edges<I> {
    const BEYOND: u32 = 1 << 16;

    fn of(runs: I) -> Self {
        let mut edges = Edges { runs, inside: false, next: Self::BEYOND, end: Self::BEYOND };
        edges.find_next();
        edges
    }

    fn find_next(&mut self) {
        match self.runs.next() {
            Some(run) => (self.next, self.end) = (u32::from(run.first), u32::from(run.last) + 1),
            None => self.next = Self::BEYOND,
        }
    }

    /// Crosses the edges at `at`: neighbouring intervals may end and begin in the same place.
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

/// Runs, or the array of their members if that is smaller.
fn smallest(runs: Runs) -> Form {
    let count: usize = runs.iter().map(|run| run.len() as usize).sum();
    if count <= ARRAY_MAX && count <= 2 * runs.len() {
        return Form::Array(runs.iter().flat_map(|run| run.first..=run.last).collect());
    }
    if runs.len() > RUNS_MAX { Form::Bitmap(Arc::new(Bitmap::of_runs(&runs))) } else { Form::Runs(runs) }
}
