//! First program: insert documents, query them by any field, detect a conflict, and read the changes feed.
use serde_json::json;
use stemmadb::{Database, Sequence, all_of, field};

fn main() -> stemmadb::Result<()> {
    // The directory is created if it does not exist. Every write returns after it is flushed to disk.
    let db = Database::open("library.stemma")?;
    db.upsert("solaris", &json!({"title": "Solaris", "year": 1961, "tags": ["novel", "space"]}))?;
    db.upsert("cosmos", &json!({"title": "Cosmos", "year": 1980, "tags": ["essay", "space"]}))?;
    let read = db.upsert("emma", &json!({"title": "Emma", "year": 1815, "tags": ["novel"]}))?;
    // Every field is indexed from the first write, without declaring an index.
    let query = all_of([field("tags").contains("space"), field("year").ge(1960)]);
    for book in db.find(query).sort_descending("year").run()? {
        println!("{}", book?.to_json()?);
    }
    // A replacement names the revision that was read, so a concurrent change is never overwritten by accident.
    db.replace("emma", &read, &json!({"title": "Emma", "year": 1816}))?;
    let late = db.replace("emma", &read, &json!({"title": "Emma, again"}));
    println!("{:?}", late.map_err(|error| error.kind()));
    for change in db.changes(Sequence::ZERO)?.run() {
        println!("{}", change?.id);
    }
    Ok(())
}
