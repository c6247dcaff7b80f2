//! The records of one kind that a part of the server has applied. The servers of a cluster share records, so others
//! change them too.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use stemmadb::Value;
use uuid::Uuid;

use super::Directory;
use crate::error::Result;
use crate::settings::SettingStore;

/// A record's name, and its new value; none if it was removed.
pub(crate) type RecordChange = (String, Option<Value>);

/// The records of a kind, as they were last applied.
pub(crate) struct KnownRecords {
    kind: &'static str,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    /// None before they were first read.
    version: Option<Option<Uuid>>,
    values: BTreeMap<String, Value>,
}

impl KnownRecords {
    pub(crate) fn new(kind: &'static str) -> Self {
        KnownRecords { kind, known: Mutex::default() }
    }

    /// Whether there is nothing new for [`KnownRecords::changes`].
    pub(crate) fn are_newest(&self, directory: &Directory) -> bool {
        self.known.lock().version == Some(directory.records_version())
    }

    /// The records that have changed since the last call, which this server may have done itself; at first, all. Who
    /// makes changes as well holds a lock around this call and theirs, so that what is applied is in order. The cluster
    /// is not asked: [`Directory::refresh`] does that.
    ///
    /// # Errors
    /// 500 if they can't be read.
    pub(crate) fn changes(&self, directory: &Directory) -> Result<Vec<RecordChange>> {
        let version = directory.records_version();
        let mut known = self.known.lock();
        if known.version == Some(version) {
            return Ok(Vec::new());
        }
        let values: BTreeMap<String, Value> = directory.records(self.kind)?.into_iter().collect();
        let removed = known.values.keys().filter(|name| !values.contains_key(*name)).map(|name| (name.clone(), None));
        let changed = values.iter().filter(|(name, value)| known.values.get(*name) != Some(value));
        let changed = changed.map(|(name, value)| (name.clone(), Some(value.clone())));
        let changes = removed.chain(changed).collect();
        *known = Known { version: Some(version), values };
        Ok(changes)
    }
}
