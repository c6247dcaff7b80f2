//! Projection: the fields of a document that a query returns, in their original nesting.
//!
//! The paths form a tree, which is walked along with the document. An array stays an array: of its elements, those
//! remain that have one of the fields, in their order.

use std::borrow::Cow;

use super::document::DocumentView;
use super::operators::kind_with_article;
use crate::value::{
    DEPTH_MAX, ElementPath, Object, Packed, PackedArray, PackedValue, Path, PathStep, Value, array_position,
};
use crate::{Error, Result};

/// The largest number of paths in a projection.
const PATHS_MAX: usize = 1_000;

/// The returned paths, in order. `_id` and `_rev` are returned only if they are listed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Fields {
    root: FieldTree,
    /// The paths as they were given.
    paths: Vec<String>,
}

/// What is returned of a value.
#[derive(Clone, Debug, Default, PartialEq)]
struct FieldTree {
    /// Whether the whole value is returned.
    is_whole: bool,
    /// What is returned of its fields, in the order in which the paths name them; in an array, a decimal name is a
    /// position.
    fields: Vec<(Box<str>, FieldTree)>,
    /// What is returned of each element, if it is an array.
    elements: Option<Box<FieldTree>>,
}

impl Fields {
    /// Creates the projection on these paths; `None` if there are none, which means whole documents.
    pub(crate) fn new<P: AsRef<str>>(paths: impl IntoIterator<Item = P>) -> Result<Option<Self>> {
        let mut root = FieldTree::default();
        let mut given = Vec::new();
        for path in paths {
            if given.len() == PATHS_MAX {
                return Err(Error::invalid(format!("fields names more than {PATHS_MAX} paths")));
            }
            given.push(path.as_ref().to_owned());
            let steps = steps(path.as_ref()).map_err(|error| error.within("fields"))?;
            // No document has a value at a longer path.
            if steps.len() <= DEPTH_MAX {
                root.add(&steps);
            }
        }
        Ok((!given.is_empty()).then_some(Fields { root, paths: given }))
    }

    /// The paths as they were given.
    pub(crate) fn paths(&self) -> &[String] {
        &self.paths
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

    /// Projects a document.
    ///
    /// # Errors
    /// `Corrupt` if its bytes are damaged.
    pub(crate) fn project(&self, document: DocumentView<'_>) -> Result<Value> {
        let mut projected = Object::new();
        for (name, tree) in &self.root.fields {
            let value = match &**name {
                "_id" => tree.is_whole.then(|| Value::from(document.id)),
                "_rev" => tree.is_whole.then(|| Value::from(document.revision.to_string())),
                name => match document.body.child(name)? {
                    Some(field) => tree.project(field)?,
                    None => None,
                },
            };
            if let Some(value) = value {
                projected.insert(&**name, value);
            }
        }
        Ok(Value::Object(projected))
    }
}

impl Fields {
    /// Projects a value that is not stored.
    pub(crate) fn project_value(&self, value: &Value) -> Value {
        self.root.project_value(value).unwrap_or_else(|| Value::Object(Object::new()))
    }
}

fn steps(path: &str) -> Result<Vec<PathStep>> {
    if ElementPath::is_in(path) {
        return Ok(ElementPath::parse(path)?.steps().to_vec());
    }
    Ok(Path::parse(path)?.segments().map(|name| PathStep::Field(name.into())).collect())
}

impl FieldTree {
    fn add(&mut self, steps: &[PathStep]) {
        match steps.split_first() {
            None => self.is_whole = true,
            Some((PathStep::Field(name), rest)) => self.field_mut(name).add(rest),
            Some((PathStep::Elements, rest)) => self.elements.get_or_insert_default().add(rest),
        }
    }

    fn field_mut(&mut self, name: &str) -> &mut FieldTree {
        let at = self.fields.iter().position(|(known, _)| **known == *name).unwrap_or_else(|| {
            self.fields.push((name.into(), FieldTree::default()));
            self.fields.len() - 1
        });
        &mut self.fields[at].1
    }

    /// Adds what another tree returns.
    fn merge(&mut self, other: &FieldTree) {
        self.is_whole |= other.is_whole;
        for (name, tree) in &other.fields {
            self.field_mut(name).merge(tree);
        }
        if let Some(elements) = &other.elements {
            self.elements.get_or_insert_default().merge(elements);
        }
    }

    /// Projects a value; `None` if it has none of the fields.
    fn project(&self, value: PackedValue<'_>) -> Result<Option<Value>> {
        if self.is_whole {
            return value.to_value().map(Some);
        }
        match value.read()? {
            Packed::Object(object) => {
                let mut projected = Object::new();
                for (name, tree) in &self.fields {
                    if let Some(field) = object.get(name)?
                        && let Some(field) = tree.project(field)?
                    {
                        projected.insert(&**name, field);
                    }
                }
                Ok((!projected.is_empty()).then_some(Value::Object(projected)))
            }
            Packed::Array(array) => self.project_array(array),
            _ => Ok(None),
        }
    }

    fn project_array(&self, array: PackedArray<'_>) -> Result<Option<Value>> {
        let positions = self.fields.iter().filter_map(|(name, tree)| Some((array_position(name)?, tree)));
        let mut positions: Vec<(usize, &FieldTree)> = positions.collect();
        positions.sort_by_key(|(position, _)| *position);
        let mut projected = Vec::new();
        let Some(elements) = &self.elements else {
            for (position, tree) in positions {
                if let Some(element) = array.get(position)? {
                    projected.extend(tree.project(element)?);
                }
            }
            return Ok((!projected.is_empty()).then_some(Value::Array(projected)));
        };
        for (at, element) in array.iter().enumerate() {
            let tree = match positions.binary_search_by_key(&at, |(position, _)| *position) {
                Ok(found) => {
                    let mut tree = elements.as_ref().clone();
                    tree.merge(positions[found].1);
                    Cow::Owned(tree)
                }
                Err(_) => Cow::Borrowed(elements.as_ref()),
            };
            projected.extend(tree.project(element?)?);
        }
        Ok(Some(Value::Array(projected)))
    }

    /// As [`FieldTree::project`], of a value that is not packed.
    fn project_value(&self, value: &Value) -> Option<Value> {
        match value {
            value if self.is_whole => Some(value.clone()),
            Value::Object(object) => {
                let mut projected = Object::new();
                for (name, tree) in &self.fields {
                    if let Some(field) = object.get(name).and_then(|field| tree.project_value(field)) {
                        projected.insert(&**name, field);
                    }
                }
                (!projected.is_empty()).then_some(Value::Object(projected))
            }
            Value::Array(array) => {
                let element =
                    |(at, element): (usize, &Value)| self.of_element(at).and_then(|tree| tree.project_value(element));
                let projected: Vec<Value> = array.iter().enumerate().filter_map(element).collect();
                (self.elements.is_some() || !projected.is_empty()).then_some(Value::Array(projected))
            }
            _ => None,
        }
    }

    /// What is returned of the element at a position.
    fn of_element(&self, position: usize) -> Option<Cow<'_, FieldTree>> {
        let named = self.fields.iter().find(|(name, _)| array_position(name) == Some(position));
        match (&self.elements, named) {
            (Some(elements), Some((_, named))) => {
                let mut tree = elements.as_ref().clone();
                tree.merge(named);
                Some(Cow::Owned(tree))
            }
            (Some(elements), None) => Some(Cow::Borrowed(elements.as_ref())),
            (None, named) => named.map(|(_, named)| Cow::Borrowed(named)),
        }
    }
}

/// Projects a document to the fields; without fields, returns the whole document, `_id` and `_rev` first.
pub(crate) fn project(fields: Option<&Fields>, document: DocumentView<'_>) -> Result<Value> {
    if let Some(fields) = fields {
        return fields.project(document);
    }
    let mut whole = Object::new();
    whole.insert("_id", document.id);
    whole.insert("_rev", document.revision.to_string());
    if let Value::Object(body) = document.body.to_value()? {
        for (name, value) in body {
            if !matches!(name.as_str(), "_id" | "_rev") {
                whole.insert(name, value);
            }
        }
    }
    Ok(Value::Object(whole))
}
