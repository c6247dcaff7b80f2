//! Repository checks: module headers, the edges between modules as ARCHITECTURE.md lists them, file lengths, no paths of one machine.

#[path = "tidy/edges.rs"]
mod edges;

use std::path::{Path, PathBuf};

/// A file of code longer than this wants to be two.
const FILE_LINES_MAX: usize = 800;

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn files_below(directory: &Path, extension: &str, found: &mut Vec<PathBuf>) {
    for entry in directory.read_dir().unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() && path.file_name() != Some("target".as_ref()) {
            files_below(&path, extension, found);
        } else if path.extension() == Some(extension.as_ref()) {
            found.push(path);
        }
    }
}

fn sources() -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    files_below(&workspace().join("crates"), "rs", &mut found);
    assert!(found.len() > 50, "the sources were not found");
    found.sort();
    found.into_iter().map(|path| (path.clone(), std::fs::read_to_string(path).unwrap())).collect()
}

fn is_test(path: &Path) -> bool {
    path.ends_with("tests.rs") || path.components().any(|part| part.as_os_str() == "tests")
}

#[test]
fn every_module_begins_with_what_it_is() {
    let bare: Vec<_> =
        sources().into_iter().filter(|(_, text)| !text.starts_with("//!")).map(|(path, _)| path).collect();
    assert!(bare.is_empty(), "no `//!` on the first line of {bare:#?}");
}

#[test]
fn no_file_is_too_long() {
    let long: Vec<_> = sources()
        .into_iter()
        .filter(|(path, text)| !is_test(path) && text.lines().count() > FILE_LINES_MAX)
        .map(|(path, text)| (path, text.lines().count()))
        .collect();
    assert!(long.is_empty(), "more than {FILE_LINES_MAX} lines: {long:#?}");
}

/// A crate, the header of its table of modules in ARCHITECTURE.md, and its modules that have no row: what every module may use, and what only
/// tests and documentation do.
const MODULE_TABLES: [(&str, &str, &[&str]); 3] = [
    ("stemmadb", "| module | uses |", &["error", "sync", "varint", "testing", "format", "guide"]),
    ("stemmadb-server", "| server module | uses |", &[]),
    ("stemmadb-cli", "| cli module | uses |", &[]),
];

#[test]
fn modules_use_only_what_the_architecture_allows() {
    let architecture = std::fs::read_to_string(workspace().join("ARCHITECTURE.md")).unwrap();
    let mut wrong = Vec::new();
    for (member, header, without_row) in MODULE_TABLES {
        let rows = edges::table(&architecture, header);
        let used = edges::used(&workspace().join("crates").join(member).join("src"), &rows, without_row);
        assert!(used.len() > 5, "the modules of {member} were not found");
        wrong.extend(edges::differences(&rows, &used).into_iter().map(|wrong| format!("{member}: {wrong}")));
    }
    assert!(wrong.is_empty(), "module edges and ARCHITECTURE.md disagree: {wrong:#?}");
}

#[test]
fn wrong_tables_of_modules_are_detected() {
    let rows = |rows: &str| edges::table(&format!("| m | uses |\n|---|---|\n{rows}\n"), "| m | uses |");
    let used = rows("| a | |\n| b | a |").into_iter().collect();
    for (table, expected) in [
        ("| a | |\n| b | a |", vec![]),
        ("| a | |\n| b | |", vec!["b uses a, which its row does not allow"]),
        ("| a | |", vec!["b has no row in the table"]),
        ("| a | |\n| b | a |\n| c | a |", vec!["the row of c is stale: there is no such module"]),
        (
            "| a | b |\n| b | a |",
            vec![
                "the row of a allows b, which is not above it: there may be a cycle",
                "the row of a is stale: it does not use b",
            ],
        ),
    ] {
        assert_eq!(edges::differences(&rows(table), &used), expected, "{table}");
    }
}

#[test]
fn paths_are_found_in_every_notation() {
    let code = r#"
        use crate::{a::x, b::{self, y as z}, C};
        use super::super::d;
        pub(crate) use super::e::*;
        // use crate::comment::x;
        fn f<'a>(text: &'a str) -> char { crate::g::h(text, "crate::string::x", '"') }
        #[cfg(test)]
        mod tests { use crate::h; fn f() { { crate::i::j() } } }
        pub(in crate::seen) fn last() { self::own(); super::super::k::l() }
    "#;
    let found: Vec<_> = edges::of_code(code, &["here", "file"]).iter().map(|path| path.join("::")).collect();
    assert_eq!(found, ["a::x", "b", "b::y", "C", "d", "here::e", "g::h", "here::file::own", "k::l"]);
}

#[test]
fn nothing_names_a_machine() {
    let mut files = Vec::new();
    for extension in ["rs", "md", "toml", "txt", "json", "sh"] {
        files_below(&workspace().join("crates"), extension, &mut files);
        files_below(&workspace().join("docs"), extension, &mut files);
    }
    let others = ["README.md", "ARCHITECTURE.md", "Cargo.toml", "justfile", ".ci/run"];
    files.extend(others.map(|name| workspace().join(name)));
    // Put together here, so that this file is not one of them.
    let places = ["work", "farm", "root"].map(|place| format!("/{place}/"));
    let named: Vec<_> = files
        .into_iter()
        .filter(|path| {
            let text = std::fs::read_to_string(path).unwrap_or_default();
            let before = [" ", "\"", "`", "(", "="];
            places.iter().any(|place| before.iter().any(|before| text.contains(&format!("{before}{place}"))))
        })
        .collect();
    assert!(named.is_empty(), "absolute paths of a machine in {named:#?}");
}

/// The targets of `[text](target)` in a page, without those in code.
fn links(page: &str) -> Vec<String> {
    let prose: String = page.split("```").step_by(2).collect();
    let targets = prose.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
    targets.map(|(target, _)| target.split('#').next().unwrap_or_default().to_owned()).collect()
}

#[test]
fn links_lead_somewhere() {
    let mut pages: Vec<_> =
        ["README.md", "ARCHITECTURE.md", "CHANGELOG.md", "SECURITY.md"].map(|name| workspace().join(name)).into();
    files_below(&workspace().join("docs"), "md", &mut pages);
    let mut lost = Vec::new();
    for page in pages {
        for target in links(&std::fs::read_to_string(&page).unwrap()) {
            let is_ours = !target.is_empty() && !target.contains("://");
            if is_ours && !page.parent().unwrap().join(&target).exists() {
                lost.push(format!("{}: {target}", page.display()));
            }
        }
    }
    assert!(lost.is_empty(), "links to nothing: {lost:#?}");
}

/// `tests/interleavings.rs` chooses who gets a lock, which it can only of those in `sync`.
#[test]
fn locks_are_those_of_sync() {
    let root = workspace().join("crates/stemmadb/src");
    let is_elsewhere = |path: &Path| path.starts_with(&root) && !path.starts_with(root.join("sync"));
    let wrong: Vec<_> = (sources().into_iter())
        .filter(|(path, text)| is_elsewhere(path) && text.contains("parking_lot::"))
        .map(|(path, _)| path)
        .collect();
    assert!(wrong.is_empty(), "`parking_lot` is named in {wrong:#?}");
}

/// The names under a `[heading]` of a Cargo.toml.
fn names_under(manifest: &str, heading: &str) -> Vec<String> {
    let lines = manifest.lines().skip_while(|line| *line != heading).skip(1).take_while(|line| !line.starts_with('['));
    lines
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split(['.', ' ', '=']).next())
        .filter(|name| !name.is_empty())
        .map(String::from)
        .collect()
}

#[test]
fn every_dependency_says_what_it_is_for() {
    let decisions = [
        ("stemmadb", "0009-dependencies.md"),
        ("stemmadb-cli", "0009-dependencies.md"),
        ("stemmadb-server", "0019-server.md"),
    ];
    for (member, decision) in decisions {
        let table = std::fs::read_to_string(workspace().join("docs/decisions").join(decision)).unwrap();
        let manifest = workspace().join("crates").join(member).join("Cargo.toml");
        let manifest = std::fs::read_to_string(manifest).unwrap();
        let mut names = names_under(&manifest, "[dependencies]");
        names.extend(names_under(&manifest, "[dev-dependencies]"));
        assert!(names.len() > 5, "the dependencies of {member} were not found");
        names.retain(|name| !name.starts_with("stemmadb") && !table.contains(&format!("`{name}`")));
        assert!(names.is_empty(), "docs/decisions/{decision} does not know {names:?} of {member}");
    }
}

#[test]
fn the_guide_has_every_operator() {
    let source = std::fs::read_to_string(workspace().join("crates/stemmadb/src/query/language/operators.rs")).unwrap();
    let list = source.split("OPERATORS: &[&str] = &[").nth(1).unwrap().split("];").next().unwrap();
    let operators: Vec<_> = list.split('"').filter(|word| word.starts_with('$')).collect();
    assert!(operators.len() > 15, "the operators were not found");
    let guide = std::fs::read_to_string(workspace().join("docs/guide/queries.md")).unwrap();
    let missing: Vec<_> = operators.into_iter().filter(|operator| !guide.contains(operator)).collect();
    assert!(missing.is_empty(), "docs/guide/queries.md does not explain {missing:?}");
}
