//! Roaring container: a set of 16-bit numbers as a sorted array, a bitmap, or runs.
//!
//! A posting is one container: the documents of one chunk that have one term.
//!
//! **Invariants.** An array is strictly ascending and has at most [`ARRAY_MAX`] members. A bitmap stores its
//! cardinality, which is above [`ARRAY_MAX`]. Runs are ascending and not adjacent, and there are at most [`RUNS_MAX`].

mod bitmap;
mod gather;
mod iter;
mod operations;
mod probe;
mod stored;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use bitmap::Bitmap;
pub(crate) use gather::ContainerUnion;
pub(crate) use iter::Iter;
pub(crate) use probe::ContainerProbe;

/// The maximum length of an array. A longer one would be larger than a bitmap.
const ARRAY_MAX: usize = 4096;
/// The maximum number of runs. More would be larger than a bitmap.
const RUNS_MAX: usize = 2047;
/// From this many numbers on, sorting costs more than marking them in a bitmap and scanning it.
const BITMAP_SORTS_MIN: usize = 128;

type Array = SmallVec<[u16; 8]>;
type Runs = SmallVec<[Run; 2]>;

/// All numbers from `first` to `last`, inclusive.
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

/// A set of 16-bit numbers. Cheap to clone: a bitmap is shared until it is modified.
#[derive(Debug, Clone)]
pub(crate) struct Container(Repr);

#[derive(Debug, Clone)]
enum Repr {
    Array(Array),
    Bitmap(Arc<Bitmap>),
    Runs(Runs),
}

impl Default for Container {
    fn default() -> Self {
        Container(Repr::Array(Array::new()))
    }
}

impl Container {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn of_one(value: u16) -> Self {
        Container(Repr::Array(smallvec![value]))
    }

    /// All numbers from `first` to `last`, inclusive. `last` must not be less than `first`.
    pub(crate) fn of_range(first: u16, last: u16) -> Self {
        debug_assert!(first <= last, "a run has at least one member");
        Container(Repr::Runs(smallvec![Run { first, last }]))
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
        normalized(Repr::Bitmap(Arc::new(bitmap)))
    }

    /// The set of strictly ascending values.
    pub(crate) fn from_sorted(values: &[u16]) -> Self {
        debug_assert!(values.is_sorted_by(|a, b| a < b), "the members of a container are strictly ascending");
        if let [first, _, .., last] = *values
            && usize::from(last - first) + 1 == values.len()
        {
            return Container::of_range(first, last);
        }
        if values.len() <= ARRAY_MAX {
            return Container(Repr::Array(Array::from_slice(values)));
        }
        Container(Repr::Bitmap(Arc::new(Bitmap::of_sorted(values))))
    }

    /// The cardinality. Constant time except for runs, which are summed.
    pub(crate) fn len(&self) -> u32 {
        match &self.0 {
            Repr::Array(values) => values.len() as u32,
            Repr::Bitmap(bitmap) => bitmap.len(),
            Repr::Runs(runs) => runs.iter().map(|run| run.len()).sum(),
        }
    }

    /// The approximate heap size in bytes.
    pub(crate) fn byte_count(&self) -> usize {
        match &self.0 {
            Repr::Array(values) => 2 * values.len(),
            Repr::Bitmap(_) => bitmap::BITMAP_BYTES,
            Repr::Runs(runs) => 4 * runs.len(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        match &self.0 {
            Repr::Array(values) => values.is_empty(),
            Repr::Bitmap(bitmap) => bitmap.len() == 0,
            Repr::Runs(runs) => runs.is_empty(),
        }
    }

    #[cfg(test)]
    pub(crate) fn first(&self) -> Option<u16> {
        match &self.0 {
            Repr::Array(values) => values.first().copied(),
            Repr::Bitmap(bitmap) => bitmap.first(),
            Repr::Runs(runs) => runs.first().map(|run| run.first),
        }
    }

    #[cfg(test)]
    pub(crate) fn last(&self) -> Option<u16> {
        match &self.0 {
            Repr::Array(values) => values.last().copied(),
            Repr::Bitmap(bitmap) => bitmap.last(),
            Repr::Runs(runs) => runs.last().map(|run| run.last),
        }
    }

    pub(crate) fn contains(&self, value: u16) -> bool {
        match &self.0 {
            Repr::Array(values) => values.binary_search(&value).is_ok(),
            Repr::Bitmap(bitmap) => bitmap.contains(value),
            Repr::Runs(runs) => runs_contain(runs, value),
        }
    }

    /// The number of members less than `value`.
    #[cfg(test)]
    pub(crate) fn rank(&self, value: u16) -> u32 {
        match &self.0 {
            Repr::Array(values) => values.partition_point(|&member| member < value) as u32,
            Repr::Bitmap(bitmap) => bitmap.rank(value),
            Repr::Runs(runs) => {
                let below = runs.iter().take_while(|run| run.first < value);
                below.map(|run| Run { first: run.first, last: run.last.min(value - 1) }.len()).sum()
            }
        }
    }

    /// The member with `rank` lesser members.
    #[cfg(test)]
    pub(crate) fn select(&self, rank: u32) -> Option<u16> {
        match &self.0 {
            Repr::Array(values) => values.get(rank as usize).copied(),
            Repr::Bitmap(bitmap) => bitmap.select(rank),
            Repr::Runs(runs) => {
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

    /// Adds a member. Returns whether it is new.
    pub(crate) fn insert(&mut self, value: u16) -> bool {
        match &mut self.0 {
            Repr::Array(values) => {
                if values.last().is_none_or(|&last| last < value) {
                    values.push(value);
                } else {
                    let Err(at) = values.binary_search(&value) else { return false };
                    values.insert(at, value);
                }
            }
            Repr::Bitmap(bitmap) => {
                if bitmap.contains(value) {
                    return false;
                }
                Arc::make_mut(bitmap).insert(value);
            }
            Repr::Runs(runs) => {
                if !insert_into_runs(runs, value) {
                    return false;
                }
            }
        }
        self.normalize();
        true
    }

    /// Removes a member. Returns whether it was present.
    pub(crate) fn remove(&mut self, value: u16) -> bool {
        match &mut self.0 {
            Repr::Array(values) => {
                let Ok(at) = values.binary_search(&value) else { return false };
                values.remove(at);
            }
            Repr::Bitmap(bitmap) => {
                if !bitmap.contains(value) {
                    return false;
                }
                Arc::make_mut(bitmap).remove(value);
            }
            Repr::Runs(runs) => {
                if !remove_from_runs(runs, value) {
                    return false;
                }
            }
        }
        self.normalize();
        true
    }

    /// The members in ascending order; reversible.
    pub(crate) fn iter(&self) -> Iter<'_> {
        self.range(0, u16::MAX)
    }

    /// The members from `lowest` to `highest`, both inclusive; reversible.
    pub(crate) fn range(&self, lowest: u16, highest: u16) -> Iter<'_> {
        Iter::new(&self.0, lowest, highest)
    }

    /// Restores the invariants after a change: converts to the representation that fits the cardinality.
    fn normalize(&mut self) {
        match &self.0 {
            Repr::Array(values) if values.len() > ARRAY_MAX => {
                self.0 = Repr::Bitmap(Arc::new(Bitmap::of_sorted(values)));
            }
            Repr::Bitmap(bitmap) if bitmap.len() as usize <= ARRAY_MAX => {
                self.0 = Repr::Array(bitmap.to_array());
            }
            Repr::Runs(runs) if runs.len() > RUNS_MAX => {
                // The runs may have few enough members for an array.
                *self = normalized(Repr::Bitmap(Arc::new(Bitmap::of_runs(runs))));
            }
            Repr::Runs(runs) if runs.is_empty() => self.0 = Repr::Array(Array::new()),
            Repr::Array(_) | Repr::Bitmap(_) | Repr::Runs(_) => {}
        }
        debug_assert!(
            match &self.0 {
                Repr::Array(values) => values.len() <= ARRAY_MAX,
                Repr::Bitmap(bitmap) => bitmap.len() as usize > ARRAY_MAX,
                Repr::Runs(runs) => (1..=RUNS_MAX).contains(&runs.len()),
            },
            "the representation of a container fits its cardinality"
        );
    }
}

fn normalized(form: Repr) -> Container {
    let mut container = Container(form);
    container.normalize();
    container
}

/// Whether runs are strictly ascending and not adjacent.
fn are_apart(runs: &[Run]) -> bool {
    runs.is_sorted_by(|a, b| u32::from(a.last) + 1 < u32::from(b.first))
}

fn runs_contain(runs: &[Run], value: u16) -> bool {
    let at = runs.partition_point(|run| run.last < value);
    runs.get(at).is_some_and(|run| run.first <= value)
}

fn insert_into_runs(runs: &mut Runs, value: u16) -> bool {
    // The first run that ends at or after the number before `value`, so it may contain `value` or be adjacent to it.
    let at = runs.partition_point(|run| u32::from(run.last) + 1 < u32::from(value));
    let Some(&run) = runs.get(at) else {
        runs.push(Run { first: value, last: value });
        return true;
    };
    if run.first <= value && value <= run.last {
        return false;
    }
    if run.last < value {
        let reaches_next = runs.get(at + 1).is_some_and(|next| next.first - 1 == value);
        runs[at].last = if reaches_next { runs.remove(at + 1).last } else { value };
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
