//! The first segment of a log was lost, and with it every document of all the others: the names of their fields stood only in the frame
//! that had used them first. Found by salvaging logs of which a segment had been removed; now each segment begins with all names.

use stemmadb::{Salvaged, testing};

use super::*;

#[test]
fn a_lost_segment_takes_no_documents_of_others_with_it() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("library.stemma");
    let options =
        testing::small(Options::new().durability(Durability::None).background(false), 64 << 10, 16 << 10, 100);
    let db = Database::open_with(&path, options).unwrap();
    for number in 0..200 {
        db.insert(&format!("book-{number}"), &serde_json::json!({"title": "t".repeat(400), "number": number})).unwrap();
    }
    db.close().unwrap();
    let mut segments: Vec<_> = path.join("log").read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    segments.retain(|file| file.extension() == Some("log".as_ref()));
    segments.sort();
    assert!(segments.len() > 4);
    let kept = segments.pop().unwrap();
    segments.iter().for_each(|file| std::fs::remove_file(file).unwrap());
    let mut numbers = Vec::new();
    let report = Database::salvage(&path, |found| {
        if let Salvaged::Revision(revision) = found {
            numbers.push(revision.body.get("number").unwrap().as_u64().unwrap());
        }
        Ok(())
    });
    let report = report.unwrap();
    assert_eq!(numbers.last(), Some(&199), "of {} nothing was read: {report:#?}", kept.display());
    assert!(report.nameless_count <= 1, "all but what was written before the names: {report:#?}");
}
