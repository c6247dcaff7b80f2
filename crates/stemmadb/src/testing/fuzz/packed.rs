//! Packed value fuzz target: valid, damaged and arbitrary bytes.

use arbitrary::Unstructured;

use super::generate;
use crate::value::{PackedValue, Path, Shapes, Value, pack};

/// Maximum number of bytes changed, one after the other.
const DAMAGES_MAX: usize = 16;

/// A packed value reads back by every access method; damaged bytes give an error or the same value by every method.
pub fn packed(data: &[u8]) {
    let shapes = Shapes::new();
    shapes.intern(["a", "b"]);
    shapes.intern(["a", "", "c", "ab", "e"]);
    read_all_ways(data, &shapes);
    let mut input = Unstructured::new(data);
    let Ok(value) = generate::value(&mut input) else { return };
    let mut bytes = Vec::new();
    pack(&value, &shapes, &mut bytes).expect("small");
    let read = PackedValue::new(&bytes, &shapes).and_then(PackedValue::to_value).expect("just packed");
    assert_eq!(read, value);
    for _ in 0..DAMAGES_MAX.min(input.len()) {
        let (Ok(at), Ok(byte)) = (input.int_in_range(0..=bytes.len() - 1), input.arbitrary::<u8>()) else { break };
        bytes[at] = byte;
        read_all_ways(&bytes, &shapes);
    }
    for cut in 0..bytes.len().min(64) {
        read_all_ways(&bytes[..cut], &shapes);
    }
}

fn read_all_ways(bytes: &[u8], shapes: &Shapes) {
    let Ok(value) = PackedValue::new(bytes, shapes) else { return };
    let (unpacked, text, mut canonical) = (value.to_value(), value.to_json(), Vec::new());
    let is_valid = value.check().is_ok();
    assert_eq!(text.is_ok(), is_valid);
    assert_eq!(value.canonical(&mut canonical).is_ok(), is_valid);
    if let Ok(unpacked) = &unpacked {
        assert!(is_valid);
        assert_eq!(text.expect("a valid value"), unpacked.to_json());
        let mut expected = Vec::new();
        unpacked.canonical(&mut expected);
        assert_eq!(canonical, expected);
    }
    for name in ["", "a", "b", "0", "a.b", "a.0", "c.1"] {
        let Ok(path) = Path::parse(name) else { continue };
        if let (Ok(unpacked), Ok(found)) = (&unpacked, value.get(&path)) {
            let found = found.map(|found| found.to_value().expect("part of a valid value"));
            assert_eq!(found.as_ref(), path.get(unpacked), "{name}");
        }
    }
    if let (Ok(unpacked), Ok(Some(object))) = (&unpacked, value.as_object()) {
        assert_eq!(object.len(), unpacked.as_object().map_or(0, |object| object.len()));
        let as_object = matches!(unpacked, Value::Object(_));
        assert!(as_object);
    }
}
