//! The past: states of earlier times, revisions of a document, differences, and taking changes back.

use std::time::SystemTime;

use stemmadb::past::{At, Difference, PastRevision, Retention};
use stemmadb::{Object, Selector, Sequence, Value};

use super::{Database, document_object, durability_of};
use crate::arguments::DurabilityChoice;
use crate::failure::Result;

/// Differences as rows.
pub(crate) type DifferenceRows = Box<dyn Iterator<Item = Result<Object>>>;

impl Database {
    /// The same database, read as of a point in the past.
    pub(crate) fn as_of(&self, at: At) -> Result<Self> {
        let past = Some(self.inner.as_of(at)?);
        Ok(Database { inner: self.inner.clone(), full_disk: None, past })
    }

    /// The stored revisions of a document, the newest first, each with its time and, if requested, its body.
    pub(crate) fn revisions(&self, id: &str, with_bodies: bool) -> Result<Vec<Object>> {
        revision_rows(self.inner.history().revisions(id)?, with_bodies)
    }

    /// The differences between two points in the past.
    pub(crate) fn differences(&self, from: At, to: Option<At>, selector: Option<&Value>) -> Result<DifferenceRows> {
        let selector = selector.map(Selector::parse).transpose()?;
        let to = to.unwrap_or(At::Sequence(self.inner.sequence()));
        let differences = self.inner.history().differences(from, to, selector.as_ref())?;
        Ok(Box::new(differences.map(|difference| difference_row(&difference?))))
    }

    /// Writes the last revision of a deleted document again; returns the new revision.
    pub(crate) fn undelete(&self, id: &str, durability: DurabilityChoice) -> Result<String> {
        Ok(self.inner.with_durability(durability_of(durability)).history().undelete(id)?.to_string())
    }

    /// Sets all documents that match to their state of the past; returns how many changed.
    pub(crate) fn revert(&self, selector: &Value, to: At, durability: DurabilityChoice) -> Result<u64> {
        let database = self.inner.with_durability(durability_of(durability));
        Ok(database.history().revert(Selector::parse(selector)?, to)?)
    }

    /// How many documents [`Database::revert`] would change.
    pub(crate) fn count_reverts(&self, selector: &Value, to: At) -> Result<u64> {
        Ok(self.inner.history().count_reverts(Selector::parse(selector)?, to)?)
    }

    /// Sets how much of the past is kept.
    pub(crate) fn keep_history(&self, retention: Retention) -> Result<()> {
        Ok(self.inner.history().keep(retention)?)
    }

    /// Sets how much of the past is kept of documents whose ids have a prefix.
    pub(crate) fn keep_history_of_prefix(&self, prefix: &str, retention: Option<Retention>) -> Result<()> {
        Ok(self.inner.history().keep_of_prefix(prefix, retention)?)
    }

    /// Keeps a point in the past readable under a name.
    pub(crate) fn pin_history(&self, name: &str, at: At) -> Result<()> {
        Ok(self.inner.history().pin(name, at).map(|_| ())?)
    }

    /// Removes a pin.
    pub(crate) fn release_pin(&self, name: &str) -> Result<()> {
        Ok(self.inner.history().release(name)?)
    }

    /// What is kept of the past.
    pub(crate) fn history_settings(&self) -> Result<Object> {
        let history = self.inner.history();
        Ok(KeptHistory {
            retention: history.retention(),
            prefixes: history.prefixes(),
            pins: history.pins(),
            oldest: history.oldest(),
            newest: self.inner.sequence(),
            bytes: history.byte_count(),
        }
        .row())
    }

    /// The newest sequence.
    pub(crate) fn newest(&self) -> Result<u64> {
        Ok(self.inner.sequence().get())
    }
}

/// What is kept of the past.
pub(super) struct KeptHistory {
    pub(super) retention: Retention,
    pub(super) prefixes: Vec<(String, Retention)>,
    pub(super) pins: Vec<(String, Sequence)>,
    pub(super) oldest: Sequence,
    pub(super) newest: Sequence,
    pub(super) bytes: u64,
}

impl KeptHistory {
    pub(super) fn row(self) -> Object {
        let prefixes: Object =
            self.prefixes.into_iter().map(|(prefix, kept)| (prefix, Value::from(retention_text(kept)))).collect();
        let pins: Object = self.pins.into_iter().map(|(name, at)| (name, Value::from(at.get()))).collect();
        let mut row = Object::new();
        row.insert("keep", retention_text(self.retention));
        if !prefixes.is_empty() {
            row.insert("prefixes", Value::Object(prefixes));
        }
        row.insert("oldest", Value::from(self.oldest.get()));
        row.insert("newest", Value::from(self.newest.get()));
        row.insert("history_bytes", Value::from(self.bytes));
        row.insert("pins", Value::Object(pins));
        row
    }
}

/// The stored revisions of a document as rows.
pub(super) fn revision_rows(revisions: Vec<PastRevision>, with_bodies: bool) -> Result<Vec<Object>> {
    let row = |revision: PastRevision| {
        let mut row = Object::new();
        row.insert("seq", Value::from(revision.sequence.get()));
        row.insert("time", revision.time.map_or(Value::Null, |time| Value::from(format_time(time))));
        row.insert("rev", revision.document.revision().to_string());
        row.insert("deleted", revision.document.is_deleted());
        if let Some(author) = revision.author {
            row.insert("author", author);
        }
        if with_bodies {
            row.insert("doc", Value::Object(document_object(&revision.document)?));
        }
        Ok(row)
    };
    revisions.into_iter().map(row).collect()
}

fn retention_text(retention: Retention) -> String {
    match retention {
        Retention::Nothing => "nothing".to_owned(),
        Retention::For(time) => format!("{} s", time.as_secs()),
        Retention::Revisions(count) => format!("{count} revisions"),
        Retention::Bytes(bytes) => format!("{bytes} bytes"),
        Retention::Everything => "everything".to_owned(),
        _ => "unknown".to_owned(),
    }
}

pub(super) fn difference_row(difference: &Difference) -> Result<Object> {
    let mut row = Object::new();
    row.insert("_id", difference.id().as_str());
    match difference {
        Difference::Added(document) => {
            row.insert("change", "added");
            row.insert("after", Value::Object(document_object(document)?));
        }
        Difference::Removed(document) => {
            row.insert("change", "removed");
            row.insert("before", Value::Object(document_object(document)?));
        }
        Difference::Changed { before, after, paths } => {
            row.insert("change", "changed");
            row.insert("paths", Value::Array(paths.iter().map(|path| Value::from(path.as_str())).collect()));
            row.insert("before", Value::Object(document_object(before)?));
            row.insert("after", Value::Object(document_object(after)?));
        }
        _ => _ = row.insert("change", "unknown"),
    }
    Ok(row)
}

/// A time in RFC 3339 format, in UTC, with microseconds.
fn format_time(time: SystemTime) -> String {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    stemmadb_server::format_rfc3339_us(u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
}
