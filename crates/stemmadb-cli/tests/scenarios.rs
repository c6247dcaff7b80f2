//! Runs the transcripts in `scenarios/` with the built command and compares its output byte by byte.
//!
//! A transcript has the form of a terminal session:
//!
//! ```text
//! # A line that begins with a hash is a comment.
//! $ stemma get library.stemma missing
//! ! error: there is no document "missing"
//! ? 1
//! ```
//!
//! `$` is a command for `sh` (`>` lines continue it), plain lines are its standard output, `!` lines its standard
//! error, and `?` its exit status if that is not 0. Each file runs in its own empty directory. `[..]` in an expected
//! line matches any text. `STEMMA_BLESS=1` rewrites the transcripts with the actual output; lines with `[..]` that
//! still match are kept. A file that begins with `# Needs mounts` is skipped if `unshare -rm` may not mount.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

#[test]
fn scenarios() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios");
    let mut files: Vec<PathBuf> = std::fs::read_dir(&directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "txt"))
        .collect();
    files.sort();
    assert!(!files.is_empty());
    let bless = std::env::var_os("STEMMA_BLESS").is_some();
    let differences: Vec<String> = std::thread::scope(|scope| {
        let threads: Vec<_> = files.iter().map(|file| scope.spawn(move || compare(file, bless))).collect();
        threads.into_iter().filter_map(|thread| thread.join().unwrap()).collect()
    });
    assert!(differences.is_empty(), "\n{}\nSTEMMA_BLESS=1 accepts this", differences.join("\n"));
}

/// Runs one transcript; returns the differences from the expected output, or rewrites the file if `bless` is set.
fn compare(file: &Path, bless: bool) -> Option<String> {
    let expected = std::fs::read_to_string(file).unwrap();
    if expected.starts_with("# Needs mounts") && !can_mount() {
        // Not captured, unlike `println!`: a skipped test is reported also if it passes.
        std::io::stderr()
            .write_all(format!("{} is skipped: mounting is not permitted\n", file.display()).as_bytes())
            .unwrap();
        return None;
    }
    let actual = run_transcript(&expected);
    if actual == expected {
        return None;
    }
    if bless {
        std::fs::write(file, &actual).unwrap();
        return None;
    }
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    Some(format!("--- {name}\n{}", difference(&expected, &actual)))
}

/// Whether a process may mount file systems in its own mount namespace.
fn can_mount() -> bool {
    let mount = Command::new("unshare").args(["-rm", "mount", "-t", "tmpfs", "tmpfs", "/tmp"]).output();
    mount.is_ok_and(|output| output.status.success())
}

/// A comment line of a transcript, or a command with its output.
enum Part<'a> {
    Comment(&'a str),
    Command { lines: Vec<&'a str>, output: Vec<&'a str> },
}

fn parts(transcript: &str) -> Vec<Part<'_>> {
    let mut parts = Vec::new();
    for line in transcript.lines() {
        let is_comment = line.is_empty() || line.starts_with('#');
        match parts.last_mut() {
            _ if line.starts_with("$ ") => parts.push(Part::Command { lines: vec![&line[2..]], output: Vec::new() }),
            _ if is_comment => parts.push(Part::Comment(line)),
            Some(Part::Command { lines, output }) if output.is_empty() && line.starts_with('>') => {
                lines.push(line.strip_prefix("> ").unwrap_or(""));
            }
            Some(Part::Command { output, .. }) => output.push(line),
            _ => panic!("a line before the first command: {line:?}"),
        }
    }
    parts
}

/// Runs every command of the transcript; returns the transcript with the actual output.
fn run_transcript(transcript: &str) -> String {
    let directory = tempfile::tempdir().unwrap();
    let mut actual_transcript = String::new();
    for part in parts(transcript) {
        match part {
            Part::Comment(line) => writeln!(actual_transcript, "{line}").unwrap(),
            Part::Command { lines, output } => {
                writeln!(actual_transcript, "$ {}", lines.join("\n> ")).unwrap();
                let actual = run(&lines.join("\n"), directory.path());
                actual_transcript.push_str(&keep_wildcards(&output, &actual));
            }
        }
    }
    actual_transcript
}

fn run(command: &str, directory: &Path) -> Vec<String> {
    let binary = Path::new(env!("CARGO_BIN_EXE_stemma"));
    let mut search = vec![binary.parent().unwrap().to_path_buf()];
    search.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
    // A command that waits for what never happens ends as a difference, with status 124.
    let output = Command::new("timeout")
        .args(["-k", "10", "300", "sh", "-c", command])
        .current_dir(directory)
        .env("PATH", std::env::join_paths(search).unwrap())
        .env("XDG_STATE_HOME", directory.join(".state"))
        .env("COLUMNS", "100")
        .env("LC_ALL", "C.UTF-8")
        .env_remove("CLICOLOR_FORCE")
        .env_remove("RUST_BACKTRACE")
        .env_remove("STEMMA_BLESS")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let clean = |bytes: &[u8]| hide_ids(&String::from_utf8_lossy(bytes).replace(&*directory.to_string_lossy(), "DIR"));
    let mut lines: Vec<String> = clean(&output.stdout).lines().map(escape_output).collect();
    lines.extend(clean(&output.stderr).lines().map(|line| format!("! {line}").trim_end().to_owned()));
    match output.status.code() {
        Some(0) => {}
        Some(code) => lines.push(format!("? {code}")),
        None => lines.push(format!("? {}", output.status)),
    }
    lines
}

/// Escapes a line of standard output: an empty line, or one that begins with a marker, is prefixed with a bar.
fn escape_output(line: &str) -> String {
    let line = line.trim_end();
    if line.is_empty() || line.starts_with(['$', '#', '!', '?', '>', '|']) {
        format!("| {line}")
    } else {
        line.to_owned()
    }
}

/// Replaces generated ids, which differ between runs, with `UUID`.
fn hide_ids(text: &str) -> String {
    let is_id = |candidate: &[u8]| {
        candidate.iter().enumerate().all(|(at, byte)| match at {
            8 | 13 | 18 | 23 => *byte == b'-',
            _ => byte.is_ascii_hexdigit() && !byte.is_ascii_uppercase(),
        })
    };
    let mut hidden = String::new();
    let mut rest = text;
    while let Some(character) = rest.chars().next() {
        if rest.len() >= 36 && is_id(&rest.as_bytes()[..36]) {
            hidden.push_str("UUID");
            rest = &rest[36..];
        } else {
            hidden.push(character);
            rest = &rest[character.len_utf8()..];
        }
    }
    hidden
}

/// The actual lines, with each replaced by the expected line that matches it.
fn keep_wildcards(expected: &[&str], actual: &[String]) -> String {
    let mut text = String::new();
    for (at, line) in actual.iter().enumerate() {
        let line = match expected.get(at) {
            Some(pattern) if matches(pattern, line) => pattern,
            _ => line.as_str(),
        };
        writeln!(text, "{line}").unwrap();
    }
    text
}

/// Whether `line` matches `pattern`, in which `[..]` matches any text.
fn matches(pattern: &str, line: &str) -> bool {
    let mut pieces = pattern.split("[..]");
    let Some(mut rest) = pieces.next().and_then(|first| line.strip_prefix(first)) else { return false };
    let pieces: Vec<&str> = pieces.collect();
    let Some((last, middle)) = pieces.split_last() else { return rest.is_empty() };
    for piece in middle {
        match rest.find(piece) {
            Some(at) => rest = &rest[at + piece.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

/// Formats the commands whose output differs, with expected and actual lines.
fn difference(expected: &str, actual: &str) -> String {
    let (expected, actual) = (parts(expected), parts(actual));
    let mut text = String::new();
    for pair in expected.iter().zip(&actual) {
        let (Part::Command { lines, output }, Part::Command { output: actual_output, .. }) = pair else { continue };
        if output == actual_output {
            continue;
        }
        writeln!(text, "$ {}", lines.join("\n> ")).unwrap();
        for line in output {
            writeln!(text, "  expected  {line}").unwrap();
        }
        for line in actual_output {
            writeln!(text, "  actual    {line}").unwrap();
        }
    }
    text
}

#[test]
fn wildcards_match() {
    assert!(matches("a [..] c", "a b c"));
    assert!(matches("[..]", ""));
    assert!(matches("same", "same"));
    assert!(!matches("same", "same more"));
    assert!(!matches("a [..] c", "a b d"));
    assert_eq!(hide_ids("x 0190a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b y"), "x UUID y");
}
