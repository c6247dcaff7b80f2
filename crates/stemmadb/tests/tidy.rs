//! Repository checks: module headers, edges between modules, lengths of lines, files and pages, the size of the public
//! API, links, and absolute paths.

#[path = "tidy/edges.rs"]
mod edges;

use std::path::{Path, PathBuf};

/// Maximum lines of a source file that is not a test.
const FILE_LINES_MAX: usize = 800;

/// Maximum columns of a line of code, comments or Markdown prose.
const COLUMNS_MAX: usize = 120;

/// Maximum bytes of all Markdown below `docs`.
const DOCS_BYTES_MAX: u64 = 563_500;

/// Maximum lines of ARCHITECTURE.md.
const ARCHITECTURE_LINES_MAX: usize = 220;

/// Maximum public methods of `Database`, and maximum names that the crate's root exports.
const DATABASE_METHODS_MAX: usize = 50;
const EXPORTS_MAX: usize = 100;

/// The pages in the repository's root.
const ROOT_PAGES: [&str; 5] = ["README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"];

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
fn every_file_starts_with_a_module_header() {
    let bare: Vec<_> =
        sources().into_iter().filter(|(_, text)| !text.starts_with("//!")).map(|(path, _)| path).collect();
    assert!(bare.is_empty(), "no `//!` on the first line of {bare:#?}");
}

#[test]
fn files_stay_short() {
    let long: Vec<_> = sources()
        .into_iter()
        .filter(|(path, text)| !is_test(path) && text.lines().count() > FILE_LINES_MAX)
        .map(|(path, text)| (path, text.lines().count()))
        .collect();
    assert!(long.is_empty(), "more than {FILE_LINES_MAX} lines: {long:#?}");
}

/// Each crate, the header of its module table in ARCHITECTURE.md, and its modules without a row: those that every
/// module may use, and those that only tests and documentation use.
const MODULE_TABLES: [(&str, &str, &[&str]); 3] = [
    ("stemmadb", "| module | uses | contents |", &["error", "sync", "varint", "testing", "format", "guide"]),
    ("stemmadb-server", "| server module | uses | contents |", &[]),
    ("stemmadb-cli", "| cli module | uses | contents |", &[]),
];

#[test]
fn module_edges_match_the_architecture() {
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

/// The lines of a Markdown page that count as prose: neither code blocks nor tables.
fn prose_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_code = false;
    text.lines().enumerate().filter(move |(_, line)| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence && !line.trim_start().starts_with('|')
    })
}

#[test]
fn lines_are_at_most_120_columns() {
    let mut pages = Vec::new();
    files_below(&workspace().join("docs"), "md", &mut pages);
    pages.extend(ROOT_PAGES.map(|name| workspace().join(name)));
    let pages = pages.into_iter().map(|path| (path.clone(), std::fs::read_to_string(path).unwrap()));
    let mut long = Vec::new();
    for (path, text) in pages.chain(sources()) {
        let is_page = path.extension() == Some("md".as_ref());
        let lines: Vec<_> = if is_page { prose_lines(&text).collect() } else { text.lines().enumerate().collect() };
        let is_long = |line: &str| line.chars().count() > COLUMNS_MAX;
        long.extend(
            lines.iter().filter(|(_, line)| is_long(line)).map(|(at, _)| format!("{}:{}", path.display(), at + 1)),
        );
    }
    assert!(long.is_empty(), "lines over {COLUMNS_MAX} columns: {long:#?}");
}

#[test]
fn documentation_stays_short() {
    let architecture = std::fs::read_to_string(workspace().join("ARCHITECTURE.md")).unwrap();
    let lines = architecture.lines().count();
    assert!(lines <= ARCHITECTURE_LINES_MAX, "ARCHITECTURE.md has {lines} lines");
    let mut pages = Vec::new();
    files_below(&workspace().join("docs"), "md", &mut pages);
    let bytes: u64 = pages.iter().map(|path| path.metadata().unwrap().len()).sum();
    assert!(bytes <= DOCS_BYTES_MAX, "the Markdown below docs has {bytes} bytes");
}

#[test]
fn the_public_api_stays_small() {
    let source = workspace().join("crates/stemmadb/src");
    // Every `impl Database` block, wherever it is.
    let methods: usize = sources()
        .iter()
        .filter(|(path, _)| path.starts_with(&source))
        .flat_map(|(_, text)| text.split("\nimpl Database {\n").skip(1).map(|rest| rest.split("\n}").next().unwrap()))
        .map(|block| block.matches("\n    pub fn ").count() + usize::from(block.starts_with("    pub fn ")))
        .sum();
    assert!(methods > 20, "the methods of Database were not found");
    assert!(methods <= DATABASE_METHODS_MAX, "Database has {methods} public methods");
    let root = std::fs::read_to_string(source.join("lib.rs")).unwrap();
    let statements = root.split("\npub use ").skip(1).map(|rest| rest.split(';').next().unwrap());
    let names: usize = statements.map(|statement| statement.matches(',').count() + 1).sum();
    assert!(names > 50, "the exports of lib.rs were not found");
    assert!(names <= EXPORTS_MAX, "the crate's root exports {names} names");
}

#[test]
fn no_file_contains_an_absolute_path() {
    let mut files = Vec::new();
    for extension in ["rs", "md", "toml", "txt", "json", "sh"] {
        files_below(&workspace().join("crates"), extension, &mut files);
        files_below(&workspace().join("docs"), extension, &mut files);
    }
    let others = ["README.md", "ARCHITECTURE.md", "Cargo.toml", "justfile", ".ci/run", ".ci/builds"];
    files.extend(others.map(|name| workspace().join(name)));
    // Assembled here, so that this file does not match.
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
fn links_resolve() {
    let mut pages: Vec<_> = ROOT_PAGES.map(|name| workspace().join(name)).into();
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
    assert!(lost.is_empty(), "broken links: {lost:#?}");
}

/// `tests/interleavings.rs` schedules only the locks of `sync`.
#[test]
fn all_locks_come_from_sync() {
    let root = workspace().join("crates/stemmadb/src");
    let is_elsewhere = |path: &Path| path.starts_with(&root) && !path.starts_with(root.join("sync"));
    let wrong: Vec<_> = (sources().into_iter())
        .filter(|(path, text)| is_elsewhere(path) && text.contains("parking_lot::"))
        .map(|(path, _)| path)
        .collect();
    assert!(wrong.is_empty(), "`parking_lot` is used directly in {wrong:#?}");
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
fn every_dependency_has_a_row_in_a_decision() {
    let decisions = [
        ("stemmadb", "0009-dependencies.md"),
        ("stemmadb-cli", "0009-dependencies.md"),
        ("stemmadb-http", "0019-server.md"),
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
        assert!(names.is_empty(), "docs/decisions/{decision} has no row for {names:?} of {member}");
    }
}

#[test]
fn the_guide_lists_every_operator() {
    let source = std::fs::read_to_string(workspace().join("crates/stemmadb/src/query/language/operators.rs")).unwrap();
    let list = source.split("OPERATORS: &[&str] = &[").nth(1).unwrap().split("];").next().unwrap();
    let operators: Vec<_> = list.split('"').filter(|word| word.starts_with('$')).collect();
    assert!(operators.len() > 15, "the operators were not found");
    let guide = std::fs::read_to_string(workspace().join("docs/guide/queries.md")).unwrap();
    let missing: Vec<_> = operators.into_iter().filter(|operator| !guide.contains(operator)).collect();
    assert!(missing.is_empty(), "docs/guide/queries.md does not explain {missing:?}");
}
