//! Which paths are indexed, and how much of a document.

use std::fmt;

use crate::value::{Object, Path, Value};
use crate::{Error, Result};

const TERMS_MAX_DEFAULT: usize = 10_000;
const TERMS_MAX_MAX: usize = 1_000_000;
const TEXT_BYTES_DEFAULT: usize = 128;
const TEXT_BYTES_MIN: usize = 16;
/// Escaped to twice as much, with path and chunk, this still fits the tree's keys (511 bytes).
const TEXT_BYTES_MAX: usize = 200;

/// Which paths of a database's documents are indexed. It changes how fast a query is answered, never its answer.
///
/// A path covers everything below it, through arrays too: `items` covers `items.price` of each element.
/// The default indexes everything.
#[derive(Clone, PartialEq)]
pub struct Policy {
    include: Vec<Path>,
    exclude: Vec<Path>,
    document_terms_max: usize,
    text_bytes_max: usize,
    identity: u64,
}

/// What a policy covers of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Coverage {
    /// The path itself.
    pub(super) here: bool,
    /// Perhaps something below it.
    pub(super) below: bool,
}

impl Coverage {
    const NONE: Coverage = Coverage { here: false, below: false };
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
        policy.identified()
    }
}

impl Policy {
    /// Indexes these paths (none: all), but not those.
    ///
    /// # Errors
    /// `Invalid` if a path is malformed.
    pub fn new<'a>(
        include: impl IntoIterator<Item = &'a str>,
        exclude: impl IntoIterator<Item = &'a str>,
    ) -> Result<Policy> {
        let include = include.into_iter().map(Path::parse).collect::<Result<_>>()?;
        let exclude = exclude.into_iter().map(Path::parse).collect::<Result<_>>()?;
        Ok(Policy { include, exclude, ..Policy::default() }.identified())
    }

    /// Indexes at most so many terms of one document, 1 to 1,000,000 (default 10,000); what a larger document has
    /// beyond them is found by reading it.
    ///
    /// # Errors
    /// `Invalid` beyond these bounds.
    pub fn with_document_terms_max(mut self, count: usize) -> Result<Policy> {
        self.document_terms_max = bounded(FIELD_TERMS_MAX, count, 1, TERMS_MAX_MAX)?;
        Ok(self.identified())
    }

    /// Indexes the first so many bytes of a string, 16 to 200 (default 128), and a hash of longer ones.
    ///
    /// # Errors
    /// `Invalid` beyond these bounds.
    pub fn with_text_bytes_max(mut self, bytes: usize) -> Result<Policy> {
        self.text_bytes_max = bounded(FIELD_TEXT_BYTES_MAX, bytes, TEXT_BYTES_MIN, TEXT_BYTES_MAX)?;
        Ok(self.identified())
    }

    /// How many terms of one document are indexed at most.
    pub fn document_terms_max(&self) -> usize {
        self.document_terms_max
    }

    /// How many bytes of a string are indexed at most.
    pub fn text_bytes_max(&self) -> usize {
        self.text_bytes_max
    }

    /// Whether what is at this path is indexed.
    pub fn covers(&self, path: &Path) -> bool {
        self.coverage(path.segments()).here
    }

    /// What is covered of the path of these names, arrays left out.
    pub(super) fn coverage<'a>(&self, names: impl ExactSizeIterator<Item = &'a str> + Clone) -> Coverage {
        // Which content documents name is asked by the database itself.
        if names.clone().next() == Some("_attachments") {
            return Coverage { here: true, below: true };
        }
        let begins = |pattern: &Path| {
            pattern.segments().len() <= names.len() && pattern.segments().zip(names.clone()).all(|(a, b)| a == b)
        };
        if self.exclude.iter().any(begins) {
            return Coverage::NONE;
        }
        let here = self.include.is_empty() || self.include.iter().any(begins);
        let leads = |pattern: &Path| pattern.segments().zip(names.clone()).all(|(a, b)| a == b);
        Coverage { here, below: here || self.include.iter().any(leads) }
    }

    /// The same for equal policies, and different for others.
    pub(super) fn identity(&self) -> u64 {
        self.identity
    }

    fn identified(mut self) -> Self {
        let digest = blake3::hash(self.to_value().to_json().as_bytes());
        let [a, b, c, d, e, f, g, h, ..] = *digest.as_bytes();
        self.identity = u64::from_be_bytes([a, b, c, d, e, f, g, h]);
        self
    }

    /// The policy as it is stored and shown.
    pub fn to_value(&self) -> Value {
        let paths = |paths: &[Path]| Value::Array(paths.iter().map(|path| Value::String(path.to_string())).collect());
        let mut object = Object::new();
        object.insert(FIELD_INCLUDE, paths(&self.include));
        object.insert(FIELD_EXCLUDE, paths(&self.exclude));
        object.insert(FIELD_TERMS_MAX, Value::from(self.document_terms_max as u64));
        object.insert(FIELD_TEXT_BYTES_MAX, Value::from(self.text_bytes_max as u64));
        Value::Object(object)
    }

    /// The policy that this object describes; what it leaves out is as in the default.
    ///
    /// # Errors
    /// `Invalid` if it has other fields, or a field has a wrong value.
    pub fn from_value(value: &Value) -> Result<Policy> {
        let Some(object) = value.as_object() else {
            return Err(Error::invalid("an index policy is an object").with_hint(HINT));
        };
        let mut policy = Policy::default();
        for (name, value) in object.iter() {
            policy = match name {
                FIELD_INCLUDE => Policy { include: paths_of(name, value)?, ..policy },
                FIELD_EXCLUDE => Policy { exclude: paths_of(name, value)?, ..policy },
                FIELD_TERMS_MAX => policy.with_document_terms_max(count_of(name, value)?)?,
                FIELD_TEXT_BYTES_MAX => policy.with_text_bytes_max(count_of(name, value)?)?,
                _ => {
                    let message = format!("an index policy has no field `{}`", name.escape_debug());
                    return Err(Error::invalid(message).with_hint(HINT));
                }
            };
        }
        Ok(policy.identified())
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

fn bounded(name: &str, count: usize, least: usize, most: usize) -> Result<usize> {
    if (least..=most).contains(&count) {
        return Ok(count);
    }
    Err(Error::invalid(format!("{name} is from {least} to {most}, not {count}")))
}

fn count_of(name: &str, value: &Value) -> Result<usize> {
    let count = value.as_u64().and_then(|count| usize::try_from(count).ok());
    count.ok_or_else(|| Error::invalid(format!("{name} of an index policy is a whole number")).with_hint(HINT))
}

fn paths_of(name: &str, value: &Value) -> Result<Vec<Path>> {
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
        assert_eq!(coverage(&["a"]), Coverage { here: false, below: true });
        assert_eq!(coverage(&["b"]), Coverage::NONE);
        assert_eq!(coverage(&[]), Coverage { here: false, below: true });
        assert!(covers(&Policy::default(), "anything.at.all"));
    }

    #[test]
    fn it_is_stored_as_a_value_and_comes_back() {
        let policy = Policy::new([r"a\.b", "c"], ["c.d"]).unwrap();
        let policy = policy.with_document_terms_max(5).unwrap().with_text_bytes_max(16).unwrap();
        let back = Policy::from_value(&policy.to_value()).unwrap();
        assert_eq!(back, policy);
        assert_eq!(Policy::from_value(&Value::Object(Object::new())).unwrap(), Policy::default());
        assert_ne!(policy.identity(), Policy::default().identity());
    }

    #[test]
    fn what_is_wrong_is_refused() {
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
