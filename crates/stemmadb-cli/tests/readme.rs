//! Runs the commands of the README in order and compares their output with the README. `STEMMA_BLESS=1` updates the
//! README.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const OPEN: &str = "```console\n";
const CLOSE: &str = "```";

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn readme_commands_print_what_the_readme_shows() {
    let readme = workspace().join("README.md");
    let text = std::fs::read_to_string(&readme).unwrap();
    let start = text.find(OPEN).expect("the README has a block of commands") + OPEN.len();
    let end = start + text[start..].find(CLOSE).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let books = "docs/guide/books.jsonl";
    std::fs::create_dir_all(directory.path().join(books).parent().unwrap()).unwrap();
    std::fs::copy(workspace().join(books), directory.path().join(books)).unwrap();

    let mut actual = String::new();
    for command in text[start..end].lines().filter_map(|line| line.strip_prefix("$ ")) {
        writeln!(actual, "$ {command}\n{}", run(command, directory.path()).trim_end()).unwrap();
    }
    if std::env::var_os("STEMMA_BLESS").is_some() {
        std::fs::write(&readme, [&text[..start], &actual, &text[end..]].concat()).unwrap();
    } else {
        assert_eq!(without_times(&text[start..end]), without_times(&actual), "STEMMA_BLESS=1 accepts this");
    }
}

/// Runs a command; returns its standard output and standard error.
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

/// Removes durations from the text.
fn without_times(text: &str) -> String {
    text.lines()
        .map(|line| line.split_once(" documents in ").map_or(line, |(before, _)| before))
        .collect::<Vec<_>>()
        .join("\n")
}
