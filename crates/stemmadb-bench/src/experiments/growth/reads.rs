//! Reads at one size: by id, by equality, groups, sorts, ranges; and the first operations after opening.
//!
//! Each repetition has other values, except for rows called *hot* and *warm*. Both engines get the same values, and
//! their answers are compared.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use super::SEED;
use super::inserts::memory;
use super::request::{Figure, FigureUnit, Request};
use super::subject::Subject;
use crate::Result;
use crate::engine::{AccessPath, Caching, DocumentForm, RowCounter};
use crate::harness::{Random, Samples, Stopwatch};
use crate::workload::{AMOUNT_MAX, Condition, Events, Predicate, Projection, QuerySpec};

/// Reads by id per repetition.
const GET_COUNT: u64 = 2_000;
/// Reads by id per sample, because reading the clock is not negligible beside a cached read.
const GETS_PER_SAMPLE: usize = 16;
/// Queries per repetition.
const QUERY_COUNT: usize = 200;
/// A repetition of slow queries ends after this time.
const REPETITION_MAX: Duration = Duration::from_secs(1);

/// Measures all reads.
pub(super) fn run(request: &Request) -> Result<Vec<Figure>> {
    let mut reads = Reads { request, stopwatch: Stopwatch::new(request.clock()), figures: Vec::new() };
    let subject = Subject::open(request.engine, &request.path, Caching::Off)?;
    reads.get("get by id, cache off", &subject, 1)?;
    subject.close()?;
    for range in RANGES {
        reads.range_cold(range)?;
    }
    let subject = Subject::open(request.engine, &request.path, Caching::Default)?;
    reads.get("get by id, first reads", &subject, 2)?;
    reads.get_hot(&subject)?;
    reads.queries(&subject)?;
    reads.groups(&subject)?;
    for range in RANGES {
        reads.range_warm(range, &subject)?;
    }
    memory("memory after reads", &mut reads.figures)?;
    subject.close()?;
    Ok(reads.figures)
}

/// Measures reads by id without caches.
pub(super) fn get_uncached(request: &Request) -> Result<Vec<Figure>> {
    let mut reads = Reads { request, stopwatch: Stopwatch::new(request.clock()), figures: Vec::new() };
    let subject = Subject::open(request.engine, &request.path, Caching::Off)?;
    reads.get("get by id, cache off", &subject, 1)?;
    subject.close()?;
    Ok(reads.figures)
}

/// Measures opening, and the first operations afterwards.
pub(super) fn reopen(request: &Request) -> Result<Vec<Figure>> {
    let mut figures = ["open", "open: first get", "open: first query"]
        .map(|row| Figure::new(row, FigureUnit::Milliseconds, Samples::default()));
    for repetition in 0..request.repetition_count {
        let mut random = Random::at(SEED, repetition as u64);
        let mut counter = RowCounter::default();
        let mut push = |at: usize, start: Instant| {
            figures[at].samples.push_repetition(start.elapsed().as_nanos() as f64);
        };
        let start = Instant::now();
        let subject = Subject::open(request.engine, &request.path, Caching::Default)?;
        push(0, start);
        let start = Instant::now();
        // The first document, because counting all of them is a query.
        subject.engine().document_reader(DocumentForm::Document)?(&id(0), &mut counter)?;
        push(1, start);
        let start = Instant::now();
        let spec = devices(&mut random);
        subject.query_runner(std::slice::from_ref(&spec), AccessPath::PlannerChoice)?(&spec, &mut counter)?;
        push(2, start);
        subject.close()?;
    }
    Ok(figures.into())
}

/// What is read of a range of 1 % of the documents.
#[derive(Clone, Copy)]
enum Range {
    Rows(Projection),
    Sum,
}

const RANGES: [Range; 3] = [Range::Rows(Projection::Documents), Range::Rows(Projection::Ids), Range::Sum];

impl Range {
    fn name(self) -> &'static str {
        match self {
            Range::Rows(projection) => projection.name(),
            Range::Sum => "sum",
        }
    }

    /// Returns the number of rows, or the sum.
    fn read(self, subject: &Subject, condition: &Condition) -> Result<i64> {
        let Range::Rows(projection) = self else { return subject.sum(condition, "quantity") };
        let spec = QuerySpec::all(condition.clone(), projection);
        let mut counter = RowCounter::default();
        subject.query_runner(std::slice::from_ref(&spec), AccessPath::PlannerChoice)?(&spec, &mut counter)?;
        Ok(counter.row_count.cast_signed())
    }
}

fn amounts(number: u64) -> Condition {
    let width = AMOUNT_MAX / 100;
    let first = Random::at(SEED, number).below((AMOUNT_MAX - width).unsigned_abs()).cast_signed();
    Condition::Field("amount", Predicate::Between(first, first + width))
}

fn equal(field: &'static str, value: &str) -> Condition {
    Condition::Field(field, Predicate::Equal(value.into()))
}

/// The query for ten documents of one device of 1,000.
pub(super) fn devices(random: &mut Random) -> QuerySpec {
    QuerySpec::all(equal("device", &Events::device(random)), Projection::Documents).limit(10)
}

/// Returns the id of a document.
pub(super) fn id(number: u64) -> String {
    format!("e{number:09}")
}

struct Reads<'a> {
    request: &'a Request,
    stopwatch: Stopwatch,
    figures: Vec<Figure>,
}

impl Reads<'_> {
    /// Reads distinct documents in random order.
    fn get(&mut self, row: &str, subject: &Subject, seed: u64) -> Result<()> {
        let document_count = subject.document_count()?;
        let mut random = Random::at(SEED, seed);
        let mut seen = HashSet::new();
        let mut samples = Samples::default();
        for _ in 0..self.request.repetition_count {
            let mut ids = Vec::new();
            let count = GET_COUNT.min(document_count / self.request.repetition_count as u64);
            while (ids.len() as u64) < count {
                let number = random.below(document_count);
                if seen.insert(number) {
                    ids.push(id(number));
                }
            }
            self.get_ids(subject, &ids, &mut samples)?;
        }
        self.figures.push(Figure::new(row, FigureUnit::Nanoseconds, samples));
        Ok(())
    }

    /// Reads the same documents again and again.
    fn get_hot(&mut self, subject: &Subject) -> Result<()> {
        let document_count = subject.document_count()?;
        let mut random = Random::at(SEED, 3);
        let ids: Vec<String> = (0..GET_COUNT).map(|_| id(random.below(document_count))).collect();
        for _ in 0..2 {
            self.get_ids(subject, &ids, &mut Samples::default())?;
        }
        let mut samples = Samples::default();
        for _ in 0..self.request.repetition_count {
            self.get_ids(subject, &ids, &mut samples)?;
        }
        self.figures.push(Figure::new("get by id, hot", FigureUnit::Nanoseconds, samples));
        Ok(())
    }

    fn get_ids(&self, subject: &Subject, ids: &[String], samples: &mut Samples) -> Result<()> {
        let mut read = subject.engine().document_reader(DocumentForm::Document)?;
        let mut counter = RowCounter::default();
        samples.begin_repetition();
        for chunk in ids.chunks(GETS_PER_SAMPLE) {
            let gets = || chunk.iter().try_for_each(|id| read(id, &mut counter));
            samples.push(self.stopwatch.nanoseconds(chunk.len(), gets)?);
        }
        if counter.row_count == ids.len() as u64 { Ok(()) } else { Err("a document that was read is missing".into()) }
    }

    fn queries(&mut self, subject: &Subject) -> Result<()> {
        type Make = fn(&mut Random) -> QuerySpec;
        let rows: [(&str, AccessPath, Make); 4] = [
            ("equality, limit 10: documents", AccessPath::PlannerChoice, devices),
            ("equality: count", AccessPath::PlannerChoice, |random| {
                QuerySpec::all(equal("city", &Events::city(random)), Projection::Count)
            }),
            ("sort, limit 10: newest of a tenth", AccessPath::Index("by_at"), |random| {
                let kind = equal("kind", Events::kind(random));
                QuerySpec::all(kind, Projection::Documents).descending("at").limit(10)
            }),
            ("sort, limit 10: highest amounts of a tenth", AccessPath::Index("by_amount"), |random| {
                let kind = equal("kind", Events::kind(random));
                QuerySpec::all(kind, Projection::Documents).descending("amount").limit(10)
            }),
        ];
        for (row, access, make) in rows {
            let mut random = Random::at(SEED, 4);
            let count = QUERY_COUNT * self.request.repetition_count;
            let specs: Vec<QuerySpec> = (0..count).map(|_| make(&mut random)).collect();
            let mut runner = subject.query_runner(&specs, access)?;
            self.measure(row, |query| {
                let mut counter = RowCounter::default();
                runner(&specs[query], &mut counter)?;
                Ok(counter.row_count.cast_signed())
            })?;
        }
        Ok(())
    }

    fn groups(&mut self, subject: &Subject) -> Result<()> {
        let answer = |condition: &Condition| {
            let mut counts = subject.group_counts(condition, "kind")?;
            counts.sort();
            // Combines all counts in their order.
            Ok(counts.iter().fold(0_i64, |sum, (_, count)| sum.wrapping_mul(31).wrapping_add(count.cast_signed())))
        };
        self.measure("group by: counts of all documents", |_| answer(&Condition::Everything))?;
        let mut random = Random::at(SEED, 5);
        let cities: Vec<Condition> = (0..QUERY_COUNT * self.request.repetition_count)
            .map(|_| equal("city", &Events::city(&mut random)))
            .collect();
        self.measure("group by: counts of an equality", |query| answer(&cities[query]))
    }

    /// Times queries; `ask` runs the query of a number and returns its answer.
    fn measure(&mut self, row: &str, mut ask: impl FnMut(usize) -> Result<i64>) -> Result<()> {
        let (mut samples, mut answers) = (Samples::default(), Vec::new());
        for repetition in 0..self.request.repetition_count {
            samples.begin_repetition();
            let start = Instant::now();
            for query in repetition * QUERY_COUNT..(repetition + 1) * QUERY_COUNT {
                let cost = self.stopwatch.nanoseconds(1, || {
                    answers.push((query, ask(query)?));
                    Ok(())
                })?;
                samples.push(cost);
                if start.elapsed() > REPETITION_MAX {
                    break;
                }
            }
        }
        self.figures.push(Figure { answers, ..Figure::new(row, FigureUnit::Microseconds, samples) });
        Ok(())
    }

    /// Reads each range as the first query after opening.
    fn range_cold(&mut self, range: Range) -> Result<()> {
        let (mut samples, mut answers) = (Samples::default(), Vec::new());
        for repetition in 0..self.request.repetition_count {
            let subject = Subject::open(self.request.engine, &self.request.path, Caching::Default)?;
            let condition = amounts(repetition as u64);
            let cost = self.stopwatch.nanoseconds(1, || {
                answers.push((repetition, range.read(&subject, &condition)?));
                Ok(())
            })?;
            samples.push_repetition(cost);
            subject.close()?;
        }
        self.push_range("cold", range, samples, answers);
        Ok(())
    }

    /// Reads the same range again and again.
    fn range_warm(&mut self, range: Range, subject: &Subject) -> Result<()> {
        let condition = amounts(0);
        range.read(subject, &condition)?;
        let (mut samples, mut answers) = (Samples::default(), Vec::new());
        for repetition in 0..self.request.repetition_count {
            let cost = self.stopwatch.nanoseconds(1, || {
                answers.push((repetition, range.read(subject, &condition)?));
                Ok(())
            })?;
            samples.push_repetition(cost);
        }
        self.push_range("warm", range, samples, answers);
        Ok(())
    }

    fn push_range(&mut self, temperature: &str, range: Range, samples: Samples, answers: Vec<(usize, i64)>) {
        let row = format!("range of 1 %, {temperature}: {}", range.name());
        self.figures.push(Figure { answers, ..Figure::new(row, FigureUnit::Milliseconds, samples) });
    }
}
