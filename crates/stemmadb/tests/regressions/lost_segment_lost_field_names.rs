//! A lost first segment made every document in all other segments unreadable: their field names were only in the frame
//! that had first used them. Found by salvaging logs with a removed segment; each segment now starts with all names.

use stemmadb::salvage::Salvaged;
use stemmadb::testing;

use super::*;

#[test]
fn lost_segment_does_not_affect_documents_in_others() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("library.stemma");
    let options = testing::with_small_limits(
        Options::new().durability(Durability::None).background(false),
        64 << 10,
        16 << 10,
        100,
    );
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
    let report = stemmadb::salvage::salvage_database(&path, |found| {
        if let Salvaged::Revision(revision) = found {
            numbers.push(revision.body.get("number").unwrap().as_u64().unwrap());
        }
        Ok(())
    });
    let report = report.unwrap();
    assert_eq!(numbers.last(), Some(&199), "nothing was read from {}: {report:#?}", kept.display());
    assert!(report.undecodable_count <= 1, "everything after the names is readable: {report:#?}");
}
