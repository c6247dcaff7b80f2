//! A prompt at which the same verbs are typed, without the database's name.
//!
//! Lines come from the terminal with history and completion, or from a pipe: then the exit status is that of the first
//! line that failed. Ctrl-C ends what is running, Ctrl-D the shell.

mod complete;
pub(crate) mod interrupt;
mod words;

use std::io::{BufRead, IsTerminal};
use std::path::{Path, PathBuf};

use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches};
use rustyline::completion::{Completer, Pair};
use rustyline::error::ReadlineError;
use rustyline::history::FileHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{CompletionType, Config, Context, Editor};

use crate::arguments::{Arguments, Verb};
use crate::face::Database;
use crate::failure::{self, Exit, Failure, Result};
use crate::verbs;

/// So many lines are remembered.
const HISTORY_LINES: usize = 10_000;

/// Reads lines and does what they say, until they end.
pub(crate) fn run(database: &Database, path: &Path) -> Result<()> {
    let shell = Shell { database, path };
    if std::io::stdin().is_terminal() { shell.converse() } else { shell.obey() }
}

struct Shell<'a> {
    database: &'a Database,
    path: &'a Path,
}

impl Shell<'_> {
    /// Lines from a person.
    fn converse(&self) -> Result<()> {
        interrupt::catch();
        let config = Config::builder().completion_type(CompletionType::List).auto_add_history(true);
        let config = config.max_history_size(HISTORY_LINES).map_err(unusable)?.build();
        let mut editor: Editor<Helper<'_>, FileHistory> = Editor::with_config(config).map_err(unusable)?;
        editor.set_helper(Some(Helper { database: self.database }));
        let history = history_file();
        if let Some(file) = &history {
            // No history yet is no fault.
            editor.load_history(file).ok();
        }
        let name = self.path.file_stem().unwrap_or(self.path.as_os_str()).to_string_lossy().into_owned();
        eprintln!("stemma {}: `help` lists the verbs, Tab completes, Ctrl-D leaves", env!("CARGO_PKG_VERSION"));
        loop {
            match editor.readline(&format!("{name}> ")) {
                Ok(line) if matches!(line.trim(), "exit" | "quit") => break,
                Ok(line) => {
                    interrupt::clear();
                    if let Err(failure) = self.line(&line) {
                        failure.print();
                    }
                }
                Err(ReadlineError::Interrupted) => {}
                Err(ReadlineError::Eof) => break,
                Err(error) => return Err(unusable(error)),
            }
        }
        if let Some(file) = &history {
            save_history(&mut editor, file);
        }
        Ok(())
    }

    /// Lines from a program.
    fn obey(&self) -> Result<()> {
        let mut first = None;
        let mut text = String::new();
        for line in std::io::stdin().lock().lines() {
            let line = line.map_err(|error| Failure::usage(format!("cannot read standard input: {error}")))?;
            text.push_str(&line);
            if words::split(&text).is_err() {
                text.push('\n');
                continue;
            }
            if matches!(text.trim(), "exit" | "quit") {
                text.clear();
                break;
            }
            if let Err(failure) = self.line(&std::mem::take(&mut text)) {
                failure.print();
                first = first.or(Some(failure.exit()).filter(|exit| *exit != Exit::Done));
            }
        }
        if !text.trim().is_empty() {
            Failure::usage("the input ends within a quote or a bracket").print();
            first = first.or(Some(Exit::Usage));
        }
        match first {
            None => Ok(()),
            Some(exit) => Err(Failure::silent(exit)),
        }
    }

    /// Does what one line says.
    fn line(&self, line: &str) -> Result<()> {
        let words = match words::split(line) {
            Ok(words) => words,
            Err(words::Open::Quote) => return Err(Failure::usage("a quote is not closed")),
            Err(words::Open::Bracket) => return Err(Failure::usage("a bracket is not closed")),
        };
        let mut words = words.into_iter().map(|word| word.text);
        let Some(verb) = words.next() else { return Ok(()) };
        if verb.starts_with('#') {
            return Ok(());
        }
        if verb == "help" {
            return help(words.next().as_deref());
        }
        let mut argv = vec!["stemma".into(), verb.into(), self.path.as_os_str().to_owned()];
        argv.extend(words.map(Into::into));
        let matches = command().try_get_matches_from(argv);
        let arguments = matches.and_then(|matches| Arguments::from_arg_matches(&matches)).map_err(refusal)?;
        match arguments.verb {
            Verb::Shell(_) => Err(Failure::usage("this is the shell already")),
            verb => verbs::run(&verb, Some(self.database)),
        }
    }
}

/// The same verbs, the database's name being no argument to speak of.
fn command() -> clap::Command {
    let hide = |argument: clap::Arg| if argument.get_id() == "database" { argument.hide(true) } else { argument };
    let verbs = complete::verbs();
    verbs.iter().fold(Arguments::command(), |command, verb| match command.find_subcommand(verb) {
        Some(_) => command.mut_subcommand(verb, |verb| verb.mut_args(hide)),
        None => command,
    })
}

fn help(verb: Option<&str>) -> Result<()> {
    let mut command = command();
    command.build();
    let text = match verb {
        None => {
            let verbs = command.get_subcommands().filter(|verb| !matches!(verb.get_name(), "shell" | "help"));
            let about = |verb: &clap::Command| verb.get_about().map(ToString::to_string).unwrap_or_default();
            let lines: Vec<String> = verbs.map(|verb| format!("  {:8} {}", verb.get_name(), about(verb))).collect();
            format!("{}\n  {:8} Teach a verb\n  {:8} Leave", lines.join("\n"), "help", "exit")
        }
        Some(name) => match command.find_subcommand_mut(name) {
            Some(verb) => without_database(&verb.render_long_help().to_string()),
            None => return Err(Failure::usage(format!("there is no verb {name:?}")).with_hint("`help` lists them")),
        },
    };
    println!("{}", text.trim_end());
    Ok(())
}

/// What clap says, said of the shell.
fn refusal(error: clap::Error) -> Failure {
    if error.kind() == ErrorKind::DisplayHelp {
        println!("{}", without_database(&error.to_string()).trim_end());
        return Failure::silent(Exit::Done);
    }
    let failure = failure::of_usage(&without_database(&error.to_string()));
    match error.kind() {
        ErrorKind::InvalidSubcommand => failure.with_hint("`help` lists the verbs"),
        _ => failure,
    }
}

fn without_database(text: &str) -> String {
    text.replace(" library.stemma", "").replace("stemma ", "").replace(" <DATABASE>", "")
}

fn unusable(error: ReadlineError) -> Failure {
    Failure::new(Exit::Unavailable, format!("cannot use the terminal: {error}"))
}

/// Where lines are remembered between sessions: in the user's directory for state.
fn history_file() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let state = set("XDG_STATE_HOME").filter(|path| path.is_absolute());
    let state = state.or_else(|| set("HOME").map(|home| home.join(".local/state")))?;
    Some(state.join("stemma/history"))
}

fn save_history(editor: &mut Editor<Helper<'_>, FileHistory>, file: &Path) {
    let saved = match file.parent() {
        Some(directory) => std::fs::create_dir_all(directory),
        None => Ok(()),
    };
    let saved = saved.map_err(ReadlineError::from).and_then(|()| editor.append_history(file));
    if let Err(error) = saved {
        failure::hint(format!("the history could not be saved to {}: {error}", file.display()));
    }
}

/// Completion and, over several lines, the wait for closing brackets.
struct Helper<'a> {
    database: &'a Database,
}

impl complete::Known for Helper<'_> {
    fn ids(&self, prefix: &str, limit: usize) -> Vec<String> {
        self.database.ids(prefix, limit).unwrap_or_default()
    }

    fn fields(&self) -> Vec<String> {
        self.database.fields().unwrap_or_default()
    }
}

impl Completer for Helper<'_> {
    type Candidate = Pair;

    fn complete(&self, line: &str, cursor: usize, _: &Context<'_>) -> rustyline::Result<(usize, Vec<Pair>)> {
        let (start, candidates) = complete::candidates(line, cursor, self);
        let pair = |text: String| Pair { display: text.trim_end_matches("\": ").to_owned(), replacement: text };
        Ok((start, candidates.into_iter().map(pair).collect()))
    }
}

impl Validator for Helper<'_> {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        Ok(match words::split(context.input()) {
            Ok(_) => ValidationResult::Valid(None),
            Err(_) => ValidationResult::Incomplete,
        })
    }
}

impl rustyline::hint::Hinter for Helper<'_> {
    type Hint = String;
}

impl rustyline::highlight::Highlighter for Helper<'_> {}

impl rustyline::Helper for Helper<'_> {}
