//! The key-value store.

use std::time::Duration;

use stemmadb::handles::{KeyCondition, KeyWrite};
use stemmadb::{Keys, Object, Value};

use super::{Database, durability_of};
use crate::arguments::DurabilityChoice;
use crate::failure::{Failure, Result};

/// A value to set.
pub(crate) struct KeyValue {
    pub(crate) value: Value,
    pub(crate) condition: KeyCondition,
    pub(crate) time: Option<Duration>,
}

impl Database {
    fn keys(&self, namespace: &str) -> Result<Keys> {
        Ok(self.inner.keys(namespace)?)
    }

    fn keys_to_write(&self, namespace: &str, durability: DurabilityChoice) -> Result<Keys> {
        Ok(self.keys(namespace)?.durability(durability_of(durability)))
    }

    /// The value of a key.
    pub(crate) fn key(&self, namespace: &str, key: &str) -> Result<Value> {
        self.keys(namespace)?.get(key)?.ok_or_else(|| key_not_found(namespace, key))
    }

    /// Sets a key if its condition holds; returns the previous value.
    pub(crate) fn set_key(
        &self,
        namespace: &str,
        key: &str,
        set: &KeyValue,
        durability: DurabilityChoice,
    ) -> Result<Option<Value>> {
        let keys = self.keys_to_write(namespace, durability)?;
        let written = keys.set_if(key, &set.value, &set.condition, set.time)?;
        previous_value(written, namespace, key)
    }

    /// Removes a key.
    pub(crate) fn delete_key(&self, namespace: &str, key: &str, durability: DurabilityChoice) -> Result<()> {
        match self.keys_to_write(namespace, durability)?.remove(key)? {
            true => Ok(()),
            false => Err(key_not_found(namespace, key)),
        }
    }

    /// Adds a number to the value of a key; returns the sum.
    pub(crate) fn increment_key(
        &self,
        namespace: &str,
        key: &str,
        by: &Value,
        durability: DurabilityChoice,
    ) -> Result<Value> {
        let keys = self.keys_to_write(namespace, durability)?;
        match (by.as_i64(), by.as_f64()) {
            (Some(by), _) => Ok(Value::from(keys.increment(key, by)?)),
            (None, Some(by)) => Ok(Value::from(keys.increment_float(key, by)?)),
            (None, None) => Err(Failure::usage("only a number can be added")),
        }
    }

    /// The keys that begin with `prefix`, with their values.
    pub(crate) fn list_keys(&self, namespace: &str, prefix: &str) -> Result<Vec<Object>> {
        Ok(key_rows(self.keys(namespace)?.all::<Value>()?, prefix))
    }
}

/// The previous value of a key that was set.
pub(super) fn previous_value(written: KeyWrite, namespace: &str, key: &str) -> Result<Option<Value>> {
    match (written.was_set, written.previous) {
        (true, previous) => Ok(previous),
        (false, None) => Err(key_not_found(namespace, key)),
        (false, Some(value)) => Err(Failure::not_found(format!("the key {key:?} has the value {}", value.to_json()))
            .with_hint("it was not changed")),
    }
}

/// The keys that begin with `prefix` as rows.
pub(super) fn key_rows(all: Vec<(String, Value)>, prefix: &str) -> Vec<Object> {
    let all = all.into_iter().filter(|(key, _)| key.starts_with(prefix));
    all.map(|(key, value)| [("key", Value::from(key)), ("value", value)].into_iter().collect()).collect()
}

pub(super) fn key_not_found(namespace: &str, key: &str) -> Failure {
    Failure::not_found(format!("there is no key {key:?} in the namespace {namespace:?}"))
}
