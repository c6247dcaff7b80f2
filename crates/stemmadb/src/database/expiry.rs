//! Documents that end: the rules by which they do, and how one is given an end.

use std::time::Duration;

use crate::engine::{Edit, Progress, Transaction};
use crate::index::Expiry;
use crate::revision::{DocumentId, Revision};
use crate::value::{Object, Path, Value};
use crate::{Database, Error, Result};

impl Database {
    /// Lets documents end at the time that stands at a path of theirs: from that millisecond on nobody sees them, and a sweep in the
    /// background deletes them. Holds for every document that is there and to come, until [`Database::drop_expiry`]. A rule that is in force
    /// already costs nothing, so a program may declare its rules whenever it starts.
    ///
    /// By several rules a document ends at the first of its ends. Costs a read of every document, and from then on each query a look-up
    /// for each rule.
    ///
    /// # Errors
    /// `Invalid` if the path or the collection's name is wrong.
    pub fn expire_by(&self, rule: Expiry) -> Result<()> {
        self.expire_by_showing(rule, |_| ())
    }

    /// As [`Database::expire_by`]; `progress` hears of it, in documents.
    ///
    /// # Errors
    /// As [`Database::expire_by`].
    pub fn expire_by_showing(&self, rule: Expiry, mut progress: impl FnMut(Progress)) -> Result<()> {
        self.store().expire_by(rule.check()?, &mut progress)
    }

    /// Takes a rule of expiry back. What has ended by it and was not deleted yet is there again.
    ///
    /// # Errors
    /// `NotFound` if there is no such rule.
    pub fn drop_expiry(&self, rule: &Expiry) -> Result<()> {
        self.store().drop_expiry(rule.check()?)
    }

    /// The rules of expiry, in the order they were declared.
    pub fn expiries(&self) -> Vec<Expiry> {
        self.store().expiries()
    }

    /// Lets the document `id` end after `time`, or, with none, never, by the first rule that is for it; returns its new revision, or none if
    /// there is no such document. One transaction.
    ///
    /// # Errors
    /// `Invalid` if no rule is for it, or its body has something else where the time should stand.
    pub fn expire(&self, id: &str, time: Option<Duration>) -> Result<Option<Revision>> {
        self.write(|tx| tx.expire(id, time))
    }

    /// Deletes the documents that have ended; returns how many. Never needed: it happens by itself.
    ///
    /// # Errors
    /// `Unavailable` or `Closed` if the log can't be written.
    pub fn sweep_expired(&self) -> Result<u64> {
        self.store().sweep_ended()
    }
}

impl Transaction<'_> {
    /// As [`Database::expire`].
    ///
    /// # Errors
    /// As there.
    pub fn expire(&mut self, id: &str, time: Option<Duration>) -> Result<Option<Revision>> {
        let declared = self.base().declared();
        let rule = declared.expiries().map(|(rule, _)| rule).find(|rule| rule.is_for(id));
        let Some(path) = rule.map(|rule| rule.path.clone()) else {
            return Err(Error::invalid(format!("no rule says when document `{id}` ends"))
                .with_hint("declare one first: `expire_by` with the path where the time stands"));
        };
        let Some(document) = self.get(id)? else { return Ok(None) };
        let mut body = document.value()?;
        match time {
            Some(time) => put(&mut body, &path, seconds(self.base().end_after(time)))?,
            None => take(&mut body, &path),
        }
        let edit = Edit::Replace { id: DocumentId::new(id)?, revision: *document.revision(), body };
        self.edit(edit).map(Some)
    }
}

/// Whole seconds as an integer, else with the fraction.
fn seconds(ms: i64) -> Value {
    if ms % 1000 == 0 { Value::from(ms / 1000) } else { Value::from(ms as f64 / 1000.0) }
}

/// Puts a value at a path; makes the objects on the way that are missing.
fn put(body: &mut Value, path: &Path, value: Value) -> Result<()> {
    let not_an_object = || Error::invalid(format!("there is no room for a time at `{path}`"));
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

/// Takes the value at a path away.
fn take(body: &mut Value, path: &Path) {
    let names: Vec<&str> = path.segments().collect();
    let Some((last, before)) = names.split_last() else { return };
    let parent = before.iter().try_fold(body, |at, name| at.as_object_mut()?.get_mut(name));
    if let Some(object) = parent.and_then(Value::as_object_mut) {
        object.remove(last);
    }
}
