//! Hints about paths of a query that no document has, although an array of theirs does.

use std::collections::BTreeSet;

use crate::Result;
use crate::index::PathNumber;
use crate::query::language::Matcher;
use crate::query::language::normal::Normal;
use crate::query::language::selector::Target;
use crate::query::plan::catalog::{Catalog, is_position};
use crate::query::plan::request::Query;
use crate::query::source::QuerySource;
use crate::value::{ElementPath, Path, PathStep};

/// A hint for each path of the selector and the sort order that leads to a value only with `[]` for the elements of an
/// array. Costs some lookups in the path dictionary.
pub(in crate::query) fn hints(source: &impl QuerySource, query: &Query) -> Result<Vec<String>> {
    hints_of(source, query, &[] as &[&str])
}

/// As [`hints`], also for `further` paths, which may enter elements.
pub(in crate::query) fn hints_of(
    source: &impl QuerySource,
    query: &Query,
    further: &[impl AsRef<str>],
) -> Result<Vec<String>> {
    let prepared = query.without_token().prepare()?;
    let mut paths: BTreeSet<&Path> = prepared.sort.keys.iter().map(|key| &key.path).collect();
    add_paths(&prepared.normal, &mut paths);
    let catalog = Catalog::of(source);
    let mut hints: Vec<String> = paths.iter().filter_map(|path| hint(catalog, path)).collect();
    for text in further {
        let hint = match ElementPath::is_in(text.as_ref()) {
            true => element_hint(catalog, &ElementPath::parse(text.as_ref())?),
            false => hint(catalog, &Path::parse(text.as_ref())?),
        };
        hints.extend(hint.filter(|hint| !hints.contains(hint)));
    }
    Ok(hints)
}

/// The paths of a view that is declared as JSON. Except for the selector's, they take no `[]`.
#[derive(Default)]
pub(crate) struct ViewPaths<'v> {
    pub(crate) selector: Option<&'v Matcher>,
    /// The array whose elements are mapped.
    pub(crate) unnested: Option<&'v Path>,
    /// Paths below the document.
    pub(crate) of_document: Vec<&'v Path>,
    /// Paths below an element of the array.
    pub(crate) of_element: Vec<&'v Path>,
}

impl ViewPaths<'_> {
    /// Returns a hint for each path that no document has, although it leads to values through an array.
    pub(crate) fn hints(&self, source: &impl QuerySource) -> Vec<String> {
        let catalog = Catalog::of(source);
        let mut paths = BTreeSet::new();
        self.selector.into_iter().for_each(|selector| add_paths(selector.normal(), &mut paths));
        let mut hints: Vec<String> = paths.iter().filter_map(|path| hint(catalog, path)).collect();
        let root = (Some(PathNumber::ROOT), Vec::new());
        for path in &self.of_document {
            hints.extend(path_through_arrays(catalog, &root, path).map(|text| {
                format!(
                    "no document has a field `{path}`, but some have `{text}`: name the array with `unnest`, and a \
                     field of its elements as `@.field`"
                )
            }));
        }
        let Some(unnested) = self.unnested else { return hints };
        hints.extend(path_through_arrays(catalog, &root, unnested).map(|text| {
            format!(
                "no document has a field `{unnested}`, but some have `{text}`: a view can't unnest arrays in arrays"
            )
        }));
        let names: Vec<&str> = unnested.segments().collect();
        let array = names.iter().try_fold(PathNumber::ROOT, |parent, name| catalog.field(parent, name));
        let elements = (array.and_then(|array| catalog.element(array)), names);
        for path in &self.of_element {
            hints.extend(path_through_arrays(catalog, &elements, path).map(|text| {
                format!(
                    "no element of `{unnested}` has a field `{path}`, but some documents have `{text}`: a view can't \
                     unnest arrays in arrays"
                )
            }));
        }
        hints
    }
}

fn hint(catalog: Catalog<'_>, path: &Path) -> Option<String> {
    let text = path_through_arrays(catalog, &(Some(PathNumber::ROOT), Vec::new()), path)?;
    Some(bracket_hint(&path.to_string(), &text))
}

/// The text of the path through arrays that `path` stands for, if no document has `path` itself below a base. The base
/// is the number and the fields of a path.
fn path_through_arrays(catalog: Catalog<'_>, base: &(Option<PathNumber>, Vec<&str>), path: &Path) -> Option<String> {
    let (base, base_names) = (base.0?, base.1.as_slice());
    let names: Vec<&str> = path.segments().collect();
    let readings = catalog.readings(Some(base), base_names, !base_names.is_empty(), &names);
    if readings.is_excluded || readings.readings.iter().any(|reading| reading.number.is_some()) {
        return None;
    }
    let steps: Vec<PathStep> = names.iter().map(|name| PathStep::Field((*name).into())).collect();
    catalog.paths.text(through_arrays(catalog, base, &steps)?)
}

/// The hint for a path that enters some arrays, but not all that lead to its values.
fn element_hint(catalog: Catalog<'_>, path: &ElementPath) -> Option<String> {
    let is_known = path.steps().iter().try_fold(PathNumber::ROOT, |parent, step| step_into(catalog, parent, step));
    let has_position = path.steps().iter().any(|step| matches!(step, PathStep::Field(name) if is_position(name)));
    if is_known.is_some() || has_position {
        return None;
    }
    let text = catalog.paths.text(through_arrays(catalog, PathNumber::ROOT, path.steps())?)?;
    Some(bracket_hint(&path.to_string(), &text))
}

fn bracket_hint(path: &str, text: &str) -> String {
    format!("no document has a field `{path}`, but some have `{text}`: write `[]` for the elements of an array")
}

fn add_paths<'n>(node: &'n Normal, paths: &mut BTreeSet<&'n Path>) {
    match node {
        Normal::All(children) | Normal::Any(children) => children.iter().for_each(|child| add_paths(child, paths)),
        Normal::Leaf(leaf) => {
            if let Target::Path(path) = &leaf.target {
                paths.insert(path);
            }
        }
        Normal::Everything | Normal::Nothing => {}
    }
}

/// The path of these steps below `path`, with further steps into elements where they are needed.
fn through_arrays(catalog: Catalog<'_>, path: PathNumber, steps: &[PathStep]) -> Option<PathNumber> {
    let Some((step, rest)) = steps.split_first() else { return Some(path) };
    let next = step_into(catalog, path, step).and_then(|next| through_arrays(catalog, next, rest));
    next.or_else(|| through_arrays(catalog, catalog.element(path)?, steps))
}

fn step_into(catalog: Catalog<'_>, parent: PathNumber, step: &PathStep) -> Option<PathNumber> {
    match step {
        PathStep::Field(name) => catalog.field(parent, name),
        PathStep::Elements => catalog.element(parent),
    }
}
