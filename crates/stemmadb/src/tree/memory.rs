//! In-memory tree: persistent ordered maps, so that a snapshot is a clone of an `Arc`.
//!
//! Concurrency: a commit replaces the whole state; the transaction holds the writer's lock.

use std::ops::Bound;
use std::sync::Arc;

use imbl::OrdMap;

use super::{Direction, NoRows, Row, RowScan, Rows, Table};
use super::{Tree, TreeReport, TreeSize, TreeSnapshot, TreeTransaction};
use super::{check_key, is_crossed};
use crate::Result;
use crate::sync::{Mutex, MutexGuard, RwLock};

type Map = OrdMap<Arc<[u8]>, Arc<[u8]>>;

/// A tree that lives as long as the process.
#[derive(Debug, Default)]
pub(crate) struct MemoryTree {
    current: RwLock<Arc<MemorySnapshot>>,
    writer: Mutex<()>,
}

impl MemoryTree {
    /// An empty tree.
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// An independent tree that starts from the last commit of this one, as after a power loss. Cost: a clone of an
    /// `Arc`.
    #[cfg(any(test, feature = "testing", fuzzing))]
    pub(crate) fn fork(&self) -> Self {
        MemoryTree { current: RwLock::new(self.current.read().clone()), writer: Mutex::new(()) }
    }
}

impl Tree for MemoryTree {
    fn read(&self) -> Result<Arc<dyn TreeSnapshot>> {
        Ok(self.current.read().clone())
    }

    fn write(&self) -> Result<Box<dyn TreeTransaction + '_>> {
        let writer = self.writer.lock();
        let changed = MemorySnapshot::clone(&self.current.read());
        Ok(Box::new(MemoryTransaction { tree: self, changed, _writer: writer }))
    }

    fn size(&self) -> Result<TreeSize> {
        let current = self.current.read().clone();
        Ok(TreeSize { file_bytes: current.bytes, live_bytes: current.bytes })
    }

    fn verify(&self, _progress: &mut dyn FnMut(u64, u64)) -> Result<TreeReport> {
        let row_count = self.current.read().maps.iter().map(|map| map.len() as u64).sum();
        Ok(TreeReport { row_count, ..TreeReport::default() })
    }
}

/// The tables at a commit, and the total length of their keys and values.
#[derive(Debug, Clone, Default)]
struct MemorySnapshot {
    maps: [Map; Table::ALL.len()],
    bytes: u64,
}

impl MemorySnapshot {
    fn map(&self, table: Table) -> &Map {
        &self.maps[table.index()]
    }
}

impl TreeSnapshot for MemorySnapshot {
    fn get<'a>(&'a self, table: Table, key: &[u8]) -> Result<Option<&'a [u8]>> {
        Ok(self.map(table).get(key).map(|value| &**value))
    }

    fn scan<'a>(
        &'a self,
        table: Table,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
        direction: Direction,
    ) -> Result<Rows<'a>> {
        if is_crossed(lower, upper) {
            return Ok(Box::new(NoRows));
        }
        let rows = self.map(table).range::<_, [u8]>((lower, upper));
        let row = |(key, value): (&'a Arc<[u8]>, &'a Arc<[u8]>)| -> Row<'a, 'a> { (key, value) };
        Ok(Box::new(MemoryRows(match direction {
            Direction::Ascending => Box::new(rows.map(row)),
            Direction::Descending => Box::new(rows.rev().map(row)),
        })))
    }

    fn row_count(&self, table: Table) -> Result<u64> {
        Ok(self.map(table).len() as u64)
    }
}

struct MemoryRows<'a>(Box<dyn Iterator<Item = Row<'a, 'a>> + 'a>);

impl<'a> RowScan<'a> for MemoryRows<'a> {
    fn next(&mut self) -> Result<Option<Row<'_, 'a>>> {
        Ok(self.0.next())
    }
}

struct MemoryTransaction<'t> {
    tree: &'t MemoryTree,
    changed: MemorySnapshot,
    _writer: MutexGuard<'t, ()>,
}

impl TreeTransaction for MemoryTransaction<'_> {
    fn get(&mut self, table: Table, key: &[u8]) -> Result<Option<&[u8]>> {
        self.changed.get(table, key)
    }

    fn has_neighbor_with_prefix(&mut self, table: Table, key: &[u8], prefix: &[u8]) -> Result<Option<bool>> {
        let map = self.changed.map(table);
        let before = map.range::<_, [u8]>((Bound::Unbounded, Bound::Excluded(key))).next_back();
        let after = map.range::<_, [u8]>((Bound::Excluded(key), Bound::Unbounded)).next();
        Ok(Some([before, after].into_iter().flatten().any(|(beside, _)| beside.starts_with(prefix))))
    }

    fn put(&mut self, table: Table, key: &[u8], value: &[u8]) -> Result<()> {
        check_key(table, key)?;
        let replaced = self.changed.maps[table.index()].insert(key.into(), value.into());
        self.changed.bytes += row_bytes(key, value);
        if let Some(replaced) = replaced {
            self.changed.bytes -= row_bytes(key, &replaced);
        }
        Ok(())
    }

    fn delete(&mut self, table: Table, key: &[u8]) -> Result<bool> {
        let Some(removed) = self.changed.maps[table.index()].remove(key) else { return Ok(false) };
        self.changed.bytes -= row_bytes(key, &removed);
        Ok(true)
    }

    fn clear_table(&mut self, table: Table) -> Result<()> {
        let removed = std::mem::take(&mut self.changed.maps[table.index()]);
        self.changed.bytes -= removed.iter().map(|(key, value)| row_bytes(key, value)).sum::<u64>();
        Ok(())
    }

    fn commit(self: Box<Self>) -> Result<()> {
        let Self { tree, changed, _writer } = *self;
        *tree.current.write() = Arc::new(changed);
        Ok(())
    }
}

fn row_bytes(key: &[u8], value: &[u8]) -> u64 {
    (key.len() + value.len()) as u64
}
