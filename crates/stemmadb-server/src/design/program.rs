//! A design document's view as the library's program: its functions run in a worker; or it is declared by paths, as the library's own views are,
//! and needs none.

use std::sync::{Arc, Weak};

use stemmadb::views::{EmittedRows, ProgramReducer, ProgramRow, ViewProgram};
use stemmadb::{DeclaredView, Document, Error, Reduction, Result, Value, View};

use super::functions::document_json_as;
use crate::directory::Served;
use crate::documents::Show;
use crate::error::Failure;
use crate::script::{Context, ScriptError, Scripts, Thrown, Verb};

/// What the names of views begin with that are of design documents.
pub(crate) const PROGRAM_PREFIX: &str = "script/";

/// One view of a design document.
pub(crate) struct DesignView {
    /// Weak, since the library keeps this with the database.
    served: Weak<Served>,
    name: String,
    source: ViewSource,
    reducer: ProgramReducer,
    options: Options,
}

/// What defines the rows of a view.
enum ViewSource {
    /// By functions.
    Functions { scripts: Arc<Scripts>, context: Context },
    /// By paths, as the library's own views are.
    Paths(Box<DeclaredView>),
}

/// The `options` of a design document.
#[derive(Debug, Clone, Copy, Default)]
struct Options {
    include_design: bool,
    local_seq: bool,
}

impl Options {
    fn of(design: &Value) -> Self {
        let is_set = |name| design.get("options").and_then(|options| options.get(name)) == Some(&true.into());
        Options { include_design: is_set("include_design"), local_seq: is_set("local_seq") }
    }
}

/// The `language` of design documents with views of the library.
const LANGUAGE_OF_PATHS: &str = "stemma";

/// Whether its views can be asked: those of other languages are indexes, or not for this server.
pub(super) fn has_views(design: &Value) -> bool {
    super::is_javascript(design) || design.get("language").and_then(Value::as_str) == Some(LANGUAGE_OF_PATHS)
}

impl DesignView {
    /// The view `view` of a design document.
    ///
    /// # Errors
    /// 404 if it has none of that name; 400 if it is none.
    pub(crate) fn new(
        served: &Arc<Served>,
        scripts: &Arc<Scripts>,
        design: &Value,
        view: &str,
    ) -> crate::error::Result<Self> {
        let missing = || Failure::not_found("missing_named_view");
        let definition = design.get("views").and_then(|views| views.get(view)).ok_or_else(missing)?;
        let seen = seen_by(design, view);
        let (source, reducer) = match design.get("language").and_then(Value::as_str) {
            None | Some("javascript") if view == "lib" => return Err(missing()),
            None | Some("javascript") => {
                let key = format!("{} view {}", served.mark(), signature(&seen));
                let context = Context { key: key.into(), design: seen.as_str().into() };
                (ViewSource::Functions { scripts: scripts.clone(), context }, reducer_of(definition)?)
            }
            Some(LANGUAGE_OF_PATHS) => {
                let declared = DeclaredView::parse(view, definition).map_err(Failure::from)?;
                let reducer = match declared.reduction() {
                    Reduction::None => ProgramReducer::None,
                    reduction => ProgramReducer::Typed(reduction),
                };
                (ViewSource::Paths(Box::new(declared)), reducer)
            }
            Some(_) => return Err(Failure::bad_request("The design document's language is not javascript.")),
        };
        let name = format!("{PROGRAM_PREFIX}{}", signature(&seen));
        let options = Options::of(design);
        Ok(DesignView { served: Arc::downgrade(served), name, source, reducer, options })
    }

    /// What tells its functions from others.
    pub(crate) fn signature(&self) -> &str {
        &self.name[PROGRAM_PREFIX.len()..]
    }

    fn call<A: AsRef<[B]>, B: AsRef<str>>(&self, verb: Verb, function: &str, calls: &[A]) -> Result<Vec<Answer>> {
        let ViewSource::Functions { scripts, context } = &self.source else {
            return Err(Error::internal("a view that is defined by paths has no functions"));
        };
        scripts.call(context, verb, &["views", VIEW, function], calls).map_err(stopped)
    }
}

type Answer = std::result::Result<String, Thrown>;

/// What the view is called in the context: its own name is not among what its functions depend on.
const VIEW: &str = "view";

/// The reducer that a view names, or has as a function.
fn reducer_of(definition: &Value) -> crate::error::Result<ProgramReducer> {
    match definition.get("reduce").and_then(Value::as_str).map(str::trim) {
        None | Some("") => Ok(ProgramReducer::None),
        Some(name) if name.starts_with('_') => ProgramReducer::built_in(name).ok_or_else(|| {
            let reason = format!("`{name}` is not a supported reduce function.");
            Failure::new(hyper::StatusCode::BAD_REQUEST, "invalid_design_doc", reason)
        }),
        Some(_) => Ok(ProgramReducer::Custom),
    }
}

/// What a view's rows depend on: of functions, themselves and the library beside them, which is also what they see of the design document.
fn seen_by(design: &Value, view: &str) -> String {
    let views = design.get("views");
    let part = |name: &str| views.and_then(|views| views.get(name)).map_or_else(|| "null".to_owned(), Value::to_json);
    let mut seen = format!("{{\"views\":{{\"{VIEW}\":{},\"lib\":{}}}", part(view), part("lib"));
    for name in ["language", "options"] {
        if let Some(value) = design.get(name) {
            seen.push_str(&format!(",\"{name}\":{}", value.to_json()));
        }
    }
    seen + "}"
}

fn signature(seen: &str) -> String {
    blake3::hash(seen.as_bytes()).to_hex()[..32].to_owned()
}

/// The signatures of the views that design documents tell.
pub(crate) fn declared_signatures(designs: &[Document]) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for design in designs {
        let design = design.value()?;
        found.extend(super::view_names(&design).iter().map(|name| signature(&seen_by(&design, name))));
    }
    Ok(found)
}

fn stopped(error: ScriptError) -> Error {
    Error::stopped(error.to_string()).with_source(error)
}

fn parsed(json: &str) -> Result<Value> {
    Value::parse(json.as_bytes())
        .map_err(|error| Error::invalid(format!("a function's result is no JSON that is taken: {error}")))
}

/// The rows that a map function emitted, `[[key, value], …]`.
fn rows_of(answer: Answer) -> Result<EmittedRows> {
    let json = answer.map_err(|Thrown { error, reason }| Error::invalid(format!("{error}: {reason}")))?;
    let Value::Array(rows) = parsed(&json)? else { return Err(Error::internal("a map function's rows are no array")) };
    let pair = |row: Value| match row {
        Value::Array(pair) => {
            let mut pair = pair.into_iter();
            (pair.next().unwrap_or_default(), pair.next().unwrap_or_default())
        }
        _ => Default::default(),
    };
    Ok(rows.into_iter().map(pair).collect())
}

impl ViewProgram for DesignView {
    fn name(&self) -> &str {
        &self.name
    }

    fn map(&self, documents: &[&Document]) -> Result<Vec<Result<EmittedRows>>> {
        if let ViewSource::Paths(declared) = &self.source {
            return Ok(documents.iter().map(|document| declared.map_document(document)).collect());
        }
        let served = self.served.upgrade().ok_or_else(|| Error::closed("the database is closed"))?;
        let show = Show { local_seq: self.options.local_seq, ..Show::default() };
        let calls = documents.iter().map(|document| Ok([document_json_as(&served, document, &show)?]));
        let calls = calls.collect::<Result<Vec<_>>>()?;
        Ok(self.call(Verb::Map, "map", &calls)?.into_iter().map(rows_of).collect())
    }

    fn includes_design_documents(&self) -> bool {
        self.options.include_design
    }

    fn reducer(&self) -> ProgramReducer {
        self.reducer
    }

    fn reduce(&self, rows: &[ProgramRow]) -> Result<Value> {
        let (mut keys, mut values) = (String::from("["), String::from("["));
        for (at, row) in rows.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            keys.push_str(&format!("{comma}[{},{}]", row.key.to_json(), Value::from(row.id.as_str()).to_json()));
            values.push_str(comma);
            values.push_str(&row.value.to_json());
        }
        self.reduced(Verb::Reduce, rows.len(), &[[keys + "]", values + "]"]])
    }

    fn rereduce(&self, parts: &[Value]) -> Result<Value> {
        if let Some(overflow) = parts.iter().find(|part| part.get(OVERFLOW).is_some()) {
            return Ok(overflow.clone());
        }
        let parts: Vec<String> = parts.iter().map(Value::to_json).collect();
        self.reduced(Verb::Rereduce, parts.len(), &[[format!("[{}]", parts.join(","))]])
    }
}

/// Reported in place of a reduction that is too large.
const OVERFLOW: &str = "reduce_overflow_error";
/// CouchDB's `reduce_limit`: a reduction of several rows to more bytes than these, and of more than half of what it is made of, would grow with the view.
const OVERFLOW_BYTES: usize = 4906;

impl DesignView {
    /// What a reduction of so many rows or parts came to: null, as in CouchDB, if it threw.
    fn reduced<const N: usize>(&self, verb: Verb, count: usize, call: &[[String; N]; 1]) -> Result<Value> {
        match self.call(verb, "reduce", call)?.pop() {
            Some(Ok(json)) => {
                let (taken, made) = (call[0].iter().map(String::len).sum::<usize>(), json.len());
                if count < 2 || made <= OVERFLOW_BYTES || made * 2 <= taken {
                    return parsed(&json);
                }
                let why = format!("Reduce output must shrink more rapidly: input size: {taken} output size: {made}");
                Ok(Value::Object([(OVERFLOW, Value::from(why))].into_iter().collect()))
            }
            Some(Err(thrown)) => {
                tracing::warn!(target: "stemma::script", "{} failed to reduce: {}: {}", self.name, thrown.error, thrown.reason);
                Ok(Value::Null)
            }
            None => Err(Error::internal("a reduction was not answered")),
        }
    }
}
