//! A point in the past: a sequence, a time, or how long ago.

use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::engine::Store;
use crate::index::parse_rfc3339_ms;
use crate::revision::Sequence;
use crate::{Error, Result};

/// A point in the past of a database, for [`Database::as_of`](crate::Database::as_of).
///
/// Parses from a sequence (`17`), a time in RFC 3339 format (`2026-11-24T12:00:00Z`), or how long ago as a number of
/// seconds, minutes, hours, days or weeks (`-90s`, `-30m`, `-2h`, `-7d`, `-1w`).
///
/// ```
/// use std::time::Duration;
/// use stemmadb::past::At;
/// assert_eq!("-2h".parse::<At>()?, At::Ago(Duration::from_secs(7200)));
/// assert!("yesterday".parse::<At>().is_err());
/// # Ok::<(), stemmadb::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum At {
    /// The state after the transaction with this sequence.
    Sequence(Sequence),
    /// The state at a time: everything committed up to then.
    Time(SystemTime),
    /// The state this long ago.
    Ago(Duration),
}

impl From<Sequence> for At {
    fn from(sequence: Sequence) -> Self {
        At::Sequence(sequence)
    }
}

impl From<SystemTime> for At {
    fn from(time: SystemTime) -> Self {
        At::Time(time)
    }
}

impl FromStr for At {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let malformed = || {
            Error::invalid(format!("`{}` is not a point in the past", text.escape_debug()))
                .with_hint("a sequence such as 17, a time such as 2026-11-24T12:00:00Z, or -90s, -30m, -2h, -7d, -1w")
        };
        if let Some(ago) = text.strip_prefix('-') {
            let (number, unit) = ago.split_at_checked(ago.len().saturating_sub(1)).ok_or_else(malformed)?;
            let seconds = match unit {
                "s" => 1,
                "m" => 60,
                "h" => 3600,
                "d" => 86_400,
                "w" => 604_800,
                _ => return Err(malformed()),
            };
            let seconds = number.parse::<u64>().ok().and_then(|number| number.checked_mul(seconds));
            return seconds.map(|seconds| At::Ago(Duration::from_secs(seconds))).ok_or_else(malformed);
        }
        if let Ok(sequence) = text.parse::<u64>() {
            return Ok(At::Sequence(Sequence::new(sequence)));
        }
        let ms = parse_rfc3339_ms(text).and_then(|ms| u64::try_from(ms).ok()).ok_or_else(malformed)?;
        Ok(At::Time(UNIX_EPOCH + Duration::from_millis(ms)))
    }
}

impl At {
    /// The sequence that this names in a database.
    pub(crate) fn sequence(self, store: &Store) -> Result<Sequence> {
        let time_us = match self {
            At::Sequence(sequence) => return Ok(sequence),
            At::Time(time) => time.duration_since(UNIX_EPOCH).map_or(0, as_us),
            At::Ago(ago) => store.parts.options.clock.now_us().saturating_sub(as_us(ago)),
        };
        store.sequence_at(time_us)
    }
}

fn as_us(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_parsed() {
        let at = |text: &str| text.parse::<At>().unwrap();
        assert_eq!(at("17"), At::Sequence(Sequence::new(17)));
        assert_eq!(at("-90s"), At::Ago(Duration::from_secs(90)));
        assert_eq!(at("-1w"), At::Ago(Duration::from_secs(604_800)));
        assert_eq!(at("1970-01-01T00:01:00.5Z"), At::Time(UNIX_EPOCH + Duration::from_millis(60_500)));
        for text in ["", "-", "-2", "-h", "2h", "-2y", "1960-01-01T00:00:00Z", "2026-11-24", "-99999999999999999999d"] {
            let error = text.parse::<At>().unwrap_err();
            assert!(error.kind() == crate::ErrorKind::Invalid && error.hint().is_some(), "{text}");
        }
    }
}
