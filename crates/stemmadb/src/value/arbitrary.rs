//! Proptest strategies that generate values, for this module and the modules that use it.

use proptest::prelude::*;

use super::{Number, Object, Value};

/// Numbers, most of them near boundaries of encodings.
pub(crate) fn number() -> BoxedStrategy<Number> {
    let near = |middle: i128| (-3i128..=3).prop_map(move |offset| middle + offset);
    let integer = prop_oneof![
        near(0),
        near(128),
        (0u32..64).prop_flat_map(move |bit| near(1i128 << bit)),
        (0u32..64).prop_flat_map(move |bit| near(-(1i128 << bit))),
        any::<i64>().prop_map(i128::from),
        any::<u64>().prop_map(i128::from),
    ];
    let integer = integer.prop_filter_map("in range", Number::from_i128);
    let double = prop_oneof![
        any::<f64>(),
        any::<i32>().prop_map(f64::from),
        (any::<i32>(), 1i32..9).prop_map(|(digits, places)| f64::from(digits) / 10f64.powi(places)),
        (0u32..70, -2i64..=2).prop_map(|(bit, offset)| 2f64.powi(bit as i32) + offset as f64),
        (0u32..70, -2i64..=2).prop_map(|(bit, offset)| -2f64.powi(bit as i32) + offset as f64),
        Just(0.0),
        Just(-0.0),
        Just(f64::MIN_POSITIVE),
        Just(5e-324),
        Just(f64::MAX),
        Just(f64::MIN),
    ];
    prop_oneof![integer, double.prop_filter_map("finite", Number::from_f64)].boxed()
}

/// Strings, many of them similar, with zeros, quotes, control characters and UTF-8 sequences of every length.
pub(crate) fn text() -> BoxedStrategy<String> {
    prop_oneof![
        "[ab]{0,3}",
        "[a\u{0}\u{1}\u{7f}\u{ff}é€😀\"\\\\\n]{0,12}",
        any::<String>(),
        (0usize..70, "[a-c]{1}").prop_map(|(count, letter)| letter.repeat(count)),
    ]
    .boxed()
}

/// Values of every kind with moderate nesting.
pub(crate) fn value() -> BoxedStrategy<Value> {
    let scalar = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::Bool),
        number().prop_map(Value::Number),
        text().prop_map(Value::String),
    ];
    scalar
        .prop_recursive(5, 64, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Value::Array),
                prop::collection::vec((text(), inner), 0..6)
                    .prop_map(|fields| Value::Object(fields.into_iter().collect::<Object>())),
            ]
        })
        .boxed()
}

/// Documents: objects whose fields are such values, sometimes with more fields than are searched linearly.
pub(crate) fn document() -> BoxedStrategy<Value> {
    let fields = prop::collection::vec((text(), value()), 0..40);
    fields.prop_map(|fields| Value::Object(fields.into_iter().collect::<Object>())).boxed()
}
