//! Encryption at rest: keys and their errors, what is in the files, and every function on an encrypted database.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use stemmadb::backup::{self, At, BackupOptions, DirectoryTarget, FollowOptions, RestoreOptions};
use stemmadb::encryption::{EncryptionKey, decrypt, encrypt};
use stemmadb::past::Retention;
use stemmadb::testing::{self, TestStorage};
use stemmadb::{Compression, Database, Durability, ErrorKind, Index, Options, Result, Sequence, field};

/// A text that must not be found in any file.
const SECRET: &str = "Zanzibar-Quetzalcoatl";
/// The name of a field that must not be found.
const FIELD: &str = "xylophonist_name";

fn key(byte: u8) -> EncryptionKey {
    EncryptionKey::from_callback(move || Ok([byte; 32]))
}

/// Options of databases that are not encrypted, whatever the environment says, if they are created by [`create_plain`].
fn options() -> Options {
    let options = Options::new().durability(Durability::None).background(false);
    testing::with_small_limits(options, 32 << 10, 64 << 10, 1_000)
}

fn encrypted(byte: u8) -> Options {
    options().encryption(key(byte))
}

/// Whether the suite runs with a key in the environment: then no database is created without one.
fn has_default_key() -> bool {
    std::env::var_os(testing::KEY_VARIABLE).is_some()
}

fn large_file() -> Vec<u8> {
    SECRET.as_bytes().iter().copied().cycle().take(200_000).collect()
}

/// Writes some of everything: documents, revisions, deletions, attachments, local documents, a view, an index, history.
fn fill(db: &Database, count: u64) -> Result<()> {
    db.history().keep(Retention::Everything)?;
    db.indexes().create(Index::on("year").then_descending(FIELD))?;
    for number in 0..count {
        let id = format!("{SECRET}-{number}");
        let body = |edit: u64| json!({FIELD: format!("{SECRET} {number}"), "year": 1900 + number % 50, "edit": edit});
        let revision = db.insert(&id, &body(0))?;
        match number % 10 {
            1 => drop(db.replace(&id, &revision, &body(1))?),
            2 => drop(db.delete(&id, &revision)?),
            3 => drop(db.files().attach(&id, &revision, SECRET, "text/plain", SECRET.repeat(20).as_bytes())?),
            4 if number < 10 => drop(db.files().attach(&id, &revision, "large", "text/plain", &large_file()[..])?),
            _ => {}
        }
    }
    db.local_documents().put("_local/secret", None, &json!({FIELD: SECRET}))?;
    db.maintenance().checkpoint()
}

/// Everything that can be read, as text.
fn content(db: &Database) -> Result<String> {
    let mut lines = Vec::new();
    for change in db.changes(Sequence::ZERO)?.documents(true).run() {
        let change = change?;
        let document = change.document.expect("documents were asked for");
        let files: Vec<String> =
            document.attachments()?.iter().map(|file| format!("{} {}", file.name, file.digest)).collect();
        lines.push(format!("{} {} {} {files:?}", change.sequence.get(), change.id.as_str(), document.to_json()?));
    }
    lines.push(db.local_documents().get("_local/secret")?.map_or_else(String::new, |(_, body)| body.to_json()));
    let found = db.find(field("year").ge(1920)).sort("year").ids()?;
    for id in found {
        lines.push(id?.to_string());
    }
    let large = db.files().open(&format!("{SECRET}-4"), "large")?;
    let mut bytes = Vec::new();
    if let Some(mut file) = large {
        std::io::Read::read_to_end(&mut file, &mut bytes)?;
    }
    lines.push(format!("{}", bytes == large_file()));
    Ok(lines.join("\n"))
}

fn files_below(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).unwrap().flatten() {
        match entry.file_type().unwrap().is_dir() {
            true => files_below(&entry.path(), found),
            false => found.push(entry.path()),
        }
    }
}

/// What must not be found in an encrypted database: texts, and the digests of contents.
fn traces() -> Vec<Vec<u8>> {
    let db = Database::in_memory();
    let mut traces = vec![SECRET.as_bytes().to_vec(), FIELD.as_bytes().to_vec()];
    for content in [SECRET.repeat(20).into_bytes(), large_file()] {
        let digest = db.files().store(&mut &content[..]).unwrap().digest();
        traces.push(digest.to_string().into_bytes());
        traces.push(digest.to_string().as_bytes()[2..].to_vec());
        traces.push(digest.as_bytes().to_vec());
    }
    traces
}

/// The files below a directory that have a trace in their contents or names.
fn telling_files(directory: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    files_below(directory, &mut files);
    assert!(files.len() > 3, "there are files");
    let traces = traces();
    let tells = |path: &PathBuf| {
        let bytes = std::fs::read(path).unwrap();
        let name = path.strip_prefix(directory).unwrap().to_string_lossy().into_owned().into_bytes();
        traces.iter().any(|trace| {
            [&bytes, &name].iter().any(|bytes| bytes.windows(trace.len()).any(|window| window == &trace[..]))
        })
    };
    files.into_iter().filter(tells).collect()
}

#[test]
fn no_file_has_plain_text() {
    let directory = tempfile::tempdir().unwrap();
    for (name, options) in
        [("plain", options()), ("encrypted", encrypted(1)), ("compressed", encrypted(1).compression(Compression::Zstd))]
    {
        if name == "plain" && has_default_key() {
            continue;
        }
        let root = directory.path().join(name);
        std::fs::create_dir(&root).unwrap();
        let path = root.join("library.stemma");
        let db = Database::open_with(&path, options.clone()).unwrap();
        fill(&db, 300).unwrap();
        db.maintenance().backup(root.join("backups")).unwrap();
        db.maintenance().branch(root.join("branch.stemma"), At::Latest).unwrap();
        db.maintenance().compact().unwrap();
        db.maintenance().backup(root.join("backups")).unwrap();
        assert!(path.join("history").read_dir().unwrap().count() > 0, "compaction has kept history");
        let copy = root.join("copy-while-open");
        testing::copy_directory(&path, &copy).unwrap();
        let expected = content(&db).unwrap();
        db.close().unwrap();
        let telling = telling_files(&root);
        if name == "plain" {
            let names = ["log/", "tree/", "blobs/", "files/"];
            let is_found = |part: &str| telling.iter().any(|path| path.to_string_lossy().contains(part));
            assert!(names.iter().all(|part| is_found(part)), "{telling:?}");
        } else {
            assert!(telling.is_empty(), "{name}: {telling:?}");
        }
        let db = Database::open_with(&path, options.clone()).unwrap();
        assert_eq!(content(&db).unwrap(), expected);
        assert!(db.maintenance().check().unwrap().is_sound());
        drop(db);
        let db = Database::open_with(root.join("branch.stemma"), options.clone()).unwrap();
        assert!(db.maintenance().check().unwrap().is_sound());
        drop(db);
        let db = Database::open_with(&copy, options).unwrap();
        assert!(db.maintenance().check().unwrap().is_sound());
    }
}

#[test]
fn each_wrong_way_of_opening_is_its_own_error() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("library.stemma");
    let db = Database::open_with(&path, encrypted(1)).unwrap();
    db.insert("emma", &json!({"year": 1815})).unwrap();
    db.close().unwrap();
    let kind = |options: Options| Database::open_with(&path, options).unwrap_err().kind();
    assert_eq!(kind(encrypted(2)), ErrorKind::WrongKey);
    assert_eq!(kind(encrypted(2).read_only(true)), ErrorKind::WrongKey);
    let passphrase = EncryptionKey::from_passphrase("correct horse").unwrap();
    assert_eq!(kind(options().encryption(passphrase)), ErrorKind::WrongKey);
    if !has_default_key() {
        assert_eq!(kind(options()), ErrorKind::KeyRequired);
        let error = Database::open_with(&path, options()).unwrap_err();
        assert!(error.hint().unwrap().contains("--key-file"), "{error:?}");
        assert_eq!(Database::rebuild(&path, options(), |_| ()).unwrap_err().kind(), ErrorKind::KeyRequired);
        let salvaged = stemmadb::salvage::salvage_database(&path, |_| Ok(()));
        assert_eq!(salvaged.unwrap_err().kind(), ErrorKind::KeyRequired);
    }
    let db = Database::open_with(&path, encrypted(1).read_only(true)).unwrap();
    assert!(db.snapshot().unwrap().get("emma").unwrap().is_some());
    drop(db);
    std::fs::rename(path.join("KEYS"), directory.path().join("KEYS")).unwrap();
    for options in [encrypted(1), options()] {
        let error = Database::open_with(&path, options).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Invalid), "{error:?}");
    }
    std::fs::rename(directory.path().join("KEYS"), path.join("KEYS")).unwrap();
    let db = Database::rebuild(&path, encrypted(1), |_| ()).unwrap();
    assert!(db.get("emma").unwrap().is_some());
    drop(db);
    if !has_default_key() {
        let plain = directory.path().join("plain.stemma");
        Database::open_with(&plain, options()).unwrap().close().unwrap();
        let error = Database::open_with(&plain, encrypted(1)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.hint().unwrap().contains("stemma encrypt"), "{error:?}");
    }
}

#[test]
fn file_of_a_plain_database_is_refused_in_an_encrypted_one() {
    if has_default_key() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let (plain, path) = (directory.path().join("plain.stemma"), directory.path().join("library.stemma"));
    for (path, options) in [(&plain, options()), (&path, encrypted(1))] {
        let db = Database::open_with(path, options).unwrap();
        fill(&db, 20).unwrap();
        db.close().unwrap();
    }
    let mut files = Vec::new();
    files_below(&plain, &mut files);
    for file in files {
        let name = file.strip_prefix(&plain).unwrap();
        let target = path.join(name);
        let Ok(before) = std::fs::read(&target) else { continue };
        if before.is_empty() {
            continue;
        }
        std::fs::copy(&file, &target).unwrap();
        let checked = Database::open_with(&path, encrypted(1)).and_then(|db| db.maintenance().check());
        match checked {
            Ok(report) => assert!(!report.is_sound(), "{} is accepted", name.display()),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Corrupt, "{}: {error:?}", name.display()),
        }
        std::fs::write(&target, before).unwrap();
    }
    content(&Database::open_with(&path, encrypted(1)).unwrap()).unwrap();
}

#[test]
fn rekey_takes_effect_at_once_and_reencrypt_replaces_every_byte() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("library.stemma");
    let db = Database::open_with(&path, encrypted(1)).unwrap();
    fill(&db, 150).unwrap();
    let expected = content(&db).unwrap();
    db.maintenance().rekey(&key(2)).unwrap();
    db.close().unwrap();
    assert_eq!(Database::open_with(&path, encrypted(1)).unwrap_err().kind(), ErrorKind::WrongKey);

    let before = directory.path().join("before");
    testing::copy_directory(&path, &before).unwrap();
    let db = Database::open_with(&path, encrypted(2)).unwrap();
    assert_eq!(content(&db).unwrap(), expected);
    db.maintenance().reencrypt(|_| ()).unwrap();
    assert_eq!(content(&db).unwrap(), expected);
    db.insert("later", &json!({})).unwrap();
    assert!(db.maintenance().check().unwrap().is_sound());
    db.close().unwrap();

    // The keys of before don't open any of the files of after.
    let after_keys = std::fs::read(path.join("KEYS")).unwrap();
    std::fs::copy(before.join("KEYS"), path.join("KEYS")).unwrap();
    let error = Database::open_with(&path, encrypted(2)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error:?}");
    std::fs::remove_dir_all(path.join("tree")).ok();
    let error = Database::open_with(&path, encrypted(2)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error:?}");
    std::fs::write(path.join("KEYS"), after_keys).unwrap();
    let db = Database::open_with(&path, encrypted(2)).unwrap();
    assert!(db.get("later").unwrap().is_some());
    assert!(db.maintenance().check().unwrap().is_sound());
}

#[test]
fn rekey_of_a_plain_database_is_refused() {
    if has_default_key() {
        return;
    }
    let db = Database::in_memory();
    assert_eq!(db.maintenance().rekey(&key(1)).unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(db.maintenance().reencrypt(|_| ()).unwrap_err().kind(), ErrorKind::Invalid);
}

#[test]
fn encrypting_and_decrypting_keeps_everything() {
    if has_default_key() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("library.stemma");
    let db = Database::open_with(&path, options()).unwrap();
    fill(&db, 200).unwrap();
    db.maintenance().compact().unwrap();
    let (expected, sequence) = (content(&db).unwrap(), db.sequence());
    let middle = Sequence::new(100);
    let past = db.as_of(middle).unwrap().find(field("year").ge(0)).count().unwrap();
    db.close().unwrap();
    assert_eq!(decrypt(&path, &key(1), |_| ()).unwrap_err().kind(), ErrorKind::Invalid);
    assert!(!telling_files(&path).is_empty());

    let mut steps = 0;
    encrypt(&path, &key(1), |_| steps += 1).unwrap();
    assert!(steps > 1);
    assert_eq!(telling_files(&path), Vec::<PathBuf>::new());
    assert_eq!(Database::open_with(&path, options()).unwrap_err().kind(), ErrorKind::KeyRequired);
    assert_eq!(encrypt(&path, &key(1), |_| ()).unwrap_err().kind(), ErrorKind::Invalid);
    let db = Database::open_with(&path, encrypted(1)).unwrap();
    assert_eq!((content(&db).unwrap(), db.sequence()), (expected.clone(), sequence));
    assert_eq!(db.as_of(middle).unwrap().find(field("year").ge(0)).count().unwrap(), past);
    assert!(db.maintenance().check().unwrap().is_sound());
    db.close().unwrap();

    assert_eq!(decrypt(&path, &key(2), |_| ()).unwrap_err().kind(), ErrorKind::WrongKey);
    decrypt(&path, &key(1), |_| ()).unwrap();
    assert!(!path.join("KEYS").exists());
    let db = Database::open_with(&path, options()).unwrap();
    assert_eq!((content(&db).unwrap(), db.sequence()), (expected, sequence));
    assert_eq!(db.as_of(middle).unwrap().find(field("year").ge(0)).count().unwrap(), past);
    assert!(db.maintenance().check().unwrap().is_sound());
}

/// Interrupts encrypting or decrypting at a write, as a power loss does; returns whether it was interrupted.
fn interrupt(nth: u64, encrypts: bool) -> bool {
    let storage = TestStorage::new(nth);
    let (before, after) = if encrypts { (options(), encrypted(1)) } else { (encrypted(1), options()) };
    let db = storage.open(before).unwrap();
    fill(&db, 40).unwrap();
    let expected = content(&db).unwrap();
    db.close().unwrap();

    storage.disk().fail(testing::Call::Sync, nth, testing::Failure::Broken, true);
    let begun = storage.begin_encryption(&key(1), encrypts);
    let changed = begun.and_then(|()| {
        let db = storage.open(encrypted(1))?;
        let changed = testing::change_encryption(&db, encrypts);
        changed.and(db.close())
    });
    let image = storage.crash_image(nth);
    image.disk().heal();
    let context = format!("interrupted at flush {nth}");
    // The database can be used in between.
    let is_begun = image.files().unwrap().iter().any(|(name, _)| name == "KEYS");
    let options = if is_begun { encrypted(1) } else { options() };
    let db = image.open(options).unwrap_or_else(|error| panic!("{context}: {error:?}"));
    assert_eq!(content(&db).unwrap(), expected, "{context}");
    db.close().unwrap();
    // Doing it again completes it, unless it was complete.
    match image.begin_encryption(&key(1), encrypts) {
        Ok(()) => {
            let db = image.open(encrypted(1)).unwrap();
            testing::change_encryption(&db, encrypts).unwrap_or_else(|error| panic!("{context}: {error:?}"));
            db.close().unwrap();
        }
        Err(error) => assert_eq!(error.kind(), ErrorKind::Invalid, "{context}"),
    }
    if encrypts {
        let is_telling = |bytes: &[u8]| bytes.windows(SECRET.len()).any(|window| window == SECRET.as_bytes());
        let telling: Vec<_> = image.files().unwrap().into_iter().filter(|(_, bytes)| is_telling(bytes)).collect();
        assert!(telling.is_empty(), "{context}: {:?}", telling.iter().map(|(name, _)| name).collect::<Vec<_>>());
    }
    let db = image.open(after).unwrap();
    assert_eq!(content(&db).unwrap(), expected, "{context}");
    assert!(db.maintenance().check().unwrap().is_sound(), "{context}");
    changed.is_err()
}

#[test]
fn encrypting_and_decrypting_survive_power_loss_at_every_step() {
    if has_default_key() {
        return;
    }
    for encrypts in [true, false] {
        // Every flush at first, then some of them.
        let mut nth = 1;
        while interrupt(nth, encrypts) {
            nth += 1 + nth / 6;
        }
        assert!(nth > 20, "it takes {nth} flushes");
    }
}

#[test]
fn backups_branches_and_followers_are_encrypted_and_restored_with_the_key() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    let path = root.join("library.stemma");
    let db = Database::open_with(&path, encrypted(1)).unwrap();
    fill(&db, 100).unwrap();
    db.maintenance().backup(root.join("backups")).unwrap();
    let first = db.sequence();
    db.insert("later", &json!({})).unwrap();
    let target = Arc::new(DirectoryTarget::create(root.join("shipped")).unwrap());
    let follower = db.maintenance().follow(target, FollowOptions::new().interval(Duration::from_millis(5))).unwrap();
    db.insert("shipped", &json!({})).unwrap();
    assert_eq!(follower.stop().unwrap().sequence, db.sequence());
    let target = DirectoryTarget::create(root.join("backups")).unwrap();
    db.maintenance().backup_with(&target, &BackupOptions::new(), |_| ()).unwrap();
    // A branch of the past.
    db.maintenance().branch(root.join("branch"), At::Sequence(Sequence::new(30))).unwrap();
    let branch = Database::open_with(root.join("branch"), encrypted(1)).unwrap();
    assert_eq!(branch.sequence(), Sequence::new(30));
    drop(branch);
    // A rekeyed database continues its backups, also after everything was encrypted again.
    db.maintenance().rekey(&key(2)).unwrap();
    db.maintenance().reencrypt(|_| ()).unwrap();
    db.maintenance().backup_with(&target, &BackupOptions::new(), |_| ()).unwrap();
    let expected = content(&db).unwrap();
    db.close().unwrap();
    for name in ["backups", "shipped"] {
        let target = DirectoryTarget::open(root.join(name)).unwrap();
        assert!(backup::verify(&target).unwrap().is_sound(), "verifying takes no key");
        assert_eq!(telling_files(&root.join(name)), Vec::<PathBuf>::new());
    }
    let restore = |name: &str, number: u64, options: RestoreOptions| {
        let target = DirectoryTarget::open(root.join(name)).unwrap();
        let options = options.at(if number == 0 { At::Latest } else { At::Backup(number) });
        backup::restore(&target, root.join("restored"), options.force(true))
    };
    let with = |byte| RestoreOptions::new().encryption(key(byte));
    assert_eq!(restore("backups", 1, with(3)).unwrap_err().kind(), ErrorKind::WrongKey);
    if !has_default_key() {
        assert_eq!(restore("backups", 1, RestoreOptions::new()).unwrap_err().kind(), ErrorKind::KeyRequired);
    }
    assert_eq!(restore("backups", 1, with(1)).unwrap().sequence, first);
    restore("shipped", 0, with(1)).unwrap();
    assert_eq!(restore("backups", 3, with(1)).unwrap_err().kind(), ErrorKind::WrongKey);
    restore("backups", 3, with(2)).unwrap();
    let db = Database::open_with(root.join("restored"), encrypted(2)).unwrap();
    assert_eq!(content(&db).unwrap(), expected);
    db.insert("restored", &json!({})).unwrap();
    assert!(db.maintenance().check().unwrap().is_sound());
    let branch = Database::open_with(root.join("branch"), encrypted(1)).unwrap();
    branch.insert("branched", &json!({})).unwrap();
    branch.replicate_to(&db).unwrap();
    assert!(db.get("branched").unwrap().is_some());
}

#[test]
fn segments_of_a_branch_and_its_original_can_not_be_exchanged() {
    let directory = tempfile::tempdir().unwrap();
    let (path, branch) = (directory.path().join("library.stemma"), directory.path().join("branch.stemma"));
    let db = Database::open_with(&path, encrypted(1)).unwrap();
    db.insert("shared", &json!({})).unwrap();
    db.maintenance().branch(&branch, At::Latest).unwrap();
    db.insert("original", &json!({"text": "one"})).unwrap();
    db.close().unwrap();
    let db = Database::open_with(&branch, encrypted(1)).unwrap();
    db.insert("branched", &json!({"text": "two"})).unwrap();
    db.close().unwrap();
    let newest = |path: &Path| {
        let mut names: Vec<_> = path.join("log").read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
        names.retain(|name| name.extension().is_some_and(|extension| extension == "log"));
        names.into_iter().max().unwrap()
    };
    std::fs::copy(newest(&branch), path.join("log").join(newest(&branch).file_name().unwrap())).unwrap();
    let error = Database::open_with(&path, encrypted(1)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error:?}");
}

#[test]
fn damaged_encrypted_database_is_salvaged_around_the_damage() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("library.stemma");
    let db = Database::open_with(&path, encrypted(1)).unwrap();
    for number in 0..100 {
        db.insert(&format!("document-{number}"), &json!({"number": number})).unwrap();
    }
    db.close().unwrap();
    let segment = path.join("log/0000000001.log");
    let mut bytes = std::fs::read(&segment).unwrap();
    // The header of the segment, and some bytes in the middle.
    bytes[20] ^= 1;
    let middle = bytes.iter().rposition(|byte| *byte != 0).unwrap() / 2;
    bytes[middle..middle + 10].fill(0x55);
    std::fs::write(&segment, &bytes).unwrap();
    let salvage = |byte| {
        let mut found = Vec::new();
        let report = stemmadb::salvage::salvage_encrypted_database(&path, &key(byte), |item| {
            if let stemmadb::salvage::Salvaged::Revision(revision) = item {
                found.push(revision.id.to_string());
            }
            Ok(())
        });
        report.map(|report| (found, report))
    };
    let (found, report) = salvage(1).unwrap();
    assert!((95..100).contains(&found.len()), "{} found", found.len());
    assert!(report.skipped.len() >= 2, "{:?}", report.skipped);
    assert_eq!(salvage(2).unwrap_err().kind(), ErrorKind::WrongKey);
    // Bytes that look like a decrypted record are not believed.
    let at = 64 + 56;
    bytes[at..at + 24].fill(0xff);
    std::fs::write(&segment, &bytes).unwrap();
    assert!(salvage(1).unwrap().0.len() < 100);
}

/// The last revision in a history file is saved for a document whose newest one is damaged.
#[test]
fn replaced_revisions_of_an_encrypted_database_are_salvaged() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("library.stemma");
    let db = Database::open_with(&path, encrypted(1)).unwrap();
    db.history().keep(stemmadb::past::Retention::Everything).unwrap();
    for round in 0..2 {
        for number in 0..100 {
            db.upsert(&format!("document-{number}"), &json!({"round": round})).unwrap();
        }
    }
    db.maintenance().compact().unwrap();
    db.close().unwrap();
    assert!(path.join("history").read_dir().unwrap().next().is_some());
    std::fs::remove_dir_all(path.join("log")).unwrap();
    std::fs::create_dir(path.join("log")).unwrap();
    let mut replaced = 0;
    let report = stemmadb::salvage::salvage_encrypted_database(&path, &key(1), |item| {
        if let stemmadb::salvage::Salvaged::Revision(revision) = item {
            assert_eq!(revision.body.to_json(), r#"{"round":0}"#);
            replaced += 1;
        }
        Ok(())
    });
    assert_eq!((replaced, report.unwrap().skipped), (100, vec![]));
}

#[test]
fn damaged_encrypted_backup_is_salvaged_around_the_damage() {
    let directory = tempfile::tempdir().unwrap();
    let db = Database::open_with(directory.path().join("library.stemma"), encrypted(1)).unwrap();
    for number in 0..100 {
        db.insert(&format!("document-{number}"), &json!({"number": number})).unwrap();
    }
    let target = DirectoryTarget::create(directory.path().join("backups")).unwrap();
    db.maintenance().backup_with(&target, &BackupOptions::new(), |_| ()).unwrap();
    let files = std::fs::read_dir(directory.path().join("backups/files")).unwrap();
    let segment =
        files.map(|entry| entry.unwrap().path()).find(|path| path.to_string_lossy().contains("-log-")).unwrap();
    let mut bytes = std::fs::read(&segment).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle..middle + 10].fill(0x55);
    std::fs::write(&segment, &bytes).unwrap();
    let salvage = |key: Option<EncryptionKey>| {
        let mut count = 0;
        let report = backup::salvage(&target, None, directory.path(), key.as_ref(), |item| {
            count += u64::from(matches!(item, stemmadb::salvage::Salvaged::Revision(_)));
            Ok(())
        });
        report.map(|_| count)
    };
    let count = salvage(Some(key(1))).unwrap();
    assert!((95..100).contains(&count), "{count} found");
    assert_eq!(salvage(Some(key(2))).unwrap_err().kind(), ErrorKind::WrongKey);
    assert_eq!(salvage(None).unwrap_err().kind(), ErrorKind::KeyRequired);
    let left = std::fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(left.filter(|name| name.to_string_lossy().contains("salvage")).count(), 0);
}

#[test]
fn encrypted_database_in_memory_works() {
    let db = Database::in_memory_with(encrypted(1)).unwrap();
    fill(&db, 60).unwrap();
    db.maintenance().compact().unwrap();
    assert!(db.maintenance().check().unwrap().is_sound());
    assert!(content(&db).unwrap().ends_with("true"));
}

/// CRC32C, bit by bit.
fn crc32c(bytes: &[u8]) -> u32 {
    let step = |crc: u32, _| (crc >> 1) ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 };
    !bytes.iter().fold(u32::MAX, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), step))
}

/// The bytes of the header of a frame of an encrypted segment, whose last four are its checksum.
const FRAME_HEADER_BYTES: usize = 56;

/// The checksum of the frame header at `offset`, as docs/format.md has it.
fn header_checksum(segment: &[u8], offset: usize) -> [u8; 4] {
    let header = &segment[offset..offset + FRAME_HEADER_BYTES - 4];
    let place = u32::try_from(offset).unwrap().to_be_bytes();
    crc32c(&[&segment[16..32], &segment[12..16], &place, header].concat()).to_be_bytes()
}

#[test]
fn changed_frame_header_with_a_right_checksum_is_noticed() -> Result<()> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("db");
    let db = Database::open_with(&path, encrypted(1))?;
    for number in 0..5 {
        db.insert(&number.to_string(), &json!({"n": number}))?;
    }
    db.close()?;
    let log = path.join("log");
    let mut names: Vec<_> = log.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    names.sort();
    let name = names.iter().find(|name| std::fs::read(name).unwrap().starts_with(b"stemmlog")).unwrap();
    let written = std::fs::read(name).unwrap();
    let (mut offset, mut changed_count) = (64, 0);
    while let Some(head) = written.get(offset..offset + 4).map(|head| u32::from_be_bytes(head.try_into().unwrap())) {
        if head == 0 {
            break;
        }
        let checksum = offset + FRAME_HEADER_BYTES - 4..offset + FRAME_HEADER_BYTES;
        assert_eq!(written[checksum.clone()], header_checksum(&written, offset), "the format is another one");
        if head >> 30 == 1 {
            let mut changed = written.clone();
            // A microsecond later or earlier.
            changed[offset + 23] ^= 1;
            let right = header_checksum(&changed, offset);
            changed[checksum].copy_from_slice(&right);
            std::fs::write(name, &changed).unwrap();
            let is_noticed = Database::open_with(&path, encrypted(1)).and_then(|db| {
                let report = db.maintenance().check()?;
                db.close()?;
                Ok(!report.damages.is_empty())
            });
            assert!(is_noticed.unwrap_or(true), "the frame at {offset} has another commit time, which goes unnoticed");
            std::fs::write(name, &written).unwrap();
            changed_count += 1;
        }
        offset += (FRAME_HEADER_BYTES + (head & 0x3fff_ffff) as usize).next_multiple_of(8);
    }
    assert!(changed_count >= 5, "{changed_count} frames");
    Ok(())
}

#[test]
fn exchanged_contents_are_noticed() -> Result<()> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("db");
    let db = Database::open_with(&path, encrypted(1))?;
    let contents = [1, 2].map(|byte| vec![byte; 100_000]);
    for (id, content) in ["a", "b"].iter().zip(&contents) {
        let revision = db.insert(id, &json!({}))?;
        db.files().attach(id, &revision, "file", "text/plain", &content[..])?;
    }
    db.close()?;
    let mut directories = vec![path.clone()];
    let mut files = Vec::new();
    while let Some(directory) = directories.pop() {
        for entry in directory.read_dir().unwrap().flatten() {
            let length = entry.metadata().unwrap().len();
            match entry.file_type().unwrap().is_dir() {
                true => directories.push(entry.path()),
                false if (100_000..110_000).contains(&length) => files.push(entry.path()),
                false => {}
            }
        }
    }
    let [first, second] = &files[..] else { panic!("{files:?}") };
    let aside = path.join("aside");
    std::fs::rename(first, &aside).unwrap();
    std::fs::rename(second, first).unwrap();
    std::fs::rename(&aside, second).unwrap();
    let db = Database::open_with(&path, encrypted(1))?;
    for id in ["a", "b"] {
        let mut bytes = Vec::new();
        let read = db.files().open(id, "file").map(|file| std::io::Read::read_to_end(&mut file.unwrap(), &mut bytes));
        assert!(!matches!(read, Ok(Ok(_))), "`{id}` has the content of the other one");
    }
    assert!(!db.maintenance().check()?.damages.is_empty());
    Ok(())
}
