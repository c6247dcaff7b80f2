//! A database of a server: the example of the guide "Remote access".
//!
//! Run it against a server: `cargo run -p stemmadb-client --example remote -- stemma://admin:password@localhost:5985`.

use std::io::Read;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::json;
use stemmadb::{DocumentId, Edit, ErrorKind, Patch, Result, Sequence, Value, field};
use stemmadb_client::asynchronous::AsyncDatabase;
use stemmadb_client::{AnyDatabase, Client, RemoteDatabase};

fn main() -> Result<()> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "stemma://localhost:5985".to_owned());
    run(&url)
}

/// Prints the ids of all books.
async fn print_books(db: &AsyncDatabase) -> Result<usize> {
    let mut count = 0;
    let mut books = db.find(field("title").exists()).await?;
    while let Some(book) = books.next().await {
        println!("{}", book?.id());
        count += 1;
    }
    Ok(count)
}

/// Prints what has changed in a virtual database since a position; returns the position after it.
fn print_news(shelf: &RemoteDatabase, position: Option<String>) -> Result<Option<String>> {
    let changes = shelf.changes(Sequence::ZERO);
    let changes = position.into_iter().fold(changes, |changes, position| changes.after(position));
    let (changes, position) = changes.run_to_token()?;
    for change in changes {
        println!("{}", change?.id);
    }
    Ok(position)
}

/// A reader of the library.
#[derive(Serialize, Deserialize)]
struct Reader {
    name: String,
    books: u32,
}

/// Counts novels, wherever they are.
fn count_novels(db: &AnyDatabase) -> Result<u64> {
    db.find(field("kind").eq("novel")).count()
}

/// Runs the example.
pub(crate) fn run(url: &str) -> Result<()> {
    // [connect]
    let client = Client::connect(url)?;
    let db = client.create_database("library")?;
    let revision = db.insert("solaris", &json!({"title": "Solaris", "year": 1961, "kind": "novel"}))?;
    db.update("solaris", &Patch::new().push("tags", "space"))?;
    assert_eq!(db.delete("solaris", &revision).unwrap_err().kind(), ErrorKind::Conflict);
    for book in db.find(field("year").ge(1960)).sort("year").run()? {
        println!("{}", book?.to_json()?);
    }
    // [/connect]
    // [transact]
    let solaris = db.get("solaris")?.expect("it was inserted");
    let loan = Value::from_serialize(&json!({"book": "solaris", "to": "ada"}))?;
    let lend = Edit::Insert { id: DocumentId::new("loan-1")?, body: loan };
    db.transact().check("solaris", Some(solaris.revision())).check("loan-1", None).edit(lend)?.commit()?;
    // [/transact]
    // [files]
    let eden = db.insert("eden", &json!({"title": "Eden", "price": 7, "count": 2}))?;
    db.files().attach("eden", &eden, "blurb.txt", "text/plain", &b"A ship has crashed."[..])?;
    let mut blurb = String::new();
    db.files().open("eden", "blurb.txt")?.expect("it was attached").read_to_string(&mut blurb)?;
    // [/files]
    assert_eq!(blurb, "A ship has crashed.");
    // [batch]
    let sale = Value::from_serialize(&json!({"book": "eden"}))?;
    let results = db
        .batch()
        .get("eden")
        .require(0, field("count").ge(1))?
        .edit(Edit::Update {
            id: DocumentId::new("eden")?,
            revision: None,
            patch: Patch::new().increment("count", -1),
        })?
        .edit(Edit::Insert { id: DocumentId::new("sale-1")?, body: sale })?
        .with("body.price", 0, "body.price")
        .run()?;
    println!("sold {}", results.document(0)?.expect("it was required").id());
    // [/batch]
    // [collections]
    let readers = db.collection::<Reader>("readers")?.keyed_by("name")?;
    readers.push(&Reader { name: "ada".into(), books: 0 })?;
    readers.modify("ada", |reader| {
        reader.books += 1;
        Ok(())
    })?;
    assert_eq!(readers.find(field("books").gt(0)).entries()?[0].key, "ada");
    // [/collections]
    // [follow]
    let mut feed = db.subscribe(Sequence::ZERO).documents(true);
    while let Some(change) = feed.next_within(Duration::from_millis(500))? {
        println!("{} is at {}", change.id, change.revision);
    }
    // [/follow]
    assert!(print_news(&db, None)?.is_none());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .map_err(|error| stemmadb::Error::unavailable(format!("no runtime: {error}")))?;
    assert_eq!(runtime.block_on(print_books(&db.clone().into()))?, 2);
    // [any]
    assert_eq!(count_novels(&db.into())?, 1);
    assert_eq!(count_novels(&stemmadb::Database::in_memory().into())?, 0);
    // [/any]
    Ok(())
}
