//! Path to a value inside a document: nested field names separated by dots.
//!
//! `\.` is a dot in a name and `\\` is a backslash; a backslash before any other character is dropped, as in CouchDB.
//! Empty names can be stored but not addressed, as in CouchDB. In an array, a decimal name is a position counted from
//! 0.

use std::fmt;
use std::str::FromStr;

use super::{ElementPath, Value};
use crate::{Error, Result};

/// The path to a value inside a document: `address.city`, `tags.0`, `dotted\.name`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Path {
    segments: Box<[Box<str>]>,
}

impl Path {
    /// Parses a path.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) if a name is empty or the text ends in a backslash.
    pub fn parse(text: &str) -> Result<Path> {
        let mut segments = Vec::new();
        let mut segment = String::new();
        let mut characters = text.chars();
        while let Some(character) = characters.next() {
            match character {
                '.' => segments.push(std::mem::take(&mut segment)),
                '\\' => segment.push(characters.next().ok_or_else(|| backslash_at_end(text))?),
                other => segment.push(other),
            }
        }
        segments.push(segment);
        Path::new(segments).map_err(|error| error.within(format!("in the path {text:?}")))
    }

    /// Parses a path that leads to one value: `[]`, which stands for the elements of an array, is refused.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) as [`Path::parse`], and if the path enters elements.
    pub(crate) fn parse_single(text: &str) -> Result<Path> {
        match ElementPath::is_in(text) {
            true => {
                Err(Error::invalid(format!("the path {text:?} leads to the elements of an array, not to one value"))
                    .with_hint("name an element by its position, as in lines.0.product; `\\[]` is part of a name"))
            }
            false => Path::parse(text),
        }
    }

    /// The path of these unescaped names, outermost first.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) if there are no names or a name is empty.
    pub fn new<S: Into<Box<str>>>(names: impl IntoIterator<Item = S>) -> Result<Path> {
        let segments: Box<[Box<str>]> = names.into_iter().map(Into::into).collect();
        match segments.is_empty() || segments.iter().any(|name| name.is_empty()) {
            true => Err(Error::invalid("a field's name is empty").with_hint("write a dot within a name as `\\.`")),
            false => Ok(Path { segments }),
        }
    }

    /// The unescaped names, outermost first; at least one.
    pub fn segments(&self) -> impl ExactSizeIterator<Item = &str> + DoubleEndedIterator + Clone {
        self.segments.iter().map(|segment| &**segment)
    }

    /// The path of the field `name` of the value at this path.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) if the name is empty.
    pub fn child(&self, name: &str) -> Result<Path> {
        Path::new(self.segments().chain([name]))
    }

    /// The value at this path in `value`; `None` if any step is missing.
    pub fn get<'a>(&self, value: &'a Value) -> Option<&'a Value> {
        self.segments().try_fold(value, |value, segment| match value {
            Value::Object(object) => object.get(segment),
            Value::Array(elements) => elements.get(array_position(segment)?),
            _ => None,
        })
    }
}

/// The array position that a path segment denotes: decimal digits without sign or leading zeros.
pub(crate) fn array_position(segment: &str) -> Option<usize> {
    let plain = segment.bytes().all(|byte| byte.is_ascii_digit()) && (segment == "0" || !segment.starts_with('0'));
    if plain { segment.parse().ok() } else { None }
}

fn backslash_at_end(text: &str) -> Error {
    Error::invalid(format!("the path {text:?} ends in a backslash")).with_hint("write a backslash as `\\\\`")
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, segment) in self.segments().enumerate() {
            if at > 0 {
                f.write_str(".")?;
            }
            for (at, character) in segment.char_indices() {
                // `[]` at the end of a name stands for the elements of an array.
                if matches!(character, '.' | '\\') || segment[at..].starts_with("[]") {
                    f.write_str("\\")?;
                }
                write!(f, "{character}")?;
            }
        }
        Ok(())
    }
}

impl FromStr for Path {
    type Err = Error;

    fn from_str(text: &str) -> Result<Path> {
        Path::parse(text)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn names(text: &str) -> Vec<String> {
        Path::parse(text).expect("a good path").segments().map(str::to_owned).collect()
    }

    #[test]
    fn dots_separate_and_backslashes_escape() {
        assert_eq!(names("a"), ["a"]);
        assert_eq!(names("a.b.c"), ["a", "b", "c"]);
        assert_eq!(names(r"a\.b.c\\.d"), ["a.b", "c\\", "d"]);
        assert_eq!(names(r"\a.\é"), ["a", "é"]);
        for bad in ["", ".", "a.", ".a", "a..b", "a\\"] {
            assert!(Path::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn get_follows_objects_and_arrays() {
        let value = Value::parse(r#"{"a": [{"b": 1}, 2], "c.d": {"0": 3}, "e": null}"#).expect("good JSON");
        let get = |path: &str| Path::parse(path).expect("a good path").get(&value).cloned();
        assert_eq!(get("a.0.b"), Some(1.into()));
        assert_eq!(get("a.1"), Some(2.into()));
        assert_eq!(get(r"c\.d.0"), Some(3.into()));
        assert_eq!(get("e"), Some(Value::Null));
        for missing in ["a.2", "a.00", "a.+1", "a.-1", "a.b", "e.x", "a.1.x", "z", "a.99999999999999999999999"] {
            assert_eq!(get(missing), None, "{missing}");
        }
    }

    proptest! {
        #[test]
        fn display_parses_back(names in prop::collection::vec("[a-c.\\[\\]\\\\é]{1,4}", 1..4)) {
            let path = Path::new(names.clone()).expect("names are not empty");
            prop_assert!(path.segments().eq(names.iter().map(String::as_str)));
            prop_assert!(!ElementPath::is_in(&path.to_string()));
            prop_assert_eq!(Path::parse(&path.to_string()).expect("printed by us"), path);
        }
    }
}
