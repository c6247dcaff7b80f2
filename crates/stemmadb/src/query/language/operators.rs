//! The Mango operators by name, and compiled regular expressions.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use regex::Regex;
use regex_syntax::hir::{Hir, HirKind, Look};

use crate::value::Kind;
use crate::{Error, Result};

/// The longest pattern, in bytes.
pub(crate) const PATTERN_BYTES_MAX: usize = 1024;
/// Memory bound of a compiled pattern, and of its search cache.
const COMPILED_BYTES_MAX: usize = 1 << 20;
/// The deepest nesting of groups in a pattern.
const PATTERN_DEPTH_MAX: u32 = 64;

/// Shorter literals occur in too many strings to be useful for searching.
const LITERAL_BYTES_MIN: usize = 2;

/// Every operator, for hints.
pub(crate) const OPERATORS: &[&str] = &[
    "$eq",
    "$ne",
    "$lt",
    "$lte",
    "$gt",
    "$gte",
    "$in",
    "$nin",
    "$exists",
    "$type",
    "$beginsWith",
    "$regex",
    "$mod",
    "$size",
    "$all",
    "$elemMatch",
    "$allMatch",
    "$keyMapMatch",
    "$and",
    "$or",
    "$nor",
    "$not",
];

/// Names that other query languages use for an operator.
const ALIASES: &[(&str, &str)] = &[
    ("$ge", "$gte"),
    ("$le", "$lte"),
    ("$startsWith", "$beginsWith"),
    ("$prefix", "$beginsWith"),
    ("$like", "$regex"),
    ("$match", "$regex"),
    ("$contains", "$elemMatch"),
    ("$any", "$elemMatch"),
    ("$between", "$gte"),
    ("$length", "$size"),
    ("$equals", "$eq"),
    ("$min", "$gte"),
    ("$max", "$lte"),
];

/// Operators that CouchDB or MongoDB have and Stemma does not.
const NOT_SUPPORTED: &[&str] = &["$where", "$text", "$near", "$nearSphere", "$geoWithin", "$geoIntersects", "$expr"];

/// A compiled regular expression with its source text. Two patterns are equal if their texts are.
#[derive(Clone)]
pub(crate) struct Pattern {
    text: Arc<str>,
    regex: Regex,
    literal: Option<Arc<str>>,
    prefix: Option<Prefix>,
}

/// The prefix of every string in which a pattern is found.
#[derive(Clone)]
struct Prefix {
    literal: Arc<str>,
    /// Whether the pattern requires nothing after the prefix.
    is_whole_pattern: bool,
}

fn parse(pattern: &str) -> Option<Hir> {
    regex_syntax::ParserBuilder::new().nest_limit(PATTERN_DEPTH_MAX).build().parse(pattern).ok()
}

/// Returns the longest literal that every match contains.
fn longest_literal(part: &Hir) -> Option<&[u8]> {
    match part.kind() {
        HirKind::Literal(literal) => Some(&literal.0),
        HirKind::Capture(group) => longest_literal(&group.sub),
        HirKind::Repetition(repetition) if repetition.min > 0 => longest_literal(&repetition.sub),
        HirKind::Concat(parts) => parts.iter().filter_map(longest_literal).max_by_key(|literal| literal.len()),
        _ => None,
    }
}

/// Returns the literal after a leading `^`.
fn prefix(tree: &Hir) -> Option<Prefix> {
    let HirKind::Concat(parts) = tree.kind() else { return None };
    let mut parts = parts.iter().peekable();
    // In multi-line mode `^` is a different `Look`, which also matches at line starts within the string.
    if *parts.next()?.kind() != HirKind::Look(Look::Start) {
        return None;
    }
    let mut text = String::new();
    while let Some(HirKind::Literal(literal)) = parts.peek().map(|part| part.kind()) {
        text.push_str(std::str::from_utf8(&literal.0).ok()?);
        parts.next();
    }
    let asks_nothing = |part: &Hir| {
        let properties = part.properties();
        properties.minimum_len() == Some(0) && properties.look_set().is_empty()
    };
    (!text.is_empty()).then(|| Prefix { literal: text.into(), is_whole_pattern: parts.all(asks_nothing) })
}

impl Pattern {
    /// Compiles `text` within bounds of length, nesting and memory.
    pub(crate) fn new(text: &str) -> Result<Self> {
        if text.len() > PATTERN_BYTES_MAX {
            return Err(Error::invalid(format!(
                "the regular expression has {} bytes, more than {PATTERN_BYTES_MAX}",
                text.len()
            ))
            .with_hint("use $in or $or for lists of words"));
        }
        let regex = regex::RegexBuilder::new(text)
            .size_limit(COMPILED_BYTES_MAX)
            .dfa_size_limit(COMPILED_BYTES_MAX)
            .nest_limit(PATTERN_DEPTH_MAX)
            .build()
            .map_err(|error| wrong_pattern(text, &error))?;
        let tree = parse(text);
        let literal = tree.as_ref().and_then(longest_literal).filter(|literal| literal.len() >= LITERAL_BYTES_MIN);
        let literal =
            literal.filter(|literal| !literal.contains(&0)).and_then(|literal| std::str::from_utf8(literal).ok());
        let prefix = tree.as_ref().and_then(prefix);
        Ok(Pattern { text: text.into(), regex, literal: literal.map(Arc::from), prefix })
    }

    /// The source text of the pattern.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// The prefix of every string in which the pattern is found, or `None` if there is no common prefix.
    pub(crate) fn literal_prefix(&self) -> Option<&str> {
        self.prefix.as_ref().map(|prefix| &*prefix.literal)
    }

    /// The prefix, if the pattern requires nothing else: `^John.*`.
    pub(crate) fn only_prefix(&self) -> Option<&str> {
        self.prefix.as_ref().filter(|prefix| prefix.is_whole_pattern).map(|prefix| &*prefix.literal)
    }

    /// The longest text that every matching string contains, if it is long enough to be useful for searching.
    pub(crate) fn literal(&self) -> Option<&str> {
        self.literal.as_deref()
    }

    /// Whether the pattern is found anywhere in `string`.
    pub(crate) fn is_match(&self, string: &str) -> bool {
        self.regex.is_match(string)
    }
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Pattern) -> bool {
        self.text == other.text
    }
}

impl Eq for Pattern {}

impl Hash for Pattern {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.text.hash(state);
    }
}

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/{}/", self.text)
    }
}

fn wrong_pattern(text: &str, error: &regex::Error) -> Error {
    match error {
        regex::Error::CompiledTooBig(_) => Error::invalid(format!(
            "the regular expression \"{text}\" compiles to more than {COMPILED_BYTES_MAX} bytes"
        ))
        .with_hint("use smaller repetition counts"),
        other => {
            // The parser's error shows the pattern with a marker below it; the last line is the message.
            let drawn = other.to_string();
            let reason = drawn.lines().last().unwrap_or_default().trim();
            let reason = reason.strip_prefix("error: ").unwrap_or(reason);
            Error::invalid(format!("the regular expression \"{text}\" is not valid: {reason}"))
                .with_hint("the syntax is that of the Rust regex crate: no look-around and no back-references")
        }
    }
}

/// The error for an unknown operator, with the most similar known one as a hint.
pub(crate) fn unknown_operator(name: &str) -> Error {
    let shown: String = name.chars().take(64).collect();
    if NOT_SUPPORTED.contains(&name) {
        return Error::invalid(format!("the operator {name} is not supported"))
            .with_hint(format!("the operators are {}", OPERATORS.join(" ")));
    }
    let error = Error::invalid(format!("unknown operator {shown}"));
    match nearest_operator(name) {
        Some(nearest) => error.with_hint(format!(
            "did you mean {nearest}? a field whose name begins with $ is written with a backslash before it"
        )),
        None => error.with_hint(format!("the operators are {}", OPERATORS.join(" "))),
    }
}

/// Returns the operator most similar to `name`, if one is similar enough.
fn nearest_operator(name: &str) -> Option<&'static str> {
    if name.len() > 32 {
        return None;
    }
    let lower = name.to_lowercase();
    if let Some((_, ours)) = ALIASES.iter().find(|(alias, _)| alias.to_lowercase() == lower) {
        return Some(ours);
    }
    OPERATORS
        .iter()
        .map(|operator| (edit_distance(&lower, &operator.to_lowercase()), *operator))
        .filter(|(distance, operator)| *distance <= 1.max(operator.len() / 3))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, operator)| operator)
}

/// The edit distance of two names: insertions, deletions, substitutions and transpositions of neighboring letters.
fn edit_distance(left: &str, right: &str) -> usize {
    let left: Vec<char> = left.chars().collect();
    let right: Vec<char> = right.chars().collect();
    let mut before_last: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=right.len()).collect();
    for (i, a) in left.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, b) in right.iter().enumerate() {
            let mut cost = (last[j] + usize::from(a != b)).min(last[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *a == right[j - 1] && left[i - 1] == *b {
                cost = cost.min(before_last[j - 1] + 1);
            }
            row.push(cost);
        }
        before_last = std::mem::replace(&mut last, row);
    }
    last[right.len()]
}

/// The kind with this name in `$type`.
pub(crate) fn kind_named(name: &str) -> Option<Kind> {
    Kind::ALL.into_iter().find(|kind| kind.name() == name)
}

/// A kind with its article, for messages.
pub(crate) fn kind_with_article(kind: Kind) -> &'static str {
    match kind {
        Kind::Null => "null",
        Kind::Bool => "a boolean",
        Kind::Number => "a number",
        Kind::String => "a string",
        Kind::Array => "an array",
        Kind::Object => "an object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn similar_operator_is_suggested() {
        for (wrong, right) in [
            ("$gtt", Some("$gt")),
            ("$ge", Some("$gte")),
            ("$le", Some("$lte")),
            ("$exist", Some("$exists")),
            ("$regexp", Some("$regex")),
            ("$startswith", Some("$beginsWith")),
            ("$elemmatch", Some("$elemMatch")),
            ("$nto", Some("$not")),
            ("$everythingelse", None),
        ] {
            assert_eq!(nearest_operator(wrong), right, "{wrong}");
        }
    }

    #[test]
    fn patterns_are_bounded() {
        assert!(Pattern::new("^John.*").unwrap().is_match("John Doe"));
        for wrong in ["(", "(?=look)", "(a{1000}){1000}", &"(".repeat(100), &"a".repeat(1025)] {
            let error = Pattern::new(wrong).unwrap_err();
            assert_eq!(error.kind(), crate::ErrorKind::Invalid);
            assert!(error.hint().is_some());
        }
    }
}
