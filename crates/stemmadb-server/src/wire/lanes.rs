//! Idempotent writes. A client numbers the writes of each of its lanes; the last number and its result are stored in a
//! `_local` document with the write itself, so that a repeated request returns the result instead of writing again.
//!
//! A lane has one such document, whatever the number of its writes. Those of lanes that were not used for a day are
//! removed. In a virtual database, each shard has that of the part of a write that it got; those of a shard that is
//! removed are kept in the virtual database itself. So a repeated write finds them all, whatever has moved.

use std::collections::HashMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parking_lot::{Mutex, MutexGuard};
use stemmadb::{Database, Error, Object, Value};
use stemmadb_wire::WriteKey;

use super::call::Call;
use super::failure::Result;
use super::opened::OpenedDatabase;
use crate::directory::WRITE_RECORDS;

/// How long the record of a lane is kept after its last write, in seconds.
const KEPT_SECONDS: u64 = 24 * 60 * 60;
/// The interval between removals.
const SWEEP_INTERVAL: Duration = Duration::from_secs(60 * 60);
/// The most lanes whose last number is remembered.
const KNOWN_MAX: usize = 10_000;
/// Writes of different lanes rarely share one of these locks.
const LOCK_COUNT: usize = 1024;

/// The lanes of a database.
pub(super) struct Lanes {
    /// Held while a write of a lane runs: a repeated request waits for the first one.
    locks: Vec<Mutex<()>>,
    /// The last number of each lane that wrote since the database was opened.
    known: Mutex<HashMap<[u8; 16], u64>>,
    swept: Mutex<Option<Instant>>,
}

impl Default for Lanes {
    fn default() -> Self {
        Lanes {
            locks: (0..LOCK_COUNT).map(|_| Mutex::default()).collect(),
            known: Mutex::default(),
            swept: Mutex::default(),
        }
    }
}

fn now_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// The id of the document of a lane.
pub(super) fn record_id(key: &WriteKey) -> String {
    let hex: String = key.lane.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{WRITE_RECORDS}{hex}")
}

/// The document of a lane after a write.
pub(super) fn record(key: &WriteKey, result: &Value) -> Value {
    let mut object = Object::new();
    object.insert("number", key.number);
    object.insert("at", now_seconds());
    object.insert("result", result.clone());
    Value::Object(object)
}

impl Lanes {
    /// Locks the lane of a write.
    pub(super) fn lock(&self, key: &WriteKey) -> MutexGuard<'_, ()> {
        self.locks[usize::from(u16::from_le_bytes([key.lane[0], key.lane[1]])) % LOCK_COUNT].lock()
    }

    /// The result of the write, if it was written before. The lane must be locked.
    ///
    /// # Errors
    /// `Invalid` if a later write of the lane was written.
    pub(super) fn earlier_result(
        &self,
        call: &Call<'_>,
        opened: &OpenedDatabase,
        key: &WriteKey,
    ) -> Result<Option<Value>> {
        let records = self.earlier_records(call, opened, key)?;
        Ok(records.into_iter().next().map(|record| record.get("result").cloned().unwrap_or_default()))
    }

    /// The records of the write: of one to several shards of a virtual database, one for the part of each. The lane
    /// must be locked.
    ///
    /// # Errors
    /// As [`Lanes::earlier_result`]; `Unavailable` if the server of a shard does not answer.
    pub(super) fn earlier_records(
        &self,
        call: &Call<'_>,
        opened: &OpenedDatabase,
        key: &WriteKey,
    ) -> Result<Vec<Value>> {
        let known = self.known.lock().get(&key.lane).copied();
        if known.is_some_and(|last| last < key.number) {
            return Ok(Vec::new());
        }
        let id = record_id(key);
        let stored = match opened.entered() {
            None => stored_record(opened.database(), &id)?.into_iter().collect(),
            Some(_) => {
                let mut stored = Vec::new();
                for remote in opened.shards_there() {
                    stored.extend(call.server.wait(Box::pin(remote.local_document(&id)))?);
                }
                for served in opened.all_here() {
                    stored.extend(served.database().local_documents().list(&id)?.into_iter().map(|(_, record)| record));
                }
                stored
            }
        };
        of_write(stored, key)
    }

    /// Remembers a write that was written, and removes old records now and then.
    pub(super) fn note(&self, opened: &OpenedDatabase, key: &WriteKey) {
        {
            let mut known = self.known.lock();
            if known.len() >= KNOWN_MAX {
                known.clear();
            }
            known.insert(key.lane, key.number);
        }
        let mut swept = self.swept.lock();
        if swept.is_some_and(|at| at.elapsed() < SWEEP_INTERVAL) {
            return;
        }
        *swept = Some(Instant::now());
        drop(swept);
        for served in opened.all_here() {
            // What can't be removed now is removed later.
            sweep(served.database(), now_seconds()).ok();
        }
    }
}

/// The record with this id.
pub(super) fn stored_record(database: &Database, id: &str) -> Result<Option<Value>> {
    Ok(database.local_documents().get(id)?.map(|(_, record)| record))
}

/// Those of a lane's records that are about a write.
///
/// # Errors
/// `Invalid` if one is about a later write.
pub(super) fn of_write(stored: Vec<Value>, key: &WriteKey) -> Result<Vec<Value>> {
    let number = |record: &Value| record.get("number").and_then(Value::as_u64).unwrap_or(0);
    if let Some(later) = stored.iter().map(number).find(|later| *later > key.number) {
        return Err(Error::invalid(format!(
            "the write {} of this lane was followed by {later}: its result is no longer known",
            key.number
        ))
        .with_hint("have one write of a lane under way at a time")
        .into());
    }
    Ok(stored.into_iter().filter(|record| number(record) == key.number).collect())
}

/// Removes the records of lanes that were last used more than a day before `now`.
fn sweep(database: &Database, now: u64) -> Result<u64> {
    let locals = database.with_durability(stemmadb::Durability::None);
    let mut count = 0;
    for (id, record) in database.local_documents().list(WRITE_RECORDS)? {
        let at = record.get("at").and_then(Value::as_u64).unwrap_or(0);
        if at.saturating_add(KEPT_SECONDS) < now {
            locals.local_documents().delete(&id, None)?;
            count += 1;
        }
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_unused_lanes_are_removed() {
        let database = Database::in_memory();
        let keys = [1, 2].map(|lane| WriteKey { lane: [lane; 16], number: 5 });
        for key in &keys {
            database.local_documents().put(&record_id(key), None, &record(key, &Value::from("1-a"))).unwrap();
        }
        let earlier = |key: &WriteKey| of_write(stored_record(&database, &record_id(key))?.into_iter().collect(), key);
        let found = earlier(&keys[0]).unwrap();
        assert_eq!(found[0].get("result"), Some(&Value::from("1-a")));
        assert!(earlier(&WriteKey { number: 6, ..keys[0] }).unwrap().is_empty());
        let previous = earlier(&WriteKey { number: 4, ..keys[0] });
        assert_eq!(previous.unwrap_err().error.kind(), stemmadb::ErrorKind::Invalid);
        assert_eq!(sweep(&database, now_seconds()).unwrap(), 0);
        assert_eq!(sweep(&database, now_seconds() + KEPT_SECONDS + 60).unwrap(), 2);
        assert!(earlier(&keys[0]).unwrap().is_empty());
    }
}
