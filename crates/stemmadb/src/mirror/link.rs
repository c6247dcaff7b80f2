//! Link paths: selects the values of a document under which the mirror links it.

use std::collections::BTreeSet;

use super::name;
use crate::value::{ElementPath, Object, PathStep, visit_steps};
use crate::{Error, Result};

/// A path whose values documents are linked by, such as `lines[].product`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LinkPath {
    text: String,
    path: ElementPath,
}

impl LinkPath {
    /// Parses paths, which must have different directories.
    ///
    /// # Errors
    /// `Invalid` if a text is not a path, or if two paths have the same directory.
    pub(super) fn parse_all(texts: &[String]) -> Result<Vec<LinkPath>> {
        let mut paths: Vec<LinkPath> = Vec::new();
        for text in texts {
            let path = LinkPath::parse(text)?;
            if paths.contains(&path) {
                continue;
            }
            if let Some(other) = paths.iter().find(|other| other.directory() == path.directory()) {
                let directory = path.directory();
                return Err(Error::invalid(format!(
                    "the links by `{}` and by `{text}` would both be in by/{directory}",
                    other.text
                ))
                .with_hint("choose one of them"));
            }
            paths.push(path);
        }
        Ok(paths)
    }

    fn parse(text: &str) -> Result<LinkPath> {
        Ok(LinkPath { text: text.to_owned(), path: ElementPath::parse(text)? })
    }

    /// The path as it was written.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// The name of its directory in `by/`: the path without `[]`.
    pub(super) fn directory(&self) -> String {
        let names = self.path.steps().iter().filter_map(|step| match step {
            PathStep::Field(name) => Some(name.replace('\\', "\\\\").replace('.', "\\.")),
            PathStep::Elements => None,
        });
        name::encode_text(&names.collect::<Vec<_>>().join("."))
    }

    /// The names of the values that a document has at this path.
    pub(super) fn names(&self, document: &Object) -> BTreeSet<String> {
        let mut names = BTreeSet::new();
        let (first, rest) = self.path.steps().split_first().expect("a path has a step");
        if let PathStep::Field(first) = first
            && let Some(value) = document.get(first)
        {
            visit_steps(value, rest, &mut |value| names.extend(name::encode_value(value)));
        }
        names
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::value::Value;

    fn names(path: &str, json: &str) -> Vec<String> {
        let document = Value::parse(json.as_bytes()).unwrap();
        LinkPath::parse(path).unwrap().names(document.as_object().unwrap()).into_iter().collect()
    }

    #[test]
    fn nested_values_are_found() {
        let document = r#"{"a": {"b.c": 1, "d": ["x", "y", "x", {}, ["z"], null]}, "l": [
            {"p": "one"}, {"p": ["two", "three"]}, {"q": 1}]}"#;
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
    fn malformed_paths_are_rejected() {
        for bad in ["", ".", "a.", ".a", "a..b", "a\\", "[]", "a[", "a[*]", "a[0]", "a[]b", "a[]."] {
            assert!(LinkPath::parse(bad).is_err(), "{bad}");
        }
        let both = ["tags".to_owned(), "tags[]".to_owned()];
        assert!(LinkPath::parse_all(&both).unwrap_err().message().contains("by/tags"));
        let twice = ["tags".to_owned(), "tags".to_owned()];
        assert_eq!(LinkPath::parse_all(&twice).unwrap().len(), 1);
    }
}
