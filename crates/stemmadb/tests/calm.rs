//! A long run in which nothing goes wrong: what a database that grows for long is like, which tests that are hostile never see.
//!
//! Documents are written, replaced and deleted until the log is so long, without flushes; then all is checked, and documents at random are
//! compared. `STEMMA_CALM_BYTES` says how long (short: 24 MiB; `just nightly-calm` does more than 4 GiB, so that places in it do not fit into 32
//! bits). Compaction goes on beside it, and once more at the end.

use std::collections::HashMap;
use std::time::Instant;

use stemmadb::testing::Random;
use stemmadb::{Database, Durability, Options, Value, field};

/// Edits of one transaction.
const TOGETHER: u64 = 500;

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// What a write left: its number tells the body.
fn body(number: u64) -> Value {
    let mut random = Random::new(number);
    let text: String = (0..200 + random.below(3000)).map(|_| char::from(b'a' + random.below(26) as u8)).collect();
    Value::parse(format!(r#"{{"number":{number},"group":{},"text":"{text}"}}"#, number % 97).as_bytes()).unwrap()
}

/// What is there, as it was written: the number of each document's newest body.
struct Model {
    random: Random,
    next: u64,
    there: HashMap<u64, u64>,
}

impl Model {
    /// One transaction of new documents, replacements and deletions.
    fn write(&mut self, db: &Database) {
        db.write(|tx| {
            for _ in 0..TOGETHER {
                self.next += 1;
                // Three of four are new or newer, the others of any age.
                let newest = self.next / 2 + 1;
                let document = if self.random.below(4) == 0 { self.random.below(newest) } else { newest };
                let id = format!("d{document:010}");
                if self.random.below(10) == 0 && self.there.contains_key(&document) {
                    let revision = *tx.get(&id)?.expect("it was written").revision();
                    tx.delete(&id, &revision)?;
                    self.there.remove(&document);
                } else {
                    tx.upsert(&id, &body(self.next))?;
                    self.there.insert(document, self.next);
                }
            }
            Ok(())
        })
        .unwrap();
    }

    /// Compares documents at random, and counts.
    fn verify(&mut self, db: &Database, count: u64) {
        for _ in 0..count {
            let document = self.random.below(self.next / 2 + 1);
            let found = db.get(&format!("d{document:010}")).unwrap().map(|found| found.value().unwrap());
            assert_eq!(found, self.there.get(&document).map(|number| body(*number)), "d{document:010}");
        }
        for group in [0, 31, 96] {
            let expected = self.there.values().filter(|number| **number % 97 == group).count() as u64;
            assert_eq!(db.find(field("group").eq(group)).count().unwrap(), expected, "group {group}");
        }
        assert_eq!(db.info().unwrap().document_count, self.there.len() as u64);
    }
}

#[test]
fn a_long_calm_run_ends_as_it_began() {
    let bytes = setting("STEMMA_CALM_BYTES", 24 << 20);
    let seed = setting("STEMMA_CALM_SEED", 1);
    let directory = tempfile::tempdir().unwrap();
    let options = || Options::new().durability(Durability::None);
    let db = Database::open_with(directory.path().join("db"), options()).unwrap();
    let mut model = Model { random: Random::new(seed), next: 0, there: HashMap::new() };
    let begun = Instant::now();
    let mut transaction_count = 0_u64;
    while db.info().unwrap().log_bytes < bytes {
        model.write(&db);
        transaction_count += 1;
        if transaction_count.is_multiple_of(1000) {
            model.verify(&db, 200);
        }
    }
    let wrote = begun.elapsed();
    let grown = db.info().unwrap();
    model.verify(&db, 2000);
    db.close().unwrap();
    let opening = Instant::now();
    let db = Database::open_with(directory.path().join("db"), options()).unwrap();
    let opened = opening.elapsed();
    model.verify(&db, 2000);
    let checking = Instant::now();
    let report = db.maintenance().check().unwrap();
    assert!(report.is_sound(), "{:#?}", report.damages);
    let checked = checking.elapsed();
    db.maintenance().compact().unwrap();
    model.verify(&db, 2000);
    println!(
        "calm, seed {seed}: {} MiB of log, {} edits, {} documents, {:.0} s to write, {:.1} s to open, {:.0} s to check, {} MiB after compaction: sound",
        grown.log_bytes >> 20,
        model.next,
        model.there.len(),
        wrote.as_secs_f64(),
        opened.as_secs_f64(),
        checked.as_secs_f64(),
        db.info().unwrap().log_bytes >> 20
    );
}
