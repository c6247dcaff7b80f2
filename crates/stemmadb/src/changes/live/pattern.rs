//! Patterns over paths, as MQTT writes them over topics, and what of them a change of a document touches.
//!
//! A path's levels are the names from the document down, fields by name and array elements by position from 0. The path `_id`
//! goes on with the parts of the id between slashes, so `_id/orders/+` is every document of an id like `orders/17`. In a
//! pattern `+` is any one level, and `#`, which is the last, is the value there and everything within it. A backslash takes the
//! meaning from a slash, a plus, a number sign or a backslash.

use hashbrown::HashMap;

use crate::query::{Clue, Clues};
use crate::value::{Kind, Packed, PackedArray, PackedObject, PackedValue, Path, array_position};
use crate::{Error, Result};

/// Some patterns; what any of them matches is meant.
#[derive(Debug, Clone)]
pub(super) struct Patterns {
    patterns: Vec<Pattern>,
    clues: Vec<Clues>,
}

#[derive(Debug, Clone)]
struct Pattern {
    /// Whether the levels are of the id.
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

/// A value that is not what it was.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum PathEvent {
    /// There was nothing at this path.
    Added(String),
    /// There was another value at this path.
    Changed(String),
    /// There is nothing at this path any more.
    Removed(String),
}

impl PathEvent {
    /// Where: as in a pattern, with backslashes where they are needed.
    pub fn path(&self) -> &str {
        match self {
            PathEvent::Added(path) | PathEvent::Changed(path) | PathEvent::Removed(path) => path,
        }
    }
}

/// How many patterns one subscription may have, and how many levels a pattern.
const PATTERNS_MAX: usize = 1_000;
const LEVELS_MAX: usize = 128;

impl Patterns {
    /// Reads patterns.
    ///
    /// # Errors
    /// `Invalid`, naming the pattern that is wrong.
    pub(super) fn parse<P: AsRef<str>>(patterns: impl IntoIterator<Item = P>) -> Result<Self> {
        let patterns: Vec<Pattern> =
            patterns.into_iter().map(|text| Pattern::parse(text.as_ref())).collect::<Result<_>>()?;
        if patterns.is_empty() || patterns.len() > PATTERNS_MAX {
            return Err(Error::invalid(format!("a subscription has 1 to {PATTERNS_MAX} patterns"))
                .with_hint("\"#\" is every path of every document"));
        }
        let clues: Option<Clues> = patterns.iter().map(Pattern::clue).collect();
        Ok(Patterns { patterns, clues: clues.into_iter().collect() })
    }

    /// What a document shows, before or after, that a pattern can match.
    pub(super) fn clues(&self) -> &[Clues] {
        &self.clues
    }

    /// Whether a document of this id can be meant, whatever is in it.
    pub(super) fn may_mean(&self, id: &str) -> bool {
        self.patterns.iter().any(|pattern| !pattern.is_id || pattern.means_id(id))
    }

    /// What was touched, each path once, in order; at most about `limit` paths of each pattern.
    ///
    /// # Errors
    /// `Corrupt` if bytes are damaged.
    pub(super) fn touched(
        &self,
        id: &str,
        old: Option<PackedValue<'_>>,
        new: Option<PackedValue<'_>>,
        limit: usize,
    ) -> Result<Vec<PathEvent>> {
        let mut touched = Touched { events: Vec::new(), limit };
        for pattern in &self.patterns {
            touched.limit = touched.events.len() + limit;
            match pattern.is_id {
                true if pattern.means_id(id) => touched.note(&Trail::Start("_id"), old.is_some(), new.is_some()),
                true => {}
                false => touched.compare(&pattern.levels, &Trail::Root, old, new)?,
            }
        }
        touched.events.sort_unstable();
        touched.events.dedup();
        Ok(touched.events)
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

    fn means_id(&self, id: &str) -> bool {
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

    /// Something that is there wherever the pattern matches; none if there is no telling.
    fn clue(&self) -> Option<Clue> {
        let names = self.levels.iter().map_while(|level| match level {
            Level::Name(name) => Some(name.as_str()),
            _ => None,
        });
        if self.is_id {
            let names: Vec<&str> = names.collect();
            return (names.len() == self.levels.len()).then(|| Clue::Id(names.join("/")));
        }
        // A path has no empty names.
        Path::new(names.take_while(|name| !name.is_empty())).ok().map(Clue::Present)
    }
}

/// The way from the document to a value.
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

/// What was found so far.
struct Touched {
    events: Vec<PathEvent>,
    limit: usize,
}

type Maybe<'a> = Option<PackedValue<'a>>;

impl Touched {
    fn is_full(&self) -> bool {
        self.events.len() >= self.limit
    }

    fn note(&mut self, trail: &Trail<'_>, was: bool, is: bool) {
        let mut path = String::new();
        trail.write(&mut path);
        match (was, is) {
            (false, true) => self.events.push(PathEvent::Added(path)),
            (true, true) => self.events.push(PathEvent::Changed(path)),
            (true, false) => self.events.push(PathEvent::Removed(path)),
            (false, false) => {}
        }
    }

    fn compare(&mut self, levels: &[Level], trail: &Trail<'_>, old: Maybe<'_>, new: Maybe<'_>) -> Result<()> {
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
                let is_same = matches!((old, new), (Some(old), Some(new)) if same(old, new)?);
                if !is_same {
                    self.note(trail, old.is_some(), new.is_some());
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

    /// `#`: a value that holds nothing is told itself, one that holds others by them.
    fn compare_rest(&mut self, levels: &[Level], trail: &Trail<'_>, old: Maybe<'_>, new: Maybe<'_>) -> Result<()> {
        let (was_leaf, is_leaf) = (is_leaf(old)?, is_leaf(new)?);
        let is_told = match (old, new) {
            (Some(old), Some(new)) if was_leaf && is_leaf => !same(old, new)?,
            // From {} to {"a": 1}, only what is within is new.
            (Some(old), Some(new)) => (was_leaf || is_leaf) && old.kind() != new.kind(),
            _ => was_leaf || is_leaf,
        };
        if is_told {
            self.note(trail, old.is_some(), new.is_some());
        }
        self.compare_children(levels, trail, old, new)
    }

    /// Each child of one or the other, by name: an element's is its position.
    fn compare_children(&mut self, levels: &[Level], trail: &Trail<'_>, old: Maybe<'_>, new: Maybe<'_>) -> Result<()> {
        let (old, new) = (Children::of(old)?, Children::of(new)?);
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

/// What is within a value, by name.
enum Children<'a> {
    None,
    Elements(PackedArray<'a>),
    Fields(PackedObject<'a>),
    /// Fields of an object that carries its names, which would have to be searched each time.
    ByName(PackedObject<'a>, HashMap<&'a str, PackedValue<'a>>),
}

impl<'a> Children<'a> {
    fn of(value: Maybe<'a>) -> Result<Self> {
        Ok(match value.map(PackedValue::read).transpose()? {
            Some(Packed::Array(elements)) => Children::Elements(elements),
            Some(Packed::Object(object)) if object.shape().is_some() => Children::Fields(object),
            Some(Packed::Object(object)) => Children::ByName(object, object.iter().collect::<Result<_>>()?),
            _ => Children::None,
        })
    }

    fn get(&self, name: &str) -> Result<Maybe<'a>> {
        match self {
            Children::None => Ok(None),
            Children::Elements(elements) => array_position(name).map_or(Ok(None), |position| elements.get(position)),
            Children::Fields(object) => object.get(name),
            Children::ByName(_, fields) => Ok(fields.get(name).copied()),
        }
    }

    /// Visits each child, until `visit` says false.
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

fn child<'a>(value: Maybe<'a>, name: &str) -> Result<Maybe<'a>> {
    value.map_or(Ok(None), |value| value.child(name))
}

/// Whether nothing is within the value; false if there is no value.
fn is_leaf(value: Maybe<'_>) -> Result<bool> {
    Ok(match value.map(PackedValue::read).transpose()? {
        None => false,
        Some(Packed::Array(elements)) => elements.len() == 0,
        Some(Packed::Object(object)) => object.len() == 0,
        Some(_) => true,
    })
}

/// Whether two values are equal, whatever the order of fields: how they are packed may differ all the same.
fn same(one: PackedValue<'_>, other: PackedValue<'_>) -> Result<bool> {
    if one.bytes() == other.bytes() {
        return Ok(true);
    }
    if one.kind() != other.kind() || !matches!(one.kind(), Kind::Array | Kind::Object) {
        return Ok(false);
    }
    let (one, other) = (Children::of(Some(one))?, Children::of(Some(other))?);
    let mut is_same = one.len() == other.len();
    if is_same {
        one.each(|name, child| {
            is_same = match other.get(name)? {
                Some(counterpart) => same(child, counterpart)?,
                None => false,
            };
            Ok(is_same)
        })?;
    }
    Ok(is_same)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::value::{Shapes, Value, pack};

    fn touched(patterns: &[&str], id: &str, old: &str, new: &str) -> String {
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
        let events = Patterns::parse(patterns).unwrap().touched(id, old, new, 1_000).unwrap();
        let shown = events.iter().map(|event| match event {
            PathEvent::Added(path) => format!("+{path}"),
            PathEvent::Changed(path) => format!("~{path}"),
            PathEvent::Removed(path) => format!("-{path}"),
        });
        shown.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_pattern_matches_the_path_of_a_value() {
        let (old, new) =
            (r#"{"orders": {"1": {"status": "new", "n": 1}}}"#, r#"{"orders": {"1": {"status": "paid", "n": 1}}}"#);
        for pattern in ["orders/1/status", "orders/+/status", "+/+/+", "orders/#", "#", "orders/1/status/#"] {
            assert_eq!(touched(&[pattern], "d", old, new), "~orders/1/status", "{pattern}");
        }
        assert_eq!(touched(&["orders/+", "orders"], "d", old, new), "~orders ~orders/1");
        for pattern in ["orders/2/status", "orders/+/n", "+", "status", "orders/+/status/+", "_id/orders"] {
            let expected = if pattern == "+" { "~orders" } else { "" };
            assert_eq!(touched(&[pattern], "d", old, new), expected, "{pattern}");
        }
    }

    #[test]
    fn values_come_and_go() {
        assert_eq!(touched(&["#"], "d", "", r#"{"a": {"b": 1, "c": []}}"#), "+a/b +a/c");
        assert_eq!(touched(&["#"], "d", r#"{"a": {"b": 1}}"#, ""), "-a/b");
        assert_eq!(touched(&["a"], "d", "", r#"{"a": {"b": 1}}"#), "+a");
        assert_eq!(touched(&["#"], "d", r#"{"a": 1}"#, r#"{"a": {"b": 1}}"#), "+a/b ~a");
        assert_eq!(touched(&["#"], "d", r#"{"a": {}}"#, r#"{"a": {"b": 1}}"#), "+a/b");
        assert_eq!(touched(&["#"], "d", r#"{"a": [1, 2]}"#, r#"{"a": [1, 3, 4]}"#), "+a/2 ~a/1");
        assert_eq!(touched(&["a/+"], "d", r#"{"a": [1, 2]}"#, r#"{"a": {"0": 1, "1": 3}}"#), "~a/1");
        assert_eq!(touched(&["a", "#"], "d", r#"{"a": {"b": 1, "c": 2}}"#, r#"{"a": {"c": 2, "b": 1}}"#), "");
        assert_eq!(touched(&["a"], "d", r#"{"a": 1}"#, r#"{"a": 1.0}"#), "~a");
    }

    #[test]
    fn ids_are_levels_too() {
        assert_eq!(touched(&["_id/orders/+"], "orders/17", "", "{}"), "+_id");
        assert_eq!(touched(&["_id/#"], "orders/17", "{}", r#"{"a": 1}"#), "~_id");
        assert_eq!(touched(&["_id/orders/17"], "orders/17", "{}", ""), "-_id");
        assert_eq!(touched(&["_id/orders", "_id/orders/+/+", "_id"], "orders/17", "", "{}"), "");
    }

    #[test]
    fn names_may_hold_anything() {
        let new = r##"{"a/b": 1, "+": 2, "#": 3, "": 4, "\\": 5}"##;
        assert_eq!(touched(&["#"], "d", "", new), r"+ +\# +\+ +\\ +a\/b");
        for path in [r"\#", r"\+", r"\\", r"a\/b", ""] {
            assert_eq!(touched(&[path], "d", "", new), format!("+{path}"));
        }
    }

    #[test]
    fn wrong_patterns_are_refused() {
        for pattern in ["a/#/b", "#/+", r"a\"] {
            assert_eq!(Patterns::parse([pattern]).unwrap_err().kind(), crate::ErrorKind::Invalid);
        }
        assert!(Patterns::parse([""; 0]).is_err());
        assert!(Patterns::parse(["a/".repeat(200)]).is_err());
    }
}
