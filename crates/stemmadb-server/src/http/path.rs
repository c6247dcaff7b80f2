//! Request paths, split into segments that are decoded one by one, so that an id may contain any character.

use percent_encoding::percent_decode_str;

use crate::error::{Failure, Result};

/// The values of the parameters of a route's pattern.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Parameters(Vec<(&'static str, String)>);

impl Parameters {
    pub(crate) fn push(&mut self, name: &'static str, value: String) {
        self.0.push((name, value));
    }

    /// Returns the value of the parameter `name`. A handler's route has all the parameters that the handler uses.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| *known == name).map(|(_, value)| value.as_str())
    }
}

/// Decodes the segments of a path. Repeated slashes at the beginning, which Fauxton sends, and one at the end are
/// ignored; `_design%2Fname` in the position of a document is `_design/name`.
pub(crate) fn segments(path: &str) -> Result<Vec<String>> {
    let path = path.trim_start_matches('/');
    let path = path.strip_suffix('/').unwrap_or(path);
    if path.is_empty() {
        return Ok(Vec::new());
    }
    let mut segments = Vec::with_capacity(4);
    for raw in path.split('/') {
        let segment = decode(raw)?;
        match segment.split_once('/') {
            Some((kind @ ("_design" | "_local"), name)) if segments.len() == 1 => {
                segments.extend([kind.to_owned(), name.to_owned()]);
            }
            _ => segments.push(segment),
        }
    }
    Ok(segments)
}

fn decode(raw: &str) -> Result<String> {
    let bytes = raw.as_bytes();
    let is_broken = |(at, _): (usize, _)| {
        let digits = bytes.get(at + 1..at + 3);
        !digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    };
    if raw.match_indices('%').any(is_broken) {
        return Err(Failure::bad_request("The path has a `%` that is not followed by two hexadecimal digits."));
    }
    match percent_decode_str(raw).decode_utf8() {
        Ok(text) => Ok(text.into_owned()),
        Err(_) => Err(Failure::bad_request("The path is not UTF-8.")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_decoded_one_by_one() {
        let of = |path: &str| segments(path).unwrap();
        assert_eq!(of("/"), [""; 0]);
        assert_eq!(of("/db/"), ["db"]);
        assert_eq!(of("//_cluster_setup"), ["_cluster_setup"]);
        assert_eq!(of("/a%2Fb/c%2fd/e/f%25"), ["a/b", "c/d", "e", "f%"]);
        assert_eq!(of("/db/_design%2Fname/_view/x"), ["db", "_design", "name", "_view", "x"]);
        assert_eq!(of("/db/_local%2Fa%2Fb"), ["db", "_local", "a/b"]);
        assert_eq!(of("/db/doc/_design%2Fname"), ["db", "doc", "_design/name"]);
        assert_eq!(of("/db/gr%C3%B6%C3%9Fe+1"), ["db", "größe+1"]);
        assert!(segments("/db/%zz").is_err());
        assert!(segments("/db/%f").is_err());
        assert!(segments("/db/%ff").is_err());
    }
}
