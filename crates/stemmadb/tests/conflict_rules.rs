//! Conflict rules: replicas that resolve the same branches write the same revisions, and stop writing.

use std::sync::Arc;

use serde_json::json;
use stemmadb::replication::{ConflictFunction, ConflictRule};
use stemmadb::{Database, Document, Revision, Sequence};

/// Databases with one document each, which all of them changed differently since its first revision.
fn diverged(bodies: &[serde_json::Value]) -> Vec<Database> {
    let first = Database::in_memory();
    let revision = first.insert("x", &json!({"a": 0, "b": 0, "at": 0})).unwrap();
    let databases: Vec<Database> = bodies.iter().map(|_| Database::in_memory()).collect();
    for (database, body) in databases.iter().zip(bodies) {
        first.replicate_to(database).unwrap();
        database.replace("x", &revision, body).unwrap();
    }
    databases
}

fn exchange(databases: &[Database]) {
    for source in databases {
        for target in databases {
            source.replicate_to(target).unwrap();
        }
    }
}

/// The winner's body and all leaves.
fn state(database: &Database) -> (String, Vec<(Revision, bool)>) {
    let branches = database.revisions("x").unwrap();
    let leaves = branches.iter().map(|branch| (branch.revisions[0], branch.deleted)).collect();
    (database.get("x").unwrap().unwrap().to_json().unwrap(), leaves)
}

#[test]
fn replicas_that_resolve_the_same_branches_write_the_same_revisions() {
    let bodies = [
        json!({"a": 1, "b": 0, "at": 3}),
        json!({"a": 0, "b": 2, "at": 1}),
        json!({"a": 7, "b": 0, "c": {"d": 1}, "at": 2}),
    ];
    let newest: ConflictFunction = Arc::new(|conflict| {
        assert!(conflict.ancestor.is_some() && conflict.versions.len() > 1);
        let mut values = conflict.versions.iter().map(|version| version.value().unwrap());
        let first = values.next().unwrap();
        Ok(values.fold(first, |a, b| if a.get("at").unwrap().as_u64() < b.get("at").unwrap().as_u64() { b } else { a }))
    });
    for (rule, expected) in [
        (ConflictRule::LastWriter { field: "at".to_owned() }, r#"{"a":1,"b":0,"at":3}"#),
        (ConflictRule::Merge { field: Some("at".to_owned()) }, r#"{"a":1,"b":2,"at":3,"c":{"d":1}}"#),
        (ConflictRule::Merge { field: None }, r#"{"a":7,"b":2,"at":3,"c":{"d":1}}"#),
        (ConflictRule::Function(newest), r#"{"a":1,"b":0,"at":3}"#),
    ] {
        let databases = diverged(&bodies);
        exchange(&databases);
        for database in &databases {
            assert_eq!(rule.resolve_all(database, Sequence::ZERO).unwrap().count, 1, "{rule:?}");
        }
        let expected: serde_json::Value = serde_json::from_str(expected).unwrap();
        let found: serde_json::Value = serde_json::from_str(&state(&databases[0]).0).unwrap();
        assert_eq!(found, expected, "{rule:?}");
        assert!(databases.iter().all(|database| state(database) == state(&databases[0])), "{rule:?}");
        // Nothing is left to exchange or to resolve.
        let positions: Vec<Sequence> = databases.iter().map(Database::sequence).collect();
        exchange(&databases);
        for (database, before) in databases.iter().zip(positions) {
            assert_eq!(rule.resolve_all(database, Sequence::ZERO).unwrap().count, 0);
            assert_eq!(database.changes(before).unwrap().count_up_to(1).unwrap(), 0, "{rule:?}");
        }
    }
}

/// Each node sees another pair of three branches first: each resolution is another one, and they still become equal.
#[test]
fn replicas_that_saw_different_branches_agree_in_the_end() {
    let bodies = [json!({"a": 1, "b": 0}), json!({"a": 2, "b": 5}), json!({"a": 3, "c": 1})];
    for rule in [ConflictRule::LastWriter { field: "a".to_owned() }, ConflictRule::Merge { field: None }] {
        let databases = diverged(&bodies);
        // In a ring, from copies of the former state, so that no node is ahead.
        let mut rounds = 0;
        while rounds < 8 {
            let copies: Vec<Database> = databases
                .iter()
                .map(|database| {
                    let copy = Database::in_memory();
                    database.replicate_to(&copy).unwrap();
                    copy
                })
                .collect();
            for (at, database) in databases.iter().enumerate() {
                copies[(at + 1) % copies.len()].replicate_to(database).unwrap();
                rule.resolve_all(database, Sequence::ZERO).unwrap();
            }
            rounds += 1;
        }
        assert!(databases.iter().all(|database| state(database) == state(&databases[0])), "{rule:?}");
        let (body, leaves) = state(&databases[0]);
        assert_eq!(leaves.iter().filter(|(_, deleted)| !deleted).count(), 1);
        assert!(body.contains("\"a\":3"), "{body}");
    }
}

#[test]
fn changes_win_against_deletions_and_files_are_merged() {
    let here = Database::in_memory();
    let first = here.insert("x", &json!({"a": 0})).unwrap();
    let there = Database::in_memory();
    here.replicate_to(&there).unwrap();
    here.delete("x", &first).unwrap();
    there.replace("x", &first, &json!({"a": 1})).unwrap();
    exchange(&[here.clone(), there.clone()]);
    let rule = ConflictRule::Merge { field: None };
    assert!(!rule.resolve(&here, "x").unwrap(), "one branch is left");
    assert_eq!(here.get("x").unwrap().unwrap().to_json().unwrap(), r#"{"a":1}"#);

    let first = here.insert("y", &json!({})).unwrap();
    here.replicate_to(&there).unwrap();
    for (database, name, content) in [(&here, "one", "1"), (&there, "two", "2")] {
        database.files().attach("y", &first, name, "text/plain", content.as_bytes()).unwrap();
    }
    exchange(&[here.clone(), there.clone()]);
    assert!(rule.resolve(&here, "y").unwrap() && rule.resolve(&there, "y").unwrap());
    let [one, other] = [&here, &there].map(|database| database.get("y").unwrap().unwrap());
    assert_eq!(one.revision(), other.revision());
    let names = |document: &Document| -> Vec<String> {
        document.attachments().unwrap().into_iter().map(|file| file.name).collect()
    };
    assert_eq!((names(&one), names(&other)), (vec!["one".to_owned(), "two".to_owned()], names(&one)));
    assert!(here.revisions("y").unwrap().iter().filter(|branch| !branch.deleted).count() == 1);
}

#[test]
fn failed_function_leaves_the_conflict() {
    let databases = diverged(&[json!({"a": 1}), json!({"a": 2})]);
    exchange(&databases);
    let wrong: ConflictFunction = Arc::new(|_| Ok(1.into()));
    let error = ConflictRule::Function(wrong).resolve(&databases[0], "x").unwrap_err();
    assert!(error.message().contains("returns a document, not"), "{error}");
    assert_eq!(databases[0].revisions("x").unwrap().len(), 2);
}
