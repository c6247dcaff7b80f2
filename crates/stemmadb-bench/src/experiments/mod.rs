//! What is found out? One module for each group of rows; a command is a list of groups.

mod ask;
mod barrel;
mod batches;
mod bulk;
mod caches;
pub(crate) mod commerce;
mod encodings;
mod find;
mod get;
mod http;
mod import;
mod live;
mod patterns;
mod single;
mod suite;
mod views;

use std::path::{Path, PathBuf};

use crate::Result;
use crate::engine::{Caching, Layout, Stemma};
use crate::harness::{Clock, Heading, Place, Results, Row, Unit};
use crate::workload::{Corpus, OF_A_THOUSAND, OF_TEN, Records};

pub(crate) use batches::run_child as batch_child;
pub(crate) use import::run_child as import_child;

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    pub(crate) name: &'static str,
    pub(crate) document_count: u64,
    /// How often everything is repeated, except bulk inserts.
    pub(crate) repetition_count: usize,
    pub(crate) bulk_repetition_count: usize,
    /// Documents of a turn of single inserts that do not wait for the disk, and of those that do.
    pub(crate) unsynced_count: usize,
    pub(crate) synced_count: usize,
    /// Documents that each of 100 writers inserts in a turn.
    pub(crate) each_writer_count: usize,
    /// How long a contender's turn of a question should take.
    pub(crate) turn_ms: u64,
    /// Sizes at which Barrel's queries are asked, and at which what it advises against is.
    pub(crate) query_counts: &'static [u64],
    pub(crate) pattern_counts: &'static [u64],
    /// Rows of the views that are summed.
    pub(crate) view_counts: &'static [u64],
    /// As `turn_ms`, of those.
    pub(crate) query_turn_ms: u64,
    /// Shoppers of each run of the shop.
    pub(crate) shopper_count: usize,
    /// How many of the shop's sizes are served over the network too.
    pub(crate) network_size_count: usize,
    /// Sizes at which cars are looked for.
    pub(crate) car_counts: &'static [u64],
    /// How many records are encoded.
    pub(crate) record_counts: &'static [u64],
}

/// A look at everything, in minutes.
pub(crate) const SMALL: Scale = Scale {
    name: "small",
    document_count: 100_000,
    repetition_count: 5,
    bulk_repetition_count: 3,
    unsynced_count: 20_000,
    synced_count: 2_000,
    each_writer_count: 50,
    turn_ms: 100,
    query_counts: &[5_000, 100_000],
    pattern_counts: &[20_000],
    view_counts: &[1_000, 10_000, 100_000],
    query_turn_ms: 20,
    shopper_count: 100,
    network_size_count: 1,
    car_counts: &[1_000, 10_000],
    record_counts: &[1_000, 10_000],
};

/// What the targets are about.
pub(crate) const FULL: Scale = Scale {
    name: "full",
    document_count: 1_000_000,
    repetition_count: 5,
    bulk_repetition_count: 3,
    unsynced_count: 100_000,
    synced_count: 5_000,
    each_writer_count: 200,
    turn_ms: 500,
    query_counts: &[5_000, 100_000, 1_000_000],
    pattern_counts: &[100_000, 1_000_000],
    view_counts: &[1_000, 10_000, 100_000, 1_000_000],
    query_turn_ms: 50,
    shopper_count: 1_000,
    network_size_count: 3,
    car_counts: &[1_000, 10_000, 25_000, 50_000, 75_000, 100_000, 150_000, 200_000, 250_000],
    record_counts: &[10, 100, 1_000, 10_000, 25_000, 50_000, 75_000, 100_000, 250_000, 500_000, 750_000, 1_000_000],
};

/// Everything once, on so few documents that its figures mean nothing.
pub(crate) const TINY: Scale = Scale {
    name: "tiny",
    document_count: 3_000,
    repetition_count: 2,
    bulk_repetition_count: 1,
    unsynced_count: 100,
    synced_count: 20,
    each_writer_count: 2,
    turn_ms: 1,
    query_counts: &[2_000],
    pattern_counts: &[10_000],
    view_counts: &[1_000],
    query_turn_ms: 1,
    shopper_count: 10,
    network_size_count: 1,
    car_counts: &[200, 400],
    record_counts: &[100],
};

/// One run of the bench.
pub(crate) struct Bench {
    pub(crate) scale: Scale,
    pub(crate) place: Place,
    pub(crate) results: Results,
    /// For reads by one thread; writes are always timed by the wall.
    pub(crate) clock: Clock,
    /// Parts of the names of rows that are wanted; all, if there are none.
    pub(crate) only: Vec<String>,
    corpus: Option<Corpus>,
    loaded: Option<Loaded>,
}

/// Databases with the whole corpus in them, closed.
#[derive(Clone)]
struct Loaded {
    stemma: PathBuf,
    sqlite: PathBuf,
}

const SEED: u64 = 0x5_7e44a;
/// Documents in a transaction of a bulk insert.
const BATCH_COUNT: usize = 1_000;

impl Bench {
    /// A run that has not measured anything.
    pub(crate) fn new(scale: Scale, place: Place, results: Results, clock: Clock, only: Vec<String>) -> Self {
        Bench { scale, place, results, clock, only, corpus: None, loaded: None }
    }

    /// The rows of `core`: what the database does at all, beside SQLite.
    pub(crate) fn fundamentals(&mut self) -> Result<()> {
        bulk::run(self)?;
        import::run(self)?;
        single::run(self)?;
        get::run(self)?;
        find::run(self)
    }

    /// The rows of `live`: what it takes to be told of a write.
    pub(crate) fn live(&mut self) -> Result<()> {
        live::run(self)
    }

    /// The rows of `queries`: Barrel's, and what it advises against.
    pub(crate) fn queries(&mut self) -> Result<()> {
        barrel::run(self)?;
        patterns::run(self)
    }

    /// The rows of `barrel`: the rest of its suite.
    pub(crate) fn barrel(&mut self) -> Result<()> {
        suite::run(self)
    }

    /// The rows of `views`: sums of ranges of keys.
    pub(crate) fn views(&mut self) -> Result<()> {
        views::run(self)
    }

    /// The rows of `commerce`: a shop, durable.
    pub(crate) fn commerce(&mut self) -> Result<()> {
        commerce::run(self)
    }

    /// The rows of `http`: the server, with clients beside it.
    pub(crate) fn http(&mut self) -> Result<()> {
        http::run(self)
    }

    /// The rows of `batches`: many documents at once.
    pub(crate) fn batches(&mut self) -> Result<()> {
        batches::run(self)
    }

    /// The rows of `encodings`: in which form a record is best kept.
    pub(crate) fn encodings(&mut self) -> Result<()> {
        encodings::run(self)
    }

    /// The rows of `caches`: what is found with nothing cached, everything, and no disk.
    pub(crate) fn caches(&mut self) -> Result<()> {
        caches::run(self)
    }

    fn wants(&self, row: &str) -> bool {
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

    fn push(&mut self, row: Row) -> Result<()> {
        self.results.push(row)
    }

    fn corpus(&mut self) -> &Corpus {
        let count = self.scale.document_count;
        self.corpus.get_or_insert_with(|| {
            eprintln!("making {count} documents");
            Corpus::generate(Records::new(SEED), count)
        })
    }

    /// The databases with everything in them; loads them unless a bulk insert left them.
    fn loaded(&mut self) -> Result<Loaded> {
        if let Some(loaded) = &self.loaded {
            return Ok(loaded.clone());
        }
        eprintln!("loading the databases");
        let loaded = Loaded { stemma: self.place.fresh("loaded.stemma")?, sqlite: self.place.fresh("loaded.sqlite")? };
        bulk::load_stemma(&loaded.stemma, self.corpus())?;
        bulk::load_sqlite(&loaded.sqlite, &all_indexed(false), self.corpus())?;
        self.loaded = Some(loaded.clone());
        Ok(loaded)
    }
}

/// As much as SQLite is given for its pages.
const QUERIES_CACHE_BYTES: u64 = 1 << 30;

/// A Stemma database of a corpus, closed and opened again: everything is merged.
fn load_stemma(path: &Path, corpus: &Corpus) -> Result<Stemma> {
    bulk::load_stemma(path, corpus)?;
    Stemma::open(path, false, Caching::Bytes(QUERIES_CACHE_BYTES))
}

/// SQLite with every field indexed, as Stemma has them.
fn all_indexed(synced: bool) -> Layout {
    Layout { name: "sqlite-15-indexes", indexed: Records::fields().collect(), without_rowid: false, synced }
}

/// SQLite as one would rather set it up: with an index where one is known to be needed.
fn two_indexed(synced: bool) -> Layout {
    Layout { name: "sqlite-2-indexes", indexed: vec![OF_TEN[0], OF_A_THOUSAND[0]], without_rowid: false, synced }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::harness::Machine;

    /// A run of that scale, of these rows or of all.
    pub(super) fn tiny(only: &[&str]) -> Bench {
        let place = Place::new(None).unwrap();
        let machine = Machine::look(place.path(), String::new(), String::new());
        let results = Results::new(machine, "none".to_owned(), None);
        Bench::new(TINY, place, results, Clock::Wall, only.iter().map(|row| (*row).to_owned()).collect())
    }

    #[test]
    fn every_group_makes_its_rows_and_all_engines_agree() {
        let place = Place::new(None).unwrap();
        let machine = Machine::look(place.path(), String::new(), String::new());
        let file = place.path().join("results.json");
        let results = Results::new(machine, "none".to_owned(), Some(&file));
        // The memory of an import is that of a process of its own, which a test is not.
        let groups = ["bulk", "bytes", "single", "get", "equality", "range", "prefix"];
        let mut bench = Bench::new(TINY, place, results, Clock::Wall, groups.map(str::to_owned).to_vec());
        bench.fundamentals().unwrap();
        let rows = bench.results.rows();
        for group in groups {
            assert!(rows.iter().any(|row| row.row.contains(group)), "no row of {group}");
        }
        // The system counts processor time by the hundredth of a second, which may be more than so few documents take.
        let mut counted = rows.iter().filter(|row| !row.row.contains("processor time"));
        assert!(counted.all(|row| row.ours.p50 > 0.0 && row.peers.values().all(|peer| peer.p50 > 0.0)));
        let written: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        assert_eq!(written["rows"].as_array().unwrap().len(), rows.len());
        assert_eq!(written["rows"][0]["row"], "bulk insert");
    }

    #[test]
    fn every_query_makes_its_row() {
        let mut bench = tiny(&[]);
        bench.queries().unwrap();
        let of = |experiment| bench.results.rows().iter().filter(move |row| row.experiment == experiment).count();
        assert_eq!((of("queries"), of("what not to do")), (46, 15));
    }

    #[test]
    fn watchers_hear_of_writes_that_concern_them_and_of_no_others() {
        let mut bench = tiny(&[]);
        bench.live().unwrap();
        assert_eq!(bench.results.rows().len(), 13);
    }

    #[test]
    fn batches_and_crowds_write_everything() {
        // System calls are those of a process of its own, which a test is not.
        let mut bench = tiny(&["at once", "writers"]);
        bench.batches().unwrap();
        assert_eq!(bench.results.rows().len(), 12 + 27);
    }

    #[test]
    fn every_strategy_finds_the_same_records() {
        let mut bench = tiny(&[]);
        bench.encodings().unwrap();
        let rows = bench.results.rows();
        assert_eq!(rows.len(), 14);
        let is_of_view = |row: &&Row| row.row.contains("by a view");
        assert!(rows.iter().filter(|row| !is_of_view(row)).all(|row| row.peers.len() >= 12));
        assert_eq!(rows.iter().filter(is_of_view).count(), 2);
    }

    #[test]
    fn every_mode_finds_the_same_cars() {
        let mut bench = tiny(&[]);
        bench.caches().unwrap();
        assert_eq!(bench.results.rows().len(), 2 * 9 + 2);
    }

    #[test]
    fn sums_of_views_agree_with_the_peer() {
        let mut bench = tiny(&[]);
        bench.views().unwrap();
        assert_eq!(bench.results.rows().len(), 4);
    }
}
