//! Tests that the router notifies few watchers. That it misses none is covered by the tests of whole watches.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::hub::{Hub, Watcher};
use crate::publish::{Published, Written};
use crate::query::{Clues, LiveQuery, Query};
use crate::revision::Sequence;
use crate::{Database, Selector, Value};

/// Counts how many documents it is notified of.
struct CountingWatcher {
    query: LiveQuery,
    notified_count: Arc<AtomicUsize>,
}

impl Watcher for CountingWatcher {
    fn clues(&self) -> &[Clues] {
        self.query.clues()
    }

    fn notify_transaction(&self, _: &Published, documents: &mut dyn Iterator<Item = &Written>) {
        self.notified_count.fetch_add(documents.count(), Ordering::Relaxed);
    }

    fn mark_missed(&self, _: Sequence) {}

    fn close(&self) {}
}

/// Returns how many notifications the watchers of these selectors get for one inserted document.
fn notified_count(selectors: impl IntoIterator<Item = String>, document: &str) -> usize {
    let db = Database::in_memory();
    let (hub, publisher) = (db.hub(), &db.store().parts.publisher);
    let notified_count = Arc::new(AtomicUsize::new(0));
    let add = |hub: &Hub, text: String| {
        let selector = Selector::parse(&Value::parse(text.as_bytes()).unwrap()).unwrap();
        let query = LiveQuery::new(&Query::new(selector)).unwrap();
        hub.add(publisher, Arc::new(CountingWatcher { query, notified_count: notified_count.clone() }))
    };
    let numbers: Vec<_> = selectors.into_iter().map(|text| add(hub, text)).collect();
    db.insert("document", &Value::parse(document.as_bytes()).unwrap()).unwrap();
    for number in numbers {
        hub.remove(number);
    }
    assert_eq!(hub.watcher_count(), 0);
    notified_count.load(Ordering::Relaxed)
}

fn thousand(text: impl Fn(usize) -> String) -> impl Iterator<Item = String> {
    (0..1000).map(text)
}

#[test]
fn router_notifies_few_of_a_thousand_watchers() {
    let document = r#"{"kind": "order", "number": 7, "tags": ["x", "y"], "ship": {"city": "Oslo"}}"#;
    assert_eq!(notified_count(thousand(|at| format!(r#"{{"number": {at}}}"#)), document), 1);
    assert_eq!(notified_count(thousand(|at| format!(r#"{{"kind": "order", "number": {at}}}"#)), document), 2);
    assert_eq!(notified_count(thousand(|at| format!(r#"{{"number": {{"$gte": {at}, "$lt": {at}.5}}}}"#)), document), 1);
    assert_eq!(notified_count(thousand(|at| format!(r#"{{"number": {{"$in": [{at}, {}]}}}}"#, at + 1)), document), 2);
    assert_eq!(notified_count(thousand(|at| format!(r#"{{"ship.city": {{"$beginsWith": "Os{at}"}}}}"#)), document), 0);
    assert_eq!(notified_count(thousand(|at| format!(r#"{{"tags": {{"$all": ["x{at}"]}}}}"#)), document), 0);
    assert_eq!(notified_count(thousand(|at| format!(r#"{{"field-{at}": {{"$exists": true}}}}"#)), document), 0);
    assert_eq!(notified_count(thousand(|at| format!(r#"{{"_id": "document-{at}"}}"#)), document), 0);
    assert_eq!(notified_count(thousand(|at| format!(r#"{{"a{}": 1}}"#, ".a".repeat(at))), document), 0);
    assert_eq!(
        notified_count(thousand(|at| format!(r#"{{"$or": [{{"number": {at}}}, {{"kind": "k{at}"}}]}}"#)), document),
        1
    );
    assert_eq!(notified_count(thousand(|_| "{}".to_owned()), document), 1000);
}

#[test]
fn dropping_a_watch_unregisters_it() {
    let db = Database::in_memory();
    let watches: Vec<_> = (0..100)
        .map(|number| {
            let text = match number % 5 {
                0 => format!(r#"{{"a.b{number}": 1}}"#),
                1 => format!(r#"{{"a": {{"$gt": {number}}}}}"#),
                2 => format!(r#"{{"_id": {{"$in": ["{number}", "x"]}}}}"#),
                3 => "{}".to_owned(),
                _ => format!(
                    r#"{{"$or": [{{"a": 1}}, {{"a": 1}}, {{"{}": {{"$exists": true}}}}]}}"#,
                    "a.".repeat(40) + "b"
                ),
            };
            db.watch(Selector::parse(&Value::parse(text.as_bytes()).unwrap()).unwrap()).unwrap()
        })
        .collect();
    assert_eq!(db.hub().watcher_count(), 100);
    drop(watches);
    assert_eq!(db.hub().watcher_count(), 0);
    db.insert("a", &Value::parse(b"{}").unwrap()).unwrap();
}
