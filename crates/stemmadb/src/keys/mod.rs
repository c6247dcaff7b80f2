//! Key-value store with TTL on top of `_local` documents, for data that are not documents: sessions, caches, locks,
//! counters.
//!
//! Each key is a `_local` document, `_local/keys/<namespace>/<key>`, with its value and expiration time. It is as
//! durable as other writes, but neither indexed nor in the changes feed nor replicated. Reads ignore an expired key
//! immediately. Every write removes up to two expired keys, so that they don't accumulate and no background thread is
//! needed.
//!
//! Concurrency: every method may be called from any thread; each is one transaction.

mod conditional;

use std::collections::BTreeSet;
use std::sync::{Arc, Weak};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::engine::{Store, Transaction};
use crate::options::Durability;
use crate::sync::Mutex;
use crate::value::{Object, Value};
use crate::{Error, Result};
pub use conditional::{KeyCondition, KeyWrite};

const DIRECTORY: &str = "_local/keys/";
const NAMESPACE_BYTES_MAX: usize = 100;
/// With directory and namespace, such a key still fits a key of the tree.
const KEY_BYTES_MAX: usize = 250;
const VALUE: &str = "value";
const EXPIRES_AT: &str = "expires_at_ms";
/// The number of expired keys that each write removes.
const REMOVED_PER_WRITE: usize = 2;

/// A key-value store in a namespace of a database, with optional expiration times. Cheap to clone.
///
/// ```
/// use std::time::Duration;
/// # use stemmadb::Database;
/// # fn main() -> stemmadb::Result<()> {
/// # let db = Database::in_memory();
/// let sessions = db.keys("sessions")?;
/// sessions.set_for("k3jf", &"ada", Duration::from_secs(3600))?;
/// assert_eq!(sessions.get::<String>("k3jf")?.as_deref(), Some("ada"));
/// assert_eq!(db.keys("visits")?.increment("ada", 1)?, 1);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Keys {
    store: Weak<Store>,
    expiring: Arc<ExpiringKeys>,
    durability: Durability,
    prefix: String,
    record: Option<KeyRecord>,
}

/// Makes a `_local` document, its id and its body, from the result of a write.
type KeyRecord = Arc<dyn Fn(&Value) -> (String, Value) + Send + Sync>;

/// The keys of a database that have an expiration time, ordered by it.
#[derive(Default)]
pub(crate) struct ExpiringKeys(Mutex<ExpirationQueue>);

#[derive(Default)]
struct ExpirationQueue {
    /// Whether the keys that were stored before the database was opened have been loaded.
    is_loaded: bool,
    by_time: BTreeSet<(u64, String)>,
}

/// The value and the expiration time of a key.
struct KeyEntry {
    value: Value,
    expires_at_ms: Option<u64>,
}

impl KeyEntry {
    fn from_body(body: &Value) -> Option<KeyEntry> {
        let body = body.as_object()?;
        let expires_at_ms = body.get(EXPIRES_AT).and_then(Value::as_u64);
        Some(KeyEntry { value: body.get(VALUE)?.clone(), expires_at_ms })
    }

    fn to_body(&self) -> Value {
        let mut body = Object::new();
        body.insert(VALUE, self.value.clone());
        if let Some(at) = self.expires_at_ms {
            body.insert(EXPIRES_AT, Value::from(at));
        }
        Value::Object(body)
    }

    fn is_expired(&self, now_ms: u64) -> bool {
        self.expires_at_ms.is_some_and(|at| at <= now_ms)
    }
}

impl Keys {
    pub(crate) fn new(
        store: &Arc<Store>,
        expiring: &Arc<ExpiringKeys>,
        durability: Durability,
        namespace: &str,
    ) -> Result<Self> {
        if namespace.is_empty() || namespace.len() > NAMESPACE_BYTES_MAX || namespace.contains('/') {
            return Err(Error::invalid(format!("`{}` can't be a namespace of keys", namespace.escape_debug()))
                .with_hint("give 1 to 100 bytes without a slash, such as `sessions`"));
        }
        let prefix = format!("{DIRECTORY}{namespace}/");
        Ok(Keys { store: Arc::downgrade(store), expiring: expiring.clone(), durability, prefix, record: None })
    }

    /// Sets the durability of writes through this handle. A cache may not need to wait for the disk.
    #[must_use]
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// Writes a `_local` document with each write of this handle, in the same transaction. `record` makes its id and
    /// body from the result of the write, such as the sum of [`Keys::increment`].
    #[must_use]
    pub fn recording(mut self, record: impl Fn(&Value) -> (String, Value) + Send + Sync + 'static) -> Self {
        self.record = Some(Arc::new(record));
        self
    }

    /// The value of a key; `None` if the key does not exist or is expired.
    ///
    /// # Errors
    /// `Invalid` if the value does not fit the type; `Corrupt` if stored bytes are damaged.
    pub fn get<T: DeserializeOwned>(&self, key: &str) -> Result<Option<T>> {
        let id = self.id(key)?;
        let store = self.store()?;
        let body = store.snapshot()?.local_value(&id)?;
        let entry =
            body.and_then(|(_, body)| KeyEntry::from_body(&body)).filter(|entry| !entry.is_expired(now_ms(&store)));
        entry.map(|entry| entry.value.deserialize_into()).transpose()
    }

    /// Sets the value of a key, without an expiration time.
    ///
    /// # Errors
    /// `Invalid` if the key is empty or too long, or the value cannot be represented in JSON.
    pub fn set<T: Serialize + ?Sized>(&self, key: &str, value: &T) -> Result<()> {
        self.put(key, value, None)
    }

    /// Sets the value of a key, which expires after `time`, at least one millisecond.
    ///
    /// # Errors
    /// As [`Keys::set`].
    pub fn set_for<T: Serialize + ?Sized>(&self, key: &str, value: &T, time: Duration) -> Result<()> {
        self.put(key, value, Some(expiration_after(&*self.store()?, time)))
    }

    fn put<T: Serialize + ?Sized>(&self, key: &str, value: &T, expires_at_ms: Option<u64>) -> Result<()> {
        let value = Value::from_serialize(value)?;
        self.change(key, |_| Ok((Some(KeyEntry { value, expires_at_ms }), ())))
    }

    /// Adds `by` to an integer and returns the sum. A key that does not exist or is expired counts as zero. An
    /// expiration time is kept.
    ///
    /// # Errors
    /// `Invalid` if the value is not an integer, or the sum exceeds 64 bits.
    pub fn increment(&self, key: &str, by: i64) -> Result<i64> {
        self.change(key, |entry| {
            let mut entry = entry.unwrap_or(KeyEntry { value: Value::from(0i64), expires_at_ms: None });
            let before = entry.value.as_i64().ok_or_else(|| {
                Error::invalid(format!("`{key}` is no whole number"))
                    .with_hint("only a whole number can be incremented")
            })?;
            let after = before
                .checked_add(by)
                .ok_or_else(|| Error::invalid(format!("`{key}` is {before}, and {by} more is beyond 64 bits")))?;
            entry.value = Value::from(after);
            Ok((Some(entry), after))
        })
    }

    /// Sets the value of a key, or removes the key if `value` is `None`, if its current value is `expected` (`None`: if
    /// it does not exist). Returns whether it was. An expiration time is kept.
    ///
    /// # Errors
    /// As [`Keys::set`].
    pub fn compare_and_set<T: Serialize + ?Sized>(
        &self,
        key: &str,
        expected: Option<&T>,
        value: Option<&T>,
    ) -> Result<bool> {
        let [expected, value] = [expected, value].map(|value| value.map(Value::from_serialize).transpose());
        let (expected, value) = (expected?, value?);
        self.change(key, |entry| {
            if entry.as_ref().map(|entry| &entry.value) != expected.as_ref() {
                return Ok((entry, false));
            }
            let expires_at_ms = entry.and_then(|entry| entry.expires_at_ms);
            Ok((value.map(|value| KeyEntry { value, expires_at_ms }), true))
        })
    }

    /// Sets the expiration time of a key to `time` from now, or removes it with `None`. Returns whether the key exists.
    ///
    /// # Errors
    /// `Invalid` if the key is empty or too long.
    pub fn expire(&self, key: &str, time: Option<Duration>) -> Result<bool> {
        let store = self.store()?;
        self.change(key, |entry| {
            let exists = entry.is_some();
            let expires_at_ms = time.map(|time| expiration_after(&store, time));
            Ok((entry.map(|entry| KeyEntry { expires_at_ms, ..entry }), exists))
        })
    }

    /// Removes a key. Returns whether it existed.
    ///
    /// # Errors
    /// `Invalid` if the key is empty or too long.
    pub fn remove(&self, key: &str) -> Result<bool> {
        self.change(key, |entry| Ok((None, entry.is_some())))
    }

    /// All keys with their values, in order, collected in memory.
    ///
    /// # Errors
    /// `Invalid` if a value does not fit the type; `Corrupt` if stored bytes are damaged.
    pub fn all<T: DeserializeOwned>(&self) -> Result<Vec<(String, T)>> {
        let store = self.store()?;
        let now_ms = now_ms(&store);
        let all = store.snapshot()?.locals(&self.prefix)?;
        let entries = all.into_iter().filter_map(|(id, body)| Some((id, KeyEntry::from_body(&body)?)));
        let living = entries.filter(|(_, entry)| !entry.is_expired(now_ms));
        living.map(|(id, entry)| Ok((id[self.prefix.len()..].to_owned(), entry.value.deserialize_into()?))).collect()
    }

    fn store(&self) -> Result<Arc<Store>> {
        self.store.upgrade().ok_or_else(|| Error::closed("the database is closed"))
    }

    fn id(&self, key: &str) -> Result<String> {
        if key.is_empty() || key.len() > KEY_BYTES_MAX {
            return Err(Error::invalid(format!("a key of {} bytes", key.len()))
                .with_hint(format!("keys have 1 to {KEY_BYTES_MAX} bytes; hash longer ones")));
        }
        Ok(format!("{}{key}", self.prefix))
    }

    /// Applies `change` to the entry of a key and writes the result, in one transaction.
    fn change<R: Serialize>(
        &self,
        key: &str,
        change: impl FnOnce(Option<KeyEntry>) -> Result<(Option<KeyEntry>, R)>,
    ) -> Result<R> {
        let id = self.id(key)?;
        let store = self.store()?;
        let (due, due_ms) = self.expiring.due(&store)?;
        let (result, expires_at_ms) = store.write(self.durability, |tx| {
            let now_ms = now_ms(&store);
            let before = tx.local_value(&id)?.as_ref().and_then(KeyEntry::from_body);
            let was_there = before.is_some();
            let (after, result) = change(before.filter(|entry| !entry.is_expired(now_ms)))?;
            let expires_at_ms = after.as_ref().and_then(|entry| entry.expires_at_ms);
            match after {
                Some(entry) => tx.put_local(&id, None, Some(&entry.to_body()))?,
                None if was_there => tx.put_local(&id, None, None)?,
                None => 0,
            };
            for (_, other) in due.iter().filter(|(_, other)| *other != id) {
                // Compare with the time at which the key was taken from the queue, even if the clock was set back
                // since: the key is not queued again.
                remove_if_expired(tx, other, due_ms)?;
            }
            if let Some(record) = &self.record {
                let (id, body) = record(&Value::from_serialize(&result)?);
                tx.put_local(&id, None, Some(&body))?;
            }
            Ok((result, expires_at_ms))
        })?;
        self.expiring.update(&due, expires_at_ms.map(|at| (at, id)));
        Ok(result)
    }
}

fn remove_if_expired(tx: &mut Transaction<'_>, id: &str, now_ms: u64) -> Result<()> {
    let is_expired =
        tx.local_value(id)?.as_ref().and_then(KeyEntry::from_body).is_some_and(|entry| entry.is_expired(now_ms));
    if is_expired {
        tx.put_local(id, None, None)?;
    }
    Ok(())
}

impl ExpiringKeys {
    /// Up to [`REMOVED_PER_WRITE`] expired keys, and the time at which they were. The first call loads the stored keys.
    fn due(&self, store: &Store) -> Result<(Vec<(u64, String)>, u64)> {
        let mut queue = self.0.lock();
        if !queue.is_loaded {
            let stored = store.snapshot()?.locals(DIRECTORY)?;
            let expiring =
                stored.iter().filter_map(|(id, body)| Some((KeyEntry::from_body(body)?.expires_at_ms?, id.clone())));
            queue.by_time.extend(expiring);
            queue.is_loaded = true;
        }
        let now_ms = now_ms(store);
        let due = queue.by_time.iter().take(REMOVED_PER_WRITE).take_while(|(at, _)| *at <= now_ms).cloned().collect();
        Ok((due, now_ms))
    }

    /// Removes entries from the queue, whose keys were removed or have a later entry, and adds a new one.
    fn update(&self, removed: &[(u64, String)], added: Option<(u64, String)>) {
        let mut queue = self.0.lock();
        for entry in removed {
            queue.by_time.remove(entry);
        }
        queue.by_time.extend(added);
    }
}

fn now_ms(store: &Store) -> u64 {
    store.parts.options.clock.now_ms().max(0) as u64
}

fn expiration_after(store: &Store, time: Duration) -> u64 {
    store.parts.options.clock.after(time).max(0) as u64
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keys").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}
