//! Every query of Barrel's benchmark in its correct form: complete, verified, in order.
//!
//! Its own harness times empty answers, first pages and pages that lose rows; the questions are the same here, the answers
//! whole. SQLite has the ideal index for each query, with the id in it where that saves looking up rows, and none.

use std::cell::Cell;
use std::time::{Duration, Instant};

use super::ask::{Effort, Entrant, Family, row};
use super::find::{SHORT, target};
use super::{BATCH_COUNT, Bench};
use crate::Result;
use crate::engine::{Access, Asked, Collect, Engine, Layout, Pager, Sqlite, Stemma, Tally};
use crate::harness::{Contender, Heading, Row, Samples, Stopwatch, Unit, hold};
use crate::workload::{Condition, Corpus, Question, Test, Truth, Users, Wanted};

const INDEXED: &str = "sqlite-index";
const COVERING: &str = "sqlite-covering";
const SCANNED: &str = "sqlite-scan";

const SCAN_TARGET: f64 = 50.0;
/// Rows of a page.
const PAGES: [usize; 2] = [100, 500];

/// Indexes that serve best, by name; each exists with and without the id at its end.
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
/// Those that serve an order; no query that uses one asks for ids.
const ORDERED: [(&str, &[&str]); 3] = [
    ("by_type_created", &["type", "created_at"]),
    ("by_created_age", &["created_at", "age"]),
    ("by_type_created_age", &["type", "created_at", "age"]),
];
/// What serves `exists`.
const BY_PROFILE: &str = "by_profile";

/// A query of the benchmark, perhaps under several keys.
struct Query {
    key: &'static str,
    says: &'static str,
    condition: Condition,
    newest: bool,
    is_limited: bool,
    has_documents: bool,
    /// None: two of them, an `OR`.
    index: Option<&'static str>,
}

fn user() -> Condition {
    Condition::At("type", Test::Equal("user".into()))
}

fn active() -> Condition {
    Condition::At("status", Test::Equal("active".into()))
}

fn paris() -> Condition {
    Condition::At("profile.city", Test::Equal("Paris".into()))
}

fn above_50() -> Condition {
    Condition::At("age", Test::Above(50))
}

fn named() -> Condition {
    Condition::At("name", Test::Prefix("User 1".to_owned()))
}

fn with_profile() -> Condition {
    Condition::At("profile", Test::Exists)
}

/// All of them, in the order of the benchmark.
fn queries() -> Vec<Query> {
    let all = |conditions: &[Condition]| Condition::All(conditions.to_vec());
    let query = |key, says, condition, index| Query {
        key,
        says,
        condition,
        newest: false,
        is_limited: false,
        has_documents: false,
        index: Some(index),
    };
    let limited = |query| Query { is_limited: true, ..query };
    let documents = |query| Query { has_documents: true, ..query };
    let newest = |query| Query { newest: true, is_limited: true, has_documents: true, ..query };
    let or = |key| Query {
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

impl Query {
    fn question(&self, wanted: Wanted) -> Question {
        let mut question = Question::all(self.condition.clone(), wanted);
        if self.newest {
            question = question.descending("created_at");
        }
        if self.is_limited { question.limit(SHORT) } else { question }
    }

    /// Everything that is measured of it.
    fn wanted(&self) -> &'static [Wanted] {
        match (self.has_documents, self.is_limited) {
            (true, _) => &[Wanted::Documents, Wanted::Json],
            (false, true) => &[Wanted::Ids],
            (false, false) => &[Wanted::Ids, Wanted::Count],
        }
    }

    fn row_name(&self, wanted: Wanted) -> String {
        let limit = if self.is_limited { format!(", limit {SHORT}") } else { String::new() };
        format!("{}: {}{limit}; {}", self.key, self.says, wanted.name())
    }
}

/// The databases of one size, with everything in them.
struct Rivals {
    corpus: Corpus,
    stemma: Stemma,
    sqlite: Sqlite,
}

pub(super) fn run(bench: &mut Bench) -> Result<()> {
    let queries = queries();
    let is_wanted = |bench: &Bench| {
        let pages = PAGES.iter().any(|count| bench.wants(&page_name(*count)));
        pages || queries.iter().any(|query| query.wanted().iter().any(|wanted| bench.wants(&query.row_name(*wanted))))
    };
    if !is_wanted(bench) {
        return Ok(());
    }
    for document_count in bench.scale.query_counts {
        let rivals = load(bench, *document_count)?;
        let questions: Vec<Question> = queries.iter().map(|query| query.question(Wanted::Ids)).collect();
        let truths = Truth::of(&rivals.corpus, &questions);
        for (query, truth) in queries.iter().zip(&truths) {
            for wanted in query.wanted() {
                if bench.wants(&query.row_name(*wanted)) {
                    ask(bench, &rivals, query, *wanted, truth)?;
                }
            }
        }
        for row_count in PAGES {
            if bench.wants(&page_name(row_count)) {
                pages(bench, &rivals, row_count)?;
            }
        }
        rivals.stemma.close()?;
        rivals.sqlite.close()?;
    }
    Ok(())
}

fn load(bench: &Bench, document_count: u64) -> Result<Rivals> {
    eprintln!("loading {document_count} users");
    let corpus = Corpus::generate(Users, document_count);
    let stemma = super::load_stemma(&bench.place.fresh("users.stemma")?, &corpus)?;
    let layout = Layout { name: "sqlite", indexed: vec![], without_rowid: false, synced: false };
    let sqlite = Sqlite::create(&bench.place.fresh("users.sqlite")?, &layout)?;
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
    Ok(Rivals { corpus, stemma, sqlite })
}

fn with_id(name: &str) -> String {
    format!("{name}_id")
}

impl Rivals {
    fn peers(&self, index: Option<&'static str>, ids_alone: bool) -> Vec<Asked<'_>> {
        let access = index.map_or(Access::Chosen, Access::Index);
        let mut peers = vec![self.sqlite.by(INDEXED, access), self.sqlite.by(SCANNED, Access::Scan)];
        if let (Some(index), true) = (index, ids_alone) {
            peers.push(self.sqlite.by(COVERING, Access::Covering(covering(index))));
        }
        peers
    }

    fn heading(&self, row: &str, rows: u64, target: f64, peers: &[Asked<'_>]) -> Heading {
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

/// The index of that name with the id in it.
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

fn ask(bench: &mut Bench, rivals: &Rivals, query: &Query, wanted: Wanted, truth: &Truth) -> Result<()> {
    let question = [query.question(wanted)];
    let truth = std::slice::from_ref(truth);
    let family = Family { questions: &question, truths: truth };
    let peers = rivals.peers(query.index, wanted == Wanted::Ids);
    let rows = truth[0].row_count(question[0].limit);
    let heading = rivals.heading(&query.row_name(wanted), rows, target(rows, wanted), &peers);
    let mut entrants = vec![Entrant::new(&rivals.stemma, family)];
    for peer in &peers {
        entrants.push(Entrant { is_slow: peer.name() == SCANNED, ..Entrant::new(peer, family) });
    }
    let row = row(heading, &rivals.corpus, &entrants, &effort(bench))?;
    bench.push(row)
}

fn effort(bench: &Bench) -> Effort {
    Effort {
        repetition_count: bench.scale.repetition_count,
        clock: bench.clock,
        turn: Duration::from_millis(bench.scale.query_turn_ms),
    }
}

fn page_name(row_count: usize) -> String {
    format!("range_cont_{row_count}: age > 50; pages of {row_count} ids")
}

/// All pages of a result: verified once, then timed one by one until the turn is over.
fn pages(bench: &mut Bench, rivals: &Rivals, row_count: usize) -> Result<()> {
    let question = Question::all(above_50(), Wanted::Ids);
    let truth = Truth::of(&rivals.corpus, std::slice::from_ref(&question)).remove(0);
    let peers = rivals.peers(Some("by_age"), true);
    let engines: Vec<&dyn Engine> =
        std::iter::once(&rivals.stemma as &dyn Engine).chain(peers.iter().map(|peer| peer as &dyn Engine)).collect();
    let heading =
        rivals.heading(&page_name(row_count), row_count as u64, target(row_count as u64, Wanted::Ids), &peers);
    let stopwatch = Stopwatch::new(bench.clock);
    let turn = effort(bench).turn;
    let mut contenders = Vec::new();
    for engine in engines {
        let mut pager = engine.pager(&question, row_count)?;
        let fail = |wrong: String| format!("{}: pages of {row_count} rows: it {wrong}", engine.name());
        truth.check(&rivals.corpus, &question, &all_pages(&mut pager)?.answer).map_err(fail)?;
        let (stopwatch, is_first) = (&stopwatch, Cell::new(true));
        contenders.push(Contender::new(engine.name(), move |_, samples| {
            let end = Instant::now() + turn;
            while Instant::now() < end {
                let has_more = page(&mut pager, is_first.get(), row_count, stopwatch, samples)?;
                is_first.set(!has_more);
            }
            Ok(())
        }));
    }
    let row: Row = hold(heading, bench.scale.repetition_count, contenders)?;
    bench.push(row)
}

fn all_pages(pager: &mut Pager<'_>) -> Result<Collect> {
    let mut all = Collect::default();
    let mut is_first = true;
    while pager(is_first, &mut all)? {
        is_first = false;
    }
    Ok(all)
}

/// Times a page; the last one, which may be short, is no sample. Whether there may be more.
fn page(
    pager: &mut Pager<'_>,
    is_first: bool,
    row_count: usize,
    stopwatch: &Stopwatch,
    samples: &mut Samples,
) -> Result<bool> {
    let mut tally = Tally::default();
    let mut has_more = false;
    let cost = stopwatch.nanoseconds(1, || {
        has_more = pager(is_first, &mut tally)?;
        Ok(())
    })?;
    if tally.row_count == row_count as u64 {
        samples.push(cost);
    } else if has_more {
        return Err(format!("timed a page of {} rows, not {row_count}", tally.row_count).into());
    }
    Ok(has_more)
}
