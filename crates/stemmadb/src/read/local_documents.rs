//! Lists `_local` documents by id prefix.

use std::collections::BTreeMap;
use std::ops::Bound;

use crate::Result;
use crate::layout::record::Record;
use crate::layout::{ID_KEY_BYTES_MAX, LocalRow};
use crate::read::snapshot::Snapshot;
use crate::tree::{Direction, Table};
use crate::value::{PackedValue, Value};

impl Snapshot {
    /// The `_local` documents whose ids begin with `prefix`, by id. The prefix must be shorter than the keys of the
    /// tree. Costs a read of the log for each, and memory for all.
    pub(crate) fn locals(&self, prefix: &str) -> Result<BTreeMap<String, Value>> {
        debug_assert!(prefix.len() < ID_KEY_BYTES_MAX, "longer ids are cut in keys");
        let mut found = BTreeMap::new();
        let mut rows =
            self.tree.scan(Table::Local, Bound::Included(prefix.as_bytes()), Bound::Unbounded, Direction::Ascending)?;
        while let Some((key, value)) = rows.next()? {
            if !key.starts_with(prefix.as_bytes()) {
                break;
            }
            let row = LocalRow::decode(value)?;
            if row.deleted {
                continue;
            }
            let bytes = self.read_bytes(row.position, row.length)?;
            if let Record::Local { id, body, .. } = self.parts.record(&bytes, row.position)?.0 {
                found.insert(id.to_owned(), PackedValue::new(body, &self.parts.shapes)?.to_value()?);
            }
        }
        for memtable in &self.memtables {
            for (id, state) in memtable.locals(prefix, self.at) {
                if state.deleted {
                    found.remove(&id);
                } else {
                    let value = PackedValue::new(state.body.packed(), &self.parts.shapes)?.to_value()?;
                    found.insert(id, value);
                }
            }
        }
        Ok(found)
    }
}
