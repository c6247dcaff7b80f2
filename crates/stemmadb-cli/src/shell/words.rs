//! How does a typed line fall into words?
//!
//! As in a shell, with one difference: what begins with `{` or `[` reaches to its closing bracket, white space and
//! quotes included, so that JSON can be typed as it is.

/// A word and where it stands in the line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Word {
    /// Without quotes and backslashes.
    pub(crate) text: String,
    /// Byte offset of its first character in the line.
    pub(crate) start: usize,
}

/// Why a line does not fall into words yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Open {
    /// A quote waits for its end.
    Quote,
    /// A bracket waits for its end.
    Bracket,
}

/// The words of `line`; `Err` says what is still open at its end.
pub(crate) fn split(line: &str) -> Result<Vec<Word>, Open> {
    match so_far(line) {
        (words, None) => Ok(words),
        (_, Some(open)) => Err(open),
    }
}

/// The words of a line that is still being typed, and what is open at its end; then the last word is a beginning.
pub(crate) fn so_far(line: &str) -> (Vec<Word>, Option<Open>) {
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

/// The JSON text at the start, and its length.
fn json(text: &str) -> Result<(String, usize), Open> {
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
    Err(Open::Bracket)
}

/// The shell word at the start, and its length.
fn word(text: &str) -> Result<(String, usize), Open> {
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
                None => return Err(Open::Quote),
            },
            _ => word.push(character),
        }
    }
    match quote {
        None => Ok((word, text.len())),
        Some(_) => Err(Open::Quote),
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
    fn open_ends_are_told() {
        assert_eq!(split("find {\"a\": "), Err(Open::Bracket));
        assert_eq!(split("find {\"a\": \"}"), Err(Open::Bracket));
        assert_eq!(split("get 'a b"), Err(Open::Quote));
        assert_eq!(split("get \"a\\"), Err(Open::Quote));
    }

    #[test]
    fn an_open_word_is_a_beginning() {
        let (words, open) = so_far("find {\"a");
        assert_eq!((words[1].text.as_str(), words[1].start, open), ("{\"a", 5, Some(Open::Bracket)));
        let (words, open) = so_far("get 'a b");
        assert_eq!((words[1].text.as_str(), words[1].start, open), ("a b", 4, Some(Open::Quote)));
    }

    #[test]
    fn words_know_where_they_stand() {
        assert_eq!(split("é  {}").unwrap()[1].start, 4);
    }
}
