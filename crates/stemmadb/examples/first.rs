//! A first program: put documents in, find them by any field, change one safely, see what happened.
use serde_json::json;
use stemmadb::{Database, Sequence, all_of, field};

fn main() -> stemmadb::Result<()> {
    // A directory, made if it is not there. Every write returns once it is flushed to the disk.
    let db = Database::open("library.stemma")?;
    db.upsert("solaris", &json!({"title": "Solaris", "year": 1961, "tags": ["novel", "space"]}))?;
    db.upsert("cosmos", &json!({"title": "Cosmos", "year": 1980, "tags": ["essay", "space"]}))?;
    let read = db.upsert("emma", &json!({"title": "Emma", "year": 1815, "tags": ["novel"]}))?;
    // Every field is indexed from the first write: nothing was declared.
    let wanted = all_of([field("tags").contains("space"), field("year").ge(1960)]);
    for book in db.find(wanted).sort_descending("year").run()? {
        println!("{}", book?.to_json()?);
    }
    // A replacement names the revision it read, so nobody's change is overwritten by accident.
    db.replace("emma", &read, &json!({"title": "Emma", "year": 1816}))?;
    let late = db.replace("emma", &read, &json!({"title": "Emma, again"}));
    println!("{:?}", late.map_err(|error| error.kind()));
    for change in db.changes(Sequence::ZERO)?.run() {
        println!("{}", change?.id);
    }
    Ok(())
}
