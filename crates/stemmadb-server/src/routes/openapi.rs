//! The OpenAPI document: the table of routes as other programs read it.
//!
//! OpenAPI 3.1 has no word for the method `COPY`, nor for parameters with slashes: the first is told under `x-copy`, of the second it is
//! said in words.

use std::collections::BTreeSet;
use std::sync::OnceLock;

use bytes::Bytes;
use serde_json::{Map, Value, json};

use super::shape::{Body, Kind, Media, Parameter};
use super::{Endpoint, table};
use crate::auth::Access;

/// The OpenAPI document, as JSON.
pub(crate) fn openapi() -> Bytes {
    static TEXT: OnceLock<Bytes> = OnceLock::new();
    TEXT.get_or_init(|| Bytes::from(document().to_string())).clone()
}

fn document() -> Value {
    let mut paths = Map::new();
    for endpoint in table::endpoints() {
        let item = paths.entry(path(endpoint)).or_insert_with(|| json!({ "parameters": path_parameters(endpoint) }));
        let method = match endpoint.route.method.as_str() {
            "COPY" => "x-copy".to_owned(),
            method => method.to_ascii_lowercase(),
        };
        item[method] = operation(endpoint);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Stemma",
            "version": env!("CARGO_PKG_VERSION"),
            "summary": "Document databases over HTTP: CouchDB's protocol, and more.",
            "description": "A `GET` answers `HEAD` too. `x-access` tells who may use an operation at least.",
            "license": {"name": env!("CARGO_PKG_LICENSE")},
        },
        "servers": [{"url": "/"}],
        "tags": tags(),
        "paths": paths,
        "components": {
            "schemas": schemas(),
            "responses": {
                "Refused": refused("What a client did wrong, or the server could not do."),
                "Unauthorized": refused("Nobody said who they are, or it is not so."),
                "Forbidden": refused("They are who they say, and may not."),
            },
            "securitySchemes": {
                "basic": {"type": "http", "scheme": "basic"},
                "cookie": {"type": "apiKey", "in": "cookie", "name": "AuthSession"},
                "token": {"type": "http", "scheme": "bearer", "description": "A JSON Web Token, or one of `_tokens`."},
            },
        },
    })
}

/// The schemas that bodies are described by, by name.
fn schemas() -> Value {
    // A test reads it.
    serde_json::from_str(include_str!("schemas.json")).unwrap_or_default()
}

fn refused(description: &str) -> Value {
    json!({"description": description, "content": {"application/json": {"schema": reference("Error")}}})
}

fn reference(schema: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{schema}") })
}

/// The path as OpenAPI has it.
fn path(endpoint: &Endpoint) -> String {
    endpoint.route.path.replace("*}", "}")
}

fn path_parameters(endpoint: &Endpoint) -> Vec<Value> {
    let names = endpoint.route.path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let parameter = |name: &str| {
        let (name, about) = match name.strip_suffix('*') {
            Some(name) => (name, "All the rest of the path, which may have slashes."),
            None => (name, "One segment of the path; slashes within it are written `%2F`."),
        };
        json!({"name": name, "in": "path", "required": true, "description": about, "schema": {"type": "string"}})
    };
    names.map(parameter).collect()
}

fn operation(endpoint: &Endpoint) -> Value {
    let mut operation = json!({
        "operationId": operation_id(endpoint),
        "summary": endpoint.about,
        "tags": [tag(endpoint)],
        "responses": responses(endpoint),
        "security": security(endpoint.route.access),
        "x-access": endpoint.route.access,
    });
    let parameters: Vec<_> = endpoint.shape.parameters.iter().copied().flatten().map(parameter).collect();
    if !parameters.is_empty() {
        operation["parameters"] = parameters.into();
    }
    if let Some(Body { media, is_required }) = &endpoint.shape.body {
        operation["requestBody"] = json!({"required": is_required, "content": content(media)});
    }
    operation
}

/// Unique, and made from the path: `get_db_all_docs`.
fn operation_id(endpoint: &Endpoint) -> String {
    let words = endpoint.route.path.split(['/', '{', '}', '*', '_']).filter(|word| !word.is_empty());
    let words: Vec<_> =
        std::iter::once(endpoint.route.method.as_str()).chain(words).map(str::to_ascii_lowercase).collect();
    words.join("_")
}

/// What the operation is about: the server, a database, its documents …
fn tag(endpoint: &Endpoint) -> &'static str {
    let parts: Vec<_> = endpoint.route.path.split('/').skip(1).collect();
    match parts.as_slice() {
        _ if endpoint.shape.status >= 400 => "refused",
        ["{db}", "{doc}" | "_local", ..] => "documents",
        ["{db}", "_design", ..] => "design documents",
        ["{db}", ..] => "databases",
        _ => "server",
    }
}

fn tags() -> Vec<Value> {
    let names: BTreeSet<_> = table::endpoints().iter().map(tag).collect();
    names.into_iter().map(|name| json!({ "name": name })).collect()
}

fn parameter(parameter: &Parameter) -> Value {
    let Parameter { name, kind, is_header, about } = parameter;
    let place = if *is_header { "header" } else { "query" };
    let mut told = json!({"name": name, "in": place, "description": about});
    match kind {
        Kind::Flag => told["schema"] = json!({"type": "boolean"}),
        Kind::Number => told["schema"] = json!({"type": "integer", "minimum": 0}),
        Kind::Text => told["schema"] = json!({"type": "string"}),
        Kind::OneOf(words) => told["schema"] = json!({ "enum": words }),
        Kind::Json => told["content"] = json!({"application/json": {"schema": true}}),
    }
    told
}

fn content(media: &[Option<Media>]) -> Value {
    let schema = |media: &Media| media.schema.map_or(Value::Bool(true), reference);
    media.iter().flatten().map(|media| (media.kind.to_owned(), json!({"schema": schema(media)}))).collect()
}

fn responses(endpoint: &Endpoint) -> Value {
    let mut responses = Map::new();
    let description = if endpoint.shape.status >= 400 { "Refused." } else { "It was done." };
    let answer = json!({"description": description, "content": content(&endpoint.shape.answers)});
    responses.insert(endpoint.shape.status.to_string(), answer);
    let response = |name: &str| json!({ "$ref": format!("#/components/responses/{name}") });
    if endpoint.route.access != Access::Anonymous {
        responses.insert("401".to_owned(), response("Unauthorized"));
        responses.insert("403".to_owned(), response("Forbidden"));
    }
    responses.insert("default".to_owned(), response("Refused"));
    responses.into()
}

/// Any way to say who one is; none is needed where everybody may, and where no member of a database is named.
fn security(access: Access) -> Value {
    let ways = [json!({"basic": []}), json!({"cookie": []}), json!({"token": []})];
    let nobody = matches!(access, Access::Anonymous | Access::Member).then(|| json!({}));
    nobody.into_iter().chain(ways).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemas_are_there_and_each_is_used() {
        let document = document();
        let text = document.to_string();
        let schemas = document["components"]["schemas"].as_object().unwrap();
        assert!(schemas.len() > 30);
        for name in schemas.keys() {
            assert!(text.contains(&format!("\"#/components/schemas/{name}\"")), "nothing is a {name}");
        }
        let references = text.split("\"#/components/schemas/").skip(1).map(|rest| rest.split('"').next().unwrap());
        for name in references {
            assert!(schemas.contains_key(name), "there is no schema {name}");
        }
    }

    #[test]
    fn operations_have_ids_of_their_own() {
        let ids: BTreeSet<_> = table::endpoints().iter().map(operation_id).collect();
        assert_eq!(ids.len(), table::endpoints().len());
        assert!(ids.contains("get_db_all_docs"));
    }
}
