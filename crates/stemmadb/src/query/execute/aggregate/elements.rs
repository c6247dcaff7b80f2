//! Values at a path that enters the elements of arrays, such as `lines[].product`.
//!
//! A document can have several values there. Only scalars count: the index does not say which elements are arrays or
//! objects. It holds each value once for a document, so it can count documents but not elements.

use std::collections::BTreeMap;

use super::group::MissingGroup;
use super::path_error;
use super::scan::{Fold, Scan, canonical};
use crate::Result;
use crate::index::{DocumentSet, PathNumber};
use crate::query::language::document::{DocumentView, value_at};
use crate::query::language::interval::KeyRange;
use crate::query::plan::Walk;
use crate::query::plan::catalog::{Catalog, is_position};
use crate::query::source::QuerySource;
use crate::value::collate::key;
use crate::value::{ElementPath, Kind, Path, PathStep, Value, visit_steps};

/// A path whose values are aggregated.
#[derive(Debug, Clone)]
pub(super) enum ValuePath {
    /// To one value of a document.
    Single(Path),
    /// To any number of values of a document.
    Elements(ElementPath),
}

impl ValuePath {
    pub(super) fn parse(text: &str) -> Result<Self> {
        match ElementPath::is_in(text) {
            true => ElementPath::parse(text).map(ValuePath::Elements),
            false => Path::parse(text).map(ValuePath::Single).map_err(path_error),
        }
    }

    /// The values that a document has at the path; in elements, only scalars, and equal ones several times.
    pub(super) fn values(&self, document: DocumentView<'_>) -> Result<Vec<Value>> {
        let path = match self {
            ValuePath::Single(path) => return Ok(value_at(path, document)?.into_iter().collect()),
            ValuePath::Elements(path) => path,
        };
        let mut values = Vec::new();
        if let Some((PathStep::Field(name), rest)) = path.steps().split_first()
            && let Some(field) = document.body.child(name)?
        {
            visit_steps(&field.to_value()?, rest, &mut |value| push_scalar(value, &mut values));
        }
        Ok(values)
    }
}

/// How to walk an element path in the index; `None` if documents must be read.
pub(super) fn element_walk(catalog: Catalog<'_>, path: &ElementPath) -> Option<Walk> {
    let (mut number, mut names) = (Some(PathNumber::ROOT), Vec::new());
    for step in path.steps() {
        number = match step {
            PathStep::Elements => number.and_then(|parent| catalog.element(parent)),
            // A decimal name can be a field or a position.
            PathStep::Field(name) if is_position(name) => return None,
            PathStep::Field(name) => {
                names.push(&**name);
                number.and_then(|parent| catalog.field(parent, name))
            }
        };
    }
    catalog.covers(&names).then_some(Walk { path: number })
}

impl<S: QuerySource> Scan<S> {
    /// Adds every value of these kinds at an element path to `fold`.
    pub(super) fn fold_elements(&self, kinds: &[Kind], fold: &mut impl Fold) -> Result<()> {
        if !fold.counts_documents() {
            return self.read_values(&self.every()?, kinds, fold, |_| true);
        }
        let undecided = self.undecided();
        match self.walk() {
            Some(Walk { path: None }) => return self.read_values(&undecided, kinds, fold, |_| true),
            Some(Walk { path: Some(path) }) => {
                // Documents with strings that are longer than the index holds.
                let mut with_long_strings = DocumentSet::default();
                if self.walk_elements(*path, kinds, fold, &mut with_long_strings)? {
                    let text_bytes_max = self.filtered.source.policy().text_bytes_max();
                    self.read_values(&with_long_strings, kinds, fold, |value| is_cut_in_index(value, text_bytes_max))?;
                    return self.read_values(&undecided, kinds, fold, |_| true);
                }
                fold.restart();
            }
            None => {}
        }
        self.read_values(&self.every()?, kinds, fold, |_| true)
    }

    /// Adds the values that the index holds whole, and the documents with longer ones to `with_long_strings`. Returns
    /// false if reading all documents costs less.
    fn walk_elements(
        &self,
        path: PathNumber,
        kinds: &[Kind],
        fold: &mut impl Fold,
        with_long_strings: &mut DocumentSet,
    ) -> Result<bool> {
        let certain = self.evaluated();
        let Some(values_max) = self.walked_values_max(certain) else { return Ok(false) };
        self.scalars(path, &KeyRange::of_kinds(kinds), certain, values_max, fold, with_long_strings)
    }

    /// Reads documents and adds the values for which `is_added` returns true.
    fn read_values(
        &self,
        documents: &DocumentSet,
        kinds: &[Kind],
        fold: &mut impl Fold,
        is_added: impl Fn(&Value) -> bool,
    ) -> Result<()> {
        self.read(documents, |_, document| {
            let values = self.path().values(document)?.into_iter();
            let values = values.filter(|value| kinds.contains(&value.kind()) && is_added(value));
            if fold.counts_documents() {
                return distinct(values)?.into_iter().try_for_each(|(key, value)| fold.add(&key, &value, 1));
            }
            for value in values {
                let (key, value) = canonical(&value)?;
                fold.add(&key, &value, 1)?;
            }
            Ok(())
        })
    }
}

pub(super) fn push_scalar(value: &Value, values: &mut Vec<Value>) {
    if !matches!(value, Value::Array(_) | Value::Object(_)) {
        values.push(value.clone());
    }
}

/// Whether the index holds only the beginning of the scalar.
fn is_cut_in_index(value: &Value, text_bytes_max: usize) -> bool {
    matches!(value, Value::String(text) if key::encode_string_bounded(text, text_bytes_max, &mut Vec::new()))
}

/// The values in collation order, equal ones once, with their keys.
fn distinct(values: impl IntoIterator<Item = Value>) -> Result<BTreeMap<Vec<u8>, Value>> {
    values.into_iter().map(|value| canonical(&value)).collect()
}

/// Visits each group that a document belongs to, with the values that count in it.
///
/// If both paths enter the same array, they are paired by element: grouping `lines[].product` and summing
/// `lines[].price` adds each line's price to its product. Otherwise a document counts once in each of its groups.
pub(super) fn visit_groups(
    group: &ValuePath,
    path: &ValuePath,
    missing: MissingGroup,
    document: DocumentView<'_>,
    visit: &mut impl FnMut(&[u8], Value, &[Value]) -> Result<()>,
) -> Result<()> {
    if let (ValuePath::Elements(group_path), ValuePath::Elements(value_path)) = (group, path)
        && let Some((shared, group_rest, value_rest)) = group_path.split_shared(value_path)
    {
        let body = document.body.to_value()?;
        let mut elements = Vec::new();
        visit_steps(&body, shared, &mut |element| elements.push(element));
        for element in elements {
            let (mut groups, mut values) = (Vec::new(), Vec::new());
            visit_steps(element, group_rest, &mut |group| push_scalar(group, &mut groups));
            visit_steps(element, value_rest, &mut |value| push_scalar(value, &mut values));
            distinct(groups)?.into_iter().try_for_each(|(key, group)| visit(&key, group, &values))?;
        }
        return Ok(());
    }
    let mut groups = distinct(group.values(document)?)?;
    if groups.is_empty() {
        if missing == MissingGroup::Omit {
            return Ok(());
        }
        groups = distinct([Value::Null])?;
    }
    let values = path.values(document)?;
    groups.into_iter().try_for_each(|(key, group)| visit(&key, group, &values))
}
