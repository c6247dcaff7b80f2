//! The ids of local documents were not checked at all. An empty one, or any other text, was written to the log, and could not be a key
//! of the tree: from then on every checkpoint failed, and the database took no more writes.

use stemmadb::ErrorKind;

use super::*;

#[test]
fn only_ids_of_local_documents_name_local_documents() {
    let db = Database::in_memory_with(options()).unwrap();
    for id in ["", "a", "_local", "_local/", "_design/a", &format!("_local/{}", "x".repeat(2000))] {
        let error = db.local_documents().put(id, None, &value("{}")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{id}: {error:?}");
        db.local_documents().delete(id, None).unwrap_err();
    }
    db.local_documents().put(&format!("_local/{}", "x".repeat(1000)), None, &value("{}")).unwrap();
    db.maintenance().checkpoint().unwrap();
    assert_sound(&db);
}
