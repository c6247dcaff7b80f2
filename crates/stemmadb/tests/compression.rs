//! Compression: every setting, each followed by every other, keeps every document, and takes less space where there is
//! something to gain.

use std::path::Path;

use stemmadb::salvage::Salvaged;
use stemmadb::{Compression, Database, Durability, Options, Value, testing};

const SETTINGS: [Compression; 3] = [Compression::None, Compression::Lz4, Compression::Zstd];
const DOCUMENTS: u64 = 1_500;

fn options() -> Options {
    let options = Options::new().durability(Durability::None).background(false).cache_bytes(0);
    testing::with_small_limits(options, 256 << 10, 128 << 10, 400)
}

fn id(number: u64) -> String {
    format!("document-{number}")
}

/// Small documents of one kind, some long ones, and some that can't be compressed.
fn body(number: u64, edit: u64) -> Value {
    let words = ["amber", "birch", "cedar", "coral", "delta"];
    let word = words[(number % 5) as usize];
    let text = match number % 50 {
        0 => format!("{word} {edit} ").repeat(2_000),
        1 => (0..40).map(|at| format!("{:x}", (number * 31 + at).wrapping_mul(0x9e37_79b9_7f4a_7c15))).collect(),
        _ => format!("{word} and {} with {edit}", words[(number / 5 % 5) as usize]),
    };
    let json = format!(
        r#"{{"number":{number},"edit":{edit},"kind":"payment","state":"pending","country":"portugal","text":"{text}"}}"#
    );
    Value::parse(json.as_bytes()).unwrap()
}

fn write(db: &Database, numbers: std::ops::Range<u64>, edit: u64) {
    for number in numbers {
        db.upsert(&id(number), &body(number, edit)).unwrap();
    }
}

/// Checks everything; document `number` has the edit `edit_of(number)`.
fn expect(db: &Database, edit_of: impl Fn(u64) -> u64, context: &str) {
    for number in 0..DOCUMENTS {
        let found = db.get(&id(number)).unwrap().unwrap_or_else(|| panic!("{context}: {number} is missing"));
        assert_eq!(found.value().unwrap(), body(number, edit_of(number)), "{context}: {number}");
    }
    let report = db.maintenance().check().unwrap();
    assert!(report.is_sound(), "{context}: {:?}", report.damages);
}

/// The size of everything that the database needs.
fn size(db: &Database) -> u64 {
    let info = db.info().unwrap();
    info.live_bytes + info.tree_live_bytes
}

fn open(path: &Path, compression: Compression) -> Database {
    Database::open_with(path, options().compression(compression)).unwrap()
}

#[test]
fn each_setting_keeps_everything_and_saves_space() {
    let directory = tempfile::tempdir().unwrap();
    let mut sizes = Vec::new();
    for compression in SETTINGS {
        let path = directory.path().join(format!("{compression}.stemma"));
        let db = open(&path, compression);
        write(&db, 0..DOCUMENTS, 1);
        let first = *db.get(&id(3)).unwrap().unwrap().revision();
        db.replace(&id(3), &first, &body(3, 2)).unwrap();
        let edit_of = |number| if number == 3 { 2 } else { 1 };
        expect(&db, edit_of, compression.name());
        let superseded = db.get_revision(&id(3), &first).unwrap().unwrap();
        assert_eq!(superseded.value().unwrap(), body(3, 1));
        let revision = *db.get(&id(4)).unwrap().unwrap().revision();
        db.files().attach(&id(4), &revision, "notes", "text/plain", &b"some text"[..]).unwrap();
        drop(db);
        // Without the option, the database keeps its own.
        let db = Database::open_with(&path, options()).unwrap();
        assert_eq!(db.info().unwrap().compression, compression);
        let mut content = String::new();
        let mut file = db.files().open(&id(4), "notes").unwrap().unwrap();
        std::io::Read::read_to_string(&mut file, &mut content).unwrap();
        assert_eq!(content, "some text");
        db.close().unwrap();
        let db = Database::rebuild(&path, options(), |_| ()).unwrap();
        db.maintenance().compact().unwrap();
        sizes.push(size(&db));
        db.close().unwrap();
        std::fs::remove_dir_all(path.join("tree")).unwrap();
        let reading = Database::open_with(&path, options().read_only(true).compression(Compression::None)).unwrap();
        assert_eq!(reading.info().unwrap().compression, compression);
        assert_eq!(reading.get(&id(0)).unwrap().unwrap().value().unwrap(), body(0, 1));
    }
    assert!(sizes[1] * 10 < sizes[0] * 8, "{sizes:?}");
    assert!(sizes[2] * 10 < sizes[1] * 9, "{sizes:?}");
}

#[test]
fn settings_change_between_any_two() {
    for (from, to) in SETTINGS.into_iter().flat_map(|from| SETTINGS.map(|to| (from, to))) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("changed.stemma");
        let db = open(&path, from);
        write(&db, 0..DOCUMENTS, 1);
        db.close().unwrap();
        let context = format!("{from} to {to}");
        let db = open(&path, to);
        write(&db, 0..DOCUMENTS / 3, 2);
        let edit_of = |number| if number < DOCUMENTS / 3 { 2 } else { 1 };
        expect(&db, edit_of, &context);
        drop(db);
        let db = Database::open_with(&path, options()).unwrap();
        expect(&db, edit_of, &context);
        db.maintenance().compact().unwrap();
        expect(&db, edit_of, &context);
        db.close().unwrap();
        expect(&Database::rebuild(&path, options(), |_| ()).unwrap(), edit_of, &context);
    }
}

/// `compact` leaves the same as if the setting had always been in force, and does nothing the second time.
#[test]
fn compaction_rewrites_everything_after_a_change() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("changed.stemma");
    let db = open(&path, Compression::None);
    write(&db, 0..DOCUMENTS, 1);
    db.maintenance().compact().unwrap();
    let plain = size(&db);
    db.close().unwrap();
    let segments = || {
        let entries = std::fs::read_dir(path.join("log")).unwrap();
        entries.map(|entry| entry.unwrap().file_name()).collect::<std::collections::BTreeSet<_>>()
    };
    let compacted = |compression| {
        let db = open(&path, compression);
        db.maintenance().compact().unwrap();
        expect(&db, |_| 1, "compacted");
        let (compacted, before) = (size(&db), segments());
        db.maintenance().compact().unwrap();
        let after = segments();
        assert!(after.is_subset(&before) && after.len() + 1 >= before.len(), "rewritten again: {before:?} {after:?}");
        db.close().unwrap();
        compacted
    };
    let (zstd, lz4, none) = (compacted(Compression::Zstd), compacted(Compression::Lz4), compacted(Compression::None));
    assert!(zstd < lz4 && lz4 < plain, "{zstd} {lz4} {plain}");
    // Records that were moved have a time of their own.
    assert!(none.abs_diff(plain) * 20 < plain, "{none} {plain}");
}

#[test]
fn small_documents_are_compressed_with_a_dictionary_of_the_database() {
    let live_bytes = |compression| {
        let db = Database::in_memory_with(options().compression(compression)).unwrap();
        for number in 0..DOCUMENTS {
            // Too small to repeat itself.
            db.upsert(&id(number), &body(number * 50 + 2, 1)).unwrap();
        }
        db.maintenance().checkpoint().unwrap();
        db.info().unwrap().live_bytes
    };
    let (lz4, zstd) = (live_bytes(Compression::Lz4), live_bytes(Compression::Zstd));
    assert!(zstd * 10 < lz4 * 8, "{zstd} beside {lz4}");
}

#[test]
fn compressed_documents_replicate_and_are_salvaged() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("source.stemma");
    let source = open(&path, Compression::Zstd);
    write(&source, 0..DOCUMENTS, 1);
    let target = Database::in_memory_with(options().compression(Compression::Lz4)).unwrap();
    source.replicate_to(&target).unwrap();
    expect(&target, |_| 1, "the target");
    source.close().unwrap();
    std::fs::remove_dir_all(path.join("tree")).unwrap();
    let mut found = std::collections::BTreeMap::new();
    let report = stemmadb::salvage::salvage_database(&path, |item| {
        if let Salvaged::Revision(revision) = item {
            found.insert(revision.id.to_string(), revision.body);
        }
        Ok(())
    });
    assert_eq!(report.unwrap().undecodable_count, 0);
    assert_eq!(found.len() as u64, DOCUMENTS);
    (0..DOCUMENTS).for_each(|number| assert_eq!(found[&id(number)], body(number, 1)));
}

/// Segments that are too small for each to repeat the dictionary. The tree has it, too.
#[test]
fn lost_dictionary_is_an_error_that_names_it() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("lost.stemma");
    let small = testing::with_small_limits(options(), 256 << 10, 16 << 10, 400).compression(Compression::Zstd);
    let db = Database::open_with(&path, small).unwrap();
    write(&db, 0..DOCUMENTS, 1);
    db.close().unwrap();
    let copy = directory.path().join("copy.stemma");
    let mut loss_count = 0;
    for segment in std::fs::read_dir(path.join("log")).unwrap().map(|entry| entry.unwrap().file_name()) {
        std::fs::remove_dir_all(&copy).ok();
        testing::copy_directory(&path, &copy).unwrap();
        std::fs::remove_file(copy.join("log").join(&segment)).unwrap();
        let with_tree = stemmadb::salvage::salvage_database(&copy, |_| Ok(())).unwrap();
        assert_eq!(with_tree.undecodable_count, 0, "{with_tree:?}");
        std::fs::remove_dir_all(copy.join("tree")).unwrap();
        let report = stemmadb::salvage::salvage_database(&copy, |item| {
            if let Salvaged::Revision(revision) = item {
                let number = revision.id.as_str().trim_start_matches("document-").parse().unwrap();
                assert_eq!(revision.body, body(number, 1));
            }
            Ok(())
        });
        let report = report.unwrap();
        let is_named = report.skipped.iter().any(|gap| gap.what.ends_with(", which is lost"));
        assert_eq!(is_named, report.undecodable_count > 0, "{report:?}");
        loss_count += u32::from(is_named);
    }
    assert!(loss_count > 0, "some segment has the only copy of a dictionary");
}

#[test]
fn names_of_compressions_are_parsed() {
    for compression in SETTINGS {
        assert_eq!(compression.to_string().parse::<Compression>().unwrap(), compression);
    }
    assert!("gzip".parse::<Compression>().is_err());
}
