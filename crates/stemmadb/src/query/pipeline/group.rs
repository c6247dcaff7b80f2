//! `$group`: accumulates the rows of each key.

use std::collections::BTreeMap;

use super::measure::{bounded, measure};
use super::stage::{Accumulator, Group};
use crate::Result;
use crate::query::execute::aggregate::{SummaryBuilder, canonical};
use crate::query::source::QuerySource;
use crate::value::{Object, Value, collate};

/// Approximate memory of a group and of each of its states, in addition to their values.
const GROUP_BYTES: usize = 200;
const STATE_BYTES: usize = size_of::<State>();

/// The groups under construction, by the keys of their values.
pub(super) struct Groups<'g> {
    group: &'g Group,
    groups: BTreeMap<Vec<u8>, (Value, Vec<State>)>,
    bytes: usize,
}

/// The state of one accumulator in one group.
enum State {
    Count(u64),
    Numbers(Box<SummaryBuilder>),
    /// The smallest, largest, first or last value.
    One(Option<Value>),
    List(Vec<Value>),
    Set(BTreeMap<Vec<u8>, Value>),
}

impl<'g> Groups<'g> {
    pub(super) fn new(group: &'g Group) -> Self {
        Groups { group, groups: BTreeMap::new(), bytes: 0 }
    }

    /// Adds a row. A missing key is null.
    ///
    /// # Errors
    /// `Stopped` if the groups need more memory than the query may use.
    pub(super) fn add(&mut self, row: &Value, source: &impl QuerySource) -> Result<()> {
        let key = self.group.key.compute(row)?.unwrap_or_default();
        let (key_bytes, key) = canonical(&key)?;
        if !self.groups.contains_key(&key_bytes) {
            let states = self.group.fields.iter().map(|(_, accumulator, _)| State::new(*accumulator)).collect();
            self.bytes += GROUP_BYTES + 2 * key_bytes.len() + self.group.fields.len() * (STATE_BYTES + GROUP_BYTES);
            self.groups.insert(key_bytes.clone(), (key, states));
        }
        let Some((_, states)) = self.groups.get_mut(&key_bytes) else { return Ok(()) };
        for ((_, accumulator, expression), state) in self.group.fields.iter().zip(states) {
            if *accumulator == Accumulator::Count {
                state.count();
            } else {
                self.bytes += state.add(*accumulator, expression.compute(row)?)?;
            }
        }
        source.check_memory(self.bytes)
    }

    /// Returns a row for each group, in collation order of their keys.
    pub(super) fn finish(self) -> Result<Vec<Value>> {
        let group = self.group;
        let row = |(key, states): (Value, Vec<State>)| {
            let mut row = Object::new();
            row.insert("_id", key);
            for ((name, accumulator, _), state) in group.fields.iter().zip(states) {
                row.insert(name, state.finish(*accumulator, name)?);
            }
            bounded(Value::Object(row))
        };
        self.groups.into_values().map(row).collect()
    }
}

impl State {
    fn new(accumulator: Accumulator) -> Self {
        match accumulator {
            Accumulator::Count => State::Count(0),
            Accumulator::Sum | Accumulator::Average => State::Numbers(Box::default()),
            Accumulator::Min | Accumulator::Max | Accumulator::First | Accumulator::Last => State::One(None),
            Accumulator::Push => State::List(Vec::new()),
            Accumulator::AddToSet => State::Set(BTreeMap::new()),
        }
    }

    fn count(&mut self) {
        if let State::Count(count) = self {
            *count += 1;
        }
    }

    /// Adds a value and returns the memory that it takes.
    fn add(&mut self, accumulator: Accumulator, value: Option<Value>) -> Result<usize> {
        match self {
            State::Count(_) => {}
            State::Numbers(numbers) => {
                if let Some(Value::Number(number)) = value {
                    numbers.add(number, 1);
                }
            }
            State::One(current) => {
                let before = current.as_ref().map_or(Ok(0), measure)?;
                if is_better(accumulator, current.as_ref(), value.as_ref()) {
                    *current = Some(value.unwrap_or_default());
                }
                return Ok(current.as_ref().map_or(Ok(0), measure)?.saturating_sub(before));
            }
            State::List(list) => {
                if let Some(value) = value {
                    let bytes = measure(&value)?;
                    list.push(value);
                    return Ok(bytes);
                }
            }
            State::Set(set) => {
                if let Some(value) = value {
                    let (key, value) = canonical(&value)?;
                    let bytes = measure(&value)? + key.len();
                    return Ok(if set.insert(key, value).is_none() { bytes } else { 0 });
                }
            }
        }
        Ok(0)
    }

    fn finish(self, accumulator: Accumulator, name: &str) -> Result<Value> {
        Ok(match self {
            State::Count(count) => count.into(),
            State::Numbers(numbers) => {
                let summary = numbers.finish(name)?;
                if accumulator == Accumulator::Sum { summary.sum.into() } else { summary.average().into() }
            }
            State::One(value) => value.unwrap_or_default(),
            State::List(list) => Value::Array(list),
            State::Set(set) => Value::Array(set.into_values().collect()),
        })
    }
}

/// Whether a value replaces the current one. Minimum and maximum ignore null and missing values.
fn is_better(accumulator: Accumulator, current: Option<&Value>, value: Option<&Value>) -> bool {
    match (accumulator, current, value) {
        (Accumulator::First, current, _) => current.is_none(),
        (Accumulator::Last, ..) => true,
        (_, _, None | Some(Value::Null)) => false,
        (_, None, Some(_)) => true,
        (Accumulator::Min, Some(current), Some(value)) => collate::compare(value, current).is_lt(),
        (_, Some(current), Some(value)) => collate::compare(value, current).is_gt(),
    }
}
