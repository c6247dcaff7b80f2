//! The parameters of listings and view queries: from the query string, and from a JSON body.

use stemmadb::Value;

use crate::error::{Failure, Result};
use crate::http::Query;

/// Which parameter applies if both the query string and the body have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Precedence {
    /// That of the query string, as for the body of a `POST`.
    QueryString,
    /// That of the body, as for one of several `queries`.
    Body,
}

/// Parameters from a query string and a body.
pub(super) struct RowParameters<'a> {
    query: &'a Query,
    body: Option<&'a Value>,
    precedence: Precedence,
}

impl<'a> RowParameters<'a> {
    /// The parameters of a query string and a body.
    ///
    /// # Errors
    /// 400 if the body is not a JSON object.
    pub(super) fn new(query: &'a Query, body: Option<&'a Value>, precedence: Precedence) -> Result<Self> {
        match body {
            Some(body) if body.as_object().is_none() => Err(Failure::bad_request("Request body must be a JSON object")),
            body => Ok(RowParameters { query, body, precedence }),
        }
    }

    /// The parameter of this name in the body, unless one in the query string takes precedence.
    fn in_body(&self, name: &str) -> Option<&'a Value> {
        let is_overridden = self.precedence == Precedence::QueryString && self.query.text(name).is_some();
        self.body.filter(|_| !is_overridden).and_then(|body| body.get(name))
    }

    /// The JSON value of the parameter that has one of these names.
    pub(super) fn json(&self, names: &[&str]) -> Result<Option<Value>> {
        let in_body = names.iter().find_map(|name| self.in_body(name)).cloned();
        let name = names.iter().find(|name| self.query.text(name).is_some());
        let in_query = name.map(|name| self.query.json(name)).transpose()?.flatten();
        Ok(match self.precedence {
            Precedence::QueryString => in_query.or(in_body),
            Precedence::Body => in_body.or(in_query),
        })
    }

    /// The text of the first of these parameters that is present. In the query string it is not JSON-encoded.
    pub(super) fn text(&self, names: &[&str]) -> Option<String> {
        let of = |name: &&str| self.in_body(name).and_then(Value::as_str).or_else(|| self.query.text(name));
        names.iter().find_map(of).map(str::to_owned)
    }

    pub(super) fn flag(&self, name: &str) -> Result<Option<bool>> {
        match self.in_body(name) {
            Some(value) => match (value.as_bool(), value.as_str()) {
                (Some(flag), _) => Ok(Some(flag)),
                (None, Some("true")) => Ok(Some(true)),
                (None, Some("false")) => Ok(Some(false)),
                _ => Err(Failure::query_parse(format!("Invalid boolean parameter: {value}"))),
            },
            None if self.query.text(name).is_none() => Ok(None),
            None => self.query.flag(name, false).map(Some),
        }
    }

    pub(super) fn number(&self, name: &str) -> Result<Option<u64>> {
        let invalid = |shown: &str| Failure::query_parse(format!("Invalid value for {name}: {shown}"));
        match self.in_body(name) {
            Some(value) => value.as_u64().map(Some).ok_or_else(|| invalid(&value.to_json())),
            None => self.query.number(name),
        }
    }
}

/// The error for `keys` beside a parameter that it excludes.
pub(super) fn incompatible_keys() -> Failure {
    Failure::query_parse("`keys` is incompatible with `key`, `start_key` and `end_key`")
}
