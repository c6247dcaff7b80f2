//! Definitions of declared indexes: the public builder, validation, and the stored form.

use std::fmt;

use super::super::expiry::ExpirationRule;
use crate::value::collate::Language;
use crate::value::{Object, Path, Value};
use crate::{Error, Result};

/// The maximum number of paths of an index.
const PATHS_MAX: usize = 16;
/// The maximum length of a name in bytes.
const NAME_BYTES_MAX: usize = 128;

/// A secondary index to declare, on one or more paths, each ascending or descending.
///
/// Every path is indexed without declaration, for equality, ranges, membership and order. Declare an index for a
/// *unique* constraint, to read rows in the order of *several paths* without sorting, or for the collation of a
/// *language*.
///
/// ```
/// # use stemmadb::{Database, Index};
/// # fn main() -> stemmadb::Result<()> {
/// # let db = Database::in_memory();
/// db.indexes().create(Index::on("email").unique())?;
/// db.indexes().create(Index::on("status").then_descending("created_at"))?;
/// db.indexes().create(Index::on("title").collated("de").named("titles"))?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Index {
    paths: Vec<IndexPath>,
    name: Option<String>,
    is_unique: bool,
    /// The first error of the builder, returned when the index is declared.
    error: Option<std::sync::Arc<Error>>,
}

/// One path of an index.
#[derive(Debug, Clone, PartialEq)]
pub struct IndexPath {
    pub(crate) path: Path,
    pub(crate) descending: bool,
    pub(crate) language: Option<Language>,
}

/// A validated index definition, with a number that no other index of the database ever has.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct IndexDefinition {
    pub(crate) number: u32,
    pub(crate) name: String,
    pub(crate) paths: Vec<IndexPath>,
    pub(crate) is_unique: bool,
    /// The expiration rule that this definition represents instead of a user's index. It then has no paths.
    pub(crate) expiry: Option<ExpirationRule>,
}

impl Index {
    /// An index on the value at `path`, ascending.
    pub fn on(path: impl AsRef<str>) -> Self {
        let index = Index { paths: Vec::new(), name: None, is_unique: false, error: None };
        index.add_path(path.as_ref(), false)
    }

    /// An index on the value at `path`, descending.
    pub fn on_descending(path: impl AsRef<str>) -> Self {
        let index = Index { paths: Vec::new(), name: None, is_unique: false, error: None };
        index.add_path(path.as_ref(), true)
    }

    /// Adds a path, ascending, that orders documents with equal values at the earlier paths.
    #[must_use]
    pub fn then(self, path: impl AsRef<str>) -> Self {
        self.add_path(path.as_ref(), false)
    }

    /// Adds a path, descending, that orders documents with equal values at the earlier paths.
    #[must_use]
    pub fn then_descending(self, path: impl AsRef<str>) -> Self {
        self.add_path(path.as_ref(), true)
    }

    /// Orders the strings at the last added path by the collation of a language: a BCP 47 tag such as `de`, or `und`
    /// for the language-independent root collation. The order of other values is unchanged.
    #[must_use]
    pub fn collated(mut self, language: impl AsRef<str>) -> Self {
        match (Language::new(language.as_ref()), self.paths.last_mut()) {
            (Ok(language), Some(path)) => path.language = Some(language),
            (Err(error), _) => self.record_error(error),
            (Ok(_), None) => {}
        }
        self
    }

    /// Adds a unique constraint: a write fails if another document has the same values. A document with a missing or
    /// null value at any of the paths is exempt.
    #[must_use]
    pub fn unique(mut self) -> Self {
        self.is_unique = true;
        self
    }

    /// Sets the name. Default: the paths separated by commas, with a minus before descending ones.
    #[must_use]
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Parses the form that [`Index::to_value`] returns: `on`, an array of paths, each a string or an object of `path`,
    /// `descending` and `collation`; `name`; `unique`.
    ///
    /// # Errors
    /// `Invalid` if it is malformed. Errors of paths and languages are returned when the index is declared.
    pub fn parse(value: &Value) -> Result<Self> {
        let malformed = || {
            Error::invalid("malformed definition of an index")
                .with_hint(r#"{"on": ["status", {"path": "year", "descending": true}], "unique": true}"#)
        };
        let flag = |value: &Value, field: &str| value.get(field).and_then(Value::as_bool).unwrap_or(false);
        let mut index = Index { paths: Vec::new(), name: None, is_unique: flag(value, FIELD_UNIQUE), error: None };
        for path in value.get(FIELD_PATHS).and_then(Value::as_array).ok_or_else(malformed)? {
            let name = path.as_str().or_else(|| path.get(FIELD_PATH)?.as_str()).ok_or_else(malformed)?;
            index = index.add_path(name, flag(path, FIELD_DESCENDING));
            if let Some(language) = path.get(FIELD_COLLATION).and_then(Value::as_str) {
                index = index.collated(language);
            }
        }
        index.name = value.get(FIELD_NAME).and_then(Value::as_str).map(str::to_owned);
        Ok(index)
    }

    /// The definition as JSON, for [`Index::parse`].
    ///
    /// # Errors
    /// `Invalid` if a path, the language or the name is malformed.
    pub fn to_value(&self) -> Result<Value> {
        let mut value = self.define(0)?.to_value();
        if let Some(object) = value.as_object_mut() {
            object.remove(FIELD_NUMBER);
        }
        Ok(value)
    }

    /// The paths, in order.
    pub fn paths(&self) -> &[IndexPath] {
        &self.paths
    }

    /// The name of the index.
    pub fn name(&self) -> String {
        self.name.clone().unwrap_or_else(|| default_name(&self.paths))
    }

    fn add_path(mut self, path: &str, descending: bool) -> Self {
        match Path::parse_single(path) {
            Ok(path) => self.paths.push(IndexPath { path, descending, language: None }),
            Err(error) => self.record_error(error),
        }
        self
    }

    fn record_error(&mut self, error: Error) {
        self.error.get_or_insert(std::sync::Arc::new(error));
    }

    /// Validates the index and assigns it a number.
    ///
    /// # Errors
    /// `Invalid` if a path, the language or the name is malformed, or there are too many paths.
    pub(crate) fn define(&self, number: u32) -> Result<IndexDefinition> {
        if let Some(error) = &self.error {
            return Err(error.duplicate());
        }
        check_paths(&self.paths)?;
        let name = self.name();
        if name.is_empty() || name.len() > NAME_BYTES_MAX || name.chars().any(char::is_control) {
            return Err(Error::invalid(format!(
                "{:?} is no name for an index",
                name.chars().take(64).collect::<String>()
            ))
            .with_hint(format!("a name has 1 to {NAME_BYTES_MAX} bytes and no control characters")));
        }
        Ok(IndexDefinition { number, name, paths: self.paths.clone(), is_unique: self.is_unique, expiry: None })
    }
}

fn check_paths(paths: &[IndexPath]) -> Result<()> {
    if paths.is_empty() || paths.len() > PATHS_MAX {
        return Err(Error::invalid(format!("an index has 1 to {PATHS_MAX} paths, not {}", paths.len())));
    }
    for (at, IndexPath { path, .. }) in paths.iter().enumerate() {
        if path.segments().next().is_some_and(|name| name.starts_with('_')) {
            return Err(Error::invalid(format!("an index can't be on `{path}`"))
                .with_hint("names that begin with `_` belong to the database; ids are unique and in order already"));
        }
        if paths[..at].iter().any(|earlier| earlier.path == *path) {
            return Err(Error::invalid(format!("the index names the path `{path}` twice")));
        }
    }
    Ok(())
}

fn default_name(paths: &[IndexPath]) -> String {
    let name = |path: &IndexPath| format!("{}{}", if path.descending { "-" } else { "" }, path.path);
    paths.iter().map(name).collect::<Vec<_>>().join(",")
}

impl IndexPath {
    /// The path of the indexed value.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the order is descending.
    pub fn is_descending(&self) -> bool {
        self.descending
    }

    /// The tag of the language whose collation orders strings, if one was set.
    pub fn language(&self) -> Option<&str> {
        self.language.as_ref().map(Language::tag)
    }
}

impl fmt::Display for IndexPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path)?;
        if self.descending {
            f.write_str(" descending")?;
        }
        match &self.language {
            Some(language) => write!(f, " in the order of `{}`", language.tag()),
            None => Ok(()),
        }
    }
}

const FIELD_NUMBER: &str = "number";
const FIELD_NAME: &str = "name";
const FIELD_PATHS: &str = "on";
const FIELD_UNIQUE: &str = "unique";
const FIELD_PATH: &str = "path";
const FIELD_DESCENDING: &str = "descending";
const FIELD_COLLATION: &str = "collation";

impl IndexDefinition {
    /// The definition that represents an expiration rule.
    pub(crate) fn for_expiration(rule: &ExpirationRule, number: u32) -> Self {
        IndexDefinition {
            number,
            name: rule.to_string(),
            paths: Vec::new(),
            is_unique: false,
            expiry: Some(rule.clone()),
        }
    }

    /// Whether two definitions are equal except for their numbers.
    pub(crate) fn is_same(&self, other: &IndexDefinition) -> bool {
        self.name == other.name
            && self.paths == other.paths
            && self.is_unique == other.is_unique
            && self.expiry == other.expiry
    }

    /// Whether any path uses the collation of a language.
    pub(crate) fn is_collated(&self) -> bool {
        self.paths.iter().any(|path| path.language.is_some())
    }

    /// The stored form.
    pub(crate) fn to_value(&self) -> Value {
        let path = |path: &IndexPath| {
            let mut object = Object::new();
            object.insert(FIELD_PATH, path.path.to_string());
            if path.descending {
                object.insert(FIELD_DESCENDING, true);
            }
            if let Some(language) = &path.language {
                object.insert(FIELD_COLLATION, language.tag());
            }
            Value::Object(object)
        };
        let mut object = Object::new();
        object.insert(FIELD_NUMBER, u64::from(self.number));
        object.insert(FIELD_NAME, self.name.as_str());
        object.insert(FIELD_PATHS, Value::Array(self.paths.iter().map(path).collect()));
        if self.is_unique {
            object.insert(FIELD_UNIQUE, true);
        }
        if let Some(rule) = &self.expiry {
            rule.write_fields(&mut object);
        }
        Value::Object(object)
    }

    /// Decodes the stored form.
    ///
    /// # Errors
    /// `Corrupt` if the value is not a definition.
    pub(crate) fn from_value(value: &Value) -> Result<Self> {
        let damaged = || Error::corrupt("the stored definition of an index is damaged");
        let flag = |value: &Value, name: &str| value.get(name).and_then(Value::as_bool).unwrap_or(false);
        let path = |value: &Value| -> Result<IndexPath> {
            let path = Path::parse(value.get(FIELD_PATH).and_then(Value::as_str).ok_or_else(damaged)?)?;
            let language = value.get(FIELD_COLLATION).and_then(Value::as_str).map(Language::new).transpose()?;
            Ok(IndexPath { path, descending: flag(value, FIELD_DESCENDING), language })
        };
        let number = value.get(FIELD_NUMBER).and_then(Value::as_u64).and_then(|number| u32::try_from(number).ok());
        let name = value.get(FIELD_NAME).and_then(Value::as_str).ok_or_else(damaged)?.to_owned();
        let paths = value.get(FIELD_PATHS).and_then(Value::as_array).ok_or_else(damaged)?;
        let paths = paths.iter().map(path).collect::<Result<Vec<_>>>()?;
        let expiry = ExpirationRule::read_fields(value)?;
        if expiry.is_none() {
            check_paths(&paths).map_err(|_| damaged())?;
        }
        Ok(IndexDefinition {
            number: number.ok_or_else(damaged)?,
            name,
            paths,
            is_unique: flag(value, FIELD_UNIQUE),
            expiry,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definitions_round_trip_as_json() {
        let index = Index::on("status").then_descending("year").collated("de").unique().named("by state");
        let value = index.to_value().unwrap();
        let parsed = Index::parse(&value).unwrap();
        assert_eq!((parsed.paths(), parsed.name()), (index.paths(), index.name()));
        assert_eq!(parsed.to_value().unwrap(), value);
        let short = Index::parse(&r#"{"on": ["a"]}"#.parse().unwrap()).unwrap();
        assert_eq!((short.name().as_str(), short.is_unique), ("a", false));
        assert!(Index::parse(&r#"{"on": [1]}"#.parse().unwrap()).is_err());
        assert!(Index::parse(&r#"{"on": [".."]}"#.parse().unwrap()).unwrap().to_value().is_err());
    }
}
