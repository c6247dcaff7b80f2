//! Projection: the fields of a document that a query returns, in their original nesting.

use super::operators::kind_with_article;
use crate::value::{Object, Path, Value};
use crate::{Error, Result};

/// The largest number of paths in a projection.
const PATHS_MAX: usize = 1_000;

/// The returned paths, in order. `_id` and `_rev` are returned only if they are listed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Fields {
    pub(crate) paths: Vec<Path>,
}

impl Fields {
    /// Creates the projection on these paths; `None` if there are none, which means whole documents.
    pub(crate) fn new<P: AsRef<str>>(paths: impl IntoIterator<Item = P>) -> Result<Option<Self>> {
        let mut parsed = Vec::new();
        for path in paths {
            if parsed.len() == PATHS_MAX {
                return Err(Error::invalid(format!("fields names more than {PATHS_MAX} paths")));
            }
            parsed.push(Path::parse_single(path.as_ref()).map_err(|error| error.within("fields"))?);
        }
        Ok(if parsed.is_empty() { None } else { Some(Fields { paths: parsed }) })
    }

    /// Parses the projection of a Mango query: an array of paths.
    pub(crate) fn parse(json: &Value) -> Result<Option<Self>> {
        let hint = "write for example [\"_id\", \"title\", \"author.name\"]";
        let Value::Array(entries) = json else {
            return Err(
                Error::invalid(format!("fields is an array, not {}", kind_with_article(json.kind()))).with_hint(hint)
            );
        };
        let mut paths = Vec::with_capacity(entries.len());
        for entry in entries {
            let Value::String(path) = entry else {
                return Err(Error::invalid(format!(
                    "an entry of fields is a path, not {}",
                    kind_with_article(entry.kind())
                ))
                .with_hint(hint));
            };
            paths.push(path.as_str());
        }
        Fields::new(paths)
    }

    /// Projects a document; `get` returns the value at a path.
    pub(crate) fn project(&self, mut get: impl FnMut(&Path) -> Result<Option<Value>>) -> Result<Value> {
        let mut projected = Object::new();
        for path in &self.paths {
            if let Some(value) = get(path)? {
                insert(&mut projected, path, value);
            }
        }
        Ok(Value::Object(projected))
    }
}

/// Inserts `value` at `path` and creates the objects on the way. If an earlier, shorter path inserted a value there,
/// that value already contains this one.
fn insert(target: &mut Object, path: &Path, value: Value) {
    let mut segments = path.segments().peekable();
    let mut current = target;
    while let Some(segment) = segments.next() {
        if segments.peek().is_none() {
            current.insert(segment, value);
            return;
        }
        if !current.contains(segment) {
            current.insert(segment, Object::new());
        }
        match current.get_mut(segment) {
            Some(Value::Object(next)) => current = next,
            _ => return,
        }
    }
}
