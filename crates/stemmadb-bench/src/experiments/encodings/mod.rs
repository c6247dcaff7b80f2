//! The BoltDB study: six ways to keep a record of 15 fields, on bbolt and on LMDB, beside Stemma, which indexes all of them meanwhile.
//!
//! Whoever takes part inserts the same records (each in a transaction of its own, or in bulk), reads half as many at random, a third from the middle on in
//! order, sums one field of all, and changes that field of half as many at random. All that was read is hashed, and compared.

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
use crate::harness::{Heading, Random, Row, Samples, Unit, allocated_bytes};
use crate::workload::Account;
use bolt::{Bolt, STRATEGIES};
use encode::{Strategy, to_binary};
use lmdb::Lmdb;

/// What FieldSum should be faster by than bbolt's best.
const SUM_TARGET: f64 = 5.0;
const BEST: &str = "bbolt's best";
/// Documents of a transaction of ours in bulk: it is one frame of the log.
const BULK_COUNT: usize = 10_000;
/// Up to so many records everything is repeated.
const REPEATED_MAX: u64 = 100_000;

/// Stemma keeps a sum by a view, if it is told to.
const VIEW: &str = r#"{"key": "is_active", "value": "balance", "reduce": "_sum"}"#;

const OPERATIONS: [&str; 6] = ["insert", "read", "read many", "field sum", "update", "storage"];

pub(super) fn run(bench: &mut Bench) -> Result<()> {
    let bulks = [(false, "single"), (true, "bulk")];
    let mut bolt = None;
    for &count in bench.scale.record_counts {
        for (bulk, mode) in bulks {
            let names = OPERATIONS.map(|operation| format!("{operation}, inserted {mode}"));
            if !names.iter().any(|name| bench.wants(name)) {
                continue;
            }
            let bolt = match &bolt {
                Some(bolt) => bolt,
                None => bolt.insert(Bolt::build(&bench.place.fresh("bolt")?)?),
            };
            rows(bench, bolt, count, bulk, &names)?;
        }
    }
    Ok(())
}

/// What the sum takes where a view keeps it: to make the view and then to ask it, in nanoseconds per record.
#[derive(Clone, Copy)]
struct Kept {
    making: f64,
    asking: f64,
}

/// The records, and which are read and changed.
struct Work {
    accounts: Vec<Account>,
    read: Vec<u64>,
    updated: Vec<u64>,
}

/// What there is to be found.
#[derive(Debug, PartialEq)]
struct Found {
    read_hash: u64,
    many_hash: u64,
    sum: f64,
    updated_sum: f64,
}

/// What one run of one contender came to: nanoseconds per record of each operation, then bytes per record, as [`OPERATIONS`] are.
type Costs = [f64; 6];

impl Work {
    fn make(count: u64) -> Self {
        let mut random = Random::new(SEED ^ count);
        let mut ids = || (0..(count / 2).max(1)).map(|_| random.below(count)).collect();
        let (read, updated) = (ids(), ids());
        Work { accounts: (0..count).map(|number| Account::new(SEED, number)).collect(), read, updated }
    }

    fn many(&self) -> (u64, usize) {
        (self.accounts.len() as u64 / 2, self.accounts.len() / 3)
    }

    /// What the records themselves say.
    fn truth(&self) -> Found {
        let read: Vec<&Account> = self.read.iter().map(|id| &self.accounts[*id as usize]).collect();
        let (first, many) = self.many();
        let mut balances: Vec<f64> = self.accounts.iter().map(|account| account.balance).collect();
        let sum = balances.iter().sum();
        for (at, id) in self.updated.iter().enumerate() {
            balances[*id as usize] = new_balance(at);
        }
        Found {
            read_hash: hash(read),
            many_hash: hash(&self.accounts[first as usize..first as usize + many]),
            sum,
            updated_sum: balances.iter().sum(),
        }
    }

    /// How many records each operation is about; storage is about all.
    fn counts(&self) -> [usize; 6] {
        let all = self.accounts.len();
        [all, self.read.len(), self.many().1.max(1), all, self.updated.len(), all]
    }
}

fn new_balance(at: usize) -> f64 {
    at as f64 + 0.5
}

/// FNV-1a of records in the form of the strategy `binary`.
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

impl Found {
    /// Refuses what is not the truth. A sum may be rounded once where others round each time.
    fn check(&self, name: &str, truth: &Found) -> Result<()> {
        let near = |one: f64, other: f64| (one - other).abs() <= 1e-9 * other.abs();
        let hashes = (self.read_hash, self.many_hash) == (truth.read_hash, truth.many_hash);
        if hashes && near(self.sum, truth.sum) && near(self.updated_sum, truth.updated_sum) {
            return Ok(());
        }
        Err(format!("{name} found {self:?}, not {truth:?}").into())
    }
}

fn rows(bench: &mut Bench, bolt: &Bolt, count: u64, bulk: bool, names: &[String; 6]) -> Result<()> {
    let work = Work::make(count);
    let truth = work.truth();
    let mut costs: BTreeMap<&'static str, Vec<Costs>> = BTreeMap::new();
    let mut kept = Vec::new();
    let repetition_count = if count <= REPEATED_MAX { bench.scale.repetition_count } else { 1 };
    for _ in 0..repetition_count {
        let mut add = |name: &'static str, (found, each): (Found, Costs)| -> Result<()> {
            found.check(name, &truth)?;
            costs.entry(name).or_default().push(each);
            Ok(())
        };
        let (ours, sum) = stemma(&bench.place.fresh("encodings.stemma")?, &work, bulk)?;
        add("stemma", ours)?;
        kept.push(sum);
        for strategy in Strategy::ALL {
            add(strategy.name(), lmdb(&bench.place.fresh("encodings.lmdb")?, strategy, &work, bulk)?)?;
        }
        for (strategy, name) in STRATEGIES {
            add(name, bbolt(bolt, &bench.place.fresh("encodings.bolt")?, strategy, &work, bulk)?)?;
        }
    }
    for (at, name) in names.iter().enumerate().filter(|(_, name)| bench.wants(name)).collect::<Vec<_>>() {
        let samples: BTreeMap<&str, Samples> =
            costs.iter().map(|(name, runs)| (*name, Samples::of(runs.iter().map(|costs| costs[at])))).collect();
        let unit = if OPERATIONS[at] == "storage" { Unit::Amount("bytes/record") } else { Unit::Microseconds };
        let row = row(bench.heading(name, count, false, unit), &samples);
        if OPERATIONS[at] == "field sum" {
            bench.push(row_of_view(bench, &kept, count, name, &samples[best_bolt(&row)]))?;
        }
        bench.push(row)?;
    }
    Ok(())
}

/// Who of bbolt's strategies is the best of a row.
fn best_bolt(row: &Row) -> &str {
    let bolts = row.peers.iter().filter(|(name, _)| name.starts_with("bbolt-"));
    bolts.min_by(|(_, one), (_, other)| one.p50.total_cmp(&other.p50)).map_or("", |(name, _)| name)
}

/// The sum where a view keeps it, which costs something before it is asked for.
fn row_of_view(bench: &Bench, kept: &[Kept], count: u64, name: &str, best: &Samples) -> Row {
    let making = Samples::of(kept.iter().map(|kept| kept.making)).summary(Unit::Microseconds).p50;
    let name = name.replacen("field sum", "field sum kept by a view", 1);
    let heading = bench.heading(&name, count, false, Unit::Microseconds);
    let note = Some(format!("made once, at {making} us a record"));
    let heading = Heading { experiment: "encodings", targets: vec![(BEST, SUM_TARGET)], note, ..heading };
    Row::new(heading, &Samples::of(kept.iter().map(|kept| kept.asking)), &[(BEST, best)])
}

fn row(heading: Heading, samples: &BTreeMap<&str, Samples>) -> Row {
    let mut heading = Heading { experiment: "encodings", ..heading };
    let mut peers: Vec<(&str, &Samples)> =
        samples.iter().filter(|(name, _)| **name != "stemma").map(|(name, samples)| (*name, samples)).collect();
    if !heading.row.starts_with("field sum") {
        return Row::new(heading, &samples["stemma"], &peers);
    }
    let row = Row::new(heading.clone(), &samples["stemma"], &peers);
    peers.push((BEST, &samples[best_bolt(&row)]));
    heading.targets = vec![(BEST, SUM_TARGET)];
    Row::new(heading, &samples["stemma"], &peers)
}

/// Nanoseconds that `work` takes, and what it comes to.
fn timed<T>(work: impl FnOnce() -> Result<T>) -> Result<(f64, T)> {
    let start = Instant::now();
    let result = work()?;
    Ok((start.elapsed().as_nanos() as f64, result))
}

fn per_record(totals: [f64; 6], work: &Work) -> Costs {
    let counts = work.counts();
    std::array::from_fn(|at| totals[at] / counts[at] as f64)
}

fn id_of(number: u64) -> String {
    format!("{number:010}")
}

fn stemma(path: &Path, work: &Work, bulk: bool) -> Result<((Found, Costs), Kept)> {
    let open = || Database::open_with(path, Options::new().durability(Durability::None));
    let db = open()?;
    let (insert, ()) = timed(|| insert(&db, &work.accounts, bulk))?;
    db.close()?;
    let bytes = allocated_bytes(path)? as f64;
    let db = open()?;
    let get = |id: &u64| -> Result<Account> {
        let document = db.get(&id_of(*id))?.ok_or_else(|| format!("record {id} is not there"))?;
        Ok(document.to()?)
    };
    let (read, accounts) = timed(|| work.read.iter().map(get).collect::<Result<Vec<_>>>())?;
    let read_hash = hash(&accounts);
    let (first, count) = work.many();
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
    let kept = keep_sum(&db, work, found_sum)?;
    let update = |(at, id): (usize, &u64)| -> Result<()> {
        let id = id_of(*id);
        let document = db.get(&id)?.ok_or("a record is not there")?;
        let account = Account { balance: new_balance(at), ..document.to()? };
        db.replace(&id, document.revision(), &account)?;
        Ok(())
    };
    let (update, ()) = timed(|| work.updated.iter().enumerate().try_for_each(update))?;
    let found = Found { read_hash, many_hash, sum: found_sum, updated_sum: sum()? };
    db.close()?;
    Ok(((found, per_record([insert, read, many, field_sum, update, bytes], work)), kept))
}

fn keep_sum(db: &Database, work: &Work, expected: f64) -> Result<Kept> {
    let name = "sums";
    let (making, ()) = timed(|| Ok(db.views().define(name, &Value::parse(VIEW)?)?.update()?))?;
    let view = db.views().open(name)?;
    let (asking, sum) = timed(|| Ok(view.query().reduce()?.and_then(|sum| sum.as_f64())))?;
    // Or the updates that follow would pay for it.
    db.views().remove(name)?;
    match sum {
        Some(sum) if sum == expected => {
            let count = work.accounts.len() as f64;
            Ok(Kept { making: making / count, asking: asking / count })
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
    for some in accounts.chunks(BULK_COUNT) {
        let edit = |account: &Account| -> Result<Edit> {
            Ok(Edit::Insert { id: DocumentId::new(id_of(account.id as u64))?, body: Value::from_serialize(account)? })
        };
        for outcome in db.bulk(some.iter().map(edit).collect::<Result<_>>()?)? {
            outcome?;
        }
    }
    Ok(())
}

fn lmdb(path: &Path, strategy: Strategy, work: &Work, bulk: bool) -> Result<(Found, Costs)> {
    let store = Lmdb::open(path, strategy, false)?;
    let (insert, ()) = timed(|| store.insert(&work.accounts, bulk))?;
    store.close();
    let bytes = allocated_bytes(&path.join("data.mdb"))? as f64;
    let store = Lmdb::open(path, strategy, false)?;
    let (read, accounts) = timed(|| work.read.iter().map(|id| store.get(*id)).collect::<Result<Vec<_>>>())?;
    let read_hash = hash(&accounts);
    let (first, count) = work.many();
    let (many, accounts) = timed(|| store.get_many(first, count))?;
    let record_count = work.accounts.len() as u64;
    let (field_sum, sum) = timed(|| store.sum(record_count))?;
    let update = |(at, id): (usize, &u64)| store.set_balance(*id, new_balance(at));
    let (update, ()) = timed(|| work.updated.iter().enumerate().try_for_each(update))?;
    let found = Found { read_hash, many_hash: hash(&accounts), sum, updated_sum: store.sum(record_count)? };
    store.close();
    Ok((found, per_record([insert, read, many, field_sum, update, bytes], work)))
}

fn bbolt(bolt: &Bolt, path: &Path, strategy: &str, work: &Work, bulk: bool) -> Result<(Found, Costs)> {
    let outcome = bolt.run(path, strategy, work, bulk)?;
    let found = Found {
        read_hash: outcome.read_hash,
        many_hash: outcome.many_hash,
        sum: f64::from_bits(outcome.sum_bits),
        updated_sum: f64::from_bits(outcome.updated_bits),
    };
    let totals = [outcome.insert, outcome.read, outcome.read_many, outcome.field_sum, outcome.update, outcome.bytes];
    Ok((found, per_record(totals.map(|total| total as f64), work)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::Place;

    #[test]
    fn ours_and_every_strategy_find_what_is_there() {
        let place = Place::new(None).unwrap();
        for count in [10, 300] {
            let work = Work::make(count);
            let truth = work.truth();
            for bulk in [false, true] {
                stemma(&place.fresh("stemma").unwrap(), &work, bulk).unwrap().0.0.check("stemma", &truth).unwrap();
                for strategy in Strategy::ALL {
                    let (found, costs) = lmdb(&place.fresh("lmdb").unwrap(), strategy, &work, bulk).unwrap();
                    found.check(strategy.name(), &truth).unwrap();
                    assert!(costs.iter().all(|cost| *cost > 0.0));
                }
            }
        }
    }

    #[test]
    fn a_wrong_answer_is_refused() {
        let work = Work::make(100);
        let truth = work.truth();
        let wrong = Found { sum: truth.sum + 0.01, ..work.truth() };
        assert!(wrong.check("peer", &truth).unwrap_err().to_string().starts_with("peer found"));
        assert!(Found { many_hash: 1, ..work.truth() }.check("peer", &truth).is_err());
    }
}
