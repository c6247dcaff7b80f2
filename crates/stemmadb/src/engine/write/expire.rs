//! Sets the expiration time of a document within a transaction.

use std::time::Duration;

use super::Transaction;
use crate::engine::edit::Edit;
use crate::revision::{DocumentId, Revision};
use crate::value::{Object, Path, Value};
use crate::{Error, Result};

impl Transaction<'_> {
    /// Sets or removes the expiration time of a document; see
    /// [`Expiration::expire`](crate::handles::Expiration::expire).
    ///
    /// # Errors
    /// Those of [`Expiration::expire`](crate::handles::Expiration::expire).
    pub fn expire(&mut self, id: &str, time: Option<Duration>) -> Result<Option<Revision>> {
        let declared = self.base().declared();
        let rule = declared.expiries().map(|(rule, _)| rule).find(|rule| rule.applies_to(id));
        let Some(path) = rule.map(|rule| rule.path.clone()) else {
            return Err(Error::invalid(format!("no expiration rule applies to document `{id}`"))
                .with_hint("add one first: `expiration().add_rule` with the path of the time"));
        };
        let Some(document) = self.get(id)? else { return Ok(None) };
        let mut body = document.value()?;
        match time {
            Some(time) => put(&mut body, &path, seconds(self.base().expiration_after(time)))?,
            None => take(&mut body, &path),
        }
        let edit = Edit::Replace { id: DocumentId::new(id)?, revision: *document.revision(), body };
        self.edit(edit).map(Some)
    }
}

/// Whole seconds as an integer, others with a fraction.
fn seconds(ms: i64) -> Value {
    if ms % 1000 == 0 { Value::from(ms / 1000) } else { Value::from(ms as f64 / 1000.0) }
}

/// Sets the value at a path; creates missing objects along it.
fn put(body: &mut Value, path: &Path, value: Value) -> Result<()> {
    let not_an_object =
        || Error::invalid(format!("a time can't be stored at `{path}`: a value on the path is not an object"));
    let mut names = path.segments().peekable();
    let mut at = body;
    while let Some(name) = names.next() {
        let object = at.as_object_mut().ok_or_else(not_an_object)?;
        if names.peek().is_none() {
            object.insert(name, value);
            return Ok(());
        }
        if !object.contains(name) {
            object.insert(name, Object::new());
        }
        at = object.get_mut(name).ok_or_else(not_an_object)?;
    }
    Ok(())
}

/// Removes the value at a path.
fn take(body: &mut Value, path: &Path) {
    let names: Vec<&str> = path.segments().collect();
    let Some((last, before)) = names.split_last() else { return };
    let parent = before.iter().try_fold(body, |at, name| at.as_object_mut()?.get_mut(name));
    if let Some(object) = parent.and_then(Value::as_object_mut) {
        object.remove(last);
    }
}
