//! JSON for people: spread over lines and, on a terminal, in colours.

use stemmadb::{Object, Value};

/// Up to this many characters an array or object of plain values stays on one line.
const ONE_LINE_MAX: usize = 72;

/// What is written before and after names, strings and so on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Paint {
    pub(crate) name: &'static str,
    string: &'static str,
    number: &'static str,
    word: &'static str,
    pub(crate) end: &'static str,
}

impl Paint {
    /// For pipes, and where colours are not wanted.
    pub(crate) const PLAIN: Paint = Paint { name: "", string: "", number: "", word: "", end: "" };
    /// For terminals.
    pub(crate) const COLORED: Paint =
        Paint { name: "\x1b[1;34m", string: "\x1b[32m", number: "\x1b[36m", word: "\x1b[35m", end: "\x1b[0m" };
}

/// `value` spread over lines; what fits on a line stays there.
pub(crate) fn pretty(value: &Value, paint: Paint) -> String {
    let mut text = String::new();
    write(value, 0, paint, &mut text);
    text
}

fn write(value: &Value, level: usize, paint: Paint, text: &mut String) {
    match value {
        Value::Array(elements) if !elements.is_empty() && !fits(value) => {
            text.push('[');
            for (at, element) in elements.iter().enumerate() {
                new_line(at, level + 1, text);
                write(element, level + 1, paint, text);
            }
            new_line(0, level, text);
            text.push(']');
        }
        Value::Object(object) if !object.is_empty() && (level == 0 || !fits(value)) => {
            text.push('{');
            for (at, (name, field)) in object.iter().enumerate() {
                new_line(at, level + 1, text);
                write_name(name, paint, text);
                write(field, level + 1, paint, text);
            }
            new_line(0, level, text);
            text.push('}');
        }
        Value::Array(elements) => {
            text.push('[');
            for (at, element) in elements.iter().enumerate() {
                text.push_str(if at == 0 { "" } else { ", " });
                write(element, level + 1, paint, text);
            }
            text.push(']');
        }
        Value::Object(object) => write_inline(object, level, paint, text),
        scalar => write_scalar(scalar, paint, text),
    }
}

fn write_inline(object: &Object, level: usize, paint: Paint, text: &mut String) {
    text.push('{');
    for (at, (name, field)) in object.iter().enumerate() {
        text.push_str(if at == 0 { "" } else { ", " });
        write_name(name, paint, text);
        write(field, level + 1, paint, text);
    }
    text.push('}');
}

fn write_name(name: &str, paint: Paint, text: &mut String) {
    let name = visible(&Value::from(name).to_json());
    text.extend([paint.name, &name, paint.end, ": "]);
}

fn write_scalar(value: &Value, paint: Paint, text: &mut String) {
    let color = match value {
        Value::String(_) => paint.string,
        Value::Number(_) => paint.number,
        _ => paint.word,
    };
    text.extend([color, &visible(&value.to_json()), paint.end]);
}

fn new_line(at: usize, level: usize, text: &mut String) {
    text.push_str(if at == 0 { "\n" } else { ",\n" });
    text.extend(std::iter::repeat_n("  ", level));
}

/// Whether the value is short and not deep.
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

/// JSON text in which no control character reaches the terminal: JSON itself escapes the lower ones only.
fn visible(json: &str) -> String {
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

    fn plain(json: &str) -> String {
        pretty(&Value::parse(json).unwrap(), Paint::PLAIN)
    }

    #[test]
    fn short_parts_stay_on_their_line() {
        assert_eq!(plain("{\"a\":[1,2],\"b\":{\"c\":null}}"), "{\n  \"a\": [1, 2],\n  \"b\": {\"c\": null}\n}");
        assert_eq!(plain("{}"), "{}");
        assert_eq!(plain("[]"), "[]");
        assert_eq!(plain("1.0"), "1.0");
    }

    #[test]
    fn long_parts_spread_and_mean_the_same() {
        let json = format!("{{\"a\":[{0},{0}],\"b\":[[[[1]]]]}}", Value::from("x".repeat(60)).to_json());
        let spread = plain(&json);
        assert!(spread.lines().all(|line| line.len() < 80), "{spread}");
        assert_eq!(Value::parse(&spread).unwrap(), Value::parse(&json).unwrap());
    }

    #[test]
    fn no_control_character_gets_out() {
        assert_eq!(plain("\"a\u{9b}31m\u{7f}\\u001b\""), "\"a\\u009b31m\\u007f\\u001b\"");
    }

    #[test]
    fn colours_surround_the_text_only() {
        let colored = pretty(&Value::parse("{\"a\":\"x\"}").unwrap(), Paint::COLORED);
        assert_eq!(colored, "{\n  \x1b[1;34m\"a\"\x1b[0m: \x1b[32m\"x\"\x1b[0m\n}");
    }
}
