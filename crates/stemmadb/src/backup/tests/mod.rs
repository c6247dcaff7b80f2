//! Tests of backups, restores, branches and continuous shipping against naive copies.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::destination::Destination;
use super::restore::restore_to;
use super::*;
use crate::revision::Sequence;
use crate::testing::{self, Random, open_database};
use crate::vfs::{FaultVfs, Subdirectory, Vfs};
use crate::{Database, Durability, ErrorKind, Options, Result};

mod branches;
mod faults;
mod following;
mod restores;
mod targets;
mod trees;

/// What a database has: the JSON of each document, and the contents of its files.
type Content = BTreeMap<String, String>;

fn options() -> Options {
    let options = Options::new().durability(Durability::None).background(false).cache_bytes(0);
    testing::with_small_limits(options, 64 << 10, 8 << 10, 100)
}

fn open(disk: &FaultVfs) -> Database {
    open_database(Arc::new(disk.clone()), options()).unwrap()
}

fn target(disk: &FaultVfs) -> DirectoryTarget {
    DirectoryTarget::of(Arc::new(disk.clone()), "the target".to_owned())
}

fn back_up_to(db: &Database, target: &dyn Target) -> Result<BackupReport> {
    db.maintenance().backup_with(target, &BackupOptions::new(), |_| ())
}

fn content(db: &Database) -> Content {
    let mut content = Content::new();
    for change in db.changes(Sequence::ZERO).unwrap().run() {
        let id = change.unwrap().id.as_str().to_owned();
        let Some(document) = db.get(&id).unwrap() else { continue };
        for file in document.attachments().unwrap() {
            let mut bytes = Vec::new();
            let mut reader = db.files().open(&id, &file.name).unwrap().unwrap();
            std::io::Read::read_to_end(&mut reader, &mut bytes).unwrap();
            content.insert(format!("{id}/{}", file.name), blake3::hash(&bytes).to_hex().to_string());
        }
        content.insert(id, format!("{} {}", document.revision(), document.to_json().unwrap()));
    }
    content
}

/// One random write.
fn write(db: &Database, random: &mut Random) {
    let id = format!("d{:02}", random.below(40));
    let current = db.get(&id).unwrap();
    match (current, random.below(12)) {
        (Some(document), 0) => drop(db.delete(&id, document.revision()).unwrap()),
        (Some(document), 1) => {
            // Half of them are longer than what is stored in the log.
            let length = [100, 70_000][random.below(2) as usize];
            let bytes = vec![random.below(4) as u8; length];
            db.files().attach(&id, document.revision(), "file", "text/plain", &bytes[..]).unwrap();
        }
        (_, 2) => {
            _ = db.local_documents().put("_local/note", None, &serde_json::json!({"n": random.below(100)})).unwrap();
        }
        _ => {
            let body = serde_json::json!({"n": random.below(1000), "text": "x".repeat(random.below(400) as usize)});
            db.upsert(&id, &body).unwrap();
        }
    }
}

/// Restores into a new disk and opens the database.
fn restored(target: &dyn Target, at: At) -> Result<(RestoreReport, Database)> {
    let disk = FaultVfs::new(1);
    let destination = Destination::within(Arc::new(disk.clone()), "db");
    let report = restore_to(target, &destination, &RestoreOptions::new().at(at), &mut |_| ())?;
    Ok((report, open_below(&disk, "db")))
}

fn open_below(disk: &FaultVfs, name: &str) -> Database {
    let vfs: Arc<dyn Vfs> = Arc::new(Subdirectory::new(Arc::new(disk.clone()), name));
    open_database(vfs, options()).unwrap()
}

fn assert_sound(db: &Database) {
    let report = db.maintenance().check().unwrap();
    assert!(report.is_sound(), "{:#?}", report.damages);
}

fn sequence(db: &Database) -> Sequence {
    db.sequence()
}
