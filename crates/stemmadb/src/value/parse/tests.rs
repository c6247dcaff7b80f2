//! Tests of the parser: accepted values, error positions and messages, limits, and arbitrary input.

use proptest::prelude::*;

use super::*;
use crate::value::DEPTH_MAX;

fn parse_error(text: &[u8]) -> ParseError {
    let error = Value::parse(text).expect_err(&String::from_utf8_lossy(text));
    ParseError::of(&error).expect("caused by a parse error").clone()
}

#[track_caller]
fn assert_rejected(text: impl AsRef<[u8]>, position: usize, message: &str) {
    let error = parse_error(text.as_ref());
    assert_eq!((error.position(), error.message()), (position, message));
}

#[track_caller]
fn assert_parses(text: &str, value: impl Into<Value>) {
    assert_eq!(Value::parse(text).expect(text), value.into());
}

#[test]
fn numbers_keep_their_digits_or_are_rejected() {
    assert_parses("0", 0);
    assert_parses("-9223372036854775808", i64::MIN);
    assert_parses("9223372036854775807", i64::MAX);
    assert_parses("9223372036854775808", i64::MAX as u64 + 1);
    assert_parses("18446744073709551615", u64::MAX);
    assert_parses("9007199254740993", (1i64 << 53) + 1);
    assert_parses("1.0", 1.0);
    assert_parses("-0", -0.0);
    assert_parses("1E+2", 100.0);
    assert_parses("1e-400", 0.0);
    assert_parses("18446744073709551616", 18446744073709551616.0);
    assert_parses("18446744073709552000", 18446744073709551616.0);
    assert_parses("100000000000000000000", 1e20);
    assert_parses("-100000000000000000000", -1e20);
    assert_parses(&format!("1{}", "0".repeat(308)), 1e308);
    for lossy in ["18446744073709551617", "-9223372036854775809", "123456789012345678901234567890"] {
        assert_rejected(lossy, 0, "an integer outside -2^63 to 2^64 - 1, which would lose digits");
    }
    for large in ["1e400", "-1e309", &format!("1{}", "0".repeat(400))] {
        assert_rejected(large, 0, "a number too large for a double");
    }
    assert_rejected("01", 0, "a number with a leading zero");
    assert_rejected("[-00]", 2, "a number with a leading zero");
    assert_rejected("-", 1, "expected a digit, found the end of the text");
    assert_rejected("1.", 2, "expected a digit, found the end of the text");
    assert_rejected("1.e1", 2, "expected a digit, found `e`");
    assert_rejected("1e", 2, "expected a digit, found the end of the text");
    assert_rejected("+1", 0, "expected a value, found `+`");
    assert_rejected(".5", 0, "expected a value, found `.`");
    assert_rejected("NaN", 0, "expected a value, found `N`");
    assert_rejected("0x10", 1, "expected the end of the text after one value, found `x`");
}

#[test]
fn strings_are_unescaped_and_checked() {
    assert_parses(r#""""#, "");
    assert_parses(r#""\u0000\u00e9\ud83d\ude00\uFFFF""#, "\u{0}é😀\u{FFFF}");
    assert_parses(r#""12345678\"90123456\\""#, "12345678\"90123456\\");
    assert_parses("\"\u{7f}\u{80}é€😀\"", "\u{7f}\u{80}é€😀");
    assert_rejected(r#""\ud83d""#, 1, "half of a surrogate pair in a string");
    assert_rejected(r#""\ud83d\n""#, 1, "half of a surrogate pair in a string");
    assert_rejected(r#""\ud83d\u0041""#, 1, "half of a surrogate pair in a string");
    assert_rejected(r#""\ude00""#, 1, "half of a surrogate pair in a string");
    assert_rejected(r#""\u12g4""#, 5, "expected four hexadecimal digits after `\\u`, found `g`");
    assert_rejected(r#""\x""#, 2, "expected one of `\"\\/bfnrtu` after `\\`, found `x`");
    assert_rejected("\"a\nb\"", 2, "the control character U+000A inside a string");
    assert_rejected("\"abc", 4, "expected `\"` at the end of the string, found the end of the text");
    assert_rejected(b"\"\xFF\"", 1, "invalid UTF-8");
    assert_rejected(b"\"\xC0\x80\"", 1, "invalid UTF-8");
    assert_rejected(b"\"\xED\xA0\x80\"", 1, "invalid UTF-8");
    assert_rejected("\u{FEFF}1", 0, "a byte order mark before the value");
}

#[test]
fn duplicate_names_are_rejected() {
    assert_rejected(r#"{"role":1,"ro\u006ce":2}"#, 10, "the field \"role\" is given twice in one object");
    assert_rejected(r#"[{"":1,"":2}]"#, 7, "the field \"\" is given twice in one object");
    assert_parses(
        r#"[{"a":{"a":1}},{"a":1}]"#,
        Value::from([Value::parse(r#"{"a":{"a":1}}"#).unwrap(), Value::parse(r#"{"a":1}"#).unwrap()]),
    );
    for count in [2, INDEX_FROM, INDEX_FROM + 1, INDEX_FROM + 2, 1000] {
        let fields: Vec<String> = (0..count).map(|i| format!("\"field{i}\":{i}")).collect();
        let unique = format!("{{{}}}", fields.join(","));
        let value = Value::parse(&unique).expect("names differ");
        assert_eq!(value.get(&format!("field{}", count - 1)), Some(&Value::from(count - 1)));
        for repeated in [0, count / 2, count - 1] {
            let duplicate = format!("{},\"field{repeated}\":0}}", &unique[..unique.len() - 1]);
            let message = format!("the field \"field{repeated}\" is given twice in one object");
            assert_rejected(duplicate, unique.len(), &message);
        }
    }
}

#[test]
fn structure_is_strict() {
    assert_rejected("", 0, "expected a value, found the end of the text");
    assert_rejected(" \t\r\n", 4, "expected a value, found the end of the text");
    assert_rejected("1 2", 2, "expected the end of the text after one value, found `2`");
    assert_rejected("[1,]", 3, "expected a value, found `]`");
    assert_rejected("[1 2]", 3, "expected `,` or `]`, found `2`");
    assert_rejected("{\"a\":1,}", 7, "expected a field's name in double quotes, found `}`");
    assert_rejected("{a:1}", 1, "expected a field's name in double quotes, found `a`");
    assert_rejected("{\"a\" 1}", 5, "expected `:` after the field's name, found `1`");
    assert_rejected("{\"a\":1", 6, "expected `,` or `}`, found the end of the text");
    assert_rejected("nul", 3, "expected `null`, found the end of the text");
    assert_rejected("trve", 2, "expected `true`, found `v`");
    assert_rejected("[1}", 2, "expected `,` or `]`, found `}`");
    assert_rejected("'a'", 0, "expected a value, found `'`");
    assert_rejected("/* */1", 0, "expected a value, found `/`");
    assert_rejected("\u{a0}1", 0, "expected a value, found `\u{a0}`");
    assert_rejected("\u{c}1", 0, "expected a value, found U+000C");
}

#[test]
fn limits_are_exact() {
    let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    assert!(Value::parse(nested(DEPTH_MAX)).is_ok());
    assert_rejected(nested(DEPTH_MAX + 1), DEPTH_MAX, "more than 128 arrays and objects within each other");
    assert_rejected("[".repeat(1_000_000), DEPTH_MAX, "more than 128 arrays and objects within each other");
    assert_rejected("{\"a\":".repeat(1_000_000), 5 * DEPTH_MAX, "more than 128 arrays and objects within each other");
    let limits = Limits { bytes: 20, nodes: 4, depth: 2 };
    let parse = |text: &str| Value::parse_with(text, &limits).map_err(|error| error.to_string());
    assert!(parse("[1,2,3]").is_ok());
    assert_eq!(parse("[1,2,3,4]"), Err("more than 4 values in one document at byte 7".into()));
    assert_eq!(parse("[[[]]]"), Err("more than 2 arrays and objects within each other at byte 2".into()));
    assert!(parse(&format!("\"{}\"", "x".repeat(18))).is_ok());
    assert_eq!(parse(&format!("\"{}\"", "x".repeat(19))), Err("more than 20 bytes in one document at byte 20".into()));
}

#[test]
fn parse_prefix_reads_only_the_first_value() {
    let parse = |text: &str| Value::parse_prefix(text, &Limits::default());
    assert_eq!(parse(" [1] , 2").expect("a value first"), (Value::from([1]), 4));
    assert_eq!(parse("12").expect("a value first"), (Value::from(12), 2));
    for bytes in [FIRST_PREFIX_BYTES - 5, FIRST_PREFIX_BYTES, 20 * FIRST_PREFIX_BYTES] {
        for (long, end) in [("9".repeat(8), 0), ("é".repeat(4), 1), ("\\\"\\\"".into(), 1)] {
            let text = format!("{}{}{long}{}\u{e9}]", " ".repeat(bytes), &"\""[1 - end..], &"\""[1 - end..]);
            let (_, consumed) = parse(&text).expect("a value first");
            assert_eq!(consumed, bytes + long.len() + 2 * end);
        }
    }
    let limits = Limits { bytes: 10_000, ..Limits::default() };
    assert!(Value::parse_prefix("[0] ".repeat(10_000), &limits).is_ok());
    let error = Value::parse_prefix(format!("\"{}\"", "x".repeat(10_000)), &limits).expect_err("too long");
    assert_eq!(error.to_string(), "more than 10000 bytes in one document at byte 10000");
    assert!(Value::parse_prefix(b"[1] \xFF", &limits).is_ok());
    for (broken, position) in [(&b"\"a\xFF\""[..], 2), (b"[1\xFF", 2)] {
        let error = Value::parse_prefix(broken, &limits).expect_err("invalid UTF-8");
        let error = ParseError::of(&error).expect("a parse error").clone();
        assert_eq!((error.message(), error.position(), error.is_incomplete()), ("invalid UTF-8", position, false));
    }
    for incomplete in ["", " ", "[1", "[1,", "{\"a", "\"\\", "\"\\ud83d\\", "tru", "-", "1e", "\"\\u1"] {
        let error = parse(incomplete).expect_err(incomplete);
        assert!(ParseError::of(&error).expect("a parse error").is_incomplete(), "{incomplete}");
    }
    for wrong in ["]", "[1 2", "\"\\x", "trx", "1.x", "\u{1}"] {
        let error = parse(wrong).expect_err(wrong);
        assert!(!ParseError::of(&error).expect("a parse error").is_incomplete(), "{wrong}");
    }
}

#[test]
fn errors_have_line_and_column() {
    let text = "{\n  \"é\": nul\n}".as_bytes();
    let error = parse_error(text);
    assert_eq!(error.to_string(), "expected `null`, found U+000A at byte 13");
    assert_eq!(error.line_and_column(text), (2, 11));
    assert_eq!(error.line_and_column(b""), (1, 1));
}

#[test]
fn large_stacks_grow_once_to_the_expected_size() {
    let grown = |count: usize, at, length, nodes_left| {
        let mut stack = vec![0_u8; count];
        stack.shrink_to_fit();
        grow_stack(&mut stack, at, length, nodes_left);
        stack.capacity()
    };
    assert_eq!(grown(5_000, 10_000, 1_010_000, usize::MAX), 5_000 + 562_500);
    assert_eq!(grown(5_000, 10_000, 1_010_000, 99_999), 105_000, "at most the nodes that are left");
    assert_eq!(grown(5_000, 10_000, 10_001, 99_999), 10_000, "at least doubled");
    assert!(grown(100, 200, 1_000_000, usize::MAX) < 1_000, "small stacks double");
}

#[test]
fn large_containers_parse_at_any_nesting() {
    let list = |count: usize| format!("[{}0]", "1,".repeat(count));
    let object =
        |count: usize| format!("{{{}\"z\":0}}", (0..count).map(|n| format!("\"{n}\":{n},")).collect::<String>());
    for count in [LARGE_COUNT - 2, LARGE_COUNT, 3 * LARGE_COUNT] {
        let (list, object) = (list(count), object(count));
        for text in [
            format!("[0,{list},{list},[{list},{object}],{object}]"),
            format!("{{\"a\":{object},\"b\":{list},\"c\":{{\"d\":{object},\"e\":{object}}}}}"),
        ] {
            assert_eq!(Value::parse(&text).expect("good JSON").to_json(), text);
        }
    }
}

proptest! {
    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        Value::parse(&bytes).ok();
    }

    #[test]
    fn random_json_like_text_never_panics(text in "[\\[\\]{}\",:\\\\0-9eE.+a-fnulrtsu \n-]{0,40}") {
        let parsed = Value::parse(&text);
        let reference = serde_json::from_str::<serde_json::Value>(&text);
        // This parser rejects more than the grammar does, and accepts nothing that serde_json rejects.
        prop_assert!(reference.is_ok() || parsed.is_err(), "{}", text);
    }

    #[test]
    fn doubles_are_the_nearest(digits in "-?(0|[1-9][0-9]{0,25})(\\.[0-9]{1,25})?([eE][+-]?[0-9]{1,3})?") {
        let nearest: f64 = digits.parse().expect("a number");
        match Value::parse(&digits) {
            Ok(value) if value.as_number().is_some_and(|number| number.is_integer()) => {
                prop_assert_eq!(value.to_json(), digits);
            }
            Ok(value) => prop_assert_eq!(value.as_f64().map(f64::to_bits), Some(nearest.to_bits())),
            Err(_) => prop_assert!(nearest.is_infinite() || digits.trim_start_matches('-').len() > 18),
        }
    }

    #[test]
    fn damaged_text_never_panics(
        value in crate::value::arbitrary::value(),
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let mut text = value.to_json().into_bytes();
        let at = at.index(text.len());
        text[at] = byte;
        Value::parse(&text).ok();
        Value::parse(&text[..at]).ok();
    }
}
