//! To-do list with a live query, which delivers each transaction as a delta of the query's result.
//!
//! `cargo run --example todo [DIRECTORY]` (default: a temporary directory) prints
//!
//! ```text
//! open now:
//!   + make tea (1)
//!   + pay bills (2)
//! then:
//!   + answer letters (2)
//! then:
//!   - tea
//!   + wash cups (3)
//! then:
//!   * pay bills (1)
//! then:
//!   - letters
//! ```
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use stemmadb::typed::{EntryDelta, EntryEvent};
use stemmadb::{Collection, Database, Result, field};

#[derive(Serialize, Deserialize)]
struct Task {
    what: String,
    /// 1 is the most urgent.
    priority: u8,
    done: bool,
}

/// Prints a delta of the result.
fn show(delta: EntryDelta<Task>) {
    // A delta contains the changes of exactly one transaction.
    println!("{}", if delta.is_first { "open now:" } else { "then:" });
    for event in delta.events {
        match event {
            EntryEvent::Added(task) => println!("  + {} ({})", task.content.what, task.content.priority),
            EntryEvent::Changed(task) => println!("  * {} ({})", task.content.what, task.content.priority),
            EntryEvent::Removed(key) => println!("  - {key}"),
        }
    }
}

/// Performs some transactions on the list.
fn work(db: &Database, tasks: &Collection<Task>) -> Result<()> {
    tasks.upsert("letters", &Task { what: "answer letters".into(), priority: 2, done: false })?;
    // Two steps in one transaction are one delta.
    db.write(|tx| {
        let mut tasks = tasks.within(tx);
        tasks.modify("tea", |tea| {
            tea.done = true;
            Ok(())
        })?;
        tasks.upsert("cups", &Task { what: "wash cups".into(), priority: 3, done: false })
    })?;
    tasks.modify("bills", |bills| {
        bills.priority = 1;
        Ok(())
    })?;
    // A change outside the result produces no delta.
    tasks.upsert("nap", &Task { what: "have a nap".into(), priority: 1, done: true })?;
    tasks.remove("letters")?;
    Ok(())
}

fn main() -> Result<()> {
    let temporary = tempfile::tempdir()?;
    let directory = std::env::args_os().nth(1).map_or_else(|| temporary.path().join("todo.stemma"), PathBuf::from);
    let db = Database::open(directory)?;
    let tasks = db.collection::<Task>("tasks")?;
    tasks.upsert("tea", &Task { what: "make tea".into(), priority: 1, done: false })?;
    tasks.upsert("bills", &Task { what: "pay bills".into(), priority: 2, done: false })?;

    // The first delta is the current result; later ones are its changes.
    let mut open = tasks.watch(field("done").eq(false))?;
    if let Some(first) = open.next_delta()? {
        show(first);
    }
    let watching = std::thread::spawn(move || {
        while let Some(delta) = open.next_delta()? {
            show(delta);
        }
        Result::Ok(())
    });
    work(&db, &tasks)?;
    // Closing the database ends the live query after it has delivered all deltas.
    db.close()?;
    watching.join().expect("it does not panic")
}
