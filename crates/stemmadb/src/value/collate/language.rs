//! Strings in the order of a language, by the Unicode collation algorithm with ICU's data.
//!
//! A string's place is a sort key: bytes that compare as the strings do. Two strings that the language does not tell apart have one.

use std::fmt;
use std::sync::Arc;

use icu_collator::options::CollatorOptions;
use icu_collator::{Collator, CollatorBorrowed};
use icu_locale_core::Locale;

use super::key;
use crate::value::{Packed, PackedValue, Value};
use crate::{Error, Result};

/// The version of the algorithm and its data: sort keys of another version may be others. `Cargo.lock` has the same.
pub(crate) const VERSION: &str = "icu4x 2.4";

/// The order of strings in one language.
#[derive(Clone)]
pub(crate) struct Language {
    tag: Arc<str>,
    collator: Arc<CollatorBorrowed<'static>>,
}

impl Language {
    /// The order of the language with this BCP 47 tag, as `de` or `de-u-co-phonebk`; `und` is the order of no particular language.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) if it is no such tag.
    pub(crate) fn new(tag: &str) -> Result<Self> {
        let shown = || tag.chars().take(64).collect::<String>();
        let invalid = |error: &dyn fmt::Display| {
            Error::invalid(format!("`{}` is not a language: {error}", shown())).with_hint(
                "write a BCP 47 tag such as `de`, `sv`, `de-u-co-phonebk`, or `und` for no particular language",
            )
        };
        let locale = Locale::try_from_str(tag).map_err(|error| invalid(&error))?;
        let collator =
            Collator::try_new((&locale).into(), CollatorOptions::default()).map_err(|error| invalid(&error))?;
        Ok(Language { tag: locale.to_string().into(), collator: Arc::new(collator) })
    }

    /// Its tag, in the canonical form.
    pub(crate) fn tag(&self) -> &str {
        &self.tag
    }

    /// Appends the key of a value: of a string that of its place in this language, of anything else the usual one.
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

    /// Appends the key of a value whose strings, names and what lies within others too, are ordered as this language has them.
    pub(crate) fn encode_within(&self, value: &Value, out: &mut Vec<u8>) {
        match value {
            Value::String(text) => self.encode_string(text, out),
            Value::Array(elements) => key::encode_array(out, |out| {
                elements.iter().for_each(|element| self.encode_within(element, out));
            }),
            Value::Object(fields) => key::encode_object(out, |out| {
                for (name, value) in fields.iter() {
                    self.encode_string(name, out);
                    self.encode_within(value, out);
                }
            }),
            other => key::encode(other, out),
        }
    }

    fn encode_string(&self, text: &str, out: &mut Vec<u8>) {
        let mut order = Vec::with_capacity(2 * text.len() + 8);
        let Ok(()) = self.collator.write_sort_key_to(text, &mut order);
        key::encode_collated(&order, out);
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

#[cfg(test)]
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
    fn languages_order_as_their_people_do() {
        let words = ["Zebra", "zoo", "Öl", "ofen", "Apfel", "äpfel", "apfel"];
        assert_eq!(sorted("de", &words), ["apfel", "Apfel", "äpfel", "ofen", "Öl", "Zebra", "zoo"]);
        assert_eq!(sorted("sv", &["ö", "z", "a", "å"]), ["a", "z", "å", "ö"]);
        assert_eq!(sorted("de-u-co-phonebk", &["Müller", "Muller", "Mufti"]), ["Müller", "Mufti", "Muller"]);
    }

    #[test]
    fn strings_keep_their_place_among_other_values() {
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

    /// As CouchDB's documentation has it, and what ICU says of punctuation.
    #[test]
    fn whole_values_are_ordered_as_in_couchdb() {
        let ascending = r#"[null, false, true, -1, 0, 1, 2, 3.0, 4, "", "_a", "-a", "a", "A", "aa", "b", "B", "ba", "bb", [], ["a"], ["A"], ["b"],
            ["b", "c"], ["b", "c", "a"], ["b", "d"], ["b", "d", "e"], [["a"], 1], {}, {"a": 1}, {"a": 2}, {"A": 1}, {"b": 1}, {"b": 2},
            {"b": 2, "a": 1}, {"b": 2, "c": 2}]"#;
        let language = Language::new("und").unwrap();
        let values = Value::parse(ascending).unwrap();
        let encoded = |value: &Value| {
            let mut out = Vec::new();
            language.encode_within(value, &mut out);
            assert_eq!(key::length(&out).unwrap(), out.len());
            out
        };
        let keys: Vec<Vec<u8>> = values.as_array().unwrap().iter().map(encoded).collect();
        for (at, pair) in keys.windows(2).enumerate() {
            assert!(pair[0] < pair[1], "{} and {}", values.as_array().unwrap()[at], values.as_array().unwrap()[at + 1]);
        }
    }

    #[test]
    fn what_is_no_language_is_refused() {
        for tag in ["", "x y", "zz-zzzzzzzzzzzz", "…"] {
            assert_eq!(Language::new(tag).unwrap_err().kind(), crate::ErrorKind::Invalid, "{tag}");
        }
    }

    #[test]
    fn the_version_is_that_of_the_data() {
        let lock = concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.lock");
        let Ok(lock) = std::fs::read_to_string(lock) else { return };
        for name in ["icu_collator", "icu_collator_data", "icu_normalizer_data"] {
            let (_, after) = lock.split_once(&format!("name = \"{name}\"\nversion = \"")).expect(name);
            let minor = VERSION.strip_prefix("icu4x ").unwrap();
            assert!(
                after.starts_with(&format!("{minor}.")),
                "{name} changed: change VERSION, so that indexes are built again"
            );
        }
    }
}
