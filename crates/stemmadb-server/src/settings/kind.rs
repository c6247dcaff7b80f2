//! The kinds of settings: their syntax, and the description of it for errors and help.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration as StdDuration;

use stemmadb::Durability as WriteDurability;

/// The kind of a setting's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// An address and a port.
    Address,
    /// A size, with a unit.
    Bytes,
    /// A number, at least one.
    Count,
    /// The durability of writes.
    Durability,
    /// A duration, with a unit.
    Duration,
    /// `true` or `false`.
    Flag,
    /// Files with keys that sign tokens.
    Keys,
    /// A log level.
    Level,
    /// A log format.
    Format,
    /// A list of texts, possibly empty.
    List,
    /// A file.
    Path,
    /// A secret text. It has no flag, because other users of the machine can read command lines.
    Secret,
    /// A text.
    Text,
}

impl Kind {
    /// Describes the expected syntax, with an example: `a size, such as 64MiB`.
    pub fn expected(self) -> &'static str {
        match self {
            Kind::Address => "an address and a port, such as 127.0.0.1:5984",
            Kind::Bytes => "a size, such as 64MiB (B, KiB, MiB, GiB)",
            Kind::Count => "a number, at least 1",
            Kind::Durability => "sync, interval, interval:100ms or none",
            Kind::Duration => "a time, such as 75s (ms, s, min, h)",
            Kind::Flag => "true or false",
            Kind::Keys => "ALGORITHM=FILE or ALGORITHM:ID=FILE, such as ES256:2026=keys/partner.pem",
            Kind::Level => "off, error, warn, info or debug",
            Kind::Format => "text or json",
            Kind::List => "texts with commas between them; a list in a file",
            Kind::Path => "a file",
            Kind::Secret | Kind::Text => "a text",
        }
    }

    /// The placeholder of the value in help texts.
    pub fn placeholder(self) -> &'static str {
        match self {
            Kind::Address => "ADDRESS:PORT",
            Kind::Bytes => "SIZE",
            Kind::Count => "NUMBER",
            Kind::Durability => "WHEN",
            Kind::Duration => "TIME",
            Kind::Flag => "BOOL",
            Kind::Keys => "ALGORITHM[:ID]=FILE",
            Kind::Level => "LEVEL",
            Kind::Format => "FORMAT",
            Kind::List => "LIST",
            Kind::Path => "FILE",
            Kind::Secret | Kind::Text => "TEXT",
        }
    }

    /// Whether the value is a list, separated by commas in flags and environment variables.
    pub fn is_list(self) -> bool {
        matches!(self, Kind::Keys | Kind::List)
    }

    /// Whether the value is written without quotes in a file.
    pub(super) fn is_bare(self) -> bool {
        matches!(self, Kind::Count | Kind::Flag)
    }
}

/// Conversion between values of type `T` and their text.
pub(super) trait SettingText<T> {
    fn read(text: &str) -> Option<T>;
    fn write(value: &T) -> String;
}

pub(super) struct Address;
pub(super) struct Bytes;
pub(super) struct Count;
pub(super) struct Durability;
pub(super) struct Duration;
pub(super) struct Flag;

impl SettingText<SocketAddr> for Address {
    fn read(text: &str) -> Option<SocketAddr> {
        text.parse().ok()
    }

    fn write(value: &SocketAddr) -> String {
        value.to_string()
    }
}

/// Splits a text into a number, without sign and fraction, and its unit.
fn split_unit(text: &str) -> Option<(u64, &str)> {
    let end = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    Some((text[..end].parse().ok()?, text[end..].trim()))
}

/// Formats a value in the largest unit that divides it.
fn format_in_unit(value: u64, units: &[(&str, u64)]) -> String {
    let fitting = units.iter().rev().find(|(_, size)| value != 0 && value.is_multiple_of(*size));
    let (unit, size) = fitting.unwrap_or(&units[0]);
    format!("{}{unit}", value / size)
}

const BYTE_UNITS: [(&str, u64); 4] = [("B", 1), ("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30)];
const TIME_UNITS: [(&str, u64); 4] = [("ms", 1), ("s", 1000), ("min", 60_000), ("h", 3_600_000)];

impl SettingText<u64> for Bytes {
    fn read(text: &str) -> Option<u64> {
        let (number, unit) = split_unit(text)?;
        let (_, size) = BYTE_UNITS.iter().find(|(known, _)| *known == unit || (unit.is_empty() && *known == "B"))?;
        number.checked_mul(*size)
    }

    fn write(value: &u64) -> String {
        format_in_unit(*value, &BYTE_UNITS)
    }
}

impl SettingText<usize> for Bytes {
    fn read(text: &str) -> Option<usize> {
        <Self as SettingText<u64>>::read(text)?.try_into().ok()
    }

    fn write(value: &usize) -> String {
        <Self as SettingText<u64>>::write(&(*value as u64))
    }
}

impl SettingText<usize> for Count {
    fn read(text: &str) -> Option<usize> {
        text.parse().ok().filter(|count| *count > 0)
    }

    fn write(value: &usize) -> String {
        value.to_string()
    }
}

impl SettingText<StdDuration> for Duration {
    fn read(text: &str) -> Option<StdDuration> {
        let (number, unit) = split_unit(text)?;
        let (_, size) = TIME_UNITS.iter().find(|(known, _)| *known == unit || (unit.is_empty() && *known == "s"))?;
        number.checked_mul(*size).filter(|millis| *millis > 0).map(StdDuration::from_millis)
    }

    fn write(value: &StdDuration) -> String {
        format_in_unit(u64::try_from(value.as_millis()).unwrap_or(u64::MAX), &TIME_UNITS)
    }
}

/// The default flush interval of the durability `interval`.
const FLUSH_INTERVAL: StdDuration = StdDuration::from_secs(1);

impl SettingText<WriteDurability> for Durability {
    fn read(text: &str) -> Option<WriteDurability> {
        match text.split_once(':') {
            Some(("interval", interval)) => Duration::read(interval).map(WriteDurability::Interval),
            Some(_) => None,
            None => match text {
                "sync" => Some(WriteDurability::Sync),
                "interval" => Some(WriteDurability::Interval(FLUSH_INTERVAL)),
                "none" => Some(WriteDurability::None),
                _ => None,
            },
        }
    }

    fn write(value: &WriteDurability) -> String {
        match value {
            WriteDurability::Interval(interval) => format!("interval:{}", Duration::write(interval)),
            other => other.to_string(),
        }
    }
}

impl SettingText<bool> for Flag {
    fn read(text: &str) -> Option<bool> {
        text.parse().ok()
    }

    fn write(value: &bool) -> String {
        value.to_string()
    }
}

/// Kinds that are written as their `Display` and `FromStr` define.
macro_rules! by_name {
    ($kind:ident) => {
        pub(super) struct $kind;

        impl SettingText<crate::log::$kind> for $kind {
            fn read(text: &str) -> Option<crate::log::$kind> {
                text.parse().ok()
            }

            fn write(value: &crate::log::$kind) -> String {
                value.to_string()
            }
        }
    };
}

by_name!(Level);
by_name!(Format);

/// A path that is not empty.
pub(super) fn path(text: &str) -> Option<PathBuf> {
    (!text.is_empty()).then(|| text.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_durations_round_trip_with_units() {
        for (text, bytes) in
            [("0B", 0_u64), ("1000B", 1000), ("64KiB", 65_536), ("4GiB", 4 << 30), ("1536MiB", 3 << 29)]
        {
            assert_eq!((Bytes::read(text), Bytes::write(&bytes).as_str()), (Some(bytes), text));
        }
        for (text, millis) in [("1500ms", 1500), ("75s", 75_000), ("10min", 600_000), ("2h", 7_200_000)] {
            let time = StdDuration::from_millis(millis);
            assert_eq!((Duration::read(text), Duration::write(&time).as_str()), (Some(time), text));
        }
        assert_eq!(
            (<Bytes as SettingText<u64>>::read("12"), Duration::read("12")),
            (Some(12), Some(StdDuration::from_secs(12)))
        );
        for wrong in ["", "-1", "1.5MiB", "MiB", "1mib", "1 parsec", "99999999999GiB", "99999999999999999999"] {
            assert_eq!(<Bytes as SettingText<u64>>::read(wrong), None, "{wrong}");
        }
        for wrong in ["", "0", "0s", "s", "-1s", "1.5s", "1d", "99999999999999999h"] {
            assert_eq!(Duration::read(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn durabilities_round_trip() {
        for durability in
            [WriteDurability::Sync, WriteDurability::None, WriteDurability::Interval(StdDuration::from_millis(100))]
        {
            assert_eq!(Durability::read(&Durability::write(&durability)), Some(durability));
        }
        assert_eq!(Durability::read("interval"), Some(WriteDurability::Interval(FLUSH_INTERVAL)));
        for wrong in ["", "fast", "interval:", "interval:0s", "sync:1s"] {
            assert_eq!(Durability::read(wrong), None, "{wrong}");
        }
    }
}
