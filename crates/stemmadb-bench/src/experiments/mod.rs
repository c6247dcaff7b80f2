//! The experiments: one module per group of rows.

mod access_rules;
mod anti_patterns;
mod barrel_queries;
mod barrel_suite;
mod batches;
mod bulk_inserts;
mod caches;
pub(crate) mod cluster;
mod cluster_owners;
pub(crate) mod commerce;
mod compression;
mod encodings;
mod field_queries;
pub(crate) mod growth;
mod history;
mod http;
mod import_memory;
mod live;
mod many;
mod point_reads;
mod query_row;
mod round_trips;
mod scale;
mod single_inserts;
mod views;

use std::path::{Path, PathBuf};

use stemmadb::{DocumentId, Edit, Value};

use crate::Result;
use crate::engine::{Caching, Layout, Stemma};
use crate::harness::{Clock, Heading, ResultRow, Results, ScratchDirectory, Unit};
use crate::workload::{Corpus, OF_A_THOUSAND, OF_TEN, Records};

pub(crate) use batches::run_child as batch_child;
pub(crate) use cluster_owners::owner_child;
pub(crate) use growth::run_child as growth_child;
pub(crate) use import_memory::run_child as import_child;
pub(crate) use scale::{FULL, HUGE, SMALL, Scale, TINY};

/// One benchmark run.
pub(crate) struct Bench {
    pub(crate) scale: Scale,
    pub(crate) scratch: ScratchDirectory,
    pub(crate) results: Results,
    /// The clock for single-threaded reads; writes always use the wall clock.
    pub(crate) clock: Clock,
    /// Substrings of the selected row names; empty selects all rows.
    pub(crate) only: Vec<String>,
    pub(crate) growth: growth::Options,
    /// Whether `commerce` also measures BonsaiDb.
    pub(crate) with_bonsaidb: bool,
    corpus: Option<Corpus>,
    loaded: Option<Loaded>,
}

/// Closed databases that contain the whole corpus.
#[derive(Clone)]
struct Loaded {
    stemma: PathBuf,
    sqlite: PathBuf,
}

const SEED: u64 = 0x5_7e44a;
/// Documents per bulk-insert transaction.
const BATCH_COUNT: usize = 1_000;

impl Bench {
    /// Creates a run without results.
    pub(crate) fn new(
        scale: Scale,
        scratch: ScratchDirectory,
        results: Results,
        clock: Clock,
        only: Vec<String>,
    ) -> Self {
        Bench {
            scale,
            scratch,
            results,
            clock,
            only,
            growth: growth::Options::default(),
            with_bonsaidb: false,
            corpus: None,
            loaded: None,
        }
    }

    /// Measures `core`: basic operations, compared with SQLite.
    pub(crate) fn core(&mut self) -> Result<()> {
        bulk_inserts::run(self)?;
        import_memory::run(self)?;
        single_inserts::run(self)?;
        point_reads::run(self)?;
        compression::run(self)?;
        field_queries::run(self)
    }

    /// Measures `live`: notification latency.
    pub(crate) fn live(&mut self) -> Result<()> {
        live::run(self)
    }

    /// Measures `queries`: Barrel's queries and its anti-patterns.
    pub(crate) fn queries(&mut self) -> Result<()> {
        barrel_queries::run(self)?;
        anti_patterns::run(self)
    }

    /// Measures `barrel`: the rest of Barrel's suite.
    pub(crate) fn barrel(&mut self) -> Result<()> {
        barrel_suite::run(self)
    }

    /// Measures `views`: sums over key ranges.
    pub(crate) fn views(&mut self) -> Result<()> {
        views::run(self)
    }

    /// Measures `commerce`: a durable shop.
    pub(crate) fn commerce(&mut self) -> Result<()> {
        commerce::run(self)
    }

    /// Measures `http`: the server with local clients.
    pub(crate) fn http(&mut self) -> Result<()> {
        http::run(self)
    }

    /// Measures `batches`: batched and concurrent writes.
    pub(crate) fn batches(&mut self) -> Result<()> {
        batches::run(self)
    }

    /// Measures `encodings`: record encodings.
    pub(crate) fn encodings(&mut self) -> Result<()> {
        encodings::run(self)
    }

    /// Measures `caches`: lookups uncached, cached and in memory.
    pub(crate) fn caches(&mut self) -> Result<()> {
        caches::run(self)
    }

    /// Measures `history`: the cost of keeping the past.
    pub(crate) fn history(&mut self) -> Result<()> {
        history::run(self)
    }

    /// Measures `cluster`: a log in a Cassandra cluster.
    pub(crate) fn cluster(&mut self) -> Result<()> {
        cluster::run(self)
    }

    /// Measures `many`: several databases as one.
    pub(crate) fn many(&mut self) -> Result<()> {
        many::run(self)
    }

    /// Measures `growth`: cost by number of documents.
    pub(crate) fn growth(&mut self) -> Result<()> {
        growth::run(self)
    }

    fn is_selected(&self, row: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|part| row.contains(part))
    }

    fn heading(&self, row: &str, documents: u64, synced: bool, unit: Unit) -> Heading {
        let durability = if synced { "sync" } else { "none" };
        Heading {
            experiment: "core",
            row: row.to_owned(),
            documents,
            durability,
            unit,
            rows: None,
            note: None,
            targets: vec![],
        }
    }

    fn push(&mut self, row: ResultRow) -> Result<()> {
        self.results.push(row)
    }

    fn corpus(&mut self) -> &Corpus {
        let count = self.scale.document_count;
        self.corpus.get_or_insert_with(|| {
            eprintln!("making {count} documents");
            Corpus::generate(Records::new(SEED), count)
        })
    }

    /// Returns the loaded databases; loads them unless a bulk insert already did.
    fn loaded(&mut self) -> Result<Loaded> {
        if let Some(loaded) = &self.loaded {
            return Ok(loaded.clone());
        }
        eprintln!("loading the databases");
        let loaded = Loaded {
            stemma: self.scratch.fresh_path("loaded.stemma")?,
            sqlite: self.scratch.fresh_path("loaded.sqlite")?,
        };
        bulk_inserts::load_stemma(&loaded.stemma, self.corpus())?;
        bulk_inserts::load_sqlite(&loaded.sqlite, &all_indexed(false), self.corpus())?;
        self.loaded = Some(loaded.clone());
        Ok(loaded)
    }
}

/// As large as SQLite's page cache.
const QUERIES_CACHE_BYTES: u64 = 1 << 30;

/// Loads a Stemma database, closes it and opens it again, so that everything is merged.
fn load_stemma(path: &Path, corpus: &Corpus) -> Result<Stemma> {
    bulk_inserts::load_stemma(path, corpus)?;
    Stemma::open(path, false, Caching::Bytes(QUERIES_CACHE_BYTES))
}

/// SQLite with an index on every field, as in Stemma.
fn all_indexed(synced: bool) -> Layout {
    Layout { name: "sqlite-15-indexes", indexed: Records::fields().collect(), without_rowid: false, synced }
}

/// SQLite with indexes on two fields only.
fn two_indexed(synced: bool) -> Layout {
    Layout { name: "sqlite-2-indexes", indexed: vec![OF_TEN[0], OF_A_THOUSAND[0]], without_rowid: false, synced }
}

/// The insert of a document whose body is JSON.
fn insert_edit(id: &str, json: &str) -> Result<Edit> {
    Ok(Edit::Insert { id: DocumentId::new(id)?, body: Value::parse(json.as_bytes())? })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::harness::Machine;

    /// Creates a run at the tiny scale, with the given rows selected.
    pub(super) fn tiny(only: &[&str]) -> Bench {
        let scratch = ScratchDirectory::new(None).unwrap();
        let machine = Machine::detect(scratch.path(), String::new(), String::new());
        let results = Results::new(machine, "none".to_owned(), None);
        Bench::new(TINY, scratch, results, Clock::Wall, only.iter().map(|row| (*row).to_owned()).collect())
    }

    #[test]
    fn core_groups_produce_rows() {
        let scratch = ScratchDirectory::new(None).unwrap();
        let machine = Machine::detect(scratch.path(), String::new(), String::new());
        let file = scratch.path().join("results.json");
        let results = Results::new(machine, "none".to_owned(), Some(&file));
        // Memory of an import needs a child process, which a test cannot start.
        let groups = ["bulk", "bytes", "single", "get", "compression", "equality", "range", "prefix"];
        let mut bench = Bench::new(TINY, scratch, results, Clock::Wall, groups.map(str::to_owned).to_vec());
        bench.core().unwrap();
        let rows = bench.results.rows();
        for group in groups {
            assert!(rows.iter().any(|row| row.row.contains(group)), "no row of {group}");
        }
        assert!(rows.iter().all(|row| row.ours.p50 > 0.0 && row.peers.values().all(|peer| peer.p50 > 0.0)));
        let written: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        assert_eq!(written["rows"].as_array().unwrap().len(), rows.len());
        assert_eq!(written["rows"][0]["row"], "bulk insert");
    }

    #[test]
    fn every_query_produces_a_row() {
        let mut bench = tiny(&[]);
        bench.queries().unwrap();
        let count_of = |experiment| bench.results.rows().iter().filter(move |row| row.experiment == experiment).count();
        assert_eq!((count_of("queries"), count_of("anti-patterns")), (46, 17));
    }

    #[test]
    fn live_experiment_produces_all_rows() {
        let mut bench = tiny(&[]);
        bench.live().unwrap();
        assert_eq!(bench.results.rows().len(), 13);
    }

    #[test]
    fn batches_experiment_produces_all_rows() {
        // System calls need a child process, which a test cannot start.
        let mut bench = tiny(&["at once", "writers", "checkpoint"]);
        bench.batches().unwrap();
        assert_eq!(bench.results.rows().len(), 12 + 30 + 8 + 3);
    }

    #[test]
    fn encodings_experiment_produces_all_rows() {
        let mut bench = tiny(&[]);
        bench.encodings().unwrap();
        let rows = bench.results.rows();
        assert_eq!(rows.len(), 14);
        let is_of_view = |row: &&ResultRow| row.row.contains("by a view");
        assert!(rows.iter().filter(|row| !is_of_view(row)).all(|row| row.peers.len() >= 12));
        assert_eq!(rows.iter().filter(is_of_view).count(), 2);
    }

    #[test]
    fn caches_experiment_produces_all_rows() {
        let mut bench = tiny(&[]);
        bench.caches().unwrap();
        assert_eq!(bench.results.rows().len(), 2 * (12 + 2));
    }

    #[test]
    fn history_experiment_produces_all_rows() {
        let mut bench = tiny(&[]);
        bench.history().unwrap();
        assert_eq!(bench.results.rows().len(), 13);
    }

    #[test]
    fn many_experiment_produces_the_rows_without_a_server() {
        // A server needs a child process, which a test cannot start.
        let mut bench = tiny(&["best ten", "count", "get by id"]);
        bench.many().unwrap();
        assert_eq!(bench.results.rows().len(), 4);
    }

    #[test]
    fn views_experiment_produces_all_rows() {
        let mut bench = tiny(&[]);
        bench.views().unwrap();
        assert_eq!(bench.results.rows().len(), 4);
    }
}
