//! Typed collections that are declared by the derive macro, or by hand.

use serde::{Deserialize, Serialize};
use serde_json::json;
use stemmadb::typed::{Declarations, DeclaredCollection};
use stemmadb::{Collection, Database, Document, Emitter, ErrorKind, Index, Reduction, Refresh, Value, View, field};

/// Books by author; eager, so that a query never has to update it.
struct ByAuthor;

impl View for ByAuthor {
    type Key = String;
    type Value = ();
    type Reduced = u64;

    fn name(&self) -> &str {
        "by-author"
    }

    fn map(&self, document: &Document, rows: &mut Emitter<'_, String, ()>) -> stemmadb::Result<()> {
        if let Some(author) = document.get("author")?.as_ref().and_then(Value::as_str) {
            rows.emit(author.to_owned(), ());
        }
        Ok(())
    }

    fn reduction(&self) -> Reduction {
        Reduction::Count
    }

    fn refresh(&self) -> Refresh {
        Refresh::Eager
    }
}

const SCHEMA: &str = r#"{"properties": {"year": {"type": "integer", "minimum": 0}}, "required": ["isbn"]}"#;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Collection)]
#[collection(name = "books", key = "isbn", views(ByAuthor), index("author", "-year"), unique("isbn"))]
#[collection(expire("lent_until"), schema = SCHEMA)]
struct Book {
    isbn: String,
    author: String,
    year: i32,
    lent_until: Option<i64>,
}

fn book(isbn: &str, author: &str, year: i32) -> Book {
    Book { isbn: isbn.to_owned(), author: author.to_owned(), year, lent_until: None }
}

#[test]
fn one_declaration_opens_everything() {
    let db = Database::in_memory();
    let books = Book::open(&db).unwrap();
    assert_eq!((books.name(), Book::NAME), ("books", "books"));
    // The key.
    assert_eq!(books.push(&book("1", "Lem", 1961)).unwrap(), "1");
    books.push(&book("2", "Lem", 1986)).unwrap();
    // The unique index.
    assert_eq!(books.insert("3", &book("1", "Eve", 1990)).unwrap_err().kind(), ErrorKind::Duplicate);
    // The schema, which also holds for untyped writes.
    assert_eq!(books.push(&book("4", "Eve", -1)).unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(db.insert("books:5", &json!({"year": 1})).unwrap_err().kind(), ErrorKind::Invalid);
    // The compound index.
    let names: Vec<_> = db.indexes().list().into_iter().map(|index| (index.name, index.unique)).collect();
    assert_eq!(names.len(), 2, "{names:?}");
    assert!(names.iter().any(|(_, unique)| *unique) && names.iter().any(|(name, _)| name.contains("author")));
    // The view.
    assert_eq!(db.views().names().unwrap(), ["by-author"]);
    assert_eq!(db.view(ByAuthor).unwrap().query().key("Lem").reduce().unwrap(), Some(2));
    // The expiration.
    let mut lent = books.get("2").unwrap().unwrap();
    lent.content.lent_until = Some(1);
    books.update(&mut lent).unwrap();
    assert!(books.get("2").unwrap().is_none());
    // The collection itself is untyped to others.
    assert_eq!(books.find(field("author").eq("Lem")).count().unwrap(), 1);
}

#[test]
fn opening_again_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    for _ in 0..2 {
        let db = Database::open(directory.path().join("db")).unwrap();
        Book::open(&db).unwrap();
        let sequence = db.info().unwrap().log_bytes;
        Book::open(&db).unwrap();
        assert_eq!(db.info().unwrap().log_bytes, sequence);
        assert_eq!((db.indexes().list().len(), db.expiration().rules().len(), db.schemas().list().len()), (2, 1, 1));
    }
}

#[test]
fn documents_that_violate_a_declaration_prevent_opening() {
    let db = Database::in_memory();
    db.insert("books:1", &json!({"isbn": "1", "year": "old"})).unwrap();
    assert_eq!(Book::open(&db).unwrap_err().kind(), ErrorKind::Invalid);
    let db = Database::in_memory();
    for id in ["books:1", "books:2"] {
        db.insert(id, &json!({"isbn": "1", "year": 1})).unwrap();
    }
    assert_eq!(Book::open(&db).unwrap_err().kind(), ErrorKind::Duplicate);
}

/// Without the macro.
#[derive(Serialize, Deserialize)]
struct Reader {
    email: String,
}

impl DeclaredCollection for Reader {
    const NAME: &'static str = "readers";

    fn declarations() -> Declarations {
        Declarations::new().key("email").index(Index::on("email").unique()).schema(&json!({"required": ["email"]}))
    }
}

#[test]
fn a_declaration_can_be_written_by_hand() {
    let db = Database::in_memory();
    let readers = Reader::open(&db).unwrap();
    assert_eq!(readers.push(&Reader { email: "ada@example.org".to_owned() }).unwrap(), "ada@example.org");
    assert_eq!(db.schemas().list().len(), 1);
    // A wrong declaration is reported when the collection is opened.
    let wrong = Declarations::new().schema("{");
    assert!(format!("{wrong:?}").starts_with("Declarations"));
}

#[derive(Debug, Serialize, Deserialize, Collection)]
#[collection(name = "broken", schema = "{\"type\": ")]
struct Broken {
    x: u8,
}

#[test]
fn a_schema_that_is_no_json_is_reported() {
    let error = Broken::open(&Database::in_memory()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("in the schema of the collection"), "{error}");
    assert_eq!(Broken { x: 1 }.x, 1);
}
