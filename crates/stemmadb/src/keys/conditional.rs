//! Writes of keys that depend on what is there, or return it: conditions, previous values, counters of floats.

use std::time::Duration;

use serde::Serialize;

use super::{KeyEntry, Keys, expiration_after};
use crate::value::Value;
use crate::{Error, Result};

/// When [`Keys::set_if`] sets a key.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub enum KeyCondition {
    /// Always.
    #[default]
    Always,
    /// Only if the key does not exist.
    Absent,
    /// Only if the key exists.
    Present,
    /// Only if the key has this value.
    Equals(Value),
}

/// The outcome of [`Keys::set_if`].
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct KeyWrite {
    /// Whether the condition held, so that the value was set.
    pub was_set: bool,
    /// The value before; `None` if the key did not exist.
    pub previous: Option<Value>,
}

impl KeyWrite {
    /// An outcome that a database in another process returned.
    pub fn new(was_set: bool, previous: Option<Value>) -> Self {
        KeyWrite { was_set, previous }
    }
}

impl KeyCondition {
    fn holds(&self, current: Option<&Value>) -> bool {
        match self {
            KeyCondition::Always => true,
            KeyCondition::Absent => current.is_none(),
            KeyCondition::Present => current.is_some(),
            KeyCondition::Equals(expected) => current == Some(expected),
        }
    }
}

impl Keys {
    /// Sets the value of a key if a condition holds; returns whether it did, and the previous value. With a time, the
    /// key expires after it; otherwise it does not expire.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use stemmadb::{Database, handles::KeyCondition};
    /// # fn main() -> stemmadb::Result<()> {
    /// # let db = Database::in_memory();
    /// let leases = db.keys("leases")?;
    /// let minute = Some(Duration::from_secs(60));
    /// assert!(leases.set_if("backup", &"worker 1", &KeyCondition::Absent, minute)?.was_set);
    /// let second = leases.set_if("backup", &"worker 2", &KeyCondition::Absent, minute)?;
    /// assert_eq!((second.was_set, second.previous), (false, Some("worker 1".into())));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Keys::set`].
    pub fn set_if<T: Serialize + ?Sized>(
        &self,
        key: &str,
        value: &T,
        condition: &KeyCondition,
        time: Option<Duration>,
    ) -> Result<KeyWrite> {
        let value = Value::from_serialize(value)?;
        let store = self.store()?;
        self.change(key, |entry| {
            let previous = entry.as_ref().map(|entry| entry.value.clone());
            let was_set = condition.holds(previous.as_ref());
            let after = if was_set {
                Some(KeyEntry { value, expires_at_ms: time.map(|time| expiration_after(&store, time)) })
            } else {
                entry
            };
            Ok((after, KeyWrite { was_set, previous }))
        })
    }

    /// Sets the value of a key, without an expiration time, and returns the previous value.
    ///
    /// # Errors
    /// As [`Keys::set`].
    pub fn replace<T: Serialize + ?Sized>(&self, key: &str, value: &T) -> Result<Option<Value>> {
        Ok(self.set_if(key, value, &KeyCondition::Always, None)?.previous)
    }

    /// Adds `by` to a number and returns the sum, a float. A key that does not exist or is expired counts as zero. An
    /// expiration time is kept.
    ///
    /// # Errors
    /// `Invalid` if the value is not a number, or the sum is not finite.
    pub fn increment_float(&self, key: &str, by: f64) -> Result<f64> {
        self.change(key, |entry| {
            let mut entry = entry.unwrap_or(KeyEntry { value: Value::from(0.0), expires_at_ms: None });
            let before = entry.value.as_f64().ok_or_else(|| {
                Error::invalid(format!("`{key}` is no number")).with_hint("only a number can be incremented")
            })?;
            let after = before + by;
            if !after.is_finite() {
                return Err(Error::invalid(format!("`{key}` is {before}, and {by} more is no finite number")));
            }
            entry.value = Value::from(after);
            Ok((Some(entry), after))
        })
    }
}
