//! Compares a federation of eight embedded members with one database that holds all their documents.
//!
//! `cargo run --release -p stemmadb-federation --example many`

use std::hint::black_box;
use std::time::Instant;

use serde_json::json;
use stemmadb::{Database, DocumentId, Edit, Result, Selector, Value, field};
use stemmadb_federation::Federation;

const MEMBERS: usize = 8;
const DOCUMENTS: usize = 100_000;
const ROUNDS: usize = 15;

fn document(at: usize) -> Value {
    // A fixed permutation of the numbers.
    let mixed = at.wrapping_mul(7_919) % DOCUMENTS;
    let kinds = ["novel", "essay", "poem", "play"];
    Value::from_serialize(&json!({
        "year": mixed, "kind": kinds[mixed % 4], "city": format!("city-{}", mixed % 50),
        "price": (mixed % 997) as f64 / 4.0,
        "title": format!("The book of number {at}, which has a title of some length"),
    }))
    .expect("JSON")
}

fn fill(db: &Database, numbers: impl Iterator<Item = usize>) -> Result<()> {
    let edits = numbers.map(|at| Ok(Edit::Insert { id: DocumentId::new(id(at))?, body: document(at) }));
    let edits: Vec<Edit> = edits.collect::<Result<_>>()?;
    for chunk in edits.chunks(1_000) {
        db.bulk(chunk.to_vec())?.into_iter().collect::<Result<Vec<_>>>()?;
    }
    db.maintenance().checkpoint()
}

fn id(at: usize) -> String {
    format!("book-{at:06}")
}

/// The nanoseconds of one call: the least, the median and the greatest of the rounds.
fn measure(mut call: impl FnMut() -> Result<()>) -> Result<[f64; 3]> {
    call()?;
    let begun = Instant::now();
    call()?;
    let calls = (20_000_000 / begun.elapsed().as_nanos().max(1)).clamp(3, 20_000) as u32;
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        for _ in 0..calls {
            call()?;
        }
        times.push(begun.elapsed().as_nanos() as f64 / f64::from(calls));
    }
    times.sort_by(f64::total_cmp);
    Ok([times[0], times[ROUNDS / 2], times[ROUNDS - 1]])
}

fn main() -> Result<()> {
    let whole = Database::in_memory();
    fill(&whole, 0..DOCUMENTS)?;
    let members: Vec<Database> = (0..MEMBERS).map(|_| Database::in_memory()).collect();
    for (member, db) in members.iter().enumerate() {
        fill(db, (member..DOCUMENTS).step_by(MEMBERS))?;
    }
    let shards = Federation::over(members.iter())?.disjoint(true);
    let any = Federation::over(members.iter())?;
    let novels = || field("kind").eq("novel");
    let mut next = 0;
    let mut some_id = || {
        next = (next + 7_919) % DOCUMENTS;
        id(next)
    };
    let ids: Vec<String> = (0..1_000).map(|_| some_id()).collect();
    let prepared = whole.prepare(stemmadb::Query::new(novels()).sort_descending("year").limit(10))?;
    macro_rules! compare {
        ($name:literal, $db:ident => $call:expr) => {{
            let one = measure(|| {
                let $db = &whole;
                black_box($call);
                Ok(())
            })?;
            let disjoint = measure(|| {
                let $db = &shards;
                black_box($call);
                Ok(())
            })?;
            let open = measure(|| {
                let $db = &any;
                black_box($call);
                Ok(())
            })?;
            report($name, [one, disjoint, open]);
        }};
    }
    let mut at = 0;
    println!("| query | one, us | 8 disjoint: ratio (spread) | 8 that may overlap: ratio (spread) |");
    println!("|---|---|---|---|");
    compare!("top ten", db => db.find(Selector::everything()).sort_descending("year").limit(10).documents()?);
    compare!("top ten of a quarter", db => db.find(novels()).sort_descending("year").limit(10).documents()?);
    compare!("top ten of a quarter, prepared", db => db.find(&prepared).documents()?);
    compare!("ten, unsorted", db => db.find(novels()).limit(10).documents()?);
    compare!("count by an equality", db => db.find(novels()).count()?);
    compare!("count by a range", db => db.find(field("year").lt(20_000)).count()?);
    compare!("get by id", db => { at = (at + 1) % ids.len(); db.get(&ids[at])? });
    compare!("group by, 50 groups", db => db.find(Selector::everything()).group_by("city").counts()?);
    compare!("sum of a quarter", db => db.find(novels()).sum("price")?);
    compare!("all of a quarter, sorted", db => db.find(novels()).sort("year").documents()?);
    Ok(())
}

fn report(name: &str, [one, disjoint, open]: [[f64; 3]; 3]) {
    let ratio = |many: [f64; 3]| format!("{:.2} ({:.2}-{:.2})", many[1] / one[1], many[0] / one[2], many[2] / one[0]);
    println!("| {name} | {:.1} | {} | {} |", one[1] / 1e3, ratio(disjoint), ratio(open));
}
