//! Route matching: finds the endpoint for a method and a path.
//!
//! If several patterns match, they are compared segment by segment from the left, and a literal wins over a parameter.

use std::sync::OnceLock;

use hyper::Method;

use super::Endpoint;
use super::table::endpoints;
use crate::http::Parameters;

/// The result of route matching.
pub(crate) enum RouteMatch {
    /// The endpoint and the values of its path parameters.
    Route(&'static Endpoint, Parameters),
    /// The path exists, but only with these methods: 405.
    MethodNotAllowed(String),
    /// No route has this path: 404.
    NotFound,
}

/// One segment of a pattern. The order of the variants is their precedence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Segment {
    Literal(&'static str),
    Parameter(&'static str),
    Rest(&'static str),
}

struct Pattern {
    segments: Vec<Segment>,
    endpoints: Vec<&'static Endpoint>,
}

/// Finds the endpoint of a request.
pub(crate) fn find(method: &Method, path: &[String]) -> RouteMatch {
    // HEAD runs the GET handler; the connection omits the body.
    let method = if method == Method::HEAD { &Method::GET } else { method };
    let Some((pattern, parameters)) =
        patterns().iter().find_map(|pattern| Some((pattern, matched(&pattern.segments, path)?)))
    else {
        return RouteMatch::NotFound;
    };
    match pattern.endpoints.iter().find(|endpoint| endpoint.route.method == *method) {
        Some(endpoint) => RouteMatch::Route(endpoint, parameters),
        None => RouteMatch::MethodNotAllowed(methods(pattern)),
    }
}

fn methods(pattern: &Pattern) -> String {
    let mut methods: Vec<&str> = pattern.endpoints.iter().map(|endpoint| endpoint.route.method.as_str()).collect();
    if methods.contains(&"GET") {
        methods.push("HEAD");
    }
    methods.sort_unstable();
    methods.join(",")
}

/// All patterns in order of precedence.
fn patterns() -> &'static [Pattern] {
    static PATTERNS: OnceLock<Vec<Pattern>> = OnceLock::new();
    PATTERNS.get_or_init(|| {
        let mut patterns: Vec<Pattern> = Vec::new();
        for endpoint in endpoints() {
            let segments: Vec<_> =
                endpoint.route.path.split('/').filter(|part| !part.is_empty()).map(segment).collect();
            match patterns.iter_mut().find(|pattern| pattern.segments == segments) {
                Some(pattern) => pattern.endpoints.push(endpoint),
                None => patterns.push(Pattern { segments, endpoints: vec![endpoint] }),
            }
        }
        patterns.sort_by(|a, b| a.segments.cmp(&b.segments));
        patterns
    })
}

fn segment(part: &'static str) -> Segment {
    match part.strip_prefix('{').and_then(|part| part.strip_suffix('}')) {
        None => Segment::Literal(part),
        Some(name) => match name.strip_suffix('*') {
            None => Segment::Parameter(name),
            Some(name) => Segment::Rest(name),
        },
    }
}

/// The values of a pattern's parameters, if the path matches it.
fn matched(pattern: &[Segment], path: &[String]) -> Option<Parameters> {
    if !matches(pattern, path) {
        return None;
    }
    let mut parameters = Parameters::default();
    for (index, segment) in pattern.iter().enumerate() {
        match segment {
            Segment::Literal(_) => {}
            Segment::Parameter(name) => parameters.push(name, path[index].clone()),
            Segment::Rest(name) => parameters.push(name, path[index..].join("/")),
        }
    }
    Some(parameters)
}

/// Whether a path matches a pattern: most don't, so nothing is allocated yet.
fn matches(pattern: &[Segment], path: &[String]) -> bool {
    let (single, is_long_enough) = match pattern.split_last() {
        Some((Segment::Rest(_), single)) => (single, path.len() > single.len()),
        _ => (pattern, path.len() == pattern.len()),
    };
    let differs = |(segment, part): (&Segment, &String)| matches!(segment, Segment::Literal(text) if part != text);
    is_long_enough && !single.iter().zip(path).any(differs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::segments;

    fn matched_path(method: Method, path: &str) -> String {
        match find(&method, &segments(path).unwrap()) {
            RouteMatch::Route(endpoint, _) => endpoint.route.path.to_owned(),
            RouteMatch::MethodNotAllowed(methods) => methods,
            RouteMatch::NotFound => String::new(),
        }
    }

    #[test]
    fn queries_end_with_their_clients_and_writes_do_not() {
        let only_reads = |method: Method, path: &str| match find(&method, &segments(path).unwrap()) {
            RouteMatch::Route(endpoint, _) => endpoint.route.only_reads(),
            _ => panic!("no route {method} {path}"),
        };
        for path in ["_find", "_aggregate", "_prepared/abc", "_design/d/_view/v", "_design/d/_list/l/v"] {
            assert!(only_reads(Method::POST, &format!("/db/{path}")), "{path}");
        }
        assert!(!only_reads(Method::DELETE, "/db/_prepared/abc"));
        assert!(!only_reads(Method::POST, "/db/_bulk_docs") && !only_reads(Method::PUT, "/db/doc"));
    }

    #[test]
    fn routes_that_can_return_events_are_streamed() {
        let of_events = |endpoint: &&Endpoint| {
            let media = endpoint.operation.responses.iter().flatten();
            media.into_iter().any(|media| media.kind == "text/event-stream")
        };
        let paths = |endpoints: Vec<&Endpoint>| {
            endpoints.iter().map(|endpoint| (endpoint.route.method.clone(), endpoint.route.path)).collect::<Vec<_>>()
        };
        let streamed = paths(endpoints().iter().filter(|endpoint| endpoint.is_streamed()).collect());
        assert_eq!(streamed, paths(endpoints().iter().filter(of_events).collect()));
        assert!(streamed.len() >= 6 && !streamed.iter().any(|(_, path)| path.ends_with("_find")), "{streamed:?}");
    }

    #[test]
    fn literals_win_over_parameters() {
        assert_eq!(matched_path(Method::GET, "/"), "/");
        assert_eq!(matched_path(Method::HEAD, "/_up"), "/_up");
        assert_eq!(matched_path(Method::GET, "/db/"), "/{db}");
        assert_eq!(matched_path(Method::PATCH, "/_up"), "GET,HEAD");
    }

    #[test]
    fn every_route_matches_its_own_path() {
        for endpoint in endpoints() {
            let path = endpoint.route.path.replace(['{', '}', '*'], "");
            match find(&endpoint.route.method, &segments(&path).unwrap()) {
                RouteMatch::Route(found, _) => {
                    assert_eq!((found.route.path, &found.route.method), (endpoint.route.path, &endpoint.route.method))
                }
                _ => panic!("{} {} is not reached", endpoint.route.method, endpoint.route.path),
            }
        }
    }
}
