//! Paths that may enter the elements of arrays, such as `lines[].product`.

use std::fmt;

use super::path::array_position;
use super::{Path, Value};
use crate::{Error, Result};

/// A path to any number of values of a document: field names separated by dots, where `[]` stands for each element of
/// an array. A backslash makes a dot, bracket or backslash part of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ElementPath {
    steps: Vec<PathStep>,
}

/// One step of an [`ElementPath`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PathStep {
    /// To the field with this name; in an array, a decimal name is a position.
    Field(Box<str>),
    /// To each element of an array.
    Elements,
}

impl ElementPath {
    /// Parses a path.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) if a name is empty or a bracket is not part of `[]`.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let malformed = |what: &str| {
            Err(Error::invalid(format!("the path {text:?} {what}"))
                .with_hint("as in author.name, tags[], lines[].product; a backslash makes . [ and \\ ordinary"))
        };
        let (mut steps, mut field) = (Vec::new(), String::new());
        let mut characters = text.chars().peekable();
        while let Some(character) = characters.next() {
            match character {
                '\\' => match characters.next() {
                    Some(next) => field.push(next),
                    None => return malformed("ends in a backslash"),
                },
                '.' if field.is_empty() => return malformed("has an empty name"),
                '.' => {
                    steps.extend(take_field(&mut field));
                    if characters.peek().is_none() {
                        return malformed("ends in a dot");
                    }
                }
                '[' => {
                    steps.extend(take_field(&mut field));
                    if steps.is_empty() || characters.next() != Some(']') {
                        return malformed("has a bracket that is not the [] of an array");
                    }
                    steps.push(PathStep::Elements);
                    match characters.peek() {
                        Some('.') => {
                            characters.next();
                            if matches!(characters.peek(), None | Some('.' | '[')) {
                                return malformed("has an empty name");
                            }
                        }
                        Some('[') | None => {}
                        Some(_) => return malformed("has a name right after []"),
                    }
                }
                _ => field.push(character),
            }
        }
        steps.extend(take_field(&mut field));
        if steps.is_empty() {
            return malformed("is empty");
        }
        Ok(ElementPath { steps })
    }

    /// Whether a text is a path that enters elements: it has an unescaped `[]` at the end of a name.
    pub(crate) fn is_in(text: &str) -> bool {
        let bytes = text.as_bytes();
        let mut at = 0;
        while at < bytes.len() {
            match bytes[at] {
                b'\\' => at += 2,
                b'[' if bytes.get(at + 1) == Some(&b']') && matches!(bytes.get(at + 2), None | Some(b'.' | b'[')) => {
                    return true;
                }
                _ => at += 1,
            }
        }
        false
    }

    /// The steps, outermost first; at least one.
    pub(crate) fn steps(&self) -> &[PathStep] {
        &self.steps
    }

    /// The paths between the arrays that the path enters: the first leads to an array, each further one from an element
    /// to the next array, and the last from an element to the value. `None` stands for the element itself.
    pub(crate) fn between_arrays(&self) -> Vec<Option<Path>> {
        let names = |steps: &[PathStep]| {
            let names = steps.iter().map(|step| match step {
                PathStep::Field(name) => name.clone(),
                PathStep::Elements => unreachable!("the steps are split at the elements"),
            });
            (!steps.is_empty()).then(|| Path::new(names).expect("no name is empty"))
        };
        self.steps.split(|step| *step == PathStep::Elements).map(names).collect()
    }

    /// The path into the innermost array that both paths enter, and what remains of each path; `None` if they share no
    /// array.
    pub(crate) fn split_shared<'a>(
        &'a self,
        other: &'a Self,
    ) -> Option<(&'a [PathStep], &'a [PathStep], &'a [PathStep])> {
        let equal_count = self.steps.iter().zip(&other.steps).take_while(|(left, right)| left == right).count();
        let shared = self.steps[..equal_count].iter().rposition(|step| *step == PathStep::Elements)? + 1;
        Some((&self.steps[..shared], &self.steps[shared..], &other.steps[shared..]))
    }
}

impl fmt::Display for ElementPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, step) in self.steps.iter().enumerate() {
            match step {
                PathStep::Elements => f.write_str("[]")?,
                PathStep::Field(name) => {
                    if at > 0 {
                        f.write_str(".")?;
                    }
                    for character in name.chars() {
                        if matches!(character, '.' | '\\' | '[') {
                            f.write_str("\\")?;
                        }
                        write!(f, "{character}")?;
                    }
                }
            }
        }
        Ok(())
    }
}

fn take_field(field: &mut String) -> Option<PathStep> {
    (!field.is_empty()).then(|| PathStep::Field(std::mem::take(field).into()))
}

/// Visits each value that `steps` lead to from `value`.
pub(crate) fn visit_steps<'v>(value: &'v Value, steps: &[PathStep], visit: &mut impl FnMut(&'v Value)) {
    let Some((step, rest)) = steps.split_first() else { return visit(value) };
    match (step, value) {
        (PathStep::Elements, Value::Array(elements)) => {
            elements.iter().for_each(|element| visit_steps(element, rest, visit));
        }
        (PathStep::Field(name), Value::Object(object)) => {
            object.get(name).into_iter().for_each(|value| visit_steps(value, rest, visit));
        }
        (PathStep::Field(name), Value::Array(elements)) => {
            let element = array_position(name).and_then(|position| elements.get(position));
            element.into_iter().for_each(|value| visit_steps(value, rest, visit));
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(path: &str, json: &str) -> String {
        let value = Value::parse(json).expect("good JSON");
        let mut values = Vec::new();
        let path = ElementPath::parse(path).expect("a good path");
        visit_steps(&value, path.steps(), &mut |value| values.push(value.clone()));
        Value::Array(values).to_json()
    }

    #[test]
    fn values_are_those_of_all_elements() {
        let json = r#"{"tags":["a","b"],"lines":[{"p":1,"q":[2,3]},{"p":4},5],"m":[[6],[7]],"x":{"y":[8]},"s":9}"#;
        for (path, expected) in [
            ("tags[]", r#"["a","b"]"#),
            ("lines[].p", "[1,4]"),
            ("lines[].q[]", "[2,3]"),
            ("lines.0.q[]", "[2,3]"),
            ("m[][]", "[6,7]"),
            ("x.y[]", "[8]"),
            ("s[]", "[]"),
            ("s", "[9]"),
            ("none[].p", "[]"),
        ] {
            assert_eq!(values(path, json), expected, "{path}");
        }
    }

    #[test]
    fn only_unescaped_brackets_at_the_end_of_a_name_enter_elements() {
        for text in ["a[]", "a[].b", "a[][]", r"a\\[]", "a.b[]"] {
            assert!(ElementPath::is_in(text), "{text}");
            assert_eq!(ElementPath::parse(text).expect("a good path").to_string(), text);
        }
        for text in ["", "a", "a[0]", "a[", "a[]b", r"a\[]", r"a\[].b", "a]", "[x]"] {
            assert!(!ElementPath::is_in(text), "{text}");
        }
        for bad in ["", ".", "a.", ".a", "a..b", "a\\", "[]", "a[", "a[*]", "a[0]", "a[]b", "a[].", "a[]..b", "a[].[]"]
        {
            assert!(ElementPath::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn paths_are_split_at_arrays() {
        let split = |text: &str| {
            let parts = ElementPath::parse(text).expect("a good path").between_arrays();
            parts.iter().map(|part| part.as_ref().map(Path::to_string)).collect::<Vec<_>>()
        };
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(split("a.b[].c"), [some("a.b"), some("c")]);
        assert_eq!(split("a[][]"), [some("a"), None, None]);
        let (a, b) = (ElementPath::parse("l[].p[].x").unwrap(), ElementPath::parse("l[].p.q").unwrap());
        let (shared, left, right) = a.split_shared(&b).expect("both enter l");
        assert_eq!((shared.len(), left.len(), right.len()), (2, 3, 2));
        assert_eq!(ElementPath::parse("a.b").unwrap().split_shared(&a), None);
    }
}
