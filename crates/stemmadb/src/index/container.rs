//! A set of 16-bit numbers in whichever form is smallest: a sorted array, a bitmap, or runs.
//!
//! These are roaring bitmaps' containers. A posting is one of them: the documents of one chunk that have one term.
//!
//! **Invariants.** An array is strictly ascending and has at most [`ARRAY_MAX`] members. A bitmap knows its count,
//! which is above [`ARRAY_MAX`]. Runs are ascending and don't touch, and there are at most [`RUNS_MAX`].

mod bitmap;
mod gather;
mod iter;
mod operations;
mod stored;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use bitmap::Bitmap;
pub(crate) use gather::Gather;
pub(crate) use iter::Iter;

/// The longest array: a longer one would be larger than a bitmap.
const ARRAY_MAX: usize = 4096;
/// The most runs: more would be larger than a bitmap.
const RUNS_MAX: usize = 2047;
/// Sorting this many numbers costs more than walking over a bitmap of them.
const BITMAP_SORTS_MIN: usize = 128;
/// A change of this many members is worth a pass over all of them.
const BATCH_MIN: usize = 8;

type Array = SmallVec<[u16; 8]>;
type Runs = SmallVec<[Run; 2]>;

/// All numbers from `first` to `last`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Run {
    first: u16,
    last: u16,
}

impl Run {
    fn len(self) -> u32 {
        u32::from(self.last) - u32::from(self.first) + 1
    }
}

/// A set of 16-bit numbers. Cheap to clone: a bitmap is shared until it is changed.
#[derive(Debug, Clone)]
pub(crate) struct Container(Form);

#[derive(Debug, Clone)]
enum Form {
    Array(Array),
    Bitmap(Arc<Bitmap>),
    Runs(Runs),
}

impl Default for Container {
    fn default() -> Self {
        Container(Form::Array(Array::new()))
    }
}

impl Container {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn of_one(value: u16) -> Self {
        Container(Form::Array(smallvec![value]))
    }

    /// All numbers from `first` to `last`, which must not be less.
    pub(crate) fn of_range(first: u16, last: u16) -> Self {
        debug_assert!(first <= last, "a range has a member");
        Container(Form::Runs(smallvec![Run { first, last }]))
    }

    /// The set of values in any order.
    pub(crate) fn from_unsorted(values: &mut Vec<u16>) -> Self {
        if values.len() < BITMAP_SORTS_MIN {
            values.sort_unstable();
            values.dedup();
            return Self::from_sorted(values);
        }
        let mut bitmap = Bitmap::new();
        values.iter().for_each(|&value| bitmap.insert(value));
        settled(Form::Bitmap(Arc::new(bitmap)))
    }

    /// The set of strictly ascending values.
    pub(crate) fn from_sorted(values: &[u16]) -> Self {
        debug_assert!(values.is_sorted_by(|a, b| a < b), "strictly ascending");
        if let [first, _, .., last] = *values
            && usize::from(last - first) + 1 == values.len()
        {
            return Container::of_range(first, last);
        }
        if values.len() <= ARRAY_MAX {
            return Container(Form::Array(Array::from_slice(values)));
        }
        Container(Form::Bitmap(Arc::new(Bitmap::of_sorted(values))))
    }

    /// How many members. Runs are counted, else immediate.
    pub(crate) fn len(&self) -> u32 {
        match &self.0 {
            Form::Array(values) => values.len() as u32,
            Form::Bitmap(bitmap) => bitmap.len(),
            Form::Runs(runs) => runs.iter().map(|run| run.len()).sum(),
        }
    }

    /// About how many bytes it takes beside itself.
    pub(crate) fn byte_count(&self) -> usize {
        match &self.0 {
            Form::Array(values) => 2 * values.len(),
            Form::Bitmap(_) => bitmap::BITMAP_BYTES,
            Form::Runs(runs) => 4 * runs.len(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        match &self.0 {
            Form::Array(values) => values.is_empty(),
            Form::Bitmap(bitmap) => bitmap.len() == 0,
            Form::Runs(runs) => runs.is_empty(),
        }
    }

    #[cfg(test)]
    pub(crate) fn first(&self) -> Option<u16> {
        match &self.0 {
            Form::Array(values) => values.first().copied(),
            Form::Bitmap(bitmap) => bitmap.first(),
            Form::Runs(runs) => runs.first().map(|run| run.first),
        }
    }

    #[cfg(test)]
    pub(crate) fn last(&self) -> Option<u16> {
        match &self.0 {
            Form::Array(values) => values.last().copied(),
            Form::Bitmap(bitmap) => bitmap.last(),
            Form::Runs(runs) => runs.last().map(|run| run.last),
        }
    }

    pub(crate) fn contains(&self, value: u16) -> bool {
        match &self.0 {
            Form::Array(values) => values.binary_search(&value).is_ok(),
            Form::Bitmap(bitmap) => bitmap.contains(value),
            Form::Runs(runs) => runs_contain(runs, value),
        }
    }

    /// How many members are less than `value`.
    #[cfg(test)]
    pub(crate) fn rank(&self, value: u16) -> u32 {
        match &self.0 {
            Form::Array(values) => values.partition_point(|&member| member < value) as u32,
            Form::Bitmap(bitmap) => bitmap.rank(value),
            Form::Runs(runs) => {
                let below = runs.iter().take_while(|run| run.first < value);
                below.map(|run| Run { first: run.first, last: run.last.min(value - 1) }.len()).sum()
            }
        }
    }

    /// The member that has `rank` lesser ones.
    #[cfg(test)]
    pub(crate) fn select(&self, rank: u32) -> Option<u16> {
        match &self.0 {
            Form::Array(values) => values.get(rank as usize).copied(),
            Form::Bitmap(bitmap) => bitmap.select(rank),
            Form::Runs(runs) => {
                let mut rest = rank;
                for run in runs {
                    if rest < run.len() {
                        return Some(run.first + rest as u16);
                    }
                    rest -= run.len();
                }
                None
            }
        }
    }

    /// Adds a member. True if it is new.
    pub(crate) fn insert(&mut self, value: u16) -> bool {
        match &mut self.0 {
            Form::Array(values) => {
                if values.last().is_none_or(|&last| last < value) {
                    values.push(value);
                } else {
                    let Err(at) = values.binary_search(&value) else { return false };
                    values.insert(at, value);
                }
            }
            Form::Bitmap(bitmap) => {
                if bitmap.contains(value) {
                    return false;
                }
                Arc::make_mut(bitmap).insert(value);
            }
            Form::Runs(runs) => {
                if !insert_into_runs(runs, value) {
                    return false;
                }
            }
        }
        self.settle();
        true
    }

    /// Takes a member out. True if it was one.
    pub(crate) fn remove(&mut self, value: u16) -> bool {
        match &mut self.0 {
            Form::Array(values) => {
                let Ok(at) = values.binary_search(&value) else { return false };
                values.remove(at);
            }
            Form::Bitmap(bitmap) => {
                if !bitmap.contains(value) {
                    return false;
                }
                Arc::make_mut(bitmap).remove(value);
            }
            Form::Runs(runs) => {
                if !remove_from_runs(runs, value) {
                    return false;
                }
            }
        }
        self.settle();
        true
    }

    /// Takes `removes` out, then adds `adds`; both are strictly ascending. One pass.
    pub(crate) fn apply(&mut self, adds: &[u16], removes: &[u16]) {
        if adds.len() + removes.len() < BATCH_MIN {
            removes.iter().for_each(|&value| _ = self.remove(value));
            adds.iter().for_each(|&value| _ = self.insert(value));
            return;
        }
        match &mut self.0 {
            Form::Array(values) if removes.is_empty() && values.last() < adds.first() => {
                values.extend_from_slice(adds);
            }
            Form::Bitmap(bitmap) => {
                let bitmap = Arc::make_mut(bitmap);
                removes.iter().for_each(|&value| bitmap.remove(value));
                adds.iter().for_each(|&value| bitmap.insert(value));
            }
            Form::Array(_) | Form::Runs(_) => {
                if !removes.is_empty() {
                    self.and_not_with(&Container::from_sorted(removes));
                }
                if !adds.is_empty() {
                    self.or_with(&Container::from_sorted(adds));
                }
            }
        }
        self.settle();
    }

    /// The members in ascending order; reversible.
    pub(crate) fn iter(&self) -> Iter<'_> {
        self.range(0, u16::MAX)
    }

    /// The members from `lowest` to `highest`, both inclusive; reversible.
    pub(crate) fn range(&self, lowest: u16, highest: u16) -> Iter<'_> {
        Iter::new(&self.0, lowest, highest)
    }

    /// Restores the invariants after a change: the form fits the count.
    fn settle(&mut self) {
        match &self.0 {
            Form::Array(values) if values.len() > ARRAY_MAX => {
                self.0 = Form::Bitmap(Arc::new(Bitmap::of_sorted(values)));
            }
            Form::Bitmap(bitmap) if bitmap.len() as usize <= ARRAY_MAX => {
                self.0 = Form::Array(bitmap.to_array());
            }
            Form::Runs(runs) if runs.len() > RUNS_MAX => {
                // So many runs may be no more members than an array holds.
                *self = settled(Form::Bitmap(Arc::new(Bitmap::of_runs(runs))));
            }
            Form::Runs(runs) if runs.is_empty() => self.0 = Form::Array(Array::new()),
            Form::Array(_) | Form::Bitmap(_) | Form::Runs(_) => {}
        }
    }
}

fn settled(form: Form) -> Container {
    let mut container = Container(form);
    container.settle();
    container
}

fn runs_contain(runs: &[Run], value: u16) -> bool {
    let at = runs.partition_point(|run| run.last < value);
    runs.get(at).is_some_and(|run| run.first <= value)
}

fn insert_into_runs(runs: &mut Runs, value: u16) -> bool {
    // The first run that ends at or after the number before `value`, so may contain or touch it.
    let at = runs.partition_point(|run| u32::from(run.last) + 1 < u32::from(value));
    let Some(&run) = runs.get(at) else {
        runs.push(Run { first: value, last: value });
        return true;
    };
    if run.first <= value && value <= run.last {
        return false;
    }
    if run.last < value {
        let joins_next = runs.get(at + 1).is_some_and(|next| next.first - 1 == value);
        runs[at].last = if joins_next { runs.remove(at + 1).last } else { value };
    } else if run.first - 1 == value {
        runs[at].first = value;
    } else {
        runs.insert(at, Run { first: value, last: value });
    }
    true
}

fn remove_from_runs(runs: &mut Runs, value: u16) -> bool {
    let at = runs.partition_point(|run| run.last < value);
    let Some(run) = runs.get_mut(at).filter(|run| run.first <= value) else { return false };
    if run.first == run.last {
        runs.remove(at);
    } else if run.first == value {
        run.first += 1;
    } else if run.last == value {
        run.last -= 1;
    } else {
        let upper = Run { first: value + 1, last: run.last };
        run.last = value - 1;
        runs.insert(at + 1, upper);
    }
    true
}

impl PartialEq for Container {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.iter().eq(other.iter())
    }
}

impl Eq for Container {}
