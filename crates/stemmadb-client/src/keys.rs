//! Key-value pairs of a remote database.

use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use stemmadb::handles::{KeyCondition, KeyWrite};
use stemmadb::{Error, Object, Result, Value};
use stemmadb_wire::Operation;

use crate::convert::{missing_field, object};
use crate::database::RemoteDatabase;

/// The longest name of a namespace, in bytes, as in the library.
const NAMESPACE_BYTES_MAX: usize = 100;

/// A namespace of key-value pairs of a remote database, with the methods of [`stemmadb::Keys`].
#[derive(Clone, Debug)]
pub struct RemoteKeys {
    database: RemoteDatabase,
    namespace: String,
}

impl RemoteKeys {
    pub(crate) fn new(database: RemoteDatabase, namespace: &str) -> Result<Self> {
        if namespace.is_empty() || namespace.len() > NAMESPACE_BYTES_MAX || namespace.contains('/') {
            return Err(Error::invalid(format!("`{}` can't be a namespace of keys", namespace.escape_debug()))
                .with_hint("give 1 to 100 bytes without a slash, such as `sessions`"));
        }
        Ok(RemoteKeys { database, namespace: namespace.to_owned() })
    }

    fn arguments(&self, key: &str) -> Object {
        [("namespace", Value::from(self.namespace.as_str())), ("key", Value::from(key))].into_iter().collect()
    }

    /// The value of a key; `None` if the key does not exist or is expired.
    ///
    /// # Errors
    /// `Invalid` if the value does not fit the type.
    pub fn get<T: DeserializeOwned>(&self, key: &str) -> Result<Option<T>> {
        let found = self.database.request(Operation::KeyGet, &Value::Object(self.arguments(key)))?;
        let value = found.as_array().ok_or_else(|| missing_field("value"))?.first();
        value.map(|value| value.clone().deserialize_into()).transpose()
    }

    /// Sets the value of a key, without an expiration time.
    ///
    /// # Errors
    /// `Invalid` if the key is empty or too long.
    pub fn set<T: Serialize + ?Sized>(&self, key: &str, value: &T) -> Result<()> {
        self.set_if(key, value, &KeyCondition::Always, None).map(drop)
    }

    /// Sets the value of a key, which expires after `time`.
    ///
    /// # Errors
    /// As [`RemoteKeys::set`].
    pub fn set_for<T: Serialize + ?Sized>(&self, key: &str, value: &T, time: Duration) -> Result<()> {
        self.set_if(key, value, &KeyCondition::Always, Some(time)).map(drop)
    }

    /// Sets the value of a key if a condition holds; returns whether it did, and the previous value.
    ///
    /// # Errors
    /// As [`RemoteKeys::set`].
    pub fn set_if<T: Serialize + ?Sized>(
        &self,
        key: &str,
        value: &T,
        condition: &KeyCondition,
        time: Option<Duration>,
    ) -> Result<KeyWrite> {
        let mut arguments = self.arguments(key);
        arguments.insert("value", Value::from_serialize(value)?);
        match condition {
            KeyCondition::Always => {}
            KeyCondition::Absent => drop(arguments.insert("if", "absent")),
            KeyCondition::Present => drop(arguments.insert("if", "present")),
            KeyCondition::Equals(expected) => drop(arguments.insert("expected", expected.clone())),
            _ => return Err(Error::invalid("this condition can't be sent to a server")),
        }
        if let Some(time) = time {
            arguments.insert("ttl_ms", u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1));
        }
        let mut written = self.database.request(Operation::KeySet, &Value::Object(arguments))?;
        let was_set = written.get("was_set").and_then(Value::as_bool).ok_or_else(|| missing_field("was_set"))?;
        let previous = written.as_object_mut().and_then(|written| written.remove("previous"));
        Ok(KeyWrite::new(was_set, previous.filter(|previous| !previous.is_null())))
    }

    /// Adds `by` to an integer and returns the sum.
    ///
    /// # Errors
    /// `Invalid` if the value is not an integer, or the sum exceeds 64 bits.
    pub fn increment(&self, key: &str, by: i64) -> Result<i64> {
        let mut arguments = self.arguments(key);
        arguments.insert("by", by);
        let sum = self.database.request(Operation::KeyIncrement, &Value::Object(arguments))?;
        sum.as_i64().ok_or_else(|| missing_field("sum"))
    }

    /// Removes a key; returns whether there was one.
    ///
    /// # Errors
    /// As [`RemoteKeys::set`].
    pub fn remove(&self, key: &str) -> Result<bool> {
        let removed = self.database.request(Operation::KeyRemove, &Value::Object(self.arguments(key)))?;
        removed.as_bool().ok_or_else(|| missing_field("removed"))
    }

    /// All keys and their values, in order of the keys.
    ///
    /// # Errors
    /// `Invalid` if a value does not fit the type.
    pub fn all<T: DeserializeOwned>(&self) -> Result<Vec<(String, T)>> {
        let arguments = object([("namespace", self.namespace.as_str().into())]);
        let (rows, _) = self.database.call_rows(Operation::KeyList, &arguments)?;
        let row = |row: Value| match row {
            Value::Array(mut row) if row.len() == 2 => {
                let value = row.pop().unwrap_or_default();
                let key = row[0].as_str().ok_or_else(|| missing_field("key"))?.to_owned();
                Ok::<_, Error>((key, value.deserialize_into()?))
            }
            _ => Err(missing_field("key")),
        };
        rows.into_iter().map(row).collect()
    }
}
