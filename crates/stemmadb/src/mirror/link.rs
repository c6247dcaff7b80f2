//! Under which values does a document have a link?

use std::collections::BTreeSet;

use super::name;
use crate::value::{Object, Value, array_position};
use crate::{Error, Result};

/// A path by which documents are linked, as in `lines[].product`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LinkPath {
    text: String,
    steps: Vec<Step>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    /// The field of this name; in an array, a decimal name is a position.
    Field(String),
    /// Each element of an array.
    Elements,
}

impl LinkPath {
    /// These paths, whose directories are different.
    ///
    /// # Errors
    /// `Invalid` for a text that is no path, or two paths with one directory.
    pub(super) fn parse_all(texts: &[String]) -> Result<Vec<LinkPath>> {
        let mut paths: Vec<LinkPath> = Vec::new();
        for text in texts {
            let path = LinkPath::parse(text)?;
            if paths.contains(&path) {
                continue;
            }
            if let Some(other) = paths.iter().find(|other| other.directory() == path.directory()) {
                let place = path.directory();
                return Err(Error::invalid(format!(
                    "the links by `{}` and by `{text}` would both be in by/{place}",
                    other.text
                ))
                .with_hint("choose one of them"));
            }
            paths.push(path);
        }
        Ok(paths)
    }

    fn parse(text: &str) -> Result<LinkPath> {
        let wrong = |what: &str| {
            Err(Error::invalid(format!("the path {text:?} {what}"))
                .with_hint("as in author.name, tags[], lines[].product; a backslash makes . [ and \\ ordinary"))
        };
        let (mut steps, mut field) = (Vec::new(), String::new());
        let mut characters = text.chars().peekable();
        while let Some(character) = characters.next() {
            match character {
                '\\' => match characters.next() {
                    Some(next) => field.push(next),
                    None => return wrong("ends in a backslash"),
                },
                '.' if field.is_empty() && !matches!(steps.last(), Some(Step::Elements)) => {
                    return wrong("has an empty name");
                }
                '.' => {
                    steps.extend(taken(&mut field));
                    if characters.peek().is_none() {
                        return wrong("ends in a dot");
                    }
                }
                '[' => {
                    steps.extend(taken(&mut field));
                    if steps.is_empty() || characters.next() != Some(']') {
                        return wrong("has a bracket that is not the [] of an array");
                    }
                    steps.push(Step::Elements);
                    if characters.peek().is_some_and(|next| !matches!(next, '.' | '[')) {
                        return wrong("has a name right after []");
                    }
                }
                _ => field.push(character),
            }
        }
        steps.extend(taken(&mut field));
        if steps.is_empty() {
            return wrong("is empty");
        }
        Ok(LinkPath { text: text.to_owned(), steps })
    }

    /// As it was written.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Its directory in `by/`: the path without `[]`.
    pub(super) fn directory(&self) -> String {
        let names = self.steps.iter().filter_map(|step| match step {
            Step::Field(name) => Some(name.replace('\\', "\\\\").replace('.', "\\.")),
            Step::Elements => None,
        });
        name::of_text(&names.collect::<Vec<_>>().join("."))
    }

    /// The names of the values that a document has there.
    pub(super) fn names(&self, document: &Object) -> BTreeSet<String> {
        let mut names = BTreeSet::new();
        if let Some((Step::Field(first), rest)) = self.steps.split_first()
            && let Some(value) = document.get(first)
        {
            collect(value, rest, &mut names);
        }
        names
    }
}

fn taken(field: &mut String) -> Option<Step> {
    (!field.is_empty()).then(|| Step::Field(std::mem::take(field)))
}

fn collect(value: &Value, steps: &[Step], names: &mut BTreeSet<String>) {
    let Some((step, rest)) = steps.split_first() else {
        names.extend(name::of_value(value));
        return;
    };
    match (step, value) {
        (Step::Elements, Value::Array(elements)) => elements.iter().for_each(|element| collect(element, rest, names)),
        (Step::Field(name), Value::Object(object)) => {
            object.get(name).into_iter().for_each(|value| collect(value, rest, names));
        }
        (Step::Field(name), Value::Array(elements)) => {
            let element = array_position(name).and_then(|position| elements.get(position));
            element.into_iter().for_each(|value| collect(value, rest, names));
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(path: &str, json: &str) -> Vec<String> {
        let document = Value::parse(json.as_bytes()).unwrap();
        LinkPath::parse(path).unwrap().names(document.as_object().unwrap()).into_iter().collect()
    }

    #[test]
    fn values_are_found_at_any_depth() {
        let document = r#"{"a": {"b.c": 1, "d": ["x", "y", "x", {}, ["z"], null]}, "l": [{"p": "one"}, {"p": ["two", "three"]}, {"q": 1}]}"#;
        for (path, found) in [
            (r"a.b\.c", &["1"][..]),
            ("a.d[]", &["null", "x", "y"]),
            ("a.d[][]", &["z"]),
            ("a.d.1", &["y"]),
            ("a.d", &[]),
            ("a", &[]),
            ("l[].p", &["one"]),
            ("l[].p[]", &["three", "two"]),
            ("l[].q", &["1"]),
            ("none.of.it", &[]),
        ] {
            assert_eq!(names(path, document), found, "{path}");
        }
    }

    #[test]
    fn directories_are_paths_without_brackets() {
        for (path, directory) in
            [("a", "a"), ("tags[]", "tags"), ("l[].p[]", "l.p"), (r"a\.b.c", r"a\.b.c"), ("x/y", "x%2Fy"), ("..", "")]
        {
            match LinkPath::parse(path) {
                Ok(parsed) => assert_eq!(parsed.directory(), directory, "{path}"),
                Err(_) => assert_eq!(directory, "", "{path}"),
            }
        }
    }

    #[test]
    fn what_is_no_path_is_refused() {
        for bad in ["", ".", "a.", ".a", "a..b", "a\\", "[]", "a[", "a[*]", "a[0]", "a[]b", "a[]."] {
            assert!(LinkPath::parse(bad).is_err(), "{bad}");
        }
        let both = ["tags".to_owned(), "tags[]".to_owned()];
        assert!(LinkPath::parse_all(&both).unwrap_err().message().contains("by/tags"));
        let twice = ["tags".to_owned(), "tags".to_owned()];
        assert_eq!(LinkPath::parse_all(&twice).unwrap().len(), 1);
    }
}
