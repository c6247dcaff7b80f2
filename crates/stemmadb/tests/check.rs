//! Damage detection: any damage to the bytes of a closed log is found by opening the database or by `check`.
//!
//! Exempt are bytes after the log's end, which hold nothing, and a mark as the last frame, since a damaged one looks
//! like a write torn by a crash and holds nothing either. `STEMMA_DAMAGES` sets the number of damages of each kind
//! (default 25; the long run does 2,000), `STEMMA_DAMAGE_SEED` the seed.

use std::path::Path;

use damage::{Damage, KINDS, segments};
use stemmadb::{Database, Durability, ErrorKind, Options, testing};

mod damage;

fn number_from(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn options() -> Options {
    testing::with_small_limits(Options::new().durability(Durability::None).background(false), 64 << 10, 24 << 10, 40)
}

/// Creates and closes a database of several segments, with attachments. The final mark is removed, so that every byte
/// of the log is significant.
fn original(path: &Path) {
    let db = Database::open_with(path, options()).unwrap();
    for number in 0..400_u64 {
        let id = format!("document-{number}");
        let body = serde_json::json!({"number": number, "text": "t".repeat(1 + number as usize * 37 % 400)});
        let revision = db.insert(&id, &body).unwrap();
        if number % 4 == 1 {
            db.delete(&id, &revision).unwrap();
        }
        if number % 90 == 8 {
            let content = vec![number as u8; 70_000];
            db.files().attach(&id, &revision, "content", "text/plain", &content[..]).unwrap();
        }
        if number == 250 {
            db.maintenance().compact().unwrap();
        }
    }
    db.close().unwrap();
    let last = segments(path).pop().unwrap();
    let mut bytes = std::fs::read(&last).unwrap();
    let mark = last_frame(&bytes);
    assert_eq!(bytes[mark] >> 6, 2, "the last frame is a mark");
    bytes[mark..].fill(0);
    std::fs::write(&last, bytes).unwrap();
}

/// Offset of the last frame.
fn last_frame(bytes: &[u8]) -> usize {
    let (mut offset, mut last) = (64, 64);
    let header_bytes = if std::env::var_os(testing::KEY_VARIABLE).is_some() { 56 } else { 32 };
    while offset + header_bytes <= bytes.len() && bytes[offset] >> 6 != 0 {
        last = offset;
        let word = u32::from_be_bytes(bytes[offset..offset + 4].try_into().unwrap());
        offset = (offset + header_bytes + (word & 0x3fff_ffff) as usize).next_multiple_of(8);
    }
    last
}

/// Whether opening or `check` reports damage.
fn is_detected(database: &Path) -> bool {
    let db = match Database::open_with(database, options()) {
        Ok(db) => db,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{error:?}");
            return true;
        }
    };
    match db.maintenance().check() {
        Ok(report) => !report.is_sound(),
        Err(error) => error.kind() == ErrorKind::Corrupt,
    }
}

#[test]
fn all_damage_to_the_log_is_detected() {
    let directory = tempfile::tempdir().unwrap();
    let (path, copy) = (directory.path().join("original.stemma"), directory.path().join("copy.stemma"));
    original(&path);
    testing::copy_directory(&path, &copy).unwrap();
    assert!(!is_detected(&copy), "an undamaged copy has no damage");
    let mut random = testing::Random::new(number_from("STEMMA_DAMAGE_SEED", 1));
    let mut missed = Vec::new();
    for kind in 0..KINDS {
        let (mut injected, mut found) = (0, 0);
        for _ in 0..number_from("STEMMA_DAMAGES", 25) {
            std::fs::remove_dir_all(&copy).ok();
            testing::copy_directory(&path, &copy).unwrap();
            let Some(damage) = Damage::of_kind(kind, &mut random, &copy) else { continue };
            injected += 1;
            match is_detected(&copy) {
                true => found += 1,
                false => missed.push(damage),
            }
        }
        println!("damages: {found} found of {injected}");
        assert!(injected > 0, "no damage of kind {kind} was done");
    }
    assert!(missed.is_empty(), "{} were not found: {:#?}", missed.len(), &missed[..missed.len().min(5)]);
}

#[test]
fn all_damage_to_attachments_is_detected() {
    let directory = tempfile::tempdir().unwrap();
    let (path, copy) = (directory.path().join("original.stemma"), directory.path().join("copy.stemma"));
    original(&path);
    let mut random = testing::Random::new(number_from("STEMMA_DAMAGE_SEED", 1));
    let rounds = number_from("STEMMA_DAMAGES", 25);
    for round in 0..rounds {
        std::fs::remove_dir_all(&copy).ok();
        testing::copy_directory(&path, &copy).unwrap();
        let directories = copy.join("blobs").read_dir().unwrap().flatten().filter(|entry| entry.path().is_dir());
        let files = directories.flat_map(|entry| entry.path().read_dir().unwrap().flatten().collect::<Vec<_>>());
        let mut files: Vec<_> = files.map(|entry| entry.path()).collect();
        files.sort();
        let file = &files[random.below(files.len() as u64) as usize];
        let mut bytes = std::fs::read(file).unwrap();
        let offset = random.below(bytes.len() as u64) as usize;
        match round % 3 {
            0 => bytes[offset] ^= 1 + random.below(255) as u8,
            1 => bytes.truncate(offset),
            _ => std::fs::remove_file(file).unwrap(),
        }
        if round % 3 < 2 {
            std::fs::write(file, bytes).unwrap();
        }
        assert!(is_detected(&copy), "round {round}: {} at byte {offset}", file.display());
    }
    println!("{rounds} contents damaged, all found");
}

#[test]
fn stray_and_missing_files_of_the_tree_are_reported() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("original.stemma");
    original(&path);
    let damages = |db: &Database| -> Vec<String> {
        db.maintenance().check().unwrap().damages.into_iter().map(|damage| damage.what).collect()
    };
    let db = Database::open_with(&path, options()).unwrap();
    assert_eq!(damages(&db), [""; 0]);
    for name in ["0000099999.run", "copy of MANIFEST"] {
        std::fs::write(path.join("tree").join(name), "x").unwrap();
        assert_eq!(damages(&db), [format!("tree/{name} is not in the list of files")]);
        std::fs::remove_file(path.join("tree").join(name)).unwrap();
    }
    std::fs::write(path.join("tree/0000099999.run"), "x").unwrap();
    db.close().unwrap();
    let db = Database::open_with(&path, options()).unwrap();
    assert!(!path.join("tree/0000099999.run").exists(), "opening deletes what the list does not name");
    assert_eq!(damages(&db), [""; 0]);
    let mut files = path.join("tree").read_dir().unwrap().map(|entry| entry.unwrap().path());
    let run = files.find(|file| file.extension() == Some("run".as_ref())).unwrap();
    std::fs::remove_file(&run).unwrap();
    let missing = format!("tree/{} is missing", run.file_name().unwrap().display());
    assert!(damages(&db).contains(&missing), "{:?}", damages(&db));
}
