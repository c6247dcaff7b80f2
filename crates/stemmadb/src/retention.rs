//! How much of the past a database keeps: a setting of the database, stored with its indexes and schemas.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::value::{Object, Value};
use crate::{Error, Result};

const FIELD_SECONDS: &str = "seconds";
const FIELD_BYTES: &str = "bytes";
const FIELD_EVERYTHING: &str = "everything";
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
    /// History files take at most this many bytes; the oldest are removed.
    Bytes(u64),
    /// Everything since the retention was set.
    Everything,
}

/// The retention of a database, and the sequences that are kept readable besides.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct HistoryRules {
    pub(crate) retention: Retention,
    /// Sequences by the name of their pin.
    pub(crate) pins: BTreeMap<String, u64>,
}

impl HistoryRules {
    /// Whether compaction has to keep replaced revisions.
    pub(crate) fn keeps_past(&self) -> bool {
        self.retention != Retention::Nothing || !self.pins.is_empty()
    }

    /// The stored form; none if nothing was ever set.
    pub(crate) fn to_value(&self) -> Option<Value> {
        if !self.keeps_past() {
            return None;
        }
        let mut object = Object::new();
        match self.retention {
            Retention::Nothing => {}
            Retention::For(time) => _ = object.insert(FIELD_SECONDS, Value::from(time.as_secs())),
            Retention::Bytes(bytes) => _ = object.insert(FIELD_BYTES, Value::from(bytes)),
            Retention::Everything => _ = object.insert(FIELD_EVERYTHING, true),
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
        let damaged = || Error::corrupt("the stored retention is damaged");
        let number = |field: &str| value.get(field).map(|number| number.as_u64().ok_or_else(damaged)).transpose();
        let retention = match (number(FIELD_SECONDS)?, number(FIELD_BYTES)?) {
            (Some(seconds), _) => Retention::For(Duration::from_secs(seconds)),
            (None, Some(bytes)) => Retention::Bytes(bytes),
            (None, None) if value.get(FIELD_EVERYTHING).is_some() => Retention::Everything,
            (None, None) => Retention::Nothing,
        };
        let mut pins = BTreeMap::new();
        if let Some(stored) = value.get(FIELD_PINS) {
            for (name, at) in stored.as_object().ok_or_else(damaged)?.iter() {
                pins.insert(name.to_string(), at.as_u64().ok_or_else(damaged)?);
            }
        }
        Ok(HistoryRules { retention, pins })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_round_trip_through_their_stored_form() {
        let retentions =
            [Retention::Nothing, Retention::For(Duration::from_secs(60)), Retention::Bytes(7), Retention::Everything];
        for retention in retentions {
            for pins in [BTreeMap::new(), BTreeMap::from([("audit".to_owned(), 7), ("b".to_owned(), u64::MAX)])] {
                let rules = HistoryRules { retention, pins };
                let stored = rules.to_value().unwrap_or_else(|| Value::Object(Object::new()));
                assert_eq!(HistoryRules::from_value(&stored).unwrap(), rules);
            }
        }
        assert!(HistoryRules::from_value(&Value::parse(br#"{"bytes": "x"}"#).unwrap()).is_err());
    }
}
