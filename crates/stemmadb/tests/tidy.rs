//! Keeps the house in order: module headers, the modules' edges as ARCHITECTURE.md has them, file lengths, nothing of one machine.

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

/// Modules of the library that have no row in ARCHITECTURE.md: what every module may use, and what only tests do.
const WITHOUT_ROW: [&str; 6] = ["error", "sync", "varint", "testing", "format", "guide"];

/// The table `| module | uses |` of ARCHITECTURE.md, in its order.
fn allowed_edges() -> Vec<(String, BTreeSet<String>)> {
    let text = std::fs::read_to_string(workspace().join("ARCHITECTURE.md")).unwrap();
    let table = text.lines().skip_while(|line| *line != "| module | uses |");
    let rows = table.skip(2).take_while(|line| line.starts_with('|'));
    rows.map(|row| {
        let mut cells = row.trim_matches('|').split('|').map(str::trim);
        let module = cells.next().unwrap().to_owned();
        let uses = cells.next().unwrap_or("").split(',').map(|name| name.trim().to_owned());
        (module, uses.filter(|name| !name.is_empty()).collect())
    })
    .collect()
}

/// Whether `path` is `module` or within it.
fn is_within(path: &str, module: &str) -> bool {
    path.strip_prefix(module).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

/// The row with the longest name that `path` is within.
fn row_of<'r>(rows: &'r [(String, BTreeSet<String>)], path: &str) -> Option<&'r (String, BTreeSet<String>)> {
    rows.iter().filter(|(module, _)| is_within(path, module)).max_by_key(|(module, _)| module.len())
}

/// Which module each name comes from that `lib.rs` exports.
fn exports() -> BTreeMap<String, String> {
    let text = std::fs::read_to_string(workspace().join("crates/stemmadb/src/lib.rs")).unwrap();
    let mut exports = BTreeMap::new();
    for statement in text.split("pub use ").skip(1).filter_map(|rest| rest.split(';').next()) {
        let (module, names) = statement.split_once("::").unwrap();
        let names = names.trim_matches(['{', '}']).split(',').map(|name| name.split(" as ").last().unwrap().trim());
        exports.extend(names.filter(|name| !name.is_empty()).map(|name| (name.to_owned(), module.to_owned())));
    }
    assert!(exports.len() > 50, "the exports of lib.rs were not found");
    exports
}

/// The module that a file below `src` is, as `query::plan`.
fn module_of(inside: &Path) -> String {
    let path = inside.with_extension("");
    let names: Vec<_> = path.iter().map(|name| name.to_str().unwrap()).filter(|name| *name != "mod").collect();
    names.join("::")
}

/// The paths within the crate that `code` of `module` names, from the crate's root.
fn paths_in(code: &str, module: &str) -> BTreeSet<String> {
    let code: String = code.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n");
    let mut paths = BTreeSet::new();
    let is_name = |next: char| next.is_alphanumeric() || next == '_' || next == ':';
    for (at, root) in code.match_indices("crate::").chain(code.match_indices("super::")) {
        let before = &code[..at];
        if before.ends_with(is_name) || before.ends_with("pub(in ") {
            continue;
        }
        let mut base: Vec<&str> = if root == "crate::" { Vec::new() } else { module.split("::").collect() };
        let mut rest = code[at..].strip_prefix("crate::").unwrap_or(&code[at..]);
        while let Some(inner) = rest.strip_prefix("super::") {
            base.pop();
            rest = inner;
        }
        let base: String = base.iter().map(|name| format!("{name}::")).collect();
        match rest.strip_prefix('{') {
            Some(group) => {
                let group = group.split('}').next().unwrap();
                paths.extend(group.split(',').map(|name| format!("{base}{}", name.trim())));
            }
            None => {
                let end = rest.find(|next| !is_name(next)).unwrap_or(rest.len());
                paths.insert(format!("{base}{}", rest[..end].trim_end_matches(':')));
            }
        }
    }
    paths
}

#[test]
fn modules_use_only_what_the_architecture_allows() {
    let (rows, exports) = (allowed_edges(), exports());
    assert!(rows.len() >= 20, "the table of modules was not found in ARCHITECTURE.md");
    let root = workspace().join("crates/stemmadb/src");
    let mut wrong = Vec::new();
    for (path, text) in sources() {
        let Ok(inside) = path.strip_prefix(&root) else { continue };
        let module = module_of(inside);
        let Some((row, uses)) = row_of(&rows, &module).filter(|_| !is_test(inside)) else { continue };
        // Unit tests at the end of a file may use anything.
        let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
        for used in paths_in(code, &module) {
            let used = exports.get(&used).unwrap_or(&used);
            let Some((other, _)) = row_of(&rows, used) else { continue };
            if !is_within(other, row) && !uses.contains(other) {
                wrong.push(format!("{}: {row} uses {used}", inside.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "edges that ARCHITECTURE.md does not have: {wrong:#?}");
}

/// Each module uses only those above it, so there is no cycle; and none is missing.
#[test]
fn the_table_of_modules_is_ordered_and_complete() {
    let rows = allowed_edges();
    for (at, (module, uses)) in rows.iter().enumerate() {
        let is_above = |name: &String| rows[..at].iter().any(|(above, _)| above == name);
        let wrong: Vec<_> = uses.iter().filter(|name| !is_above(name)).collect();
        assert!(wrong.is_empty(), "{module} uses {wrong:?}, which ARCHITECTURE.md does not have above it");
    }
    let library = std::fs::read_to_string(workspace().join("crates/stemmadb/src/lib.rs")).unwrap();
    let modules = library.lines().filter_map(|line| line.trim_start_matches("pub ").strip_prefix("mod "));
    let missing: Vec<_> = modules
        .map(|name| name.trim_end_matches(';'))
        .filter(|name| !WITHOUT_ROW.contains(name) && !rows.iter().any(|(module, _)| module == name))
        .collect();
    assert!(missing.is_empty(), "ARCHITECTURE.md has no row for {missing:?}");
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
