//! Checks the compatibility page: every route has a row, and every row names existing tests.

use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The cells of the rows that begin with a method.
fn rows() -> Vec<Vec<String>> {
    let page = std::fs::read_to_string(root().join("docs/couchdb-compatibility.md")).unwrap();
    let methods = ["GET", "PUT", "POST", "DELETE", "COPY"];
    let cells = |line: &str| line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
    page.lines()
        .filter(|line| line.starts_with("| "))
        .map(cells)
        .filter(|row| methods.contains(&row[0].as_str()))
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
fn compatibility_rows_match_the_routes() {
    let rows: Vec<(String, String)> =
        rows().into_iter().map(|row| (row[0].clone(), row[1].trim_matches('`').to_owned())).collect();
    let routes = stemmadb_server::described();
    let routes: Vec<_> = routes.iter().map(|route| (route.method.to_owned(), route.path.to_owned())).collect();
    let missing: Vec<_> = routes.iter().filter(|route| !rows.contains(route)).collect();
    assert!(missing.is_empty(), "docs/couchdb-compatibility.md has no row for {missing:#?}");
    let lost: Vec<_> = rows.iter().filter(|row| !routes.contains(row)).collect();
    assert!(lost.is_empty(), "docs/couchdb-compatibility.md has rows for no route: {lost:#?}");
}

#[test]
fn compatibility_rows_name_existing_tests() {
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
