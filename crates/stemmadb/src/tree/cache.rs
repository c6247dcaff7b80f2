//! Block cache: the memory of one tree. Block indexes and filters of opened files are resident; verified blocks take
//! what is left of the budget, and at least a quarter of it.
//!
//! Concurrency: any thread may read and insert at any time. Run files never change, so entries are never outdated;
//! those of a deleted file are evicted as others need their place.

use std::sync::atomic::{AtomicU64, Ordering};

use quick_cache::{Weighter, sync::Cache};

use super::block::Block;
use crate::sync::Mutex;

/// Memory that an entry takes besides its block: key, hash slot, reference count.
const ENTRY_OVERHEAD_BYTES: u64 = 96;
/// Blocks have at least this part of the budget, however large the block indexes and filters are.
const BLOCK_SHARE_MIN: u64 = 4;

/// The blocks of one tree that were read recently, by run file and block number.
pub(super) struct BlockCache {
    blocks: Cache<(u64, u32), Block, BlockWeighter>,
    bytes_max: AtomicU64,
    /// The size of the block indexes and filters of all opened files.
    resident_bytes: Mutex<u64>,
}

#[derive(Clone)]
struct BlockWeighter;

impl Weighter<(u64, u32), Block> for BlockWeighter {
    fn weight(&self, _: &(u64, u32), block: &Block) -> u64 {
        block.byte_count() as u64 + ENTRY_OVERHEAD_BYTES
    }
}

impl BlockCache {
    pub(super) fn new(bytes_max: u64) -> Self {
        // An estimate reserves memory: keep idle databases small.
        let count = (bytes_max / super::block::BLOCK_BYTES as u64).clamp(8, 1_024) as usize;
        let blocks = Cache::with_weighter(count, bytes_max, BlockWeighter);
        BlockCache { blocks, bytes_max: bytes_max.into(), resident_bytes: Mutex::new(0) }
    }

    /// Changes the budget.
    pub(super) fn set_bytes_max(&self, bytes_max: u64) {
        let resident_bytes = self.resident_bytes.lock();
        self.bytes_max.store(bytes_max, Ordering::Relaxed);
        self.limit_blocks(*resident_bytes);
    }

    #[inline]
    pub(super) fn get(&self, file: u64, block: u32) -> Option<Block> {
        self.blocks.get(&(file, block))
    }

    pub(super) fn insert(&self, file: u64, number: u32, block: Block) {
        self.blocks.insert((file, number), block);
    }

    /// Counts the block index and the filter of a file that was opened.
    pub(super) fn add_resident(&self, bytes: u64) {
        let mut resident_bytes = self.resident_bytes.lock();
        *resident_bytes += bytes;
        self.limit_blocks(*resident_bytes);
    }

    /// Counts off the block index and the filter of a file that was closed.
    pub(super) fn remove_resident(&self, bytes: u64) {
        if bytes > 0 {
            let mut resident_bytes = self.resident_bytes.lock();
            debug_assert!(*resident_bytes >= bytes, "only what was counted is counted off");
            *resident_bytes = resident_bytes.saturating_sub(bytes);
            self.limit_blocks(*resident_bytes);
        }
    }

    fn limit_blocks(&self, resident_bytes: u64) {
        let bytes_max = self.bytes_max.load(Ordering::Relaxed);
        let left = bytes_max.saturating_sub(resident_bytes);
        self.blocks.set_capacity(left.max(bytes_max / BLOCK_SHARE_MIN));
    }

    /// Memory used, in bytes.
    pub(super) fn byte_count(&self) -> u64 {
        self.blocks.weight() + *self.resident_bytes.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::super::block::{BlockBuilder, Kind};
    use super::*;

    #[test]
    fn blocks_make_room_for_indexes_and_filters() {
        let cache = BlockCache::new(1 << 20);
        let mut builder = BlockBuilder::default();
        builder.add(b"key", 0, Kind::Put, &[7; 4_000]);
        let block = builder.finish(|bytes| Block::new(bytes.into(), bytes.len()).unwrap());
        let fill = || (0..1_000).for_each(|number| cache.insert(1, number, block.clone()));
        fill();
        assert!((900_000..=1 << 20).contains(&cache.byte_count()), "{}", cache.byte_count());
        cache.add_resident(600_000);
        fill();
        assert!((900_000..=1 << 20).contains(&cache.byte_count()), "{}", cache.byte_count());
        cache.add_resident(600_000);
        fill();
        assert!(cache.byte_count() <= 1_200_000 + (1 << 18), "{}", cache.byte_count());
        cache.remove_resident(1_200_000);
        fill();
        assert!((900_000..=1 << 20).contains(&cache.byte_count()), "{}", cache.byte_count());
    }
}
