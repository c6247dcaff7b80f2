//! MQTT-style patterns over document paths, and the matching paths that a change of a document affects.
//!
//! A path's levels are the names from the document down: fields by name, array elements by position from 0. The path
//! `_id` continues with the parts of the id between slashes, so `_id/orders/+` matches every document with an id like
//! `orders/17`. In a pattern, `+` matches any one level; `#`, which must be the last level, matches the value there and
//! everything within it. A backslash escapes a slash, a plus, a number sign or a backslash.

use hashbrown::HashMap;

use crate::query::{Clue, Clues, Selector, any_of, field};
use crate::value::{Kind, Packed, PackedArray, PackedObject, PackedValue, Path, array_position};
use crate::{Error, Result};

/// A set of patterns; a path matches if any of them matches.
#[derive(Debug, Clone)]
pub(in crate::changes) struct Patterns {
    patterns: Vec<Pattern>,
    clues: Vec<Clues>,
}

#[derive(Debug, Clone)]
struct Pattern {
    /// Whether the levels are those of the id.
    is_id: bool,
    levels: Vec<Level>,
}

#[derive(Debug, Clone, PartialEq)]
enum Level {
    Name(String),
    /// `+`
    Any,
    /// `#`, the last.
    Rest,
}

/// A path whose value changed. See [`PathSubscription`](crate::PathSubscription) for an example.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum PathEvent {
    /// The path had no value before.
    Added(String),
    /// The path had another value before.
    Changed(String),
    /// The path no longer has a value.
    Removed(String),
}

impl PathEvent {
    /// The path in pattern syntax, with backslash escapes where needed.
    pub fn path(&self) -> &str {
        match self {
            PathEvent::Added(path) | PathEvent::Changed(path) | PathEvent::Removed(path) => path,
        }
    }
}

/// Maximum number of patterns in a subscription, and of levels in a pattern.
const PATTERNS_MAX: usize = 1_000;
const LEVELS_MAX: usize = 128;

impl Patterns {
    /// Parses patterns.
    ///
    /// # Errors
    /// `Invalid`, naming the malformed pattern.
    pub(in crate::changes) fn parse<P: AsRef<str>>(patterns: impl IntoIterator<Item = P>) -> Result<Self> {
        let patterns: Vec<Pattern> =
            patterns.into_iter().map(|text| Pattern::parse(text.as_ref())).collect::<Result<_>>()?;
        if patterns.is_empty() || patterns.len() > PATTERNS_MAX {
            return Err(Error::invalid(format!("a subscription has 1 to {PATTERNS_MAX} patterns"))
                .with_hint("\"#\" is every path of every document"));
        }
        let clues: Option<Clues> = patterns.iter().map(Pattern::clue).collect();
        Ok(Patterns { patterns, clues: clues.into_iter().collect() })
    }

    /// Parses patterns of topics, which have levels as ids do. They are compared by [`Patterns::may_match_id`].
    ///
    /// # Errors
    /// As [`Patterns::parse`].
    pub(super) fn parse_topics<P: AsRef<str>>(patterns: impl IntoIterator<Item = P>) -> Result<Self> {
        Self::parse(patterns.into_iter().map(|pattern| format!("_id/{}", pattern.as_ref())))
    }

    /// Conditions of which a document fulfills at least one, before or after a change, if a pattern can match.
    pub(super) fn clues(&self) -> &[Clues] {
        &self.clues
    }

    /// Whether a document with this id can match, whatever its content.
    pub(super) fn may_match_id(&self, id: &str) -> bool {
        self.patterns.iter().any(|pattern| !pattern.is_id || pattern.matches_id(id))
    }

    /// Whether a document with this id and body has a value at a matching path. The body of a deletion counts, too.
    ///
    /// # Errors
    /// `Corrupt` if the body's bytes are damaged.
    pub(in crate::changes) fn matches(&self, id: &str, body: PackedValue<'_>) -> Result<bool> {
        if self.patterns.iter().any(|pattern| pattern.is_id && pattern.matches_id(id)) {
            return Ok(true);
        }
        Ok(!self.changed_paths(id, None, Some(body), 1)?.is_empty())
    }

    /// Returns a selector that matches every document with a value at a matching path, and others; `None` if a pattern
    /// matches all documents.
    pub(in crate::changes) fn selector(&self) -> Option<Selector> {
        let selectors: Option<Vec<Selector>> = self.patterns.iter().map(Pattern::selector).collect();
        selectors.map(any_of)
    }

    /// Returns the affected paths, each once, in order; at most about `limit` of each pattern.
    ///
    /// # Errors
    /// `Corrupt` if the documents' bytes are damaged.
    pub(super) fn changed_paths(
        &self,
        id: &str,
        old: Option<PackedValue<'_>>,
        new: Option<PackedValue<'_>>,
        limit: usize,
    ) -> Result<Vec<PathEvent>> {
        let mut diff = PathDiff { events: Vec::new(), limit };
        for pattern in &self.patterns {
            diff.limit = diff.events.len() + limit;
            match pattern.is_id {
                true if pattern.matches_id(id) => diff.record(&Trail::Start("_id"), old.is_some(), new.is_some()),
                true => {}
                false => diff.compare(&pattern.levels, &Trail::Root, old, new)?,
            }
        }
        diff.events.sort_unstable();
        diff.events.dedup();
        Ok(diff.events)
    }
}

impl Pattern {
    fn parse(text: &str) -> Result<Self> {
        let wrong = |what: &str| {
            Error::invalid(format!("the pattern {text:?} {what}"))
                .with_hint("write for example orders/+/status, orders/#, or _id/orders/+")
        };
        let mut levels = Vec::new();
        let (mut name, mut is_plain) = (String::new(), true);
        let mut characters = text.chars();
        loop {
            let next = characters.next();
            match next {
                Some('\\') => {
                    name.push(characters.next().ok_or_else(|| wrong("ends in a backslash"))?);
                    is_plain = false;
                }
                Some('/') | None => {
                    let name = std::mem::take(&mut name);
                    levels.push(match name.as_str() {
                        "+" if is_plain => Level::Any,
                        "#" if is_plain => Level::Rest,
                        _ => Level::Name(name),
                    });
                    is_plain = true;
                }
                Some(other) => name.push(other),
            }
            if next.is_none() {
                break;
            }
        }
        if levels.iter().rev().skip(1).any(|level| *level == Level::Rest) {
            return Err(wrong("goes on after #"));
        }
        if levels.len() > LEVELS_MAX {
            return Err(wrong("has too many levels"));
        }
        let is_id = levels[0] == Level::Name("_id".to_owned());
        if is_id {
            levels.remove(0);
        }
        Ok(Pattern { is_id, levels })
    }

    fn matches_id(&self, id: &str) -> bool {
        let mut parts = id.split('/');
        for level in &self.levels {
            match (level, parts.next()) {
                (Level::Rest, _) => return true,
                (Level::Any, Some(_)) => {}
                (Level::Name(name), Some(part)) if name == part => {}
                _ => return false,
            }
        }
        parts.next().is_none()
    }

    /// The names before the first level that is a wildcard.
    fn leading_names(&self) -> impl Iterator<Item = &str> {
        self.levels.iter().map_while(|level| match level {
            Level::Name(name) => Some(name.as_str()),
            _ => None,
        })
    }

    /// The path that every document has that the pattern matches; `None` if there is none.
    fn leading_path(&self) -> Option<Path> {
        // A `Path` can't contain empty names.
        Path::new(self.leading_names().take_while(|name| !name.is_empty())).ok()
    }

    /// A condition that holds for every document the pattern matches; `None` if there is none.
    fn clue(&self) -> Option<Clue> {
        if self.is_id {
            let names: Vec<&str> = self.leading_names().collect();
            return (names.len() == self.levels.len()).then(|| Clue::Id(names.join("/")));
        }
        self.leading_path().map(Clue::Present)
    }

    /// As [`Pattern::clue`], as a selector.
    fn selector(&self) -> Option<Selector> {
        if !self.is_id {
            return self.leading_path().map(|path| field(path.to_string()).exists());
        }
        // A range of ids is not read from the index.
        let names: Vec<&str> = self.leading_names().collect();
        (names.len() == self.levels.len()).then(|| field("_id").eq(names.join("/")))
    }
}

/// The path from the document to a value.
enum Trail<'a> {
    Root,
    Start(&'a str),
    Child(&'a Trail<'a>, &'a str),
}

impl Trail<'_> {
    fn write(&self, out: &mut String) {
        let (parent, name) = match self {
            Trail::Root => return,
            Trail::Start(name) => return out.push_str(name),
            Trail::Child(parent, name) => (parent, *name),
        };
        parent.write(out);
        if !matches!(parent, Trail::Root) {
            out.push('/');
        }
        if matches!(name, "+" | "#") {
            out.push('\\');
        }
        for character in name.chars() {
            if matches!(character, '/' | '\\') {
                out.push('\\');
            }
            out.push(character);
        }
    }
}

/// The path events found so far.
struct PathDiff {
    events: Vec<PathEvent>,
    limit: usize,
}

type OptionalValue<'a> = Option<PackedValue<'a>>;

impl PathDiff {
    fn is_full(&self) -> bool {
        self.events.len() >= self.limit
    }

    fn record(&mut self, trail: &Trail<'_>, was: bool, is: bool) {
        let mut path = String::new();
        trail.write(&mut path);
        match (was, is) {
            (false, true) => self.events.push(PathEvent::Added(path)),
            (true, true) => self.events.push(PathEvent::Changed(path)),
            (true, false) => self.events.push(PathEvent::Removed(path)),
            (false, false) => {}
        }
    }

    fn compare(
        &mut self,
        levels: &[Level],
        trail: &Trail<'_>,
        old: OptionalValue<'_>,
        new: OptionalValue<'_>,
    ) -> Result<()> {
        if (old.is_none() && new.is_none()) || self.is_full() {
            return Ok(());
        }
        if let (Some(old), Some(new)) = (old, new)
            && old.bytes() == new.bytes()
        {
            return Ok(());
        }
        match levels.split_first() {
            None => {
                let is_equal = matches!((old, new), (Some(old), Some(new)) if equal_values(old, new)?);
                if !is_equal {
                    self.record(trail, old.is_some(), new.is_some());
                }
                Ok(())
            }
            Some((Level::Rest, _)) => self.compare_rest(levels, trail, old, new),
            Some((Level::Any, rest)) => self.compare_children(rest, trail, old, new),
            Some((Level::Name(name), rest)) => {
                let (old, new) = (child(old, name)?, child(new, name)?);
                self.compare(rest, &Trail::Child(trail, name), old, new)
            }
        }
    }

    /// `#`: an empty container or scalar is reported itself; a container with content is reported through its children.
    fn compare_rest(
        &mut self,
        levels: &[Level],
        trail: &Trail<'_>,
        old: OptionalValue<'_>,
        new: OptionalValue<'_>,
    ) -> Result<()> {
        let (was_leaf, is_leaf) = (is_leaf(old)?, is_leaf(new)?);
        let is_reported = match (old, new) {
            (Some(old), Some(new)) if was_leaf && is_leaf => !equal_values(old, new)?,
            // From {} to {"a": 1}, only the content is new.
            (Some(old), Some(new)) => (was_leaf || is_leaf) && old.kind() != new.kind(),
            _ => was_leaf || is_leaf,
        };
        if is_reported {
            self.record(trail, old.is_some(), new.is_some());
        }
        self.compare_children(levels, trail, old, new)
    }

    /// Compares each child of either value by name; the name of an array element is its position.
    fn compare_children(
        &mut self,
        levels: &[Level],
        trail: &Trail<'_>,
        old: OptionalValue<'_>,
        new: OptionalValue<'_>,
    ) -> Result<()> {
        let (old, new) = (Children::new(old)?, Children::new(new)?);
        old.each(|name, child| {
            self.compare(levels, &Trail::Child(trail, name), Some(child), new.get(name)?)?;
            Ok(!self.is_full())
        })?;
        new.each(|name, child| {
            if old.get(name)?.is_none() {
                self.compare(levels, &Trail::Child(trail, name), None, Some(child))?;
            }
            Ok(!self.is_full())
        })
    }
}

/// The children of a value, by name.
enum Children<'a> {
    None,
    Elements(PackedArray<'a>),
    Fields(PackedObject<'a>),
    /// Fields of an object without a shape; a name lookup would have to search them each time.
    ByName(PackedObject<'a>, HashMap<&'a str, PackedValue<'a>>),
}

impl<'a> Children<'a> {
    fn new(value: OptionalValue<'a>) -> Result<Self> {
        Ok(match value.map(PackedValue::read).transpose()? {
            Some(Packed::Array(elements)) => Children::Elements(elements),
            Some(Packed::Object(object)) if object.shape().is_some() => Children::Fields(object),
            Some(Packed::Object(object)) => Children::ByName(object, object.iter().collect::<Result<_>>()?),
            _ => Children::None,
        })
    }

    fn get(&self, name: &str) -> Result<OptionalValue<'a>> {
        match self {
            Children::None => Ok(None),
            Children::Elements(elements) => array_position(name).map_or(Ok(None), |position| elements.get(position)),
            Children::Fields(object) => object.get(name),
            Children::ByName(_, fields) => Ok(fields.get(name).copied()),
        }
    }

    /// Calls `visit` for each child until it returns false.
    fn each(&self, mut visit: impl FnMut(&str, PackedValue<'a>) -> Result<bool>) -> Result<()> {
        match self {
            Children::None => {}
            Children::Elements(elements) => {
                for (position, element) in elements.iter().enumerate() {
                    if !visit(itoa::Buffer::new().format(position), element?)? {
                        break;
                    }
                }
            }
            Children::Fields(object) | Children::ByName(object, _) => {
                for field in object.iter() {
                    let (name, value) = field?;
                    if !visit(name, value)? {
                        break;
                    }
                }
            }
        }
        Ok(())
    }

    fn len(&self) -> usize {
        match self {
            Children::None => 0,
            Children::Elements(elements) => elements.len(),
            Children::Fields(object) | Children::ByName(object, _) => object.len(),
        }
    }
}

fn child<'a>(value: OptionalValue<'a>, name: &str) -> Result<OptionalValue<'a>> {
    value.map_or(Ok(None), |value| value.child(name))
}

/// Whether a value has no children; false if there is no value.
fn is_leaf(value: OptionalValue<'_>) -> Result<bool> {
    Ok(match value.map(PackedValue::read).transpose()? {
        None => false,
        Some(Packed::Array(elements)) => elements.len() == 0,
        Some(Packed::Object(object)) => object.len() == 0,
        Some(_) => true,
    })
}

/// Whether two values are equal irrespective of field order. Equal values may be packed differently.
fn equal_values(one: PackedValue<'_>, other: PackedValue<'_>) -> Result<bool> {
    if one.bytes() == other.bytes() {
        return Ok(true);
    }
    if one.kind() != other.kind() || !matches!(one.kind(), Kind::Array | Kind::Object) {
        return Ok(false);
    }
    let (one, other) = (Children::new(Some(one))?, Children::new(Some(other))?);
    let mut is_equal = one.len() == other.len();
    if is_equal {
        one.each(|name, child| {
            is_equal = match other.get(name)? {
                Some(counterpart) => equal_values(child, counterpart)?,
                None => false,
            };
            Ok(is_equal)
        })?;
    }
    Ok(is_equal)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::value::{Shapes, Value, pack};

    fn changed_paths(patterns: &[&str], id: &str, old: &str, new: &str) -> String {
        let shapes = Shapes::new();
        let packed = |text: &str| {
            let value = (!text.is_empty()).then(|| Value::parse(text.as_bytes()).unwrap())?;
            let mut bytes = Vec::new();
            pack(&value, &shapes, &mut bytes).unwrap();
            Some(bytes)
        };
        let (old, new) = (packed(old), packed(new));
        let old = old.as_deref().map(|bytes| PackedValue::new(bytes, &shapes).unwrap());
        let new = new.as_deref().map(|bytes| PackedValue::new(bytes, &shapes).unwrap());
        let events = Patterns::parse(patterns).unwrap().changed_paths(id, old, new, 1_000).unwrap();
        let shown = events.iter().map(|event| match event {
            PathEvent::Added(path) => format!("+{path}"),
            PathEvent::Changed(path) => format!("~{path}"),
            PathEvent::Removed(path) => format!("-{path}"),
        });
        shown.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn pattern_matches_paths_of_changed_values() {
        let (old, new) =
            (r#"{"orders": {"1": {"status": "new", "n": 1}}}"#, r#"{"orders": {"1": {"status": "paid", "n": 1}}}"#);
        for pattern in ["orders/1/status", "orders/+/status", "+/+/+", "orders/#", "#", "orders/1/status/#"] {
            assert_eq!(changed_paths(&[pattern], "d", old, new), "~orders/1/status", "{pattern}");
        }
        assert_eq!(changed_paths(&["orders/+", "orders"], "d", old, new), "~orders ~orders/1");
        for pattern in ["orders/2/status", "orders/+/n", "+", "status", "orders/+/status/+", "_id/orders"] {
            let expected = if pattern == "+" { "~orders" } else { "" };
            assert_eq!(changed_paths(&[pattern], "d", old, new), expected, "{pattern}");
        }
    }

    #[test]
    fn added_and_removed_values_are_reported() {
        assert_eq!(changed_paths(&["#"], "d", "", r#"{"a": {"b": 1, "c": []}}"#), "+a/b +a/c");
        assert_eq!(changed_paths(&["#"], "d", r#"{"a": {"b": 1}}"#, ""), "-a/b");
        assert_eq!(changed_paths(&["a"], "d", "", r#"{"a": {"b": 1}}"#), "+a");
        assert_eq!(changed_paths(&["#"], "d", r#"{"a": 1}"#, r#"{"a": {"b": 1}}"#), "+a/b ~a");
        assert_eq!(changed_paths(&["#"], "d", r#"{"a": {}}"#, r#"{"a": {"b": 1}}"#), "+a/b");
        assert_eq!(changed_paths(&["#"], "d", r#"{"a": [1, 2]}"#, r#"{"a": [1, 3, 4]}"#), "+a/2 ~a/1");
        assert_eq!(changed_paths(&["a/+"], "d", r#"{"a": [1, 2]}"#, r#"{"a": {"0": 1, "1": 3}}"#), "~a/1");
        assert_eq!(changed_paths(&["a", "#"], "d", r#"{"a": {"b": 1, "c": 2}}"#, r#"{"a": {"c": 2, "b": 1}}"#), "");
        assert_eq!(changed_paths(&["a"], "d", r#"{"a": 1}"#, r#"{"a": 1.0}"#), "~a");
    }

    #[test]
    fn id_patterns_match_parts_of_the_id() {
        assert_eq!(changed_paths(&["_id/orders/+"], "orders/17", "", "{}"), "+_id");
        assert_eq!(changed_paths(&["_id/#"], "orders/17", "{}", r#"{"a": 1}"#), "~_id");
        assert_eq!(changed_paths(&["_id/orders/17"], "orders/17", "{}", ""), "-_id");
        assert_eq!(changed_paths(&["_id/orders", "_id/orders/+/+", "_id"], "orders/17", "", "{}"), "");
    }

    #[test]
    fn special_characters_in_names_are_escaped() {
        let new = r##"{"a/b": 1, "+": 2, "#": 3, "": 4, "\\": 5}"##;
        assert_eq!(changed_paths(&["#"], "d", "", new), r"+ +\# +\+ +\\ +a\/b");
        for path in [r"\#", r"\+", r"\\", r"a\/b", ""] {
            assert_eq!(changed_paths(&[path], "d", "", new), format!("+{path}"));
        }
    }

    #[test]
    fn malformed_patterns_are_rejected() {
        for pattern in ["a/#/b", "#/+", r"a\"] {
            assert_eq!(Patterns::parse([pattern]).unwrap_err().kind(), crate::ErrorKind::Invalid);
        }
        assert!(Patterns::parse([""; 0]).is_err());
        assert!(Patterns::parse(["a/".repeat(200)]).is_err());
    }
}
