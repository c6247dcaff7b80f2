//! Long fault-free run: growth of a database over time, which the fault-injecting tests never reach.
//!
//! Writes, replaces and deletes documents, without flushes, until the log has the requested size; then runs a full
//! check and compares random documents. `STEMMA_CALM_BYTES` sets the size (short: 24 MiB; `just nightly-calm` writes
//! more than 4 GiB, so that log positions exceed 32 bits). Compaction runs in the background, and once more at the end.

use std::collections::HashMap;
use std::time::Instant;

use stemmadb::testing::Random;
use stemmadb::{Database, Durability, Options, Value, field};

/// Edits per transaction.
const TOGETHER: u64 = 500;

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// The body of write `number`.
fn body(number: u64) -> Value {
    let mut random = Random::new(number);
    let text: String = (0..200 + random.below(3000)).map(|_| char::from(b'a' + random.below(26) as u8)).collect();
    Value::parse(format!(r#"{{"number":{number},"group":{},"text":"{text}"}}"#, number % 97).as_bytes()).unwrap()
}

/// The expected content: the number of each document's newest body.
struct Model {
    random: Random,
    next: u64,
    documents: HashMap<u64, u64>,
}

impl Model {
    /// Writes one transaction of new documents, replacements and deletions.
    fn write(&mut self, db: &Database) {
        db.write(|tx| {
            for _ in 0..TOGETHER {
                self.next += 1;
                // Three of four edits concern the newest document, the others one of any age.
                let newest = self.next / 2 + 1;
                let document = if self.random.below(4) == 0 { self.random.below(newest) } else { newest };
                let id = format!("d{document:010}");
                if self.random.below(10) == 0 && self.documents.contains_key(&document) {
                    let revision = *tx.get(&id)?.expect("the document exists").revision();
                    tx.delete(&id, &revision)?;
                    self.documents.remove(&document);
                } else {
                    tx.upsert(&id, &body(self.next))?;
                    self.documents.insert(document, self.next);
                }
            }
            Ok(())
        })
        .unwrap();
    }

    /// Compares random documents and some counts.
    fn verify(&mut self, db: &Database, count: u64) {
        for _ in 0..count {
            let document = self.random.below(self.next / 2 + 1);
            let found = db.get(&format!("d{document:010}")).unwrap().map(|found| found.value().unwrap());
            assert_eq!(found, self.documents.get(&document).map(|number| body(*number)), "d{document:010}");
        }
        for group in [0, 31, 96] {
            let expected = self.documents.values().filter(|number| **number % 97 == group).count() as u64;
            assert_eq!(db.find(field("group").eq(group)).count().unwrap(), expected, "group {group}");
        }
        assert_eq!(db.info().unwrap().document_count, self.documents.len() as u64);
    }
}

#[test]
fn long_fault_free_run_keeps_every_document() {
    let bytes = setting("STEMMA_CALM_BYTES", 24 << 20);
    let seed = setting("STEMMA_CALM_SEED", 1);
    let directory = tempfile::tempdir().unwrap();
    let options = || Options::new().durability(Durability::None);
    let db = Database::open_with(directory.path().join("db"), options()).unwrap();
    let mut model = Model { random: Random::new(seed), next: 0, documents: HashMap::new() };
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
        "calm, seed {seed}: {} MiB of log, {} edits, {} documents, {:.0} s to write, {:.1} s to open, \
         {:.0} s to check, {} MiB after compaction: sound",
        grown.log_bytes >> 20,
        model.next,
        model.documents.len(),
        wrote.as_secs_f64(),
        opened.as_secs_f64(),
        checked.as_secs_f64(),
        db.info().unwrap().log_bytes >> 20
    );
}
