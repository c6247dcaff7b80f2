//! Finding the route of a method and a path.
//!
//! Of the patterns that match, the one wins that has a literal where another has a parameter, looked at from the left.

use std::sync::OnceLock;

use hyper::Method;

use super::Endpoint;
use super::table::endpoints;
use crate::http::Parameters;

/// What was found for a request.
pub(crate) enum RouteMatch {
    /// Its route, and what its parameters stand for.
    Route(&'static Endpoint, Parameters),
    /// The path is known, with these methods only.
    Methods(String),
    /// Nothing is there.
    Nothing,
}

/// One segment of a pattern. Their order is that of their claims.
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

/// The route of a request.
pub(crate) fn find(method: &Method, path: &[String]) -> RouteMatch {
    // Who asks for the head alone is answered as if they asked for all; the connection leaves the body out.
    let method = if method == Method::HEAD { &Method::GET } else { method };
    let Some((pattern, parameters)) =
        patterns().iter().find_map(|pattern| Some((pattern, matched(&pattern.segments, path)?)))
    else {
        return RouteMatch::Nothing;
    };
    match pattern.endpoints.iter().find(|endpoint| endpoint.route.method == *method) {
        Some(endpoint) => RouteMatch::Route(endpoint, parameters),
        None => RouteMatch::Methods(methods(pattern)),
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

/// All patterns, those with the better claims first.
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

fn matched(pattern: &[Segment], path: &[String]) -> Option<Parameters> {
    let mut parameters = Parameters::default();
    let mut rest = path;
    for segment in pattern {
        let (first, others) = rest.split_first()?;
        match segment {
            Segment::Literal(text) if first == text => rest = others,
            Segment::Literal(_) => return None,
            Segment::Parameter(name) => {
                parameters.push(name, first.clone());
                rest = others;
            }
            Segment::Rest(name) => {
                parameters.push(name, rest.join("/"));
                rest = &[];
            }
        }
    }
    rest.is_empty().then_some(parameters)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::segments;

    fn path_of(method: Method, path: &str) -> String {
        match find(&method, &segments(path).unwrap()) {
            RouteMatch::Route(endpoint, _) => endpoint.route.path.to_owned(),
            RouteMatch::Methods(methods) => methods,
            RouteMatch::Nothing => String::new(),
        }
    }

    #[test]
    fn literals_win_over_parameters() {
        assert_eq!(path_of(Method::GET, "/"), "/");
        assert_eq!(path_of(Method::HEAD, "/_up"), "/_up");
        assert_eq!(path_of(Method::GET, "/db/"), "/{db}");
        assert_eq!(path_of(Method::PATCH, "/_up"), "GET,HEAD");
    }

    #[test]
    fn every_route_is_reached_by_its_own_path() {
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
