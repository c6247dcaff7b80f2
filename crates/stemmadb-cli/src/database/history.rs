//! The past: states of earlier times, revisions of a document, differences, and taking changes back.

use std::time::{Duration, SystemTime};

use stemmadb::past::{At, Difference, Retention};
use stemmadb::{Object, Selector, Value};

use super::{Database, document_object, durability_of};
use crate::arguments::DurabilityChoice;
use crate::failure::Result;

impl Database {
    /// The same database, read as of a point in the past.
    pub(crate) fn as_of(&self, at: At) -> Result<Self> {
        let past = Some(self.inner.as_of(at)?);
        Ok(Database { inner: self.inner.clone(), full_disk: None, past })
    }

    /// The stored revisions of a document, the newest first, each with its time and, if requested, its body.
    pub(crate) fn revisions(&self, id: &str, with_bodies: bool) -> Result<Vec<Object>> {
        let revisions = self.inner.history().revisions(id)?.into_iter();
        let row = |revision: stemmadb::past::PastRevision| {
            let mut row = Object::new();
            row.insert("seq", Value::from(revision.sequence.get()));
            row.insert("time", revision.time.map_or(Value::Null, |time| Value::from(format_time(time))));
            row.insert("rev", revision.document.revision().to_string());
            row.insert("deleted", revision.document.is_deleted());
            if with_bodies {
                row.insert("doc", Value::Object(document_object(&revision.document)?));
            }
            Ok(row)
        };
        revisions.map(row).collect()
    }

    /// The differences between two points in the past.
    pub(crate) fn differences(
        &self,
        from: At,
        to: Option<At>,
        selector: Option<&Value>,
    ) -> Result<impl Iterator<Item = Result<Object>> + use<>> {
        let selector = selector.map(Selector::parse).transpose()?;
        let to = to.unwrap_or(At::Sequence(self.inner.sequence()));
        let differences = self.inner.history().differences(from, to, selector.as_ref())?;
        Ok(differences.map(|difference| difference_row(&difference?)))
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

    /// Keeps a point in the past readable under a name.
    pub(crate) fn pin_history(&self, name: &str, at: At) -> Result<()> {
        Ok(self.inner.history().pin(name, at).map(|_| ())?)
    }

    /// Removes a pin.
    pub(crate) fn release_pin(&self, name: &str) -> Result<()> {
        Ok(self.inner.history().release(name)?)
    }

    /// What is kept of the past.
    pub(crate) fn history_settings(&self) -> Object {
        let history = self.inner.history();
        let keep = match history.retention() {
            Retention::Nothing => "nothing".to_owned(),
            Retention::For(time) => format!("{} s", time.as_secs()),
            Retention::Bytes(bytes) => format!("{bytes} bytes"),
            Retention::Everything => "everything".to_owned(),
            _ => "unknown".to_owned(),
        };
        let pins: Object = history.pins().into_iter().map(|(name, at)| (name, Value::from(at.get()))).collect();
        let mut row = Object::new();
        row.insert("keep", keep);
        row.insert("oldest", Value::from(history.oldest().get()));
        row.insert("newest", Value::from(self.inner.sequence().get()));
        row.insert("history_bytes", Value::from(history.byte_count()));
        row.insert("pins", Value::Object(pins));
        row
    }
}

fn difference_row(difference: &Difference) -> Result<Object> {
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
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
    let (days, seconds) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    let (year, month, day) = civil_date(days);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:06}Z", since.subsec_micros())
}

/// Year, month and day of a day, counted from 1970-01-01.
fn civil_date(days: u64) -> (u64, u64, u64) {
    // Years begin in March here, so that the leap day is their last.
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_index = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_index + 2) / 5 + 1;
    let month = if month_index < 10 { month_index + 3 } else { month_index - 9 };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_printed() {
        let print = |seconds: u64, us: u32| format_time(SystemTime::UNIX_EPOCH + Duration::new(seconds, us * 1000));
        assert_eq!(print(0, 0), "1970-01-01T00:00:00.000000Z");
        assert_eq!(print(951_782_399, 5), "2000-02-28T23:59:59.000005Z");
        assert_eq!(print(951_868_799, 0), "2000-02-29T23:59:59.000000Z");
        assert_eq!(print(1_793_577_600, 1), "2026-11-02T00:00:00.000001Z");
        assert_eq!(print(4_107_542_399, 999_999), "2100-02-28T23:59:59.999999Z");
        assert_eq!(print(4_107_542_400, 0), "2100-03-01T00:00:00.000000Z");
    }
}
