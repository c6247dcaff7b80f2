//! String collation by language, using the Unicode collation algorithm with ICU's data.
//!
//! A string is represented by its sort key: bytes whose order is that of the strings. Strings that the language does
//! not distinguish have the same sort key.

use std::fmt;
use std::sync::Arc;

use super::collator::Collator;
use super::key;
use crate::Result;
use crate::value::{Packed, PackedValue, Value};

/// The version of the algorithm and its data. Sort keys of different versions may differ. Must match `Cargo.lock`.
pub(crate) const VERSION: &str = "icu4x 2.4";

/// The collation of strings in one language.
#[derive(Clone)]
pub(crate) struct Language {
    tag: Arc<str>,
    collator: Arc<Collator>,
}

impl Language {
    /// The collation of the language with this BCP 47 tag, such as `de` or `de-u-co-phonebk`; `und` is the
    /// language-independent root collation.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) if the tag is not a valid language tag;
    /// [`Unavailable`](crate::ErrorKind::Unavailable) in a build without the `collation` feature.
    pub(crate) fn new(tag: &str) -> Result<Self> {
        let (tag, collator) = Collator::new(tag)?;
        Ok(Language { tag: tag.into(), collator: Arc::new(collator) })
    }

    /// The language tag in canonical form.
    pub(crate) fn tag(&self) -> &str {
        &self.tag
    }

    /// Appends the key of a value: for a string its sort key in this language, for any other value the usual key.
    pub(crate) fn encode(&self, value: &Value, out: &mut Vec<u8>) {
        match value {
            Value::String(text) => self.encode_string(text, out),
            other => key::encode(other, out),
        }
    }

    /// As [`Language::encode`].
    ///
    /// # Errors
    /// [`Corrupt`](crate::ErrorKind::Corrupt) if the packed bytes are damaged.
    pub(crate) fn encode_packed(&self, value: PackedValue<'_>, out: &mut Vec<u8>) -> Result<()> {
        match value.read()? {
            Packed::String(text) => {
                self.encode_string(text, out);
                Ok(())
            }
            _ => key::encode_packed(value, out),
        }
    }

    /// Appends the key of a value in which all strings, including field names and nested strings, are ordered by this
    /// language.
    pub(crate) fn encode_nested(&self, value: &Value, out: &mut Vec<u8>) {
        match value {
            Value::String(text) => self.encode_string(text, out),
            Value::Array(elements) => key::encode_array(out, |out| {
                elements.iter().for_each(|element| self.encode_nested(element, out));
            }),
            Value::Object(fields) => key::encode_object(out, |out| {
                for (name, value) in fields.iter() {
                    self.encode_string(name, out);
                    self.encode_nested(value, out);
                }
            }),
            other => key::encode(other, out),
        }
    }

    fn encode_string(&self, text: &str, out: &mut Vec<u8>) {
        let mut sort_key = Vec::with_capacity(2 * text.len() + 8);
        self.collator.write_sort_key(text, &mut sort_key);
        key::encode_sort_key(&sort_key, out);
    }
}

impl PartialEq for Language {
    fn eq(&self, other: &Self) -> bool {
        self.tag == other.tag
    }
}

impl fmt::Debug for Language {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.tag)
    }
}

#[cfg(all(test, feature = "collation"))]
mod tests {
    use super::*;

    fn sorted(tag: &str, words: &[&str]) -> Vec<String> {
        let language = Language::new(tag).unwrap();
        let key = |word: &&str| {
            let mut key = Vec::new();
            language.encode(&Value::from(*word), &mut key);
            key
        };
        let mut words = words.to_vec();
        words.sort_by_key(key);
        words.into_iter().map(str::to_owned).collect()
    }

    #[test]
    fn strings_sort_by_the_rules_of_the_language() {
        let words = ["Zebra", "zoo", "Öl", "ofen", "Apfel", "äpfel", "apfel"];
        assert_eq!(sorted("de", &words), ["apfel", "Apfel", "äpfel", "ofen", "Öl", "Zebra", "zoo"]);
        assert_eq!(sorted("sv", &["ö", "z", "a", "å"]), ["a", "z", "å", "ö"]);
        assert_eq!(sorted("de-u-co-phonebk", &["Müller", "Muller", "Mufti"]), ["Müller", "Mufti", "Muller"]);
    }

    #[test]
    fn collated_strings_sort_between_numbers_and_arrays() {
        let language = Language::new("und").unwrap();
        let values = Value::parse(r#"[null, true, 7, "", "\u0000", "a", "Z", [], {}]"#).unwrap();
        let keys: Vec<Vec<u8>> = values
            .as_array()
            .unwrap()
            .iter()
            .map(|value| {
                let mut out = Vec::new();
                language.encode(value, &mut out);
                assert_eq!(key::length(&out).unwrap(), out.len());
                out
            })
            .collect();
        assert!(keys.is_sorted(), "{keys:?}");
    }

    /// The order in CouchDB's documentation, with ICU's order of punctuation.
    #[test]
    fn nested_values_sort_as_in_couchdb() {
        let ascending = r#"[null, false, true, -1, 0, 1, 2, 3.0, 4, "", "_a", "-a", "a", "A", "aa", "b", "B", "ba",
            "bb", [], ["a"], ["A"], ["b"], ["b", "c"], ["b", "c", "a"], ["b", "d"], ["b", "d", "e"], [["a"], 1], {},
            {"a": 1}, {"a": 2}, {"A": 1}, {"b": 1}, {"b": 2}, {"b": 2, "a": 1}, {"b": 2, "c": 2}]"#;
        let language = Language::new("und").unwrap();
        let values = Value::parse(ascending).unwrap();
        let encoded = |value: &Value| {
            let mut out = Vec::new();
            language.encode_nested(value, &mut out);
            assert_eq!(key::length(&out).unwrap(), out.len());
            out
        };
        let keys: Vec<Vec<u8>> = values.as_array().unwrap().iter().map(encoded).collect();
        for (at, pair) in keys.windows(2).enumerate() {
            assert!(pair[0] < pair[1], "{} and {}", values.as_array().unwrap()[at], values.as_array().unwrap()[at + 1]);
        }
    }

    #[test]
    fn invalid_language_tags_are_rejected() {
        for tag in ["", "x y", "zz-zzzzzzzzzzzz", "…"] {
            assert_eq!(Language::new(tag).unwrap_err().kind(), crate::ErrorKind::Invalid, "{tag}");
        }
    }

    #[test]
    fn version_matches_the_locked_collation_data() {
        let lock = concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.lock");
        let Ok(lock) = std::fs::read_to_string(lock) else { return };
        for name in ["icu_collator", "icu_collator_data", "icu_normalizer_data"] {
            let (_, after) = lock.split_once(&format!("name = \"{name}\"\nversion = \"")).expect(name);
            let minor = VERSION.strip_prefix("icu4x ").unwrap();
            assert!(
                after.starts_with(&format!("{minor}.")),
                "{name} changed: change VERSION, so that indexes are rebuilt"
            );
        }
    }
}
