//! What must a document look like? JSON Schemas, one for each collection that wants one.
//!
//! Invariants: nothing is ever fetched from a file or the network; a pattern takes linear time, whatever it is.
//!
//! It knows neither revisions nor files: what is asked to meet a schema, and when, is the store's to say.

mod member;

use std::fmt;
use std::sync::Arc;

use jsonschema::{PatternOptions, Validator};
use serde::Serialize;

use crate::value::{Object, Value};
use crate::{Error, Result};
pub(crate) use member::{COLLECTION_END, check_collection_name, collection_of};

/// How large a schema may be, in bytes of JSON.
const BYTES_MAX: usize = 1 << 20;
/// So much is shown of what is wrong with a document.
const SHOWN_BYTES_MAX: usize = 300;

/// What the documents of a collection must look like: a JSON Schema, and what becomes of those that break it.
///
/// ```
/// # use stemmadb::{Database, ErrorKind, Schema};
/// # fn main() -> stemmadb::Result<()> {
/// # let db = Database::in_memory();
/// let schema = serde_json::json!({"required": ["title"], "properties": {"year": {"type": "integer"}}});
/// db.schemas().require("books", Schema::new(&schema)?)?;
/// let refused = db.insert("books:1", &serde_json::json!({"title": "Solaris", "year": "1961"})).unwrap_err();
/// assert_eq!(refused.kind(), ErrorKind::Invalid);
/// assert_eq!(refused.message(), "document `books:1` does not meet the schema of `books`: at /year: value is not of type \"integer\"");
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Schema {
    json: Value,
    foreign: Foreign,
    is_for_new_writes: bool,
    /// None if it was stored by a version that understood more of it.
    validator: Option<Arc<Validator>>,
}

/// What becomes of a revision that was written elsewhere and breaks a schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Foreign {
    /// It is refused, as a write here would be: this database never has such a document, though others do.
    #[default]
    Refuse,
    /// It is taken, so that replicas agree. [`Schemas::violations`](crate::Schemas::violations) finds it.
    Accept,
}

/// The schemas of a database, by collection, in the order of names.
#[derive(Clone, Debug, Default)]
pub(crate) struct Schemas(Vec<(Box<str>, Schema)>);

impl Schema {
    /// A JSON Schema: of draft 4, 6, 7, 2019-09 or 2020-12, as its `$schema` says, without one the last. References are to within it.
    ///
    /// # Errors
    /// `Invalid` if it is no schema, refers to something outside of it, or has more than 1 MiB.
    pub fn new<S: Serialize + ?Sized>(schema: &S) -> Result<Self> {
        Self::of(Value::from_serialize(schema)?)
    }

    /// What becomes of revisions that were written elsewhere ([`Edit::Foreign`](crate::Edit::Foreign)) and break it. Default: refused.
    #[must_use]
    pub fn foreign(mut self, foreign: Foreign) -> Self {
        self.foreign = foreign;
        self
    }

    /// Lets documents be that break it already, until they are written again. Default: it is not declared then.
    #[must_use]
    pub fn for_new_writes(mut self) -> Self {
        self.is_for_new_writes = true;
        self
    }

    /// The schema itself.
    pub fn json(&self) -> &Value {
        &self.json
    }

    /// What becomes of revisions that were written elsewhere and break it.
    pub fn foreign_policy(&self) -> Foreign {
        self.foreign
    }

    fn of(json: Value) -> Result<Self> {
        let text = json.to_json();
        if text.len() > BYTES_MAX {
            return Err(Error::invalid(format!("a schema of {} bytes is too large", text.len()))
                .with_hint(format!("a schema has at most {BYTES_MAX} bytes")));
        }
        let options = jsonschema::options().offline().with_pattern_options(PatternOptions::regex());
        let validator = options.should_validate_formats(true).build(&peer(&json)?).map_err(|error| {
            let place = error.instance_path().to_string();
            Error::invalid(format!("this is no JSON Schema: {}{}", at(&place), shown(&error.to_string()))).with_hint(
                "references must lie within the schema, and patterns have neither look-around nor back-references",
            )
        })?;
        Ok(Schema { json, foreign: Foreign::Refuse, is_for_new_writes: false, validator: Some(Arc::new(validator)) })
    }

    pub(crate) fn is_for_new_writes(&self) -> bool {
        self.is_for_new_writes
    }

    /// What is wrong with a document by this schema; none if it meets it.
    pub(crate) fn violation(&self, body: &Value) -> Result<Option<String>> {
        let Some(validator) = &self.validator else {
            return Err(Error::unavailable("the schema was declared by another version, which can read it")
                .with_hint("declare it anew, or drop it"));
        };
        let body = peer(body)?;
        if validator.is_valid(&body) {
            return Ok(None);
        }
        let mut errors = validator.iter_errors(&body);
        let Some(first) = errors.next() else { return Ok(None) };
        let what = format!("{}{}", at(&first.instance_path().to_string()), shown(&first.masked().to_string()));
        Ok(Some(match errors.count() {
            0 => what,
            more => format!("{what}, and {more} more"),
        }))
    }
}

/// The value as the validator takes it.
fn peer(value: &Value) -> Result<serde_json::Value> {
    serde_json::to_value(value)
        .map_err(|error| Error::internal(format!("a value that serde_json does not take: {error}")))
}

/// The place of what is wrong: nothing for the document itself.
fn at(pointer: &str) -> String {
    if pointer.is_empty() { String::new() } else { format!("at {}: ", shown(pointer)) }
}

fn shown(text: &str) -> String {
    match text.char_indices().nth(SHOWN_BYTES_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

const FIELD_COLLECTION: &str = "collection";
const FIELD_SCHEMA: &str = "schema";
const FIELD_ACCEPTS_FOREIGN: &str = "accepts_foreign";

impl Schemas {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &Schema)> {
        self.0.iter().map(|(name, schema)| (&**name, schema))
    }

    /// The schema of a collection.
    pub(crate) fn of_collection(&self, name: &str) -> Option<&Schema> {
        self.iter().find(|(known, _)| *known == name).map(|(_, schema)| schema)
    }

    /// Gives a collection a schema, or takes it away; whether it had another one.
    pub(crate) fn set(&mut self, name: &str, schema: Option<Schema>) -> bool {
        let before = self.0.len();
        self.0.retain(|(known, _)| **known != *name);
        let had_one = self.0.len() < before;
        if let Some(schema) = schema {
            self.0.push((name.into(), schema));
            self.0.sort_by(|a, b| a.0.cmp(&b.0));
        }
        had_one
    }

    /// # Errors
    /// `Invalid` if the document `id` breaks the schema of its collection, and is not to be taken all the same.
    pub(crate) fn check(&self, id: &str, body: &Value, is_foreign: bool) -> Result<()> {
        let Some(name) = collection_of(id).filter(|_| !self.is_empty()) else { return Ok(()) };
        let Some(schema) = self.of_collection(name) else { return Ok(()) };
        if is_foreign && schema.foreign == Foreign::Accept {
            return Ok(());
        }
        let context = |error: Error| error.within(format!("collection `{name}`"));
        match schema.violation(body).map_err(context)? {
            None => Ok(()),
            Some(what) => Err(Error::invalid(format!("document `{id}` does not meet the schema of `{name}`: {what}"))
                .with_hint("correct the document, or declare another schema")),
        }
    }

    /// As it is stored.
    pub(crate) fn to_value(&self) -> Value {
        let stored = self.iter().map(|(name, schema)| {
            let mut object = Object::new();
            object.insert(FIELD_COLLECTION, name);
            object.insert(FIELD_SCHEMA, schema.json.clone());
            if schema.foreign == Foreign::Accept {
                object.insert(FIELD_ACCEPTS_FOREIGN, true);
            }
            Value::Object(object)
        });
        Value::Array(stored.collect())
    }

    /// Those that were stored so. One that can't be understood refuses what is written to its collection, not the database.
    ///
    /// # Errors
    /// `Corrupt` if none were.
    pub(crate) fn from_value(value: &Value) -> Result<Self> {
        let damaged = || Error::corrupt("the stored schemas are damaged");
        let mut schemas = Schemas::default();
        for stored in value.as_array().ok_or_else(damaged)? {
            let name = stored.get(FIELD_COLLECTION).and_then(Value::as_str).ok_or_else(damaged)?;
            let json = stored.get(FIELD_SCHEMA).ok_or_else(damaged)?.clone();
            let accepts = stored.get(FIELD_ACCEPTS_FOREIGN).and_then(Value::as_bool).unwrap_or(false);
            let schema = Schema::of(json.clone()).unwrap_or(Schema {
                json,
                foreign: Foreign::Refuse,
                is_for_new_writes: false,
                validator: None,
            });
            schemas.set(name, Some(schema.foreign(if accepts { Foreign::Accept } else { Foreign::Refuse })));
        }
        Ok(schemas)
    }
}

impl fmt::Debug for Schema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Schema").field("json", &self.json).field("foreign", &self.foreign).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(text: &str) -> Value {
        Value::parse(text.as_bytes()).unwrap()
    }

    fn violation(schema: &str, body: &str) -> Option<String> {
        Schema::new(&json(schema)).unwrap().violation(&json(body)).unwrap()
    }

    #[test]
    fn what_is_wrong_is_told_with_its_place() {
        let schema = r##"{"type": "object", "required": ["a"], "properties": {"list": {"items": {"$ref": "#/$defs/n"}}},
            "$defs": {"n": {"type": "integer", "maximum": 9}}}"##;
        assert_eq!(violation(schema, r#"{"a": 1, "list": [1, 2.0]}"#), None);
        assert_eq!(violation(schema, r#"{"list": []}"#).unwrap(), "\"a\" is a required property");
        let two = violation(schema, r#"{"a": 1, "list": [1, "x", 10]}"#).unwrap();
        assert_eq!(two, "at /list/1: value is not of type \"integer\", and 1 more");
        let long = format!(r#"{{"a": 1, "{}": 1}}"#, "x".repeat(5000));
        assert!(violation(r#"{"additionalProperties": {"type": "string"}}"#, &long).unwrap().len() < 1000);
        assert!(violation(r#"{"properties": {"d": {"format": "date"}}}"#, r#"{"d": "2001-02-29"}"#).is_some());
        assert_eq!(
            violation(r#"{"properties": {"n": {"maximum": 18446744073709551614}}}"#, r#"{"n": 18446744073709551614}"#),
            None
        );
    }

    #[test]
    fn what_is_no_schema_is_refused() {
        for wrong in [
            r#"{"type": "thing"}"#,
            "5",
            r#"{"$ref": "https://example.org/schema.json"}"#,
            r#"{"$ref": "file:///etc/passwd"}"#,
            r##"{"$ref": "#/$defs/none"}"##,
            r#"{"pattern": "("}"#,
            r#"{"pattern": "(a)\\1"}"#,
        ] {
            assert_eq!(Schema::new(&json(wrong)).unwrap_err().kind(), crate::ErrorKind::Invalid, "{wrong}");
        }
        let deep = format!("{}true{}", r#"{"not":"#.repeat(100), "}".repeat(100));
        assert!(Schema::new(&json(&deep)).is_ok());
        // It ends, though its references go round.
        let round = r##"{"properties": {"next": {"$ref": "#"}}, "allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"type": "object"}}}"##;
        assert_eq!(violation(round, r#"{"next": {"next": {}}}"#), None);
        assert!(violation(round, r#"{"next": {"next": 5}}"#).is_some());
        for itself in [r##"{"$ref": "#"}"##, r##"{"allOf": [{"$ref": "#"}]}"##, r##"{"not": {"$ref": "#"}}"##] {
            let made = Schema::new(&json(itself));
            // Whatever it says, it says it.
            made.map(|schema| schema.violation(&json("{}")).ok()).ok();
        }
    }

    #[test]
    fn they_are_stored_as_they_are() {
        let mut schemas = Schemas::default();
        schemas.set("b", Some(Schema::new(&json(r#"{"type": "object"}"#)).unwrap().foreign(Foreign::Accept)));
        schemas.set("a", Some(Schema::new(&json("false")).unwrap()));
        let again = Schemas::from_value(&schemas.to_value()).unwrap();
        assert_eq!(again.to_value(), schemas.to_value());
        assert!(again.check("a:1", &json("{}"), true).is_err() && again.check("a", &json("{}"), false).is_ok());
        assert!(again.check("b:1", &json("{}"), false).is_ok());
        let unreadable = Schemas::from_value(&json(r#"[{"collection": "c", "schema": {"type": "thing"}}]"#)).unwrap();
        assert_eq!(unreadable.check("c:1", &json("{}"), false).unwrap_err().kind(), crate::ErrorKind::Unavailable);
    }
}
