//! And, or, and-not of two containers.
//!
//! Two arrays are merged, or searched if one is far shorter; an array and anything else is filtered where the result
//! is within the array; a bitmap and anything else is combined word by word; runs and arrays are swept as intervals.

use std::sync::Arc;

use super::bitmap::Bitmap;
use super::{ARRAY_MAX, Array, Container, Form, RUNS_MAX, Run, Runs};

/// An array this many times shorter than another is looked up in it, member by member.
const SEARCH_RATIO: usize = 32;

impl Container {
    /// The members of both.
    pub(crate) fn and(&self, other: &Container) -> Container {
        match (&self.0, &other.0) {
            (Form::Array(a), Form::Array(b)) => Container(Form::Array(and_arrays(a, b))),
            (Form::Array(a), _) => Container(Form::Array(filter(a, |value| other.contains(value)))),
            (_, Form::Array(b)) => Container(Form::Array(filter(b, |value| self.contains(value)))),
            (Form::Runs(a), Form::Runs(b)) => swept(a.iter().copied(), b.iter().copied(), |a, b| a && b),
            (Form::Bitmap(a), Form::Bitmap(b)) => combined(a, b, |a, b| a & b),
            (Form::Bitmap(a), Form::Runs(b)) | (Form::Runs(b), Form::Bitmap(a)) => {
                let mut bitmap = Arc::clone(a);
                gaps(b).for_each(|gap| Arc::make_mut(&mut bitmap).remove_run(gap));
                settled(Form::Bitmap(bitmap))
            }
        }
    }

    /// The members of either.
    pub(crate) fn or(&self, other: &Container) -> Container {
        let mut either = self.clone();
        either.or_with(other);
        either
    }

    /// The members of this that are not in the other.
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
            (Form::Array(a), Form::Runs(b)) => sweep(units(a), b.iter().copied(), |a, b| a || b),
            (Form::Runs(a), Form::Array(b)) => sweep(a.iter().copied(), units(b), |a, b| a || b),
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
            (Form::Array(a), _) => a.retain(|value| !other.contains(*value)),
            (Form::Bitmap(a), Form::Bitmap(b)) => Arc::make_mut(a).combine(b, |a, b| a & !b),
            (Form::Bitmap(a), Form::Array(b)) => {
                let bitmap = Arc::make_mut(a);
                b.iter().for_each(|&value| bitmap.remove(value));
            }
            (Form::Bitmap(a), Form::Runs(b)) => {
                let bitmap = Arc::make_mut(a);
                b.iter().for_each(|&run| bitmap.remove_run(run));
            }
            (Form::Runs(a), Form::Array(b)) => self.0 = sweep(a.iter().copied(), units(b), |a, b| a && !b),
            (Form::Runs(a), Form::Runs(b)) => self.0 = sweep(a.iter().copied(), b.iter().copied(), |a, b| a && !b),
            (Form::Runs(a), Form::Bitmap(b)) => {
                let mut bitmap = Bitmap::of_runs(a);
                bitmap.combine(b, |a, b| a & !b);
                self.0 = Form::Bitmap(Arc::new(bitmap));
            }
        }
        self.settle();
    }

    /// Keeps only the members of `other`.
    pub(crate) fn and_with(&mut self, other: &Container) {
        if let Form::Array(a) = &mut self.0
            && !matches!(other.0, Form::Array(_))
        {
            a.retain(|value| other.contains(*value));
        } else {
            *self = self.and(other);
        }
    }

    /// How many members both have, without making the set.
    pub(crate) fn and_len(&self, other: &Container) -> u32 {
        match (&self.0, &other.0) {
            (Form::Bitmap(a), Form::Bitmap(b)) => a.and_len(b),
            (Form::Array(a), Form::Bitmap(b)) | (Form::Bitmap(b), Form::Array(a)) => {
                a.iter().map(|&value| u32::from(b.contains(value))).sum()
            }
            (Form::Array(a), Form::Runs(_)) => a.iter().filter(|&&value| other.contains(value)).count() as u32,
            (Form::Runs(_), Form::Array(b)) => b.iter().filter(|&&value| self.contains(value)).count() as u32,
            (Form::Bitmap(a), Form::Runs(b)) | (Form::Runs(b), Form::Bitmap(a)) if b.len() <= 8 => {
                b.iter().map(|run| a.rank(run.last) + u32::from(a.contains(run.last)) - a.rank(run.first)).sum()
            }
            _ => self.and(other).len(),
        }
    }
}

fn settled(form: Form) -> Container {
    let mut container = Container(form);
    container.settle();
    container
}

fn combined(a: &Bitmap, b: &Bitmap, operation: impl Fn(u64, u64) -> u64) -> Container {
    let mut bitmap = a.clone();
    bitmap.combine(b, operation);
    settled(Form::Bitmap(Arc::new(bitmap)))
}

fn or_into(bitmap: &mut Bitmap, form: &Form) {
    match form {
        Form::Array(values) => values.iter().for_each(|&value| bitmap.insert(value)),
        Form::Bitmap(other) => bitmap.combine(other, |a, b| a | b),
        Form::Runs(runs) => runs.iter().for_each(|&run| bitmap.insert_run(run)),
    }
}

fn filter(values: &[u16], mut keep: impl FnMut(u16) -> bool) -> Array {
    values.iter().copied().filter(|&value| keep(value)).collect()
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
    let mut rest = Array::with_capacity(a.len());
    let mut j = 0;
    for &x in a {
        while b.get(j).is_some_and(|&y| y < x) {
            j += 1;
        }
        if b.get(j) != Some(&x) {
            rest.push(x);
        }
    }
    rest
}

fn or_arrays(a: &[u16], b: &[u16]) -> Form {
    if a.len() + b.len() > 2 * ARRAY_MAX {
        // Too many for an array even if half of them are in both.
        let mut bitmap = Bitmap::new();
        a.iter().chain(b).for_each(|&value| bitmap.insert(value));
        return Form::Bitmap(Arc::new(bitmap));
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
