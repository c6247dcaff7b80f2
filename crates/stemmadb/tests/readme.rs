//! The README's program equals `examples/first.rs` and prints what the README shows. `STEMMA_BLESS=1` updates both in
//! the README.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

fn manifest() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The example program that `cargo test` built next to the tests.
fn built_program() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let name = format!("first{}", std::env::consts::EXE_SUFFIX);
    let program = test.parent().unwrap().parent().unwrap().join("examples").join(name);
    assert!(program.exists(), "the example is not built: run `cargo test -p stemmadb` without naming targets");
    program
}

/// Replaces the block that starts with `open`; returns the new text and the previous block.
fn replace_block(text: &str, open: &str, new: &str) -> (String, String) {
    let start = text.find(open).unwrap_or_else(|| panic!("the README has no block {open:?}")) + open.len();
    let end = start + text[start..].find("```").unwrap();
    ([&text[..start], new, &text[end..]].concat(), text[start..end].to_owned())
}

#[test]
fn readme_program_runs_and_prints_the_shown_output() {
    let source = std::fs::read_to_string(manifest().join("examples/first.rs")).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let output = Command::new(built_program()).current_dir(&directory).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(source.lines().count() <= 25, "the README's program has at most 25 lines");

    let readme = manifest().join("../../README.md");
    let text = std::fs::read_to_string(&readme).unwrap();
    let (text, shown_source) = replace_block(&text, "```rust\n", &source);
    let (text, shown_output) = replace_block(&text, "```text\n", &printed);
    if std::env::var_os("STEMMA_BLESS").is_some() {
        std::fs::write(readme, text).unwrap();
    } else {
        assert_eq!(shown_source, source, "STEMMA_BLESS=1 copies examples/first.rs into the README");
        assert_eq!(shown_output, printed, "STEMMA_BLESS=1 copies what it prints into the README");
    }
}

#[test]
fn readme_has_at_most_700_words() {
    let text = std::fs::read_to_string(manifest().join("../../README.md")).unwrap();
    let word_count = text.split_whitespace().count();
    assert!(word_count <= 700, "the README has {word_count} words");
}

#[test]
fn documentation_index_reaches_every_page() {
    let docs = manifest().join("../../docs").canonicalize().unwrap();
    let mut reached = BTreeSet::new();
    let mut unread = vec![docs.join("README.md")];
    while let Some(page) = unread.pop() {
        if page.starts_with(&docs) && page.extension() == Some("md".as_ref()) && reached.insert(page.clone()) {
            let text = std::fs::read_to_string(&page).unwrap();
            let directory = page.parent().unwrap();
            unread.extend(local_links(&text).filter_map(|link| directory.join(link).canonicalize().ok()));
        }
    }
    let mut pages = BTreeSet::new();
    pages_below(&docs, &mut pages);
    let unreachable: Vec<_> = pages.difference(&reached).collect();
    assert!(unreachable.is_empty(), "docs/README.md leads to none of {unreachable:#?}");
}

/// The targets of links to files, without fragments.
fn local_links(page: &str) -> impl Iterator<Item = &str> {
    let targets = page.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next());
    targets.filter(|target| !target.is_empty() && !target.contains("://"))
}

fn pages_below(directory: &Path, pages: &mut BTreeSet<PathBuf>) {
    for entry in directory.read_dir().unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            pages_below(&path, pages);
        } else if path.extension() == Some("md".as_ref()) {
            pages.insert(path);
        }
    }
}
