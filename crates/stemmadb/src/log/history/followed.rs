//! History files of a log that another process writes: they appear, are replaced and disappear.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{DIRECTORY, History, HistoryFile, HistoryInfo, SUFFIX, parse_numbered};
use crate::{Error, Result};

impl History {
    /// Ignores the file of a segment that still exists.
    pub(in crate::log) fn hide(&self, segment: u32) {
        self.files.write().remove(&segment);
    }

    /// Finds the files that there are now, without those of segments for which `exists` returns true. Returns what is
    /// known of the files that are gone.
    ///
    /// # Errors
    /// `Corrupt` if the header of one is damaged; `Unavailable` if one can't be read.
    pub(crate) fn refresh(&self, exists: impl Fn(u32) -> bool) -> Result<Vec<HistoryInfo>> {
        let names = self.vfs.list(DIRECTORY).map_err(|error| Error::io(format_args!("list {DIRECTORY}"), error))?;
        let mut files = BTreeMap::new();
        let numbers = names.iter().filter_map(|name| parse_numbered(name, SUFFIX));
        for number in numbers.filter(|number| !exists(*number)) {
            files.insert(number, Arc::new(HistoryFile::open(&*self.vfs, number, &self.database_id)?));
        }
        let mut known = self.files.write();
        let gone = known.values().filter(|file| !files.contains_key(&file.info.segment)).map(|file| file.info);
        let gone = gone.collect();
        self.blocks.lock().clear();
        *known = files;
        Ok(gone)
    }
}
