//! File names for ids and values.
//!
//! Invariants: different texts have different names; a name is 1 to [`NAME_BYTES_MAX`] bytes of UTF-8, contains no `/`,
//! NUL or other control character, and does not begin with a dot, so it is never `.`, `..`, hidden, or a path
//! elsewhere. Names that differ only in case or in Unicode normalization are different; whether a file system
//! distinguishes them is outside the mirror's control.

use std::fmt::Write as _;

use crate::value::{Number, Value};

/// Leaves space for `.json`: file systems allow 255 bytes.
const NAME_BYTES_MAX: usize = 250;

/// Number of hash digits that replace the rest of a long name.
const HASH_DIGITS: usize = 32;

/// Precedes the hash digits; no percent-encoded character looks like this.
const CUT: &str = "%~";

/// Encodes `text` as a file name.
pub(super) fn encode_text(text: &str) -> String {
    let mut name = String::with_capacity(text.len());
    for (at, character) in text.char_indices() {
        if character.is_control() || matches!(character, '/' | '%') || at == 0 && character == '.' {
            let mut bytes = [0; 4];
            for byte in character.encode_utf8(&mut bytes).bytes() {
                write!(name, "%{byte:02X}").expect("a string takes everything");
            }
        } else {
            name.push(character);
        }
    }
    match name.len() {
        0 => "%".to_owned(),
        1..=NAME_BYTES_MAX => name,
        _ => shortened(&name, text),
    }
}

/// Truncates a name and appends a hash of the whole text.
fn shortened(name: &str, text: &str) -> String {
    let mut end = name.floor_char_boundary(NAME_BYTES_MAX - CUT.len() - HASH_DIGITS);
    // Don't cut within a percent-encoded byte.
    if let Some(percent) = name[..end].rfind('%').filter(|percent| percent + 3 > end) {
        end = percent;
    }
    format!("{}{CUT}{}", &name[..end], &blake3::hash(text.as_bytes()).to_hex()[..HASH_DIGITS])
}

/// Encodes a scalar as a file name; `None` for an array or object. Equal numbers have the same name.
pub(super) fn encode_value(value: &Value) -> Option<String> {
    match value {
        Value::Null => Some("null".to_owned()),
        Value::Bool(truth) => Some(truth.to_string()),
        Value::Number(number) => Some(encode_number(*number)),
        Value::String(text) if is_ambiguous(text) => Some(encode_text(&format!("\"{text}\""))),
        Value::String(text) => Some(encode_text(text)),
        Value::Array(_) | Value::Object(_) => None,
    }
}

fn encode_number(number: Number) -> String {
    match number.to_integer() {
        Some(integer) => integer.to_string(),
        None => Value::from(number).to_json(),
    }
}

/// Whether a text could be taken for another value or for a quoted text, ignoring surrounding spaces.
fn is_ambiguous(text: &str) -> bool {
    let text = text.trim_matches(' ');
    let is_like_number = || text.starts_with(['-', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9']);
    match text {
        "" | "null" | "true" | "false" => true,
        _ => text.starts_with('"') || is_like_number() && Value::parse(text.as_bytes()).is_ok(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    fn value(json: &str) -> String {
        encode_value(&Value::parse(json.as_bytes()).unwrap()).unwrap()
    }

    #[test]
    fn plain_text_is_unchanged() {
        for plain in ["emma", "user:17", "Łódź", "a b", "~", "-x", "a.b", "C:\\x", "*", "日本"] {
            assert_eq!(encode_text(plain), plain);
        }
    }

    #[test]
    fn invalid_names_are_percent_encoded() {
        for (text, name) in [
            (".", "%2E"),
            ("..", "%2E."),
            (".git", "%2Egit"),
            ("../../etc/passwd", "%2E.%2F..%2Fetc%2Fpasswd"),
            ("_design/app", "_design%2Fapp"),
            ("100%", "100%25"),
            ("a\0b\n\u{7f}\u{85}", "a%00b%0A%7F%C2%85"),
            ("", "%"),
        ] {
            assert_eq!(encode_text(text), name);
        }
    }

    #[test]
    fn long_names_are_truncated_and_stay_distinct() {
        for unit in ["a", "é", "日", "/", "😀", "x/"] {
            let long = unit.repeat(300);
            let (one, two) = (encode_text(&long), encode_text(&format!("{long}{unit}")));
            assert_ne!(one, two);
            for name in [one, two] {
                assert!(name.len() <= NAME_BYTES_MAX && name.len() > NAME_BYTES_MAX - 10, "{name}");
                let (kept, hash) = name.split_once(CUT).unwrap();
                assert_eq!(hash.len(), HASH_DIGITS);
                assert_eq!(encode_text(unit).repeat(300).find(kept), Some(0), "{kept}");
                assert!(!kept.ends_with('%') && !kept.ends_with("%2"), "{kept}");
            }
        }
        assert_eq!(encode_text(&"a".repeat(NAME_BYTES_MAX)).len(), NAME_BYTES_MAX);
    }

    #[test]
    fn values_of_each_kind_have_distinct_names() {
        for (json, name) in [
            ("1961", "1961"),
            ("1961.0", "1961"),
            ("-0.0", "0"),
            ("1e20", "100000000000000000000"),
            ("0.5", "0.5"),
            ("18446744073709551615", "18446744073709551615"),
            ("\"1961\"", "\"1961\""),
            ("\"1961a\"", "1961a"),
            ("\"-1e3\"", "\"-1e3\""),
            ("\"null\"", "\"null\""),
            ("null", "null"),
            ("true", "true"),
            ("\"true\"", "\"true\""),
            ("\"\"", "\"\""),
            ("\"\\\"x\\\"\"", "\"\"x\"\""),
            ("\"red\"", "red"),
            ("\" 0\"", "\" 0\""),
            ("\"true \"", "\"true \""),
            ("\"  \"", "\"  \""),
            ("\" a 0\"", " a 0"),
        ] {
            assert_eq!(value(json), name, "{json}");
        }
        assert_eq!(encode_value(&Value::parse(b"[1]").unwrap()), None);
    }

    const TEXTS: &str = "[a/.%\"0\\x00-\\x1f~é-]{0,6}|\\PC{0,120}|[é/]{120,200}";

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn names_are_safe_and_differ(texts in prop::collection::vec(TEXTS, 2..20)) {
            let mut known: HashMap<String, &str> = HashMap::new();
            for text in &texts {
                let name = encode_text(text);
                prop_assert!((1..=NAME_BYTES_MAX).contains(&name.len()));
                prop_assert!(!name.starts_with('.') && !name.contains(|c: char| c == '/' || c.is_control()));
                prop_assert_eq!(*known.entry(name).or_insert(text), text.as_str());
            }
            let mut known: HashMap<String, &str> = HashMap::new();
            for text in &texts {
                let name = encode_value(&Value::from(text.as_str())).unwrap();
                prop_assert!(Value::parse(name.as_bytes()).map_or(true, |value| value.as_str().is_some()));
                prop_assert_eq!(*known.entry(name).or_insert(text), text.as_str());
            }
        }
    }
}
