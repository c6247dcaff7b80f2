//! Paths into the elements of arrays: conditions, groups, distinct values and sums, from index and documents alike.

use serde_json::json;
use stemmadb::{Database, Durability, ErrorKind, Options, Selector, Value, field};

fn database() -> Database {
    let db = Database::in_memory_with(Options::new().durability(Durability::None).background(false)).unwrap();
    for number in 0..200_i64 {
        let lines: Vec<_> = (0..number % 4).map(|line| json!({"product": line, "price": number})).collect();
        let tags = if number % 2 == 0 { json!(["even", "number", "number"]) } else { json!(["odd", {"x": 1}]) };
        db.insert(&format!("d{number:03}"), &json!({"n": number, "tags": tags, "lines": lines})).unwrap();
    }
    db
}

fn assert_all(db: &Database) {
    let all = || db.find(Selector::everything());
    assert_eq!(db.find(field("lines[].product").eq(2)).count().unwrap(), 50);
    assert_eq!(db.find(field("tags[]").eq("odd")).count().unwrap(), 100);
    assert_eq!(db.find(!field("tags[]").eq("odd")).count().unwrap(), 100);
    let tags = all().group_by("tags[]").counts().unwrap();
    let tags: Vec<_> = tags.iter().map(|(tag, count)| (tag.to_json(), *count)).collect();
    let expected = [(r#""even""#, 100), (r#""number""#, 100), (r#""odd""#, 100)];
    assert_eq!(tags, expected.map(|(tag, count)| (tag.to_owned(), count)));
    assert_eq!(db.find(field("n").lt(4)).distinct("lines[].product").unwrap(), [0, 1, 2].map(Value::from));
    // Sums count every element, and pair the paths by element.
    let sum = (0..200).map(|number| number * (number % 4)).sum::<i64>();
    assert_eq!(all().sum("lines[].price").unwrap().as_i64(), Some(sum));
    let by_product = all().group_by("lines[].product").summaries("lines[].price").unwrap();
    let counts: Vec<_> = by_product.iter().map(|(product, summary)| (product.as_i64(), summary.count)).collect();
    assert_eq!(counts, [(Some(0), 150), (Some(1), 100), (Some(2), 50)]);
    let by_tag = db.find(field("n").lt(2)).group_by("tags[]").summaries("n").unwrap();
    let counts: Vec<_> = by_tag.iter().map(|(tag, summary)| (tag.to_json(), summary.count)).collect();
    let expected = [r#""even""#, r#""number""#, r#""odd""#].map(|tag| (tag.to_owned(), 1));
    assert_eq!(counts, expected, "a document counts once in each group");
    assert_eq!(all().max("lines[].price").unwrap(), Some(Value::from(199)));
    assert_eq!(all().min("lines[].price").unwrap(), Some(Value::from(1)));
}

#[test]
fn brackets_enter_arrays_in_conditions_groups_and_sums() {
    let db = database();
    assert_all(&db);
    db.maintenance().checkpoint().unwrap();
    assert_all(&db);
}

#[test]
fn groups_by_several_paths_are_unnested() {
    let db = database();
    let few = || db.find(field("n").lt(4));
    let keys = |groups: &[(Value, u64)]| {
        let key = |(key, count): &(Value, u64)| format!("{} {count}", key.to_json());
        groups.iter().map(key).collect::<Vec<_>>()
    };
    let counts = few().group_by(["tags[]", "n"]).counts().unwrap();
    let expected = [
        r#"["even",0] 1"#,
        r#"["even",2] 1"#,
        r#"["number",0] 1"#,
        r#"["number",2] 1"#,
        r#"["odd",1] 1"#,
        r#"["odd",3] 1"#,
    ];
    assert_eq!(keys(&counts), expected);
    // Paths into one array are paired; those into different ones are combined.
    let paired = few().group_by(vec!["lines[].product", "lines[].price"]).counts().unwrap();
    assert_eq!(keys(&paired), ["[0,1] 1", "[0,2] 1", "[0,3] 1", "[1,2] 1", "[1,3] 1", "[2,3] 1"]);
    let combined = few().group_by(["tags[]", "lines[].product"]).summaries("lines[].price").unwrap();
    let sums: Vec<_> = combined.iter().map(|(key, sum)| format!("{} {:?}", key.to_json(), sum.sum)).collect();
    assert_eq!(sums.len(), 7, "{sums:?}");
    assert_eq!(combined[0].1.sum.and_then(|sum| sum.as_i64()), Some(2), "{sums:?}");
    let documents = few().group_by(&["n", "_id"][..]).counts().unwrap();
    assert_eq!(documents.len(), 4);
    assert_eq!(documents[3].0.to_json(), r#"[3,"d003"]"#);
    for wrong in [Vec::new(), vec!["n"; 9], vec!["n", "a..b"]] {
        assert_eq!(few().group_by(wrong).counts().unwrap_err().kind(), ErrorKind::Invalid);
    }
    let hints = few().group_by(["n", "lines.product"]).hints().unwrap();
    assert!(hints.len() == 1 && hints[0].contains("`lines[].product`"), "{hints:?}");
    assert_eq!(few().group_by(["n", "lines[].product"]).hints().unwrap(), Vec::<String>::new());
    let too_many = few().rows_max(3).group_by(["n", "tags[]"]).counts().unwrap_err();
    assert_eq!(too_many.kind(), ErrorKind::Stopped);
}

#[test]
fn paths_that_need_brackets_are_hinted_at() {
    let db = database();
    let hints = |selector: Selector| db.find(selector).hints().unwrap();
    let found = hints(field("lines.product").eq(1).and(field("n").ge(0)));
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("`lines.product`") && found[0].contains("`lines[].product`"), "{found:?}");
    assert_eq!(db.find(field("n").ge(0)).sort("tags.x").hints().unwrap().len(), 1);
    assert_eq!(db.find(field("lines.product").eq(1)).after("of another query").hints().unwrap().len(), 1);
    for fine in [field("n").eq(-1), field("lines.0.product").eq(1), field("none.x").eq(1), field("lines[].x").eq(1)] {
        assert_eq!(hints(fine.clone()), Vec::<String>::new(), "{fine}");
    }
}

#[test]
fn paths_to_one_value_refuse_brackets() {
    let db = database();
    let document = db.get("d001").unwrap().unwrap();
    assert_eq!(document.get("lines[].price").unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(document.get("lines.0.price").unwrap(), Some(Value::from(1)));
    let error = db.find(field("n").ge(0)).sort("lines[].price").run().err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(db.indexes().create(stemmadb::Index::on("tags[]")).is_err());
}
