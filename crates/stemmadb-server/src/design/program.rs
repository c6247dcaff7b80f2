//! Design documents' views as view programs of the library: either functions that run in a script worker, or views
//! defined by paths, like the library's own, which need no worker.

use std::sync::{Arc, Weak};

use stemmadb::views::{EmittedRows, ProgramReducer, ProgramRow, ViewProgram};
use stemmadb::{DeclaredView, Document, Error, Reduction, Result, Snapshot, Value, View};

use super::functions::document_json_as;
use super::value_order::sort_by_value;
use crate::directory::ServedDatabase;
use crate::documents::ShowOptions;
use crate::error::Failure;
use crate::script::{CallKind, Context, ScriptError, Scripts, ThrownError};

/// The prefix of the names of design documents' views.
pub(crate) const PROGRAM_PREFIX: &str = "script/";

/// One view of a design document.
pub(crate) struct DesignView {
    /// Weak, because the library stores this program in the database.
    served: Weak<ServedDatabase>,
    name: String,
    source: ViewSource,
    reducer: ProgramReducer,
    options: ViewOptions,
    is_partitioned: bool,
}

/// The definition of a view's rows.
enum ViewSource {
    /// JavaScript functions.
    Functions { scripts: Arc<Scripts>, context: Context },
    /// Paths, as in the library's own views.
    Paths(Box<DeclaredView>),
}

/// The `options` of a design document.
#[derive(Debug, Clone, Copy, Default)]
struct ViewOptions {
    include_design: bool,
    local_seq: bool,
}

impl ViewOptions {
    fn parse(design: &Value) -> Self {
        let is_set = |name| design.get("options").and_then(|options| options.get(name)) == Some(&true.into());
        ViewOptions { include_design: is_set("include_design"), local_seq: is_set("local_seq") }
    }
}

/// The `language` of design documents whose views are defined by paths.
const PATH_LANGUAGE: &str = "stemma";

/// Whether its views can be queried. In other languages they are Mango indexes, or unsupported.
pub(super) fn has_views(design: &Value) -> bool {
    super::is_javascript(design) || design.get("language").and_then(Value::as_str) == Some(PATH_LANGUAGE)
}

impl DesignView {
    /// Creates the program of the view `view` of a design document.
    ///
    /// # Errors
    /// 404 if there is no view of that name; 400 if its definition is invalid.
    pub(crate) fn new(
        served: &Arc<ServedDatabase>,
        scripts: &Arc<Scripts>,
        design: &Value,
        view: &str,
    ) -> crate::error::Result<Self> {
        let missing = || Failure::not_found("missing_named_view");
        let definition = design.get("views").and_then(|views| views.get(view)).ok_or_else(missing)?;
        let is_partitioned = super::is_partitioned(served, design);
        let dependencies = view_dependencies(design, view, is_partitioned);
        let (source, reducer) = match design.get("language").and_then(Value::as_str) {
            None | Some("javascript") if view == "lib" => return Err(missing()),
            None | Some("javascript") => {
                let key = format!("{} view {}", served.instance_id(), signature(&dependencies));
                let context = Context { key: key.into(), design: dependencies.as_str().into() };
                (ViewSource::Functions { scripts: scripts.clone(), context }, reducer_of(definition)?)
            }
            Some(PATH_LANGUAGE) => {
                let declared = DeclaredView::parse(view, definition).map_err(Failure::from)?;
                let reducer = match declared.reduction() {
                    Reduction::None => ProgramReducer::None,
                    reduction => ProgramReducer::Typed(reduction),
                };
                (ViewSource::Paths(Box::new(declared)), reducer)
            }
            Some(_) => return Err(Failure::bad_request("The design document's language is not javascript.")),
        };
        let name = format!("{PROGRAM_PREFIX}{}", signature(&dependencies));
        let options = ViewOptions::parse(design);
        Ok(DesignView { served: Arc::downgrade(served), name, source, reducer, options, is_partitioned })
    }

    /// The signature of its definition: a hash that changes with its functions.
    pub(crate) fn signature(&self) -> &str {
        &self.name[PROGRAM_PREFIX.len()..]
    }

    /// Returns hints about paths of a view that is defined by paths; see [`DeclaredView::hints`].
    pub(crate) fn hints(&self, snapshot: &Snapshot) -> Vec<String> {
        match &self.source {
            ViewSource::Paths(declared) => declared.hints(snapshot),
            ViewSource::Functions { .. } => Vec::new(),
        }
    }

    fn call<A: AsRef<[B]>, B: AsRef<str>>(
        &self,
        kind: CallKind,
        function: &str,
        calls: &[A],
    ) -> Result<Vec<CallResult>> {
        let ViewSource::Functions { scripts, context } = &self.source else {
            return Err(Error::internal("a view that is defined by paths has no functions"));
        };
        scripts.call(context, kind, &["views", VIEW, function], calls).map_err(script_error)
    }
}

type CallResult = std::result::Result<String, ThrownError>;

/// The view's name in the script context. It is fixed because the functions do not depend on the real name.
const VIEW: &str = "view";

/// The reducer of a view: a built-in one, or a function.
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

/// Compiles the functions of a design document's views. If no script worker can do that, they are accepted: queries
/// report the error.
///
/// # Errors
/// 400 if a function can't be compiled, a built-in reduce function does not exist, or the views shall have partitions
/// and the database has none.
pub(crate) fn compile_views(served: &ServedDatabase, scripts: &Scripts, design: &Value) -> crate::error::Result<()> {
    let is_partitioned = super::is_partitioned(served, design);
    if is_partitioned && !served.is_partitioned() {
        let reason = "partitioned option cannot be true in a non-partitioned database.";
        return Err(Failure::new(hyper::StatusCode::BAD_REQUEST, "invalid_design_doc", reason));
    }
    if !super::is_javascript(design) {
        return Ok(());
    }
    for name in super::view_names(design) {
        let Some(definition) = design.get("views").and_then(|views| views.get(&name)) else { continue };
        let has_reduce_function = reducer_of(definition)? == ProgramReducer::Custom;
        let dependencies = view_dependencies(design, &name, is_partitioned);
        let key = format!("{} view {}", served.instance_id(), signature(&dependencies));
        let context = Context { key: key.into(), design: dependencies.into() };
        let functions = [
            (CallKind::Map, "map", definition.get("map").is_some()),
            (CallKind::Reduce, "reduce", has_reduce_function),
        ];
        for (kind, function, _) in functions.into_iter().filter(|(.., is_present)| *is_present) {
            match scripts.call(&context, kind, &["views", VIEW, function], &[] as &[[&str; 1]]) {
                Err(ScriptError::Uncallable(ThrownError { error, reason })) if error == "compilation_error" => {
                    let reason =
                        format!("Compilation of the {function} function in the '{name}' view failed: {reason}");
                    return Err(Failure::new(hyper::StatusCode::BAD_REQUEST, error, reason));
                }
                Ok(_) | Err(_) => {}
            }
        }
    }
    Ok(())
}

/// The version of the rows of design documents' views. Another version is another view, built again.
const ROWS_VERSION: u32 = 2;

/// The inputs of a view's rows: of the design document its definition, `lib`, `language` and `options`, which are all
/// that functions see; the version of rows; and whether they are stored by partition.
fn view_dependencies(design: &Value, view: &str, is_partitioned: bool) -> String {
    let views = design.get("views");
    let part = |name: &str| views.and_then(|views| views.get(name)).map_or_else(|| "null".to_owned(), Value::to_json);
    let mut dependencies = format!("{{\"views\":{{\"{VIEW}\":{},\"lib\":{}}}", part(view), part("lib"));
    dependencies.push_str(&format!(",\"version\":{ROWS_VERSION},\"partitioned\":{is_partitioned}"));
    for name in ["language", "options"] {
        if let Some(value) = design.get(name) {
            dependencies.push_str(&format!(",\"{name}\":{}", value.to_json()));
        }
    }
    dependencies + "}"
}

fn signature(dependencies: &str) -> String {
    blake3::hash(dependencies.as_bytes()).to_hex()[..32].to_owned()
}

/// A view of a design document, with the signature that is part of its name in the library.
pub(crate) struct DeclaredDesignView {
    /// The id of the design document.
    pub(crate) design: String,
    pub(crate) name: String,
    pub(crate) signature: String,
}

/// All views of the design documents.
pub(crate) fn declared_views(served: &ServedDatabase, designs: &[Document]) -> Result<Vec<DeclaredDesignView>> {
    let mut found = Vec::new();
    for document in designs {
        let design = document.value()?;
        let is_partitioned = super::is_partitioned(served, &design);
        found.extend(super::view_names(&design).into_iter().map(|name| {
            let signature = signature(&view_dependencies(&design, &name, is_partitioned));
            DeclaredDesignView { design: document.id().to_string(), name, signature }
        }));
    }
    Ok(found)
}

fn script_error(error: ScriptError) -> Error {
    Error::stopped(error.to_string()).with_source(error)
}

fn parse_result(json: &str) -> Result<Value> {
    Value::parse(json.as_bytes())
        .map_err(|error| Error::invalid(format!("a function's result is no JSON that is taken: {error}")))
}

/// The rows that a map function emitted, `[[key, value], …]`.
fn rows_of(answer: CallResult) -> Result<EmittedRows> {
    let json = answer.map_err(|ThrownError { error, reason }| Error::invalid(format!("{error}: {reason}")))?;
    let Value::Array(rows) = parse_result(&json)? else {
        return Err(Error::internal("a map function's rows are no array"));
    };
    let pair = |row: Value| match row {
        Value::Array(pair) => {
            let mut pair = pair.into_iter();
            (pair.next().unwrap_or_default(), pair.next().unwrap_or_default())
        }
        _ => Default::default(),
    };
    let mut rows: EmittedRows = rows.into_iter().map(pair).collect();
    sort_by_value(&mut rows);
    Ok(rows)
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
        let show = ShowOptions { conflicts: true, local_seq: self.options.local_seq, ..ShowOptions::default() };
        let calls = documents.iter().map(|document| Ok([document_json_as(&served, document, &show)?]));
        let calls = calls.collect::<Result<Vec<_>>>()?;
        Ok(self.call(CallKind::Map, "map", &calls)?.into_iter().map(rows_of).collect())
    }

    fn includes_design_documents(&self) -> bool {
        self.options.include_design
    }

    fn is_partitioned(&self) -> bool {
        self.is_partitioned
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
        self.call_reduce(CallKind::Reduce, rows.len(), &[[keys + "]", values + "]"]])
    }

    fn rereduce(&self, parts: &[Value]) -> Result<Value> {
        if let Some(overflow) = parts.iter().find(|part| part.get(OVERFLOW).is_some()) {
            return Ok(overflow.clone());
        }
        let parts: Vec<String> = parts.iter().map(Value::to_json).collect();
        self.call_reduce(CallKind::Rereduce, parts.len(), &[[format!("[{}]", parts.join(","))]])
    }
}

/// The field that replaces a reduction that is too large.
pub(crate) const OVERFLOW: &str = "reduce_overflow_error";
/// CouchDB's `reduce_limit`: a reduction of several rows must not be larger than this and also larger than half of its
/// input, since it would grow with the view.
const OVERFLOW_BYTES: usize = 4906;

impl DesignView {
    /// Calls the reduce function on `count` rows or parts. Returns null, as CouchDB does, if it throws.
    fn call_reduce<const N: usize>(&self, kind: CallKind, count: usize, call: &[[String; N]; 1]) -> Result<Value> {
        match self.call(kind, "reduce", call)?.pop() {
            Some(Ok(json)) => {
                let (input_bytes, output_bytes) = (call[0].iter().map(String::len).sum::<usize>(), json.len());
                if count < 2 || output_bytes <= OVERFLOW_BYTES || output_bytes * 2 <= input_bytes {
                    return parse_result(&json);
                }
                let why = format!(
                    "Reduce output must shrink more rapidly: input size: {input_bytes} output size: {output_bytes}"
                );
                Ok(Value::Object([(OVERFLOW, Value::from(why))].into_iter().collect()))
            }
            Some(Err(thrown)) => {
                let ThrownError { error, reason } = thrown;
                tracing::warn!(target: "stemma::script", "{} failed to reduce: {error}: {reason}", self.name);
                Ok(Value::Null)
            }
            None => Err(Error::internal("a reduction was not answered")),
        }
    }
}
