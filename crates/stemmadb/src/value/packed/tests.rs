//! Round trips, field lookups and damage detection of packed values.

use proptest::prelude::*;

use super::*;
use crate::value::arbitrary::{document, value};
use crate::value::{DEPTH_MAX, Object, Value, pack};

fn packed(value: &Value, shapes: &Shapes) -> Vec<u8> {
    let mut bytes = Vec::new();
    pack(value, shapes, &mut bytes).expect("small");
    bytes
}

fn json(text: &str) -> Value {
    Value::parse(text).expect("good JSON")
}

/// A dictionary that accepts no more shapes, so that objects store their names.
fn full_dictionary() -> Shapes {
    let shapes = Shapes::new();
    for i in 0..5_000 {
        shapes.intern([format!("full {i}").as_str()]);
    }
    shapes
}

#[test]
fn scalars_take_few_bytes() {
    let shapes = Shapes::new();
    let sizes = [
        ("null", 1),
        ("127", 1),
        ("128", 2),
        ("-1", 1),
        ("-2", 2),
        ("65535", 3),
        ("18446744073709551615", 9),
        ("-9223372036854775808", 9),
        ("0.5", 3),
        ("-0.0", 2),
        ("12.34", 3),
        ("-0.1", 2),
        ("52.5200066", 5),
        ("3.141592653589793", 9),
        ("\"abc\"", 4),
        ("[]", 2),
        ("{}", 2),
        ("[1,2,3]", 7),
    ];
    for (text, size) in sizes {
        let bytes = packed(&json(text), &shapes);
        assert_eq!(bytes.len(), size, "{text}: {bytes:02x?}");
    }
}

#[test]
fn a_packed_document_is_much_smaller_than_its_text() {
    let text = r#"{"name":"river stone 4711","group":"blue","kind":"g7","size":"s3","state":"open","city":"city 512",
        "street":"street 77","year":1987,"price":129.95,"count":523,"a":"k3jf83hf93kd93jd","b":"p0d8f7g6h5j4k3l2",
        "c":8123456789,"d":0.7312345,"e":true}"#;
    let bytes = packed(&json(text), &Shapes::new());
    assert!(bytes.len() <= 160, "{} bytes of {}", bytes.len(), text.len());
}

#[test]
fn offset_tables_have_the_least_width() {
    let shapes = Shapes::new();
    for bytes_each in [1, 100, 255, 256, 300, 65_535, 65_536, 70_000] {
        let value: Value = (0..5).map(|i| format!("{i}{}", "x".repeat(bytes_each))).collect();
        let bytes = packed(&value, &shapes);
        let array = match PackedValue::new(&bytes, &shapes).and_then(PackedValue::read) {
            Ok(Packed::Array(array)) => array,
            _ => panic!("an array was packed"),
        };
        for i in 0..5 {
            let element = array.get(i).expect("intact").expect("present").to_value().expect("intact");
            assert_eq!(Some(&element), value.as_array().and_then(|elements| elements.get(i)));
        }
        assert!(array.get(5).expect("intact").is_none());
    }
}

#[test]
fn paths_address_the_same_fields_as_in_plain_values() {
    let shapes = Shapes::new();
    let value = json(r#"{"a": [{"b": 1}, 2], "c.d": {"0": 3}, "e": null}"#);
    let bytes = packed(&value, &shapes);
    let packed = PackedValue::new(&bytes, &shapes).expect("packed by us");
    for path in
        ["a", "a.0.b", "a.1", r"c\.d.0", "e", "a.2", "a.00", "a.b", "e.x", "a.1.x", "z", "a.999999999999999999999"]
    {
        let path = Path::parse(path).expect("a good path");
        let found = packed.get(&path).expect("intact").map(|value| value.to_value().expect("intact"));
        assert_eq!(found.as_ref(), path.get(&value), "{path}");
    }
}

#[test]
fn objects_without_a_shape_store_their_names() {
    let shapes = full_dictionary();
    let before = shapes.len();
    let value = json(r#"{"first": 1, "": "empty", "third": {"x": [true]}}"#);
    let bytes = packed(&value, &shapes);
    assert_eq!(shapes.len(), before);
    let object =
        PackedValue::new(&bytes, &shapes).and_then(PackedValue::as_object).expect("intact").expect("an object");
    assert_eq!(object.shape_number(), None);
    assert_eq!(object.get("").expect("intact").expect("present").to_value().expect("intact"), "empty".into());
    assert!(object.get("x").expect("intact").is_none());
    assert_eq!(PackedValue::new(&bytes, &shapes).and_then(PackedValue::to_value).expect("intact"), value);
}

#[test]
fn too_deep_values_are_rejected() {
    let shapes = Shapes::new();
    let nested = |depth: usize| (0..depth).fold(Value::Null, |inner, _| Value::Array(vec![inner]));
    let mut out = vec![7];
    assert!(pack(&nested(DEPTH_MAX + 1), &shapes, &mut out).is_err());
    assert_eq!(out, [7]);
    let bytes = packed(&nested(DEPTH_MAX), &shapes);
    assert_eq!(PackedValue::new(&bytes, &shapes).and_then(PackedValue::to_value).expect("intact"), nested(DEPTH_MAX));
    let deeper = (0..100_000).fold(vec![Tag::NULL], |inner, _| [&[Tag::ARRAY, 1], &inner[..1]].concat());
    let deeper: Vec<u8> = std::iter::repeat_n([Tag::ARRAY, 1], 100_000).flatten().chain(deeper).collect();
    let deeper = PackedValue::new(&deeper, &shapes).expect("an array");
    assert!(deeper.to_value().is_err());
    assert!(deeper.check().is_err());
    assert!(deeper.to_json().is_err());
}

#[test]
fn damaged_bytes_are_corrupt() {
    let shapes = Shapes::new();
    shapes.intern(["a", "b"]);
    let damaged: [&[u8]; 14] = [
        &[],
        &[0x07],
        &[Tag::NULL, 0],
        &[Tag::SMALL_INTEGER, 0],
        &[Tag::INTEGER, 1, 2, 3, 4, 5, 6, 7, 8, 9],
        &[Tag::NEGATIVE_INTEGER, 0x80, 0, 0, 0, 0, 0, 0, 0],
        &[Tag::DOUBLE, 0x7F, 0xF8],
        &[Tag::DECIMAL, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF],
        &[Tag::STRING, 0xFF],
        &[Tag::ARRAY, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x7F],
        &[Tag::ARRAY, 2, Tag::NULL],
        &[Tag::ARRAY, 0, Tag::NULL],
        &[Tag::OBJECT, 1, Tag::NULL],
        &[Tag::OBJECT, 0, Tag::NULL, Tag::NULL, 9],
    ];
    for bytes in damaged {
        let checked = PackedValue::new(bytes, &shapes).and_then(PackedValue::check);
        assert_eq!(checked.expect_err("damaged").kind(), crate::ErrorKind::Corrupt, "{bytes:02x?}");
    }
}

/// Asserts that every way of reading agrees with the unpacked value or returns an error.
fn check_all_readers(bytes: &[u8], shapes: &Shapes) {
    let Ok(value) = PackedValue::new(bytes, shapes) else { return };
    let (unpacked, text, mut canonical) = (value.to_value(), value.to_json(), Vec::new());
    assert_eq!(text.is_ok(), value.check().is_ok());
    assert_eq!(value.canonical(&mut canonical).is_ok(), value.check().is_ok());
    if let Ok(unpacked) = &unpacked {
        assert!(value.check().is_ok());
        assert_eq!(text.expect("intact"), unpacked.to_json());
        let mut expected = Vec::new();
        unpacked.canonical(&mut expected);
        assert_eq!(canonical, expected);
    }
    if let Ok(Some(object)) = value.as_object() {
        for name in ["", "a", "b", "ab"] {
            let found = object.get(name);
            if let (Ok(Value::Object(unpacked)), Ok(found)) = (&unpacked, found) {
                assert_eq!(
                    found.map(|found| found.to_value().expect("part of an intact value")).as_ref(),
                    unpacked.get(name)
                );
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn packing_round_trips(value in document(), without_shapes in any::<bool>()) {
        let shapes = if without_shapes { full_dictionary() } else { Shapes::new() };
        let bytes = packed(&value, &shapes);
        let read = PackedValue::new(&bytes, &shapes).expect("packed by us");
        prop_assert_eq!(&read.to_value().expect("packed by us"), &value);
        prop_assert_eq!(read.kind(), value.kind());
        check_all_readers(&bytes, &shapes);
        let object: Object = match value { Value::Object(object) => object, _ => Object::new() };
        let packed_object = read.as_object().expect("intact").expect("an object");
        prop_assert_eq!(packed_object.len(), object.len());
        for (position, (name, field)) in object.iter().enumerate() {
            let by_name = packed_object.get(name).expect("intact").expect("present");
            prop_assert_eq!(&by_name.to_value().expect("intact"), field);
            let by_position = packed_object.value(position).expect("intact").expect("present");
            prop_assert_eq!(by_position.bytes(), by_name.bytes());
        }
    }

    #[test]
    fn numbers_round_trip(number in crate::value::arbitrary::number()) {
        let shapes = Shapes::new();
        let bytes = packed(&number.into(), &shapes);
        prop_assert!(bytes.len() <= 9);
        let read = PackedValue::new(&bytes, &shapes).and_then(PackedValue::to_value).expect("packed by us");
        prop_assert_eq!(read, number.into());
    }

    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..64), tag in 0u8..0x30) {
        let shapes = Shapes::new();
        shapes.intern(["a", "b"]);
        shapes.intern(["a", "", "c", "ab", "e"]);
        check_all_readers(&bytes, &shapes);
        check_all_readers(&[&[tag], &bytes[..]].concat(), &shapes);
        check_all_readers(&[&[tag, tag % 4], &bytes[..]].concat(), &shapes);
    }

    #[test]
    fn damaged_bytes_never_panic(
        value in value(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let shapes = Shapes::new();
        let mut bytes = packed(&value, &shapes);
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        check_all_readers(&bytes, &shapes);
        for cut in 0..bytes.len() {
            check_all_readers(&bytes[..cut], &shapes);
        }
    }
}
