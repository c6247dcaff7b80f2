//! Key-value API: keys, counters and times to live.

use std::time::{Duration, Instant};

use stemmadb::handles::KeyCondition;
use stemmadb::{Database, ErrorKind, Keys, Options, Value};

const SHORT: Duration = Duration::from_millis(20);
const LONG: Duration = Duration::from_secs(3600);

fn wait_until(condition: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < until, "the condition was not met in time");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn is_there(keys: &Keys, key: &str) -> bool {
    keys.get::<String>(key).unwrap().is_some()
}

#[test]
fn key_exists_until_it_expires_or_is_removed() {
    let db = Database::in_memory();
    let keys = db.keys("cache").unwrap();
    keys.set("stays", "a").unwrap();
    keys.set_for("long", "b", LONG).unwrap();
    keys.set_for("short", "c", SHORT).unwrap();
    wait_until(|| !is_there(&keys, "short"));
    assert_eq!(
        keys.all::<String>().unwrap(),
        [("long".to_owned(), "b".to_owned()), ("stays".to_owned(), "a".to_owned())]
    );
    assert!(keys.expire("long", Some(SHORT)).unwrap() && !keys.expire("short", None).unwrap());
    wait_until(|| !is_there(&keys, "long"));
    assert!(keys.remove("stays").unwrap() && !keys.remove("stays").unwrap());
    // Setting a value without a time to live removes the expiration, and an expired key can be set again.
    keys.set_for("again", "d", SHORT).unwrap();
    keys.set("again", "e").unwrap();
    keys.set("short", "f").unwrap();
    std::thread::sleep(2 * SHORT);
    assert!(is_there(&keys, "again") && is_there(&keys, "short"));
    assert!(db.keys("other").unwrap().all::<String>().unwrap().is_empty());
}

#[test]
fn counters_and_compare_and_set_are_atomic() {
    let db = Database::in_memory();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..50 {
                    db.keys("n").unwrap().increment("visits", 1).unwrap();
                }
            });
        }
    });
    let keys = db.keys("n").unwrap();
    assert_eq!(keys.get::<i64>("visits").unwrap(), Some(200));
    assert_eq!(keys.increment("visits", -201).unwrap(), -1);
    keys.set("word", "x").unwrap();
    keys.set("large", &i64::MAX).unwrap();
    for key in ["word", "large"] {
        assert_eq!(keys.increment(key, 1).unwrap_err().kind(), ErrorKind::Invalid);
    }
    assert!(keys.compare_and_set("lock", None, Some("mine")).unwrap());
    assert!(!keys.compare_and_set("lock", None, Some("yours")).unwrap());
    assert!(!keys.compare_and_set("lock", Some("yours"), None).unwrap());
    assert!(keys.compare_and_set("lock", Some("mine"), None).unwrap());
    assert!(keys.get::<String>("lock").unwrap().is_none());
}

#[test]
fn expired_keys_are_removed_by_later_writes_also_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("keys.stemma");
    let db = Database::open(&path).unwrap();
    let keys = db.keys("cache").unwrap();
    (0..40).for_each(|n| keys.set_for(&n.to_string(), "x", SHORT).unwrap());
    keys.set("stays", "y").unwrap();
    drop(keys);
    db.close().unwrap();
    std::thread::sleep(2 * SHORT);
    let db = Database::open_with(&path, Options::new()).unwrap();
    let kept = |n: usize| db.local_documents().get(&format!("_local/keys/cache/{n}")).unwrap().is_some();
    assert!(kept(39));
    for _ in 0..20 {
        db.keys("other").unwrap().increment("n", 1).unwrap();
    }
    assert!(!(0..40).any(kept));
    assert!(is_there(&db.keys("cache").unwrap(), "stays"));
}

#[test]
fn invalid_keys_are_rejected() {
    let db = Database::in_memory();
    for namespace in ["", "a/b", &"n".repeat(101)] {
        assert_eq!(db.keys(namespace).unwrap_err().kind(), ErrorKind::Invalid);
    }
    let keys = db.keys(&"n".repeat(100)).unwrap();
    for key in ["", &"k".repeat(251)] {
        assert_eq!(keys.set(key, "v").unwrap_err().kind(), ErrorKind::Invalid);
    }
    keys.set(&"k".repeat(250), "v").unwrap();
    keys.set("with/slash and ü", "v").unwrap();
    assert_eq!(keys.all::<String>().unwrap().len(), 2);
    assert_eq!(keys.get::<i64>("with/slash and ü").unwrap_err().kind(), ErrorKind::Invalid);
}

#[test]
fn conditions_decide_whether_a_key_is_set_and_the_previous_value_is_returned() {
    let db = Database::in_memory();
    let keys = db.keys("leases").unwrap();
    let set = |value: &str, condition: KeyCondition, time| {
        let outcome = keys.set_if("k", value, &condition, time).unwrap();
        (outcome.was_set, outcome.previous.map(|value| value.to_json()))
    };
    assert_eq!(set("a", KeyCondition::Present, None), (false, None));
    assert!(!is_there(&keys, "k"));
    assert_eq!(set("a", KeyCondition::Absent, None), (true, None));
    assert_eq!(set("b", KeyCondition::Absent, Some(SHORT)), (false, Some("\"a\"".to_owned())));
    assert_eq!(set("b", KeyCondition::Equals(Value::from("x")), None), (false, Some("\"a\"".to_owned())));
    // A condition that does not hold changes nothing, not even the expiration time.
    std::thread::sleep(2 * SHORT);
    assert_eq!(keys.get::<String>("k").unwrap().as_deref(), Some("a"));
    assert_eq!(set("b", KeyCondition::Equals(Value::from("a")), Some(SHORT)), (true, Some("\"a\"".to_owned())));
    wait_until(|| !is_there(&keys, "k"));
    assert_eq!(set("c", KeyCondition::Absent, None), (true, None));
    assert_eq!(keys.replace("k", &7).unwrap(), Some(Value::from("c")));
    assert_eq!(keys.replace("new", &7).unwrap(), None);
}

#[test]
fn only_one_of_many_writers_sets_an_absent_key() {
    let db = Database::in_memory();
    let keys = db.keys("leases").unwrap();
    let winners = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|n| {
                let keys = &keys;
                scope.spawn(move || keys.set_if("k", &n, &KeyCondition::Absent, None).unwrap().was_set)
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).filter(|won| *won).count()
    });
    assert_eq!(winners, 1);
}

#[test]
fn floats_are_counted() {
    let db = Database::in_memory();
    let keys = db.keys("n").unwrap();
    assert_eq!(keys.increment_float("spent", 1.5).unwrap(), 1.5);
    assert_eq!(keys.increment_float("spent", -0.25).unwrap(), 1.25);
    keys.set("whole", &3).unwrap();
    assert_eq!(keys.increment_float("whole", 0.5).unwrap(), 3.5);
    assert_eq!(keys.increment("whole", 1).unwrap_err().kind(), ErrorKind::Invalid);
    keys.set("text", "x").unwrap();
    for (key, by) in [("text", 1.0), ("spent", f64::NAN), ("spent", f64::INFINITY)] {
        assert_eq!(keys.increment_float(key, by).unwrap_err().kind(), ErrorKind::Invalid, "{key} {by}");
    }
    assert_eq!(keys.get::<f64>("spent").unwrap(), Some(1.25));
}
