//! Hints about paths of a query that no document has, although an array of theirs does.

use std::collections::BTreeSet;

use crate::Result;
use crate::index::{PathNumber, Step};
use crate::query::language::normal::Normal;
use crate::query::language::selector::Target;
use crate::query::plan::catalog::Catalog;
use crate::query::plan::request::Query;
use crate::query::source::QuerySource;
use crate::value::Path;

/// A hint for each path of the selector and the sort order that leads to a value only with `[]` for the elements of an
/// array. Costs some lookups in the path dictionary.
pub(in crate::query) fn hints(source: &impl QuerySource, query: &Query) -> Result<Vec<String>> {
    let prepared = query.without_token().prepare()?;
    let mut paths: BTreeSet<&Path> = prepared.sort.keys.iter().map(|key| &key.path).collect();
    add_paths(&prepared.normal, &mut paths);
    let catalog = Catalog::of(source);
    let hint = |path: &Path| {
        let names: Vec<&str> = path.segments().collect();
        let readings = catalog.readings(Some(PathNumber::ROOT), &[], false, &names);
        if readings.is_excluded || readings.readings.iter().any(|reading| reading.number.is_some()) {
            return None;
        }
        let text = catalog.paths.text(through_arrays(catalog, PathNumber::ROOT, &names)?)?;
        Some(format!(
            "no document has a field `{path}`, but some have `{text}`: write `[]` for the elements of an array"
        ))
    };
    Ok(paths.into_iter().filter_map(hint).collect())
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

/// The path of these names below `path`, with steps into elements where they are needed.
fn through_arrays(catalog: Catalog<'_>, path: PathNumber, names: &[&str]) -> Option<PathNumber> {
    let Some((name, rest)) = names.split_first() else { return Some(path) };
    let field = catalog.paths.child(path, Step::Field(name)).and_then(|child| through_arrays(catalog, child, rest));
    field.or_else(|| through_arrays(catalog, catalog.element(path)?, names))
}
