//! Validation of a document against one compiled JSON Schema, by the `jsonschema` crate.

use jsonschema::PatternOptions;

use crate::value::Value;
use crate::{Error, Result};

/// The maximum length of a violation in an error message, in characters.
const SHOWN_CHARACTERS_MAX: usize = 300;

/// A compiled schema.
#[derive(Debug)]
pub(super) struct Validator(jsonschema::Validator);

impl Validator {
    /// Compiles a schema.
    ///
    /// # Errors
    /// `Invalid` if it is not a schema, or has external references.
    pub(super) fn compile(schema: &Value) -> Result<Self> {
        let options = jsonschema::options().offline().with_pattern_options(PatternOptions::regex());
        let validator = options.should_validate_formats(true).build(&to_serde_json(schema)?).map_err(|error| {
            let location = error.instance_path().to_string();
            let message = format!("{}{}", location_prefix(&location), truncate(&error.to_string()));
            Error::invalid(format!("not a valid JSON Schema: {message}")).with_hint(
                "references must stay within the schema, and patterns have neither look-around nor back-references",
            )
        })?;
        Ok(Validator(validator))
    }

    /// Describes how a document violates the schema; `None` if it is valid.
    pub(super) fn violation(&self, body: &Value) -> Result<Option<String>> {
        let body = to_serde_json(body)?;
        if self.0.is_valid(&body) {
            return Ok(None);
        }
        let mut errors = self.0.iter_errors(&body);
        let Some(first) = errors.next() else { return Ok(None) };
        let location = location_prefix(&first.instance_path().to_string());
        let violation = format!("{location}{}", truncate(&first.masked().to_string()));
        Ok(Some(match errors.count() {
            0 => violation,
            more => format!("{violation}, and {more} more"),
        }))
    }
}

/// Converts a value to the type that the validator takes.
fn to_serde_json(value: &Value) -> Result<serde_json::Value> {
    serde_json::to_value(value)
        .map_err(|error| Error::internal(format!("cannot convert a value to serde_json: {error}")))
}

/// The JSON pointer of a violation as a prefix of its message; empty for the document itself.
fn location_prefix(pointer: &str) -> String {
    if pointer.is_empty() { String::new() } else { format!("at {}: ", truncate(pointer)) }
}

fn truncate(text: &str) -> String {
    match text.char_indices().nth(SHOWN_CHARACTERS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
