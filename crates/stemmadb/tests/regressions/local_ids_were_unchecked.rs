//! The ids of local documents were not validated. An invalid one, such as an empty id, was written to the log but could
//! not be a key of the tree: from then on every checkpoint failed, and the database accepted no more writes.

use stemmadb::ErrorKind;

use super::*;

#[test]
fn invalid_local_ids_are_rejected() {
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
