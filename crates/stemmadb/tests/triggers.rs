//! Triggers: each change is handled at least once and in order, across restarts, failures and panics; messages in
//! memory.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use serde_json::json;
use stemmadb::messages::TriggerOptions;
use stemmadb::replication::Retry;
use stemmadb::{Database, Durability, ErrorKind, Options, Sequence, field};

/// Much longer than anything takes.
const TIMEOUT: Duration = Duration::from_secs(60);

#[test]
fn trigger_continues_at_its_position_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("db");
    let mut seen = Vec::new();
    let mut written = 0;
    for round in 0..4 {
        let db = Database::open_with(&path, Options::new().durability(Durability::None)).unwrap();
        let (sender, handled) = mpsc::channel();
        // Written before the trigger runs, but for the first round, in which it has no position yet.
        let write = |written: &mut usize| {
            for _ in 0..130 {
                db.insert(&format!("d{written:04}"), &json!({"n": *written})).unwrap();
                *written += 1;
            }
        };
        if round > 0 {
            write(&mut written);
        }
        let trigger =
            db.trigger("t", TriggerOptions::new(), move |change| Ok(sender.send(change.id.to_string())?)).unwrap();
        write(&mut written);
        for _ in seen.len()..written {
            seen.push(handled.recv_timeout(TIMEOUT).unwrap());
        }
        assert!(trigger.failure().is_none());
        trigger.stop();
        // The position of everything handled is stored: nothing is repeated after an orderly stop.
        assert!(handled.try_recv().is_err());
        db.close().unwrap();
    }
    assert_eq!(seen, (0..written).map(|n| format!("d{n:04}")).collect::<Vec<_>>());
}

#[test]
fn failures_and_panics_are_repeated_and_then_given_up() {
    let db = Database::in_memory();
    let calls = Arc::new(Mutex::new(Vec::new()));
    let (sender, dead) = mpsc::channel();
    let retry = Retry { first: Duration::from_millis(1), max: Duration::from_millis(1), attempts: 2 };
    let options = TriggerOptions::new().selector(field("kind").ge(1)).retry(retry).dead_letter(move |change, error| {
        sender.send((change.id.to_string(), error.to_string())).unwrap();
    });
    let (done, finished) = mpsc::channel();
    let called = calls.clone();
    let trigger = db
        .trigger("t", options, move |change| {
            let kind = change.document.as_ref().unwrap().get("kind")?.unwrap().as_u64().unwrap();
            called.lock().unwrap().push(change.id.to_string());
            let count = called.lock().unwrap().iter().filter(|id| **id == change.id.to_string()).count();
            match kind {
                1 if count < 3 => Err("not yet".into()),
                2 => Err("never".into()),
                3 => panic!("a bug in the function"),
                4 => Ok(done.send(())?),
                _ => Ok(()),
            }
        })
        .unwrap();
    for kind in 0..=4 {
        db.insert(&format!("kind-{kind}"), &json!({"kind": kind})).unwrap();
    }
    finished.recv_timeout(TIMEOUT).unwrap();
    trigger.stop();
    let expected = [("kind-1", 3), ("kind-2", 3), ("kind-3", 3), ("kind-4", 1)];
    let expected: Vec<_> = expected.iter().flat_map(|(id, count)| vec![(*id).to_owned(); *count]).collect();
    assert_eq!(*calls.lock().unwrap(), expected);
    let dead: Vec<_> = dead.try_iter().map(|(id, error)| format!("{id}: {error}")).collect();
    assert_eq!(dead, ["kind-2: never", "kind-3: the function panicked"]);
}

#[test]
fn a_trigger_stops_while_its_function_fails_and_repeats_the_change_later() {
    let db = Database::in_memory();
    let (sender, failing) = mpsc::channel();
    let trigger = db
        .trigger("t", TriggerOptions::new(), move |_| {
            sender.send(()).unwrap();
            Err("the receiver is away".into())
        })
        .unwrap();
    db.insert("a", &json!({})).unwrap();
    failing.recv_timeout(TIMEOUT).unwrap();
    trigger.stop();
    let (sender, handled) = mpsc::channel();
    let trigger =
        db.trigger("t", TriggerOptions::new(), move |change| Ok(sender.send(change.id.to_string())?)).unwrap();
    assert_eq!(handled.recv_timeout(TIMEOUT).unwrap(), "a");
    drop(trigger);
    assert_eq!(db.trigger("", TriggerOptions::new(), |_| Ok(())).err().unwrap().kind(), ErrorKind::Invalid);
    let malformed = TriggerOptions::new().paths(["#/a"]).since(Sequence::ZERO);
    assert_eq!(db.trigger("u", malformed, |_| Ok(())).err().unwrap().kind(), ErrorKind::Invalid);
}

#[test]
fn an_idle_trigger_writes_nothing() {
    let db = Database::in_memory();
    let (sender, handled) = mpsc::channel();
    let trigger = db.trigger("t", TriggerOptions::new(), move |_| Ok(sender.send(())?)).unwrap();
    db.insert("a", &json!({})).unwrap();
    handled.recv_timeout(TIMEOUT).unwrap();
    // The insertion and the position after it.
    let begun = std::time::Instant::now();
    let stored = || db.local_documents().get("_local/trigger-t").unwrap().map(|(count, _)| count);
    while stored() != Some(2) {
        assert!(begun.elapsed() < TIMEOUT);
        std::thread::yield_now();
    }
    let sequence = db.sequence();
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!((db.sequence(), stored()), (sequence, Some(2)));
    drop(trigger);
}

#[test]
fn messages_reach_the_matching_subscribers_once_and_in_order() {
    let db = Database::in_memory();
    let mut all = db.subscribe_topic(["#"]).unwrap();
    let mut some = db.clone().subscribe_topic(["orders/+/paid", "orders/#"]).unwrap();
    let mut other = db.subscribe_topic(["users/+"]).unwrap();
    for number in 0..10 {
        assert_eq!(db.publish(&format!("orders/{number}/paid"), &json!(number)).unwrap(), 2);
    }
    assert_eq!(db.publish("orders", &json!(null)).unwrap(), 2);
    assert_eq!(db.publish("users/ada", &json!(null)).unwrap(), 2);
    let numbers: Vec<_> = (0..10).map(|_| some.next_message().unwrap().payload.as_u64().unwrap()).collect();
    assert_eq!(numbers, (0..10).collect::<Vec<_>>());
    assert_eq!(some.next_message().unwrap().topic, "orders");
    assert!(some.next_within(Duration::ZERO).is_none());
    assert_eq!(other.next_message().unwrap().topic, "users/ada");
    drop(other);
    assert_eq!(db.publish("users/ada", &json!(null)).unwrap(), 1);
    assert_eq!(std::iter::from_fn(|| all.next_within(Duration::ZERO)).count(), 13);
    // A slow reader loses the oldest messages.
    for number in 0..2_000 {
        db.publish("n", &number).unwrap();
    }
    let left: BTreeSet<_> =
        std::iter::from_fn(|| all.next_within(Duration::ZERO)).map(|message| message.payload.as_u64()).collect();
    assert_eq!((left.len(), left.first(), all.dropped_count()), (1024, Some(&Some(976)), 976));
    for topic in ["", "a/+", "#", &"x".repeat(1025)] {
        assert_eq!(db.publish(topic, &json!(1)).unwrap_err().kind(), ErrorKind::Invalid, "{topic}");
    }
    assert!(db.subscribe_topic(["a/#/b"]).is_err() && db.subscribe_topic([""; 0]).is_err());
    // Closing the database ends a waiting reader.
    let waiting = std::thread::spawn(move || all.next_message());
    db.close().unwrap();
    assert!(waiting.join().unwrap().is_none());
}

#[test]
fn a_trigger_name_runs_once_in_a_database() {
    let (db, other) = (Database::in_memory(), Database::in_memory());
    let start = |db: &Database| db.trigger("t", TriggerOptions::new(), |_| Ok(()));
    let first = start(&db).unwrap();
    let refused = start(&db.clone()).err().unwrap();
    assert_eq!(refused.kind(), ErrorKind::Conflict);
    assert!(refused.to_string().contains("a trigger named \"t\" is running"), "{refused}");
    // Another name, and another database, have positions of their own.
    let second = db.trigger("u", TriggerOptions::new(), |_| Ok(())).unwrap();
    let elsewhere = start(&other).unwrap();
    first.stop();
    start(&db).unwrap().stop();
    // A trigger that could not begin does not keep its name.
    let malformed = || TriggerOptions::new().paths(["#/a"]);
    assert!(db.trigger("v", malformed(), |_| Ok(())).is_err());
    db.trigger("v", TriggerOptions::new(), |_| Ok(())).unwrap().stop();
    drop((second, elsewhere));
}

#[test]
fn a_trigger_shows_its_position() {
    let db = Database::in_memory();
    let (sender, handled) = mpsc::channel();
    let trigger = db.trigger("t", TriggerOptions::new(), move |_| Ok(sender.send(())?)).unwrap();
    assert_eq!(trigger.position(), Sequence::ZERO);
    db.insert("a", &json!({})).unwrap();
    let sequence = db.get("a").unwrap().unwrap().sequence();
    handled.recv_timeout(TIMEOUT).unwrap();
    let begun = std::time::Instant::now();
    while trigger.position() != sequence {
        assert!(begun.elapsed() < TIMEOUT);
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}
