//! The same cars in Stemma, in files and links, and in maps.

use std::path::PathBuf;

use stemmadb::{Database, Durability, Options};

use super::files::{Files, LookupKind, MemoryIndex};
use super::{LOOKUP_COUNT, Mode};
use crate::Result;
use crate::engine::insert_json;
use crate::experiments::{BATCH_COUNT, Bench};
use crate::harness::Random;
use crate::workload::{COLOR, Car, Cars, Corpus, KEYWORD, car_name};

/// Large enough for all documents.
const CACHE_BYTES: u64 = 1 << 30;

/// The same cars in every contender.
pub(super) struct CarDatabases {
    pub(super) count: u64,
    pub(super) path: PathBuf,
    pub(super) in_memory: Database,
    pub(super) files: Files,
    pub(super) key_index: MemoryIndex,
    pub(super) full_cache: MemoryIndex,
}

fn options() -> Options {
    Options::new().durability(Durability::None)
}

/// Returns the options under which everything is cached.
pub(super) fn cached() -> Options {
    options().cache_bytes(CACHE_BYTES)
}

/// Returns the options under which the index is cached and documents are not.
fn index_cached() -> Options {
    options().index_cache_bytes(CACHE_BYTES).document_cache_bytes(0)
}

fn insert(db: &Database, corpus: &Corpus) -> Result<()> {
    corpus.batches(BATCH_COUNT).try_for_each(|batch| insert_json(db, Durability::None, &batch))
}

impl CarDatabases {
    pub(super) fn new(bench: &Bench) -> Result<Self> {
        Ok(CarDatabases {
            count: 0,
            path: bench.scratch.fresh_path("cars.stemma")?,
            in_memory: Database::in_memory_with(cached())?,
            files: Files::create(&bench.scratch.fresh_path("cars")?)?,
            key_index: MemoryIndex::new(false),
            full_cache: MemoryIndex::new(true),
        })
    }

    /// Adds cars until there are `count`, and merges Stemma's memtables.
    pub(super) fn grow(&mut self, count: u64) -> Result<()> {
        if count == self.count {
            return Ok(());
        }
        let corpus = Corpus::generate_range(Cars, self.count..count);
        let db = Database::open_with(&self.path, options())?;
        insert(&db, &corpus)?;
        db.close()?;
        insert(&self.in_memory, &corpus)?;
        self.in_memory.maintenance().checkpoint()?;
        for number in self.count..count {
            let car = Car::new(number);
            self.files.insert(number, &car)?;
            self.key_index.insert(number, &car);
            self.full_cache.insert(number, &car);
        }
        self.count = count;
        Ok(())
    }

    pub(super) fn open(&self, mode: Mode) -> Result<Database> {
        Ok(match mode {
            Mode::Uncached => Database::open_with(&self.path, options().cache_bytes(0))?,
            Mode::CachedIndex => Database::open_with(&self.path, index_cached())?,
            Mode::Cached => Database::open_with(&self.path, cached())?,
            Mode::RamOnly => self.in_memory.clone(),
        })
    }

    /// Returns the values to look up: random names, or one fixed color or keyword.
    pub(super) fn values(&self, kind: LookupKind) -> Vec<String> {
        let mut random = Random::new(self.count);
        let value = |_| match kind {
            LookupKind::Index => car_name(random.below(self.count)),
            LookupKind::Partition => COLOR.to_owned(),
            LookupKind::Tag => KEYWORD.to_owned(),
        };
        (0..LOOKUP_COUNT).map(value).collect()
    }

    /// Returns the number of cars that match.
    pub(super) fn match_count(&self, kind: LookupKind) -> u64 {
        let has = |number: &u64| match kind {
            LookupKind::Index => *number == 0,
            LookupKind::Partition => Car::new(*number).color == COLOR,
            LookupKind::Tag => Car::new(*number).keywords.iter().any(|keyword| keyword == KEYWORD),
        };
        (0..self.count).filter(has).count() as u64
    }
}
