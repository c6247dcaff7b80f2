//! How much memory does a JSON text take once it is parsed? Told by one look at its bytes, before anything is made of them.

use memchr::memchr2;

use crate::error::{Failure, Result};

/// What a value takes where it stands, in an array or as an object's; what its name takes, with its place in the index that large objects have.
const VALUE_BYTES: usize = 32;
const NAME_BYTES: usize = 40;
/// So many times its length what is made of a text may take.
const FACTOR: usize = 6;
/// So much a text may take, whatever it consists of: lists of a hundred thousand numbers are what people send.
const FREE_BYTES: usize = 8 << 20;
/// Shorter ones are not looked at.
const SMALL_LENGTH: usize = 1 << 10;

/// What a text is parsed for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum JsonPurpose {
    /// Documents: large ones consist of many small values.
    Documents,
    /// Lists and conditions, of which handlers make their own.
    Parameters,
}

impl JsonPurpose {
    /// How often what is parsed is there, once handlers have made their own of it.
    fn copies(self) -> usize {
        match self {
            JsonPurpose::Documents => 1,
            JsonPurpose::Parameters => 2,
        }
    }
}

/// One value at the front of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct JsonExtent {
    /// How many bytes of text it is, with the blanks around it.
    pub(crate) length: usize,
    /// How many bytes it takes when it is parsed, about.
    pub(crate) memory: usize,
}

impl JsonExtent {
    /// The value that `text` begins with; it ends before a comma or bracket that is not its own. Where the text is no JSON a parser finds
    /// that out before it comes to the end of this.
    pub(crate) fn of_first(text: &[u8]) -> Self {
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

/// How many bytes what is made of a text takes, about. Refuses one that would take far more memory than it is long: somebody could have all
/// of the memory for little.
///
/// # Errors
/// 413, saying what to do.
pub(crate) fn check_json_memory(text: &[u8], purpose: JsonPurpose) -> Result<usize> {
    let bytes_max = text.len().saturating_mul(FACTOR);
    if text.len() <= SMALL_LENGTH {
        return Ok(bytes_max);
    }
    let memory = JsonExtent::of_first(text).memory;
    if memory <= FREE_BYTES.max(bytes_max / purpose.copies()) {
        return Ok(memory.saturating_mul(purpose.copies()));
    }
    Err(Failure::too_large(format!(
        "so many small values in one piece, {} bytes of text, would take {} MiB of memory: send them as several documents, or in several requests",
        text.len(),
        memory >> 20
    )))
}

/// The bytes of the string at the front of `text`, with its quotes; all there are if it has no end.
pub(crate) fn string_length(text: &[u8]) -> usize {
    let mut at = 1;
    while let Some(found) = text.get(at..).and_then(|rest| memchr2(b'"', b'\\', rest)) {
        match text[at + found] {
            b'"' => return at + found + 1,
            // With what it escapes.
            _ => at += found + 2,
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_end_where_they_end() {
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
    fn memory_is_that_of_values_names_and_texts() {
        let memory = |text: &str| JsonExtent::of_first(text.as_bytes()).memory;
        assert_eq!(memory("[1,2,3]"), 4 * VALUE_BYTES);
        assert_eq!(memory(r#"{"a":1,"b":2}"#), 3 * VALUE_BYTES + 2 * (NAME_BYTES + 3));
        assert_eq!(memory(r#""four""#), VALUE_BYTES + 6);
    }

    #[test]
    fn much_of_little_is_refused_and_little_or_long_is_not() {
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
