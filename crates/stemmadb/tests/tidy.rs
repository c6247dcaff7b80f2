//! Keeps the house in order: module headers, the rooms' edges as ARCHITECTURE.md has them, file lengths, nothing of one machine.

use std::collections::{BTreeMap, BTreeSet};
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

/// The table `| room | uses |` of ARCHITECTURE.md.
fn allowed_edges() -> BTreeMap<String, BTreeSet<String>> {
    let text = std::fs::read_to_string(workspace().join("ARCHITECTURE.md")).unwrap();
    let table = text.lines().skip_while(|line| *line != "| room | uses |");
    let rows = table.skip(2).take_while(|line| line.starts_with('|'));
    rows.map(|row| {
        let mut cells = row.trim_matches('|').split('|').map(str::trim);
        let room = cells.next().unwrap().to_owned();
        let uses = cells.next().unwrap_or("").split(',').map(|name| name.trim().to_owned());
        (room, uses.filter(|name| !name.is_empty()).collect())
    })
    .collect()
}

#[test]
fn rooms_use_only_what_the_architecture_allows() {
    let allowed = allowed_edges();
    assert!(allowed.len() >= 10, "the table of rooms was not found in ARCHITECTURE.md");
    let root = workspace().join("crates/stemmadb/src");
    let mut wrong = Vec::new();
    for (path, text) in sources() {
        let Ok(inside) = path.strip_prefix(&root) else { continue };
        let first = inside.components().next().unwrap().as_os_str().to_str().unwrap();
        let room = first.trim_end_matches(".rs");
        let Some(uses) = allowed.get(room).filter(|_| !is_test(inside)) else { continue };
        // Unit tests at the end of a file may look around.
        let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
        for other in allowed.keys().filter(|other| *other != room && !uses.contains(*other)) {
            if mentions(code, &format!("crate::{other}")) {
                wrong.push(format!("{}: {room} uses {other}", inside.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "edges that ARCHITECTURE.md does not have: {wrong:#?}");
}

/// Whether `code` has the path `wanted`, not just something that begins like it.
fn mentions(code: &str, wanted: &str) -> bool {
    code.match_indices(wanted).any(|(at, matched)| {
        let after = code[at + matched.len()..].chars().next();
        !after.is_some_and(|next| next.is_alphanumeric() || next == '_')
    })
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
    let source = std::fs::read_to_string(workspace().join("crates/stemmadb/src/query/operators.rs")).unwrap();
    let list = source.split("OPERATORS: &[&str] = &[").nth(1).unwrap().split("];").next().unwrap();
    let operators: Vec<_> = list.split('"').filter(|word| word.starts_with('$')).collect();
    assert!(operators.len() > 15, "the operators were not found");
    let guide = std::fs::read_to_string(workspace().join("docs/guide/queries.md")).unwrap();
    let missing: Vec<_> = operators.into_iter().filter(|operator| !guide.contains(operator)).collect();
    assert!(missing.is_empty(), "docs/guide/queries.md does not explain {missing:?}");
}
