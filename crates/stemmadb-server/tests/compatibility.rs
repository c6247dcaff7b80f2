//! The page on compatibility has a row for every route, and every row names what shows it.

use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The cells of the rows that start with HTTP methods. A row can list several methods and paths, separated by commas.
fn rows() -> Vec<Vec<String>> {
    let page = std::fs::read_to_string(root().join("docs/couchdb-compatibility.md")).unwrap();
    let methods = ["GET", "PUT", "POST", "DELETE", "PATCH", "COPY"];
    let cells = |line: &str| line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
    page.lines()
        .filter(|line| line.starts_with("| "))
        .map(cells)
        .filter(|row| row[0].split(", ").all(|method| methods.contains(&method)))
        .collect()
}

fn sources_below(directory: &Path, text: &mut String) {
    for entry in directory.read_dir().unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() && path.file_name() != Some("node_modules".as_ref()) {
            sources_below(&path, text);
        } else if path.extension() == Some("rs".as_ref()) {
            text.push_str(&std::fs::read_to_string(path).unwrap());
        }
    }
}

#[test]
fn every_route_has_a_row_and_no_row_is_without_a_route() {
    let mut rows_of_page = Vec::new();
    for row in rows() {
        for method in row[0].split(", ") {
            for path in row[1].split(", ") {
                rows_of_page.push((method.to_owned(), path.trim_matches('`').to_owned()));
            }
        }
    }
    let routes = stemmadb_server::route_descriptions();
    let routes: Vec<_> = routes.iter().map(|route| (route.method.to_owned(), route.path.to_owned())).collect();
    let missing: Vec<_> = routes.iter().filter(|route| !rows_of_page.contains(route)).collect();
    assert!(missing.is_empty(), "docs/couchdb-compatibility.md has no row for {missing:#?}");
    let lost: Vec<_> = rows_of_page.iter().filter(|row| !routes.contains(row)).collect();
    assert!(lost.is_empty(), "docs/couchdb-compatibility.md has rows for no route: {lost:#?}");
}

#[test]
fn every_row_names_tests_that_there_are() {
    let mut sources = String::new();
    sources_below(&root().join("crates/stemmadb-server"), &mut sources);
    for row in rows() {
        let names: Vec<&str> = row[3].split('`').skip(1).step_by(2).collect();
        assert!(!names.is_empty(), "nothing shows {row:?}");
        for name in names {
            assert!(sources.contains(&format!("fn {name}(")), "there is no test {name}, which is to show {row:?}");
        }
    }
}
