//! Which request is whose? The table of all routes, and how one is found.

mod matching;
mod openapi;
mod parameters;
mod shape;
mod table;

use std::pin::Pin;

use hyper::Method;
use serde::Serialize;

use crate::auth::Access;
use crate::error::Result;
use crate::http::{Answer, Call};

pub(crate) use matching::{Found, find};
pub(crate) use openapi::openapi;
use shape::Shape;

/// What answers a request.
type Handler = fn(Call) -> Pin<Box<dyn Future<Output = Result<Answer>> + Send>>;

/// One route.
pub(crate) struct Route {
    pub(crate) method: Method,
    /// Its path: `{name}` is any one segment, `{name*}` at the end is all the rest.
    pub(crate) path: &'static str,
    /// Who may use it.
    pub(crate) access: Access,
    pub(crate) handler: Handler,
    /// What it does, in one sentence.
    about: &'static str,
    /// What it takes and gives.
    shape: Shape,
}

/// A route as it is described to others: to tests, and to the OpenAPI document.
#[derive(Debug, Clone, Serialize)]
pub struct Described {
    /// The method; a `GET` answers `HEAD` too.
    pub method: &'static str,
    /// The path: `{name}` is any one segment, `{name*}` at the end is all the rest.
    pub path: &'static str,
    /// Who may use it.
    pub access: Access,
    /// What it does, in one sentence.
    pub about: &'static str,
}

/// Every route, in the order of the table.
pub fn described() -> Vec<Described> {
    let describe = |route: &'static Route| Described {
        method: match route.method.as_str() {
            "GET" => "GET",
            "PUT" => "PUT",
            "POST" => "POST",
            "DELETE" => "DELETE",
            _ => "COPY",
        },
        path: route.path,
        access: route.access,
        about: route.about,
    };
    table::routes().iter().map(describe).collect()
}
