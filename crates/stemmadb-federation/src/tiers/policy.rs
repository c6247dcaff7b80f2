//! Policies: which documents move to a tier.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use stemmadb::past::At;
use stemmadb::{Error, Kind, Object, Result, Selector, Value, field};

/// Which documents move to a tier from the one above it.
///
/// A document moves if it is old enough, was unused for long enough, or is large enough: one of these suffices. If the
/// tier above it has more documents or bytes than allowed, those that were written first move, too. Without any of
/// these conditions, nothing moves.
///
/// ```
/// use std::time::Duration;
/// use stemmadb::field;
/// use stemmadb_federation::TierPolicy;
///
/// let month = Duration::from_secs(30 * 86_400);
/// let policy = TierPolicy::new().older_than(month).date_field("day").only(field("state").eq("paid")).stub(["city"]);
/// assert_eq!(TierPolicy::parse(&policy.to_value()?)?, policy);
/// # Ok::<(), stemmadb::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TierPolicy {
    pub(super) older_than: Option<Duration>,
    pub(super) date_field: Option<String>,
    pub(super) unused_for: Option<Duration>,
    pub(super) larger_than: Option<u64>,
    pub(super) documents_max: Option<u64>,
    pub(super) bytes_max: Option<u64>,
    pub(super) only: Option<Selector>,
    pub(super) stub: Option<Vec<String>>,
}

impl TierPolicy {
    /// A policy by which nothing moves.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Documents move if they were written this long ago or earlier; with [`TierPolicy::date_field`], if their date is.
    #[must_use]
    pub fn older_than(self, age: Duration) -> Self {
        TierPolicy { older_than: Some(age), ..self }
    }

    /// The field from which the age is computed, instead of the time of the last write: a date in RFC 3339 format or
    /// its beginning, such as `2026-11-24`, or a number of seconds since 1970. Documents without it have no age.
    #[must_use]
    pub fn date_field(self, path: impl Into<String>) -> Self {
        TierPolicy { date_field: Some(path.into()), ..self }
    }

    /// Documents move if they were neither written nor read by id for this long. Reads are counted by hours, and
    /// stored when documents are moved; a crash forgets those since.
    #[must_use]
    pub fn unused_for(self, time: Duration) -> Self {
        TierPolicy { unused_for: Some(time), ..self }
    }

    /// Documents move if they have more bytes: of their JSON, and of their attachments.
    #[must_use]
    pub fn larger_than(self, bytes: u64) -> Self {
        TierPolicy { larger_than: Some(bytes), ..self }
    }

    /// The tier above keeps at most this many documents.
    #[must_use]
    pub fn documents_max(self, count: u64) -> Self {
        TierPolicy { documents_max: Some(count), ..self }
    }

    /// The tier above keeps at most about this many bytes of documents, as they are stored.
    #[must_use]
    pub fn bytes_max(self, bytes: u64) -> Self {
        TierPolicy { bytes_max: Some(bytes), ..self }
    }

    /// Only documents that match move.
    #[must_use]
    pub fn only(self, selector: Selector) -> Self {
        TierPolicy { only: Some(selector), ..self }
    }

    /// Leaves a stub in the hot tier with these fields, instead of a deletion.
    #[must_use]
    pub fn stub<P: Into<String>>(self, fields: impl IntoIterator<Item = P>) -> Self {
        TierPolicy { stub: Some(fields.into_iter().map(Into::into).collect()), ..self }
    }

    /// Parses a policy from an object with the methods' names as fields. Times are texts such as `90s`, `30m`, `12h`,
    /// `30d` and `4w`.
    ///
    /// ```
    /// # use stemmadb_federation::TierPolicy;
    /// let policy = TierPolicy::parse(&r#"{"older_than": "30d", "larger_than": 1000000, "stub": []}"#.parse()?)?;
    /// assert!(TierPolicy::parse(&r#"{"older": "30d"}"#.parse()?).is_err());
    /// # Ok::<(), stemmadb::Error>(())
    /// ```
    ///
    /// # Errors
    /// `Invalid` for unknown fields and malformed values.
    pub fn parse(value: &Value) -> Result<Self> {
        let object = value.as_object().ok_or_else(|| Error::invalid("a tier's policy is an object"))?;
        let mut policy = TierPolicy::new();
        for (name, value) in object.iter() {
            let number = || value.as_u64().ok_or_else(|| malformed(name, "a number"));
            match name {
                "older_than" => policy.older_than = Some(time(name, value)?),
                "unused_for" => policy.unused_for = Some(time(name, value)?),
                "date_field" => policy.date_field = Some(text(name, value)?),
                "larger_than" => policy.larger_than = Some(number()?),
                "documents_max" => policy.documents_max = Some(number()?),
                "bytes_max" => policy.bytes_max = Some(number()?),
                "only" => policy.only = Some(Selector::parse(value)?),
                "stub" => {
                    let fields = value.as_array().ok_or_else(|| malformed(name, "a list of fields"))?;
                    policy.stub = Some(fields.iter().map(|field| text(name, field)).collect::<Result<_>>()?);
                }
                _ => return Err(Error::invalid(format!("`{name}` is no field of a tier's policy"))),
            }
        }
        match policy.date_field.is_some() && policy.older_than.is_none() {
            true => Err(Error::invalid("`date_field` needs `older_than`")),
            false => Ok(policy),
        }
    }

    /// The policy as an object that [`TierPolicy::parse`] reads.
    ///
    /// # Errors
    /// `Invalid` if the selector can't be serialized.
    pub fn to_value(&self) -> Result<Value> {
        let mut object = Object::new();
        let mut set = |name: &str, value: Option<Value>| {
            value.into_iter().for_each(|value| {
                object.insert(name, value);
            })
        };
        set("older_than", self.older_than.map(time_text));
        set("date_field", self.date_field.as_deref().map(Value::from));
        set("unused_for", self.unused_for.map(time_text));
        set("larger_than", self.larger_than.map(Value::from));
        set("documents_max", self.documents_max.map(Value::from));
        set("bytes_max", self.bytes_max.map(Value::from));
        set("only", self.only.as_ref().map(Selector::to_value).transpose()?);
        set("stub", self.stub.as_ref().map(|fields| fields.iter().map(String::as_str).collect()));
        Ok(Value::Object(object))
    }

    /// A selector of the documents whose date is old enough; `None` if there is no such condition.
    pub(super) fn dated_before(&self, now: SystemTime) -> Option<Selector> {
        let path = self.date_field.as_deref()?;
        let latest = now.checked_sub(self.older_than?).unwrap_or(UNIX_EPOCH);
        let seconds = latest.duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        let text = field(path).is_type(Kind::String).and(field(path).le(rfc3339(seconds)));
        let number = field(path).is_type(Kind::Number).and(field(path).le(seconds));
        Some(stemmadb::any_of([text, number]))
    }

    /// The time before which documents are old by their last write.
    pub(super) fn written_before(&self, now: SystemTime) -> Option<SystemTime> {
        let age = self.older_than.filter(|_| self.date_field.is_none())?;
        now.checked_sub(age)
    }

    /// The time since which documents must not have been used.
    pub(super) fn unused_since(&self, now: SystemTime) -> Option<SystemTime> {
        now.checked_sub(self.unused_for?)
    }
}

fn malformed(name: &str, expected: &str) -> Error {
    Error::invalid(format!("`{name}` is {expected}"))
}

fn text(name: &str, value: &Value) -> Result<String> {
    value.as_str().map(str::to_owned).ok_or_else(|| malformed(name, "a text"))
}

fn time(name: &str, value: &Value) -> Result<Duration> {
    match format!("-{}", text(name, value)?).parse() {
        Ok(At::Ago(time)) => Ok(time),
        _ => Err(malformed(name, "a time such as 90s, 30m, 12h, 30d or 4w")),
    }
}

fn time_text(time: Duration) -> Value {
    let seconds = time.as_secs();
    let units = [(86_400, 'd'), (3_600, 'h'), (60, 'm'), (1, 's')];
    let (length, unit) = units.into_iter().find(|(length, _)| seconds.is_multiple_of(*length)).unwrap_or((1, 's'));
    format!("{}{unit}", seconds / length).into()
}

/// A time in seconds since 1970 as a date and time in UTC.
fn rfc3339(seconds: u64) -> String {
    // Days since March 1st of the year 0, in eras of 400 years.
    let days = seconds / 86_400 + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (seconds / 3_600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_formatted() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00Z");
        assert_eq!(rfc3339(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(rfc3339(1_798_761_599), "2026-12-31T23:59:59Z");
        assert_eq!(time_text(Duration::from_secs(7_200)), Value::from("2h"));
        assert_eq!(time_text(Duration::from_secs(90)), Value::from("90s"));
    }

    #[test]
    fn malformed_policies_are_refused() {
        for text in [r#"[]"#, r#"{"older_than": 5}"#, r#"{"date_field": "day"}"#, r#"{"stub": "day"}"#, r#"{"x": 1}"#] {
            assert!(TierPolicy::parse(&text.parse().unwrap()).is_err(), "{text}");
        }
    }
}
