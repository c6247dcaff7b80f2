//! Random documents and selectors over few names and values, so that selectors often match.

use proptest::prelude::*;

use crate::value::{Object, Value};

/// The length bound of indexed text in these tests. Strings are generated around it, some with the same first bytes.
pub(crate) const LONG: usize = 16;

fn object(fields: impl IntoIterator<Item = (&'static str, Value)>) -> Value {
    Value::Object(fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect::<Object>())
}

fn number() -> BoxedStrategy<Value> {
    let two53 = 1i64 << 53;
    prop_oneof![
        6 => (-2i64..6).prop_map(Value::from),
        2 => prop_oneof![Just(2.0), Just(2.5), Just(-0.0), Just(1e300), Just(two53 as f64)].prop_map(Value::from),
        1 => prop_oneof![Just(two53), Just(two53 + 1), Just(i64::MAX), Just(i64::MIN)].prop_map(Value::from),
        1 => Just(Value::from(u64::MAX)),
    ]
    .boxed()
}

pub(crate) fn text() -> BoxedStrategy<String> {
    prop_oneof![
        6 => "[ab]{0,3}",
        1 => prop_oneof![Just("é".to_owned()), Just("a\u{0}b".to_owned()), Just("\u{10FFFF}".to_owned())],
        3 => long_text(),
    ]
    .boxed()
}

/// Strings with the same first bytes up to about the length bound, which differ there or after it.
pub(crate) fn long_text() -> BoxedStrategy<String> {
    let end = prop_oneof![3 => "[ab]{0,2}", 1 => Just("\u{0}".to_owned()), 1 => Just("é".to_owned())];
    (LONG - 2..=LONG, end).prop_map(|(shared, end)| format!("{}{end}", "a".repeat(shared))).boxed()
}

pub(crate) fn scalar() -> BoxedStrategy<Value> {
    prop_oneof![
        1 => Just(Value::Null),
        1 => any::<bool>().prop_map(Value::Bool),
        4 => number(),
        4 => text().prop_map(Value::String),
    ]
    .boxed()
}

/// A field name; two of them can also be array indexes.
fn name() -> BoxedStrategy<&'static str> {
    prop_oneof![5 => Just("a"), 3 => Just("b"), 1 => Just("c"), 1 => Just("0"), 1 => Just("1"), 1 => Just("hidden")]
        .boxed()
}

/// Any value that a document of these tests may contain or a selector compare with.
pub(crate) fn value() -> BoxedStrategy<Value> {
    scalar()
        .prop_recursive(3, 16, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::Array),
                prop::collection::vec((name(), inner), 0..4).prop_map(object),
            ]
        })
        .boxed()
}

/// A document body.
pub(crate) fn body() -> BoxedStrategy<Value> {
    prop::collection::vec((name(), value()), 0..6).prop_map(object).boxed()
}

/// A path to a position that arrays here mostly lack, and may continue below it.
fn position_path() -> BoxedStrategy<String> {
    let position = prop::sample::select(vec!["0", "1", "2", "3", "7", "18446744073709551616"]);
    let rest = prop_oneof![3 => Just(""), 1 => Just(".a"), 1 => Just(".0"), 1 => Just(".2")];
    (name(), position, rest).prop_map(|(name, position, rest)| format!("{name}.{position}{rest}")).boxed()
}

fn path() -> BoxedStrategy<String> {
    let names = prop::collection::vec(name(), 1..4).prop_map(|names| names.join("."));
    let identities = prop::sample::select(vec!["_id", "_rev", "_id.a"]).prop_map(str::to_owned);
    prop_oneof![10 => names, 2 => position_path(), 3 => identities].boxed()
}

/// The paths of sorts.
pub(crate) fn sort_path() -> BoxedStrategy<String> {
    path()
}

fn pattern() -> BoxedStrategy<Value> {
    prop::sample::select(vec!["^a", "b$", "^ab?$", "a", "^aaaaaaaa.*b", "^(a|b)", "(?i)A", "."])
        .prop_map(Value::from)
        .boxed()
}

fn operator(inner: BoxedStrategy<Value>) -> BoxedStrategy<(&'static str, Value)> {
    let compare = prop::sample::select(vec!["$eq", "$ne", "$lt", "$lte", "$gt", "$gte"]);
    let list = prop::sample::select(vec!["$in", "$nin", "$all"]);
    let kind = prop::sample::select(vec!["null", "boolean", "number", "string", "array", "object"]);
    let nesting = prop::sample::select(vec!["$elemMatch", "$allMatch", "$keyMapMatch"]);
    prop_oneof![
        8 => (compare, value()),
        3 => (list, prop::collection::vec(value(), 0..4).prop_map(Value::Array)),
        3 => any::<bool>().prop_map(|exists| ("$exists", Value::Bool(exists))),
        1 => kind.prop_map(|kind| ("$type", Value::from(kind))),
        1 => text().prop_map(|prefix| ("$beginsWith", Value::String(prefix))),
        1 => pattern().prop_map(|pattern| ("$regex", pattern)),
        1 => (1i64..4, -2i64..3).prop_map(|(divisor, remainder)| ("$mod", Value::from([divisor, remainder]))),
        1 => (0u32..4).prop_map(|size| ("$size", Value::from(size))),
        3 => (nesting, inner),
    ]
    .boxed()
}

fn operators(inner: BoxedStrategy<Value>) -> BoxedStrategy<Value> {
    prop::collection::vec(operator(inner), 1..3).prop_map(object).boxed()
}

/// A selector inside `$elemMatch`: conditions on the element and on its fields.
fn inner_selector(depth: u32) -> BoxedStrategy<Value> {
    let nested = if depth == 0 { Just(Value::Object(Object::new())).boxed() } else { inner_selector(depth - 1) };
    let on_element = operators(nested.clone());
    let on_field = (path(), operators(nested)).prop_map(|(path, test)| single(&path, test));
    let leaf = prop_oneof![3 => on_element, 2 => on_field, 1 => Just(Value::Object(Object::new()))].boxed();
    joined(leaf, depth.min(1))
}

/// A document with one array of scalars and small objects.
pub(crate) fn body_of_elements() -> BoxedStrategy<Value> {
    let small = prop_oneof![3 => (0i64..4).prop_map(Value::from), 1 => "[ab]".prop_map(Value::from)].boxed();
    let list = prop::collection::vec(small.clone(), 0..3).prop_map(Value::Array).boxed();
    let object =
        prop::collection::vec((prop::sample::select(vec!["b", "c"]), prop_oneof![2 => small.clone(), 1 => list]), 0..3)
            .prop_map(object);
    let element = prop_oneof![1 => small, 2 => object];
    prop::collection::vec(element, 0..4).prop_map(|elements| single("a", Value::Array(elements))).boxed()
}

/// Conditions on the elements of that array, mostly several at once.
pub(crate) fn selector_of_elements() -> BoxedStrategy<Value> {
    let small = prop_oneof![3 => (0i64..4).prop_map(Value::from), 1 => "[ab]".prop_map(Value::from)].boxed();
    let compare = (prop::sample::select(vec!["$eq", "$ne", "$lt", "$lte", "$gt", "$gte"]), small.clone());
    let list =
        (prop::sample::select(vec!["$in", "$nin", "$all"]), prop::collection::vec(small, 1..3).prop_map(Value::Array));
    let plain = prop_oneof![3 => compare, 2 => list].boxed();
    let inner = prop::collection::vec(plain.clone(), 1..3).prop_map(object);
    let test = prop_oneof![
        4 => prop::collection::vec(plain, 1..3).prop_map(object),
        1 => (prop::sample::select(vec!["$elemMatch", "$allMatch"]), inner)
            .prop_map(|(name, inner)| single(name, inner)),
    ]
    .boxed();
    let leaf = prop_oneof![
        3 => (prop::sample::select(vec!["b", "c", "b.0"]), test.clone()).prop_map(|(name, test)| single(name, test)),
        1 => test,
    ]
    .boxed();
    let join = prop::sample::select(vec!["$and", "$and", "$or", "$nor"]);
    let together =
        (join, prop::collection::vec(leaf.clone(), 1..4)).prop_map(|(join, parts)| single(join, Value::Array(parts)));
    let nesting = prop::sample::select(vec!["$elemMatch", "$elemMatch", "$allMatch"]);
    (nesting, prop_oneof![1 => leaf, 3 => together], any::<bool>())
        .prop_map(|(nesting, inner, negated)| {
            let test = single("a", single(nesting, inner));
            if negated { single("$not", test) } else { test }
        })
        .boxed()
}

fn joined(leaf: BoxedStrategy<Value>, depth: u32) -> BoxedStrategy<Value> {
    leaf.prop_recursive(depth, 12, 3, |inner| {
        let join = prop::sample::select(vec!["$and", "$or", "$nor"]);
        prop_oneof![
            3 => (join, prop::collection::vec(inner.clone(), 0..4))
                .prop_map(|(join, parts)| single(join, Value::Array(parts))),
            1 => inner.prop_map(|inner| single("$not", inner)),
        ]
    })
    .boxed()
}

pub(crate) fn single(name: &str, value: Value) -> Value {
    let mut object = Object::new();
    object.insert(name, value);
    Value::Object(object)
}

/// A Mango JSON selector with up to four levels of `$and`, `$or`, `$nor` and `$not`.
pub(crate) fn selector() -> BoxedStrategy<Value> {
    let test = prop_oneof![1 => value(), 5 => operators(inner_selector(1))];
    let leaf = prop_oneof![
        8 => (path(), test.clone()).prop_map(|(path, test)| single(&path, test)),
        2 => (path(), test.clone(), path(), test).prop_map(|(first, test, second, other)| {
            let mut object = Object::new();
            object.insert(first, test);
            object.insert(second, other);
            Value::Object(object)
        }),
    ];
    joined(leaf.boxed(), 4)
}
