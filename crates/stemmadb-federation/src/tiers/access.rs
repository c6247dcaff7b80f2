//! When documents were last read: hours in memory, stored when documents are moved.

use std::collections::HashMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use stemmadb::{Keys, Result, Value};

use super::Tier;

/// The beginning of the keys of the documents that were read in one hour.
const PREFIX: &str = "read/";

const HOUR_SECS: u64 = 3_600;

/// The hours in which documents were last read. Empty if no policy asks for it.
pub(super) struct AccessTimes {
    /// The longest time that a policy asks for.
    kept_for: Option<Duration>,
    hours: Mutex<Hours>,
}

#[derive(Default)]
struct Hours {
    last: HashMap<String, u64>,
    /// What is not stored yet.
    unsaved: HashMap<String, u64>,
}

impl AccessTimes {
    pub(super) fn open(keys: &Keys, tiers: &[Tier]) -> Result<Self> {
        let kept_for = tiers.iter().filter_map(|tier| tier.policy.unused_for).max();
        let mut hours = Hours::default();
        if kept_for.is_some() {
            for (key, ids) in keys.all::<Value>()? {
                let (Some(hour), Some(ids)) = (hour_of(&key), ids.as_array()) else { continue };
                for id in ids.iter().filter_map(Value::as_str) {
                    let last = hours.last.entry(id.to_owned()).or_default();
                    *last = hour.max(*last);
                }
            }
        }
        Ok(AccessTimes { kept_for, hours: Mutex::new(hours) })
    }

    /// Notes that a document is read.
    pub(super) fn note(&self, id: &str) {
        if self.kept_for.is_none() {
            return;
        }
        let (hour, mut hours) = (hour_at(SystemTime::now()), self.hours.lock());
        if hours.last.get(id) != Some(&hour) {
            hours.last.insert(id.to_owned(), hour);
            hours.unsaved.insert(id.to_owned(), hour);
        }
    }

    /// Whether a document was read at this time or later, within the precision of an hour.
    pub(super) fn is_used_since(&self, id: &str, since: SystemTime) -> bool {
        self.hours.lock().last.get(id).is_some_and(|hour| *hour >= hour_at(since))
    }

    /// Stores what was noted, one key for each hour, and forgets what no policy needs any more.
    pub(super) fn save(&self, keys: &Keys, now: SystemTime) -> Result<()> {
        let Some(kept_for) = self.kept_for else { return Ok(()) };
        let oldest = now.checked_sub(kept_for).map_or(0, hour_at);
        let mut hours = self.hours.lock();
        let mut by_hour: HashMap<u64, Vec<String>> = HashMap::new();
        for (id, hour) in &hours.unsaved {
            by_hour.entry(*hour).or_default().push(id.clone());
        }
        for (hour, mut ids) in by_hour {
            let key = format!("{PREFIX}{hour}");
            ids.extend(keys.get::<Vec<String>>(&key)?.unwrap_or_default());
            ids.sort_unstable();
            ids.dedup();
            keys.set(&key, &ids)?;
        }
        hours.unsaved.clear();
        if hours.last.values().any(|hour| *hour < oldest) {
            hours.last.retain(|_, hour| *hour >= oldest);
            for (key, _) in keys.all::<Value>()? {
                if hour_of(&key).is_some_and(|hour| hour < oldest) {
                    keys.remove(&key)?;
                }
            }
        }
        Ok(())
    }
}

fn hour_at(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs() / HOUR_SECS)
}

fn hour_of(key: &str) -> Option<u64> {
    key.strip_prefix(PREFIX)?.parse().ok()
}
