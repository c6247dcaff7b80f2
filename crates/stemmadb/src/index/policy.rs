//! Index policy: which paths of a document are indexed, and the limits on its terms.

use std::fmt;

use crate::value::{Object, Path, Value};
use crate::{Error, Result};

const TERMS_MAX_DEFAULT: usize = 10_000;
const TERMS_MAX_MAX: usize = 1_000_000;
const TEXT_BYTES_DEFAULT: usize = 128;
const TEXT_BYTES_MIN: usize = 16;
/// Even if escaping doubles the text, the key with path and chunk fits the key limit of the tree (511 bytes).
const TEXT_BYTES_MAX: usize = 200;

/// The paths of a database's documents that are indexed. The policy affects the speed of queries, never their results.
///
/// A path covers everything below it, also through arrays: `items` covers `items.price` of each element. The default
/// policy indexes everything.
#[derive(Clone, PartialEq)]
pub struct Policy {
    include: Vec<Path>,
    exclude: Vec<Path>,
    document_terms_max: usize,
    text_bytes_max: usize,
    identity: u64,
}

/// How a policy covers a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Coverage {
    /// The path itself is indexed.
    pub(super) covers_self: bool,
    /// Paths below it may be indexed.
    pub(super) covers_below: bool,
}

impl Coverage {
    const NONE: Coverage = Coverage { covers_self: false, covers_below: false };
}

impl Default for Policy {
    fn default() -> Self {
        let policy = Policy {
            include: Vec::new(),
            exclude: Vec::new(),
            document_terms_max: TERMS_MAX_DEFAULT,
            text_bytes_max: TEXT_BYTES_DEFAULT,
            identity: 0,
        };
        policy.with_identity()
    }
}

impl Policy {
    /// Indexes the paths in `include` (if empty: all), except those in `exclude`.
    ///
    /// # Errors
    /// `Invalid` if a path is malformed.
    pub fn new<'a>(
        include: impl IntoIterator<Item = &'a str>,
        exclude: impl IntoIterator<Item = &'a str>,
    ) -> Result<Policy> {
        let include = include.into_iter().map(Path::parse).collect::<Result<_>>()?;
        let exclude = exclude.into_iter().map(Path::parse).collect::<Result<_>>()?;
        Ok(Policy { include, exclude, ..Policy::default() }.with_identity())
    }

    /// Sets the maximum number of indexed terms per document, 1 to 1,000,000 (default 10,000). Queries read a document
    /// that has more to find the rest.
    ///
    /// # Errors
    /// `Invalid` if the count is out of range.
    pub fn with_document_terms_max(mut self, count: usize) -> Result<Policy> {
        self.document_terms_max = check_range(FIELD_TERMS_MAX, count, 1, TERMS_MAX_MAX)?;
        Ok(self.with_identity())
    }

    /// Sets the number of bytes of a string that are indexed, 16 to 200 (default 128). Of a longer string, its first
    /// bytes and a hash are indexed.
    ///
    /// # Errors
    /// `Invalid` if the count is out of range.
    pub fn with_text_bytes_max(mut self, bytes: usize) -> Result<Policy> {
        self.text_bytes_max = check_range(FIELD_TEXT_BYTES_MAX, bytes, TEXT_BYTES_MIN, TEXT_BYTES_MAX)?;
        Ok(self.with_identity())
    }

    /// The maximum number of indexed terms per document.
    pub fn document_terms_max(&self) -> usize {
        self.document_terms_max
    }

    /// The maximum number of indexed bytes per string.
    pub fn text_bytes_max(&self) -> usize {
        self.text_bytes_max
    }

    /// Whether values at this path are indexed.
    pub fn covers(&self, path: &Path) -> bool {
        self.coverage(path.segments()).covers_self
    }

    /// The coverage of the path with these field names, without array steps.
    pub(super) fn coverage<'a>(&self, names: impl ExactSizeIterator<Item = &'a str> + Clone) -> Coverage {
        // The database itself queries which file contents documents refer to.
        if names.clone().next() == Some("_attachments") {
            return Coverage { covers_self: true, covers_below: true };
        }
        let is_prefix = |pattern: &Path| {
            pattern.segments().len() <= names.len() && pattern.segments().zip(names.clone()).all(|(a, b)| a == b)
        };
        if self.exclude.iter().any(is_prefix) {
            return Coverage::NONE;
        }
        let covers_self = self.include.is_empty() || self.include.iter().any(is_prefix);
        let is_on_the_way = |pattern: &Path| pattern.segments().zip(names.clone()).all(|(a, b)| a == b);
        Coverage { covers_self, covers_below: covers_self || self.include.iter().any(is_on_the_way) }
    }

    /// A hash of the policy, equal for equal policies only.
    pub(super) fn identity(&self) -> u64 {
        self.identity
    }

    fn with_identity(mut self) -> Self {
        let digest = blake3::hash(self.to_value().to_json().as_bytes());
        let [a, b, c, d, e, f, g, h, ..] = *digest.as_bytes();
        self.identity = u64::from_be_bytes([a, b, c, d, e, f, g, h]);
        self
    }

    /// The policy as a JSON object, which is also its stored form.
    pub fn to_value(&self) -> Value {
        let paths = |paths: &[Path]| Value::Array(paths.iter().map(|path| Value::String(path.to_string())).collect());
        let mut object = Object::new();
        object.insert(FIELD_INCLUDE, paths(&self.include));
        object.insert(FIELD_EXCLUDE, paths(&self.exclude));
        object.insert(FIELD_TERMS_MAX, Value::from(self.document_terms_max as u64));
        object.insert(FIELD_TEXT_BYTES_MAX, Value::from(self.text_bytes_max as u64));
        Value::Object(object)
    }

    /// Parses a policy from a JSON object. Missing fields have their defaults.
    ///
    /// # Errors
    /// `Invalid` if the object has unknown fields, or a field has an invalid value.
    pub fn from_value(value: &Value) -> Result<Policy> {
        let Some(object) = value.as_object() else {
            return Err(Error::invalid("an index policy is an object").with_hint(HINT));
        };
        let mut policy = Policy::default();
        for (name, value) in object.iter() {
            policy = match name {
                FIELD_INCLUDE => Policy { include: parse_paths(name, value)?, ..policy },
                FIELD_EXCLUDE => Policy { exclude: parse_paths(name, value)?, ..policy },
                FIELD_TERMS_MAX => policy.with_document_terms_max(parse_count(name, value)?)?,
                FIELD_TEXT_BYTES_MAX => policy.with_text_bytes_max(parse_count(name, value)?)?,
                _ => {
                    let message = format!("an index policy has no field `{}`", name.escape_debug());
                    return Err(Error::invalid(message).with_hint(HINT));
                }
            };
        }
        Ok(policy.with_identity())
    }
}

impl fmt::Debug for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Policy {}", self.to_value().to_json())
    }
}

const FIELD_INCLUDE: &str = "include";
const FIELD_EXCLUDE: &str = "exclude";
const FIELD_TERMS_MAX: &str = "document_terms_max";
const FIELD_TEXT_BYTES_MAX: &str = "text_bytes_max";
const HINT: &str =
    r#"for example {"include": [], "exclude": ["notes"], "document_terms_max": 10000, "text_bytes_max": 128}"#;

fn check_range(name: &str, count: usize, least: usize, most: usize) -> Result<usize> {
    if (least..=most).contains(&count) {
        return Ok(count);
    }
    Err(Error::invalid(format!("{name} is from {least} to {most}, not {count}")))
}

fn parse_count(name: &str, value: &Value) -> Result<usize> {
    let count = value.as_u64().and_then(|count| usize::try_from(count).ok());
    count.ok_or_else(|| Error::invalid(format!("{name} of an index policy is a whole number")).with_hint(HINT))
}

fn parse_paths(name: &str, value: &Value) -> Result<Vec<Path>> {
    let wrong = || Error::invalid(format!("{name} of an index policy is a list of paths")).with_hint(HINT);
    let texts = value.as_array().ok_or_else(wrong)?;
    texts.iter().map(|text| Path::parse(text.as_str().ok_or_else(wrong)?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn covers(policy: &Policy, path: &str) -> bool {
        policy.covers(&path.parse().unwrap())
    }

    #[test]
    fn a_path_covers_what_is_below_it() {
        let policy = Policy::new(["a.b", "c"], ["c.d", "a.b.x.y"]).unwrap();
        for covered in ["a.b", "a.b.z", "a.b.x", "c", "c.e.d"] {
            assert!(covers(&policy, covered), "{covered}");
        }
        for not_covered in ["a", "b", "ab", "c.d", "c.d.e", "a.b.x.y", "a.b.x.y.z"] {
            assert!(!covers(&policy, not_covered), "{not_covered}");
        }
        let coverage = |names: &[&str]| policy.coverage(names.iter().copied());
        assert_eq!(coverage(&["a"]), Coverage { covers_self: false, covers_below: true });
        assert_eq!(coverage(&["b"]), Coverage::NONE);
        assert_eq!(coverage(&[]), Coverage { covers_self: false, covers_below: true });
        assert!(covers(&Policy::default(), "anything.at.all"));
    }

    #[test]
    fn policies_round_trip_as_values() {
        let policy = Policy::new([r"a\.b", "c"], ["c.d"]).unwrap();
        let policy = policy.with_document_terms_max(5).unwrap().with_text_bytes_max(16).unwrap();
        let parsed = Policy::from_value(&policy.to_value()).unwrap();
        assert_eq!(parsed, policy);
        assert_eq!(Policy::from_value(&Value::Object(Object::new())).unwrap(), Policy::default());
        assert_ne!(policy.identity(), Policy::default().identity());
    }

    #[test]
    fn invalid_policies_are_rejected() {
        for text in [
            "[]",
            r#"{"includes": []}"#,
            r#"{"include": "a"}"#,
            r#"{"include": [1]}"#,
            r#"{"exclude": ["a..b"]}"#,
            r#"{"document_terms_max": 0}"#,
            r#"{"document_terms_max": 1.5}"#,
            r#"{"text_bytes_max": 201}"#,
        ] {
            let value = Value::parse(text.as_bytes()).unwrap();
            assert_eq!(Policy::from_value(&value).unwrap_err().kind(), crate::ErrorKind::Invalid, "{text}");
        }
    }
}
