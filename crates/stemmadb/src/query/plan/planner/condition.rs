//! Planning of one condition that is not negated, at a path in the dictionary.

use super::{Planner, Predicate, Reach, equal, equal_any, presence, present, range, within};
use crate::index::PathNumber;
use crate::query::language::interval::{KeyRange, cut_region};
use crate::query::language::normal::Check;
use crate::query::language::operators::Pattern;
use crate::query::plan::{Node, ValueTest};
use crate::value::collate::key;
use crate::value::{Kind, Value};

/// The number of terms that bound equality with an array or object; further terms filter less and less.
const CONTAINER_TERMS_MAX: usize = 8;

impl Planner<'_> {
    /// Documents with a value at `path` that meets `predicate`; `names` are the fields of the path.
    pub(super) fn positive(
        &self,
        path: Option<PathNumber>,
        reach: Reach<'_>,
        names: &[&str],
        predicate: &Predicate<'_>,
    ) -> Node {
        match predicate {
            Predicate::Within(interval) => within(path, reach, interval),
            Predicate::WithinAny(intervals) => {
                Node::union(intervals.iter().map(|interval| within(path, reach, interval)))
            }
            Predicate::Container(value) => self.container(path, reach, names, value),
            Predicate::Check(check) => self.check(path, reach, names, check),
        }
    }

    pub(super) fn check(&self, path: Option<PathNumber>, reach: Reach<'_>, names: &[&str], check: &Check) -> Node {
        match check {
            // Comparisons are planned as intervals.
            Check::Compare(..) | Check::Exists => match reach {
                Reach::Straight => present(path),
                Reach::Crossing(anchor) => Node::check(anchor.clone()),
            },
            Check::Type(kind) => of_kind(path, reach, *kind),
            Check::OneOf(values) => {
                let (keys, cut_keys, _) = self.keys(values);
                Node::union([equal_any(path, keys), Node::check(equal_any(path, cut_keys))])
            }
            Check::In(values) => self.listed(path, reach, values),
            Check::BeginsWith(prefix) => self.begins_with(path, prefix),
            Check::Regex(pattern) => self.matching_strings(path, pattern),
            Check::Modulo { divisor, remainder } => match path {
                Some(path) => Node::Matching {
                    path,
                    range: KeyRange::of_kind(Kind::Number),
                    test: ValueTest::Modulo { divisor: *divisor, remainder: *remainder },
                },
                None => Node::Empty,
            },
            Check::Size(_) => Node::check(arrays(path, reach)),
            Check::All(values) => self.all_elements(path, reach, values),
            Check::ElemMatch(inner) => self.in_array(inner, path, arrays(path, reach), names),
            Check::AllMatch(inner) => Node::check(self.in_array(inner, path, arrays(path, reach), names)),
            Check::KeyMapMatch(_) => match reach {
                Reach::Straight => Node::check(presence(path, Kind::Object)),
                Reach::Crossing(anchor) => Node::check(anchor.clone()),
            },
        }
    }

    /// `$in`: the value, or an element of it, is listed.
    fn listed(&self, path: Option<PathNumber>, reach: Reach<'_>, values: &[Value]) -> Node {
        let (keys, ..) = self.keys(values);
        Node::union([equal_any(path, keys), self.listed_but_scalars(path, reach, values)])
    }

    /// The part of `$in` that excludes values which are themselves listed scalars with uncut keys.
    pub(super) fn listed_but_scalars(&self, path: Option<PathNumber>, reach: Reach<'_>, values: &[Value]) -> Node {
        let (keys, cut_keys, has_containers) = self.keys(values);
        let elements = path.and_then(|path| self.catalog.element(path));
        let containers = match (has_containers, reach) {
            (false, _) => Node::Empty,
            // A listed object can be the value itself or an element; a listed array can only be an element.
            (true, Reach::Straight) => Node::union([presence(path, Kind::Array), presence(path, Kind::Object)]),
            (true, Reach::Crossing(anchor)) => anchor.clone(),
        };
        Node::union([
            equal_any(elements, keys),
            Node::check(equal_any(path, cut_keys.clone())),
            Node::check(equal_any(elements, cut_keys)),
            Node::check(containers),
        ])
    }

    /// `$all`: each listed value is an element. Within one array these are elements of that array; in several arrays
    /// they may be elements of different ones.
    fn all_elements(&self, path: Option<PathNumber>, reach: Reach<'_>, values: &[Value]) -> Node {
        if values.is_empty() {
            return Node::Empty;
        }
        if let [Value::Array(_)] = values {
            return Node::check(arrays(path, reach));
        }
        let elements = path.and_then(|path| self.catalog.element(path));
        let (keys, cut_keys, has_containers) = self.keys(values);
        let mut nodes: Vec<Node> = keys.into_iter().map(|key| equal(elements, key)).collect();
        nodes.extend(cut_keys.into_iter().map(|key| Node::check(equal(elements, key))));
        if has_containers {
            nodes.push(Node::check(arrays(path, reach)));
        }
        let several = nodes.len() > 1;
        let node = Node::intersection(nodes);
        match reach {
            Reach::Crossing(_) if several => Node::check(node),
            _ => node,
        }
    }

    fn begins_with(&self, path: Option<PathNumber>, prefix: &str) -> Node {
        if prefix.len() <= self.text_bytes_max() {
            let (lower, upper) = key::prefix_range(prefix);
            return range(path, KeyRange { lower, upper });
        }
        // Only longer strings have this prefix, and their keys are all cut.
        let mut cut_key = Vec::new();
        key::encode_string_bounded(prefix, self.text_bytes_max(), &mut cut_key);
        Node::check(range(path, cut_region(&cut_key)))
    }

    /// Strings in which a pattern is found: tests each distinct string that begins with the pattern's literal prefix.
    fn matching_strings(&self, path: Option<PathNumber>, pattern: &Pattern) -> Node {
        let Some(path) = path else { return Node::Empty };
        let range = match pattern.literal_prefix() {
            Some(prefix) => {
                // A prefix longer than the bound would miss the keys of cut strings.
                let length = prefix.floor_char_boundary(self.text_bytes_max());
                let (lower, upper) = key::prefix_range(&prefix[..length]);
                KeyRange { lower, upper }
            }
            None => KeyRange::of_kind(Kind::String),
        };
        Node::Matching { path, range, test: ValueTest::Regex(pattern.clone()) }
    }

    /// Equality with an array or object, bounded by the terms that it contains.
    fn container(&self, path: Option<PathNumber>, reach: Reach<'_>, names: &[&str], value: &Value) -> Node {
        let whole = match reach {
            Reach::Straight => presence(path, value.kind()),
            Reach::Crossing(anchor) => anchor.clone(),
        };
        let mut nodes = vec![whole];
        let mut names = names.to_vec();
        self.container_terms(path, value, &mut names, &mut nodes);
        Node::check(Node::intersection(nodes))
    }

    fn container_terms<'v>(
        &self,
        path: Option<PathNumber>,
        value: &'v Value,
        names: &mut Vec<&'v str>,
        nodes: &mut Vec<Node>,
    ) {
        if nodes.len() > CONTAINER_TERMS_MAX || !self.catalog.covers(names) {
            return;
        }
        match value {
            Value::Array(values) => {
                let elements = path.and_then(|path| self.catalog.element(path));
                for value in values.iter().take(CONTAINER_TERMS_MAX) {
                    self.container_terms(elements, value, names, nodes);
                }
            }
            Value::Object(object) => {
                for (name, value) in object.iter().take(CONTAINER_TERMS_MAX) {
                    names.push(name);
                    let child = path.and_then(|path| self.catalog.field(path, name));
                    self.container_terms(child, value, names, nodes);
                    names.pop();
                }
            }
            scalar => {
                let mut key = Vec::new();
                self.encode_scalar(scalar, &mut key);
                nodes.push(equal(path, key));
            }
        }
    }

    /// Returns the keys of the listed scalars, separately those of cut strings, and whether arrays or objects are
    /// listed.
    pub(super) fn keys(&self, values: &[Value]) -> (Vec<Vec<u8>>, Vec<Vec<u8>>, bool) {
        let (mut keys, mut cut_keys, mut has_containers) = (Vec::new(), Vec::new(), false);
        for value in values {
            let mut key = Vec::new();
            if matches!(value, Value::Array(_) | Value::Object(_)) {
                has_containers = true;
            } else if self.encode_scalar(value, &mut key) {
                cut_keys.push(key);
            } else {
                keys.push(key);
            }
        }
        (keys, cut_keys, has_containers)
    }

    /// Appends a scalar's index key; returns whether it was cut.
    fn encode_scalar(&self, value: &Value, out: &mut Vec<u8>) -> bool {
        match value {
            Value::String(text) => key::encode_string_bounded(text, self.text_bytes_max(), out),
            other => {
                key::encode(other, out);
                false
            }
        }
    }
}

/// Documents that may have an array at a path.
fn arrays(path: Option<PathNumber>, reach: Reach<'_>) -> Node {
    match reach {
        Reach::Straight => presence(path, Kind::Array),
        Reach::Crossing(anchor) => anchor.clone(),
    }
}

fn of_kind(path: Option<PathNumber>, reach: Reach<'_>, kind: Kind) -> Node {
    match (reach, kind) {
        (Reach::Straight, _) => presence(path, kind),
        (Reach::Crossing(anchor), Kind::Array | Kind::Object) => Node::check(anchor.clone()),
        (Reach::Crossing(_), _) => range(path, KeyRange::of_kind(kind)),
    }
}
