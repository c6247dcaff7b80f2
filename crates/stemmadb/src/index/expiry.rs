//! Expiration (TTL) rules: a path whose value is the expiration time of a document.
//!
//! A rule is represented like a declared index, by an additional path in the postings. Each document that expires has
//! one term there, the millisecond from which it is expired; other documents have none.

use std::fmt;

use crate::schema::{check_collection_name, collection_of};
use crate::value::collate::key;
use crate::value::{Number, Numeric, Object, Packed, PackedValue, Path, Value};
use crate::{Error, Result};

/// An expiration rule (TTL): documents expire at the time that is stored at a path.
///
/// The time is a number, seconds since 1970-01-01 UTC with millisecond precision, or a string in RFC 3339 format, such
/// as `2031-05-01T12:00:00Z` or `2031-05-01T14:00:00.5+02:00`. A document with any other value there, or none, never
/// expires.
///
/// ```
/// # use stemmadb::{Database, Expiry};
/// # fn main() -> stemmadb::Result<()> {
/// # let db = Database::in_memory();
/// db.expiration().add_rule(Expiry::at("expires_at"))?;
/// db.insert("past", &serde_json::json!({"expires_at": "1986-04-26T01:23:40+03:00"}))?;
/// assert!(db.get("past")?.is_none());
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Expiry {
    rule: std::result::Result<ExpirationRule, std::sync::Arc<Error>>,
}

/// A validated expiration rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ExpirationRule {
    pub(crate) path: Path,
    /// The collection to which the rule applies; `None` for all documents.
    pub(crate) collection: Option<Box<str>>,
}

impl Expiry {
    /// Documents expire at the time that is stored at `path`.
    pub fn at(path: impl AsRef<str>) -> Self {
        let checked = Path::parse_single(path.as_ref()).and_then(|path| {
            let is_reserved = path.segments().next().is_some_and(|name| name.starts_with('_'));
            if is_reserved {
                return Err(Error::invalid(format!("`{path}` can't say when a document ends"))
                    .with_hint("names that begin with `_` belong to the database"));
            }
            Ok(path)
        });
        Expiry { rule: checked.map(|path| ExpirationRule { path, collection: None }).map_err(std::sync::Arc::new) }
    }

    /// Restricts the rule to the members of a collection: documents whose ids begin with `name:`.
    #[must_use]
    pub fn of_collection(mut self, name: impl AsRef<str>) -> Self {
        let name = name.as_ref();
        match (&mut self.rule, check_collection_name(name)) {
            (Ok(rule), Ok(())) => rule.collection = Some(name.into()),
            (rule @ Ok(_), Err(error)) => *rule = Err(std::sync::Arc::new(error)),
            (Err(_), _) => {}
        }
        self
    }

    /// The path of the expiration time; `None` if it was malformed.
    pub fn path(&self) -> Option<&Path> {
        self.rule.as_ref().ok().map(|rule| &rule.path)
    }

    /// The collection to which the rule applies; `None` for all documents.
    pub fn collection(&self) -> Option<&str> {
        self.rule.as_ref().ok()?.collection.as_deref()
    }

    pub(crate) fn from_rule(rule: &ExpirationRule) -> Self {
        Expiry { rule: Ok(rule.clone()) }
    }

    /// The validated rule.
    ///
    /// # Errors
    /// `Invalid` if the path or the collection is malformed.
    pub(crate) fn check(&self) -> Result<&ExpirationRule> {
        self.rule.as_ref().map_err(|error| error.duplicate())
    }
}

impl fmt::Display for ExpirationRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "expiry at {}", self.path)?;
        self.collection.as_ref().map_or(Ok(()), |name| write!(f, " of {name}"))
    }
}

const FIELD_PATH: &str = "expires_at";
const FIELD_COLLECTION: &str = "collection";

impl ExpirationRule {
    /// Adds the stored form of the rule to an object.
    pub(super) fn write_fields(&self, object: &mut Object) {
        object.insert(FIELD_PATH, self.path.to_string());
        if let Some(name) = &self.collection {
            object.insert(FIELD_COLLECTION, &**name);
        }
    }

    /// The rule in a stored object, if there is one.
    pub(super) fn read_fields(stored: &Value) -> Result<Option<Self>> {
        let Some(path) = stored.get(FIELD_PATH).and_then(Value::as_str) else { return Ok(None) };
        let collection = stored.get(FIELD_COLLECTION).and_then(Value::as_str).map(Into::into);
        Ok(Some(ExpirationRule { path: Path::parse(path)?, collection }))
    }

    /// Whether the rule applies to the document `id`.
    pub(crate) fn applies_to(&self, id: &str) -> bool {
        self.collection.as_deref().is_none_or(|name| collection_of(id) == Some(name))
    }

    /// The time in milliseconds since 1970 from which the document is expired; `None` if it never expires.
    ///
    /// # Errors
    /// `Corrupt` if the packed bytes are damaged.
    pub(crate) fn end_ms(&self, id: &str, document: PackedValue<'_>) -> Result<Option<i64>> {
        if !self.applies_to(id) {
            return Ok(None);
        }
        match document.get(&self.path)?.map(PackedValue::read).transpose()? {
            Some(Packed::Number(seconds)) => Ok(Some(seconds_to_ms(seconds))),
            Some(Packed::String(text)) => Ok(parse_rfc3339_ms(text)),
            _ => Ok(None),
        }
    }
}

/// The key of the term of documents that expire at this millisecond.
pub(crate) fn expiration_key(end_ms: i64) -> Vec<u8> {
    let mut bytes = Vec::new();
    key::encode_number(Number::from(end_ms), &mut bytes);
    bytes
}

/// Decodes an expiration key to milliseconds.
///
/// # Errors
/// `Corrupt` if the bytes are not an expiration key.
pub(crate) fn decode_expiration_key(bytes: &[u8]) -> Result<i64> {
    let (value, _) = key::decode(bytes)?;
    value.as_i64().ok_or_else(|| Error::corrupt("a term of an expiration rule is not a time"))
}

/// Converts seconds to the nearest millisecond, saturating at the range of `i64`.
fn seconds_to_ms(seconds: Number) -> i64 {
    match seconds.numeric() {
        Numeric::I64(seconds) => seconds.saturating_mul(1000),
        Numeric::U64(_) => i64::MAX,
        // A cast saturates.
        Numeric::F64(seconds) => (seconds * 1000.0).round() as i64,
    }
}

/// Parses a time in RFC 3339 format to milliseconds; digits beyond milliseconds are ignored. `None` if it is malformed.
pub(crate) fn parse_rfc3339_ms(text: &str) -> Option<i64> {
    let (date, rest) = text.split_at_checked(10)?;
    let [year, month, day] = parse_triple(date, '-', [4, 2, 2])?;
    let (time, rest) = rest.strip_prefix(['T', 't', ' '])?.split_at_checked(8)?;
    // 60 is a leap second.
    let [hour, minute, second] = parse_triple(time, ':', [2, 2, 2])?;
    if hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let (fraction_ms, zone) = match rest.strip_prefix('.') {
        None => (0, rest),
        Some(rest) => {
            let end = rest.find(|character: char| !character.is_ascii_digit())?;
            let (digits, zone) = rest.split_at(end);
            (fraction_to_ms(digits)?, zone)
        }
    };
    let days = days_since_1970(year, month, day)?;
    let seconds = days * 86_400 + hour * 3600 + minute * 60 + second - offset_seconds(zone)?;
    Some(seconds * 1000 + fraction_ms)
}

/// Parses three numbers of fixed digit counts with a separator between them.
fn parse_triple(text: &str, separator: char, digits: [usize; 3]) -> Option<[i64; 3]> {
    let mut parts = text.split(separator);
    let mut parsed = [0; 3];
    for (number, digits) in parsed.iter_mut().zip(digits) {
        let part =
            parts.next().filter(|part| part.len() == digits && part.bytes().all(|byte| byte.is_ascii_digit()))?;
        *number = part.parse().ok()?;
    }
    parts.next().is_none().then_some(parsed)
}

/// Milliseconds of the digits after a decimal point: `25` is 250.
fn fraction_to_ms(digits: &str) -> Option<i64> {
    if digits.is_empty() {
        return None;
    }
    format!("{:0<3}", &digits[..digits.len().min(3)]).parse().ok()
}

/// Parses a UTC offset, `Z` or `+02:00`, to seconds.
fn offset_seconds(zone: &str) -> Option<i64> {
    if matches!(zone, "Z" | "z") {
        return Some(0);
    }
    let (sign, text) = match zone.strip_prefix('+') {
        Some(text) => (1, text),
        None => (-1, zone.strip_prefix('-')?),
    };
    let [hours, minutes, _] = parse_triple(&format!("{text}:00"), ':', [2, 2, 2])?;
    (hours < 24 && minutes < 60).then_some(sign * (hours * 3600 + minutes * 60))
}

/// Days from 1970-01-01 to a date of the Gregorian calendar; `None` if there is no such date.
fn days_since_1970(year: i64, month: i64, day: i64) -> Option<i64> {
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let lengths = [31, if is_leap { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let month = usize::try_from(month).ok()?.checked_sub(1)?;
    if day < 1 || day > *lengths.get(month)? {
        return None;
    }
    // The leap days of the years before this one. From 0001-01-01 to 1970-01-01 there are 719,162 days.
    let before = year - 1;
    let leaps = before.div_euclid(4) - before.div_euclid(100) + before.div_euclid(400);
    Some(before * 365 + leaps + lengths[..month].iter().sum::<i64>() + day - 1 - 719_162)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc3339_times_are_parsed() {
        for (text, ms) in [
            ("1970-01-01T00:00:00Z", 0),
            ("1969-12-31T23:59:59.999Z", -1),
            ("2000-02-29T12:00:00Z", 951_825_600_000),
            ("2001-09-09T01:46:40Z", 1_000_000_000_000),
            ("2001-09-09t03:46:40+02:00", 1_000_000_000_000),
            ("2001-09-08 20:16:40-05:30", 1_000_000_000_000),
            ("2001-09-09T01:46:40.25Z", 1_000_000_000_250),
            ("2001-09-09T01:46:40.0019Z", 1_000_000_000_001),
            ("2016-12-31T23:59:60Z", 1_483_228_800_000),
            ("0000-01-01T00:00:00Z", -62_167_219_200_000),
            ("9999-12-31T23:59:59Z", 253_402_300_799_000),
        ] {
            assert_eq!(parse_rfc3339_ms(text), Some(ms), "{text}");
        }
    }

    #[test]
    fn malformed_times_are_ignored() {
        for text in [
            "",
            "never",
            "2001-09-09",
            "2001-09-09T01:46:40",
            "2001-09-09T01:46Z",
            "2001-13-09T01:46:40Z",
            "2001-02-29T01:46:40Z",
            "1900-02-29T01:46:40Z",
            "2001-09-00T01:46:40Z",
            "2001-09-09T24:00:00Z",
            "2001-09-09T01:60:40Z",
            "2001-09-09T01:46:40.Z",
            "2001-09-09T01:46:40+2:00",
            "2001-09-09T01:46:40+24:00",
            "2001-09-09T01:46:40Z ",
            "2001-+9-09T01:46:40Z",
            "2001-09-09é1:46:40Z",
            "20010909T014640Z",
        ] {
            assert_eq!(parse_rfc3339_ms(text), None, "{text}");
        }
    }

    #[test]
    fn seconds_are_rounded_to_the_nearest_millisecond() {
        let ms = |json: &str| match Value::parse(json.as_bytes()).unwrap() {
            Value::Number(number) => seconds_to_ms(number),
            _ => unreachable!("numbers only"),
        };
        assert_eq!(ms("1.5"), 1500);
        assert_eq!(ms("1.001"), 1001);
        assert_eq!(ms("-0.0001"), 0);
        assert_eq!(ms("1700000000.123"), 1_700_000_000_123);
        assert_eq!(ms("1000000000"), 1_000_000_000_000);
        assert_eq!(ms("1e300"), i64::MAX);
        assert_eq!(ms("-1e300"), i64::MIN);
        assert_eq!(ms("9223372036854775807"), i64::MAX);
        assert_eq!(ms("18446744073709551615"), i64::MAX);
        for end in [i64::MIN, -1, 0, 1, 1_483_228_800_000, i64::MAX] {
            assert_eq!(decode_expiration_key(&expiration_key(end)).unwrap(), end);
        }
    }

    #[test]
    fn a_rule_applies_to_its_collection() {
        let whole = Expiry::at("a.b");
        let books = Expiry::at("a").of_collection("books");
        assert!(whole.check().unwrap().applies_to("x"));
        let books = books.check().unwrap();
        assert!(books.applies_to("books:1") && books.applies_to("books:"));
        assert!(!books.applies_to("books") && !books.applies_to("bookshelf:1") && !books.applies_to("x"));
        for wrong in [Expiry::at(""), Expiry::at("_id"), Expiry::at("a").of_collection("b:c")] {
            assert!(wrong.check().is_err());
        }
    }
}
