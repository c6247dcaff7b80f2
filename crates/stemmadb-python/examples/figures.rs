//! The figures of the Rust library for `bench/compare.py`: the same documents, without Python.

use std::time::Instant;

use stemmadb::{Database, DocumentId, Edit, Object, Value};

const CITIES: [&str; 10] = ["Oslo", "Lima", "Rome", "Kyiv", "Cairo", "Delhi", "Quito", "Paris", "Tunis", "Hanoi"];

/// The document that `document` in `bench/compare.py` makes.
fn document(n: u64) -> Value {
    let mut body = Object::new();
    body.insert("number", n);
    body.insert("name", format!("name {}", n * 7919 % 1_000_003));
    body.insert("city", CITIES[(n * 31 % 10) as usize]);
    body.insert("price", Some((n * 37 % 10_000) as f64 / 100.0));
    body.insert("year", 1900 + n * 13 % 126);
    body.insert("active", n % 3 == 0);
    body.insert("tags", vec![Value::from(format!("t{}", n % 50)), Value::from(format!("u{}", n % 7))]);
    let street = Value::from(format!("street {}", n % 1000));
    body.insert("address", Value::Object([("street", street), ("zip", Value::from(n % 90_000))].into_iter().collect()));
    body.insert("note", if n % 5 == 0 { Value::from("a short note") } else { Value::Null });
    body.insert("score", n * 97 % 1000);
    Value::Object(body)
}

fn main() -> stemmadb::Result<()> {
    let count: u64 = std::env::args().nth(1).and_then(|count| count.parse().ok()).unwrap_or(100_000);
    let path = std::env::temp_dir().join(format!("stemma-figures-{}", std::process::id()));
    let db = Database::open(&path)?;
    let documents: Vec<Value> = (0..count).map(document).collect();
    let begun = Instant::now();
    let mut numbered = documents.into_iter().enumerate().peekable();
    while numbered.peek().is_some() {
        let batch = numbered
            .by_ref()
            .take(5_000)
            .map(|(n, body)| Ok(Edit::Insert { id: DocumentId::new(format!("{n:08}"))?, body }));
        for result in db.bulk(batch.collect::<stemmadb::Result<_>>()?)? {
            result?;
        }
    }
    let inserts = count as f64 / begun.elapsed().as_secs_f64();
    let (mut state, calls) = (1u64, 100_000);
    let begun = Instant::now();
    for _ in 0..calls {
        state = (state * 1_103_515_245 + 12_345) & 0x7FFF_FFFF;
        assert!(db.get(&format!("{:08}", state % count))?.is_some());
    }
    let get_us = begun.elapsed().as_secs_f64() / f64::from(calls) * 1e6;
    db.close()?;
    std::fs::remove_dir_all(&path).ok();
    println!("{{\"insert_many, documents/s\": {inserts}, \"get, µs\": {get_us}}}");
    Ok(())
}
