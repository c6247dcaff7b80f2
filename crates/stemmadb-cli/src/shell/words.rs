//! Splits a command line into words, as a POSIX shell does.
//!
//! One addition: a word that begins with `{` or `[` extends to its closing bracket, including whitespace and quotes, so
//! that JSON needs no quoting.

/// A word and its position in the line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Word {
    /// Without quotes and backslashes.
    pub(crate) text: String,
    /// Byte offset of its first character in the line.
    pub(crate) start: usize,
}

/// Why a line is incomplete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unclosed {
    /// A quote is not closed.
    Quote,
    /// A bracket is not closed.
    Bracket,
}

/// Splits `line` into words.
///
/// # Errors
/// What is not closed at the end of the line.
pub(crate) fn split(line: &str) -> Result<Vec<Word>, Unclosed> {
    match split_partial(line) {
        (words, None) => Ok(words),
        (_, Some(open)) => Err(open),
    }
}

/// Splits an incomplete line; if something is not closed, the last word is a prefix.
pub(crate) fn split_partial(line: &str) -> (Vec<Word>, Option<Unclosed>) {
    let mut words = Vec::new();
    let mut rest = line;
    loop {
        rest = rest.trim_start();
        if rest.is_empty() {
            return (words, None);
        }
        let start = line.len() - rest.len();
        match if rest.starts_with(['{', '[']) { json(rest) } else { word(rest) } {
            Ok((text, length)) => {
                words.push(Word { text, start });
                rest = &rest[length..];
            }
            Err(open) => {
                words.push(Word { text: rest.trim_start_matches(['\'', '"']).to_owned(), start });
                return (words, Some(open));
            }
        }
    }
}

/// Reads the JSON text at the start; returns it with its length.
fn json(text: &str) -> Result<(String, usize), Unclosed> {
    let (mut depth, mut in_string, mut escaped) = (0_usize, false, false);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            _ if in_string => {}
            b'{' | b'[' => depth += 1,
            b'}' | b']' => {
                depth -= 1;
                if depth == 0 {
                    return Ok((text[..=at].to_owned(), at + 1));
                }
            }
            _ => {}
        }
    }
    Err(Unclosed::Bracket)
}

/// Reads the shell word at the start; returns it with its length in the line.
fn word(text: &str) -> Result<(String, usize), Unclosed> {
    let mut word = String::new();
    let mut quote = None;
    let mut characters = text.char_indices();
    while let Some((at, character)) = characters.next() {
        match (quote, character) {
            (None, space) if space.is_whitespace() => return Ok((word, at)),
            (None, '\'' | '"') => quote = Some(character),
            (Some(open), close) if open == close => quote = None,
            (None, '\\') => word.extend(characters.next().map(|(_, next)| next)),
            (Some('"'), '\\') => match characters.next() {
                Some((_, next @ ('"' | '\\'))) => word.push(next),
                Some((_, next)) => word.extend(['\\', next]),
                None => return Err(Unclosed::Quote),
            },
            _ => word.push(character),
        }
    }
    match quote {
        None => Ok((word, text.len())),
        Some(_) => Err(Unclosed::Quote),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        split(line).unwrap().into_iter().map(|word| word.text).collect()
    }

    #[test]
    fn words_quotes_and_json() {
        assert_eq!(words("  get  emma "), ["get", "emma"]);
        assert_eq!(words("get 'a b' \"c \\\" d\" e\\ f"), ["get", "a b", "c \" d", "e f"]);
        assert_eq!(
            words("find {\"a b\": {\"$in\": [1, 2]}} --limit 3"),
            ["find", "{\"a b\": {\"$in\": [1, 2]}}", "--limit", "3"]
        );
        assert_eq!(words("find '{\"a\": 1}'"), ["find", "{\"a\": 1}"]);
        assert_eq!(words("x {\"a\": \"}\\\"{\"} y"), ["x", "{\"a\": \"}\\\"{\"}", "y"]);
        assert!(words("   ").is_empty());
        assert_eq!(words("get ''"), ["get", ""]);
        assert_eq!(words("a]b}"), ["a]b}"]);
    }

    #[test]
    fn unclosed_quotes_and_brackets_are_errors() {
        assert_eq!(split("find {\"a\": "), Err(Unclosed::Bracket));
        assert_eq!(split("find {\"a\": \"}"), Err(Unclosed::Bracket));
        assert_eq!(split("get 'a b"), Err(Unclosed::Quote));
        assert_eq!(split("get \"a\\"), Err(Unclosed::Quote));
    }

    #[test]
    fn unclosed_word_is_a_prefix() {
        let (words, open) = split_partial("find {\"a");
        assert_eq!((words[1].text.as_str(), words[1].start, open), ("{\"a", 5, Some(Unclosed::Bracket)));
        let (words, open) = split_partial("get 'a b");
        assert_eq!((words[1].text.as_str(), words[1].start, open), ("a b", 4, Some(Unclosed::Quote)));
    }

    #[test]
    fn words_have_byte_offsets() {
        assert_eq!(split("é  {}").unwrap()[1].start, 4);
    }
}
