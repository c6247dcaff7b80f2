//! Views that are told as JSON, and kept in the database: what the command, a server and other languages use.
//!
//! They are stored as CouchDB stores its views, in design documents, so that they replicate: the view `sales/by_author` is
//! `views.by_author` of `_design/sales`, whose `language` is `stemma`. A name without a slash stands for both.

use serde::Serialize;
use twox_hash::XxHash3_64;

use super::definition::{Emitter, Reduction, Refresh, View, rows_of};
use super::program::EmittedRows;
use super::reduce::{BuiltIn, Reducer};
use crate::document::Document;
use crate::engine::Transaction;
use crate::query::{Matcher, Selector};
use crate::read::Snapshot;
use crate::value::{Kind, Object, Path, Value};
use crate::{Error, Result};

/// A view told as JSON: which documents, which paths to emit, how to reduce.
///
/// ```
/// # use stemmadb::Database;
/// # fn main() -> stemmadb::Result<()> {
/// let db = Database::in_memory();
/// db.insert("order-1", &serde_json::json!({
///     "paid": true,
///     "lines": [{"product": "tea", "price": 4}, {"product": "cup", "price": 9}],
/// }))?;
/// let sales = db.views().define("sales", &serde_json::json!({
///     "where": {"paid": true},
///     "unnest": "lines",
///     "key": "@.product",
///     "value": "@.price",
///     "reduce": "_sum",
/// }))?;
/// assert_eq!(sales.query().key("tea").reduce()?, Some(4.into()));
/// # Ok(())
/// # }
/// ```
///
/// - `key`: a path, or a list of paths; what lacks all of them emits nothing, in a list the others are null.
/// - `value`: a path, a list of paths, or an object of paths, what is missing being left out; without it null. `{"_id": "author"}`
///   links to the document whose id is at `author`.
/// - `where`: a selector; only documents that it matches are mapped.
/// - `unnest`: a path to a list; each element emits a row of its own, in which `@` is the element and `@.price` something within it.
/// - `reduce`: `_count`, `_sum`, `_stats`, `_min`, `_max`, `_avg` or `_approx_count_distinct`.
/// - `refresh`: `lazy` (the default), `eager` or `unique`.
///
/// The path `_id` is the document's id.
pub struct DeclaredView {
    name: String,
    version: u64,
    selector: Option<Matcher>,
    unnest: Option<Path>,
    key: Template,
    value: Option<Template>,
    reduction: Reduction,
    refresh: Refresh,
}

/// What is emitted.
enum Template {
    One(Source),
    List(Vec<Source>),
    Fields(Vec<(String, Source)>),
}

/// Where a value comes from.
enum Source {
    Id,
    Document(Path),
    /// The element itself, or something within it.
    Element(Option<Path>),
}

const FIELDS: [&str; 6] = ["key", "value", "where", "unnest", "reduce", "refresh"];

impl DeclaredView {
    /// The view that `definition` tells. It is written down nowhere: that is [`Views::define`](crate::Views::define).
    ///
    /// # Errors
    /// `Invalid`, naming what is wrong.
    pub fn parse(name: &str, definition: &Value) -> Result<Self> {
        Self::parse_fields(name, definition).map_err(|error| error.within(format!("view `{name}`")))
    }

    /// What it emits of a document: keys and values.
    ///
    /// # Errors
    /// `Corrupt` if stored bytes are damaged.
    pub fn rows_of(&self, document: &Document) -> Result<EmittedRows> {
        rows_of(self, document)
    }

    fn parse_fields(name: &str, definition: &Value) -> Result<Self> {
        if name.is_empty() || name.starts_with('/') || name.ends_with('/') {
            return Err(Error::invalid("it has no name").with_hint("sales, or sales/by-author"));
        }
        let Value::Object(fields) = definition else {
            return Err(Error::invalid(format!("a view is told as an object, not {}", definition.kind()))
                .with_hint("for example {\"key\": \"author\", \"reduce\": \"_count\"}"));
        };
        if let Some(unknown) = fields.names().find(|name| !FIELDS.contains(name)) {
            return Err(Error::invalid(format!("`{unknown}` is nothing that is told of a view"))
                .with_hint(format!("told are {}", FIELDS.join(", "))));
        }
        let text = |field: &str| match fields.get(field) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.as_str())),
            Some(other) => Err(Error::invalid(format!("`{field}` is a text, not {}", other.kind()))),
        };
        let unnest = text("unnest")?.map(Path::parse).transpose()?;
        let has_element = unnest.is_some();
        let key = fields.get("key").ok_or_else(|| {
            Error::invalid("there is no `key`").with_hint("name a path, or a list of paths: \"key\": \"author\"")
        })?;
        let key = Template::parse(key, has_element)?;
        if matches!(key, Template::Fields(_)) {
            return Err(Error::invalid("`key` is a path or a list of paths"));
        }
        let selector = fields.get("where").map(|selector| Selector::parse(selector)?.matcher()).transpose()?;
        Ok(DeclaredView {
            name: name.to_owned(),
            version: XxHash3_64::oneshot(definition.to_json().as_bytes()),
            selector,
            unnest,
            key,
            value: fields.get("value").map(|value| Template::parse(value, has_element)).transpose()?,
            reduction: text("reduce")?.map_or(Ok(Reduction::None), reduction)?,
            refresh: text("refresh")?.map_or(Ok(Refresh::Lazy), refresh)?,
        })
    }

    fn emit(&self, document: &Document, body: &Value, element: Option<&Value>, rows: &mut Emitter<'_, Value, Value>) {
        let from = Origin { document, body, element };
        if let Some(key) = self.key.made(&from) {
            let value = self.value.as_ref().and_then(|value| value.made(&from)).unwrap_or(Value::Null);
            rows.emit(key, value);
        }
    }
}

fn reduction(name: &str) -> Result<Reduction> {
    let known = BuiltIn::ALL.iter().find(|reducer| reducer.name() == name);
    known.map(|reducer| Reduction::of(*reducer)).ok_or_else(|| {
        let names: Vec<_> = BuiltIn::ALL.iter().map(Reducer::name).collect();
        Error::invalid(format!("there is no reduction `{name}`")).with_hint(format!("there are {}", names.join(", ")))
    })
}

fn refresh(name: &str) -> Result<Refresh> {
    match name {
        "lazy" => Ok(Refresh::Lazy),
        "eager" => Ok(Refresh::Eager),
        "unique" => Ok(Refresh::Unique),
        _ => Err(Error::invalid(format!("`refresh` can't be `{name}`")).with_hint("it is lazy, eager or unique")),
    }
}

/// What templates are filled from.
struct Origin<'a> {
    document: &'a Document,
    body: &'a Value,
    element: Option<&'a Value>,
}

impl Template {
    fn parse(told: &Value, has_element: bool) -> Result<Self> {
        let source = |told: &Value| {
            let text = told.as_str().ok_or_else(|| Error::invalid(format!("a path is a text, not {}", told.kind())))?;
            Source::parse(text, has_element)
        };
        match told.kind() {
            Kind::Array => {
                Ok(Template::List(told.as_array().unwrap_or_default().iter().map(source).collect::<Result<_>>()?))
            }
            Kind::Object => {
                let fields = told.as_object().into_iter().flat_map(Object::iter);
                let field = |(name, told): (&str, &Value)| Ok((name.to_owned(), source(told)?));
                Ok(Template::Fields(fields.map(field).collect::<Result<_>>()?))
            }
            _ => source(told).map(Template::One),
        }
    }

    /// What it comes to; none if nothing of it is there.
    fn made(&self, from: &Origin<'_>) -> Option<Value> {
        match self {
            Template::One(source) => source.found(from),
            Template::List(sources) => {
                let found: Vec<_> = sources.iter().map(|source| source.found(from)).collect();
                let is_there = found.iter().any(Option::is_some);
                is_there.then(|| found.into_iter().map(|value| value.unwrap_or(Value::Null)).collect())
            }
            Template::Fields(fields) => {
                let mut object = Object::new();
                for (name, source) in fields {
                    if let Some(value) = source.found(from) {
                        object.insert(name, value);
                    }
                }
                Some(object.into())
            }
        }
    }
}

impl Source {
    fn parse(text: &str, has_element: bool) -> Result<Self> {
        let element = match text {
            "_id" => return Ok(Source::Id),
            "@" => Source::Element(None),
            _ => match text.strip_prefix("@.") {
                Some(within) => Source::Element(Some(Path::parse(within)?)),
                None => return Path::parse(text).map(Source::Document),
            },
        };
        if has_element {
            return Ok(element);
        }
        Err(Error::invalid(format!("`{text}` is of an element, but nothing is unnested"))
            .with_hint("name the list with `unnest`"))
    }

    fn found(&self, from: &Origin<'_>) -> Option<Value> {
        match self {
            Source::Id => Some(from.document.id().as_str().into()),
            Source::Document(path) => path.get(from.body).cloned(),
            Source::Element(None) => from.element.cloned(),
            Source::Element(Some(path)) => path.get(from.element?).cloned(),
        }
    }
}

impl View for DeclaredView {
    type Key = Value;
    type Value = Value;
    type Reduced = Value;

    fn name(&self) -> &str {
        &self.name
    }

    fn version(&self) -> u64 {
        self.version
    }

    fn map(&self, document: &Document, rows: &mut Emitter<'_, Value, Value>) -> Result<()> {
        if let Some(selector) = &self.selector
            && !selector.matches(document)?
        {
            return Ok(());
        }
        let body = document.value()?;
        match &self.unnest {
            None => self.emit(document, &body, None, rows),
            Some(path) => {
                let elements = path.get(&body).and_then(Value::as_array).unwrap_or_default();
                elements.iter().for_each(|element| self.emit(document, &body, Some(element), rows));
            }
        }
        Ok(())
    }

    fn reduction(&self) -> Reduction {
        self.reduction
    }

    fn refresh(&self) -> Refresh {
        self.refresh
    }
}

const DESIGN: &str = "_design/";
const LANGUAGE: &str = "stemma";

/// The id of the design document of a view's name, and its name within it.
fn place_of(name: &str) -> (String, &str) {
    let (design, view) = name.split_once('/').unwrap_or((name, name));
    (format!("{DESIGN}{design}"), view)
}

/// The definition of the view `name`.
pub(super) fn definition(snapshot: &Snapshot, name: &str) -> Result<Option<Value>> {
    let (id, view) = place_of(name);
    let Some(design) = snapshot.get(&id)? else { return Ok(None) };
    Ok(views_of(&design)?.and_then(|views| views.get(view).cloned()))
}

fn views_of(design: &Document) -> Result<Option<Value>> {
    let language = design.get("language")?;
    if language.as_ref().and_then(Value::as_str) == Some(LANGUAGE) { design.get("views") } else { Ok(None) }
}

/// The names and definitions of all views that are told, in the order of their design documents.
pub(super) fn definitions(snapshot: &Snapshot) -> Result<Vec<(String, Value)>> {
    let mut found = Vec::new();
    for design in snapshot.find(crate::query::field("_id").begins_with(DESIGN)).sort("_id").run()? {
        let design = design?;
        let Some(Value::Object(views)) = views_of(&design)? else { continue };
        let name = design.id().as_str().strip_prefix(DESIGN).unwrap_or_default();
        for (view, definition) in views.iter() {
            let name = if name == view { name.to_owned() } else { format!("{name}/{view}") };
            found.push((name, definition.clone()));
        }
    }
    Ok(found)
}

/// Writes a definition, or removes it; returns whether there was one.
pub(super) fn put(transaction: &mut Transaction<'_>, name: &str, definition: Option<&Value>) -> Result<bool> {
    let (id, view) = place_of(name);
    let design = transaction.get(&id)?;
    let mut body = match &design {
        Some(design) => design.value()?,
        None => Value::from_serialize(&Empty { language: LANGUAGE, views: Value::Object(Object::new()) })?,
    };
    if body.get("language").and_then(Value::as_str) != Some(LANGUAGE) {
        return Err(Error::conflict(format!("`{id}` is in another language than `{LANGUAGE}`"))
            .with_hint("give the view the name of another design document"));
    }
    let views = body.as_object_mut().and_then(|body| body.get_mut("views")).and_then(Value::as_object_mut);
    let views = views.ok_or_else(|| Error::invalid(format!("`{id}` has no object `views`")))?;
    let had = match definition {
        Some(definition) => views.insert(view, definition.clone()).is_some(),
        None => views.remove(view).is_some(),
    };
    let is_empty = views.is_empty();
    match &design {
        Some(design) if is_empty => drop(transaction.delete(&id, design.revision())?),
        None if is_empty => {}
        _ => drop(transaction.upsert(&id, &body)?),
    }
    Ok(had)
}

#[derive(Serialize)]
struct Empty {
    language: &'static str,
    views: Value,
}
