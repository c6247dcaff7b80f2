//! The same behavior embedded and over each transport: updates of all matching documents, figures, files, views,
//! declarations, the past, and subscriptions to paths.

mod support;

use std::io::{Read, Seek, SeekFrom};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::json;
use stemmadb::past::{Difference, Retention};
use stemmadb::typed::{DeclaredCollection, EntryEvent};
use stemmadb::{
    Collection, DocumentId, Edit, ErrorKind, Index, IndexState, Patch, PathEvent, Result, Schema, Selector, Sequence,
    Value, field,
};
use stemmadb_client::AnyDatabase;
use support::{PATIENCE, conformance};

conformance! {
    matching_documents_are_changed_or_none
    figures_are_computed
    figures_of_the_past_are_computed
    files_are_streamed_both_ways
    views_are_queried
    indexes_are_declared
    schemas_are_required
    the_past_is_read_and_restored
    feeds_are_filtered_by_paths
    path_subscriptions_report_changed_values
    messages_reach_those_who_listen
    typed_collections_are_the_same
}

// Not those about all documents at once (`matching_documents_are_changed_or_none`: all or none of each shard;
// `schemas_are_required`, `typed_collections_are_the_same`, and unique indexes in `indexes_are_declared`), the past by
// sequence (`figures_of_the_past_are_computed`, `the_past_is_read_and_restored`), the order of changes
// (`feeds_are_filtered_by_paths`), and what is refused: prefixes of keys in `views_are_queried`, and
// `path_subscriptions_report_changed_values`.
conformance! {
    virtual_database:
    figures_are_computed
    files_are_streamed_both_ways
    messages_reach_those_who_listen
}

fn kind<T>(result: Result<T>) -> ErrorKind {
    result.map(drop).unwrap_err().kind()
}

fn insert(db: &AnyDatabase, id: &str, json: serde_json::Value) {
    db.insert(id, &json).unwrap();
}

fn matching_documents_are_changed_or_none(db: &AnyDatabase) {
    for n in 0..10 {
        insert(db, &format!("d{n}"), json!({"n": n, "text": if n == 9 { json!("x") } else { json!(n) }}));
    }
    assert_eq!(db.update_where(field("n").lt(5), &Patch::new().set("is_small", true)).unwrap(), 5);
    assert_eq!(db.find(field("is_small").eq(true)).count().unwrap(), 5);
    // What does not change is not written.
    assert_eq!(db.update_where(field("n").lt(7), &Patch::new().set("is_small", true)).unwrap(), 2);
    assert_eq!(db.get("d0").unwrap().unwrap().revision().generation(), 2);
    // One document can't be changed, so none is.
    let refused = db.update_where(field("n").ge(7), &Patch::new().increment("text", 1));
    assert_eq!(kind(refused), ErrorKind::Invalid);
    assert_eq!(db.get("d8").unwrap().unwrap().revision().generation(), 1);
    assert_eq!(kind(db.update_where(field("..").eq(1), &Patch::new())), ErrorKind::Invalid);
    let query = stemmadb::Query::new(field("n").ge(0)).sort("n").limit(3);
    assert_eq!(db.delete_where(query).unwrap(), 3);
    assert!(db.get("d2").unwrap().is_none() && db.get("d3").unwrap().is_some());
    assert_eq!(db.delete_where(Selector::nothing()).unwrap(), 0);
    assert_eq!(db.delete_where(Selector::everything()).unwrap(), 7);
}

fn figures_are_computed(db: &AnyDatabase) {
    let rows = [("Oslo", 1, 5.0), ("Oslo", 2, 7.0), ("Rome", 2, 1.5), ("Rome", 2, -3.0)];
    for (at, (city, year, price)) in rows.into_iter().enumerate() {
        insert(db, &at.to_string(), json!({"city": city, "year": year, "price": price, "tags": [city, "all"]}));
    }
    let all = || db.find(Selector::everything());
    assert_eq!(all().min("city").unwrap(), Some("Oslo".into()));
    assert_eq!(all().max("price").unwrap(), Some(7.into()));
    assert_eq!(all().max("missing").unwrap(), None);
    assert_eq!(all().average("price").unwrap(), Some(2.625));
    assert_eq!(all().average("city").unwrap(), None);
    assert_eq!(all().sum("city").unwrap().as_i64(), Some(0));
    let summary = db.find(field("city").eq("Rome")).summary("price").unwrap();
    let figures = [summary.sum, summary.min, summary.max].map(|figure| figure.unwrap().as_f64());
    assert_eq!((summary.count, figures), (2, [-1.5, -3.0, 1.5]));
    let mut tags: Vec<_> =
        all().group_by("tags[]").counts().unwrap().into_iter().map(|(tag, count)| (tag.to_json(), count)).collect();
    tags.sort();
    assert_eq!(tags, [("\"Oslo\"".into(), 2), ("\"Rome\"".into(), 2), ("\"all\"".into(), 4)]);
    let years = all().group_by(["city", "year"]).counts().unwrap();
    let years: Vec<_> = years.iter().map(|(key, count)| (key.to_json(), *count)).collect();
    assert_eq!(years, [(r#"["Oslo",1]"#.into(), 1), (r#"["Oslo",2]"#.into(), 1), (r#"["Rome",2]"#.into(), 2)]);
    let groups = all().group_by("city").summaries("price").unwrap();
    let averages: Vec<_> = groups.iter().map(|(_, summary)| summary.average()).collect();
    assert_eq!(averages, [Some(6.0), Some(-0.75)]);
    assert_eq!(kind(all().group_by(Vec::<String>::new()).counts()), ErrorKind::Invalid);
    assert!(all().exists().unwrap() && !db.find(Selector::nothing()).exists().unwrap());
}

fn figures_of_the_past_are_computed(db: &AnyDatabase) {
    insert(db, "a", json!({"city": "Oslo", "price": 7}));
    insert(db, "b", json!({"city": "Rome", "price": 3}));
    let then = db.sequence().unwrap();
    insert(db, "later", json!({"city": "Aarhus", "price": 100}));
    assert_eq!(db.find_as_of(then, Selector::everything()).unwrap().max("price").unwrap(), Some(7.into()));
    assert_eq!(db.find_as_of(then, Selector::everything()).unwrap().sum("price").unwrap().as_f64(), 10.0);
}

/// Bytes that differ at every position.
fn content(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at.wrapping_mul(2_654_435_761) >> 16) as u8).collect()
}

fn read(db: &AnyDatabase, id: &str, name: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    db.files().open(id, name).unwrap()?.read_to_end(&mut bytes).unwrap();
    Some(bytes)
}

fn files_are_streamed_both_ways(db: &AnyDatabase) {
    let mut revision = db.insert("a", &json!({"n": 1})).unwrap();
    // Below, at and above the sizes of chunks, of what is sent without credit, and of both together.
    for length in [0, 1, 65_535, 65_536, 65_537, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 5_000_000] {
        let name = format!("file {length}");
        revision = db.files().attach("a", &revision, &name, "x/y", &content(length)[..]).unwrap();
        assert!(read(db, "a", &name).unwrap() == content(length), "{length}");
    }
    let document = db.get("a").unwrap().unwrap();
    assert_eq!((document.revision(), document.get("n").unwrap()), (&revision, Some(1.into())));
    let files = document.attachments().unwrap();
    assert_eq!(files.len(), 9);
    assert!(files.iter().all(|file| file.content_type == "x/y" && file.name == format!("file {}", file.length)));
    // Reading begins anywhere, and may stop anywhere.
    let mut file = db.files().open("a", "file 5000000").unwrap().unwrap();
    let mut part = [0; 100];
    for position in [4_999_900, 0, 1_234_567] {
        assert_eq!(file.seek(SeekFrom::Start(position)).unwrap(), position);
        file.read_exact(&mut part).unwrap();
        assert!(part[..] == content(5_000_000)[position as usize..][..100]);
    }
    assert_eq!(file.seek(SeekFrom::End(-1)).unwrap(), 4_999_999);
    assert_eq!((file.read(&mut part).unwrap(), file.read(&mut part).unwrap()), (1, 0));
    drop(file);
    // Errors come before or after the content.
    let old = document.revision();
    let replaced = db.files().attach("a", old, "file 1", "x/z", &b"two"[..]).unwrap();
    assert_eq!(kind(db.files().attach("a", old, "more", "x/y", &content(3_000_000)[..])), ErrorKind::Conflict);
    assert_eq!(kind(db.files().attach("none", old, "more", "x/y", &b"1"[..])), ErrorKind::NotFound);
    assert_eq!(read(db, "a", "file 1").unwrap(), b"two");
    assert!(read(db, "a", "none").is_none() && read(db, "none", "file 1").is_none());
    let detached = db.files().detach("a", &replaced, "file 1").unwrap();
    assert!(read(db, "a", "file 1").is_none());
    assert_eq!(kind(db.files().detach("a", &detached, "file 1")), ErrorKind::NotFound);
    assert_eq!(db.get("a").unwrap().unwrap().revision(), &detached);
}

fn views_are_queried(db: &AnyDatabase) {
    for (id, author, year, pages) in
        [("a", "Lem", 1961, 200), ("b", "Lem", 1968, 300), ("c", "Le Guin", 1969, 250), ("d", "Le Guin", 1974, 350)]
    {
        insert(db, id, json!({"author": author, "year": year, "pages": pages}));
    }
    let definition = json!({"key": ["author", "year"], "value": "pages", "reduce": "_sum"});
    let pages = db.views().define("pages", &definition).unwrap();
    let ids = |query: stemmadb_client::AnyViewQuery| -> String {
        query.rows().unwrap().iter().map(|row| row.id.as_str().to_owned()).collect()
    };
    assert_eq!(ids(pages.query()), "cdab");
    assert_eq!(ids(pages.query().descending().skip(1).limit(2)), "ad");
    assert_eq!(ids(pages.query().key(json!(["Lem", 1961]))), "a");
    assert_eq!(ids(pages.query().keys([json!(["Lem", 1968]), json!(["Le Guin", 1974])])), "bd");
    assert_eq!(ids(pages.query().prefix(json!(["Lem"]))), "ab");
    assert_eq!(ids(pages.query().range(json!(["Le Guin", 1970])..json!(["Lem", 1968]))), "da");
    assert_eq!(ids(pages.query().range(json!(["Le Guin", 1970])..=json!(["Lem", 1968]))), "dab");
    assert_eq!(ids(pages.query().range(..json!(["Lem"]))), "cd");
    let row = pages.query().with_documents().limit(1).rows().unwrap().pop().unwrap();
    assert_eq!((row.key.to_json(), row.value), (r#"["Le Guin",1969]"#.to_owned(), 250.into()));
    assert_eq!(row.document.unwrap().get("year").unwrap(), Some(1969.into()));
    assert_eq!(pages.query().count().unwrap(), 4);
    assert_eq!(pages.query().reduce().unwrap(), Some(1100.into()));
    assert_eq!(pages.query().prefix(json!(["Lem"])).reduce().unwrap(), Some(500.into()));
    assert_eq!(pages.query().prefix(json!(["None"])).reduce().unwrap(), None);
    let groups: Vec<_> =
        pages.query().group_level(1).unwrap().iter().map(|(key, sum)| (key.to_json(), sum.to_json())).collect();
    assert_eq!(groups, [(r#"["Le Guin"]"#.into(), "600".into()), (r#"["Lem"]"#.into(), "500".into())]);
    assert_eq!(pages.query().group().unwrap().len(), 4);
    insert(db, "e", json!({"author": "Lem", "year": 1971, "pages": 1}));
    pages.update().unwrap();
    let info = pages.info().unwrap();
    assert_eq!((info.name.as_str(), info.row_count, info.failed_count), ("pages", 5, 0));
    assert_eq!(db.views().definitions().unwrap(), [("pages".to_owned(), Value::from_serialize(&definition).unwrap())]);
    assert_eq!(db.views().open("pages").unwrap().query().count().unwrap(), 5);
    assert_eq!(kind(db.views().define("bad", &json!({"kex": "a"}))), ErrorKind::Invalid);
    assert_eq!(kind(db.views().open("none")), ErrorKind::NotFound);
    db.views().remove("pages").unwrap();
    assert_eq!(kind(db.views().remove("pages")), ErrorKind::NotFound);
    assert_eq!(kind(db.views().open("pages")), ErrorKind::NotFound);
    // Rows are streamed.
    let long = "x".repeat(200);
    let edit = |n: usize| Edit::Insert {
        id: DocumentId::new(format!("n{n:05}")).unwrap(),
        body: Value::from_serialize(&json!({"n": n, "text": long})).unwrap(),
    };
    assert!(db.bulk((0..4000).map(edit).collect()).unwrap().iter().all(Result::is_ok));
    let many = db.views().define("many/by_n", &json!({"key": "n", "value": "text"})).unwrap();
    let rows = many.query().rows().unwrap();
    assert!(rows.len() == 4000 && rows.iter().enumerate().all(|(at, row)| row.key == Value::from(at)));
}

fn indexes_are_declared(db: &AnyDatabase) {
    insert(db, "a", json!({"email": "a@x", "n": 1}));
    db.indexes().create(Index::on("email").unique()).unwrap();
    db.indexes().create(Index::on("email").unique()).unwrap();
    db.indexes().create(Index::on("n").then_descending("email").collated("de").named("both")).unwrap();
    let listed = db.indexes().list().unwrap();
    let names: Vec<_> = listed.iter().map(|index| (index.name.as_str(), index.unique)).collect();
    assert_eq!(names, [("email", true), ("both", false)]);
    assert!(listed.iter().all(|index| index.state == IndexState::Ready));
    let second = &listed[1].paths[1];
    assert_eq!(
        (second.path().to_string(), second.is_descending(), second.language()),
        ("email".into(), true, Some("de"))
    );
    assert_eq!(kind(db.insert("b", &json!({"email": "a@x"}))), ErrorKind::Duplicate);
    assert_eq!(kind(db.indexes().create(Index::on("other").named("both"))), ErrorKind::Invalid);
    assert_eq!(kind(db.indexes().create(Index::on(".."))), ErrorKind::Invalid);
    db.indexes().remove("email").unwrap();
    assert_eq!(kind(db.indexes().remove("email")), ErrorKind::NotFound);
    insert(db, "b", json!({"email": "a@x"}));
    assert_eq!(kind(db.indexes().create(Index::on("email").unique())), ErrorKind::Duplicate);
}

fn schemas_are_required(db: &AnyDatabase) {
    insert(db, "books:1", json!({"title": 1}));
    let schema = || Schema::new(&json!({"properties": {"title": {"type": "string"}}})).unwrap();
    assert_eq!(kind(db.schemas().require("books", schema())), ErrorKind::Invalid);
    db.schemas().require("books", schema().for_new_writes()).unwrap();
    assert_eq!(kind(db.insert("books:2", &json!({"title": 2}))), ErrorKind::Invalid);
    insert(db, "books:3", json!({"title": "three"}));
    let violations = db.schemas().violations("books", 10).unwrap();
    assert!(violations.len() == 1 && violations[0].0.as_str() == "books:1" && violations[0].1.contains("/title"));
    let listed = db.schemas().list().unwrap();
    assert!(listed.len() == 1 && listed[0].0 == "books" && listed[0].1.json() == schema().json());
    assert_eq!(kind(db.schemas().violations("none", 10)), ErrorKind::NotFound);
    db.schemas().remove("books").unwrap();
    assert_eq!(kind(db.schemas().remove("books")), ErrorKind::NotFound);
    insert(db, "books:2", json!({"title": 2}));
}

fn the_past_is_read_and_restored(db: &AnyDatabase) {
    db.history().keep(Retention::Everything).unwrap();
    assert_eq!(db.history().retention().unwrap(), Retention::Everything);
    let first = db.insert("a", &json!({"n": 1})).unwrap();
    insert(db, "b", json!({"n": 1}));
    let then = db.sequence().unwrap();
    let second = db.replace("a", &first, &json!({"n": 2})).unwrap();
    insert(db, "c", json!({"n": 3}));
    let deleted = db.delete("b", db.get("b").unwrap().unwrap().revision()).unwrap();
    let revisions = db.history().revisions("a").unwrap();
    let known: Vec<_> = revisions.iter().map(|revision| *revision.document.revision()).collect();
    assert_eq!(known, [second, first]);
    assert!(revisions[0].time.is_some() && revisions[0].sequence > then && revisions[1].sequence <= then);
    assert_eq!(db.history().document_at("a", then).unwrap().unwrap().revision(), &first);
    assert_eq!(kind(db.history().revisions("none")), ErrorKind::NotFound);
    let now = db.sequence().unwrap();
    let differences = db.history().differences(then, now, None).unwrap();
    let shown: Vec<_> = differences
        .iter()
        .map(|difference| match difference {
            Difference::Added(after) => format!("+{}", after.id()),
            Difference::Removed(before) => format!("-{}", before.id()),
            Difference::Changed { before, after, paths } => {
                format!(
                    "{} {} {} {}",
                    after.id(),
                    before.revision() == &first,
                    after.revision() == &second,
                    paths.join(",")
                )
            }
            _ => "?".to_owned(),
        })
        .collect();
    assert_eq!(shown, ["a true true n", "+c", "-b"]);
    let of_c = db.history().differences(then, now, Some(&field("n").eq(3))).unwrap();
    assert!(of_c.len() == 1 && of_c[0].id().as_str() == "c");
    assert_eq!(kind(db.history().differences(now, then, None)), ErrorKind::Invalid);
    // Taking back.
    let again = db.history().undelete("b").unwrap();
    assert_eq!(again.generation(), deleted.generation() + 1);
    assert_eq!(kind(db.history().undelete("b")), ErrorKind::Conflict);
    assert_eq!(db.history().count_reverts(field("n").ge(2), then).unwrap(), 2);
    assert_eq!(db.history().revert(field("n").ge(2), then).unwrap(), 2);
    assert_eq!(db.get("a").unwrap().unwrap().get("n").unwrap(), Some(1.into()));
    assert!(db.get("c").unwrap().is_none());
    // Pins.
    assert_eq!(db.history().pin("audit", then).unwrap(), then);
    assert_eq!(kind(db.history().pin("audit", then)), ErrorKind::Conflict);
    assert_eq!(db.history().pins().unwrap(), [("audit".to_owned(), then)]);
    db.history().release("audit").unwrap();
    assert_eq!(kind(db.history().release("audit")), ErrorKind::NotFound);
    let at = stemmadb::past::At::Ago(Duration::ZERO);
    assert_eq!(db.history().sequence_at(at).unwrap(), db.sequence().unwrap());
    assert_eq!(kind(db.history().revert(field("..").eq(1), then)), ErrorKind::Invalid);
}

fn feeds_are_filtered_by_paths(db: &AnyDatabase) {
    insert(db, "a", json!({"color": {"front": "red"}}));
    insert(db, "b", json!({"size": 1}));
    insert(db, "c", json!({"color": {"back": "blue"}}));
    let changes = db.changes_of_paths(Sequence::ZERO, ["color/+"]).unwrap();
    let ids: Vec<_> = changes.iter().map(|change| change.id.as_str()).collect();
    assert_eq!(ids, ["a", "c"]);
    assert_eq!(kind(db.changes_of_paths(Sequence::ZERO, ["color/#/x"])), ErrorKind::Invalid);
}

fn path_subscriptions_report_changed_values(db: &AnyDatabase) {
    insert(db, "order-1", json!({"status": "new", "lines": [{"n": 1}]}));
    let before = db.sequence().unwrap();
    let mut feed = db.subscribe_paths(["status", "lines/#"]).unwrap();
    let next = |feed: &mut stemmadb_client::AnyPathSubscription| feed.next_within(PATIENCE).unwrap().expect("a change");
    assert!(feed.next_within(Duration::from_millis(20)).unwrap().is_none());
    db.update("order-1", &Patch::new().set("other", 1)).unwrap();
    db.update("order-1", &Patch::new().set("status", "paid").push("lines", json_value(r#"{"n": 2}"#))).unwrap();
    let change = next(&mut feed);
    assert_eq!(change.id.as_str(), "order-1");
    assert!(change.paths.contains(&PathEvent::Changed("status".into())), "{:?}", change.paths);
    assert!(change.paths.iter().any(|event| matches!(event, PathEvent::Added(path) if path.starts_with("lines/1"))));
    assert_eq!(change.document.unwrap().get("status").unwrap(), Some("paid".into()));
    db.delete("order-1", db.get("order-1").unwrap().unwrap().revision()).unwrap();
    let change = next(&mut feed);
    assert!(change.document.is_none() && change.paths.contains(&PathEvent::Removed("status".into())));
    let mut old = db.subscribe_paths(["status"]).unwrap().since(Sequence::ZERO).unwrap();
    let change = next(&mut old);
    assert!(change.id.as_str() == "order-1" && change.paths.is_empty() && change.sequence > before);
    let refused = db.subscribe_paths(["a/#/b"]).and_then(|mut feed| feed.next_within(PATIENCE).map(drop));
    assert_eq!(kind(refused), ErrorKind::Invalid);
}

fn messages_reach_those_who_listen(db: &AnyDatabase) {
    assert_eq!(db.publish("orders/1/paid", &json!({})).unwrap(), 0);
    let mut paid = db.subscribe_topic(["orders/+/paid", "alarms/#"]).unwrap();
    assert_eq!(db.publish("orders/2/shipped", &json!({})).unwrap(), 0);
    assert_eq!(db.publish("orders/2/paid", &json!({"total": 30})).unwrap(), 1);
    assert_eq!(db.publish("alarms", &"fire").unwrap(), 1);
    let mut next = || paid.next_within(PATIENCE).unwrap().expect("a message");
    let message = next();
    assert_eq!((message.topic.as_str(), message.payload.to_json()), ("orders/2/paid", r#"{"total":30}"#.to_owned()));
    assert_eq!(next().payload, "fire".into());
    assert!(paid.next_within(Duration::from_millis(20)).unwrap().is_none());
    // The oldest messages of a slow reader are dropped.
    for n in 0..3_000 {
        db.publish("alarms/flood", &json!({"n": n, "text": "x".repeat(1_000)})).unwrap();
    }
    let (mut count, mut last) = (0, Value::Null);
    while last != 2_999.into() {
        last = paid.next_within(PATIENCE).unwrap().expect("a message").payload.get("n").unwrap().clone();
        count += 1;
    }
    // A server says how many it dropped after the messages that it did not.
    let end = Instant::now() + PATIENCE;
    while paid.dropped_count() + count < 3_000 && Instant::now() < end {
        assert!(paid.next_within(Duration::from_millis(20)).unwrap().is_none());
    }
    assert_eq!(paid.dropped_count() + count, 3_000);
    assert!(paid.dropped_count() > 0);
    for topic in ["", "a/+", "#"] {
        assert_eq!(kind(db.publish(topic, &1)), ErrorKind::Invalid, "{topic}");
    }
    assert_eq!(kind(db.subscribe_topic(["a/#/b"])), ErrorKind::Invalid);
    assert_eq!(kind(db.subscribe_topic([""; 0])), ErrorKind::Invalid);
}

fn json_value(text: &str) -> Value {
    text.parse().unwrap()
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Collection)]
#[collection(name = "books", key = "isbn", unique("isbn"), index("author", "-year"))]
#[collection(schema = r#"{"properties": {"year": {"minimum": 0}}}"#)]
struct Book {
    isbn: String,
    author: String,
    year: i32,
}

fn book(isbn: &str, year: i32) -> Book {
    Book { isbn: isbn.to_owned(), author: "Lem".to_owned(), year }
}

fn typed_collections_are_the_same(db: &AnyDatabase) {
    let books = Book::open(db).unwrap();
    Book::open(db).unwrap();
    assert_eq!((db.indexes().list().unwrap().len(), db.schemas().list().unwrap().len()), (2, 1));
    let begin = db.sequence().unwrap();
    assert_eq!(books.push(&book("1", 1961)).unwrap(), "1");
    assert_eq!(kind(books.insert("copy", &book("1", 1961))), ErrorKind::Duplicate);
    assert_eq!(kind(books.upsert("2", &book("2", -1))), ErrorKind::Invalid);
    books.insert("2", &book("2", 1986)).unwrap();
    // An entry carries its revision.
    let (mut mine, mut yours) = (books.get("1").unwrap().unwrap(), books.get("1").unwrap().unwrap());
    mine.content.year = 1962;
    books.update(&mut mine).unwrap();
    assert_eq!(kind(books.update(&mut yours)), ErrorKind::Conflict);
    assert_eq!(kind(books.delete(&yours)), ErrorKind::Conflict);
    let changed = books.modify("1", |book| {
        book.year -= 1;
        Ok(())
    });
    assert_eq!(changed.unwrap().unwrap().content, book("1", 1961));
    assert!(books.modify("none", |_| Ok(())).unwrap().is_none());
    assert_eq!(kind(books.modify("1", |_| Err(stemmadb::Error::not_found("given up")))), ErrorKind::NotFound);
    assert_eq!(books.upsert_by("isbn", &book("2", 1987)).unwrap(), "2");
    assert_eq!(books.upsert_by("isbn", &book("3", 1959)).unwrap(), "3");
    assert_eq!(books.get("2").unwrap().unwrap().content.year, 1987);
    // Typed queries, with pages.
    insert(db, "elsewhere", json!({"isbn": "4", "author": "Lem", "year": 1950}));
    let keys = |entries: Vec<stemmadb::Entry<Book>>| entries.into_iter().map(|entry| entry.key).collect::<Vec<_>>();
    assert_eq!(keys(books.find(field("year").gt(1960)).sort_descending("year").entries().unwrap()), ["2", "1"]);
    let mut page = books.all().sort("year").limit(2).run().unwrap();
    assert_eq!(keys(page.by_ref().collect::<Result<_>>().unwrap()), ["3", "1"]);
    let token = page.token().unwrap().expect("there are more");
    assert_eq!(keys(books.all().sort("year").after(token).entries().unwrap()), ["2"]);
    assert_eq!((books.all().count().unwrap(), books.find(field("year").lt(1959)).exists().unwrap()), (3, false));
    assert_eq!(books.all().sort("year").skip(1).first().unwrap().unwrap().content, book("1", 1961));
    assert_eq!(books.all().documents().max("year").unwrap(), Some(1987.into()));
    // Typed feeds.
    let changes: Vec<_> = books.changes(begin).unwrap().map(Result::unwrap).collect();
    let seen: Vec<_> = changes.iter().map(|change| (change.key.as_str(), change.entry.is_some())).collect();
    assert_eq!(seen, [("1", true), ("2", true), ("3", true)]);
    let mut feed = books.subscribe(changes[2].sequence).unwrap();
    let mut early = books.watch(field("year").lt(1960)).unwrap();
    let first = early.next_delta().unwrap().unwrap();
    assert!(first.is_first && matches!(&first.events[..], [EntryEvent::Added(added)] if added.key == "3"));
    insert(db, "other", json!({"year": 1}));
    assert!(books.remove("3").unwrap());
    assert!(!books.remove("3").unwrap());
    let removed = early.next_within(PATIENCE).unwrap().unwrap();
    assert_eq!(removed.events, [EntryEvent::Removed("3".into())]);
    let change = feed.next_within(PATIENCE).unwrap().unwrap();
    assert_eq!((change.key.as_str(), change.entry), ("3", None));
    // What does not fit the type is an error that names it.
    insert(db, "books:5", json!({"isbn": "5", "author": "Lem"}));
    let misfit = books.get("5").unwrap_err();
    assert!(misfit.message().contains("books:5"), "{misfit}");
}
