//! Plays the transcripts in `scenarios/` against the built command and compares every byte it answers.
//!
//! A transcript reads as a terminal would show it:
//!
//! ```text
//! # A line that begins with a hash explains.
//! $ stemma get library.stemma nobody
//! ! error: there is no document "nobody"
//! ? 1
//! ```
//!
//! `$` is a command for `sh` (`>` lines continue it), plain lines are its standard output, `!` lines its standard
//! error, `?` its exit status where that is not 0. Each file is played in an empty directory of its own. `[..]` in an
//! expected line stands for anything. Run with `STEMMA_BLESS=1` to write down what was answered; lines with `[..]` that
//! still match are kept. A file that begins with `# Needs mounts` is passed over where `unshare -rm` may not mount.

use std::fmt::Write as _;
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
        let played: Vec<_> = files.iter().map(|file| scope.spawn(move || compare(file, bless))).collect();
        played.into_iter().filter_map(|played| played.join().unwrap()).collect()
    });
    assert!(differences.is_empty(), "\n{}\nSTEMMA_BLESS=1 accepts this", differences.join("\n"));
}

/// Plays one transcript; says how it differs from what was expected, or writes down what it is now.
fn compare(file: &Path, bless: bool) -> Option<String> {
    let expected = std::fs::read_to_string(file).unwrap();
    if expected.starts_with("# Needs mounts") && !can_mount() {
        println!("{} is passed over: nothing can be mounted here", file.display());
        return None;
    }
    let actual = play(&expected);
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

/// Whether a process may mount what it likes in a world of its own.
fn can_mount() -> bool {
    let mount = Command::new("unshare").args(["-rm", "mount", "-t", "tmpfs", "tmpfs", "/tmp"]).output();
    mount.is_ok_and(|output| output.status.success())
}

/// One line of a transcript, or one command with all that belongs to it.
enum Part<'a> {
    Prose(&'a str),
    Exchange { command: Vec<&'a str>, answer: Vec<&'a str> },
}

fn parts(transcript: &str) -> Vec<Part<'_>> {
    let mut parts = Vec::new();
    for line in transcript.lines() {
        let prose = line.is_empty() || line.starts_with('#');
        match parts.last_mut() {
            _ if line.starts_with("$ ") => parts.push(Part::Exchange { command: vec![&line[2..]], answer: Vec::new() }),
            _ if prose => parts.push(Part::Prose(line)),
            Some(Part::Exchange { command, answer }) if answer.is_empty() && line.starts_with('>') => {
                command.push(line.strip_prefix("> ").unwrap_or(""));
            }
            Some(Part::Exchange { answer, .. }) => answer.push(line),
            _ => panic!("a line belongs to no command: {line:?}"),
        }
    }
    parts
}

/// Runs every command of the transcript; returns the transcript as it should have read.
fn play(transcript: &str) -> String {
    let directory = tempfile::tempdir().unwrap();
    let mut played = String::new();
    for part in parts(transcript) {
        match part {
            Part::Prose(line) => writeln!(played, "{line}").unwrap(),
            Part::Exchange { command, answer } => {
                writeln!(played, "$ {}", command.join("\n> ")).unwrap();
                let actual = run(&command.join("\n"), directory.path());
                played.push_str(&keep_wildcards(&answer, &actual));
            }
        }
    }
    played
}

fn run(command: &str, directory: &Path) -> Vec<String> {
    let binary = Path::new(env!("CARGO_BIN_EXE_stemma"));
    let mut search = vec![binary.parent().unwrap().to_path_buf()];
    search.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
    let output = Command::new("sh")
        .args(["-c", command])
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
    let mut lines: Vec<String> = clean(&output.stdout).lines().map(quote_plain).collect();
    lines.extend(clean(&output.stderr).lines().map(|line| format!("! {line}").trim_end().to_owned()));
    match output.status.code() {
        Some(0) => {}
        Some(code) => lines.push(format!("? {code}")),
        None => lines.push(format!("? {}", output.status)),
    }
    lines
}

/// Standard output as it may stand in a transcript: an empty line or one that looks like a mark is indented by a bar.
fn quote_plain(line: &str) -> String {
    let line = line.trim_end();
    if line.is_empty() || line.starts_with(['$', '#', '!', '?', '>', '|']) {
        format!("| {line}")
    } else {
        line.to_owned()
    }
}

/// Made ids differ from run to run: `018f…` in the form of a UUID becomes `UUID`.
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

/// The actual lines, but with each expected line in its place that matches by its wildcards.
fn keep_wildcards(expected: &[&str], actual: &[String]) -> String {
    let mut text = String::new();
    for (at, line) in actual.iter().enumerate() {
        let kept = match expected.get(at) {
            Some(pattern) if matches(pattern, line) => pattern,
            _ => line.as_str(),
        };
        writeln!(text, "{kept}").unwrap();
    }
    text
}

/// Whether `line` is `pattern`, where `[..]` stands for anything.
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

/// The lines that differ, each with the command it answers.
fn difference(expected: &str, actual: &str) -> String {
    let (expected, actual) = (parts(expected), parts(actual));
    let mut text = String::new();
    for pair in expected.iter().zip(&actual) {
        let (Part::Exchange { command, answer }, Part::Exchange { answer: played, .. }) = pair else { continue };
        if answer == played {
            continue;
        }
        writeln!(text, "$ {}", command.join("\n> ")).unwrap();
        for line in answer {
            writeln!(text, "  expected  {line}").unwrap();
        }
        for line in played {
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
