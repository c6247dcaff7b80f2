//! Mango index definitions, stored as design documents with the language `query`.

use hyper::StatusCode;
use md5::{Digest, Md5};
use stemmadb::{Document, Index, Object, Value};

use crate::error::{Failure, Result};

/// The name prefix of library indexes that were created for Mango indexes.
pub(crate) const LIBRARY_PREFIX: &str = "mango:";

/// An index definition from a client.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct IndexDefinition {
    /// `[{"field": "asc"}, …]`.
    fields: Vec<Value>,
    /// The fields as the client sent them, which may be plain names.
    declared_fields: Value,
    partial: Value,
    pub(crate) ddoc: Option<String>,
    pub(crate) name: String,
    /// Whether it is for queries within a partition. Default in a partitioned database: true.
    partitioned: Option<bool>,
}

fn invalid(reason: impl Into<String>) -> Failure {
    Failure::new(StatusCode::BAD_REQUEST, "invalid_index", reason.into())
}

impl IndexDefinition {
    /// Parses the body of `POST _index`.
    ///
    /// # Errors
    /// 400 if the definition is invalid; 501 if its type is not supported.
    pub(crate) fn parse(body: &Value) -> Result<Self> {
        let index = body.get("index").ok_or_else(|| {
            Failure::new(StatusCode::BAD_REQUEST, "missing_required_key", "Missing required key: index")
        })?;
        match body.get("type").and_then(Value::as_str).unwrap_or("json") {
            "json" => {}
            kind => return Err(Failure::not_implemented(format!("indexes of the type {kind:?} are not supported"))),
        }
        let declared_fields = index.get("fields").and_then(Value::as_array).filter(|fields| !fields.is_empty());
        let declared_fields =
            declared_fields.ok_or_else(|| invalid("an index needs `fields`: an array of at least one field"))?;
        let fields = declared_fields.iter().map(parse_field).collect::<Result<Vec<_>>>()?;
        let partial = index.get("partial_filter_selector").cloned().unwrap_or_else(|| Object::new().into());
        let declared_fields = Value::Array(declared_fields.to_vec());
        let partitioned = match body.get("partitioned") {
            None => None,
            Some(Value::String(default)) if default == "db_default" => None,
            Some(Value::Bool(partitioned)) => Some(*partitioned),
            Some(_) => return Err(invalid("`partitioned` is true or false")),
        };
        let text = |name: &str| body.get(name).and_then(Value::as_str).map(str::to_owned);
        let ddoc = text("ddoc").map(|ddoc| ddoc.trim_start_matches("_design/").to_owned());
        let hash = || {
            let digest = Md5::digest(format!("{}{}", Value::Array(fields.clone()).to_json(), partial.to_json()));
            digest.iter().map(|byte| format!("{byte:02x}")).collect()
        };
        let name = text("name").unwrap_or_else(hash);
        Ok(IndexDefinition { fields, declared_fields, partial, ddoc, name, partitioned })
    }

    /// The id of the design document that stores the index.
    pub(crate) fn design_id(&self) -> String {
        format!("_design/{}", self.ddoc.as_ref().unwrap_or(&self.name))
    }

    /// The entry in the design document's `views`.
    fn view(&self) -> Value {
        let fields: Object =
            self.fields.iter().filter_map(Value::as_object).flatten().map(|(n, v)| (n, v.clone())).collect();
        let mut map = Object::new();
        map.insert("fields", fields);
        map.insert("partial_filter_selector", self.partial.clone());
        let mut def = Object::new();
        def.insert("fields", self.declared_fields.clone());
        if self.partial.as_object().is_some_and(|partial| !partial.is_empty()) {
            def.insert("partial_filter_selector", self.partial.clone());
        }
        let options: Object = [("def", Value::Object(def))].into_iter().collect();
        let mut view = Object::new();
        view.insert("map", map);
        view.insert("reduce", "_count");
        view.insert("options", options);
        view.into()
    }
}

/// Normalizes a field to `{name: direction}`.
fn parse_field(field: &Value) -> Result<Value> {
    let (name, direction) = match field {
        Value::String(name) => (name.as_str(), "asc"),
        Value::Object(object) if object.len() == 1 => match object.iter().next() {
            Some((name, Value::String(direction))) if matches!(direction.as_str(), "asc" | "desc") => {
                (name, direction.as_str())
            }
            _ => return Err(invalid("a field's direction is \"asc\" or \"desc\"")),
        },
        _ => return Err(invalid("a field is a name, or {name: direction}")),
    };
    Ok(Value::Object([(name, Value::from(direction))].into_iter().collect()))
}

/// Adds an index to the body of a design document; `None` if it contains the index already. The design document says
/// whether its indexes are for queries within a partition, if the database has any.
///
/// # Errors
/// 400 if the design document has another language, or its other indexes differ in that.
pub(crate) fn add_to_design_document(
    body: Option<Value>,
    definition: &IndexDefinition,
    has_partitions: bool,
) -> Result<Option<Value>> {
    let mut object = match body {
        Some(Value::Object(object)) => object,
        _ => [("language", Value::from("query")), ("views", Object::new().into())].into_iter().collect(),
    };
    if object.get("language").and_then(Value::as_str) != Some("query") {
        let reason = "The design document has another language";
        return Err(Failure::new(StatusCode::BAD_REQUEST, "invalid_design_doc_language", reason));
    }
    let partitioned = definition.partitioned.unwrap_or(has_partitions);
    let has_views = object.get("views").and_then(Value::as_object).is_some_and(|views| !views.is_empty());
    if has_views && is_partitioned(&object, has_partitions) != partitioned {
        let reason = "Requested partitioned option does not match the design document's";
        return Err(Failure::new(StatusCode::BAD_REQUEST, "invalid_partitioned_option", reason));
    }
    if has_partitions || partitioned {
        let options: Object = [("partitioned", Value::from(partitioned))].into_iter().collect();
        object.insert("options", options);
    }
    let view = definition.view();
    let mut views = object.get("views").and_then(Value::as_object).cloned().unwrap_or_default();
    if views.get(&definition.name) == Some(&view) {
        return Ok(None);
    }
    views.insert(&definition.name, view);
    object.insert("views", views);
    Ok(Some(object.into()))
}

/// A design document without an index, or without all; none if none is left.
///
/// # Errors
/// 404 if it has no such index.
pub(crate) fn without_index(mut design: Value, has_partitions: bool, name: Option<&str>) -> Result<Option<Value>> {
    let mut known = indexes_in(&design, has_partitions);
    let before = known.len();
    known.retain(|index| name.is_some_and(|name| index.name != name));
    if known.len() == before {
        return Err(Failure::missing());
    }
    if let (Some(object), Some(name)) = (design.as_object_mut(), name)
        && let Some(views) = object.get_mut("views").and_then(Value::as_object_mut)
    {
        views.remove(name);
    }
    Ok(if known.is_empty() { None } else { Some(design) })
}

/// Whether the indexes of a design document are for queries within a partition.
fn is_partitioned(design: &Object, default: bool) -> bool {
    let option = design.get("options").and_then(|options| options.get("partitioned"));
    option.and_then(Value::as_bool).unwrap_or(default)
}

/// An index stored in a design document.
#[derive(Debug, Clone)]
pub(crate) struct ListedIndex {
    pub(crate) ddoc: String,
    pub(crate) name: String,
    fields: Vec<Value>,
    partial: Option<Value>,
    /// Whether it is for queries within a partition.
    pub(super) is_partitioned: bool,
}

impl ListedIndex {
    /// The index as `GET _index` returns it.
    pub(crate) fn to_value(&self) -> Value {
        let mut def = Object::new();
        def.insert("fields", Value::Array(self.fields.clone()));
        if let Some(partial) = &self.partial {
            def.insert("partial_filter_selector", partial.clone());
        }
        let mut object = Object::new();
        object.insert("ddoc", self.ddoc.as_str());
        object.insert("name", self.name.as_str());
        object.insert("type", "json");
        object.insert("partitioned", self.is_partitioned);
        object.insert("def", def);
        object.into()
    }

    /// The selector of a partial index.
    pub(crate) fn partial(&self) -> Option<&Value> {
        self.partial.as_ref()
    }

    /// Whether `use_index` with this design document (without `_design/`) and this index name names it.
    pub(crate) fn is_named(&self, ddoc: &str, name: Option<&str>) -> bool {
        self.ddoc.strip_prefix("_design/") == Some(ddoc) && name.is_none_or(|name| name == self.name)
    }

    /// The names of its fields.
    pub(crate) fn field_names(&self) -> impl Iterator<Item = &str> {
        self.fields.iter().filter_map(|field| field.as_object()?.names().next())
    }

    /// Its fields, and whether each is descending.
    pub(crate) fn paths(&self) -> impl Iterator<Item = (&str, bool)> {
        let fields = self.fields.iter().filter_map(|field| field.as_object()?.iter().next());
        fields.map(|(name, direction)| (name, direction.as_str() == Some("desc")))
    }

    /// The library index to create for it. `None` for single fields, which are always indexed, and for partial indexes,
    /// which the library does not have.
    pub(crate) fn library_index(&self) -> Option<Index> {
        let mut fields = self.fields.iter().filter_map(|field| field.as_object()?.iter().next());
        if self.fields.len() < 2 || self.partial.is_some() {
            return None;
        }
        let is_descending = |direction: &Value| direction.as_str() == Some("desc");
        let (first, direction) = fields.next()?;
        let index = if is_descending(direction) { Index::on_descending(first) } else { Index::on(first) };
        let index = fields.fold(index, |index, (field, direction)| match is_descending(direction) {
            true => index.then_descending(field),
            false => index.then(field),
        });
        // Derive the name from the fields, so that equal definitions share one library index.
        let name = format!("{LIBRARY_PREFIX}{}", index.name());
        Some(index.named(name))
    }

    /// CouchDB's built-in index on `_id`.
    pub(crate) fn special() -> Value {
        let id: Object = [("_id", Value::from("asc"))].into_iter().collect();
        let def: Object = [("fields", Value::Array(vec![id.into()]))].into_iter().collect();
        let mut object = Object::new();
        object.insert("ddoc", Value::Null);
        object.insert("name", "_all_docs");
        object.insert("type", "special");
        object.insert("def", def);
        object.into()
    }
}

/// Reads the indexes stored in a design document of a database that has partitions or none.
pub(super) fn indexes_of(document: &Document, has_partitions: bool) -> Result<Vec<ListedIndex>> {
    if document.get("language")? != Some(Value::from("query")) {
        return Ok(Vec::new());
    }
    let mut design = document.value()?;
    if let Some(design) = design.as_object_mut() {
        design.insert("_id", document.id().as_str());
    }
    Ok(indexes_in(&design, has_partitions))
}

/// As [`indexes_of`], of a design document as JSON, with its id.
pub(crate) fn indexes_in(design: &Value, has_partitions: bool) -> Vec<ListedIndex> {
    if design.get("language").and_then(Value::as_str) != Some("query") {
        return Vec::new();
    }
    let is_partitioned = design.as_object().is_some_and(|design| is_partitioned(design, has_partitions));
    let mut found = Vec::new();
    for (name, view) in design.get("views").and_then(Value::as_object).into_iter().flatten() {
        let map = view.get("map");
        let fields = map.and_then(|map| map.get("fields")).and_then(Value::as_object);
        let Some(fields) = fields else { continue };
        let fields =
            fields.iter().map(|(name, direction)| Value::Object([(name, direction.clone())].into_iter().collect()));
        let partial = map.and_then(|map| map.get("partial_filter_selector")).cloned();
        found.push(ListedIndex {
            ddoc: design.get("_id").and_then(Value::as_str).unwrap_or_default().to_owned(),
            name: name.to_owned(),
            fields: fields.collect(),
            partial: partial.filter(|partial| partial.as_object().is_some_and(|partial| !partial.is_empty())),
            is_partitioned,
        });
    }
    found
}
