//! The queries of Barrel's benchmark, with complete, verified and ordered results.
//!
//! Barrel's own harness times empty answers, first pages, and pages that skip rows. The queries here are the same, but
//! their results are complete. SQLite runs with the ideal index for each query (with the id appended where that avoids
//! table lookups) and without any index.

use std::cell::Cell;
use std::time::{Duration, Instant};

use super::field_queries::{SHORT, target};
use super::query_row::{MeasurementBudget, QueryContender, QueryFamily, measure_queries};
use super::{BATCH_COUNT, Bench};
use crate::Result;
use crate::engine::{
    AccessPath, Engine, Layout, PageReader, RowCollector, RowCounter, Sqlite, SqliteWithAccess, Stemma,
};
use crate::harness::{Contender, Heading, ResultRow, Samples, Stopwatch, Unit, measure_row};
use crate::workload::{Condition, Corpus, ExpectedRows, Predicate, Projection, QuerySpec, Users};

const INDEXED: &str = "sqlite-index";
const COVERING: &str = "sqlite-covering";
const SCANNED: &str = "sqlite-scan";

const SCAN_TARGET: f64 = 50.0;
/// Rows per page.
const PAGES: [usize; 2] = [100, 500];

/// The ideal indexes by name; each exists with and without the id appended.
const INDEXES: [(&str, &[&str]); 9] = [
    ("by_type", &["type"]),
    ("by_status", &["status"]),
    ("by_city", &["profile.city"]),
    ("by_age", &["age"]),
    ("by_name", &["name"]),
    ("by_created", &["created_at"]),
    ("by_type_status", &["type", "status"]),
    ("by_type_status_age", &["type", "status", "age"]),
    ("by_type_age", &["type", "age"]),
];
/// Indexes that provide a sort order; no query on them asks for ids.
const ORDERED: [(&str, &[&str]); 3] = [
    ("by_type_created", &["type", "created_at"]),
    ("by_created_age", &["created_at", "age"]),
    ("by_type_created_age", &["type", "created_at", "age"]),
];
/// The index for `exists`.
const BY_PROFILE: &str = "by_profile";

/// A query of the benchmark, which may have several keys there.
struct BarrelQuery {
    key: &'static str,
    description: &'static str,
    condition: Condition,
    newest: bool,
    is_limited: bool,
    has_documents: bool,
    /// `None`: an `OR`, which uses two indexes.
    index: Option<&'static str>,
}

fn user() -> Condition {
    Condition::Field("type", Predicate::Equal("user".into()))
}

fn active() -> Condition {
    Condition::Field("status", Predicate::Equal("active".into()))
}

fn paris() -> Condition {
    Condition::Field("profile.city", Predicate::Equal("Paris".into()))
}

fn above_50() -> Condition {
    Condition::Field("age", Predicate::Above(50))
}

fn named() -> Condition {
    Condition::Field("name", Predicate::Prefix("User 1".to_owned()))
}

fn with_profile() -> Condition {
    Condition::Field("profile", Predicate::Exists)
}

/// Returns all queries, in the benchmark's order.
fn queries() -> Vec<BarrelQuery> {
    let all = |conditions: &[Condition]| Condition::All(conditions.to_vec());
    let query = |key, description, condition, index| BarrelQuery {
        key,
        description,
        condition,
        newest: false,
        is_limited: false,
        has_documents: false,
        index: Some(index),
    };
    let limited = |query| BarrelQuery { is_limited: true, ..query };
    let documents = |query| BarrelQuery { has_documents: true, ..query };
    let newest = |query| BarrelQuery { newest: true, is_limited: true, has_documents: true, ..query };
    let or = |key| BarrelQuery {
        index: None,
        ..query(key, "type = user or status = active", Condition::Any(vec![user(), active()]), "")
    };
    let two = || all(&[user(), active()]);
    let ranged = || all(&[user(), above_50()]);
    let three = || all(&[user(), active(), above_50()]);
    vec![
        query("simple_eq", "type = user", user(), "by_type"),
        limited(query("simple_eq_limit", "type = user", user(), "by_type")),
        query("selective_eq", "status = active", active(), "by_status"),
        query("very_selective_eq", "city = Paris", paris(), "by_city"),
        documents(query("range, range_with_docs", "type = user, age > 50", ranged(), "by_type_age")),
        limited(documents(query("range_limit", "type = user, age > 50", ranged(), "by_type_age"))),
        query("pure_compare", "age > 50", above_50(), "by_age"),
        limited(query("pure_compare_limit", "age > 50", above_50(), "by_age")),
        documents(query("multi_condition, multi_cond_docs", "type = user, status = active", two(), "by_type_status")),
        query("multi_index", "type = user, status = active", two(), "by_type_status"),
        limited(query("multi_index_limit", "type = user, status = active", two(), "by_type_status")),
        query("multi_index_range", "type = user, age > 50", ranged(), "by_type_age"),
        limited(query("multi_index_range_limit", "type = user, age > 50", ranged(), "by_type_age")),
        query("three_cond", "type = user, status = active, age > 50", three(), "by_type_status_age"),
        limited(query("three_cond_limit", "type = user, status = active, age > 50", three(), "by_type_status_age")),
        documents(query("nested_path", "city = Paris", paris(), "by_city")),
        newest(query("order_by_limit", "type = user, newest first", user(), "by_type_created")),
        newest(query("pure_topk", "newest first", Condition::Everything, "by_created")),
        newest(query("filter_order_range", "age > 50, newest first", above_50(), "by_created_age")),
        newest(query("filter_order_2cond", "type = user, age > 50, newest first", ranged(), "by_type_created_age")),
        query("prefix", "name begins with User 1", named(), "by_name"),
        limited(query("prefix_limit", "name begins with User 1", named(), "by_name")),
        query("exists", "profile exists", with_profile(), BY_PROFILE),
        limited(query("exists_limit", "profile exists", with_profile(), BY_PROFILE)),
        or("or_condition"),
        limited(or("or_limit")),
    ]
}

impl BarrelQuery {
    fn spec(&self, projection: Projection) -> QuerySpec {
        let mut spec = QuerySpec::all(self.condition.clone(), projection);
        if self.newest {
            spec = spec.descending("created_at");
        }
        if self.is_limited { spec.limit(SHORT) } else { spec }
    }

    /// Returns the projections that are measured.
    fn projections(&self) -> &'static [Projection] {
        match (self.has_documents, self.is_limited) {
            (true, _) => &[Projection::Documents, Projection::Json],
            (false, true) => &[Projection::Ids],
            (false, false) => &[Projection::Ids, Projection::Count],
        }
    }

    fn row_name(&self, projection: Projection) -> String {
        let limit = if self.is_limited { format!(", limit {SHORT}") } else { String::new() };
        format!("{}: {}{limit}; {}", self.key, self.description, projection.name())
    }
}

/// The loaded databases of one size.
struct LoadedDatabases {
    corpus: Corpus,
    stemma: Stemma,
    sqlite: Sqlite,
}

pub(super) fn run(bench: &mut Bench) -> Result<()> {
    let queries = queries();
    let is_wanted = |bench: &Bench| {
        let pages = PAGES.iter().any(|count| bench.is_selected(&page_name(*count)));
        pages
            || queries.iter().any(|query| {
                query.projections().iter().any(|projection| bench.is_selected(&query.row_name(*projection)))
            })
    };
    if !is_wanted(bench) {
        return Ok(());
    }
    for document_count in bench.scale.query_counts.to_vec() {
        let databases = load(bench, document_count)?;
        let specs: Vec<QuerySpec> = queries.iter().map(|query| query.spec(Projection::Ids)).collect();
        let expectations = ExpectedRows::compute(&databases.corpus, &specs);
        for (query, expected_rows) in queries.iter().zip(&expectations) {
            for projection in query.projections() {
                if bench.is_selected(&query.row_name(*projection)) {
                    measure_query(bench, &databases, query, *projection, expected_rows)?;
                }
            }
        }
        for row_count in PAGES {
            if bench.is_selected(&page_name(row_count)) {
                pages(bench, &databases, row_count)?;
            }
        }
        databases.stemma.close()?;
        databases.sqlite.close()?;
    }
    Ok(())
}

fn load(bench: &Bench, document_count: u64) -> Result<LoadedDatabases> {
    eprintln!("loading {document_count} users");
    let corpus = Corpus::generate(Users, document_count);
    let stemma = super::load_stemma(&bench.scratch.fresh_path("users.stemma")?, &corpus)?;
    let layout = Layout { name: "sqlite", indexed: vec![], without_rowid: false, synced: false };
    let sqlite = Sqlite::create(&bench.scratch.fresh_path("users.sqlite")?, &layout)?;
    for batch in corpus.batches(BATCH_COUNT) {
        sqlite.insert(&batch)?;
    }
    for (name, paths) in INDEXES {
        sqlite.index(name, paths, false)?;
        sqlite.index(&with_id(name), paths, true)?;
    }
    for (name, paths) in ORDERED {
        sqlite.index(name, paths, false)?;
    }
    sqlite.index_kind(BY_PROFILE, "profile", false)?;
    sqlite.index_kind(&with_id(BY_PROFILE), "profile", true)?;
    sqlite.analyze()?;
    Ok(LoadedDatabases { corpus, stemma, sqlite })
}

fn with_id(name: &str) -> String {
    format!("{name}_id")
}

impl LoadedDatabases {
    fn peers(&self, index: Option<&'static str>, ids_alone: bool) -> Vec<SqliteWithAccess<'_>> {
        let access = index.map_or(AccessPath::PlannerChoice, AccessPath::Index);
        let mut peers =
            vec![self.sqlite.with_access(INDEXED, access), self.sqlite.with_access(SCANNED, AccessPath::Scan)];
        if let (Some(index), true) = (index, ids_alone) {
            peers.push(self.sqlite.with_access(COVERING, AccessPath::Covering(covering(index))));
        }
        peers
    }

    fn heading(&self, row: &str, rows: u64, target: f64, peers: &[SqliteWithAccess<'_>]) -> Heading {
        let target = |name| if name == SCANNED { SCAN_TARGET } else { target };
        Heading {
            experiment: "queries",
            row: row.to_owned(),
            documents: self.corpus.len() as u64,
            durability: "none",
            unit: Unit::Microseconds,
            rows: Some(rows),
            note: None,
            targets: peers.iter().map(|peer| (peer.name(), target(peer.name()))).collect(),
        }
    }
}

/// Returns the name of the same index with the id appended.
fn covering(index: &'static str) -> &'static str {
    match index {
        "by_type" => "by_type_id",
        "by_status" => "by_status_id",
        "by_city" => "by_city_id",
        "by_age" => "by_age_id",
        "by_name" => "by_name_id",
        "by_created" => "by_created_id",
        "by_type_status" => "by_type_status_id",
        "by_type_status_age" => "by_type_status_age_id",
        "by_type_age" => "by_type_age_id",
        BY_PROFILE => "by_profile_id",
        other => other,
    }
}

fn measure_query(
    bench: &mut Bench,
    databases: &LoadedDatabases,
    query: &BarrelQuery,
    projection: Projection,
    expected_rows: &ExpectedRows,
) -> Result<()> {
    let spec = [query.spec(projection)];
    let expected_rows = std::slice::from_ref(expected_rows);
    let family = QueryFamily { specs: &spec, expectations: expected_rows };
    let peers = databases.peers(query.index, projection == Projection::Ids);
    let rows = expected_rows[0].row_count(spec[0].limit);
    let heading = databases.heading(&query.row_name(projection), rows, target(rows, projection), &peers);
    let mut contenders = vec![QueryContender::new(&databases.stemma, family)];
    for peer in &peers {
        contenders.push(QueryContender { is_slow: peer.name() == SCANNED, ..QueryContender::new(peer, family) });
    }
    let row = measure_queries(heading, &databases.corpus, &contenders, &budget(bench))?;
    bench.push(row)
}

fn budget(bench: &Bench) -> MeasurementBudget {
    MeasurementBudget {
        repetition_count: bench.scale.repetition_count,
        clock: bench.clock,
        turn: Duration::from_millis(bench.scale.query_turn_ms),
    }
}

fn page_name(row_count: usize) -> String {
    format!("range_cont_{row_count}: age > 50; pages of {row_count} ids")
}

/// Measures paging: verifies all pages once, then times single pages until the turn is over.
fn pages(bench: &mut Bench, databases: &LoadedDatabases, row_count: usize) -> Result<()> {
    let spec = QuerySpec::all(above_50(), Projection::Ids);
    let expected_rows = ExpectedRows::compute(&databases.corpus, std::slice::from_ref(&spec)).remove(0);
    if expected_rows.row_count(None) < row_count as u64 {
        // A database of fewer documents than planned has no full page.
        return Ok(());
    }
    let peers = databases.peers(Some("by_age"), true);
    let engines: Vec<&dyn Engine> =
        std::iter::once(&databases.stemma as &dyn Engine).chain(peers.iter().map(|peer| peer as &dyn Engine)).collect();
    let heading =
        databases.heading(&page_name(row_count), row_count as u64, target(row_count as u64, Projection::Ids), &peers);
    let stopwatch = Stopwatch::new(bench.clock);
    let turn = budget(bench).turn;
    let mut contenders = Vec::new();
    for engine in engines {
        let mut page_reader = engine.page_reader(&spec, row_count)?;
        let fail = |wrong: String| format!("{}: pages of {row_count} rows: it {wrong}", engine.name());
        expected_rows.check(&databases.corpus, &spec, &all_pages(&mut page_reader)?.result).map_err(fail)?;
        let (stopwatch, is_first) = (&stopwatch, Cell::new(true));
        contenders.push(Contender::new(engine.name(), move |_, samples| {
            let end = Instant::now() + turn;
            while Instant::now() < end {
                let has_more = page(&mut page_reader, is_first.get(), row_count, stopwatch, samples)?;
                is_first.set(!has_more);
            }
            Ok(())
        }));
    }
    let row: ResultRow = measure_row(heading, bench.scale.repetition_count, contenders)?;
    bench.push(row)
}

fn all_pages(page_reader: &mut PageReader<'_>) -> Result<RowCollector> {
    let mut all = RowCollector::default();
    let mut is_first = true;
    while page_reader(is_first, &mut all)? {
        is_first = false;
    }
    Ok(all)
}

/// Times one page; returns whether more follow. A short last page is not a sample.
fn page(
    page_reader: &mut PageReader<'_>,
    is_first: bool,
    row_count: usize,
    stopwatch: &Stopwatch,
    samples: &mut Samples,
) -> Result<bool> {
    let mut counter = RowCounter::default();
    let mut has_more = false;
    let cost = stopwatch.nanoseconds(1, || {
        has_more = page_reader(is_first, &mut counter)?;
        Ok(())
    })?;
    if counter.row_count == row_count as u64 {
        samples.push(cost);
    } else if has_more {
        return Err(format!("timed a page of {} rows, not {row_count}", counter.row_count).into());
    }
    Ok(has_more)
}
