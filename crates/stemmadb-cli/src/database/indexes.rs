//! Declared indexes: create, drop and list.

use stemmadb::{Index, IndexInfo, IndexState, Object, Value};

use super::Database;
use crate::failure::{Failure, Result};
use crate::progress::Progress;

/// An index to declare.
pub(crate) struct NewIndex<'a> {
    /// A leading minus means descending.
    pub(crate) paths: Vec<&'a str>,
    pub(crate) is_unique: bool,
    pub(crate) collation: Option<&'a str>,
    pub(crate) name: Option<&'a str>,
}

impl NewIndex<'_> {
    /// The library's form.
    pub(super) fn index(&self) -> Result<Index> {
        let mut index: Option<Index> = None;
        for path in &self.paths {
            let (path, descending) = path.strip_prefix('-').map_or((*path, false), |path| (path, true));
            let with = match (index, descending) {
                (None, false) => Index::on(path),
                (None, true) => Index::on_descending(path),
                (Some(index), false) => index.then(path),
                (Some(index), true) => index.then_descending(path),
            };
            index = Some(match self.collation {
                Some(language) => with.collated(language),
                None => with,
            });
        }
        let mut index = index.ok_or_else(|| Failure::usage("an index needs at least one field"))?;
        if self.is_unique {
            index = index.unique();
        }
        if let Some(name) = self.name {
            index = index.named(name);
        }
        Ok(index)
    }
}

/// Declared indexes.
impl Database {
    /// Declares and builds an index; returns its row as [`Database::indexes`] lists it.
    pub(crate) fn create_index(&self, new: &NewIndex<'_>, progress: &Progress) -> Result<Object> {
        let index = new.index()?;
        let name = index.name();
        self.inner
            .indexes()
            .create_with_progress(index, |step| progress.set_position_and_length(step.done, step.total))?;
        let made = self.inner.indexes().list().into_iter().find(|index| index.name == name);
        Ok(made.as_ref().map(index_row).unwrap_or_default())
    }

    /// Drops an index.
    pub(crate) fn drop_index(&self, name: &str) -> Result<()> {
        Ok(self.inner.indexes().remove(name)?)
    }

    /// Lists the declared indexes, one row each.
    pub(crate) fn indexes(&self) -> Result<Vec<Object>> {
        Ok(self.inner.indexes().list().iter().map(index_row).collect())
    }
}

pub(super) fn index_row(index: &IndexInfo) -> Object {
    let path = |path: &stemmadb::IndexPath| {
        let sign = if path.is_descending() { "-" } else { "" };
        Value::from(format!("{sign}{}", path.path()))
    };
    let state = match &index.state {
        IndexState::Ready => "ready".to_owned(),
        IndexState::Building(step) => format!("building, {} of {}", step.done, step.total),
        IndexState::Failed { why } => format!("failed: {why}"),
    };
    let mut row = Object::new();
    row.insert("name", index.name.as_str());
    row.insert("on", Value::Array(index.paths.iter().map(path).collect()));
    row.insert("unique", index.unique);
    if let Some(language) = index.paths.iter().find_map(|path| path.language()) {
        row.insert("collation", language);
    }
    row.insert("state", state);
    row
}
