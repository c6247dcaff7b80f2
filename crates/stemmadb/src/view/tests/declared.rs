//! Tests of declared views.

use crate::value::Value;
use crate::{Database, DeclaredView, ErrorKind};

fn json(text: &str) -> Value {
    Value::parse(text).unwrap()
}

fn shop() -> Database {
    let db = Database::in_memory();
    for (id, text) in [
        ("o1", r#"{"paid": true, "who": "ann", "lines": [{"what": "tea", "price": 4}, {"what": "cup", "price": 9}]}"#),
        ("o2", r#"{"paid": true, "who": "bob", "lines": [{"what": "tea", "price": 5}, {"price": 1}]}"#),
        ("o3", r#"{"paid": false, "who": "cid", "lines": [{"what": "tea", "price": 50}]}"#),
        ("o4", r#"{"paid": true, "lines": 7}"#),
    ] {
        db.insert(id, &json(text)).unwrap();
    }
    db
}

fn rows(db: &Database, definition: &str) -> Vec<String> {
    let view = db.views().define("test", &json(definition)).unwrap();
    view.update().unwrap();
    let rows = view.query().rows().unwrap().map(|row| row.unwrap());
    rows.map(|row| format!("{} {} {}", row.id, row.key.to_json(), row.value.to_json())).collect()
}

#[test]
fn paths_conditions_and_unnested_elements() {
    let db = shop();
    assert_eq!(rows(&db, r#"{"key": "who"}"#), ["o1 \"ann\" null", "o2 \"bob\" null", "o3 \"cid\" null"]);
    assert_eq!(
        rows(&db, r#"{"where": {"paid": true}, "unnest": "lines", "key": ["@.what", "who"], "value": "@.price"}"#),
        ["o2 [null,\"bob\"] 1", "o1 [\"cup\",\"ann\"] 9", "o1 [\"tea\",\"ann\"] 4", "o2 [\"tea\",\"bob\"] 5"]
    );
    assert_eq!(
        rows(&db, r#"{"key": "lines.0.price", "value": {"_id": "who", "no": "none"}}"#)[0],
        "o1 4 {\"_id\":\"ann\"}"
    );
    assert_eq!(rows(&db, r#"{"key": ["none", "neither"]}"#), [""; 0]);
    assert_eq!(rows(&db, r#"{"where": {"paid": false}, "key": "_id"}"#), ["o3 \"o3\" null"]);
    let sums = db
        .views()
        .define("shop/sums", &json(r#"{"unnest": "lines", "key": "@.what", "value": "@.price", "reduce": "_sum"}"#));
    assert_eq!(sums.unwrap().query().key("tea").reduce().unwrap(), Some(59.into()));
}

#[test]
fn paths_that_lead_through_arrays_give_hints() {
    let db = shop();
    db.insert("o5", &json(r#"{"orders": [{"lines": [{"what": "tea", "tax": [{"rate": 5}]}]}]}"#)).unwrap();
    db.insert("o6", &json(r#"{"lines": [{"tax": [{"rate": 5}]}]}"#)).unwrap();
    let hints = |definition: &str| {
        DeclaredView::parse("v", &json(definition)).unwrap().hints(&db.snapshot().unwrap()).join("; ")
    };
    for definition in [
        r#"{"unnest": "lines", "key": ["@.what", "who", "_id", "@"], "value": {"price": "@.price"}}"#,
        r#"{"key": "lines.0.price", "value": "none", "where": {"lines[].what": "tea"}}"#,
        r#"{"unnest": "none", "key": "@.what"}"#,
    ] {
        assert_eq!(hints(definition), "", "{definition}");
    }
    let unnest = "name the array with `unnest`, and a field of its elements as `@.field`";
    let no_price = format!("no document has a field `lines.price`, but some have `lines[].price`: {unnest}");
    assert_eq!(hints(r#"{"key": "lines.price"}"#), no_price);
    assert_eq!(hints(r#"{"key": "who", "value": ["none", "lines.price"]}"#), no_price);
    assert_eq!(
        hints(r#"{"key": "who", "where": {"lines.what": "tea"}}"#),
        "no document has a field `lines.what`, but some have `lines[].what`: write `[]` for the elements of an array"
    );
    assert!(
        hints(r#"{"unnest": "orders.lines", "key": "@"}"#).contains("but some have `orders[].lines`: a view can't")
    );
    assert!(hints(r#"{"unnest": "lines", "key": "@.tax.rate"}"#).contains("some documents have `lines[].tax[].rate`"));
}

#[test]
fn definitions_are_stored_listed_and_dropped() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("db");
    let db = Database::open(&path).unwrap();
    db.insert("one", &json(r#"{"email": "a"}"#)).unwrap();
    db.views().define("emails", &json(r#"{"key": "email", "refresh": "unique"}"#)).unwrap();
    db.views().define("shop/count", &json(r#"{"key": "email", "reduce": "_count"}"#)).unwrap();
    let sequence = db.sequence();
    db.views().define("emails", &json(r#"{"key": "email", "refresh": "unique"}"#)).unwrap();
    assert_eq!(db.sequence(), sequence, "what is written down already is not written again");
    db.close().unwrap();

    let db = Database::open(&path).unwrap();
    let names: Vec<_> = db.views().definitions().unwrap().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["emails", "shop/count"]);
    // The check applies from opening on, before anyone queried the view.
    assert_eq!(db.insert("two", &json(r#"{"email": "a"}"#)).unwrap_err().kind(), ErrorKind::Conflict);
    assert_eq!(db.views().open("shop/count").unwrap().query().count().unwrap(), 1);
    db.views().remove("emails").unwrap();
    db.insert("two", &json(r#"{"email": "a"}"#)).unwrap();
    assert_eq!(db.views().open("emails").err().unwrap().kind(), ErrorKind::NotFound);
    assert_eq!(db.views().remove("emails").unwrap_err().kind(), ErrorKind::NotFound);
    assert!(db.get("_design/emails").unwrap().is_none());
    db.views().remove("shop/count").unwrap();
    assert!(db.views().definitions().unwrap().is_empty());
    assert!(db.maintenance().check().unwrap().is_sound());
}

#[test]
fn malformed_definitions_are_rejected() {
    let db = Database::in_memory();
    for (definition, message) in [
        ("[]", "a view is declared as an object"),
        ("{}", "there is no `key`"),
        (r#"{"key": "a", "filter": {}}"#, "`filter` is not a field"),
        (r#"{"key": {"a": "b"}}"#, "`key` is a path"),
        (r#"{"key": "@.a"}"#, "nothing is unnested"),
        (r#"{"key": "a", "reduce": "_mean"}"#, "there is no reduction `_mean`"),
        (r#"{"key": "a", "refresh": "now"}"#, "`refresh` can't be `now`"),
        (r#"{"key": "a", "where": {"$nope": 1}}"#, "$nope"),
        (r#"{"key": "a..b"}"#, "empty"),
    ] {
        let refused = db.views().define("v", &json(definition)).err().unwrap();
        assert_eq!(refused.kind(), ErrorKind::Invalid);
        assert!(refused.message().contains(message), "{definition}: {refused:?}");
    }
    assert_eq!(db.views().define("a/", &json(r#"{"key": "a"}"#)).err().unwrap().kind(), ErrorKind::Invalid);
    db.insert("_design/other", &json(r#"{"language": "javascript", "views": {}}"#)).unwrap();
    let refused = db.views().define("other/v", &json(r#"{"key": "a"}"#)).err().unwrap();
    assert_eq!(refused.kind(), ErrorKind::Conflict);
}
