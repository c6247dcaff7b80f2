//! The functions of one design document that are called by themselves: filters, updates, validations.

use std::sync::Arc;

use hyper::http::request::Parts;
use stemmadb::{Document, Object, Result as LibraryResult, Value};

use crate::auth::User;
use crate::directory::Served;
use crate::documents::{Printer, Show};
use crate::error::{Failure, Result};
use crate::http::Query;
use crate::script::{Context, Scripts, Thrown, Verb};

/// The functions of one revision of a design document.
#[derive(Clone)]
pub(crate) struct Functions {
    scripts: Arc<Scripts>,
    context: Context,
}

impl Functions {
    /// Those of `design`.
    ///
    /// # Errors
    /// 400 if it is in another language.
    pub(crate) fn new(served: &Served, scripts: &Arc<Scripts>, design: &Document) -> Result<Self> {
        let value = design.value()?;
        if !super::is_javascript(&value) {
            return Err(Failure::bad_request("The design document's language is not javascript."));
        }
        let key = format!("{} {} {}", served.mark(), design.id(), design.revision());
        let design = document_json(served, design)?;
        Ok(Functions { scripts: scripts.clone(), context: Context { key: key.into(), design: design.into() } })
    }

    /// Calls the function at `path` once for each list of arguments.
    ///
    /// # Errors
    /// 404 if there is none; 500 if it can't be called.
    pub(crate) fn call<A: AsRef<[B]>, B: AsRef<str>>(
        &self,
        verb: Verb,
        path: &[&str],
        calls: &[A],
    ) -> Result<Vec<std::result::Result<String, Thrown>>> {
        self.scripts.call(&self.context, verb, path, calls).map_err(|error| super::script_failure(&error))
    }

    /// Which documents pass the filter at `path`, `["filters", name]`, or have rows in the view at it, `["views", name, "map"]`.
    ///
    /// # Errors
    /// As [`Functions::call`]; those that it throws.
    pub(crate) fn filter(&self, verb: Verb, path: &[&str], documents: &[String], request: &str) -> Result<Vec<bool>> {
        let answers = match verb {
            Verb::ViewFilter => {
                let calls: Vec<[&str; 1]> = documents.iter().map(|document| [document.as_str()]).collect();
                self.call(verb, path, &calls)?
            }
            _ => {
                let calls: Vec<[&str; 2]> = documents.iter().map(|document| [document.as_str(), request]).collect();
                self.call(verb, path, &calls)?
            }
        };
        answers.into_iter().map(|answer| answer.map(|json| json == "true").map_err(super::thrown_failure)).collect()
    }
}

/// A document as functions get it, as JSON.
pub(crate) fn document_json(served: &Served, document: &Document) -> LibraryResult<String> {
    document_json_as(served, document, &Show::default())
}

/// As [`document_json`], with what else is to be shown.
pub(super) fn document_json_as(served: &Served, document: &Document, show: &Show) -> LibraryResult<String> {
    let snapshot = served.database().snapshot()?;
    let printer = Printer { served, snapshot: &snapshot, show };
    let mut text = Vec::with_capacity(512);
    let printed = printer.print_of(document, &[], &mut text);
    printed.map_err(|failure| stemmadb::Error::internal(failure.reason().to_owned()))?;
    String::from_utf8(text).map_err(|_| stemmadb::Error::internal("a document was printed as no text"))
}

/// Who asks, as functions are told.
pub(crate) fn user_context(served: &Served, user: &User) -> Value {
    let mut context = Object::new();
    context.insert("db", served.name());
    context.insert("name", user.name.as_deref().map_or(Value::Null, Value::from));
    context.insert("roles", user.roles.iter().map(|role| Value::from(role.as_str())).collect::<Vec<_>>());
    context.into()
}

/// Headers that functions are not shown: they hold secrets.
const SECRET: [&str; 4] = ["authorization", "cookie", "proxy-authorization", "x-auth-couchdb-token"];

/// A request as filters and updates get it.
pub(crate) fn request_value(
    served: &Served,
    user: &User,
    parts: &Parts,
    query: &Query,
    body: &str,
    id: Option<&str>,
) -> Value {
    let text_or_null = |text: Option<&str>| text.map_or(Value::Null, Value::from);
    let mut headers = Object::new();
    for (name, value) in &parts.headers {
        if let (false, Ok(text)) = (SECRET.contains(&name.as_str()), value.to_str()) {
            headers.insert(capitalised(name.as_str()), text);
        }
    }
    let mut parameters = Object::new();
    query.iter().for_each(|(name, value)| drop(parameters.insert(name, value)));
    let path: Vec<Value> = parts.uri.path().split('/').filter(|part| !part.is_empty()).map(Value::from).collect();
    let peer = parts.headers.get("host").and_then(|host| host.to_str().ok());
    let mut info = Object::new();
    info.insert("db_name", served.name());
    info.insert("update_seq", served.sequence_text(served.database().sequence()));
    let mut form = Object::new();
    let is_form = parts.headers.get("content-type").and_then(|kind| kind.to_str().ok());
    if is_form.is_some_and(|kind| kind.starts_with("application/x-www-form-urlencoded"))
        && let Ok(fields) = Query::parse(body)
    {
        fields.iter().for_each(|(name, value)| drop(form.insert(name, value)));
    }
    let mut request = Object::new();
    request.insert("info", info);
    request.insert("id", text_or_null(id));
    request.insert("uuid", uuid::Uuid::new_v4().simple().to_string());
    request.insert("method", parts.method.as_str());
    request.insert("requested_path", path.clone());
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

/// `content-type` as `Content-Type`, as CouchDB's functions know it.
fn capitalised(name: &str) -> String {
    let words = name.split('-').map(|word| match word.split_at_checked(1) {
        Some((first, rest)) => first.to_ascii_uppercase() + rest,
        None => String::new(),
    });
    words.collect::<Vec<_>>().join("-")
}
