//! Finds which modules of a crate use which, from its source, and compares that with a table of ARCHITECTURE.md.
//!
//! Paths count that begin with `crate`, `super` or `self`, in `use` trees and in code. Unit tests (`#[cfg(test)] mod
//! …`, whether inline or in files) may use any module and are left out. A name that the crate's root re-exports counts
//! as the item that it is.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The rows of a table, in its order: a module, possibly a nested one (`query::plan`), and the modules that it
/// uses.
pub(crate) type Rows = Vec<(String, BTreeSet<String>)>;

/// For each module with a row, and each top-level module without one, the modules that its code uses.
type Used = BTreeMap<String, BTreeSet<String>>;

/// The rows of the table with this header.
pub(crate) fn table(text: &str, header: &str) -> Rows {
    let rows = text.lines().skip_while(|line| *line != header).skip(2).take_while(|line| line.starts_with('|'));
    rows.map(|row| {
        let mut cells = row.trim_matches('|').split('|').map(str::trim);
        let module = cells.next().unwrap().to_owned();
        let uses = cells.next().unwrap_or("").split(',').map(|name| name.trim().to_owned());
        (module, uses.filter(|name| !name.is_empty()).collect())
    })
    .collect()
}

/// The edges between the modules below `source`, a crate's `src`, but for those of the modules `without_row`.
pub(crate) fn used(source: &Path, rows: &Rows, without_row: &[&str]) -> Used {
    let mut files = Vec::new();
    super::files_below(source, "rs", &mut files);
    let files: Vec<_> = files
        .iter()
        .map(|path| (module_path(path.strip_prefix(source).unwrap()), std::fs::read_to_string(path).unwrap()))
        .collect();
    let is_root = |module: &[String]| matches!(module.first().map(String::as_str), None | Some("lib" | "main" | "bin"));
    let mut test_modules = BTreeSet::new();
    let mut exports = BTreeMap::new();
    for (module, text) in &files {
        let (tokens, modules_of_tests) = code_tokens(text);
        let parent = if is_root(module) { &[][..] } else { &module[..] };
        test_modules.extend(modules_of_tests.into_iter().map(|name| [parent, &[name]].concat()));
        if is_root(module) {
            for path in paths(&tokens, &[], true).into_iter().filter(|path| path.len() > 1) {
                exports.insert(path.last().unwrap().clone(), path);
            }
        }
    }
    let is_of_tests = |module: &[String]| (1..=module.len()).any(|length| test_modules.contains(&module[..length]));
    let files: Vec<_> = files.iter().filter(|(module, _)| !is_root(module) && !is_of_tests(module)).collect();
    let modules: BTreeSet<&String> = files.iter().map(|(module, _)| &module[0]).collect();
    let mut used = Used::new();
    for (module, text) in &files {
        let own = row_of(rows, module);
        if without_row.contains(&own.as_str()) {
            continue;
        }
        let uses = used.entry(own.clone()).or_default();
        let names: Vec<&str> = module.iter().map(String::as_str).collect();
        for path in of_code(text, &names) {
            let path = if modules.contains(&path[0]) { &path } else { exports.get(&path[0]).unwrap_or(&path) };
            let other = row_of(rows, path);
            let counts = modules.contains(&path[0]) && !without_row.contains(&other.as_str());
            if counts && !is_within(&other, &own) {
                uses.insert(other);
            }
        }
    }
    used
}

/// Whether the module `path` is `module`, or is nested in it.
fn is_within(path: &str, module: &str) -> bool {
    path.strip_prefix(module).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

/// The innermost module with a row that contains `path`; else its top-level module.
fn row_of(rows: &Rows, path: &[String]) -> String {
    let text = path.join("::");
    let row = rows
        .iter()
        .map(|(module, _)| module)
        .filter(|module| is_within(&text, module))
        .max_by_key(|module| module.len());
    row.unwrap_or(&path[0]).clone()
}

/// What is wrong with a table: edges and modules that it lacks, rows and edges without a use, edges to a module that is
/// not above.
pub(crate) fn differences(rows: &Rows, used: &Used) -> Vec<String> {
    let mut wrong = Vec::new();
    let table: BTreeMap<_, _> = rows.iter().map(|(module, uses)| (module, uses)).collect();
    for (module, uses) in used {
        match table.get(module) {
            None => wrong.push(format!("{module} has no row in the table")),
            Some(row) => wrong.extend(
                uses.difference(row).map(|other| format!("{module} uses {other}, which its row does not allow")),
            ),
        }
    }
    for (at, (module, uses)) in rows.iter().enumerate() {
        let Some(used) = used.get(module) else {
            wrong.push(format!("the row of {module} is stale: there is no such module"));
            continue;
        };
        let is_above = |other: &String| rows[..at].iter().any(|(above, _)| above == other);
        let cyclic = uses.iter().filter(|other| !is_above(other));
        wrong.extend(
            cyclic.map(|other| {
                format!("the row of {module} allows {other}, which is not above it: there may be a cycle")
            }),
        );
        wrong.extend(
            uses.difference(used).map(|other| format!("the row of {module} is stale: it does not use {other}")),
        );
    }
    wrong
}

/// The paths from the crate's root that `code` names; `module` is the path of its own module.
pub(crate) fn of_code(code: &str, module: &[&str]) -> Vec<Vec<String>> {
    paths(&code_tokens(code).0, module, false)
}

/// The path of a file's module: `a/b.rs` and `a/b/mod.rs` are `a::b`.
fn module_path(file: &Path) -> Vec<String> {
    let mut names: Vec<_> = file.with_extension("").iter().map(|name| name.to_str().unwrap().to_owned()).collect();
    if names.last().is_some_and(|name| name == "mod") {
        names.pop();
    }
    names
}

/// The tokens of `text` without its inline test modules, and the names of its test modules in files.
fn code_tokens(text: &str) -> (Vec<String>, Vec<String>) {
    const TEST_ATTRIBUTE: [&str; 7] = ["#", "[", "cfg", "(", "test", ")", "]"];
    let tokens = tokens(text);
    let (mut code, mut test_modules, mut at) = (Vec::new(), Vec::new(), 0);
    while at < tokens.len() {
        let is_test = tokens[at..].starts_with(&TEST_ATTRIBUTE.map(String::from));
        let Some(module) = module_after(&tokens, at + TEST_ATTRIBUTE.len()).filter(|_| is_test) else {
            code.push(tokens[at].clone());
            at += 1;
            continue;
        };
        if tokens[module + 2] == ";" {
            test_modules.push(tokens[module + 1].clone());
            at = module + 3;
            continue;
        }
        let mut depth = 0;
        at = module + 2;
        loop {
            match tokens[at].as_str() {
                "{" => depth += 1,
                "}" => depth -= 1,
                _ => {}
            }
            at += 1;
            if depth == 0 {
                break;
            }
        }
    }
    (code, test_modules)
}

/// Position of `mod` in an item that begins at `at`, after its attributes and its visibility; `None` if the item is not
/// a module.
fn module_after(tokens: &[String], mut at: usize) -> Option<usize> {
    let end_of =
        |at: usize, closing: &str| tokens.iter().skip(at).position(|token| token == closing).map(|end| at + end + 1);
    while tokens.get(at)? == "#" {
        at = end_of(at, "]")?;
    }
    if tokens.get(at)? == "pub" {
        at = if tokens.get(at + 1)? == "(" { end_of(at, ")")? } else { at + 1 };
    }
    (tokens.get(at)? == "mod").then_some(at)
}

/// Paths that begin with `crate`, `super` or `self`; with `bare_uses` those of `use` items that begin with a name, too.
fn paths(tokens: &[String], module: &[&str], bare_uses: bool) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        let is_followed = tokens.get(at + 1).is_some_and(|next| next == "::");
        // In `pub(in path)` it only says who sees the item.
        let is_visibility = at > 1 && tokens[at - 1] == "in" && tokens[at - 2] == "(";
        let is_beginning = !is_visibility && (at == 0 || tokens[at - 1] != "::");
        let mut start = at + 2;
        let mut prefix: Vec<String> = module.iter().map(|name| (*name).to_owned()).collect();
        match token.as_str() {
            "crate" if is_followed && is_beginning => prefix.clear(),
            "self" if is_followed && is_beginning => {}
            "super" if is_followed && is_beginning => {
                prefix.pop();
                while tokens[start] == "super" {
                    prefix.pop();
                    start += 2;
                }
            }
            "use" if bare_uses && !matches!(tokens[at + 1].as_str(), "crate" | "super" | "self") => {
                prefix.clear();
                start = at + 1;
            }
            _ => continue,
        }
        expand(tokens, start, &prefix, &mut found);
    }
    found.retain(|path| !path.is_empty());
    found
}

/// Appends the paths of the tree that begins at `at`; returns where it ends.
fn expand(tokens: &[String], mut at: usize, prefix: &[String], found: &mut Vec<Vec<String>>) -> usize {
    let mut path = prefix.to_vec();
    loop {
        match tokens.get(at).map(String::as_str) {
            Some("{") => {
                at += 1;
                while tokens[at] != "}" {
                    at = expand(tokens, at, &path, found);
                    if tokens[at] == "as" {
                        at += 2;
                    }
                    if tokens[at] == "," {
                        at += 1;
                    }
                }
                return at + 1;
            }
            Some("*" | "self") => {
                found.push(path);
                return at + 1;
            }
            Some(name) if name.starts_with(|first: char| first.is_alphabetic() || first == '_') => {
                path.push(name.to_owned());
                at += 1;
            }
            _ => {
                found.push(path);
                return at;
            }
        }
        if tokens.get(at).is_none_or(|next| next != "::") {
            found.push(path);
            return at;
        }
        at += 1;
    }
}

/// Words, `::` and single signs, without comments, strings and character literals.
fn tokens(text: &str) -> Vec<String> {
    let bytes = text.as_bytes();
    let (mut tokens, mut at) = (Vec::new(), 0);
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || !byte.is_ascii();
    while at < bytes.len() {
        let rest = &text[at..];
        match bytes[at] {
            b'/' if rest.starts_with("//") => at += rest.find('\n').unwrap_or(rest.len()),
            b'/' if rest.starts_with("/*") => at += rest.find("*/").map_or(rest.len(), |end| end + 2),
            b'r' | b'b' if raw_string_hashes(rest).is_some() => {
                let hashes = raw_string_hashes(rest).unwrap_or_default();
                let opening = rest.find('"').unwrap_or_default() + 1;
                let closing = format!("\"{}", "#".repeat(hashes));
                at += rest[opening..].find(&closing).map_or(rest.len(), |end| opening + end + closing.len());
            }
            b'"' => at += quoted_length(&bytes[at..]),
            b'\'' if rest[1..].starts_with('\\') => {
                at += 3 + bytes[at + 3..].iter().position(|byte| *byte == b'\'').map_or(0, |end| end + 1);
            }
            b'\'' => {
                let character = rest[1..].chars().next().map_or(0, char::len_utf8);
                // Without a second quote it is a lifetime.
                at += if rest[1 + character..].starts_with('\'') { character + 2 } else { 1 };
            }
            b':' if rest.starts_with("::") => {
                tokens.push("::".to_owned());
                at += 2;
            }
            byte if is_word(byte) => {
                let length = bytes[at..].iter().position(|byte| !is_word(*byte)).unwrap_or(bytes.len() - at);
                tokens.push(rest[..length].to_owned());
                at += length;
            }
            byte => {
                if !byte.is_ascii_whitespace() {
                    tokens.push(char::from(byte).to_string());
                }
                at += 1;
            }
        }
    }
    tokens
}

/// How many `#` a raw string has that `text` begins with.
fn raw_string_hashes(text: &str) -> Option<usize> {
    let after = text.strip_prefix("br").or_else(|| text.strip_prefix('r'))?;
    let quote = after.trim_start_matches('#');
    quote.starts_with('"').then_some(after.len() - quote.len())
}

/// The length of the string literal at the front of `bytes`, with its quotes.
fn quoted_length(bytes: &[u8]) -> usize {
    let mut at = 1;
    while at < bytes.len() && bytes[at] != b'"' {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    (at + 1).min(bytes.len())
}
