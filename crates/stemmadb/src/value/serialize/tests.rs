//! Round trips of Rust types through plain and packed values.

use std::collections::{BTreeMap, HashMap};

use proptest::prelude::*;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::Value;
use crate::value::arbitrary::document;
use crate::value::{PackedValue, Shapes, pack};

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Book {
    title: String,
    year: Option<u16>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    authors: Vec<Author>,
    price: f64,
    state: State,
    pair: (i8, char),
    notes: BTreeMap<i64, State>,
    unit: (),
    id: Id,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Author {
    name: String,
    born: i64,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Id(u64);

#[derive(Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum State {
    New,
    Lent(String),
    Moved(u8, u8),
    Sold { to: String, on: u32 },
}

fn book() -> Book {
    Book {
        title: "Lachmann".into(),
        year: None,
        authors: vec![Author { name: "Karl".into(), born: -1 }],
        price: 12.5,
        state: State::Sold { to: "you".into(), on: 7 },
        pair: (-3, 'é'),
        notes: BTreeMap::from([(-1, State::New), (2, State::Lent("x".into())), (3, State::Moved(1, 2))]),
        unit: (),
        id: Id(u64::MAX),
    }
}

const BOOK: &str = concat!(
    r#"{"title":"Lachmann","year":null,"authors":[{"name":"Karl","born":-1}],"price":12.5,"#,
    r#""state":{"sold":{"to":"you","on":7}},"pair":[-3,"é"],"#,
    r#""notes":{"-1":"new","2":{"lent":"x"},"3":{"moved":[1,2]}},"unit":null,"id":18446744073709551615}"#
);

/// Deserializes the value and its packed form, whose results must agree.
fn deserialized<T: DeserializeOwned>(value: &Value) -> Result<T, String> {
    let shapes = Shapes::new();
    let mut bytes = Vec::new();
    pack(value, &shapes, &mut bytes).expect("small");
    let packed = PackedValue::new(&bytes, &shapes).expect("packed by us").deserialize_into::<T>();
    let plain = value.deserialize_into::<T>();
    assert_eq!(packed.as_ref().err().map(ToString::to_string), plain.as_ref().err().map(ToString::to_string));
    plain.map_err(|error| error.to_string())
}

fn json(text: &str) -> Value {
    Value::parse(text).expect("good JSON")
}

#[test]
fn structs_round_trip() {
    let value = Value::from_serialize(&book()).expect("it has a JSON equivalent");
    assert_eq!(value, json(BOOK));
    assert_eq!(deserialized::<Book>(&value), Ok(book()));
    assert_eq!(serde_json::from_str::<Value>(BOOK).expect("good JSON"), value);
    assert_eq!(serde_json::to_string(&value).expect("plain"), BOOK);
}

#[test]
fn serde_json_values_are_accepted() {
    let value = Value::from_serialize(&serde_json::json!({"a": [1, -1, 1.5, u64::MAX, null], "b": {"c": "d"}}));
    assert_eq!(value.expect("it is JSON"), json(r#"{"a":[1,-1,1.5,18446744073709551615,null],"b":{"c":"d"}}"#));
}

#[test]
fn strings_are_borrowed() {
    #[derive(Deserialize)]
    struct Named<'a> {
        name: &'a str,
    }
    let value = json(r#"{"name": "Karl", "ignored": [{}]}"#);
    let named: Named<'_> = value.deserialize_into().expect("it fits");
    assert_eq!(named.name, "Karl");
}

#[test]
fn types_without_a_json_equivalent_are_rejected() {
    let message = |error: crate::Error| error.to_string();
    let floats = BTreeMap::from([("a", vec![1.0, f64::NAN])]);
    assert_eq!(
        Value::from_serialize(&floats).map_err(message),
        Err("field \"a\": element 1: NaN can't be written in JSON".into())
    );
    assert!(Value::from_serialize(&u128::MAX).is_err());
    assert_eq!(Value::from_serialize(&i128::from(i64::MIN)).map_err(message), Ok(i64::MIN.into()));
    assert!(Value::from_serialize(&i128::MIN).is_err());
    assert!(Value::from_serialize(&HashMap::from([((1, 2), 3)])).is_err());
    assert!(Value::from_serialize(&HashMap::from([(Some(1), 3)])).is_ok());
    assert!(Value::from_serialize(&HashMap::from([(None::<u8>, 3)])).is_err());
    assert!(Value::from_serialize(&HashMap::from([(State::Lent("x".into()), 3)])).is_err());

    #[derive(Serialize)]
    struct DuplicateName {
        a: u8,
        #[serde(flatten)]
        rest: BTreeMap<&'static str, u8>,
    }
    let duplicate = DuplicateName { a: 1, rest: BTreeMap::from([("a", 2)]) };
    assert_eq!(
        Value::from_serialize(&duplicate).map_err(message),
        Err("the field \"a\" is given twice in one object".into())
    );
    assert!(serde_json::from_str::<Value>(r#"{"a":1,"a":2}"#).is_err());
}

#[test]
fn depth_is_bounded() {
    #[derive(Serialize)]
    enum Chain {
        End,
        Link(Box<Chain>),
    }
    let chain = |length: usize| (0..length).fold(Chain::End, |inner, _| Chain::Link(Box::new(inner)));
    assert!(Value::from_serialize(&chain(128)).is_ok());
    assert!(Value::from_serialize(&chain(129)).is_err());
    let text = format!("{}{}", "[".repeat(200), "]".repeat(200));
    let mut unbounded = serde_json::Deserializer::from_str(&text);
    assert!(Value::deserialize(&mut unbounded).is_err());
}

#[test]
fn errors_name_the_field() {
    let error = |text: &str| deserialized::<Book>(&json(text)).expect_err(text);
    let with = |from: &str, to: &str| error(&BOOK.replace(from, to));
    assert_eq!(
        with("\"born\":-1", "\"born\":\"x\""),
        "field \"authors\": element 0: field \"born\": invalid type: string \"x\", expected i64"
    );
    assert_eq!(with("[-3,\"é\"]", "[-3]"), "field \"pair\": invalid length 1, expected a tuple of size 2");
    assert_eq!(with("[-3,\"é\"]", "[-3,\"é\",1]"), "field \"pair\": invalid length 3, expected an array of 2 elements");
    assert_eq!(with("\"title\"", "\"titel\""), "missing field `title`");
    assert_eq!(
        with("{\"lent\":\"x\"}", "\"lent\""),
        "field \"notes\": field \"2\": invalid type: unit variant, expected a variant that holds a value"
    );
    assert_eq!(
        with("{\"lent\":\"x\"}", "5"),
        "field \"notes\": field \"2\": invalid type: number 5, expected a variant's name, or an object of one field"
    );
    assert!(with("\"-1\":\"new\"", "\"-01\":\"new\"").starts_with("field \"notes\": invalid type: string \"-01\""));
}

proptest! {
    #[test]
    fn values_pass_through_serde_unchanged(value in document()) {
        prop_assert_eq!(&Value::from_serialize(&value).expect("a value"), &value);
        prop_assert_eq!(&deserialized::<Value>(&value).expect("a value"), &value);
        let parsed = serde_json::from_str::<serde_json::Value>(&value.to_json()).expect("JSON");
        let converted = Value::from_serialize(&parsed).expect("a value");
        prop_assert_eq!(converted.as_object().map(|object| object.len()), value.as_object().map(|object| object.len()));
    }
}
