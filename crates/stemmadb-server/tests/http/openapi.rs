//! The OpenAPI document is valid and matches the router.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use stemmadb_server::route_descriptions;

use crate::client::{ADMIN, TestServer};

const METHODS: [(&str, &str); 6] =
    [("get", "GET"), ("put", "PUT"), ("post", "POST"), ("delete", "DELETE"), ("patch", "PATCH"), ("x-copy", "COPY")];

fn document(server: &TestServer) -> Value {
    let answer = server.send("GET", "/_openapi", &[], b"");
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/json")));
    answer.json()
}

/// Every operation: path, method and description.
fn operations(document: &Value) -> Vec<(&str, &'static str, &Value)> {
    let paths = document["paths"].as_object().unwrap();
    let of_path = |(path, item)| {
        let item: &Value = item;
        let path: &String = path;
        METHODS.iter().filter_map(move |(key, method)| Some((path.as_str(), *method, item.get(key)?)))
    };
    paths.iter().flat_map(of_path).collect()
}

#[test]
fn document_is_valid_openapi_3_1() {
    let document = document(&TestServer::new());
    // Published by the OpenAPI Initiative under the Apache License 2.0.
    let schema: Value = serde_json::from_str(include_str!("openapi-3.1.json")).unwrap();
    let validator = jsonschema::validator_for(&schema).unwrap();
    let wrong: Vec<_> =
        validator.iter_errors(&document).map(|error| format!("{}: {error}", error.instance_path())).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    let mut broken = document.clone();
    broken["paths"]["/{db}"]["get"]["parameters"] = json!([{"name": "x"}]);
    assert!(!validator.is_valid(&broken), "the schema detects no errors");
}

#[test]
fn openapi_lists_exactly_the_routes() {
    let document = document(&TestServer::new());
    let reported: BTreeSet<_> =
        operations(&document).into_iter().map(|(path, method, _)| (method.to_owned(), path.to_owned())).collect();
    let routes: BTreeSet<_> = route_descriptions()
        .into_iter()
        .map(|route| (route.method.to_owned(), route.path.replace("*}", "}")))
        .collect();
    assert_eq!(reported, routes);
    let ids: BTreeSet<_> =
        operations(&document).iter().map(|(.., reported)| reported["operationId"].as_str()).collect();
    assert_eq!(ids.len(), routes.len());
    for (path, method, operation) in operations(&document) {
        assert!(operation["summary"].as_str().is_some_and(|summary| summary.ends_with('.')), "{method} {path}");
        let known = &document["paths"][path]["parameters"];
        let names: Vec<_> = known.as_array().unwrap().iter().map(|known| known["name"].as_str().unwrap()).collect();
        let wanted: Vec<_> = path.split(['{', '}']).skip(1).step_by(2).collect();
        assert_eq!(names, wanted, "{path}");
    }
}

#[test]
fn openapi_responses_match_the_server() {
    let server = TestServer::new();
    server.database("openapi", &[json!({"_id": "doc", "n": 1})]);
    let document = document(&server);
    let mut count = 0;
    for (path, method, operation) in operations(&document) {
        let is_plain = method == "GET" && !path.contains("_design") && operation["x-access"] != "anonymous";
        if !is_plain {
            continue;
        }
        let asked =
            path.replace("{db}", "openapi").replace("{doc}", "doc").replace("{node}", "_local").replace(['{', '}'], "");
        let asked = if asked.ends_with("_updates") { format!("{asked}?feed=normal") } else { asked };
        let answer = server.ask_as(ADMIN, "GET", &asked, None);
        if !matches!(answer.status, 200..300 | 501) {
            continue;
        }
        let reported = &operation["responses"][answer.status.to_string()];
        assert!(reported.is_object(), "{path} answers {}, which is not documented", answer.status);
        // Metrics are not JSON.
        let Some(schema) = reported["content"].get("application/json").map(|media| &media["schema"]) else { continue };
        let mut whole = json!({ "components": document["components"] });
        whole["$ref"] = schema["$ref"].clone();
        let validator = jsonschema::validator_for(&whole).unwrap();
        let wrong: Vec<_> = validator.iter_errors(&answer.json()).map(|error| error.to_string()).collect();
        assert!(wrong.is_empty(), "{path}: {wrong:#?}: {}", answer.text);
        count += 1;
    }
    assert!(count > 20, "{count} operations were tried");
    // Responses for insufficient rights are documented.
    let access = &document["paths"]["/_all_dbs"]["get"];
    assert_eq!((&access["x-access"], &access["security"][0]), (&json!("server_admin"), &json!({"basic": []})));
}
