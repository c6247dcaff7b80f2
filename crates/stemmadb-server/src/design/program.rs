//! A design document's view as the library's program: its functions run in a worker.

use std::sync::{Arc, Weak};

use stemmadb::{Document, EmittedRows, Error, ProgramReducer, ProgramRow, Result, Value, ViewProgram};

use super::functions::document_json;
use crate::directory::Served;
use crate::error::Failure;
use crate::script::{Context, ScriptError, Scripts, Thrown, Verb};

/// What the names of views begin with that are of design documents.
pub(crate) const PROGRAM_PREFIX: &str = "script/";

/// The functions of one view.
pub(crate) struct DesignView {
    /// Weak, since the library keeps this with the database.
    served: Weak<Served>,
    scripts: Arc<Scripts>,
    name: String,
    context: Context,
    reducer: ProgramReducer,
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
        let definition = design.get("views").and_then(|views| views.get(view)).filter(|_| view != "lib");
        let definition = definition.ok_or_else(|| Failure::not_found("missing_named_view"))?;
        if !super::is_javascript(design) {
            return Err(Failure::bad_request("The design document's language is not javascript."));
        }
        let reduce = definition.get("reduce").and_then(Value::as_str).map(str::trim);
        let reducer = match reduce {
            None | Some("") => ProgramReducer::None,
            Some(name) if name.starts_with('_') => ProgramReducer::built_in(name).ok_or_else(|| {
                let reason = format!("`{name}` is not a supported reduce function.");
                Failure::new(hyper::StatusCode::BAD_REQUEST, "invalid_design_doc", reason)
            })?,
            Some(_) => ProgramReducer::Custom,
        };
        let seen = seen_by(design, view);
        let signature = signature(&seen);
        let key = format!("{} view {signature}", served.mark());
        Ok(DesignView {
            served: Arc::downgrade(served),
            scripts: scripts.clone(),
            name: format!("{PROGRAM_PREFIX}{signature}"),
            context: Context { key: key.into(), design: seen.into() },
            reducer,
        })
    }

    /// What tells its functions from others.
    pub(crate) fn signature(&self) -> &str {
        &self.name[PROGRAM_PREFIX.len()..]
    }

    fn call<A: AsRef<[B]>, B: AsRef<str>>(&self, verb: Verb, function: &str, calls: &[A]) -> Result<Vec<Answer>> {
        self.scripts.call(&self.context, verb, &["views", VIEW, function], calls).map_err(stopped)
    }
}

type Answer = std::result::Result<String, Thrown>;

/// What the view is called in the context: its own name is not among what its functions depend on.
const VIEW: &str = "view";

/// What a view's functions see of the design document: themselves, and the library beside them.
fn seen_by(design: &Value, view: &str) -> String {
    let views = design.get("views");
    let part = |name: &str| views.and_then(|views| views.get(name)).map_or_else(|| "null".to_owned(), Value::to_json);
    format!("{{\"views\":{{\"{VIEW}\":{},\"lib\":{}}}}}", part(view), part("lib"))
}

fn signature(seen: &str) -> String {
    blake3::hash(seen.as_bytes()).to_hex()[..32].to_owned()
}

/// The signatures of the views that design documents tell.
pub(crate) fn declared_signatures(designs: &[Document]) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for design in designs {
        let design = design.value()?;
        let names: Vec<&str> =
            design.get("views").and_then(Value::as_object).into_iter().flat_map(|views| views.names()).collect();
        found.extend(names.into_iter().filter(|name| *name != "lib").map(|name| signature(&seen_by(&design, name))));
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
        let served = self.served.upgrade().ok_or_else(|| Error::closed("the database is closed"))?;
        let calls =
            documents.iter().map(|document| Ok([document_json(&served, document)?])).collect::<Result<Vec<_>>>()?;
        Ok(self.call(Verb::Map, "map", &calls)?.into_iter().map(rows_of).collect())
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
        self.reduced(Verb::Reduce, &[[keys + "]", values + "]"]])
    }

    fn rereduce(&self, parts: &[Value]) -> Result<Value> {
        let parts: Vec<String> = parts.iter().map(Value::to_json).collect();
        self.reduced(Verb::Rereduce, &[[format!("[{}]", parts.join(","))]])
    }
}

impl DesignView {
    /// What a reduction came to: null, as in CouchDB, if it threw.
    fn reduced<const N: usize>(&self, verb: Verb, call: &[[String; N]; 1]) -> Result<Value> {
        match self.call(verb, "reduce", call)?.pop() {
            Some(Ok(json)) => parsed(&json),
            Some(Err(thrown)) => {
                tracing::warn!(target: "stemma::script", "{} failed to reduce: {}: {}", self.name, thrown.error, thrown.reason);
                Ok(Value::Null)
            }
            None => Err(Error::internal("a reduction was not answered")),
        }
    }
}
