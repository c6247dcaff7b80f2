//! JSON Schemas of collections, and validation of documents against them.
//!
//! Invariants: references are never fetched from a file or the network; every pattern matches in linear time.
//!
//! This module does not depend on revisions or files. The store decides what is validated, and when.

mod member;
#[cfg(not(feature = "schema"))]
#[path = "no_validator.rs"]
mod validator;
#[cfg(feature = "schema")]
mod validator;

use std::fmt;
use std::sync::Arc;

use serde::Serialize;

use crate::value::{Object, Value};
use crate::{Error, Result};
use validator::Validator;

pub(crate) use member::{COLLECTION_END, check_collection_name, collection_of};

/// The maximum size of a schema, in bytes of JSON.
const BYTES_MAX: usize = 1 << 20;

/// A JSON Schema that the documents of a collection must match, and the policy for replicated revisions that violate
/// it.
///
/// ```
/// # use stemmadb::{Database, ErrorKind, Schema};
/// # fn main() -> stemmadb::Result<()> {
/// # let db = Database::in_memory();
/// let schema = serde_json::json!({"required": ["title"], "properties": {"year": {"type": "integer"}}});
/// db.schemas().require("books", Schema::new(&schema)?)?;
/// let refused = db.insert("books:1", &serde_json::json!({"title": "Solaris", "year": "1961"})).unwrap_err();
/// assert_eq!(refused.kind(), ErrorKind::Invalid);
/// assert_eq!(
///     refused.message(),
///     "document `books:1` does not meet the schema of `books`: at /year: value is not of type \"integer\""
/// );
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Schema {
    json: Value,
    foreign: ForeignPolicy,
    is_for_new_writes: bool,
    /// `None` if the schema was stored by a version that supports keywords this one rejects.
    validator: Option<Arc<Validator>>,
}

/// The policy for a revision that another replica wrote and that violates a schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ForeignPolicy {
    /// Reject it, like a local write. This database never has such a document, though other replicas may.
    #[default]
    Refuse,
    /// Accept it, so that replicas agree. [`Schemas::violations`](crate::handles::Schemas::violations) finds it.
    Accept,
}

/// The schemas of a database, sorted by collection name; each collection has at most one.
#[derive(Clone, Debug, Default)]
pub(crate) struct CollectionSchemas(Vec<(Box<str>, Schema)>);

impl Schema {
    /// Compiles a JSON Schema of draft 4, 6, 7, 2019-09 or 2020-12. `$schema` selects the draft; the default is
    /// 2020-12. References must stay within the schema.
    ///
    /// # Errors
    /// `Invalid` if it is not a schema, has external references, or is larger than 1 MiB.
    pub fn new<S: Serialize + ?Sized>(schema: &S) -> Result<Self> {
        Self::compile(Value::from_serialize(schema)?)
    }

    /// Sets the policy for revisions that another replica wrote ([`Edit::Foreign`](crate::Edit::Foreign)) and that
    /// violate the schema. Default: [`ForeignPolicy::Refuse`].
    #[must_use]
    pub fn foreign(mut self, foreign: ForeignPolicy) -> Self {
        self.foreign = foreign;
        self
    }

    /// Applies the schema to future writes only: existing documents may violate it until they are written again. By
    /// default, declaring a schema fails if an existing document violates it.
    #[must_use]
    pub fn for_new_writes(mut self) -> Self {
        self.is_for_new_writes = true;
        self
    }

    /// The schema as JSON.
    pub fn json(&self) -> &Value {
        &self.json
    }

    /// The policy for revisions that another replica wrote and that violate the schema.
    pub fn foreign_policy(&self) -> ForeignPolicy {
        self.foreign
    }

    fn compile(json: Value) -> Result<Self> {
        let text = json.to_json();
        if text.len() > BYTES_MAX {
            return Err(Error::invalid(format!("a schema of {} bytes is too large", text.len()))
                .with_hint(format!("a schema has at most {BYTES_MAX} bytes")));
        }
        let validator = Validator::compile(&json)?;
        Ok(Schema {
            json,
            foreign: ForeignPolicy::Refuse,
            is_for_new_writes: false,
            validator: Some(Arc::new(validator)),
        })
    }

    /// Whether it applies to future writes only.
    pub fn is_for_new_writes(&self) -> bool {
        self.is_for_new_writes
    }

    /// Describes how a document violates the schema; `None` if it is valid.
    pub(crate) fn violation(&self, body: &Value) -> Result<Option<String>> {
        let Some(validator) = &self.validator else {
            return Err(Error::unavailable(
                "the schema was declared by another version, and this version can't read it",
            )
            .with_hint("declare it again, or drop it"));
        };
        validator.violation(body)
    }
}

const FIELD_COLLECTION: &str = "collection";
const FIELD_SCHEMA: &str = "schema";
const FIELD_ACCEPTS_FOREIGN: &str = "accepts_foreign";

impl CollectionSchemas {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &Schema)> {
        self.0.iter().map(|(name, schema)| (&**name, schema))
    }

    /// The schema of a collection.
    pub(crate) fn of_collection(&self, name: &str) -> Option<&Schema> {
        self.iter().find(|(collection, _)| *collection == name).map(|(_, schema)| schema)
    }

    /// Sets or removes the schema of a collection. Returns whether it had one before.
    pub(crate) fn set(&mut self, name: &str, schema: Option<Schema>) -> bool {
        let before = self.0.len();
        self.0.retain(|(collection, _)| **collection != *name);
        let had_one = self.0.len() < before;
        if let Some(schema) = schema {
            self.0.push((name.into(), schema));
            self.0.sort_by(|a, b| a.0.cmp(&b.0));
        }
        debug_assert!(
            self.0.is_sorted_by(|a, b| a.0 < b.0),
            "a collection has one schema, and they are sorted by name"
        );
        had_one
    }

    /// Validates the document `id` against the schema of its collection, if it has one.
    ///
    /// # Errors
    /// `Invalid` if the document violates the schema and is not exempt by [`ForeignPolicy::Accept`]. `Unavailable` if
    /// this version can't read the schema.
    pub(crate) fn check(&self, id: &str, body: &Value, is_foreign: bool) -> Result<()> {
        let Some(name) = collection_of(id).filter(|_| !self.is_empty()) else { return Ok(()) };
        let Some(schema) = self.of_collection(name) else { return Ok(()) };
        if is_foreign && schema.foreign == ForeignPolicy::Accept {
            return Ok(());
        }
        let context = |error: Error| error.within(format!("collection `{name}`"));
        match schema.violation(body).map_err(context)? {
            None => Ok(()),
            Some(violation) => {
                Err(Error::invalid(format!("document `{id}` does not meet the schema of `{name}`: {violation}"))
                    .with_hint("correct the document, or declare another schema"))
            }
        }
    }

    /// The stored form.
    pub(crate) fn to_value(&self) -> Value {
        let stored = self.iter().map(|(name, schema)| {
            let mut object = Object::new();
            object.insert(FIELD_COLLECTION, name);
            object.insert(FIELD_SCHEMA, schema.json.clone());
            if schema.foreign == ForeignPolicy::Accept {
                object.insert(FIELD_ACCEPTS_FOREIGN, true);
            }
            Value::Object(object)
        });
        Value::Array(stored.collect())
    }

    /// Decodes the stored form. A schema that does not compile rejects writes to its collection; the database still
    /// opens.
    ///
    /// # Errors
    /// `Corrupt` if the value is not a list of schemas.
    pub(crate) fn from_value(value: &Value) -> Result<Self> {
        let damaged = || Error::corrupt("the stored schemas are damaged");
        let mut schemas = CollectionSchemas::default();
        for stored in value.as_array().ok_or_else(damaged)? {
            let name = stored.get(FIELD_COLLECTION).and_then(Value::as_str).ok_or_else(damaged)?;
            let json = stored.get(FIELD_SCHEMA).ok_or_else(damaged)?.clone();
            let accepts = stored.get(FIELD_ACCEPTS_FOREIGN).and_then(Value::as_bool).unwrap_or(false);
            let schema = Schema::compile(json.clone()).unwrap_or(Schema {
                json,
                foreign: ForeignPolicy::Refuse,
                is_for_new_writes: false,
                validator: None,
            });
            schemas
                .set(name, Some(schema.foreign(if accepts { ForeignPolicy::Accept } else { ForeignPolicy::Refuse })));
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
    fn violations_name_their_location() {
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
    fn invalid_schemas_are_rejected() {
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
        // Validation with recursive references terminates.
        let recursive = r##"{"properties": {"next": {"$ref": "#"}}, "allOf": [{"$ref": "#/$defs/a"}],
            "$defs": {"a": {"type": "object"}}}"##;
        assert_eq!(violation(recursive, r#"{"next": {"next": {}}}"#), None);
        assert!(violation(recursive, r#"{"next": {"next": 5}}"#).is_some());
        // Any result will do for schemas that refer to themselves, as long as there is one.
        for circular in [r##"{"$ref": "#"}"##, r##"{"allOf": [{"$ref": "#"}]}"##, r##"{"not": {"$ref": "#"}}"##] {
            Schema::new(&json(circular)).map(|schema| schema.violation(&json("{}")).ok()).ok();
        }
    }

    #[test]
    fn schemas_round_trip_through_their_stored_form() {
        let mut schemas = CollectionSchemas::default();
        schemas.set("b", Some(Schema::new(&json(r#"{"type": "object"}"#)).unwrap().foreign(ForeignPolicy::Accept)));
        schemas.set("a", Some(Schema::new(&json("false")).unwrap()));
        let again = CollectionSchemas::from_value(&schemas.to_value()).unwrap();
        assert_eq!(again.to_value(), schemas.to_value());
        assert!(again.check("a:1", &json("{}"), true).is_err() && again.check("a", &json("{}"), false).is_ok());
        assert!(again.check("b:1", &json("{}"), false).is_ok());
        let unreadable =
            CollectionSchemas::from_value(&json(r#"[{"collection": "c", "schema": {"type": "thing"}}]"#)).unwrap();
        assert_eq!(unreadable.check("c:1", &json("{}"), false).unwrap_err().kind(), crate::ErrorKind::Unavailable);
    }
}
