//! Which fields of a document a query returns: a projection that keeps nesting.

use super::operators::kind_with_article;
use crate::value::{Object, Path, Value};
use crate::{Error, Result};

/// How many paths a projection may have.
const PATHS_MAX: usize = 1_000;

/// The paths that are returned, in order; the document's own `_id` and `_rev` only if they are among them.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Fields {
    pub(crate) paths: Vec<Path>,
}

impl Fields {
    /// The projection on these paths; none if there are none, which means whole documents.
    pub(crate) fn new<P: AsRef<str>>(paths: impl IntoIterator<Item = P>) -> Result<Option<Self>> {
        let mut parsed = Vec::new();
        for path in paths {
            if parsed.len() == PATHS_MAX {
                return Err(Error::invalid(format!("fields names more than {PATHS_MAX} paths")));
            }
            parsed.push(Path::parse(path.as_ref()).map_err(|error| error.within("fields"))?);
        }
        Ok(if parsed.is_empty() { None } else { Some(Fields { paths: parsed }) })
    }

    /// The projection that Mango JSON asks for: an array of paths.
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

    /// The fields of a document, where `get` finds the value at a path.
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

/// Puts `value` at `path`, through objects that are made as needed. What an earlier, shorter path put there holds this
/// value already.
fn insert(target: &mut Object, path: &Path, value: Value) {
    let mut segments = path.segments().peekable();
    let mut here = target;
    while let Some(segment) = segments.next() {
        if segments.peek().is_none() {
            here.insert(segment, value);
            return;
        }
        if !here.contains(segment) {
            here.insert(segment, Object::new());
        }
        match here.get_mut(segment) {
            Some(Value::Object(next)) => here = next,
            _ => return,
        }
    }
}
