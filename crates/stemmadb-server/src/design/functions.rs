//! Functions of a design document that are called one by one: filters, updates, validations.

use std::sync::Arc;

use hyper::http::request::Parts;
use stemmadb::{Document, Object, Result as LibraryResult, Value};

use crate::auth::User;
use crate::directory::ServedDatabase;
use crate::documents::{DocumentPrinter, ShowOptions};
use crate::error::{Failure, Result};
use crate::http::{Query, RequestedPath};
use crate::script::{CallKind, Context, Scripts, ThrownError};

/// The functions of one revision of a design document.
#[derive(Clone)]
pub(crate) struct DesignFunctions {
    scripts: Arc<Scripts>,
    context: Context,
}

impl DesignFunctions {
    /// The functions of `design`.
    ///
    /// # Errors
    /// 400 if they are in another language than JavaScript.
    pub(crate) fn new(served: &ServedDatabase, scripts: &Arc<Scripts>, design: &Document) -> Result<Self> {
        let value = design.value()?;
        if !super::is_javascript(&value) {
            return Err(Failure::bad_request("The design document's language is not javascript."));
        }
        let key = format!("{} {} {}", served.instance_id(), design.id(), design.revision());
        let design = document_json(served, design)?;
        Ok(DesignFunctions { scripts: scripts.clone(), context: Context { key: key.into(), design: design.into() } })
    }

    /// The functions of a design document of a virtual database, as JSON. `served` is a shard.
    ///
    /// # Errors
    /// 400 if they are in another language than JavaScript.
    pub(crate) fn of_whole(served: &ServedDatabase, scripts: &Arc<Scripts>, design: &Value) -> Result<Self> {
        if !super::is_javascript(design) {
            return Err(Failure::bad_request("The design document's language is not javascript."));
        }
        let text = |name: &str| design.get(name).and_then(Value::as_str).unwrap_or_default();
        let key = format!("{} {} {}", served.instance_id(), text("_id"), text("_rev"));
        let context = Context { key: key.into(), design: design.to_json().into() };
        Ok(DesignFunctions { scripts: scripts.clone(), context })
    }

    /// Calls the function at `path` once for each list of arguments.
    ///
    /// # Errors
    /// 404 if there is no such function; 500 if it can't be called.
    pub(crate) fn call<A: AsRef<[B]>, B: AsRef<str>>(
        &self,
        kind: CallKind,
        path: &[&str],
        calls: &[A],
    ) -> Result<Vec<std::result::Result<String, ThrownError>>> {
        self.scripts.call(&self.context, kind, path, calls).map_err(|error| super::script_failure(&error))
    }

    /// Returns which documents pass the filter at `path`, `["filters", name]`, or have rows in the view at `["views",
    /// name, "map"]`.
    ///
    /// # Errors
    /// As [`DesignFunctions::call`], and the exceptions that the function throws.
    pub(crate) fn filter(
        &self,
        kind: CallKind,
        path: &[&str],
        documents: &[String],
        request: &str,
    ) -> Result<Vec<bool>> {
        let answers = match kind {
            CallKind::ViewFilter => {
                let calls: Vec<[&str; 1]> = documents.iter().map(|document| [document.as_str()]).collect();
                self.call(kind, path, &calls)?
            }
            _ => {
                let calls: Vec<[&str; 2]> = documents.iter().map(|document| [document.as_str(), request]).collect();
                self.call(kind, path, &calls)?
            }
        };
        answers.into_iter().map(|answer| answer.map(|json| json == "true").map_err(super::thrown_failure)).collect()
    }
}

/// The JSON of a document as functions receive it.
pub(crate) fn document_json(served: &ServedDatabase, document: &Document) -> LibraryResult<String> {
    document_json_as(served, document, &ShowOptions::default())
}

/// Like [`document_json`], with additional fields.
pub(super) fn document_json_as(
    served: &ServedDatabase,
    document: &Document,
    show: &ShowOptions,
) -> LibraryResult<String> {
    let snapshot = served.database().snapshot()?;
    let printer = DocumentPrinter { served, snapshot: &snapshot, show };
    let mut text = Vec::with_capacity(512);
    let printed = printer.print(document, &mut text);
    printed.map_err(|failure| stemmadb::Error::internal(failure.reason().to_owned()))?;
    String::from_utf8(text).map_err(|_| stemmadb::Error::internal("a document was printed as no text"))
}

/// The `userCtx` argument of functions.
pub(crate) fn user_context(served: &ServedDatabase, user: &User) -> Value {
    let mut context = Object::new();
    context.insert("db", served.whole_name());
    context.insert("name", user.name.as_deref().map_or(Value::Null, Value::from));
    context.insert("roles", user.roles.iter().map(|role| Value::from(role.as_str())).collect::<Vec<_>>());
    context.into()
}

/// Headers withheld from functions because they hold secrets.
const SECRET_HEADERS: [&str; 4] = ["authorization", "cookie", "proxy-authorization", "x-auth-couchdb-token"];

/// The request object that filters and updates receive.
pub(crate) fn request_value(
    served: &ServedDatabase,
    user: &User,
    parts: &Parts,
    query: &Query,
    body: &str,
    id: Option<&str>,
) -> Value {
    let text_or_null = |text: Option<&str>| text.map_or(Value::Null, Value::from);
    let mut headers = Object::new();
    for (name, value) in &parts.headers {
        if let (false, Ok(text)) = (SECRET_HEADERS.contains(&name.as_str()), value.to_str()) {
            headers.insert(capitalized(name.as_str()), text);
        }
    }
    let mut parameters = Object::new();
    query.iter().for_each(|(name, value)| drop(parameters.insert(name, value)));
    let path_of = |path: &str| path.split('/').filter(|part| !part.is_empty()).map(Value::from).collect::<Vec<_>>();
    let path = path_of(parts.uri.path());
    let requested_path = parts.extensions.get::<RequestedPath>().map(|requested| path_of(&requested.0));
    let peer = parts.headers.get("host").and_then(|host| host.to_str().ok());
    let mut info = Object::new();
    info.insert("db_name", served.whole_name());
    info.insert("update_seq", served.sequence_text(served.database().sequence()));
    let mut form = Object::new();
    let is_form = parts.headers.get("content-type").and_then(|value| value.to_str().ok());
    if is_form.is_some_and(|value| value.starts_with("application/x-www-form-urlencoded"))
        && let Ok(fields) = Query::parse(body)
    {
        fields.iter().for_each(|(name, value)| drop(form.insert(name, value)));
    }
    let mut request = Object::new();
    request.insert("info", info);
    request.insert("id", text_or_null(id));
    request.insert("uuid", uuid::Uuid::new_v4().simple().to_string());
    request.insert("method", parts.method.as_str());
    request.insert("requested_path", requested_path.unwrap_or_else(|| path.clone()));
    request.insert("path", path);
    request.insert("raw_path", parts.uri.path_and_query().map_or("/", |path| path.as_str()));
    request.insert("query", parameters);
    request.insert("headers", headers);
    request.insert("body", if body.is_empty() { "undefined" } else { body });
    request.insert("form", form);
    request.insert("cookie", Object::new());
    request.insert("peer", text_or_null(peer));
    request.insert("userCtx", user_context(served, user));
    request.insert("secObj", served.security().value().clone());
    request.into()
}

/// Capitalizes a header's name as CouchDB does, such as `Content-Type`.
fn capitalized(name: &str) -> String {
    let words = name.split('-').map(|word| match word.split_at_checked(1) {
        Some((first, rest)) => first.to_ascii_uppercase() + rest,
        None => String::new(),
    });
    words.collect::<Vec<_>>().join("-")
}
