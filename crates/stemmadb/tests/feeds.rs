//! Filtered feeds served by the index return the same changes as a scan of all changes and read few documents.

use serde_json::{Value as Json, json};
use stemmadb::testing::{Clock, Random};
use stemmadb::{
    Change, Changes, Database, DocumentId, Durability, Edit, ErrorKind, Expiry, FeedPlan, Options, Selector, Sequence,
    Value,
};

const BEGINNING: i64 = 1_000_000_000_000;

/// 3,000 documents; some of the earlier ones were changed, deleted with or without a body, or have expired. Half of the
/// database is in the tree.
fn library() -> Database {
    let clock = Clock::fixed_at(BEGINNING);
    let options = Options::new().durability(Durability::None).background(false).clock(clock.clone());
    let db = Database::in_memory_with(options).unwrap();
    db.expiration().add_rule(Expiry::at("ends")).unwrap();
    let mut random = Random::new(7);
    for n in 0..3000 {
        let ends = if n % 50 == 0 { json!(BEGINNING / 1000 + 10) } else { Json::Null };
        let body =
            json!({"n": n, "kind": n % 100, "tags": [n % 7, "t"], "long": "x".repeat(n % 3 * 400), "ends": ends});
        db.insert(&format!("d{n:04}"), &body).unwrap();
        if n == 1500 {
            db.maintenance().checkpoint().unwrap();
        }
    }
    for step in 0..300 {
        let id = format!("d{:04}", random.below(3000));
        let Some(document) = db.get(&id).unwrap() else { continue };
        match step % 3 {
            0 => drop(db.replace(&id, document.revision(), &json!({"n": step, "kind": step % 100}))),
            1 => drop(db.delete(&id, document.revision())),
            _ => {
                let parent = Some(*document.revision());
                let body = Value::parse(json!({"kind": step % 100}).to_string().as_bytes()).unwrap();
                let edit = Edit::Put { id: id.parse().unwrap(), parent, deleted: true, body, files: vec![] };
                db.bulk(vec![edit]).unwrap().remove(0).unwrap();
            }
        }
    }
    clock.set(BEGINNING + 60_000);
    db
}

fn selector(json: &Json) -> Selector {
    Selector::parse(&Value::parse(json.to_string().as_bytes()).unwrap()).unwrap()
}

fn read(changes: Changes) -> Vec<Change> {
    changes.run().collect::<stemmadb::Result<_>>().unwrap()
}

/// The body of a change; empty for some deletions.
fn body(change: &Change) -> Json {
    serde_json::from_str(&change.document.as_ref().unwrap().to_json().unwrap()).unwrap()
}

/// A selector, whether few documents can match it, and the equivalent predicate on id and body.
type Case = (Json, bool, fn(&str, &Json) -> bool);

fn cases() -> Vec<Case> {
    vec![
        (json!({"kind": 17}), true, |_, body| body["kind"] == 17),
        (json!({"kind": {"$in": [3, 5]}, "n": {"$gt": 700}}), true, |_, body| {
            (body["kind"] == 3 || body["kind"] == 5) && body["n"].as_i64().is_some_and(|n| n > 700)
        }),
        (json!({"n": {"$lt": 40}}), true, |_, body| body["n"].as_i64().is_some_and(|n| n < 40)),
        (json!({"n": {"$exists": false}}), true, |_, body| body.get("n").is_none()),
        (json!({"_id": {"$gte": "d0100", "$lt": "d0140"}}), true, |id, _| ("d0100".."d0140").contains(&id)),
        (json!({"$or": [{"kind": 0}, {"tags": {"$all": [3]}, "kind": {"$lt": 9}}]}), true, |_, body| {
            let has_tag = body["tags"].as_array().is_some_and(|tags| tags.contains(&json!(3)));
            body["kind"] == 0 || has_tag && body["kind"].as_i64().is_some_and(|kind| kind < 9)
        }),
        (json!({"long": {"$regex": "^xxx"}, "kind": 1}), true, |_, body| {
            body["kind"] == 1 && body["long"].as_str().is_some_and(|text| text.starts_with("xxx"))
        }),
        (json!({"nothing": 1}), true, |_, _| false),
        (json!({"tags": {"$elemMatch": {"$eq": "t"}}}), false, |_, body| body["tags"].is_array()),
        (json!({}), false, |_, _| true),
    ]
}

#[test]
fn indexed_feed_matches_the_scanned_feed() {
    let db = library();
    let newest = db.info().unwrap().sequence;
    let all = read(db.changes(Sequence::ZERO).unwrap().documents(true));
    assert!(all.iter().any(|change| change.deleted && body(change).get("kind").is_some()));
    for (query, are_few, matches) in cases() {
        let selector = selector(&query);
        let feed = |since| db.changes(since).unwrap().documents(true).selector(&selector).unwrap();
        let plan = feed(Sequence::ZERO).explain().unwrap();
        match plan {
            FeedPlan::Candidates { count } => assert!(are_few && count < 700, "{query} reads {count} of {newest}"),
            ref other => assert!(!are_few, "{query} uses {other:?}"),
        }
        let expected: Vec<Change> =
            all.iter().filter(|change| matches(change.id.as_str(), &body(change))).cloned().collect();
        assert_eq!(read(feed(Sequence::ZERO)), expected, "{query}");
        let mut backwards = read(feed(Sequence::ZERO).descending(true));
        backwards.reverse();
        assert_eq!(backwards, expected, "{query}, downwards");
        for limit in [1, 5, 300] {
            let found = read(feed(Sequence::ZERO).limit(limit));
            assert_eq!(found, expected[..limit.min(expected.len())], "{query}, {limit}");
        }
        for since in [Sequence::new(1700), Sequence::new(newest.get() - 100)] {
            let later = expected.iter().filter(|change| change.sequence > since).cloned().collect::<Vec<_>>();
            assert_eq!(read(feed(since)), later, "{query}, after {since}");
        }
        let at_the_end = feed(Sequence::new(newest.get() - 100)).explain().unwrap();
        assert_eq!(at_the_end, FeedPlan::Changes { count_max: 100 }, "the end of a feed is scanned");
    }
}

#[test]
fn feed_of_ids_uses_lookups() {
    let db = library();
    let ids: Vec<String> = (0..40).map(|n| format!("d{:04}", n * 71)).chain(["nothing".to_owned()]).collect();
    let feed = || db.changes(Sequence::ZERO).unwrap().ids(ids.clone());
    let FeedPlan::Candidates { count } = feed().explain().unwrap() else { panic!("every change is read") };
    assert_eq!(count, 40);
    let expected: Vec<Change> = read(db.changes(Sequence::ZERO).unwrap())
        .into_iter()
        .filter(|change| ids.contains(&change.id.to_string()))
        .collect();
    assert_eq!(read(feed()), expected);
    let most: Vec<String> = (0..3000).map(|n| format!("d{n:04}")).collect();
    assert!(matches!(db.changes(Sequence::ZERO).unwrap().ids(most).explain().unwrap(), FeedPlan::Changes { .. }));
}

/// A pattern, whether few documents can match it, and the equivalent predicate on id and body.
type PathCase = (&'static [&'static str], bool, fn(&str, &Json) -> bool);

#[test]
fn feed_of_paths_matches_the_scanned_feed() {
    let db = library();
    for n in 0..40 {
        let body =
            json!({"color": {"roof": "red", "doors": {"left": n}}, "a.b": [n], "e": {"": n}, "list": [{"x": n}]});
        db.insert(&format!("cars/{n}"), &body).unwrap();
    }
    db.insert("cars", &json!({"color": "blue"})).unwrap();
    db.insert("plus", &json!({"+": {"/": 1}})).unwrap();
    let gone = db.get("cars/7").unwrap().unwrap();
    db.delete("cars/7", gone.revision()).unwrap();
    let cases: &[PathCase] = &[
        (&["color/+"], true, |_, body| body["color"].is_object()),
        (&["color"], true, |_, body| body.get("color").is_some()),
        (&["color/#"], true, |_, body| body.get("color").is_some()),
        (&["color/doors/+"], true, |_, body| body["color"]["doors"].is_object()),
        (&["color/+/+/+"], true, |_, _| false),
        (&["list/0/x"], true, |_, body| body["list"].is_array()),
        (&["list/+/x", "nothing"], true, |_, body| body["list"].is_array()),
        (&["list/x"], true, |_, _| false),
        (&["a.b/0"], true, |_, body| body.get("a.b").is_some()),
        (&["e/"], true, |_, body| body.get("e").is_some()),
        (&["\\+/\\/"], true, |_, body| body.get("+").is_some()),
        (&["_id/cars"], true, |id, _| id == "cars"),
        (&["_id/cars/+"], false, |id, _| id.starts_with("cars/")),
        (&["_id/cars/#", "nothing"], false, |id, _| id == "cars" || id.starts_with("cars/")),
        (&["+/roof"], false, |_, body| body["color"].get("roof").is_some()),
        (&["tags/1"], false, |_, body| body["tags"].is_array()),
        (&["#"], false, |_, _| true),
        (&["+"], false, |_, body| body.as_object().is_some_and(|body| !body.is_empty())),
    ];
    let all = read(db.changes(Sequence::ZERO).unwrap().documents(true));
    for (patterns, are_few, matches) in cases {
        let feed = || db.changes(Sequence::ZERO).unwrap().paths(*patterns).unwrap();
        let expected: Vec<Change> =
            all.iter().filter(|change| matches(change.id.as_str(), &body(change))).cloned().collect();
        assert_eq!(read(feed().documents(true)), expected, "{patterns:?}");
        assert!(read(feed()).iter().all(|change| change.document.is_none()));
        match feed().explain().unwrap() {
            FeedPlan::Candidates { count } => assert!(*are_few && count < 700, "{patterns:?} reads {count}"),
            ref other => assert!(!are_few, "{patterns:?} uses {other:?}"),
        }
        let both = feed().selector(&selector(&json!({"color.doors.left": {"$lt": 3}}))).unwrap();
        let doors = |change: &&Change| body(change)["color"]["doors"]["left"].as_i64().is_some_and(|left| left < 3);
        let expected: Vec<String> = expected.iter().filter(doors).map(|change| change.id.to_string()).collect();
        assert_eq!(read(both).iter().map(|change| change.id.to_string()).collect::<Vec<_>>(), expected, "{patterns:?}");
    }
    assert!(db.changes(Sequence::ZERO).unwrap().paths(["a/#/b"]).is_err());
    assert!(db.changes(Sequence::ZERO).unwrap().paths([""; 0]).is_err());
    let mut subscription = db.subscribe(Sequence::ZERO).paths(["color/+"]).unwrap();
    let mut next = || subscription.next_within(std::time::Duration::ZERO).unwrap().map(|change| change.id.to_string());
    assert_eq!(std::iter::from_fn(&mut next).count(), 39);
    db.insert("bike", &json!({"gears": 7})).unwrap();
    db.insert("bus", &json!({"color": {"roof": "white"}})).unwrap();
    assert_eq!((next().as_deref(), next()), (Some("bus"), None));
}

#[test]
fn path_subscription_continues_where_an_earlier_one_ended() {
    let db = library();
    let since = db.sequence();
    db.insert("before", &json!({"color": {"roof": "red"}})).unwrap();
    let first = db.get("before").unwrap().unwrap();
    let mut subscription = db.subscribe_paths(["color/+"]).unwrap().since(since).unwrap();
    db.replace("before", first.revision(), &json!({"color": {"roof": "blue"}})).unwrap();
    db.insert("after", &json!({"color": {"roof": "white"}})).unwrap();
    let mut seen = Vec::new();
    while let Some(change) = subscription.next_within(std::time::Duration::ZERO).unwrap() {
        seen.push((change.id.to_string(), change.paths.len()));
    }
    assert_eq!(seen, [("before".to_owned(), 0), ("before".to_owned(), 1), ("after".to_owned(), 1)]);
}

/// Documents that left those of a selector are reported by deletions beside their winners, once, in every way in which
/// a feed is read.
#[test]
fn departures_are_reported_once() {
    let db = Database::in_memory();
    let of_ada = || stemmadb::field("owner").eq("ada");
    let depart = |id: &str, replaced| Edit::Depart {
        id: DocumentId::new(id).unwrap(),
        replaced,
        body: Value::from_serialize(&json!({"owner": "ada"})).unwrap(),
    };
    let first = db.insert("a", &json!({"owner": "ada", "n": 1})).unwrap();
    let kept = db.insert("b", &json!({"owner": "ada"})).unwrap();
    // Enough documents of others that the index is asked.
    for at in 0..3000 {
        db.insert(&format!("x{at}"), &json!({"owner": "bob"})).unwrap();
    }
    let since = db.sequence();
    // Only of a revision that was replaced.
    let refused = db.bulk(vec![depart("a", first), depart("none", first)]).unwrap();
    assert!(refused.iter().all(|refused| refused.as_ref().unwrap_err().kind() == ErrorKind::Conflict));
    let second = db.replace("a", &first, &json!({"owner": "bob", "n": 2})).unwrap();
    let gone = *db.bulk(vec![depart("a", first)]).unwrap()[0].as_ref().unwrap();
    assert_eq!(db.get("a").unwrap().unwrap().revision(), &second);
    let reported = |since, limit| {
        let changes = db.changes(since).unwrap().selector(&of_ada()).unwrap().departures(true).documents(true);
        let reported: Vec<_> = changes.limit(limit).run().map(Result::unwrap).collect();
        reported
    };
    let all = reported(Sequence::ZERO, 9);
    assert_eq!(
        all.iter().map(|change| (change.id.as_str(), change.deleted)).collect::<Vec<_>>(),
        [("b", false), ("a", true)]
    );
    assert_eq!((all[0].revision, all[1].revision, &all[1].leaves), (kept, gone, &vec![gone]));
    assert_eq!(all[1].document.as_ref().unwrap().to_json().unwrap(), r#"{"owner":"ada"}"#);
    assert_eq!(reported(Sequence::ZERO, 1).len(), 1);
    let mut descending = db.changes(Sequence::ZERO).unwrap().selector(&of_ada()).unwrap().departures(true);
    descending = descending.descending(true);
    let ids: Vec<_> = descending.run().map(|change| change.unwrap().id.to_string()).collect();
    assert_eq!(ids, ["a", "b"]);
    assert_eq!(reported(since, 9).len(), 1);
    assert!(db.changes(since).unwrap().selector(&of_ada()).unwrap().run().next().is_none());
    let mut subscription = db.subscribe(since).selector(&of_ada()).unwrap().departures(true);
    assert_eq!(subscription.next_change().unwrap().unwrap().revision, gone);
    // Later changes of the document are not those of the deletion, whether it is read from memory or from the tree.
    for is_compacted in [false, true] {
        let since = db.sequence();
        db.upsert("a", &json!({"owner": "bob", "n": if is_compacted { 3 } else { 4 }})).unwrap();
        if is_compacted {
            db.maintenance().compact().unwrap();
        }
        assert!(reported(since, 9).is_empty());
        assert_eq!(reported(Sequence::ZERO, 9).len(), 2);
    }
    assert!(db.maintenance().check().unwrap().damages.is_empty());
}
