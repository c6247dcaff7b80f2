//! Views declared as JSON and stored in the database, for the command line, the server and other languages.
//!
//! They are stored like CouchDB views, in design documents, so that they replicate: the view `sales/by_author` is
//! `views.by_author` of `_design/sales`, whose `language` is `stemma`. A name without a slash names both the design
//! document and the view.

use serde::Serialize;
use twox_hash::XxHash3_64;

use super::definition::{Emitter, Reduction, Refresh, View, map_document};
use super::program::EmittedRows;
use super::reduce::{BuiltIn, Reducer};
use crate::document::Document;
use crate::engine::Transaction;
use crate::query::{Matcher, Selector, ViewPaths};
use crate::read::Snapshot;
use crate::value::{Kind, Object, Path, Value};
use crate::{Error, Result};

/// A view declared as JSON: which documents to map, which paths to emit, how to reduce.
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
/// - `key`: a path, or a list of paths. A document that has none of them emits nothing; in a list, missing values are
///   null.
/// - `value`: a path, a list of paths, or an object of paths (missing values are omitted); default null. `{"_id":
///   "author"}` links to the document whose id is at `author`.
/// - `where`: a selector; only matching documents are mapped.
/// - `unnest`: a path to an array. Each element emits its own row; `@` is the element and `@.price` a path within it.
/// - `reduce`: `_count`, `_sum`, `_stats`, `_min`, `_max`, `_avg` or `_approx_count_distinct`.
/// - `refresh`: `lazy` (the default), `eager` or `unique`.
///
/// The path `_id` is the document's id.
pub struct DeclaredView {
    name: String,
    version: u64,
    selector: Option<Matcher>,
    unnest: Option<Path>,
    key: ValueTemplate,
    value: Option<ValueTemplate>,
    reduction: Reduction,
    refresh: Refresh,
}

/// The template of an emitted key or value.
enum ValueTemplate {
    One(ValueSource),
    List(Vec<ValueSource>),
    Fields(Vec<(String, ValueSource)>),
}

/// The source of an emitted value.
enum ValueSource {
    Id,
    Document(Path),
    /// The unnested element, or a value within it.
    Element(Option<Path>),
}

const FIELDS: [&str; 6] = ["key", "value", "where", "unnest", "reduce", "refresh"];

impl DeclaredView {
    /// Parses a declaration without storing it; [`Views::define`](crate::handles::Views::define) also stores it.
    ///
    /// # Errors
    /// `Invalid`, naming the part of the declaration that is malformed.
    pub fn parse(name: &str, definition: &Value) -> Result<Self> {
        Self::parse_fields(name, definition).map_err(|error| error.within(format!("view `{name}`")))
    }

    /// Returns the rows that the view emits for a document: keys and values.
    ///
    /// # Errors
    /// `Corrupt` if stored bytes are damaged.
    pub fn map_document(&self, document: &Document) -> Result<EmittedRows> {
        map_document(self, document)
    }

    /// Returns a hint for each path of the declaration that no document has, although it leads to values through an
    /// array: `lines.price` where the documents have `lines[].price`. Reads no documents.
    ///
    /// ```
    /// # use stemmadb::{Database, DeclaredView};
    /// # fn main() -> stemmadb::Result<()> {
    /// let db = Database::in_memory();
    /// db.insert("order-1", &serde_json::json!({"lines": [{"price": 4}]}))?;
    /// let prices = DeclaredView::parse("prices", &r#"{"key": "lines.price"}"#.parse()?)?;
    /// assert!(prices.hints(&db.snapshot()?)[0].contains("name the array with `unnest`"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn hints(&self, snapshot: &Snapshot) -> Vec<String> {
        let mut paths =
            ViewPaths { selector: self.selector.as_ref(), unnested: self.unnest.as_ref(), ..ViewPaths::default() };
        for source in [Some(&self.key), self.value.as_ref()].into_iter().flatten().flat_map(ValueTemplate::sources) {
            match source {
                ValueSource::Document(path) => paths.of_document.push(path),
                ValueSource::Element(Some(path)) => paths.of_element.push(path),
                ValueSource::Id | ValueSource::Element(None) => {}
            }
        }
        paths.hints(snapshot)
    }

    fn parse_fields(name: &str, definition: &Value) -> Result<Self> {
        if name.is_empty() || name.starts_with('/') || name.ends_with('/') {
            return Err(Error::invalid("it has no name").with_hint("sales, or sales/by-author"));
        }
        let Value::Object(fields) = definition else {
            return Err(Error::invalid(format!("a view is declared as an object, not {}", definition.kind()))
                .with_hint("for example {\"key\": \"author\", \"reduce\": \"_count\"}"));
        };
        if let Some(unknown) = fields.names().find(|name| !FIELDS.contains(name)) {
            return Err(Error::invalid(format!("`{unknown}` is not a field of a view"))
                .with_hint(format!("the fields are {}", FIELDS.join(", "))));
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
        let key = ValueTemplate::parse(key, has_element)?;
        if matches!(key, ValueTemplate::Fields(_)) {
            return Err(Error::invalid("`key` is a path or a list of paths"));
        }
        let selector = fields.get("where").map(|selector| Selector::parse(selector)?.matcher()).transpose()?;
        Ok(DeclaredView {
            name: name.to_owned(),
            version: XxHash3_64::oneshot(definition.to_json().as_bytes()),
            selector,
            unnest,
            key,
            value: fields.get("value").map(|value| ValueTemplate::parse(value, has_element)).transpose()?,
            reduction: text("reduce")?.map_or(Ok(Reduction::None), reduction)?,
            refresh: text("refresh")?.map_or(Ok(Refresh::Lazy), refresh)?,
        })
    }

    fn emit(&self, document: &Document, body: &Value, element: Option<&Value>, rows: &mut Emitter<'_, Value, Value>) {
        let from = TemplateInput { document, body, element };
        if let Some(key) = self.key.fill(&from) {
            let value = self.value.as_ref().and_then(|value| value.fill(&from)).unwrap_or(Value::Null);
            rows.emit(key, value);
        }
    }
}

fn reduction(name: &str) -> Result<Reduction> {
    let reducer = BuiltIn::ALL.iter().find(|reducer| reducer.name() == name);
    reducer.map(|reducer| Reduction::of(*reducer)).ok_or_else(|| {
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

/// The values that templates are filled from.
struct TemplateInput<'a> {
    document: &'a Document,
    body: &'a Value,
    element: Option<&'a Value>,
}

impl ValueTemplate {
    fn parse(declared: &Value, has_element: bool) -> Result<Self> {
        let source = |declared: &Value| {
            let text = declared
                .as_str()
                .ok_or_else(|| Error::invalid(format!("a path is a text, not {}", declared.kind())))?;
            ValueSource::parse(text, has_element)
        };
        match declared.kind() {
            Kind::Array => Ok(ValueTemplate::List(
                declared.as_array().unwrap_or_default().iter().map(source).collect::<Result<_>>()?,
            )),
            Kind::Object => {
                let fields = declared.as_object().into_iter().flat_map(Object::iter);
                let field = |(name, declared): (&str, &Value)| Ok((name.to_owned(), source(declared)?));
                Ok(ValueTemplate::Fields(fields.map(field).collect::<Result<_>>()?))
            }
            _ => source(declared).map(ValueTemplate::One),
        }
    }

    fn sources(&self) -> Vec<&ValueSource> {
        match self {
            ValueTemplate::One(source) => vec![source],
            ValueTemplate::List(sources) => sources.iter().collect(),
            ValueTemplate::Fields(fields) => fields.iter().map(|(_, source)| source).collect(),
        }
    }

    /// Fills the template; `None` if all of its values are missing.
    fn fill(&self, from: &TemplateInput<'_>) -> Option<Value> {
        match self {
            ValueTemplate::One(source) => source.value(from),
            ValueTemplate::List(sources) => {
                let found: Vec<_> = sources.iter().map(|source| source.value(from)).collect();
                let is_there = found.iter().any(Option::is_some);
                is_there.then(|| found.into_iter().map(|value| value.unwrap_or(Value::Null)).collect())
            }
            ValueTemplate::Fields(fields) => {
                let mut object = Object::new();
                for (name, source) in fields {
                    if let Some(value) = source.value(from) {
                        object.insert(name, value);
                    }
                }
                Some(object.into())
            }
        }
    }
}

impl ValueSource {
    fn parse(text: &str, has_element: bool) -> Result<Self> {
        let element = match text {
            "_id" => return Ok(ValueSource::Id),
            "@" => ValueSource::Element(None),
            _ => match text.strip_prefix("@.") {
                Some(within) => ValueSource::Element(Some(Path::parse(within)?)),
                None => return Path::parse(text).map(ValueSource::Document),
            },
        };
        if has_element {
            return Ok(element);
        }
        Err(Error::invalid(format!("`{text}` is of an element, but nothing is unnested"))
            .with_hint("name the list with `unnest`"))
    }

    fn value(&self, from: &TemplateInput<'_>) -> Option<Value> {
        match self {
            ValueSource::Id => Some(from.document.id().as_str().into()),
            ValueSource::Document(path) => path.get(from.body).cloned(),
            ValueSource::Element(None) => from.element.cloned(),
            ValueSource::Element(Some(path)) => path.get(from.element?).cloned(),
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

/// Splits a view's name into the id of its design document and its name there.
fn split_name(name: &str) -> (String, &str) {
    let (design, view) = name.split_once('/').unwrap_or((name, name));
    (format!("{DESIGN}{design}"), view)
}

/// Returns the stored definition of the view `name`.
pub(super) fn definition(snapshot: &Snapshot, name: &str) -> Result<Option<Value>> {
    let (id, view) = split_name(name);
    let Some(design) = snapshot.get(&id)? else { return Ok(None) };
    Ok(views_of(&design)?.and_then(|views| views.get(view).cloned()))
}

fn views_of(design: &Document) -> Result<Option<Value>> {
    let language = design.get("language")?;
    if language.as_ref().and_then(Value::as_str) == Some(LANGUAGE) { design.get("views") } else { Ok(None) }
}

/// Returns the names and definitions of all declared views, in the order of their design documents.
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

/// Stores or removes a definition; returns whether there was one.
pub(super) fn put(transaction: &mut Transaction<'_>, name: &str, definition: Option<&Value>) -> Result<bool> {
    let (id, view) = split_name(name);
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
    let existed = match definition {
        Some(definition) => views.insert(view, definition.clone()).is_some(),
        None => views.remove(view).is_some(),
    };
    let is_empty = views.is_empty();
    match &design {
        Some(design) if is_empty => drop(transaction.delete(&id, design.revision())?),
        None if is_empty => {}
        _ => drop(transaction.upsert(&id, &body)?),
    }
    Ok(existed)
}

#[derive(Serialize)]
struct Empty {
    language: &'static str,
    views: Value,
}
