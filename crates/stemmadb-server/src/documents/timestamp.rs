//! Timestamps in CouchDB's formats: `2024-02-29T12:00:00Z` and `Thu, 29 Feb 2024 12:00:00 GMT`.

use jiff::Timestamp;

/// Formats a time in seconds since 1970 as RFC 3339 in UTC. Times after the year 9999 are clamped to its end.
pub fn format_rfc3339(seconds: u64) -> String {
    timestamp(seconds).to_string()
}

/// Formats a time in microseconds since 1970 as RFC 3339 in UTC, with microseconds. Times after the year 9999 are
/// clamped to its end.
pub fn format_rfc3339_us(microseconds: u64) -> String {
    let microseconds = i64::try_from(microseconds).unwrap_or(i64::MAX);
    let timestamp = Timestamp::from_microsecond(microseconds).unwrap_or(Timestamp::MAX);
    timestamp.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
}

/// Formats a time in seconds since 1970 as RFC 1123. Times after the year 9999 are clamped to its end.
pub(crate) fn format_rfc1123(seconds: u64) -> String {
    timestamp(seconds).strftime("%a, %d %b %Y %H:%M:%S GMT").to_string()
}

fn timestamp(seconds: u64) -> Timestamp {
    let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
    Timestamp::from_second(seconds).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_follow_the_calendar() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (1_709_208_000, "2024-02-29T12:00:00Z"),
            (4_102_444_799, "2099-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(format_rfc3339(seconds), expected);
        }
        for (seconds, us, expected) in [
            (0, 0, "1970-01-01T00:00:00.000000Z"),
            (951_782_399, 5, "2000-02-28T23:59:59.000005Z"),
            (951_868_799, 0, "2000-02-29T23:59:59.000000Z"),
            (1_793_577_600, 1, "2026-11-02T00:00:00.000001Z"),
            (4_107_542_399, 999_999, "2100-02-28T23:59:59.999999Z"),
            (4_107_542_400, 0, "2100-03-01T00:00:00.000000Z"),
        ] {
            assert_eq!(format_rfc3339_us(seconds * 1_000_000 + us), expected);
        }
        assert_eq!(format_rfc1123(1_709_208_001), "Thu, 29 Feb 2024 12:00:01 GMT");
    }
}
