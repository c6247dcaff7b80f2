//! Conditions as Rust functions: `field("year").ge(1960)`.

use super::operators::Pattern;
use super::selector::{Comparison, Selector, TargetPath, Test};
use crate::Error;
use crate::value::{Kind, Value};

/// A field of a document, on which conditions are built. Created by [`field()`] or [`element()`].
///
/// Each method returns a [`Selector`] that matches the documents whose value meets the condition. Except for
/// [`Field::missing`], no condition matches a document without the field.
///
/// ```
/// # use stemmadb::field;
/// let selector = field("author.name").begins_with("Ur").and(field("tags").contains("classic"));
/// assert!(selector.check().is_ok());
/// ```
#[derive(Clone, Debug)]
pub struct Field {
    target: Result<TargetPath, String>,
}

/// Returns the field at a dotted path, such as `author.name`.
///
/// A decimal segment is a field name or an array index (`items.0.price`). After a name, `[]` stands for some element of
/// an array: `items[].price` is the price of an item, and a condition on it holds if it holds for any of them. A dot
/// within a name is escaped as `\.`. `_id` and `_rev` are the document's id and revision. An invalid path is reported
/// when the selector is used.
///
/// ```
/// # use stemmadb::field;
/// let sixties = field("year").ge(1960).and(field("year").lt(1970));
/// ```
pub fn field(path: impl AsRef<str>) -> Field {
    let target = TargetPath::parse(path.as_ref()).map_err(|error| error.message().to_owned());
    Field { target }
}

/// Returns the array element itself, for conditions inside [`Field::elem_match`] and [`Field::all_match`], or the field
/// name, inside [`Field::key_match`].
///
/// ```
/// # use stemmadb::{element, field};
/// let cheap = field("prices").elem_match(element().lt(10));
/// ```
pub fn element() -> Field {
    Field { target: Ok(TargetPath::ELEMENT) }
}

impl Field {
    /// The value equals `value`; `1` and `1.0` are equal.
    pub fn eq(self, value: impl Into<Value>) -> Selector {
        self.compare(Comparison::Equal, value)
    }

    /// The field exists and does not equal `value`.
    pub fn ne(self, value: impl Into<Value>) -> Selector {
        self.compare(Comparison::NotEqual, value)
    }

    /// The value sorts after `value` in collation order: null < false < true < numbers < strings < arrays < objects.
    pub fn gt(self, value: impl Into<Value>) -> Selector {
        self.compare(Comparison::Greater, value)
    }

    /// The value equals `value` or sorts after it; see [`Field::gt`].
    pub fn ge(self, value: impl Into<Value>) -> Selector {
        self.compare(Comparison::GreaterOrEqual, value)
    }

    /// The value sorts before `value`; see [`Field::gt`].
    pub fn lt(self, value: impl Into<Value>) -> Selector {
        self.compare(Comparison::Less, value)
    }

    /// The value equals `value` or sorts before it; see [`Field::gt`].
    pub fn le(self, value: impl Into<Value>) -> Selector {
        self.compare(Comparison::LessOrEqual, value)
    }

    /// The value equals one of `values`, or is an array with such an element.
    pub fn one_of<V: Into<Value>>(self, values: impl IntoIterator<Item = V>) -> Selector {
        self.test(Test::In(values.into_iter().map(Into::into).collect()))
    }

    /// The field exists, and its value neither equals one of `values` nor is an array with such an element.
    pub fn none_of<V: Into<Value>>(self, values: impl IntoIterator<Item = V>) -> Selector {
        self.test(Test::NotIn(values.into_iter().map(Into::into).collect()))
    }

    /// The field exists; its value may be null.
    pub fn exists(self) -> Selector {
        self.test(Test::Exists(true))
    }

    /// The object has no such field. As in CouchDB, a path through a value that is not an object does not count as
    /// missing: `field("a.b").missing()` does not match `{"a": 5}`.
    pub fn missing(self) -> Selector {
        self.test(Test::Exists(false))
    }

    /// The value is of this kind.
    pub fn is_type(self, kind: Kind) -> Selector {
        self.test(Test::Type(kind))
    }

    /// The value is a string that begins with `prefix`.
    pub fn begins_with(self, prefix: impl Into<String>) -> Selector {
        self.test(Test::BeginsWith(prefix.into()))
    }

    /// The value is an array with an element equal to `value`.
    pub fn contains(self, value: impl Into<Value>) -> Selector {
        self.elem_match(element().eq(value))
    }

    /// The value is an array that contains each of `values`. Matches nothing if `values` is empty.
    pub fn contains_all<V: Into<Value>>(self, values: impl IntoIterator<Item = V>) -> Selector {
        let mut values: Vec<Value> = values.into_iter().map(Into::into).collect();
        if let [Value::Array(_)] = values.as_slice() {
            // In Mango, `$all` with a list of one array also means equality with that array, which is not wanted here.
            return self.contains(values.remove(0));
        }
        self.test(Test::All(values))
    }

    /// The value is a string in which the pattern is found. The syntax is that of the `regex` crate. A pattern anchored
    /// with `^` searches a range of the index instead of all strings.
    pub fn matches_regex(self, pattern: impl AsRef<str>) -> Selector {
        match Pattern::new(pattern.as_ref()) {
            Ok(pattern) => self.test(Test::Regex(pattern)),
            Err(error) => Selector::wrong(error),
        }
    }

    /// The value is an array of `count` elements.
    pub fn size(self, count: usize) -> Selector {
        self.test(Test::Size(count as u64))
    }

    /// The value is a whole number whose remainder after division by `divisor` is `remainder`. The remainder has the
    /// sign of the number.
    pub fn modulo(self, divisor: i64, remainder: i64) -> Selector {
        if divisor == 0 {
            return Selector::wrong(
                Error::invalid("$mod divides by zero").with_hint("the divisor is any other whole number"),
            );
        }
        self.test(Test::Modulo { divisor, remainder })
    }

    /// The value is an array with an element that matches `inner`. Fields in `inner` are fields of the element;
    /// [`element()`] is the element itself.
    pub fn elem_match(self, inner: Selector) -> Selector {
        self.nesting(inner, Test::ElemMatch)
    }

    /// The value is a non-empty array all of whose elements match `inner`.
    pub fn all_match(self, inner: Selector) -> Selector {
        self.nesting(inner, Test::AllMatch)
    }

    /// The value is an object with a field whose name ([`element()`]) matches `inner`.
    pub fn key_match(self, inner: Selector) -> Selector {
        self.nesting(inner, Test::KeyMapMatch)
    }

    fn compare(self, comparison: Comparison, value: impl Into<Value>) -> Selector {
        self.test(Test::Compare(comparison, value.into()))
    }

    fn test(self, test: Test) -> Selector {
        match self.target {
            Ok(target) => Selector::condition(target, test),
            Err(problem) => Selector::wrong(wrong_path(problem)),
        }
    }

    fn nesting(self, inner: Selector, test: impl FnOnce(Box<super::selector::Node>) -> Test) -> Selector {
        match self.target {
            Ok(target) => Selector::nesting(target, inner, test),
            Err(problem) => Selector::wrong(wrong_path(problem)),
        }
    }
}

fn wrong_path(problem: String) -> Error {
    Error::invalid(problem).with_hint("a path is field names joined by dots, such as author.name")
}
