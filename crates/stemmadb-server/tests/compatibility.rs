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

/// The sources in which tests are looked for.
fn sources() -> String {
    let mut sources = String::new();
    sources_below(&root().join("crates/stemmadb-server"), &mut sources);
    sources_below(&root().join("crates/stemmadb-http"), &mut sources);
    sources_below(&root().join("crates/stemmadb-client/tests"), &mut sources);
    sources_below(&root().join("crates/stemmadb/tests"), &mut sources);
    sources
}

/// The parts of a text that are between backticks.
fn quoted(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

fn has_test(sources: &str, name: &str) -> bool {
    sources.contains(&format!("fn {name}("))
}

#[test]
fn every_row_names_tests_that_there_are() {
    let sources = sources();
    for row in rows() {
        let names = quoted(&row[3]);
        assert!(!names.is_empty(), "nothing shows {row:?}");
        for name in names {
            assert!(has_test(&sources, name), "there is no test {name}, which is to show {row:?}");
        }
    }
}

/// The lines of a section of the page.
fn section(title: &str) -> Vec<String> {
    let page = std::fs::read_to_string(root().join("docs/couchdb-compatibility.md")).unwrap();
    let lines = page.lines().skip_while(|line| *line != format!("## {title}")).skip(1);
    let lines: Vec<_> = lines.take_while(|line| !line.starts_with("## ")).map(str::to_owned).collect();
    assert!(!lines.is_empty(), "the page has no section {title}");
    lines
}

#[test]
fn rows_without_routes_name_tests_too() {
    let sources = sources();
    for title in ["Design documents", "Authentication and authorization"] {
        let rows: Vec<_> = section(title).into_iter().filter(|line| line.starts_with("| ")).skip(1).collect();
        assert!(rows.len() > 10, "{title}: {rows:?}");
        for row in rows {
            let tests = row.trim_end_matches([' ', '|']).rsplit(" | ").next().unwrap_or_default().to_owned();
            let names = quoted(&tests);
            assert!(!names.is_empty(), "{title}: nothing shows {row}");
            for name in names {
                assert!(has_test(&sources, name), "{title}: there is no test {name}, which is to show {row}");
            }
        }
    }
}

#[test]
fn every_difference_names_tests() {
    let sources = sources();
    let differences = section("Differences").join("\n");
    let differences: Vec<_> = differences.split("\n- ").skip(1).collect();
    assert!(differences.len() > 10, "{differences:?}");
    for difference in differences {
        // Names of tests are in parentheses.
        let names: Vec<_> = difference.split('(').skip(1).filter_map(|part| part.split(')').next()).collect();
        let names: Vec<_> = names.iter().flat_map(|part| quoted(part)).collect();
        let tests = names.iter().filter(|name| has_test(&sources, name)).count();
        assert!(tests > 0, "nothing shows: {difference}");
        let looks_like_a_test = |name: &&&str| name.matches('_').count() > 2 && !name.contains([' ', '/', '"']);
        for name in names.iter().filter(looks_like_a_test) {
            assert!(has_test(&sources, name), "there is no test {name}, which is to show: {difference}");
        }
    }
}
