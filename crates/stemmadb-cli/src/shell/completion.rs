//! Completion of the word under the cursor.
//!
//! Completes commands, options, ids, file names and field names, and operators within a selector.

use clap::CommandFactory;
use rustyline::completion::FilenameCompleter;

use super::words::{self, Word};
use crate::arguments::Arguments;

/// Operators of selectors.
const OPERATORS: [&str; 20] = [
    "$all",
    "$and",
    "$beginsWith",
    "$elemMatch",
    "$eq",
    "$exists",
    "$gt",
    "$gte",
    "$in",
    "$lt",
    "$lte",
    "$mod",
    "$ne",
    "$nin",
    "$nor",
    "$not",
    "$or",
    "$regex",
    "$size",
    "$type",
];

/// Maximum number of ids offered.
const IDS_MAX: usize = 50;

/// Names from the database that can be completed.
pub(crate) trait CompletionSource {
    /// Up to `limit` ids that begin with `prefix`.
    fn ids(&self, prefix: &str, limit: usize) -> Vec<String>;

    /// Dotted paths of fields.
    fn fields(&self) -> Vec<String>;
}

/// Returns the byte offset of the word before `cursor` in `line`, and the candidates for it.
pub(crate) fn candidates(line: &str, cursor: usize, source: &dyn CompletionSource) -> (usize, Vec<String>) {
    let Some(line) = line.get(..cursor) else { return (cursor, Vec::new()) };
    let (mut words, open) = words::split_partial(line);
    if open.is_none() && (line.is_empty() || line.ends_with(char::is_whitespace)) {
        words.push(Word { text: String::new(), start: line.len() });
    }
    let Some((current, before)) = words.split_last() else { return (cursor, Vec::new()) };
    if current.text.starts_with('{') {
        return in_selector(line, current.start, source);
    }
    let start = current.start;
    let prefix = current.text.as_str();
    let Some(command) = before.first().map(|word| word.text.as_str()) else {
        return (start, with_prefix(prefix, command_names()));
    };
    if prefix.starts_with("--") {
        return (start, with_prefix(prefix, options(command)));
    }
    match (command, before.last().map(|word| word.text.as_str()), before.len()) {
        (_, Some("--sort" | "--fields" | "--id-field"), _) => field_list(start, prefix, source),
        (_, Some("--durability"), _) => (start, with_prefix(prefix, ["sync", "interval", "none"].map(str::to_owned))),
        (_, Some("--on-conflict"), _) => (start, with_prefix(prefix, ["fail", "skip", "replace"].map(str::to_owned))),
        ("get" | "put" | "update" | "delete" | "files" | "attach" | "fetch" | "detach", _, 1) => {
            (start, source.ids(prefix, IDS_MAX).iter().map(|id| quoted(id)).collect())
        }
        ("import" | "export", _, 1) | ("attach", _, 3) | ("fetch", Some("-o" | "--output"), _) => files(line, start),
        ("help", _, 1) => (start, with_prefix(prefix, command_names())),
        _ => (cursor, Vec::new()),
    }
}

/// The names of the commands available in the shell.
pub(crate) fn command_names() -> Vec<String> {
    let command = Arguments::command();
    let names = command.get_subcommands().map(|command| command.get_name().to_owned()).filter(|name| name != "shell");
    names.chain(["help", "exit"].map(str::to_owned)).collect()
}

fn options(name: &str) -> Vec<String> {
    let command = Arguments::command();
    let Some(subcommand) = command.find_subcommand(name) else { return Vec::new() };
    subcommand.get_arguments().filter_map(|argument| argument.get_long()).map(|long| format!("--{long}")).collect()
}

fn with_prefix(prefix: &str, words: impl IntoIterator<Item = String>) -> Vec<String> {
    words.into_iter().filter(|word| word.starts_with(prefix)).collect()
}

/// Completes the last of several field names separated by commas.
fn field_list(start: usize, typed: &str, source: &dyn CompletionSource) -> (usize, Vec<String>) {
    let last = typed.rfind(',').map_or(0, |comma| comma + 1);
    let last = last + usize::from(typed[last..].starts_with('-'));
    (start + last, with_prefix(&typed[last..], source.fields()))
}

/// Completes a field name or operator if the cursor is within a name of the selector.
fn in_selector(line: &str, start: usize, source: &dyn CompletionSource) -> (usize, Vec<String>) {
    let nothing = (line.len(), Vec::new());
    let json = &line[start..];
    let (mut name_start, mut before, mut last) = (None, ' ', ' ');
    let mut escaped = false;
    for (at, character) in json.char_indices() {
        match (name_start, character) {
            (Some(_), _) if escaped => escaped = false,
            (Some(_), '\\') => escaped = true,
            (Some(_), '"') => (name_start, last) = (None, '"'),
            (Some(_), _) => {}
            (None, '"') => (name_start, before) = (Some(at + 1), last),
            (None, space) if space.is_whitespace() => {}
            (None, _) => last = character,
        }
    }
    let Some(name_start) = name_start.filter(|_| matches!(before, '{' | ',')) else { return nothing };
    let prefix = &json[name_start..];
    let names = if prefix.starts_with('$') { OPERATORS.map(str::to_owned).to_vec() } else { source.fields() };
    let names = with_prefix(prefix, names).iter().map(|name| format!("{name}\": ")).collect();
    (start + name_start, names)
}

fn files(line: &str, start: usize) -> (usize, Vec<String>) {
    match FilenameCompleter::new().complete_path(line, line.len()) {
        Ok((at, pairs)) => (at, pairs.into_iter().map(|pair| pair.replacement).collect()),
        Err(_) => (start, Vec::new()),
    }
}

fn quoted(id: &str) -> String {
    let plain = !id.is_empty() && !id.contains(|c: char| c.is_whitespace() || "'\"\\{[".contains(c));
    if plain { id.to_owned() } else { format!("\"{}\"", id.replace('\\', "\\\\").replace('"', "\\\"")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct TestSource;

    impl CompletionSource for TestSource {
        fn ids(&self, prefix: &str, limit: usize) -> Vec<String> {
            with_prefix(prefix, ["emma", "emil", "moby dick"].map(str::to_owned)).into_iter().take(limit).collect()
        }

        fn fields(&self) -> Vec<String> {
            ["title", "year", "publisher.city"].map(str::to_owned).to_vec()
        }
    }

    fn complete(line: &str) -> (usize, Vec<String>) {
        candidates(line, line.len(), &TestSource)
    }

    #[test]
    fn commands_and_options() {
        assert_eq!(complete("fin"), (0, vec!["find".to_owned()]));
        assert_eq!(complete("fetch em").1, ["emma", "emil"]);
        assert!(complete("").1.contains(&"import".to_owned()));
        assert_eq!(complete("help ex").1, ["export", "explain", "exit"]);
        assert_eq!(complete("find {} --li"), (8, vec!["--limit".to_owned()]));
        assert_eq!(complete("import x --on-conflict r").1, ["replace"]);
    }

    #[test]
    fn ids_are_quoted_if_necessary() {
        assert_eq!(complete("get em").1, ["emma", "emil"]);
        assert_eq!(complete("delete mo"), (7, vec!["\"moby dick\"".to_owned()]));
    }

    #[test]
    fn field_names_and_operators() {
        assert_eq!(complete("find {} --sort y"), (15, vec!["year".to_owned()]));
        assert_eq!(complete("find {} --sort -year,-ti"), (22, vec!["title".to_owned()]));
        assert_eq!(complete("find {\"pu"), (7, vec!["publisher.city\": ".to_owned()]));
        assert_eq!(complete("find {\"year\": {\"$gt"), (16, vec!["$gt\": ".to_owned(), "$gte\": ".to_owned()]));
        assert_eq!(complete("find {\"title\": \"ye").1, Vec::<String>::new());
        assert_eq!(complete("find {\"title\": 1, \"ye").1, ["year\": "]);
    }

    #[test]
    fn no_cursor_position_panics() {
        let line = "find {\"é\": \"ü\\\"\"} --sort é,";
        for cursor in 0..=line.len() + 1 {
            candidates(line, cursor, &TestSource);
        }
    }
}
