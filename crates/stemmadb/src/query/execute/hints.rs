//! Hints about paths of a query that no document has, although an array of theirs does.

use std::collections::BTreeSet;

use crate::Result;
use crate::index::PathNumber;
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

fn hint(catalog: Catalog<'_>, path: &Path) -> Option<String> {
    let names: Vec<&str> = path.segments().collect();
    let readings = catalog.readings(Some(PathNumber::ROOT), &[], false, &names);
    if readings.is_excluded || readings.readings.iter().any(|reading| reading.number.is_some()) {
        return None;
    }
    let steps: Vec<PathStep> = names.iter().map(|name| PathStep::Field((*name).into())).collect();
    missing_brackets(catalog, &path.to_string(), &steps)
}

/// The hint for a path that enters some arrays, but not all that lead to its values.
fn element_hint(catalog: Catalog<'_>, path: &ElementPath) -> Option<String> {
    let is_known = path.steps().iter().try_fold(PathNumber::ROOT, |parent, step| step_into(catalog, parent, step));
    let has_position = path.steps().iter().any(|step| matches!(step, PathStep::Field(name) if is_position(name)));
    if is_known.is_some() || has_position {
        return None;
    }
    missing_brackets(catalog, &path.to_string(), path.steps())
}

fn missing_brackets(catalog: Catalog<'_>, path: &str, steps: &[PathStep]) -> Option<String> {
    let text = catalog.paths.text(through_arrays(catalog, PathNumber::ROOT, steps)?)?;
    Some(format!("no document has a field `{path}`, but some have `{text}`: write `[]` for the elements of an array"))
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
