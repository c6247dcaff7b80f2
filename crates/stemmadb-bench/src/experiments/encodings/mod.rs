//! The BoltDB encoding study: six ways to store a record of 15 fields on bbolt and on LMDB, compared with Stemma, which
//! also indexes every field.
//!
//! Each contender inserts the same records (one per transaction, or in bulk), reads half as many at random, reads a
//! third of them in order from the middle on, sums one field over all records, and updates that field in half as many
//! records at random. Everything read is hashed and compared.

mod bolt;
mod encode;
mod lmdb;

use std::collections::BTreeMap;
use std::ops::Bound;
use std::path::Path;
use std::time::Instant;

use stemmadb::{Database, DocumentId, Durability, Edit, Options, Query, Selector, Value};

use super::{Bench, SEED};
use crate::Result;
use crate::harness::{Heading, Random, ResultRow, Samples, Unit, allocated_bytes};
use crate::workload::Account;
use bolt::{Bolt, STRATEGIES};
use encode::{Strategy, to_binary};
use lmdb::Lmdb;

/// Target ratio of the field sum to the best bbolt strategy.
const SUM_TARGET: f64 = 5.0;
const BEST: &str = "bbolt's best";
/// Stemma's documents per bulk transaction, which is one log frame.
const BULK_COUNT: usize = 10_000;

/// A view that maintains the sum.
const VIEW: &str = r#"{"key": "is_active", "value": "balance", "reduce": "_sum"}"#;

const OPERATIONS: [&str; 6] = ["insert", "read", "read many", "field sum", "update", "storage"];

pub(super) fn run(bench: &mut Bench) -> Result<()> {
    let bulks = [(false, "single"), (true, "bulk")];
    let mut bolt = None;
    for count in bench.scale.record_counts.to_vec() {
        for (bulk, mode) in bulks {
            let names = OPERATIONS.map(|operation| format!("{operation}, inserted {mode}"));
            if !names.iter().any(|name| bench.is_selected(name)) {
                continue;
            }
            let bolt = match &bolt {
                Some(bolt) => bolt,
                None => bolt.insert(Bolt::build(&bench.scratch.fresh_path("bolt")?)?),
            };
            rows(bench, bolt, count, bulk, &names)?;
        }
    }
    Ok(())
}

/// Cost of the sum maintained by a view: building and querying it, in nanoseconds per record.
#[derive(Clone, Copy)]
struct ViewSumCost {
    making: f64,
    asking: f64,
}

/// The records, and the ids that are read and updated.
struct Workload {
    accounts: Vec<Account>,
    read: Vec<u64>,
    updated: Vec<u64>,
}

/// Checksums of everything read.
#[derive(Debug, PartialEq)]
struct Checksums {
    read_hash: u64,
    many_hash: u64,
    sum: f64,
    updated_sum: f64,
}

/// Costs of one run: nanoseconds per record of each operation and bytes per record, in the order of [`OPERATIONS`].
type Costs = [f64; 6];

impl Workload {
    fn make(count: u64) -> Self {
        let mut random = Random::new(SEED ^ count);
        let mut ids = || (0..(count / 2).max(1)).map(|_| random.below(count)).collect();
        let (read, updated) = (ids(), ids());
        Workload { accounts: (0..count).map(|number| Account::new(SEED, number)).collect(), read, updated }
    }

    fn many(&self) -> (u64, usize) {
        (self.accounts.len() as u64 / 2, self.accounts.len() / 3)
    }

    /// Computes the expected checksums from the records.
    fn expected_checksums(&self) -> Checksums {
        let read: Vec<&Account> = self.read.iter().map(|id| &self.accounts[*id as usize]).collect();
        let (first, many) = self.many();
        let mut balances: Vec<f64> = self.accounts.iter().map(|account| account.balance).collect();
        let sum = balances.iter().sum();
        for (at, id) in self.updated.iter().enumerate() {
            balances[*id as usize] = new_balance(at);
        }
        Checksums {
            read_hash: hash(read),
            many_hash: hash(&self.accounts[first as usize..first as usize + many]),
            sum,
            updated_sum: balances.iter().sum(),
        }
    }

    /// Returns how many records each operation covers, for the cost per record.
    fn counts(&self) -> [usize; 6] {
        let all = self.accounts.len();
        [all, self.read.len(), self.many().1.max(1), all, self.updated.len(), all]
    }
}

fn new_balance(at: usize) -> f64 {
    at as f64 + 0.5
}

/// Returns the FNV-1a hash of the records in the `binary` encoding.
fn hash<'a>(accounts: impl IntoIterator<Item = &'a Account>) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut bytes = Vec::new();
    for account in accounts {
        bytes.clear();
        to_binary(account, &mut bytes);
        for byte in &bytes {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    hash
}

impl Checksums {
    /// Compares with the expected checksums. Sums may differ by rounding order.
    fn check(&self, name: &str, expected: &Checksums) -> Result<()> {
        let near = |one: f64, other: f64| (one - other).abs() <= 1e-9 * other.abs();
        let hashes = (self.read_hash, self.many_hash) == (expected.read_hash, expected.many_hash);
        if hashes && near(self.sum, expected.sum) && near(self.updated_sum, expected.updated_sum) {
            return Ok(());
        }
        Err(format!("{name} found {self:?}, not {expected:?}").into())
    }
}

fn rows(bench: &mut Bench, bolt: &Bolt, count: u64, bulk: bool, names: &[String; 6]) -> Result<()> {
    let workload = Workload::make(count);
    let expected = workload.expected_checksums();
    let mut costs: BTreeMap<&'static str, Vec<Costs>> = BTreeMap::new();
    let mut view_costs = Vec::new();
    for _ in 0..bench.scale.run_count {
        let mut add = |name: &'static str, (found, each): (Checksums, Costs)| -> Result<()> {
            found.check(name, &expected)?;
            costs.entry(name).or_default().push(each);
            Ok(())
        };
        let (ours, sum) = stemma(&bench.scratch.fresh_path("encodings.stemma")?, &workload, bulk)?;
        add("stemma", ours)?;
        view_costs.push(sum);
        for strategy in Strategy::ALL {
            add(strategy.name(), lmdb(&bench.scratch.fresh_path("encodings.lmdb")?, strategy, &workload, bulk)?)?;
        }
        for (strategy, name) in STRATEGIES {
            add(name, bbolt(bolt, &bench.scratch.fresh_path("encodings.bolt")?, strategy, &workload, bulk)?)?;
        }
    }
    for (at, name) in names.iter().enumerate().filter(|(_, name)| bench.is_selected(name)).collect::<Vec<_>>() {
        let samples: BTreeMap<&str, Samples> =
            costs.iter().map(|(name, runs)| (*name, Samples::from_costs(runs.iter().map(|costs| costs[at])))).collect();
        let unit = if OPERATIONS[at] == "storage" { Unit::Amount("bytes/record") } else { Unit::Microseconds };
        let row = row(bench.heading(name, count, false, unit), &samples);
        if OPERATIONS[at] == "field sum" {
            bench.push(view_sum_row(bench, &view_costs, count, name, &samples[best_bolt(&row)]))?;
        }
        bench.push(row)?;
    }
    Ok(())
}

/// Returns the bbolt strategy with the lowest median.
fn best_bolt(row: &ResultRow) -> &str {
    let bolts = row.peers.iter().filter(|(name, _)| name.starts_with("bbolt-"));
    bolts.min_by(|(_, one), (_, other)| one.p50.total_cmp(&other.p50)).map_or("", |(name, _)| name)
}

/// Builds the row for the sum maintained by a view, with its build cost as a note.
fn view_sum_row(bench: &Bench, view_costs: &[ViewSumCost], count: u64, name: &str, best: &Samples) -> ResultRow {
    let making =
        Samples::from_costs(view_costs.iter().map(|view_costs| view_costs.making)).summary(Unit::Microseconds).p50;
    let name = name.replacen("field sum", "field sum by a view", 1);
    let heading = bench.heading(&name, count, false, Unit::Microseconds);
    let note = Some(format!("view built once, {making} us per record"));
    let heading = Heading { experiment: "encodings", targets: vec![(BEST, SUM_TARGET)], note, ..heading };
    ResultRow::new(
        heading,
        &Samples::from_costs(view_costs.iter().map(|view_costs| view_costs.asking)),
        &[(BEST, best)],
    )
}

fn row(heading: Heading, samples: &BTreeMap<&str, Samples>) -> ResultRow {
    let mut heading = Heading { experiment: "encodings", ..heading };
    let mut peers: Vec<(&str, &Samples)> =
        samples.iter().filter(|(name, _)| **name != "stemma").map(|(name, samples)| (*name, samples)).collect();
    if !heading.row.starts_with("field sum") {
        return ResultRow::new(heading, &samples["stemma"], &peers);
    }
    let row = ResultRow::new(heading.clone(), &samples["stemma"], &peers);
    peers.push((BEST, &samples[best_bolt(&row)]));
    heading.targets = vec![(BEST, SUM_TARGET)];
    ResultRow::new(heading, &samples["stemma"], &peers)
}

/// Returns the nanoseconds that `work` takes, and its result.
fn timed<T>(work: impl FnOnce() -> Result<T>) -> Result<(f64, T)> {
    let start = Instant::now();
    let result = work()?;
    Ok((start.elapsed().as_nanos() as f64, result))
}

fn per_record(totals: [f64; 6], workload: &Workload) -> Costs {
    let counts = workload.counts();
    std::array::from_fn(|at| totals[at] / counts[at] as f64)
}

fn id_of(number: u64) -> String {
    format!("{number:010}")
}

fn stemma(path: &Path, workload: &Workload, bulk: bool) -> Result<((Checksums, Costs), ViewSumCost)> {
    let open = || Database::open_with(path, Options::new().durability(Durability::None));
    let db = open()?;
    let (insert, ()) = timed(|| insert(&db, &workload.accounts, bulk))?;
    db.close()?;
    let bytes = allocated_bytes(path)? as f64;
    let db = open()?;
    let get = |id: &u64| -> Result<Account> {
        let document = db.get(&id_of(*id))?.ok_or_else(|| format!("record {id} is not there"))?;
        Ok(document.to()?)
    };
    let (read, accounts) = timed(|| workload.read.iter().map(get).collect::<Result<Vec<_>>>())?;
    let read_hash = hash(&accounts);
    let (first, count) = workload.many();
    let (many, accounts) = timed(|| {
        let listing = db.snapshot()?.list().from(Bound::Included(&id_of(first))).documents(true);
        let document = |listed: stemmadb::Result<stemmadb::Listed>| -> Result<Account> {
            Ok(listed?.document.ok_or("a listed document is not there")?.to()?)
        };
        listing.run().take(count).map(document).collect::<Result<Vec<_>>>()
    })?;
    let many_hash = hash(&accounts);
    let sum = || -> Result<f64> { Ok(db.find(Query::new(Selector::everything())).sum("balance")?.as_f64()) };
    let (field_sum, found_sum) = timed(sum)?;
    let view_costs = measure_view_sum(&db, workload, found_sum)?;
    let update = |(at, id): (usize, &u64)| -> Result<()> {
        let id = id_of(*id);
        let document = db.get(&id)?.ok_or("a record is not there")?;
        let account = Account { balance: new_balance(at), ..document.to()? };
        db.replace(&id, document.revision(), &account)?;
        Ok(())
    };
    let (update, ()) = timed(|| workload.updated.iter().enumerate().try_for_each(update))?;
    let found = Checksums { read_hash, many_hash, sum: found_sum, updated_sum: sum()? };
    db.close()?;
    Ok(((found, per_record([insert, read, many, field_sum, update, bytes], workload)), view_costs))
}

fn measure_view_sum(db: &Database, workload: &Workload, expected: f64) -> Result<ViewSumCost> {
    let name = "sums";
    let (making, ()) = timed(|| Ok(db.views().define(name, &Value::parse(VIEW)?)?.update()?))?;
    let view = db.views().open(name)?;
    let (asking, sum) = timed(|| Ok(view.query().reduce()?.and_then(|sum| sum.as_f64())))?;
    // The updates that follow must not pay for maintaining the view.
    db.views().remove(name)?;
    match sum {
        Some(sum) if sum == expected => {
            let count = workload.accounts.len() as f64;
            Ok(ViewSumCost { making: making / count, asking: asking / count })
        }
        sum => Err(format!("the view's sum is {sum:?}, not {expected}").into()),
    }
}

fn insert(db: &Database, accounts: &[Account], bulk: bool) -> Result<()> {
    if !bulk {
        return accounts
            .iter()
            .try_for_each(|account| Ok(db.insert(&id_of(account.id as u64), account).map(|_| ())?));
    }
    for chunk in accounts.chunks(BULK_COUNT) {
        let edit = |account: &Account| -> Result<Edit> {
            Ok(Edit::Insert { id: DocumentId::new(id_of(account.id as u64))?, body: Value::from_serialize(account)? })
        };
        for outcome in db.bulk(chunk.iter().map(edit).collect::<Result<_>>()?)? {
            outcome?;
        }
    }
    Ok(())
}

fn lmdb(path: &Path, strategy: Strategy, workload: &Workload, bulk: bool) -> Result<(Checksums, Costs)> {
    let store = Lmdb::open(path, strategy, false)?;
    let (insert, ()) = timed(|| store.insert(&workload.accounts, bulk))?;
    store.close();
    let bytes = allocated_bytes(&path.join("data.mdb"))? as f64;
    let store = Lmdb::open(path, strategy, false)?;
    let (read, accounts) = timed(|| workload.read.iter().map(|id| store.get(*id)).collect::<Result<Vec<_>>>())?;
    let read_hash = hash(&accounts);
    let (first, count) = workload.many();
    let (many, accounts) = timed(|| store.get_many(first, count))?;
    let record_count = workload.accounts.len() as u64;
    let (field_sum, sum) = timed(|| store.sum(record_count))?;
    let update = |(at, id): (usize, &u64)| store.set_balance(*id, new_balance(at));
    let (update, ()) = timed(|| workload.updated.iter().enumerate().try_for_each(update))?;
    let found = Checksums { read_hash, many_hash: hash(&accounts), sum, updated_sum: store.sum(record_count)? };
    store.close();
    Ok((found, per_record([insert, read, many, field_sum, update, bytes], workload)))
}

fn bbolt(bolt: &Bolt, path: &Path, strategy: &str, workload: &Workload, bulk: bool) -> Result<(Checksums, Costs)> {
    let outcome = bolt.run(path, strategy, workload, bulk)?;
    let found = Checksums {
        read_hash: outcome.read_hash,
        many_hash: outcome.many_hash,
        sum: f64::from_bits(outcome.sum_bits),
        updated_sum: f64::from_bits(outcome.updated_bits),
    };
    let totals = [outcome.insert, outcome.read, outcome.read_many, outcome.field_sum, outcome.update, outcome.bytes];
    Ok((found, per_record(totals.map(|total| total as f64), workload)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::ScratchDirectory;

    #[test]
    fn all_engines_return_the_expected_checksums() {
        let scratch = ScratchDirectory::new(None).unwrap();
        for count in [10, 300] {
            let workload = Workload::make(count);
            let expected = workload.expected_checksums();
            for bulk in [false, true] {
                stemma(&scratch.fresh_path("stemma").unwrap(), &workload, bulk)
                    .unwrap()
                    .0
                    .0
                    .check("stemma", &expected)
                    .unwrap();
                for strategy in Strategy::ALL {
                    let (found, costs) = lmdb(&scratch.fresh_path("lmdb").unwrap(), strategy, &workload, bulk).unwrap();
                    found.check(strategy.name(), &expected).unwrap();
                    assert!(costs.iter().all(|cost| *cost > 0.0));
                }
            }
        }
    }

    #[test]
    fn wrong_checksums_are_rejected() {
        let workload = Workload::make(100);
        let expected = workload.expected_checksums();
        let wrong = Checksums { sum: expected.sum + 0.01, ..workload.expected_checksums() };
        assert!(wrong.check("peer", &expected).unwrap_err().to_string().starts_with("peer found"));
        assert!(Checksums { many_hash: 1, ..workload.expected_checksums() }.check("peer", &expected).is_err());
    }
}
