//! The commands of the README and the tutorial print what these pages show. `STEMMA_BLESS=1` rewrites the pages.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const OPEN: &str = "```console\n";
const CLOSE: &str = "```";
const BOOKS: &str = "docs/guide/books.jsonl";

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn commands_of_the_readme_print_what_it_shows() {
    check_page("README.md");
}

#[test]
fn commands_of_the_tutorial_print_what_it_shows() {
    check_page("docs/tutorial.md");
}

#[test]
fn commands_of_the_page_on_bulk_print_what_it_shows() {
    check_page("docs/guide/bulk.md");
}

/// Runs all `console` blocks of a page, in order, in one directory.
fn check_page(page: &str) {
    let page = workspace().join(page);
    let text = std::fs::read_to_string(&page).unwrap();
    let directory = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(directory.path().join(BOOKS).parent().unwrap()).unwrap();
    std::fs::copy(workspace().join(BOOKS), directory.path().join(BOOKS)).unwrap();

    let (mut played, mut rest, mut block_count) = (String::new(), text.as_str(), 0);
    while let Some(at) = rest.find(OPEN) {
        let (before, from_block) = rest.split_at(at + OPEN.len());
        let (block, after) = from_block.split_at(from_block.find(CLOSE).expect("the block is closed"));
        played.push_str(before);
        // Requests to a server are tested by stemmadb-server.
        if block.contains("$ curl ") {
            played.push_str(block);
        } else {
            play(block, directory.path(), &mut played);
            block_count += 1;
        }
        rest = after;
    }
    played.push_str(rest);
    assert!(block_count > 0, "{} has no block of commands", page.display());
    if std::env::var_os("STEMMA_BLESS").is_some() {
        std::fs::write(&page, played).unwrap();
    } else {
        assert_eq!(without_times(&text), without_times(&played), "STEMMA_BLESS=1 accepts this");
    }
}

/// Appends each command of the block with its output.
fn play(block: &str, directory: &Path, played: &mut String) {
    for command in block.lines().filter_map(|line| line.strip_prefix("$ ")) {
        writeln!(played, "$ {command}\n{}", run(command, directory).trim_end()).unwrap();
    }
}

/// Returns what the command prints on standard output and standard error.
fn run(command: &str, directory: &Path) -> String {
    let binary = Path::new(env!("CARGO_BIN_EXE_stemma"));
    let mut search = vec![binary.parent().unwrap().to_path_buf()];
    search.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
    let output = Command::new("sh")
        .args(["-c", &format!("{command} 2>&1")])
        .current_dir(directory)
        .env("PATH", std::env::join_paths(search).unwrap())
        .env("COLUMNS", "100")
        .env("LC_ALL", "C.UTF-8")
        .env_remove("CLICOLOR_FORCE")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{command}: {}\n{printed}", output.status);
    printed
}

/// The text without durations.
fn without_times(text: &str) -> String {
    text.lines()
        .map(|line| line.split_once(" documents in ").map_or(line, |(before, _)| before))
        .collect::<Vec<_>>()
        .join("\n")
}
