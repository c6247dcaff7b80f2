//! The rules of a design document's `rewrites`, if they are an array: each matches a path and a method, and names the
//! path and the query to use instead.
//!
//! `:name` matches one segment and `*` the rest. Both can be used in the new path and in the values of its query, as
//! can the parameters of the request.

use hyper::StatusCode;
use stemmadb::{Object, Value};

use crate::error::{Failure, Result};
use crate::http::Query;

/// The path below the design document, and the query, that a request is rewritten to.
#[derive(Debug, PartialEq)]
pub(crate) struct RewrittenPath {
    /// Segments relative to the design document.
    pub(crate) segments: Vec<String>,
    pub(crate) query: Vec<(String, String)>,
}

/// The values of variables, the newest first.
type Bindings = Vec<(String, Value)>;

/// How many `..` the path of a rule may have: so many lead from the design document to the database.
const PARENTS_MAX: usize = 2;

/// Applies the first rule that matches; `None` if none does.
///
/// # Errors
/// 500 if a rule is invalid or leads out of the database.
pub(crate) fn rewrite_by_rules(
    rules: &[Value],
    method: &str,
    path: &[String],
    query: &Query,
) -> Result<Option<RewrittenPath>> {
    let parameters: Bindings = query.iter().map(|(name, value)| (name.to_owned(), parameter(name, value))).collect();
    for rule in rules {
        let Some(rule) = rule.as_object() else { return Err(invalid("a rule must be an object")) };
        let text = |name: &str| rule.get(name).and_then(Value::as_str);
        let is_for_method = text("method").is_none_or(|wanted| wanted == "*" || wanted == method);
        let Some((mut bindings, rest)) = matched(text("from").unwrap_or("*"), path).filter(|_| is_for_method) else {
            continue;
        };
        bindings.extend(parameters.iter().cloned());
        let to = text("to").ok_or_else(|| invalid("a rule needs `to`"))?;
        let formats = rule.get("formats").and_then(Value::as_object);
        let given = rule.get("query").and_then(Value::as_object).into_iter().flatten();
        let given: Bindings =
            given.map(|(name, value)| (name.to_owned(), replaced(value, &bindings, formats))).collect();
        let mut all: Bindings = bindings.into_iter().filter(|(name, _)| !is_bound(&given, name)).collect();
        all.extend(given);
        let segments = new_path(to, &all, &rest)?;
        let query = all.into_iter().filter(|(name, _)| name != "*").map(|(name, value)| {
            let text = query_text(&name, value);
            (name, text)
        });
        return Ok(Some(RewrittenPath { segments, query: query.collect() }));
    }
    Ok(None)
}

fn invalid(reason: &'static str) -> Failure {
    Failure::new(StatusCode::INTERNAL_SERVER_ERROR, "rewrite_error", reason)
}

fn is_bound(bindings: &Bindings, name: &str) -> bool {
    bindings.iter().any(|(bound, _)| bound == name)
}

/// Whether a parameter of views is JSON.
fn is_json(name: &str) -> bool {
    matches!(name, "key" | "startkey" | "start_key" | "endkey" | "end_key" | "keys")
}

/// The value of a parameter of the request.
fn parameter(name: &str, text: &str) -> Value {
    let json = is_json(name).then(|| Value::parse(text).ok()).flatten();
    json.unwrap_or_else(|| Value::from(text))
}

/// A parameter's value as it is written in a query.
fn query_text(name: &str, value: Value) -> String {
    match value {
        Value::String(text) if !is_json(name) => text,
        value => value.to_json(),
    }
}

/// Matches a path with the pattern `from`; returns the variables and what `*` matches.
fn matched(from: &str, path: &[String]) -> Option<(Bindings, Vec<String>)> {
    let mut bindings = Bindings::new();
    let mut left = path;
    for part in from.split('/').filter(|part| !part.is_empty()) {
        if part == "*" {
            bindings.extend(left.first().map(|first| ("*".to_owned(), Value::from(first.as_str()))));
            return Some((bindings, left.to_vec()));
        }
        let (segment, rest) = left.split_first()?;
        match part.strip_prefix(':') {
            Some(name) => bindings.push((name.to_owned(), Value::from(segment.as_str()))),
            None if part == segment => {}
            None => return None,
        }
        left = rest;
    }
    left.is_empty().then_some((bindings, Vec::new()))
}

/// Replaces `:name` and `*` in a value of a rule's query, also within an array.
fn replaced(value: &Value, bindings: &Bindings, formats: Option<&Object>) -> Value {
    match value {
        Value::String(text) => {
            let name = if text == "*" { Some("*") } else { text.strip_prefix(':') };
            let bound = name.and_then(|name| bindings.iter().find(|(bound, _)| bound == name));
            match bound {
                Some((name, bound)) => formatted(bound, formats.and_then(|formats| formats.get(name))),
                None => value.clone(),
            }
        }
        Value::Array(values) => {
            values.iter().map(|value| replaced(value, bindings, formats)).collect::<Vec<_>>().into()
        }
        value => value.clone(),
    }
}

/// Converts a text to the format `int` or `bool`, if it has that form.
fn formatted(value: &Value, format: Option<&Value>) -> Value {
    let converted = match (format.and_then(Value::as_str), value.as_str()) {
        (Some("int"), Some(text)) => text.parse::<i64>().ok().map(Value::from),
        (Some("bool"), Some("true")) => Some(true.into()),
        (Some("bool"), Some("false")) => Some(false.into()),
        _ => None,
    };
    converted.unwrap_or_else(|| value.clone())
}

/// The path `to` with its variables replaced.
fn new_path(to: &str, bindings: &Bindings, rest: &[String]) -> Result<Vec<String>> {
    let mut segments = Vec::new();
    let mut parent_count = 0;
    for part in to.split('/').filter(|part| !part.is_empty()) {
        match part.strip_prefix(':') {
            _ if part == "*" => {
                segments.extend_from_slice(rest);
                return Ok(segments);
            }
            Some(name) => {
                let bound = bindings.iter().find(|(bound, _)| bound == name).map(|(_, value)| value.clone());
                segments.push(bound.map_or_else(|| "undefined".to_owned(), |value| query_text("", value)));
            }
            None => {
                parent_count += usize::from(part == "..");
                segments.push(part.to_owned());
            }
        }
        if parent_count > PARENTS_MAX {
            return Err(insecure());
        }
    }
    Ok(segments)
}

/// The error for a rewrite that leads out of the database.
pub(crate) fn insecure() -> Failure {
    Failure::new(StatusCode::INTERNAL_SERVER_ERROR, "insecure_rewrite_rule", "a rewrite can't leave its database")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rewritten path and query, separated by `?`, of a request `method path?query`.
    fn rewritten(rules: &str, request: &str) -> Option<String> {
        let Ok(Value::Array(rules)) = Value::parse(rules) else { panic!("an array") };
        let (method, target) = request.split_once(' ').unwrap();
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let path: Vec<String> = path.split('/').filter(|part| !part.is_empty()).map(str::to_owned).collect();
        let found = rewrite_by_rules(&rules, method, &path, &Query::parse(query).unwrap()).unwrap()?;
        let query: Vec<String> = found.query.into_iter().map(|(name, value)| format!("{name}={value}")).collect();
        Some(format!("{}?{}", found.segments.join("/"), query.join("&")))
    }

    #[test]
    fn first_matching_rule_applies() {
        let rules = r#"[{"from": "", "to": "index.html", "method": "GET"},
            {"from": "/doc/:id", "to": "../../:id", "method": "PUT"},
            {"from": "/doc/:id", "to": "_show/page/:id"},
            {"from": "/old/*", "to": "/new/*", "query": {"v": "1"}},
            {"from": "/by/:a/:b", "to": "_view/v", "query": {"startkey": [":a", ":b"], "n": ":b", "reduce": "false"},
                "formats": {"b": "int"}},
            {"from": "/page/*", "to": "_list/:name/all", "query": {"key": "*"}}]"#;
        for (request, expected) in [
            ("GET /", Some("index.html?")),
            ("POST /", None),
            ("PUT /doc/a", Some("../../a?id=a")),
            ("GET /doc/a?rev=1", Some("_show/page/a?id=a&rev=1")),
            ("GET /old/a/b?v=2&w=3", Some("new/a/b?w=3&v=1")),
            ("GET /by/x/7", Some(r#"_view/v?a=x&b=7&startkey=["x",7]&n=7&reduce=false"#)),
            ("GET /page/x?name=f", Some(r#"_list/f/all?name=f&key="x""#)),
            ("GET /doc", None),
            ("GET /doc/a/b", None),
        ] {
            assert_eq!(rewritten(rules, request).as_deref(), expected, "{request}");
        }
    }

    #[test]
    fn rules_stay_within_the_database() {
        let rules = Value::parse(r#"[{"from": "a", "to": "../../../_users"}]"#).unwrap();
        let rules = rules.as_array().unwrap();
        let failure = rewrite_by_rules(rules, "GET", &["a".to_owned()], &Query::default()).unwrap_err();
        assert_eq!(failure.error(), "insecure_rewrite_rule");
        let rules = [Value::parse(r#"{"from": "a"}"#).unwrap()];
        let failure = rewrite_by_rules(&rules, "GET", &["a".to_owned()], &Query::default()).unwrap_err();
        assert_eq!(failure.error(), "rewrite_error");
    }
}
