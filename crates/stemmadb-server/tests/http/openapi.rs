//! The OpenAPI document: it is one, and it says what the router does.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use stemmadb_server::described;

use crate::client::{ADMIN, Started};

const METHODS: [(&str, &str); 5] =
    [("get", "GET"), ("put", "PUT"), ("post", "POST"), ("delete", "DELETE"), ("x-copy", "COPY")];

fn document(server: &Started) -> Value {
    let answer = server.send("GET", "/_openapi", &[], b"");
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/json")));
    answer.json()
}

/// Every operation: its path, its method, and what is said of it.
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
fn the_document_is_openapi_3_1() {
    let document = document(&Started::new());
    // By the OpenAPI Initiative, under the Apache License 2.0.
    let schema: Value = serde_json::from_str(include_str!("openapi-3.1.json")).unwrap();
    let validator = jsonschema::validator_for(&schema).unwrap();
    let wrong: Vec<_> =
        validator.iter_errors(&document).map(|error| format!("{}: {error}", error.instance_path())).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    let mut broken = document.clone();
    broken["paths"]["/{db}"]["get"]["parameters"] = json!([{"name": "x"}]);
    assert!(!validator.is_valid(&broken), "the schema finds nothing");
}

#[test]
fn it_has_every_route_and_no_other() {
    let document = document(&Started::new());
    let told: BTreeSet<_> =
        operations(&document).into_iter().map(|(path, method, _)| (method.to_owned(), path.to_owned())).collect();
    let routes: BTreeSet<_> =
        described().into_iter().map(|route| (route.method.to_owned(), route.path.replace("*}", "}"))).collect();
    assert_eq!(told, routes);
    let ids: BTreeSet<_> = operations(&document).iter().map(|(.., told)| told["operationId"].as_str()).collect();
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
fn what_it_says_of_operations_is_so() {
    let server = Started::new();
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
        let told = &operation["responses"][answer.status.to_string()];
        assert!(told.is_object(), "{path} answers {}, which is not told", answer.status);
        // Numbers for monitoring are no JSON.
        let Some(schema) = told["content"].get("application/json").map(|media| &media["schema"]) else { continue };
        let mut whole = json!({ "components": document["components"] });
        whole["$ref"] = schema["$ref"].clone();
        let validator = jsonschema::validator_for(&whole).unwrap();
        let wrong: Vec<_> = validator.iter_errors(&answer.json()).map(|error| error.to_string()).collect();
        assert!(wrong.is_empty(), "{path}: {wrong:#?}: {}", answer.text);
        count += 1;
    }
    assert!(count > 20, "{count} operations were tried");
    // Whoever may do less is told so.
    let access = &document["paths"]["/_all_dbs"]["get"];
    assert_eq!((&access["x-access"], &access["security"][0]), (&json!("server_admin"), &json!({"basic": []})));
}
