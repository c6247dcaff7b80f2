//! A sweep of content looked for what names it in a snapshot, and then, of what nothing named there, at the winners once more. A file that
//! came with a losing leaf in between, as replication brings them, was named by neither: its content was removed, and the file was
//! lost. Three servers under partition found it in their eighteenth round.

use std::sync::atomic::{AtomicBool, Ordering};

use stemmadb::{File, FileContent};

use super::*;

#[test]
fn what_a_losing_leaf_names_meanwhile_stays() {
    let db = Database::in_memory_with(options()).unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                db.files().sweep().unwrap();
            }
        });
        for number in 0..3000 {
            let id = format!("d{number}");
            db.edit(foreign(&id, &["2-ffff", "1-a"], "{}")).unwrap();
            let (loser, content) = ("2-0000".parse().unwrap(), number.to_string());
            let blob = db.files().store(content.as_bytes()).unwrap();
            let stored =
                FileContent::Stored { content_type: "text/plain".to_owned(), blob, md5: None, generation: None };
            let Edit::Foreign { id, deleted, body, .. } = foreign(&id, &[], "{}") else { unreachable!("see above") };
            let files = vec![File { name: "f".to_owned(), content: stored }];
            let revisions = vec![loser, "1-a".parse().unwrap()];
            db.edit(Edit::Foreign { id: id.clone(), revisions, deleted, body, files }).unwrap();
            let document = db.get_revision(id.as_str(), &loser).unwrap().unwrap();
            let opened = db.snapshot().unwrap().open_attachment(&document, "f");
            assert_eq!(opened.unwrap().unwrap().length(), content.len() as u64);
        }
        over.store(true, Ordering::Relaxed);
    });
    assert_eq!(db.files().sweep().unwrap().blob_count, 0);
    assert_sound(&db);
}
