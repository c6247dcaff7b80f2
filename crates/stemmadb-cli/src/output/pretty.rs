//! Indented JSON, colored on a terminal.

use stemmadb::{Object, Value};

/// An array or object of scalars of at most this width is printed on one line.
const ONE_LINE_MAX: usize = 72;

/// Escape sequences that color the parts of JSON text.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Palette {
    pub(crate) name: &'static str,
    string: &'static str,
    number: &'static str,
    literal: &'static str,
    pub(crate) reset: &'static str,
}

impl Palette {
    /// No colors.
    pub(crate) const PLAIN: Palette = Palette { name: "", string: "", number: "", literal: "", reset: "" };
    /// Colors for a terminal.
    pub(crate) const COLORED: Palette =
        Palette { name: "\x1b[1;34m", string: "\x1b[32m", number: "\x1b[36m", literal: "\x1b[35m", reset: "\x1b[0m" };
}

/// Formats `value` on several lines; short parts stay on one line.
pub(crate) fn pretty(value: &Value, palette: Palette) -> String {
    let mut text = String::new();
    write(value, 0, palette, &mut text);
    text
}

fn write(value: &Value, level: usize, palette: Palette, text: &mut String) {
    match value {
        Value::Array(elements) if !elements.is_empty() && !fits(value) => {
            text.push('[');
            for (at, element) in elements.iter().enumerate() {
                new_line(at, level + 1, text);
                write(element, level + 1, palette, text);
            }
            new_line(0, level, text);
            text.push(']');
        }
        Value::Object(object) if !object.is_empty() && (level == 0 || !fits(value)) => {
            text.push('{');
            for (at, (name, field)) in object.iter().enumerate() {
                new_line(at, level + 1, text);
                write_name(name, palette, text);
                write(field, level + 1, palette, text);
            }
            new_line(0, level, text);
            text.push('}');
        }
        Value::Array(elements) => {
            text.push('[');
            for (at, element) in elements.iter().enumerate() {
                text.push_str(if at == 0 { "" } else { ", " });
                write(element, level + 1, palette, text);
            }
            text.push(']');
        }
        Value::Object(object) => write_inline(object, level, palette, text),
        scalar => write_scalar(scalar, palette, text),
    }
}

fn write_inline(object: &Object, level: usize, palette: Palette, text: &mut String) {
    text.push('{');
    for (at, (name, field)) in object.iter().enumerate() {
        text.push_str(if at == 0 { "" } else { ", " });
        write_name(name, palette, text);
        write(field, level + 1, palette, text);
    }
    text.push('}');
}

fn write_name(name: &str, palette: Palette, text: &mut String) {
    let name = escape_controls(&Value::from(name).to_json());
    text.extend([palette.name, &name, palette.reset, ": "]);
}

fn write_scalar(value: &Value, palette: Palette, text: &mut String) {
    let color = match value {
        Value::String(_) => palette.string,
        Value::Number(_) => palette.number,
        _ => palette.literal,
    };
    text.extend([color, &escape_controls(&value.to_json()), palette.reset]);
}

fn new_line(at: usize, level: usize, text: &mut String) {
    text.push_str(if at == 0 { "\n" } else { ",\n" });
    text.extend(std::iter::repeat_n("  ", level));
}

/// Whether the value is short and shallow enough for one line.
fn fits(value: &Value) -> bool {
    fn width(value: &Value, depth: usize, left: usize) -> Option<usize> {
        let parts: Box<dyn Iterator<Item = (usize, &Value)>> = match value {
            Value::Array(elements) => Box::new(elements.iter().map(|element| (2, element))),
            Value::Object(object) => Box::new(object.iter().map(|(name, field)| (name.len() + 6, field))),
            Value::String(string) => return left.checked_sub(string.len() + 2),
            _ => return left.checked_sub(value.to_json().len()),
        };
        if depth == 0 {
            return None;
        }
        let mut left = left.checked_sub(2)?;
        for (more, part) in parts {
            left = width(part, depth - 1, left.checked_sub(more)?)?;
        }
        Some(left)
    }
    width(value, 2, ONE_LINE_MAX).is_some()
}

/// Escapes DEL and the C1 control characters, which JSON does not require to be escaped.
fn escape_controls(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for character in json.chars() {
        match character {
            '\u{7f}'..='\u{9f}' => text.push_str(&format!("\\u{:04x}", character as u32)),
            _ => text.push(character),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uncolored(json: &str) -> String {
        pretty(&Value::parse(json).unwrap(), Palette::PLAIN)
    }

    #[test]
    fn short_parts_stay_on_one_line() {
        assert_eq!(uncolored("{\"a\":[1,2],\"b\":{\"c\":null}}"), "{\n  \"a\": [1, 2],\n  \"b\": {\"c\": null}\n}");
        assert_eq!(uncolored("{}"), "{}");
        assert_eq!(uncolored("[]"), "[]");
        assert_eq!(uncolored("1.0"), "1.0");
    }

    #[test]
    fn long_parts_are_split_and_parse_equal() {
        let json = format!("{{\"a\":[{0},{0}],\"b\":[[[[1]]]]}}", Value::from("x".repeat(60)).to_json());
        let spread = uncolored(&json);
        assert!(spread.lines().all(|line| line.len() < 80), "{spread}");
        assert_eq!(Value::parse(&spread).unwrap(), Value::parse(&json).unwrap());
    }

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(uncolored("\"a\u{9b}31m\u{7f}\\u001b\""), "\"a\\u009b31m\\u007f\\u001b\"");
    }

    #[test]
    fn colors_surround_only_the_text() {
        let colored = pretty(&Value::parse("{\"a\":\"x\"}").unwrap(), Palette::COLORED);
        assert_eq!(colored, "{\n  \x1b[1;34m\"a\"\x1b[0m: \x1b[32m\"x\"\x1b[0m\n}");
    }
}
