//! Serializability: histories of concurrent transactions are searched for what no serial order explains.
//!
//! Eight threads run transactions of both kinds, each of which appends unique values to lists and reads lists, adds
//! members to groups and queries the members of a group. The results imply a partial order: of two appends to a list,
//! the one whose value comes first precedes the other; the writer of a value precedes its readers; a reader that did
//! not see a value precedes its writer; and a transaction that ended before another started precedes it. A cycle in
//! this order is a history that no serial order explains: a lost update, write skew, a phantom or a stale read. (The
//! method of Elle: Kingsbury and Alvaro, 2020.)
//!
//! `STEMMA_HISTORY_SECONDS` sets the duration (`just nightly-serializability`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Barrier, Mutex};
use std::time::{Duration, Instant};

use serde_json::json;
use stemmadb::testing::{Random, TestStorage, optimistic_unchecked};
use stemmadb::{Attempt, Database, Durability, ErrorKind, Options, Result, Transaction, Value, field};

const LIST_COUNT: u64 = 6;
const GROUP_COUNT: u64 = 4;
const THREAD_COUNT: u64 = 8;

/// The operations, results and times of one transaction.
#[derive(Clone, Debug, Default)]
struct Record {
    begin: u64,
    end: u64,
    appended: Vec<(u64, u64)>,
    lists: Vec<(u64, Vec<u64>)>,
    joined: Vec<(u64, u64)>,
    groups: Vec<(u64, BTreeSet<u64>)>,
}

/// Both kinds of transactions.
trait TransactionOps {
    fn list(&mut self, list: u64) -> Result<Vec<u64>>;
    fn put_list(&mut self, list: u64, values: &[u64]) -> Result<()>;
    fn group(&mut self, group: u64) -> Result<BTreeSet<u64>>;
    fn join(&mut self, group: u64, member: u64) -> Result<()>;
}

fn numbers(document: Option<stemmadb::Document>) -> Result<Vec<u64>> {
    let Some(document) = document else { return Ok(Vec::new()) };
    let values = document.get("values")?;
    Ok(values.iter().flat_map(Value::as_array).flatten().filter_map(Value::as_u64).collect())
}

fn members(found: stemmadb::Find) -> Result<BTreeSet<u64>> {
    found
        .documents()?
        .iter()
        .map(|found| Ok(found.get("member")?.and_then(|member| member.as_u64()).unwrap()))
        .collect()
}

impl TransactionOps for Transaction<'_> {
    fn list(&mut self, list: u64) -> Result<Vec<u64>> {
        numbers(self.get(&format!("list:{list}"))?)
    }

    fn put_list(&mut self, list: u64, values: &[u64]) -> Result<()> {
        self.upsert(&format!("list:{list}"), &json!({"values": values})).map(|_| ())
    }

    fn group(&mut self, group: u64) -> Result<BTreeSet<u64>> {
        members(self.snapshot()?.find(field("group").eq(group)))
    }

    fn join(&mut self, group: u64, member: u64) -> Result<()> {
        self.insert(&format!("member:{member}"), &json!({"group": group, "member": member})).map(|_| ())
    }
}

impl TransactionOps for Attempt<'_> {
    fn list(&mut self, list: u64) -> Result<Vec<u64>> {
        numbers(self.get(&format!("list:{list}"))?)
    }

    fn put_list(&mut self, list: u64, values: &[u64]) -> Result<()> {
        self.upsert(&format!("list:{list}"), &json!({"values": values})).map(|_| ())
    }

    fn group(&mut self, group: u64) -> Result<BTreeSet<u64>> {
        members(self.find(field("group").eq(group))?)
    }

    fn join(&mut self, group: u64, member: u64) -> Result<()> {
        self.insert(&format!("member:{member}"), &json!({"group": group, "member": member})).map(|_| ())
    }
}

/// Performs up to four random steps. Values are never reused, even when a transaction is retried.
fn steps(tx: &mut dyn TransactionOps, seed: u64, next_value: &AtomicU64) -> Result<Record> {
    let mut random = Random::new(seed);
    let mut record = Record::default();
    for _ in 0..1 + random.below(4) {
        let (list, group) = (random.below(LIST_COUNT), random.below(GROUP_COUNT));
        match random.below(4) {
            0 => record.lists.push((list, tx.list(list)?)),
            1 => record.groups.push((group, tx.group(group)?)),
            2 => {
                let value = next_value.fetch_add(1, Ordering::Relaxed);
                let mut values = tx.list(list)?;
                record.lists.push((list, values.clone()));
                values.push(value);
                tx.put_list(list, &values)?;
                record.appended.push((list, value));
            }
            _ => {
                let member = next_value.fetch_add(1, Ordering::Relaxed);
                tx.join(group, member)?;
                record.joined.push((group, member));
            }
        }
    }
    Ok(record)
}

/// The precedence graph.
#[derive(Default)]
struct Order {
    after: Vec<BTreeSet<usize>>,
}

impl Order {
    fn add(&mut self, first: usize, second: usize) {
        if first != second {
            self.after[first].insert(second);
        }
    }

    /// Builds the precedence graph implied by `records`, given the final lists and groups.
    fn of(records: &[Record], lists: &BTreeMap<u64, Vec<u64>>, groups: &BTreeMap<u64, BTreeSet<u64>>) -> Order {
        // Each record has an additional node for its end: transactions that ended before it precede the node, and the
        // node precedes everything that starts later.
        let count = records.len();
        let mut order = Order { after: vec![BTreeSet::new(); 2 * count] };
        order.add_times(records);
        let mut writers = BTreeMap::new();
        for (at, record) in records.iter().enumerate() {
            writers.extend(record.appended.iter().chain(&record.joined).map(|(_, value)| (*value, at)));
        }
        let writer = |value: &u64| writers.get(value).copied();
        for values in lists.values() {
            for pair in values.windows(2) {
                if let (Some(first), Some(second)) = (writer(&pair[0]), writer(&pair[1])) {
                    order.add(first, second);
                }
            }
        }
        for (at, record) in records.iter().enumerate() {
            for (list, seen) in &record.lists {
                let all = lists.get(list).map_or(&[][..], Vec::as_slice);
                assert!(is_prefix(seen, all, record), "list {list} was read as {seen:?}, and is {all:?}");
                let (before, after) = all.split_at(seen.iter().take_while(|value| all.contains(value)).count());
                before.last().and_then(writer).into_iter().for_each(|first| order.add(first, at));
                after.first().and_then(writer).into_iter().for_each(|second| order.add(at, second));
            }
            for (group, seen) in &record.groups {
                for value in groups.get(group).into_iter().flatten() {
                    match (writer(value), seen.contains(value)) {
                        (Some(first), true) => order.add(first, at),
                        (Some(second), false) => order.add(at, second),
                        (None, _) => {}
                    }
                }
            }
        }
        order
    }

    fn add_times(&mut self, records: &[Record]) {
        let count = records.len();
        let mut by_end: Vec<usize> = (0..count).collect();
        by_end.sort_by_key(|at| records[*at].end);
        for (rank, at) in by_end.iter().enumerate() {
            self.add(*at, count + rank);
            if rank > 0 {
                self.add(count + rank - 1, count + rank);
            }
        }
        for (at, record) in records.iter().enumerate() {
            let ended = by_end.partition_point(|other| records[*other].end < record.begin);
            if ended > 0 {
                self.add(count + ended - 1, at);
            }
        }
    }

    /// The nodes on cycles; empty if a serial order exists.
    fn cycle(&self) -> Vec<usize> {
        let mut waiting = vec![0; self.after.len()];
        self.after.iter().flatten().for_each(|second| waiting[*second] += 1);
        let mut free: Vec<usize> = (0..waiting.len()).filter(|at| waiting[*at] == 0).collect();
        let mut done = vec![false; waiting.len()];
        while let Some(first) = free.pop() {
            done[first] = true;
            for second in &self.after[first] {
                waiting[*second] -= 1;
                if waiting[*second] == 0 {
                    free.push(*second);
                }
            }
        }
        (0..done.len()).filter(|at| !done[*at]).collect()
    }
}

/// Whether `seen` is a prefix of the list, except for values that the transaction itself appended later.
fn is_prefix(seen: &[u64], all: &[u64], record: &Record) -> bool {
    let own: BTreeSet<u64> = record.appended.iter().map(|(_, value)| *value).collect();
    seen.len() <= all.len() && seen.iter().zip(all).all(|(seen, is)| seen == is || own.contains(seen))
}

/// The transactions that no serial order explains.
fn unexplained(db: &Database, records: &[Record]) -> Result<Vec<usize>> {
    let lists = (0..LIST_COUNT)
        .map(|list| Ok((list, numbers(db.get(&format!("list:{list}"))?)?)))
        .collect::<Result<BTreeMap<_, _>>>()?;
    let groups = (0..GROUP_COUNT)
        .map(|group| Ok((group, members(db.find(field("group").eq(group)))?)))
        .collect::<Result<BTreeMap<_, _>>>()?;
    Ok(Order::of(records, &lists, &groups).cycle())
}

#[test]
fn random_histories_are_serializable() {
    let seconds = std::env::var("STEMMA_HISTORY_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(2);
    let seed = std::env::var("STEMMA_HISTORY_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    let until = Instant::now() + Duration::from_secs(seconds);
    let mut round = 0;
    let (mut record_count, mut retry_count) = (0, 0);
    while round == 0 || Instant::now() < until {
        let directory = tempfile::tempdir().unwrap();
        let options = stemmadb::testing::with_small_limits(Options::new(), 64 << 10, 1 << 20, 100);
        let db = Database::open_with(directory.path().join("history.stemma"), options).unwrap();
        let (records, retried) = run(&db, seed + round);
        let cycle = unexplained(&db, &records).unwrap();
        let shown: Vec<_> = cycle.iter().filter_map(|at| records.get(*at)).take(20).collect();
        assert!(cycle.is_empty(), "seed {}: no order explains {shown:#?}", seed + round);
        record_count += records.len();
        retry_count += retried;
        round += 1;
    }
    assert!(record_count > 100 && retry_count > 0, "{record_count} transactions, {retry_count} tried again");
    println!("{round} histories of {THREAD_COUNT} threads: {record_count} transactions, {retry_count} tried again");
}

/// Runs transactions on all threads; returns their records and the number of retries.
fn run(db: &Database, seed: u64) -> (Vec<Record>, u64) {
    let (records, clock, next_value) = (Mutex::new(Vec::new()), AtomicU64::new(1), AtomicU64::new(1));
    let attempt_count = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..THREAD_COUNT {
            let (records, clock, next_value, attempt_count) = (&records, &clock, &next_value, &attempt_count);
            scope.spawn(move || {
                let mut random = Random::new(seed << 8 | thread);
                for _ in 0..60 {
                    let steps_seed = random.below(u64::MAX);
                    let durability = if random.below(4) == 0 { Durability::Sync } else { Durability::None };
                    let begin = clock.fetch_add(1, Ordering::SeqCst);
                    let record = match random.below(3) {
                        0 => db.with_durability(durability).write(|tx| steps(tx, steps_seed, next_value)).unwrap(),
                        _ => {
                            attempt_count.fetch_sub(1, Ordering::Relaxed);
                            let work = |tx: &mut Attempt<'_>| {
                                attempt_count.fetch_add(1, Ordering::Relaxed);
                                steps(tx, steps_seed, next_value)
                            };
                            db.with_durability(durability).optimistic(work).unwrap()
                        }
                    };
                    let end = clock.fetch_add(1, Ordering::SeqCst);
                    records.lock().unwrap().push(Record { begin, end, ..record });
                }
            });
        }
    });
    (records.into_inner().unwrap(), attempt_count.into_inner())
}

/// Two concurrent transactions that each read what the other writes: write skew, unless reads are checked.
fn run_write_skew(db: &Database, is_checked: bool, by_query: bool) -> Vec<usize> {
    let (records, clock, next_value) = (Mutex::new(Vec::new()), AtomicU64::new(1), AtomicU64::new(1));
    let both_read = Barrier::new(2);
    std::thread::scope(|scope| {
        for me in 0..2 {
            let (records, clock, next_value, both_read) = (&records, &clock, &next_value, &both_read);
            scope.spawn(move || {
                let mut is_first = true;
                let work = |tx: &mut Attempt<'_>| {
                    let value = next_value.fetch_add(1, Ordering::Relaxed);
                    let mut record = Record::default();
                    match by_query {
                        true => record.groups.push((1 - me, tx.group(1 - me)?)),
                        false => record.lists.push((1 - me, tx.list(1 - me)?)),
                    }
                    if std::mem::take(&mut is_first) {
                        both_read.wait();
                    }
                    match by_query {
                        true => {
                            tx.join(me, value)?;
                            record.joined.push((me, value));
                        }
                        false => {
                            let mut values = tx.list(me)?;
                            values.push(value);
                            tx.put_list(me, &values)?;
                            record.appended.push((me, value));
                        }
                    }
                    Ok(record)
                };
                let begin = clock.fetch_add(1, Ordering::SeqCst);
                let record = match is_checked {
                    true => db.with_durability(Durability::None).optimistic(work),
                    false => optimistic_unchecked(db, work),
                };
                let end = clock.fetch_add(1, Ordering::SeqCst);
                records.lock().unwrap().push(Record { begin, end, ..record.unwrap() });
            });
        }
    });
    unexplained(db, &records.into_inner().unwrap()).unwrap()
}

#[test]
fn write_skew_is_detected_without_read_checks() {
    for by_query in [false, true] {
        assert!(!run_write_skew(&Database::in_memory(), false, by_query).is_empty(), "by query: {by_query}");
        assert!(run_write_skew(&Database::in_memory(), true, by_query).is_empty(), "by query: {by_query}");
    }
}

#[test]
fn lost_update_is_a_cycle() {
    let records = [
        Record { begin: 1, end: 5, lists: vec![(0, vec![])], appended: vec![(0, 1)], ..Record::default() },
        Record { begin: 2, end: 6, lists: vec![(0, vec![])], appended: vec![(0, 2)], ..Record::default() },
    ];
    let lists = BTreeMap::from([(0, vec![1, 2])]);
    assert!(!Order::of(&records, &lists, &BTreeMap::new()).cycle().is_empty());
    // Reading the other's value is no cycle; not reading it although the other had ended is one.
    let mut read = records.clone();
    read[1].lists = vec![(0, vec![1])];
    assert!(Order::of(&read, &lists, &BTreeMap::new()).cycle().is_empty());
    let mut stale = records.clone();
    stale[1] = Record { begin: 7, end: 8, lists: vec![(0, vec![])], ..Record::default() };
    assert!(!Order::of(&stale, &BTreeMap::from([(0, vec![1])]), &BTreeMap::new()).cycle().is_empty());
}

/// Found by random histories: a transaction under the writer lock sees writes that still wait for the disk. A
/// transaction that only read such a write, or failed because of it, returned before the write was visible to others
/// and durable.
#[test]
fn values_read_by_a_transaction_are_visible_to_all() {
    let place = TestStorage::new(1);
    place.disk().slow_syncs(Duration::from_millis(50));
    let db = place.open(Options::new()).unwrap();
    for round in 0..4 {
        let id = format!("slow:{round}");
        std::thread::scope(|scope| {
            scope.spawn(|| db.insert(&id, &json!({})).unwrap());
            match round % 2 {
                0 => while !db.write(|tx| Ok(tx.get(&id)?.is_some())).unwrap() {},
                _ => {
                    while db
                        .write(|tx| tx.delete(&id, &"1-00000000000000000000000000000000".parse()?))
                        .unwrap_err()
                        .kind()
                        != ErrorKind::Conflict
                    {}
                }
            }
            assert!(db.get(&id).unwrap().is_some());
        });
    }
}

#[test]
fn nested_write_on_the_same_thread_is_rejected() {
    let db = Database::in_memory();
    let error = db.write(|_| db.insert("a", &json!({}))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    db.optimistic(|_| db.insert("a", &json!({}))).unwrap();
    db.write(|tx| tx.upsert("a", &json!({"again": true}))).unwrap();
}

#[test]
fn optimistic_transaction_reads_its_writes_and_eventually_gives_up() {
    let db = Database::in_memory();
    db.insert("a", &json!({"n": 1})).unwrap();
    db.optimistic(|tx| {
        tx.insert("b", &json!({"n": 2}))?;
        assert_eq!(tx.find(field("n").ge(1))?.count()?, 2);
        assert_eq!(tx.insert("b", &json!({})).unwrap_err().kind(), ErrorKind::Conflict);
        let revision = *tx.get("b")?.unwrap().revision();
        tx.delete("b", &revision)?;
        assert!(tx.get("b")?.is_none());
        tx.insert("c", &json!({"n": 3}))
    })
    .unwrap();
    assert!(db.get("b").unwrap().is_none() && db.get("c").unwrap().is_some());

    let mut attempt_count = 0;
    let given_up = db.optimistic(|tx| {
        attempt_count += 1;
        tx.get("a")?;
        db.upsert("a", &json!({"n": attempt_count}))?;
        tx.upsert("d", &json!({}))
    });
    assert_eq!(given_up.unwrap_err().kind(), ErrorKind::Conflict);
    assert!(attempt_count > 10 && db.get("d").unwrap().is_none());
}

/// An optimistic transaction reads one state: later writes by others are invisible, whatever it has written itself.
#[test]
fn optimistic_transaction_sees_one_state_after_writing() {
    let db = Database::in_memory();
    db.insert("there", &json!({"n": 1})).unwrap();
    let mut runs = 0;
    db.optimistic(|tx| {
        runs += 1;
        tx.insert(&format!("mine:{runs}"), &json!({"n": 1}))?;
        if runs == 1 {
            for other in ["a", "b", "c"] {
                db.insert(other, &json!({"n": 1})).unwrap();
            }
            assert_eq!(tx.find(field("n").eq(1))?.count()?, 2);
            assert_eq!(tx.find(field("_id").one_of(["a", "b", "c"]))?.count()?, 0);
        }
        Ok(())
    })
    .unwrap();
    assert_eq!(runs, 2);
}
