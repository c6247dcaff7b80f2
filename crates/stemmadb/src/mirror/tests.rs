//! Tests that a mirror equals its database after random edits and after an interruption at any step.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;

use super::disk::interruption;
use super::{MirrorOptions, name};
use crate::testing::Random;
use crate::{Database, Edit, ErrorKind, Revision, Sequence, Value};

/// The mirrored documents by id: JSON and files.
type Documents = BTreeMap<String, (serde_json::Value, BTreeMap<String, Vec<u8>>)>;
/// Path, name of the value, id.
type Links = BTreeSet<(String, String, String)>;

fn names_in(directory: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

fn json_of(path: &Path) -> serde_json::Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Reads the mirror, and checks that every file is named after the id of its document.
fn read_mirror(root: &Path) -> (Documents, Links) {
    let mut documents = Documents::new();
    for file in names_in(&root.join("documents")) {
        let document = json_of(&root.join("documents").join(&file));
        let id = document["_id"].as_str().unwrap().to_owned();
        let stem = name::encode_text(&id);
        assert_eq!(file, format!("{stem}.json"));
        let directory = root.join("files").join(&stem);
        let files = document["_attachments"].as_object().map(|files| {
            files
                .keys()
                .map(|name| (name.clone(), fs::read(directory.join(name::encode_text(name))).unwrap_or_default()))
                .collect()
        });
        let files: BTreeMap<_, _> = files.unwrap_or_default();
        let is_copied = directory.is_dir();
        assert_eq!(names_in(&directory).len(), if is_copied { files.len() } else { 0 }, "{id}");
        documents.insert(id, (document, files));
    }
    let kept: BTreeSet<_> = documents.keys().map(|id| name::encode_text(id)).collect();
    assert!(names_in(&root.join("files")).iter().all(|name| kept.contains(name)));
    (documents, links(root))
}

fn links(root: &Path) -> Links {
    let mut links = Links::new();
    for path in names_in(&root.join("by")) {
        for value in names_in(&root.join("by").join(&path)) {
            let directory = root.join("by").join(&path).join(&value);
            let files = names_in(&directory);
            assert!(!files.is_empty(), "by/{path}/{value} has nothing in it");
            for file in files {
                let target = fs::read_link(directory.join(&file)).unwrap();
                assert_eq!(target, Path::new("../../../documents").join(&file));
                let id = json_of(&directory.join(&file))["_id"].as_str().unwrap().to_owned();
                links.insert((path.clone(), value.clone(), id));
            }
        }
    }
    links
}

/// What the mirror should contain, computed through the query and document interfaces.
fn expected_mirror(db: &Database, with_files: bool) -> (Documents, Links) {
    let (mut documents, mut links) = (Documents::new(), Links::new());
    for document in db.find(crate::all_of([])).documents().unwrap() {
        let id = document.id().to_string();
        let mut object = json!({"_id": id, "_rev": document.revision().to_string()});
        let branches = db.revisions(&id).unwrap();
        let others: Vec<_> = branches[1..]
            .iter()
            .filter(|branch| !branch.deleted)
            .map(|branch| branch.revisions[0].to_string())
            .collect();
        if !others.is_empty() {
            object["_conflicts"] = json!(others);
        }
        let mut files = BTreeMap::new();
        for file in document.attachments().unwrap() {
            object["_attachments"][&file.name] =
                json!({"content_type": file.content_type, "length": file.length, "revpos": file.generation});
            let mut content = Vec::new();
            let mut reader = db.files().open(&id, &file.name).unwrap().unwrap();
            std::io::Read::read_to_end(&mut reader, &mut content).unwrap();
            files.insert(file.name, if with_files { content } else { Vec::new() });
        }
        let body: serde_json::Value = serde_json::from_str(&document.to_json().unwrap()).unwrap();
        for (name, value) in body.as_object().unwrap() {
            object[name] = value.clone();
        }
        let mut link = |path: &str, value: &serde_json::Value| {
            let value = Value::parse(value.to_string().as_bytes()).unwrap();
            links.extend(name::encode_value(&value).map(|value| (path.to_owned(), value, id.clone())));
        };
        body.get("colour").into_iter().for_each(|colour| link("colour", colour));
        let keywords = body.get("keywords").and_then(|keywords| keywords.as_array());
        keywords.into_iter().flatten().for_each(|keyword| link("keywords", keyword));
        documents.insert(id, (object, files));
    }
    (documents, links)
}

fn options() -> MirrorOptions {
    MirrorOptions::new().by("colour").by("keywords[]").files(true).flush(false)
}

const IDS: [&str; 12] = [
    "corvet",
    "..",
    ".hidden",
    "a/b",
    "../up",
    "100%",
    "Corvet",
    "né",
    "ne\u{301}",
    "_design/x",
    "tab\tnewline\n",
    "\"q\"",
];

fn id(random: &mut Random) -> String {
    match random.below(5) {
        0 => "long/".repeat(20 + random.below(30) as usize),
        1 => format!("car{}", random.below(10)),
        _ => IDS[random.below(IDS.len() as u64) as usize].to_owned(),
    }
}

fn value(random: &mut Random) -> serde_json::Value {
    let values = [
        json!("red"),
        json!("Red"),
        json!("../red"),
        json!(""),
        json!("1"),
        json!(1),
        json!(1.0),
        json!(null),
        json!(true),
        json!("true"),
        json!("."),
        json!("x".repeat(300)),
        json!({"deep": 1}),
        json!(["red"]),
        json!(-0.5),
        json!("a\u{0}b"),
    ];
    values[random.below(values.len() as u64) as usize].clone()
}

fn body(random: &mut Random) -> serde_json::Value {
    let mut body = json!({"n": random.below(3)});
    if random.below(4) > 0 {
        body["colour"] = value(random);
    }
    if random.below(3) > 0 {
        body["keywords"] = (0..random.below(4)).map(|_| value(random)).collect();
    }
    body
}

/// Writes a revision as replication does, which may create a conflict.
fn write_foreign_revision(db: &Database, id: &str, random: &mut Random) {
    let hash: String = (0..32).map(|_| char::from_digit(random.below(16) as u32, 16).unwrap()).collect();
    let revision: Revision = format!("{}-{hash}", 1 + random.below(3)).parse().unwrap();
    let body = Value::parse(body(random).to_string().as_bytes()).unwrap();
    let (id, deleted) = (id.parse().unwrap(), random.below(4) == 0);
    db.edit(Edit::Foreign { id, revisions: vec![revision], deleted, body, files: Vec::new() }).unwrap();
}

fn write_at_random(db: &Database, random: &mut Random, count: u64) {
    for _ in 0..count {
        let id = id(random);
        let current = db.get(&id).unwrap();
        match (current, random.below(12)) {
            (Some(document), 0 | 1) => drop(db.delete(&id, document.revision()).unwrap()),
            (Some(document), 2 | 3) => {
                let (name, content) =
                    (["a.txt", "../b", ".c"][random.below(3) as usize], format!("{}", random.below(4)));
                db.files().attach(&id, document.revision(), name, "text/plain", content.as_bytes()).unwrap();
            }
            (Some(document), 4) => {
                if let Some(file) = document.attachments().unwrap().first() {
                    db.files().detach(&id, document.revision(), &file.name).unwrap();
                }
            }
            (_, 5) => write_foreign_revision(db, &id, random),
            _ => drop(db.upsert(&id, &body(random)).unwrap()),
        }
    }
}

#[test]
fn mirror_equals_database_after_random_edits() {
    for seed in 0..6 {
        let mut random = Random::new(seed);
        let (db, directory) = (Database::in_memory(), tempfile::tempdir().unwrap());
        for round in 0..25 {
            let count = 1 + random.below(30);
            write_at_random(&db, &mut random, count);
            // The mirror is reopened in each round, as by a new process.
            let mut mirror = db.mirror_to(directory.path(), options().flush(round % 8 == 0)).unwrap();
            mirror.catch_up().unwrap();
            assert_eq!(read_mirror(directory.path()), expected_mirror(&db, true), "seed {seed}, round {round}");
            write_at_random(&db, &mut random, 1);
            mirror.catch_up().unwrap();
            assert_eq!(read_mirror(directory.path()), expected_mirror(&db, true), "seed {seed}, round {round}");
            drop(mirror);
            let all: BTreeSet<_> = names_in(directory.path()).into_iter().collect();
            assert!(
                all.iter().all(|name| ["documents", "by", "files", ".stemma-mirror.json"].contains(&&**name)),
                "{all:?}"
            );
        }
    }
}

fn copy_all(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        match entry.file_type().unwrap() {
            kind if kind.is_symlink() => std::os::unix::fs::symlink(fs::read_link(&source).unwrap(), &target).unwrap(),
            kind if kind.is_dir() => copy_all(&source, &target),
            _ => drop(fs::copy(&source, &target).unwrap()),
        }
    }
}

/// Interrupts `catch_up` with these options after each number of steps, and checks that the next run completes the
/// mirror. Returns the number of steps.
fn interrupt_at_every_step(db: &Database, before: &Path, options: &MirrorOptions, with_files: bool) -> u64 {
    for steps in 0.. {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("copy");
        copy_all(before, &root);
        interruption::set(Some(steps));
        let outcome = db.mirror_to(&root, options.clone()).and_then(|mut mirror| mirror.catch_up());
        interruption::set(None);
        // Every document file is readable at any time.
        for file in names_in(&root.join("documents")) {
            json_of(&root.join("documents").join(file));
        }
        if let Err(error) = &outcome {
            assert!(error.message().contains("simulated kill"), "{error}");
            // As after a kill: a partially written temporary file.
            fs::create_dir_all(root.join(".stemma-mirror.tmp")).unwrap();
            fs::write(root.join(".stemma-mirror.tmp/file"), b"{\"half").unwrap();
        }
        let again = options.clone().rebuild(false);
        db.mirror_to(&root, again).unwrap().catch_up().unwrap();
        assert_eq!(read_mirror(&root), expected_mirror(db, with_files), "interrupted after {steps} steps");
        assert!(!root.join(".stemma-mirror.tmp").exists());
        if outcome.is_ok() {
            return steps;
        }
    }
    unreachable!("the number of steps is finite")
}

#[test]
fn interrupted_mirror_is_completed_by_next_run() {
    let mut random = Random::new(7);
    let (db, directory) = (Database::in_memory(), tempfile::tempdir().unwrap());
    write_at_random(&db, &mut random, 9);
    let initial_steps = interrupt_at_every_step(&db, tempfile::tempdir().unwrap().path(), &options(), true);
    db.mirror_to(directory.path(), options()).unwrap().catch_up().unwrap();
    write_at_random(&db, &mut random, 9);
    let update_steps = interrupt_at_every_step(&db, directory.path(), &options(), true);
    assert!(initial_steps > 30 && update_steps > 30, "{initial_steps} {update_steps}");

    // Other link paths, then without files, then a full rebuild.
    db.mirror_to(directory.path(), MirrorOptions::new().by("n").by("colour").flush(false)).unwrap().catch_up().unwrap();
    let relinked = interrupt_at_every_step(&db, directory.path(), &options().files(false), false);
    let with_files = interrupt_at_every_step(&db, directory.path(), &options(), true);
    let rebuilt = interrupt_at_every_step(&db, directory.path(), &options().rebuild(true), true);
    assert!(relinked > 8 && with_files > 8 && rebuilt > 30, "{relinked} {with_files} {rebuilt}");
}

#[test]
fn options_can_change_between_runs() {
    let (db, directory) = (Database::in_memory(), tempfile::tempdir().unwrap());
    let first = db.insert("corvet", &json!({"colour": "red", "keywords": ["fast"]})).unwrap();
    db.files().attach("corvet", &first, "photo", "image/png", &b"png"[..]).unwrap();
    let there = |place: &str| directory.path().join(place).exists();
    for (options, links, with_files) in [
        (MirrorOptions::new(), &[][..], false),
        (MirrorOptions::new().by("colour"), &["by/colour/red/corvet.json"][..], false),
        (MirrorOptions::new().by("keywords[]").files(true), &["by/keywords/fast/corvet.json"], true),
        (
            MirrorOptions::new().by("keywords.0").by("colour"),
            &["by/keywords.0/fast/corvet.json", "by/colour/red/corvet.json"],
            false,
        ),
    ] {
        db.mirror_to(directory.path(), options).unwrap().catch_up().unwrap();
        assert_eq!(super::tests::links(directory.path()).len(), links.len());
        assert!(links.iter().all(|link| there(link)));
        assert_eq!(there("files/corvet/photo"), with_files);
    }
}

#[test]
fn foreign_directories_are_rejected() {
    let (db, other) = (Database::in_memory(), Database::in_memory());
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("copy");
    fs::create_dir_all(root.join(".git")).unwrap();
    fs::write(root.join("mine.txt"), "mine").unwrap();
    let refusal = |db: &Database, options: MirrorOptions| db.mirror_to(&root, options).unwrap_err();
    for options in [MirrorOptions::new(), MirrorOptions::new().rebuild(true)] {
        let error = refusal(&db, options);
        assert!(
            error.kind() == ErrorKind::Invalid && error.message().contains("neither empty nor a mirror"),
            "{error}"
        );
    }
    assert_eq!(names_in(&root).len(), 2);

    // A repository may exist beforehand, and other files may be added later.
    fs::remove_file(root.join("mine.txt")).unwrap();
    db.insert("a", &json!({})).unwrap();
    db.mirror_to(&root, MirrorOptions::new()).unwrap().catch_up().unwrap();
    fs::write(root.join("mine.txt"), "mine").unwrap();
    assert!(refusal(&other, MirrorOptions::new()).message().contains("of another database"));
    assert!(root.join("documents/a.json").exists());
    other.insert("b", &json!({})).unwrap();
    other.mirror_to(&root, MirrorOptions::new().rebuild(true)).unwrap().catch_up().unwrap();
    assert_eq!(names_in(&root.join("documents")), ["b.json"]);
    assert!(root.join("mine.txt").exists());

    // Only one mirror can use a directory at a time.
    let held = other.mirror_to(&root, MirrorOptions::new()).unwrap();
    assert_eq!(refusal(&other, MirrorOptions::new()).kind(), ErrorKind::Locked);
    drop(held);

    // A file that the mirror did not write.
    fs::write(root.join("documents/b.json"), "{").unwrap();
    other.upsert("b", &json!({"n": 2})).unwrap();
    let damaged = other.mirror_to(&root, MirrorOptions::new()).unwrap().catch_up().unwrap_err();
    assert_eq!((damaged.kind(), damaged.hint()), (ErrorKind::Corrupt, Some("rebuild the mirror")));
    fs::write(root.join(".stemma-mirror.json"), "{}").unwrap();
    assert_eq!(refusal(&other, MirrorOptions::new()).kind(), ErrorKind::Corrupt);
}

#[test]
fn mirror_ahead_of_restored_database_is_rejected() {
    let directory = tempfile::tempdir().unwrap();
    let (path, older, root) =
        (directory.path().join("db"), directory.path().join("older"), directory.path().join("copy"));
    let db = Database::open(&path).unwrap();
    db.insert("a", &json!({})).unwrap();
    db.close().unwrap();
    copy_all(&path, &older);
    let db = Database::open(&path).unwrap();
    db.insert("b", &json!({})).unwrap();
    db.mirror_to(&root, MirrorOptions::new()).unwrap().catch_up().unwrap();
    let older = Database::open(&older).unwrap();
    let error = older.mirror_to(&root, MirrorOptions::new()).unwrap_err();
    assert!(error.message().contains("further than the database"), "{error}");
    older.mirror_to(&root, MirrorOptions::new().rebuild(true)).unwrap().catch_up().unwrap();
    assert_eq!(names_in(&root.join("documents")), ["a.json"]);
}

#[test]
fn follow_runs_until_stopped() {
    let (db, directory) = (Database::in_memory(), tempfile::tempdir().unwrap());
    let should_continue = Arc::new(AtomicBool::new(true));
    let mut mirror = db.mirror_to(directory.path(), options()).unwrap();
    let following = std::thread::spawn({
        let should_continue = should_continue.clone();
        move || mirror.follow(Duration::from_millis(20), |_| should_continue.load(Ordering::Relaxed))
    });
    let mut random = Random::new(11);
    for _ in 0..20 {
        write_at_random(&db, &mut random, 10);
        let state = directory.path().join(".stemma-mirror.json");
        let reached = || Sequence::new(json_of(&state)["sequence"].as_u64().unwrap_or(0));
        let start = Instant::now();
        while reached() < db.sequence() {
            assert!(start.elapsed() < Duration::from_secs(60), "the mirror does not follow");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(read_mirror(directory.path()), expected_mirror(&db, true));
    }
    should_continue.store(false, Ordering::Relaxed);
    following.join().unwrap().unwrap();
}

#[test]
fn stopped_run_is_continued_by_next_run() {
    let (db, directory) = (Database::in_memory(), tempfile::tempdir().unwrap());
    for number in 0..50 {
        db.insert(&format!("{number}"), &json!({"colour": number})).unwrap();
    }
    let mut mirror = db.mirror_to(directory.path(), options()).unwrap();
    let done = mirror.catch_up_while(|done| done.written_count < 17).unwrap();
    assert_eq!(done.written_count, 17);
    assert_eq!(names_in(&directory.path().join("documents")).len(), 17);
    mirror.catch_up().unwrap();
    assert_eq!(read_mirror(directory.path()), expected_mirror(&db, true));
}
