//! Members that fail, deadlines, tokens after restarts, and feeds of changes.

use std::time::Duration;

use serde_json::json;
use stemmadb::past::Retention;
use stemmadb::{Database, DeltaEvent, ErrorKind, Selector, field};
use stemmadb_federation::{Federation, Member, MissingMembers};

fn three() -> (Federation, Vec<Database>) {
    let databases: Vec<Database> = (0..3).map(|_| Database::in_memory()).collect();
    for at in 0..30 {
        databases[at % 3].insert(&format!("d{at:02}"), &json!({"n": at})).unwrap();
    }
    let members = ["a", "b", "c"].into_iter().zip(&databases).map(|(name, db)| Member::from(db).named(name));
    (Federation::over(members).unwrap(), databases)
}

#[test]
fn members_that_fail_are_named() {
    for is_disjoint in [true, false] {
        let (all, databases) = three();
        let all = all.disjoint(is_disjoint);
        assert_eq!(all.find(Selector::everything()).count().unwrap(), 30);
        databases[1].clone().close().unwrap();
        let find = || all.find(Selector::everything());
        let errors = [
            find().count().unwrap_err(),
            find().sort("n").documents().unwrap_err(),
            find().documents().unwrap_err(),
            find().group_by("n").counts().unwrap_err(),
            all.get("none").unwrap_err(),
            all.aggregate(&r#"{"figures": {"n": "count"}}"#.parse().unwrap()).unwrap_err(),
            all.changes().run().map(drop).unwrap_err(),
        ];
        for error in errors {
            assert!(error.message().contains("member `b`"), "{error}");
        }
        let missing = MissingMembers::new();
        assert_eq!(find().partial(&missing).count().unwrap(), 20);
        assert_eq!(find().partial(&missing).sort("n").limit(2).documents().unwrap().len(), 2);
        assert_eq!(find().partial(&missing).documents().unwrap().len(), 20);
        let names: Vec<String> = missing.members().into_iter().map(|member| member.name).collect();
        assert_eq!(names, ["b"]);
        assert_eq!(all.changes().partial(&missing).run().unwrap().count(), 20);
    }
}

#[test]
fn malformed_questions_are_errors_also_of_partial_answers() {
    let (all, _databases) = three();
    let missing = MissingMembers::new();
    let error = all.find(Selector::everything()).sort("a..b").partial(&missing).documents().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(missing.is_empty());
    let token = all.find(Selector::everything()).sort("n").limit(2);
    let mut page = token.run().unwrap();
    page.by_ref().for_each(drop);
    let token = page.token().unwrap().unwrap();
    let error = all.find(field("n").gt(1)).sort("n").after(token).run().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(Federation::over(Vec::<Database>::new()).is_err());
}

#[test]
fn deadlines_name_a_member_or_stop() {
    let (all, _databases) = three();
    let error = all.find(Selector::everything()).deadline(Duration::ZERO).count().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Stopped, "{error}");
    assert!(error.message().contains("member `a`"), "{error}");
    let error = all.find(Selector::everything()).sort("n").deadline(Duration::ZERO).documents().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Stopped, "{error}");
    assert_eq!(all.find(Selector::everything()).deadline(Duration::from_secs(600)).count().unwrap(), 30);
}

#[test]
fn pages_show_the_first_state_also_after_a_restart() {
    for (is_disjoint, sort) in [(true, true), (false, true), (true, false), (false, false)] {
        let directory = tempfile::tempdir().unwrap();
        let open = || {
            let names = ["north", "south"];
            let databases = names.map(|name| Database::open(directory.path().join(name)).unwrap());
            let all = Federation::over(names.into_iter().zip(databases.iter())).unwrap().disjoint(is_disjoint);
            (databases, all)
        };
        let (databases, all) = open();
        for (at, db) in databases.iter().enumerate() {
            db.history().keep(Retention::Everything).unwrap();
            for number in 0..10 {
                db.insert(&format!("d{number}-{at}"), &json!({"n": number})).unwrap();
            }
        }
        databases[0].insert("both", &json!({"n": 20})).unwrap();
        if !is_disjoint {
            let first = databases[1].insert("both", &json!({"n": 0})).unwrap();
            databases[1].replace("both", &first, &json!({"n": 30})).unwrap();
        }
        let query = |all: &Federation| {
            let find = all.find(Selector::everything()).limit(4);
            if sort { find.sort("n") } else { find }
        };
        let mut page = query(&all).run().unwrap();
        let mut found: Vec<String> = page.by_ref().map(|row| row.unwrap().id().to_string()).collect();
        let mut token = page.token().unwrap();
        drop((page, all));
        for db in databases {
            // None of this is on the further pages.
            for number in 0..10 {
                db.insert(&format!("new-{number}"), &json!({"n": number})).unwrap();
            }
            for document in db.find(field("n").eq(9)).documents().unwrap() {
                if !document.id().as_str().starts_with("new") {
                    db.delete(document.id().as_str(), document.revision()).unwrap();
                }
            }
            db.close().unwrap();
        }
        let (_databases, all) = open();
        while let Some(after) = token {
            let mut page = query(&all).after(after).run().unwrap();
            found.extend(page.by_ref().map(|row| row.unwrap().id().to_string()));
            token = page.token().unwrap();
        }
        found.sort();
        let mut expected: Vec<String> = (0..10).flat_map(|n| [format!("d{n}-0"), format!("d{n}-1")]).collect();
        expected.insert(0, "both".into());
        assert_eq!(found, expected, "disjoint: {is_disjoint}, sorted: {sort}");
    }
}

#[test]
fn changes_resume_after_a_token() {
    let (all, databases) = three();
    let (mut token, mut found) = (None::<String>, Vec::new());
    loop {
        let mut changes = all.changes().limit(7);
        if let Some(token) = &token {
            changes = changes.after(token.as_str());
        }
        let mut rows = changes.run().unwrap();
        let ids: Vec<_> = rows.by_ref().map(|change| change.unwrap().change.id.to_string()).collect();
        token = Some(rows.token());
        if ids.is_empty() {
            break;
        }
        assert!(ids.len() <= 7);
        found.extend(ids);
    }
    found.sort();
    assert_eq!(found, (0..30).map(|at| format!("d{at:02}")).collect::<Vec<_>>());
    databases[2].insert("later", &json!({})).unwrap();
    let later: Vec<_> = all.changes().after(token.unwrap()).run().unwrap().map(|change| change.unwrap()).collect();
    assert_eq!((later.len(), later[0].member.as_str()), (1, "c"));
    assert!(all.changes().after("nonsense").run().is_err());
}

#[test]
fn live_queries_follow_the_copy_that_counts() {
    for is_disjoint in [true, false] {
        let (all, databases) = three();
        let mut watch = all.disjoint(is_disjoint).watch(field("n").lt(3)).unwrap();
        let mut next = || watch.next_within(Duration::from_secs(60)).unwrap().unwrap();
        let first = next();
        assert!(first.is_first && first.events.len() == 3);
        let revision = databases[2].insert("new", &json!({"n": 1})).unwrap();
        assert!(matches!(&next().events[..], [DeltaEvent::Added(document)] if document.id().as_str() == "new"));
        databases[2].replace("new", &revision, &json!({"n": 2})).unwrap();
        assert!(matches!(&next().events[..], [DeltaEvent::Changed(_)]));
        if !is_disjoint {
            // A greater revision of another member, which does not match.
            let mut revision = databases[0].insert("new", &json!({"n": 7})).unwrap();
            for _ in 0..3 {
                revision = databases[0].replace("new", &revision, &json!({"n": 8})).unwrap();
            }
            assert!(matches!(&next().events[..], [DeltaEvent::Removed { deleted: false, .. }]));
        }
    }
}
