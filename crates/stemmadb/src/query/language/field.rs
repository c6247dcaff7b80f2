//! Conditions as Rust functions: `field("year").ge(1960)`.

use super::operators::Pattern;
use super::selector::{Comparison, Place, Selector, Test};
use crate::Error;
use crate::value::{Kind, Path, Value};

/// A place in a document, of which conditions are made.
#[derive(Clone, Debug)]
pub struct Field {
    place: Result<Place, String>,
}

/// The field at a dotted path, such as `author.name`; a decimal segment is also an array's index (`items.0.price`). A dot
/// within a name is written `\.`. `_id` and `_rev` are the document's own.
///
/// ```
/// # use stemmadb::field;
/// let sixties = field("year").ge(1960).and(field("year").lt(1970));
/// ```
pub fn field(path: impl AsRef<str>) -> Field {
    let place = Path::parse(path.as_ref()).map(Place::At).map_err(|error| error.message().to_owned());
    Field { place }
}

/// The array's element itself, for conditions inside [`Field::elem_match`] and [`Field::all_match`], or the name, inside
/// [`Field::key_match`].
pub fn element() -> Field {
    Field { place: Ok(Place::Itself) }
}

impl Field {
    /// Equal to `value`; `1` and `1.0` are equal.
    pub fn eq(self, value: impl Into<Value>) -> Selector {
        self.compare(Comparison::Equal, value)
    }

    /// There, and not equal to `value`.
    pub fn ne(self, value: impl Into<Value>) -> Selector {
        self.compare(Comparison::NotEqual, value)
    }

    /// After `value` in the order null < false < true < numbers < strings < arrays < objects.
    pub fn gt(self, value: impl Into<Value>) -> Selector {
        self.compare(Comparison::Greater, value)
    }

    /// `value` or after it.
    pub fn ge(self, value: impl Into<Value>) -> Selector {
        self.compare(Comparison::GreaterOrEqual, value)
    }

    /// Before `value`.
    pub fn lt(self, value: impl Into<Value>) -> Selector {
        self.compare(Comparison::Less, value)
    }

    /// `value` or before it.
    pub fn le(self, value: impl Into<Value>) -> Selector {
        self.compare(Comparison::LessOrEqual, value)
    }

    /// Equal to one of `values`, or an array with such an element.
    pub fn one_of<V: Into<Value>>(self, values: impl IntoIterator<Item = V>) -> Selector {
        self.test(Test::In(values.into_iter().map(Into::into).collect()))
    }

    /// There, and neither equal to one of `values` nor an array with such an element.
    pub fn none_of<V: Into<Value>>(self, values: impl IntoIterator<Item = V>) -> Selector {
        self.test(Test::NotIn(values.into_iter().map(Into::into).collect()))
    }

    /// There, also if it is null.
    pub fn exists(self) -> Selector {
        self.test(Test::Exists(true))
    }

    /// Not a field of its object. As in CouchDB, a way that leads through something other than objects is no absence:
    /// `field("a.b").missing()` does not match `{"a": 5}`.
    pub fn missing(self) -> Selector {
        self.test(Test::Exists(false))
    }

    /// Of this kind.
    pub fn is_type(self, kind: Kind) -> Selector {
        self.test(Test::Type(kind))
    }

    /// A string that begins with `prefix`.
    pub fn begins_with(self, prefix: impl Into<String>) -> Selector {
        self.test(Test::BeginsWith(prefix.into()))
    }

    /// An array with an element equal to `value`.
    pub fn contains(self, value: impl Into<Value>) -> Selector {
        self.elem_match(element().eq(value))
    }

    /// An array in which each of `values` is an element; no array if there are no values.
    pub fn contains_all<V: Into<Value>>(self, values: impl IntoIterator<Item = V>) -> Selector {
        let mut values: Vec<Value> = values.into_iter().map(Into::into).collect();
        if let [Value::Array(_)] = values.as_slice() {
            // `$all` of one array has a second meaning in Mango, equality, which isn't asked for here.
            return self.contains(values.remove(0));
        }
        self.test(Test::All(values))
    }

    /// A string in which the pattern is found; anchor it with `^` where you can. The syntax is that of the `regex` crate.
    pub fn matches_regex(self, pattern: impl AsRef<str>) -> Selector {
        match Pattern::new(pattern.as_ref()) {
            Ok(pattern) => self.test(Test::Regex(pattern)),
            Err(error) => Selector::wrong(error),
        }
    }

    /// An array of `count` elements.
    pub fn size(self, count: usize) -> Selector {
        self.test(Test::Size(count as u64))
    }

    /// A whole number which leaves `remainder` when divided by `divisor`; the remainder has the number's sign.
    pub fn modulo(self, divisor: i64, remainder: i64) -> Selector {
        if divisor == 0 {
            return Selector::wrong(
                Error::invalid("$mod divides by zero").with_hint("the divisor is any other whole number"),
            );
        }
        self.test(Test::Modulo { divisor, remainder })
    }

    /// An array with an element that matches all of `inner`, whose fields are the element's; [`element`] is the element itself.
    pub fn elem_match(self, inner: Selector) -> Selector {
        self.nesting(inner, Test::ElemMatch)
    }

    /// An array that is not empty and all of whose elements match `inner`.
    pub fn all_match(self, inner: Selector) -> Selector {
        self.nesting(inner, Test::AllMatch)
    }

    /// An object with a field whose name ([`element`]) matches `inner`.
    pub fn key_match(self, inner: Selector) -> Selector {
        self.nesting(inner, Test::KeyMapMatch)
    }

    fn compare(self, comparison: Comparison, value: impl Into<Value>) -> Selector {
        self.test(Test::Compare(comparison, value.into()))
    }

    fn test(self, test: Test) -> Selector {
        match self.place {
            Ok(place) => Selector::condition(place, test),
            Err(problem) => Selector::wrong(wrong_path(problem)),
        }
    }

    fn nesting(self, inner: Selector, test: impl FnOnce(Box<super::selector::Node>) -> Test) -> Selector {
        match self.place {
            Ok(place) => Selector::nesting(place, inner, test),
            Err(problem) => Selector::wrong(wrong_path(problem)),
        }
    }
}

fn wrong_path(problem: String) -> Error {
    Error::invalid(problem).with_hint("a path is field names joined by dots, such as author.name")
}
