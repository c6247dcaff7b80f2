//! The OpenAPI document, generated from the route table.
//!
//! OpenAPI 3.1 supports neither the method `COPY` nor path parameters that contain slashes. `COPY` operations are
//! listed under the extension key `x-copy`, and slashes are mentioned in the parameter's description.

use std::collections::BTreeSet;
use std::sync::OnceLock;

use bytes::Bytes;
use serde_json::{Map, Value, json};

use super::operation::{MediaType, Parameter, ParameterType, RequestBody};
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
            "summary": "Document databases over HTTP: the CouchDB protocol with extensions.",
            "description": "`GET` operations also support `HEAD`. `x-access` is the minimum access required.",
            "license": {"name": env!("CARGO_PKG_LICENSE")},
        },
        "servers": [{"url": "/"}],
        "tags": tags(),
        "paths": paths,
        "components": {
            "schemas": schemas(),
            "responses": {
                "Error": error_response("The request was invalid, or the server could not process it."),
                "Unauthorized": error_response("The request has no credentials, or invalid ones."),
                "Forbidden": error_response("The user lacks the required access."),
            },
            "securitySchemes": {
                "basic": {"type": "http", "scheme": "basic"},
                "cookie": {"type": "apiKey", "in": "cookie", "name": "AuthSession"},
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "A JSON Web Token, or an API token created by `POST /_tokens`.",
                },
            },
        },
    })
}

/// The JSON schemas of request and response bodies, by name.
fn schemas() -> Value {
    // A test checks that the file parses.
    serde_json::from_str(include_str!("schemas.json")).unwrap_or_default()
}

fn error_response(description: &str) -> Value {
    json!({"description": description, "content": {"application/json": {"schema": reference("Error")}}})
}

fn reference(schema: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{schema}") })
}

/// The path in OpenAPI notation.
fn path(endpoint: &Endpoint) -> String {
    endpoint.route.path.replace("*}", "}")
}

fn path_parameters(endpoint: &Endpoint) -> Vec<Value> {
    let names = endpoint.route.path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let parameter = |name: &str| {
        let (name, description) = match name.strip_suffix('*') {
            Some(name) => (name, "The rest of the path, which may contain slashes."),
            None => (name, "One path segment. A slash within it is encoded as `%2F`."),
        };
        json!({"name": name, "in": "path", "required": true, "description": description, "schema": {"type": "string"}})
    };
    names.map(parameter).collect()
}

fn operation(endpoint: &Endpoint) -> Value {
    let mut operation = json!({
        "operationId": operation_id(endpoint),
        "summary": endpoint.summary,
        "tags": [tag(endpoint)],
        "responses": responses(endpoint),
        "security": security(endpoint.route.access),
        "x-access": endpoint.route.access,
    });
    let parameters: Vec<_> = endpoint.operation.parameters.iter().copied().flatten().map(parameter).collect();
    if !parameters.is_empty() {
        operation["parameters"] = parameters.into();
    }
    if let Some(RequestBody { media, is_required }) = &endpoint.operation.body {
        operation["requestBody"] = json!({"required": is_required, "content": content(media)});
    }
    operation
}

/// A unique id derived from the method and the path, such as `get_db_all_docs`.
fn operation_id(endpoint: &Endpoint) -> String {
    let words = endpoint.route.path.split(['/', '{', '}', '*', '_']).filter(|word| !word.is_empty());
    let words: Vec<_> =
        std::iter::once(endpoint.route.method.as_str()).chain(words).map(str::to_ascii_lowercase).collect();
    words.join("_")
}

/// The tag that an operation is grouped under: server, databases, documents, and so on.
fn tag(endpoint: &Endpoint) -> &'static str {
    let parts: Vec<_> = endpoint.route.path.split('/').skip(1).collect();
    match parts.as_slice() {
        _ if endpoint.operation.status >= 400 => "not supported",
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
    let Parameter { name, kind, is_header, description } = parameter;
    let location = if *is_header { "header" } else { "query" };
    let mut object = json!({"name": name, "in": location, "description": description});
    match kind {
        ParameterType::Flag => object["schema"] = json!({"type": "boolean"}),
        ParameterType::Number => object["schema"] = json!({"type": "integer", "minimum": 0}),
        ParameterType::Text => object["schema"] = json!({"type": "string"}),
        ParameterType::OneOf(words) => object["schema"] = json!({ "enum": words }),
        ParameterType::Json => object["content"] = json!({"application/json": {"schema": true}}),
    }
    object
}

fn content(media: &[Option<MediaType>]) -> Value {
    let schema = |media: &MediaType| media.schema.map_or(Value::Bool(true), reference);
    media.iter().flatten().map(|media| (media.kind.to_owned(), json!({"schema": schema(media)}))).collect()
}

fn responses(endpoint: &Endpoint) -> Value {
    let mut responses = Map::new();
    let description = if endpoint.operation.status >= 400 { "Not supported." } else { "Success." };
    let documented = json!({"description": description, "content": content(&endpoint.operation.responses)});
    responses.insert(endpoint.operation.status.to_string(), documented);
    let response = |name: &str| json!({ "$ref": format!("#/components/responses/{name}") });
    if endpoint.route.path.starts_with("/{db}") && endpoint.operation.status < 400 {
        let without = error_response("The database is virtual, or is not virtual, and does not have this route.");
        responses.insert("501".to_owned(), without);
    }
    if endpoint.route.access != Access::Anonymous {
        responses.insert("401".to_owned(), response("Unauthorized"));
        responses.insert("403".to_owned(), response("Forbidden"));
    }
    responses.insert("default".to_owned(), response("Error"));
    responses.into()
}

/// The accepted authentication schemes. The empty scheme is included where anonymous access is possible: on public
/// routes, and on member routes, because a database may have no members list.
fn security(access: Access) -> Value {
    let schemes = [json!({"basic": []}), json!({"cookie": []}), json!({"token": []})];
    let anonymous = matches!(access, Access::Anonymous | Access::Member).then(|| json!({}));
    anonymous.into_iter().chain(schemes).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_schema_exists_and_is_used() {
        let document = document();
        let text = document.to_string();
        let schemas = document["components"]["schemas"].as_object().unwrap();
        assert!(schemas.len() > 30);
        for name in schemas.keys() {
            assert!(text.contains(&format!("\"#/components/schemas/{name}\"")), "the schema {name} is unused");
        }
        let references = text.split("\"#/components/schemas/").skip(1).map(|rest| rest.split('"').next().unwrap());
        for name in references {
            assert!(schemas.contains_key(name), "there is no schema {name}");
        }
    }

    #[test]
    fn operation_ids_are_unique() {
        let ids: BTreeSet<_> = table::endpoints().iter().map(operation_id).collect();
        assert_eq!(ids.len(), table::endpoints().len());
        assert!(ids.contains("get_db_all_docs"));
    }
}
