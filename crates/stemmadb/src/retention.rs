//! How much of the past a database keeps: a setting of the database, stored with its indexes and schemas.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::value::{Object, Value};
use crate::{Error, Result};

const FIELD_SECONDS: &str = "seconds";
const FIELD_REVISIONS: &str = "revisions";
const FIELD_BYTES: &str = "bytes";
const FIELD_EVERYTHING: &str = "everything";
const FIELD_PREFIXES: &str = "prefixes";
const FIELD_PINS: &str = "pins";

/// How much of the past a database keeps, set by [`History::keep`](crate::handles::History::keep).
///
/// Replaced and deleted revisions stay in the log until compaction removes their segment. With a retention, compaction
/// moves them to compressed history files instead.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Retention {
    /// What compaction removes is gone.
    #[default]
    Nothing,
    /// The database can be read as of any time in the last `Duration`, with a precision of a second.
    For(Duration),
    /// Of each document, this many of its replaced revisions, the newest ones. The whole database can be read as of a
    /// sequence until the next compaction only, its documents as of earlier ones:
    /// [`History::document_at`](crate::handles::History::document_at).
    Revisions(u32),
    /// History files take at most this many bytes; the oldest are removed.
    Bytes(u64),
    /// Everything since the retention was set.
    Everything,
}

impl Retention {
    /// The retention as JSON: an object of `seconds`, `revisions`, `bytes` or `everything`; empty for
    /// [`Retention::Nothing`].
    pub fn to_value(self) -> Value {
        Value::Object(retention_object(self))
    }

    /// Parses the form that [`Retention::to_value`] returns.
    ///
    /// # Errors
    /// `Invalid` if it is malformed, or has any other member.
    pub fn parse(value: &Value) -> Result<Self> {
        let retention = value.as_object().and_then(|_| retention_from(value).ok());
        // Members that are not the retention's own, as in `{"years": 1}`, must not mean that nothing is kept.
        retention.filter(|retention| retention.to_value() == *value).ok_or_else(|| {
            Error::invalid(
                "malformed retention: one of `seconds`, `revisions`, `bytes`, `everything`, or an empty object",
            )
            .with_hint(r#"{"seconds": 86400}, {"revisions": 5}, {"everything": true}"#)
        })
    }
}

/// The retention of a database, that of documents whose ids have certain prefixes, and the sequences that are kept
/// readable besides.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct HistoryRules {
    pub(crate) retention: Retention,
    /// The longest prefix of an id counts.
    pub(crate) prefixes: BTreeMap<String, Retention>,
    /// Sequences by the name of their pin.
    pub(crate) pins: BTreeMap<String, u64>,
}

impl HistoryRules {
    /// Whether compaction has to keep replaced revisions.
    pub(crate) fn keeps_past(&self) -> bool {
        self.retentions().any(|retention| retention != Retention::Nothing) || !self.pins.is_empty()
    }

    /// The retention of the database and those of prefixes.
    pub(crate) fn retentions(&self) -> impl Iterator<Item = Retention> {
        [self.retention].into_iter().chain(self.prefixes.values().copied())
    }

    /// The retention of a prefix of a document's id, if one has its own.
    pub(crate) fn of_prefix(&self, id: &str) -> Option<Retention> {
        let of_id = self.prefixes.iter().filter(|(prefix, _)| id.starts_with(prefix.as_str()));
        of_id.max_by_key(|(prefix, _)| prefix.len()).map(|(_, retention)| *retention)
    }

    /// Whether history files may have revisions that are not kept any more beside others that are.
    pub(crate) fn is_mixed(&self) -> bool {
        !self.prefixes.is_empty() || matches!(self.retention, Retention::Revisions(_))
    }

    /// The stored form; none if nothing was ever set.
    pub(crate) fn to_value(&self) -> Option<Value> {
        if *self == HistoryRules::default() {
            return None;
        }
        let mut object = retention_object(self.retention);
        if !self.prefixes.is_empty() {
            let of_prefix = |(prefix, retention): (&String, &Retention)| {
                (prefix.clone(), Value::Object(retention_object(*retention)))
            };
            object.insert(FIELD_PREFIXES, Value::Object(self.prefixes.iter().map(of_prefix).collect()));
        }
        if !self.pins.is_empty() {
            let pins: Object = self.pins.iter().map(|(name, at)| (name.clone(), Value::from(*at))).collect();
            object.insert(FIELD_PINS, Value::Object(pins));
        }
        Some(Value::Object(object))
    }

    /// Decodes the stored form.
    ///
    /// # Errors
    /// `Corrupt` if it is not one.
    pub(crate) fn from_value(value: &Value) -> Result<Self> {
        let mut rules = HistoryRules { retention: retention_from(value)?, ..HistoryRules::default() };
        if let Some(stored) = value.get(FIELD_PREFIXES) {
            for (prefix, retention) in stored.as_object().ok_or_else(damaged)?.iter() {
                rules.prefixes.insert(prefix.to_string(), retention_from(retention)?);
            }
        }
        if let Some(stored) = value.get(FIELD_PINS) {
            for (name, at) in stored.as_object().ok_or_else(damaged)?.iter() {
                rules.pins.insert(name.to_string(), at.as_u64().ok_or_else(damaged)?);
            }
        }
        Ok(rules)
    }
}

fn damaged() -> Error {
    Error::corrupt("the stored retention is damaged")
}

fn retention_object(retention: Retention) -> Object {
    let mut object = Object::new();
    match retention {
        Retention::Nothing => {}
        Retention::For(time) => _ = object.insert(FIELD_SECONDS, Value::from(time.as_secs())),
        Retention::Revisions(count) => _ = object.insert(FIELD_REVISIONS, Value::from(count)),
        Retention::Bytes(bytes) => _ = object.insert(FIELD_BYTES, Value::from(bytes)),
        Retention::Everything => _ = object.insert(FIELD_EVERYTHING, true),
    }
    object
}

fn retention_from(value: &Value) -> Result<Retention> {
    let number = |field: &str| value.get(field).map(|number| number.as_u64().ok_or_else(damaged)).transpose();
    if let Some(seconds) = number(FIELD_SECONDS)? {
        return Ok(Retention::For(Duration::from_secs(seconds)));
    }
    if let Some(count) = number(FIELD_REVISIONS)? {
        return Ok(Retention::Revisions(u32::try_from(count).map_err(|_| damaged())?));
    }
    if let Some(bytes) = number(FIELD_BYTES)? {
        return Ok(Retention::Bytes(bytes));
    }
    Ok(if value.get(FIELD_EVERYTHING).is_some() { Retention::Everything } else { Retention::Nothing })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_round_trip_through_their_stored_form() {
        let retentions = [
            Retention::Nothing,
            Retention::For(Duration::from_secs(60)),
            Retention::Revisions(3),
            Retention::Bytes(7),
            Retention::Everything,
        ];
        for retention in retentions {
            assert_eq!(Retention::parse(&retention.to_value()).unwrap(), retention);
            for pins in [BTreeMap::new(), BTreeMap::from([("audit".to_owned(), 7), ("b".to_owned(), u64::MAX)])] {
                for prefixes in [BTreeMap::new(), BTreeMap::from([("a:".to_owned(), retention)])] {
                    let rules = HistoryRules { retention, prefixes, pins: pins.clone() };
                    let stored = rules.to_value().unwrap_or_else(|| Value::Object(Object::new()));
                    assert_eq!(HistoryRules::from_value(&stored).unwrap(), rules);
                }
            }
        }
        assert!(HistoryRules::from_value(&Value::parse(br#"{"bytes": "x"}"#).unwrap()).is_err());
    }

    #[test]
    fn a_retention_with_other_members_is_malformed() {
        for malformed in [
            r#"{"years": 1}"#,
            r#"{"seconds": 1, "years": 1}"#,
            r#"{"seconds": 1, "revisions": 1}"#,
            r#"{"seconds": -1}"#,
            r#"{"revisions": 4294967296}"#,
            r#"{"everything": false}"#,
            r#"[]"#,
            r#"null"#,
        ] {
            let error = Retention::parse(&Value::parse(malformed.as_bytes()).unwrap()).unwrap_err();
            assert_eq!(error.kind(), crate::ErrorKind::Invalid, "{malformed}");
        }
    }

    #[test]
    fn the_longest_prefix_counts() {
        let prefixes = [("a", Retention::Nothing), ("a:b", Retention::Revisions(2))];
        let prefixes = prefixes.map(|(prefix, retention)| (prefix.to_owned(), retention)).into();
        let rules = HistoryRules { retention: Retention::Everything, prefixes, ..HistoryRules::default() };
        assert_eq!(rules.of_prefix("a:c"), Some(Retention::Nothing));
        assert_eq!(rules.of_prefix("a:bc"), Some(Retention::Revisions(2)));
        assert_eq!(rules.of_prefix("b"), None);
    }
}
