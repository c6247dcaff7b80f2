//! Estimates the memory that a JSON text takes once parsed, by one scan of its bytes.

use memchr::memchr2;

use super::error::{Failure, Result};

/// The estimated size of a value in its array or object, and of a name with its entry in the index of a large object.
const VALUE_BYTES: usize = 32;
const NAME_BYTES: usize = 40;
/// The allowed ratio of parsed size to text length.
const FACTOR: usize = 6;
/// Parsed size that is always allowed, since lists of a hundred thousand numbers are common.
const FREE_BYTES: usize = 8 << 20;
/// Shorter texts are not scanned.
const SMALL_LENGTH: usize = 1 << 10;

/// The purpose that a text is parsed for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JsonPurpose {
    /// Documents: large ones consist of many small values.
    Documents,
    /// Lists and conditions, which handlers convert to their own types.
    Parameters,
}

impl JsonPurpose {
    /// The number of copies in memory, including those of handlers.
    fn copies(self) -> usize {
        match self {
            JsonPurpose::Documents => 1,
            JsonPurpose::Parameters => 2,
        }
    }
}

/// The extent of the first value of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JsonExtent {
    /// Its length in bytes, including surrounding whitespace.
    pub length: usize,
    /// The estimated number of bytes that it takes once parsed.
    pub memory: usize,
}

impl JsonExtent {
    /// Measures the value that `text` begins with. It ends before a comma or bracket of an enclosing value. If the text
    /// is not JSON, a parser fails before the end of this extent.
    pub fn of_first(text: &[u8]) -> Self {
        let (mut at, mut depth, mut memory) = (0, 0_usize, VALUE_BYTES);
        while let Some(&byte) = text.get(at) {
            let length = match byte {
                b'"' => string_length(&text[at..]),
                _ => 1,
            };
            match byte {
                b'"' => memory += length,
                b',' | b']' | b'}' if depth == 0 => break,
                b',' => memory += VALUE_BYTES,
                b':' => memory += NAME_BYTES,
                b'[' | b'{' => {
                    depth += 1;
                    memory += VALUE_BYTES;
                }
                b']' | b'}' => depth -= 1,
                _ => {}
            }
            at += length;
        }
        JsonExtent { length: at, memory }
    }
}

/// Estimates the parsed size of a text in bytes. Refuses a text that would take far more memory than its length, so
/// that a small request can't exhaust the memory.
///
/// # Errors
/// 413, with a reason that says what to do.
pub fn check_json_memory(text: &[u8], purpose: JsonPurpose) -> Result<usize> {
    let bytes_max = text.len().saturating_mul(FACTOR);
    if text.len() <= SMALL_LENGTH {
        return Ok(bytes_max);
    }
    let memory = JsonExtent::of_first(text).memory;
    if memory <= FREE_BYTES.max(bytes_max / purpose.copies()) {
        return Ok(memory.saturating_mul(purpose.copies()));
    }
    Err(Failure::too_large(format!(
        "so many small values in one piece, {} bytes of text, would take {} MiB of memory: \
         send them as several documents, or in several requests",
        text.len(),
        memory >> 20
    )))
}

/// The length in bytes of the string that `text` begins with, including its quotes; the whole length if it is
/// unterminated.
pub fn string_length(text: &[u8]) -> usize {
    let mut at = 1;
    while let Some(found) = text.get(at..).and_then(|rest| memchr2(b'"', b'\\', rest)) {
        match text[at + found] {
            b'"' => return at + found + 1,
            // Skip the escaped byte.
            _ => at += found + 2,
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extent_ends_at_the_end_of_the_value() {
        for (text, value) in [
            ("1,2", "1"),
            (r#"[1,{"a":[2]}] ,3"#, r#"[1,{"a":[2]}] "#),
            (r#" "a,]\"\\" ]"#, r#" "a,]\"\\" "#),
            ("{}", "{}"),
            ("[1]]", "[1]"),
            (r#""never ends"#, r#""never ends"#),
            (r#""ends in an escape\"#, r#""ends in an escape\"#),
            ("", ""),
        ] {
            assert_eq!(&text[..JsonExtent::of_first(text.as_bytes()).length], value, "{text}");
        }
    }

    #[test]
    fn memory_includes_values_names_and_strings() {
        let memory = |text: &str| JsonExtent::of_first(text.as_bytes()).memory;
        assert_eq!(memory("[1,2,3]"), 4 * VALUE_BYTES);
        assert_eq!(memory(r#"{"a":1,"b":2}"#), 3 * VALUE_BYTES + 2 * (NAME_BYTES + 3));
        assert_eq!(memory(r#""four""#), VALUE_BYTES + 6);
    }

    #[test]
    fn many_small_values_are_refused() {
        let check = |text: &str, purpose| {
            check_json_memory(text.as_bytes(), purpose).map(|_| ()).map_err(|failure| failure.status())
        };
        let list = |unit: &str, count: usize| format!("[{}0]", unit.repeat(count));
        let too_large = Err(hyper::StatusCode::PAYLOAD_TOO_LARGE);
        assert_eq!(check(&list("0,", 260_000), JsonPurpose::Documents), Ok(()), "8 MiB are free");
        assert_eq!(check(&list("0,", 270_000), JsonPurpose::Documents), too_large);
        assert_eq!(check(&list("0,", 260_000), JsonPurpose::Parameters), Ok(()));
        assert_eq!(check(&list("0,", 270_000), JsonPurpose::Parameters), too_large);
        let ids = list("\"0123456789abcdef0123456789abcdef\",", 600_000);
        assert_eq!(check(&ids, JsonPurpose::Parameters), Ok(()));
        let rows = list(r#"{"time":"2024-05-01T10:00:00Z","value":12.5,"sensor":"kitchen"},"#, 125_000);
        assert_eq!(check(&rows, JsonPurpose::Documents), Ok(()));
        assert_eq!(check(&rows, JsonPurpose::Parameters), too_large);
    }
}
