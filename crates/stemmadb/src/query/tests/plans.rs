//! Snapshot tests of plans: `plans.txt` contains queries, each with its analyzed plan on a small library.
//!
//! Run with `STEMMA_REWRITE=1` to rewrite the file, then review the difference.

use super::super::{Query, explain};
use super::memory::MemorySource;
use crate::index::{DocumentNumber, Policy};
use crate::value::{Object, Value};

/// Two hundred books: years from 1900, half of them with tags, some with a long note; a nested author, a list of items.
fn library() -> MemorySource {
    let policy = Policy::new([], ["secret"]).and_then(|policy| policy.with_text_bytes_max(16)).expect("a good policy");
    let mut source = MemorySource::new(policy);
    for at in 0..200u64 {
        let mut book = Object::new();
        book.insert("title", format!("Title {at}"));
        book.insert("year", 1900 + at % 100);
        book.insert(
            "author",
            Value::Object([("name".to_owned(), Value::from(format!("John {}", at % 20)))].into_iter().collect()),
        );
        if at % 2 == 0 {
            book.insert("tags", [["a", "b"][at as usize / 2 % 2], "c"]);
        }
        if at % 50 == 0 {
            book.insert("note", "a note that is too long for the index".repeat(1 + at as usize / 100));
        }
        if at % 10 == 0 {
            let item = |price: u64| Value::Object([("price".to_owned(), Value::from(price))].into_iter().collect());
            book.insert("items", Value::Array(vec![item(at), item(at + 1)]));
        }
        book.insert("secret", at);
        source.put(DocumentNumber(at), &format!("book:{:03}", 999 - at), Value::Object(book));
    }
    source
}

/// The plan without the times, which differ from run to run.
fn plan_of(source: &MemorySource, query: &str) -> String {
    let query = Query::parse(&Value::parse(query.as_bytes()).expect("good JSON")).expect("a good query");
    let plan = explain(source, &query, true).expect("a good query").to_string();
    let lines = plan.lines().map(|line| match line.rsplit_once(", ") {
        Some((line, time)) if time.ends_with(" µs") => line.to_owned(),
        _ => line.to_owned(),
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn plans_match_the_recorded_ones() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/query/tests/plans.txt");
    let written = std::fs::read_to_string(path).expect("plans.txt is beside this file");
    let source = library();
    let mut found = String::new();
    for block in written.split("\n\n").filter(|block| !block.trim().is_empty()) {
        let query = block.trim().lines().next().expect("a block has a line");
        if query.starts_with('#') {
            found.push_str(block.trim());
        } else {
            found.push_str(&format!("{query}\n{}", plan_of(&source, query)));
        }
        found.push_str("\n\n");
    }
    let found = format!("{}\n", found.trim_end());
    if std::env::var_os("STEMMA_REWRITE").is_some() {
        std::fs::write(path, &found).expect("plans.txt can be written");
        return;
    }
    for (line, (written, found)) in written.lines().zip(found.lines()).enumerate() {
        assert_eq!(written, found, "plans.txt line {}", line + 1);
    }
    assert_eq!(written, found);
}
