//! What an index is declared to be.

use std::fmt;

use super::super::expiry::Rule;
use crate::value::collate::Language;
use crate::value::{Object, Path, Value};
use crate::{Error, Result};

/// How many paths an index may have.
const PATHS_MAX: usize = 16;
/// How long a name may be, in bytes.
const NAME_BYTES_MAX: usize = 128;

/// An index to declare: on one path or several, each ascending or descending.
///
/// Every path is indexed already, for equality, ranges, membership and order. An index is declared to make values *unique*, to have rows
/// in an order of *several paths* without sorting them, or in the order of a *language*.
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
    /// What was wrong where the index was described; told when it is used.
    problem: Option<std::sync::Arc<Error>>,
}

/// One path of an index.
#[derive(Debug, Clone, PartialEq)]
pub struct IndexPath {
    pub(crate) path: Path,
    pub(crate) descending: bool,
    pub(crate) language: Option<Language>,
}

/// An index as it was declared, with a number that no other index of the database ever has.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Definition {
    pub(crate) number: u32,
    pub(crate) name: String,
    pub(crate) paths: Vec<IndexPath>,
    pub(crate) is_unique: bool,
    /// What it is, if it is no index that a user declared: it has no paths then, and orders nothing.
    pub(crate) expiry: Option<Rule>,
}

impl Index {
    /// An index on the value at `path`, ascending.
    pub fn on(path: impl AsRef<str>) -> Self {
        let index = Index { paths: Vec::new(), name: None, is_unique: false, problem: None };
        index.with(path.as_ref(), false)
    }

    /// An index on the value at `path`, descending.
    pub fn on_descending(path: impl AsRef<str>) -> Self {
        let index = Index { paths: Vec::new(), name: None, is_unique: false, problem: None };
        index.with(path.as_ref(), true)
    }

    /// Orders what earlier paths leave equal by the value at `path`, ascending.
    #[must_use]
    pub fn then(self, path: impl AsRef<str>) -> Self {
        self.with(path.as_ref(), false)
    }

    /// Orders what earlier paths leave equal by the value at `path`, descending.
    #[must_use]
    pub fn then_descending(self, path: impl AsRef<str>) -> Self {
        self.with(path.as_ref(), true)
    }

    /// Orders the strings at the path named last as people of a language do: a BCP 47 tag such as `de`, or `und` for the order of no
    /// particular language. Other values stay where they are.
    #[must_use]
    pub fn collated(mut self, language: impl AsRef<str>) -> Self {
        match (Language::new(language.as_ref()), self.paths.last_mut()) {
            (Ok(language), Some(path)) => path.language = Some(language),
            (Err(error), _) => self.note(error),
            (Ok(_), None) => {}
        }
        self
    }

    /// Refuses a document whose values another document has. A value that is missing or null is none, so any number of documents may
    /// lack it; of several paths, one that lacks it is enough.
    #[must_use]
    pub fn unique(mut self) -> Self {
        self.is_unique = true;
        self
    }

    /// Its name; without one, its paths with commas between, a minus before descending ones.
    #[must_use]
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Its name.
    pub fn name(&self) -> String {
        self.name.clone().unwrap_or_else(|| name_of(&self.paths))
    }

    fn with(mut self, path: &str, descending: bool) -> Self {
        match Path::parse(path) {
            Ok(path) => self.paths.push(IndexPath { path, descending, language: None }),
            Err(error) => self.note(error),
        }
        self
    }

    fn note(&mut self, error: Error) {
        self.problem.get_or_insert(std::sync::Arc::new(error));
    }

    /// Checks it and gives it a number.
    pub(crate) fn define(&self, number: u32) -> Result<Definition> {
        if let Some(problem) = &self.problem {
            return Err(problem.duplicate());
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
        Ok(Definition { number, name, paths: self.paths.clone(), is_unique: self.is_unique, expiry: None })
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

fn name_of(paths: &[IndexPath]) -> String {
    let name = |path: &IndexPath| format!("{}{}", if path.descending { "-" } else { "" }, path.path);
    paths.iter().map(name).collect::<Vec<_>>().join(",")
}

impl IndexPath {
    /// Where the value is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether greater values come first.
    pub fn is_descending(&self) -> bool {
        self.descending
    }

    /// The tag of the language in whose order strings are, if one was asked for.
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

impl Definition {
    /// What keeps a rule of expiry.
    pub(crate) fn of_expiry(rule: &Rule, number: u32) -> Self {
        Definition { number, name: rule.to_string(), paths: Vec::new(), is_unique: false, expiry: Some(rule.clone()) }
    }

    /// Whether it asks for the same, whatever its number.
    pub(crate) fn is_same(&self, other: &Definition) -> bool {
        self.name == other.name
            && self.paths == other.paths
            && self.is_unique == other.is_unique
            && self.expiry == other.expiry
    }

    /// Whether strings are in the order of a language anywhere in it.
    pub(crate) fn is_collated(&self) -> bool {
        self.paths.iter().any(|path| path.language.is_some())
    }

    /// As it is stored.
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
            rule.store(&mut object);
        }
        Value::Object(object)
    }

    /// The definition that was stored so.
    ///
    /// # Errors
    /// `Corrupt` if none was.
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
        let expiry = Rule::restore(value)?;
        if expiry.is_none() {
            check_paths(&paths).map_err(|_| damaged())?;
        }
        Ok(Definition {
            number: number.ok_or_else(damaged)?,
            name,
            paths,
            is_unique: flag(value, FIELD_UNIQUE),
            expiry,
        })
    }
}
