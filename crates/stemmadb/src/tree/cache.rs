//! Block cache: verified blocks of run files, within a memory budget.
//!
//! Concurrency: any thread may read and insert at any time. Run files never change, so entries are never outdated;
//! those of a deleted file are evicted as others need their place.

use quick_cache::{Weighter, sync::Cache};

use super::block::Block;

/// Memory that an entry takes besides its block: key, hash slot, reference count.
const ENTRY_OVERHEAD_BYTES: u64 = 96;

/// The blocks of one tree that were read recently, by run file and block number.
pub(super) struct BlockCache(Cache<(u64, u32), Block, BlockWeighter>);

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
        BlockCache(Cache::with_weighter(count, bytes_max, BlockWeighter))
    }

    #[inline]
    pub(super) fn get(&self, file: u64, block: u32) -> Option<Block> {
        self.0.get(&(file, block))
    }

    pub(super) fn insert(&self, file: u64, number: u32, block: Block) {
        self.0.insert((file, number), block);
    }

    /// Memory used, in bytes.
    pub(super) fn byte_count(&self) -> u64 {
        self.0.weight()
    }
}
