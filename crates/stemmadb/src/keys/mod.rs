//! What is remembered for a while? Values and counters under keys, with times to live, for what is no document: sessions, caches, locks, counts.
//!
//! Each key is a `_local` document, `_local/keys/<namespace>/<key>`, with its value and when it ends: durable as other writes, but neither
//! indexed, nor in the feed, nor replicated. What has ended is gone for every reader at that moment; its space is given
//! back as other keys are written, two for each, so that nothing piles up and no thread is needed.
//!
//! Concurrency: every method may be called from any thread; each is one transaction.

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

const DIRECTORY: &str = "_local/keys/";
const NAMESPACE_BYTES_MAX: usize = 100;
/// With directory and namespace this still is a key of the tree as it stands.
const KEY_BYTES_MAX: usize = 250;
const VALUE: &str = "value";
const EXPIRES_AT: &str = "expires_at_ms";
/// How many keys that have ended are removed with each write.
const REMOVED_EACH: usize = 2;

/// Values under keys, in a namespace of a database. Cheap to clone.
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
    expiring: Arc<Expiring>,
    durability: Durability,
    prefix: String,
}

/// The keys of a database that end, by when they do.
#[derive(Default)]
pub(crate) struct Expiring(Mutex<Ends>);

#[derive(Default)]
struct Ends {
    /// Whether those that were there when the database was opened are among them.
    is_read: bool,
    by_time: BTreeSet<(u64, String)>,
}

/// A key's value, and when it ends.
struct Kept {
    value: Value,
    expires_at_ms: Option<u64>,
}

impl Kept {
    fn of(body: &Value) -> Option<Kept> {
        let body = body.as_object()?;
        let expires_at_ms = body.get(EXPIRES_AT).and_then(Value::as_u64);
        Some(Kept { value: body.get(VALUE)?.clone(), expires_at_ms })
    }

    fn body(&self) -> Value {
        let mut body = Object::new();
        body.insert(VALUE, self.value.clone());
        if let Some(at) = self.expires_at_ms {
            body.insert(EXPIRES_AT, Value::from(at));
        }
        Value::Object(body)
    }

    fn is_over(&self, now_ms: u64) -> bool {
        self.expires_at_ms.is_some_and(|at| at <= now_ms)
    }
}

impl Keys {
    pub(crate) fn new(
        store: &Arc<Store>,
        expiring: &Arc<Expiring>,
        durability: Durability,
        namespace: &str,
    ) -> Result<Self> {
        if namespace.is_empty() || namespace.len() > NAMESPACE_BYTES_MAX || namespace.contains('/') {
            return Err(Error::invalid(format!("`{}` can't be a namespace of keys", namespace.escape_debug()))
                .with_hint("give 1 to 100 bytes without a slash, such as `sessions`"));
        }
        let prefix = format!("{DIRECTORY}{namespace}/");
        Ok(Keys { store: Arc::downgrade(store), expiring: expiring.clone(), durability, prefix })
    }

    /// As durable as you say, from here on: a cache may do without the wait for the disk.
    #[must_use]
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// The value of a key; none if it is not there, or has ended.
    ///
    /// # Errors
    /// `Invalid` if the value does not fit the type; `Corrupt` if stored bytes are damaged.
    pub fn get<T: DeserializeOwned>(&self, key: &str) -> Result<Option<T>> {
        let id = self.id(key)?;
        let store = self.store()?;
        let body = store.snapshot()?.local_value(&id)?;
        let kept = body.and_then(|(_, body)| Kept::of(&body)).filter(|kept| !kept.is_over(now_ms(&store)));
        kept.map(|kept| kept.value.deserialize_into()).transpose()
    }

    /// Gives a key a value, for good.
    ///
    /// # Errors
    /// `Invalid` for a bad key or value.
    pub fn set<T: Serialize + ?Sized>(&self, key: &str, value: &T) -> Result<()> {
        self.put(key, value, None)
    }

    /// Gives a key a value that ends after `time`, which is at least a millisecond.
    ///
    /// # Errors
    /// `Invalid` for a bad key or value.
    pub fn set_for<T: Serialize + ?Sized>(&self, key: &str, value: &T, time: Duration) -> Result<()> {
        self.put(key, value, Some(end_after(&*self.store()?, time)))
    }

    fn put<T: Serialize + ?Sized>(&self, key: &str, value: &T, expires_at_ms: Option<u64>) -> Result<()> {
        let value = Value::from_serialize(value)?;
        self.change(key, |_| Ok((Some(Kept { value, expires_at_ms }), ())))
    }

    /// Adds to a whole number; returns what it is then. One that is not there, or has ended, was zero; an end stays.
    ///
    /// # Errors
    /// `Invalid` if there is something else, or the sum is beyond 64 bits.
    pub fn increment(&self, key: &str, by: i64) -> Result<i64> {
        self.change(key, |kept| {
            let mut kept = kept.unwrap_or(Kept { value: Value::from(0i64), expires_at_ms: None });
            let before = kept.value.as_i64().ok_or_else(|| {
                Error::invalid(format!("`{key}` is no whole number"))
                    .with_hint("only a whole number can be incremented")
            })?;
            let after = before
                .checked_add(by)
                .ok_or_else(|| Error::invalid(format!("`{key}` is {before}, and {by} more is beyond 64 bits")))?;
            kept.value = Value::from(after);
            Ok((Some(kept), after))
        })
    }

    /// Gives a key another value, or removes it, if its value is `expected` (none: if it is not there); whether it was. An end stays.
    ///
    /// # Errors
    /// `Invalid` for a bad key or value.
    pub fn compare_and_set<T: Serialize + ?Sized>(
        &self,
        key: &str,
        expected: Option<&T>,
        value: Option<&T>,
    ) -> Result<bool> {
        let [expected, value] = [expected, value].map(|value| value.map(Value::from_serialize).transpose());
        let (expected, value) = (expected?, value?);
        self.change(key, |kept| {
            if kept.as_ref().map(|kept| &kept.value) != expected.as_ref() {
                return Ok((kept, false));
            }
            let expires_at_ms = kept.and_then(|kept| kept.expires_at_ms);
            Ok((value.map(|value| Kept { value, expires_at_ms }), true))
        })
    }

    /// Lets a key end after `time`, or, with none, never; whether there is such a key.
    ///
    /// # Errors
    /// `Invalid` for a bad key.
    pub fn expire(&self, key: &str, time: Option<Duration>) -> Result<bool> {
        let store = self.store()?;
        self.change(key, |kept| {
            let is_there = kept.is_some();
            let expires_at_ms = time.map(|time| end_after(&store, time));
            Ok((kept.map(|kept| Kept { expires_at_ms, ..kept }), is_there))
        })
    }

    /// Removes a key; whether there was one.
    ///
    /// # Errors
    /// `Invalid` for a bad key.
    pub fn remove(&self, key: &str) -> Result<bool> {
        self.change(key, |kept| Ok((None, kept.is_some())))
    }

    /// All keys with their values, in order. Costs memory for all of them.
    ///
    /// # Errors
    /// `Invalid` if a value does not fit the type; `Corrupt` if stored bytes are damaged.
    pub fn all<T: DeserializeOwned>(&self) -> Result<Vec<(String, T)>> {
        let store = self.store()?;
        let now_ms = now_ms(&store);
        let all = store.snapshot()?.locals(&self.prefix)?;
        let kept = all.into_iter().filter_map(|(id, body)| Some((id, Kept::of(&body)?)));
        let there = kept.filter(|(_, kept)| !kept.is_over(now_ms));
        there.map(|(id, kept)| Ok((id[self.prefix.len()..].to_owned(), kept.value.deserialize_into()?))).collect()
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

    /// Lets `change` say what becomes of a key, and writes that, in one transaction.
    fn change<R>(&self, key: &str, change: impl FnOnce(Option<Kept>) -> Result<(Option<Kept>, R)>) -> Result<R> {
        let id = self.id(key)?;
        let store = self.store()?;
        let (due, due_ms) = self.expiring.due(&store)?;
        let (result, expires_at_ms) = store.write(self.durability, |tx| {
            let now_ms = now_ms(&store);
            let before = tx.local_value(&id)?.as_ref().and_then(Kept::of);
            let was_there = before.is_some();
            let (after, result) = change(before.filter(|kept| !kept.is_over(now_ms)))?;
            let expires_at_ms = after.as_ref().and_then(|kept| kept.expires_at_ms);
            match after {
                Some(kept) => tx.put_local(&id, None, Some(&kept.body()))?,
                None if was_there => tx.put_local(&id, None, None)?,
                None => 0,
            };
            for (_, other) in due.iter().filter(|(_, other)| *other != id) {
                // What was due then goes, whatever the clock says by now: nobody notes it again.
                remove_if_over(tx, other, due_ms)?;
            }
            Ok((result, expires_at_ms))
        })?;
        self.expiring.note(&due, expires_at_ms.map(|at| (at, id)));
        Ok(result)
    }
}

fn remove_if_over(tx: &mut Transaction<'_>, id: &str, now_ms: u64) -> Result<()> {
    let is_over = tx.local_value(id)?.as_ref().and_then(Kept::of).is_some_and(|kept| kept.is_over(now_ms));
    if is_over {
        tx.put_local(id, None, None)?;
    }
    Ok(())
}

impl Expiring {
    /// A few keys that have ended, by what is known, and by when; reads once what was there when the database was opened.
    fn due(&self, store: &Store) -> Result<(Vec<(u64, String)>, u64)> {
        let mut ends = self.0.lock();
        if !ends.is_read {
            let found = store.snapshot()?.locals(DIRECTORY)?;
            let with_end = found.iter().filter_map(|(id, body)| Some((Kept::of(body)?.expires_at_ms?, id.clone())));
            ends.by_time.extend(with_end);
            ends.is_read = true;
        }
        let now_ms = now_ms(store);
        let due = ends.by_time.iter().take(REMOVED_EACH).take_while(|(at, _)| *at <= now_ms).cloned().collect();
        Ok((due, now_ms))
    }

    /// These are gone, or got another end, which was noted; and this one ends now.
    fn note(&self, gone: &[(u64, String)], new: Option<(u64, String)>) {
        let mut ends = self.0.lock();
        for end in gone {
            ends.by_time.remove(end);
        }
        ends.by_time.extend(new);
    }
}

fn now_ms(store: &Store) -> u64 {
    store.parts.options.clock.now_ms().max(0) as u64
}

fn end_after(store: &Store, time: Duration) -> u64 {
    store.parts.options.clock.after(time).max(0) as u64
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keys").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}
