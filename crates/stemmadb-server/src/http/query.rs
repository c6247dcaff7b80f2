//! URL query parameters, most of them JSON.

use std::str::FromStr;

use percent_encoding::percent_decode_str;
use stemmadb::Value;

use crate::error::{Failure, Result};

/// The parameter that is a pattern of document paths, in which `+` stands for any level.
const PATTERN: &str = "path";

/// The parameters of a URL query, in order.
#[derive(Debug, Clone, Default)]
pub(crate) struct Query(Vec<(String, String)>);

impl Query {
    pub(crate) fn parse(text: &str) -> Result<Self> {
        // As in CouchDB, a semicolon separates parameters too.
        let pairs = text.split(['&', ';']).filter(|pair| !pair.is_empty()).map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let name = decode(name)?;
            // A plus is a space in a query, except in a pattern, where it is common.
            let value = if name == PATTERN { decode_percent(value)? } else { decode(value)? };
            Ok((name, value))
        });
        pairs.collect::<Result<_>>().map(Query)
    }

    /// Returns the text of the parameter `name`.
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// Iterates over the texts of all parameters `name`, in order.
    pub(crate) fn texts(&self, name: &str) -> impl Iterator<Item = &str> {
        self.iter().filter(move |(known, _)| *known == name).map(|(_, value)| value)
    }

    /// Replaces the parameter `name`.
    pub(crate) fn set(&mut self, name: &str, value: &str) {
        self.0.retain(|(known, _)| known != name);
        self.0.push((name.to_owned(), value.to_owned()));
    }

    /// Iterates over all parameters, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Returns the boolean parameter `name`, or `default` if it is absent.
    ///
    /// # Errors
    /// 400 for anything but `true` and `false`.
    pub(crate) fn flag(&self, name: &str, default: bool) -> Result<bool> {
        match self.text(name) {
            None => Ok(default),
            Some(text) if text.eq_ignore_ascii_case("true") => Ok(true),
            Some(text) if text.eq_ignore_ascii_case("false") => Ok(false),
            Some(text) => Err(Failure::query_parse(format!("Invalid boolean parameter: {}", quoted(text)))),
        }
    }

    /// Returns the numeric parameter `name`.
    ///
    /// # Errors
    /// 400 if it is not a number.
    pub(crate) fn number<N: FromStr>(&self, name: &str) -> Result<Option<N>> {
        let Some(text) = self.text(name) else { return Ok(None) };
        match text.parse() {
            Ok(number) => Ok(Some(number)),
            Err(_) => {
                Err(Failure::query_parse(format!("Invalid value for integer parameter {name}: {}", quoted(text))))
            }
        }
    }

    /// Returns the JSON parameter `name`.
    ///
    /// # Errors
    /// 400 if it is not valid JSON.
    pub(crate) fn json(&self, name: &str) -> Result<Option<Value>> {
        let Some(text) = self.text(name) else { return Ok(None) };
        match Value::parse(text.as_bytes()) {
            Ok(value) => Ok(Some(value)),
            Err(error) => Err(Failure::bad_request(format!("invalid UTF-8 JSON in {name}: {error}"))),
        }
    }
}

fn quoted(text: &str) -> String {
    let shown: String = text.chars().take(80).collect();
    format!("{shown:?}")
}

fn decode(raw: &str) -> Result<String> {
    decode_percent(&raw.replace('+', " "))
}

fn decode_percent(raw: &str) -> Result<String> {
    match percent_decode_str(raw).decode_utf8() {
        Ok(text) => Ok(text.into_owned()),
        Err(_) => Err(Failure::bad_request("The query is not UTF-8.")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_decoded_and_typed() {
        let query = Query::parse("key=%22a%2Bb+c%22&limit=10&descending=true&empty&x=%C3%A4").unwrap();
        assert_eq!(query.json("key").unwrap(), Some(Value::from("a+b c")));
        assert_eq!(query.number::<u64>("limit").unwrap(), Some(10));
        assert!(query.flag("descending", false).unwrap());
        assert!(query.flag("absent", true).unwrap());
        assert_eq!(query.text("empty"), Some(""));
        assert_eq!(query.text("x"), Some("ä"));
        let query = Query::parse("path=a/+/b%2B&path=a+b/%23&limit=10&x=%C3%A4").unwrap();
        assert_eq!(query.texts("path").collect::<Vec<_>>(), ["a/+/b+", "a+b/#"]);
        assert!(query.flag("limit", false).is_err());
        assert!(query.number::<u64>("x").is_err());
        assert!(query.json("x").is_err());
    }
}
