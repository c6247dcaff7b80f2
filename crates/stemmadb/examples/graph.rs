//! Graph: edges are documents, neighbors come from the index, and paths from one query per level of a search.
//!
//! `cargo run --example graph [DIRECTORY]` (default: a temporary directory) prints
//!
//! ```text
//! from oslo: berlin (95 minutes), london (140 minutes)
//! to rome: berlin, london
//! departures: berlin 2, london 1, oslo 2, rome 1, vienna 1
//! oslo to cairo: oslo > berlin > vienna > cairo
//! berlin closes, 4 documents deleted
//! oslo to cairo: oslo > london > rome > cairo
//! oslo to vienna: no path
//! ```
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::json;
use stemmadb::{Database, Result, Selector, Snapshot, field};

/// A directed edge from one city to another.
#[derive(Serialize, Deserialize)]
struct Flight {
    from: String,
    to: String,
    minutes: u64,
}

const FLIGHTS: [(&str, &str, u64); 7] = [
    ("oslo", "berlin", 95),
    ("oslo", "london", 140),
    ("berlin", "rome", 120),
    ("berlin", "vienna", 80),
    ("london", "rome", 155),
    ("rome", "cairo", 215),
    ("vienna", "cairo", 210),
];

/// Writes all nodes and edges in one transaction. Ids derived from the content make this repeatable.
fn fill(db: &Database) -> Result<()> {
    db.write(|tx| {
        for (from, to, minutes) in FLIGHTS {
            for city in [from, to] {
                tx.upsert(&format!("cities:{city}"), &json!({"city": city}))?;
            }
            let flight = Flight { from: from.to_owned(), to: to.to_owned(), minutes };
            tx.upsert(&format!("flights:{from}-{to}"), &flight)?;
        }
        Ok(())
    })
}

/// The matching edges, shortest first.
fn flights(snapshot: &Snapshot, selector: Selector) -> Result<Vec<Flight>> {
    let documents = snapshot.find(selector).sort("minutes").documents()?;
    documents.iter().map(|document| document.to()).collect()
}

/// A path with the fewest edges, by breadth-first search: one query per level, all on the same snapshot.
fn path(snapshot: &Snapshot, from: &str, to: &str) -> Result<Option<Vec<String>>> {
    let mut previous_of: BTreeMap<String, Option<String>> = BTreeMap::from([(from.to_owned(), None)]);
    let mut frontier = vec![from.to_owned()];
    while !frontier.is_empty() && !previous_of.contains_key(to) {
        let mut next = Vec::new();
        for flight in flights(snapshot, field("from").one_of(&frontier))? {
            if let Entry::Vacant(unvisited) = previous_of.entry(flight.to.clone()) {
                unvisited.insert(Some(flight.from));
                next.push(flight.to);
            }
        }
        frontier = next;
    }
    if !previous_of.contains_key(to) {
        return Ok(None);
    }
    let mut cities = vec![to.to_owned()];
    while let Some(previous) = cities.last().and_then(|city| previous_of.get(city)).and_then(Option::as_ref) {
        cities.push(previous.clone());
    }
    cities.reverse();
    Ok(Some(cities))
}

/// Deletes a node and all of its edges in one transaction. Returns the number of deleted documents.
fn close(db: &Database, city: &str) -> Result<usize> {
    db.write(|tx| {
        let connected = field("city").eq(city).or(field("from").eq(city)).or(field("to").eq(city));
        let documents = tx.find(connected)?.documents()?;
        for document in &documents {
            tx.delete(document.id().as_str(), document.revision())?;
        }
        Ok(documents.len())
    })
}

fn print_path(db: &Database, from: &str, to: &str) -> Result<()> {
    match path(&db.snapshot()?, from, to)? {
        Some(cities) => println!("{from} to {to}: {}", cities.join(" > ")),
        None => println!("{from} to {to}: no path"),
    }
    Ok(())
}

fn main() -> Result<()> {
    let temporary = tempfile::tempdir()?;
    let directory = std::env::args_os().nth(1).map_or_else(|| temporary.path().join("graph.stemma"), PathBuf::from);
    let db = Database::open(directory)?;
    fill(&db)?;

    // Neighbors are an equality query on either end of the edge.
    let snapshot = db.snapshot()?;
    let outgoing = flights(&snapshot, field("from").eq("oslo"))?;
    let outgoing: Vec<_> =
        outgoing.iter().map(|flight| format!("{} ({} minutes)", flight.to, flight.minutes)).collect();
    println!("from oslo: {}", outgoing.join(", "));
    let incoming = flights(&snapshot, field("to").eq("rome"))?;
    let incoming: Vec<_> = incoming.iter().map(|flight| flight.from.as_str()).collect();
    println!("to rome: {}", incoming.join(", "));

    // Degrees are counts per value. The index has them; no document is read.
    let departures = snapshot.find(field("from").exists()).group_by("from").counts()?;
    let departures: Vec<_> =
        departures.iter().map(|(city, count)| format!("{} {count}", city.as_str().unwrap_or("?"))).collect();
    println!("departures: {}", departures.join(", "));

    print_path(&db, "oslo", "cairo")?;
    println!("berlin closes, {} documents deleted", close(&db, "berlin")?);
    print_path(&db, "oslo", "cairo")?;
    print_path(&db, "oslo", "vienna")
}
