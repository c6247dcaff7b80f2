//! Interactive shell: the subcommands of `stemma` without the database argument.
//!
//! On a terminal it has history and completion; Ctrl-C cancels the running command and Ctrl-D exits. Input from a pipe
//! is run as a script; the exit status is that of the first command that failed.

mod completion;
pub(crate) mod interrupt;
mod secret;
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

use crate::arguments::{Arguments, Command};
use crate::database::Database;
use crate::failure::{self, Exit, Failure, Result};
pub(crate) use secret::read_secret;

/// Maximum number of lines in the history file.
const HISTORY_LINES: usize = 10_000;

/// Runs a command on an open database: `commands::run`, which this module must not know, since the shell is itself a
/// command.
pub(crate) type RunCommand = fn(&Command, Option<&Database>) -> Result<()>;

/// Runs commands from standard input until it ends.
pub(crate) fn run(database: &Database, path: &Path, run_command: RunCommand) -> Result<()> {
    let shell = Shell { database, path, run_command };
    if std::io::stdin().is_terminal() { shell.run_interactive() } else { shell.run_script() }
}

struct Shell<'a> {
    database: &'a Database,
    path: &'a Path,
    run_command: RunCommand,
}

impl Shell<'_> {
    /// Reads lines from a terminal.
    fn run_interactive(&self) -> Result<()> {
        interrupt::catch();
        let config = Config::builder().completion_type(CompletionType::List).auto_add_history(true);
        let config = config.max_history_size(HISTORY_LINES).map_err(terminal_failure)?.build();
        let mut editor: Editor<Helper<'_>, FileHistory> = Editor::with_config(config).map_err(terminal_failure)?;
        editor.set_helper(Some(Helper { database: self.database }));
        let history = history_file();
        if let Some(file) = &history {
            // The history file does not exist before the first session.
            editor.load_history(file).ok();
        }
        let name = self.path.file_stem().unwrap_or(self.path.as_os_str()).to_string_lossy().into_owned();
        eprintln!("stemma {}: `help` lists the commands, Tab completes, Ctrl-D exits", env!("CARGO_PKG_VERSION"));
        loop {
            match editor.readline(&format!("{name}> ")) {
                Ok(line) if matches!(line.trim(), "exit" | "quit") => break,
                Ok(line) => {
                    interrupt::clear();
                    if let Err(failure) = self.run_line(&line) {
                        failure.print();
                    }
                }
                Err(ReadlineError::Interrupted) => {}
                Err(ReadlineError::Eof) => break,
                Err(error) => return Err(terminal_failure(error)),
            }
        }
        if let Some(file) = &history {
            save_history(&mut editor, file);
        }
        Ok(())
    }

    /// Reads lines from a pipe or file.
    fn run_script(&self) -> Result<()> {
        let mut first_failure = None;
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
            if let Err(failure) = self.run_line(&std::mem::take(&mut text)) {
                failure.print();
                first_failure = first_failure.or(Some(failure.exit()).filter(|exit| *exit != Exit::Done));
            }
        }
        if !text.trim().is_empty() {
            Failure::usage("the input ends within a quote or bracket").print();
            first_failure = first_failure.or(Some(Exit::Usage));
        }
        match first_failure {
            None => Ok(()),
            Some(exit) => Err(Failure::silent(exit)),
        }
    }

    /// Runs one line.
    fn run_line(&self, line: &str) -> Result<()> {
        let words = match words::split(line) {
            Ok(words) => words,
            Err(words::Unclosed::Quote) => return Err(Failure::usage("a quote is not closed")),
            Err(words::Unclosed::Bracket) => return Err(Failure::usage("a bracket is not closed")),
        };
        let mut words = words.into_iter().map(|word| word.text);
        let Some(name) = words.next() else { return Ok(()) };
        if name.starts_with('#') {
            return Ok(());
        }
        if name == "help" {
            return help(words.next().as_deref());
        }
        let mut argv = vec!["stemma".into(), name.into(), self.path.as_os_str().to_owned()];
        argv.extend(words.map(Into::into));
        let matches = clap_command().try_get_matches_from(argv);
        let arguments = matches.and_then(|matches| Arguments::from_arg_matches(&matches)).map_err(clap_failure)?;
        match arguments.command {
            Command::Shell(_) => Err(Failure::usage("already in the shell")),
            command => (self.run_command)(&command, Some(self.database)),
        }
    }
}

/// The command-line definition with the database argument hidden from help.
fn clap_command() -> clap::Command {
    let hide = |argument: clap::Arg| if argument.get_id() == "database" { argument.hide(true) } else { argument };
    let names = completion::command_names();
    names.iter().fold(Arguments::command(), |command, name| match command.find_subcommand(name) {
        Some(_) => command.mut_subcommand(name, |subcommand| subcommand.mut_args(hide)),
        None => command,
    })
}

/// Prints the list of commands, or the help of the one called `name`.
fn help(name: Option<&str>) -> Result<()> {
    let mut command = clap_command();
    command.build();
    let text = match name {
        None => {
            let listed = command
                .get_subcommands()
                .filter(|subcommand| !matches!(subcommand.get_name(), "shell" | "completions" | "manual" | "help"));
            let line = |subcommand: &clap::Command| {
                let about = subcommand.get_about().map(ToString::to_string).unwrap_or_default();
                format!("  {:10} {about}", subcommand.get_name())
            };
            let lines: Vec<String> = listed.map(line).collect();
            format!("{}\n  {:10} Print help for a command\n  {:10} Exit the shell", lines.join("\n"), "help", "exit")
        }
        Some(name) => match command.find_subcommand_mut(name) {
            Some(subcommand) => without_database(&subcommand.render_long_help().to_string()),
            None => return Err(Failure::usage(format!("there is no command {name:?}")).with_hint("`help` lists them")),
        },
    };
    println!("{}", text.trim_end());
    Ok(())
}

/// Converts an error of the command-line parser; help requests are printed here.
fn clap_failure(error: clap::Error) -> Failure {
    if error.kind() == ErrorKind::DisplayHelp {
        println!("{}", without_database(&error.to_string()).trim_end());
        return Failure::silent(Exit::Done);
    }
    let failure = failure::from_clap(&without_database(&error.to_string()));
    match error.kind() {
        ErrorKind::InvalidSubcommand => failure.with_hint("`help` lists the commands"),
        _ => failure,
    }
}

/// Removes the program name and the database argument from help and error texts.
fn without_database(text: &str) -> String {
    text.replace(" library.stemma", "").replace("stemma ", "").replace(" <DATABASE>", "")
}

fn terminal_failure(error: ReadlineError) -> Failure {
    Failure::new(Exit::Unavailable, format!("cannot use the terminal: {error}"))
}

/// The history file, in the XDG state directory of the user.
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

/// Completion, and continuation lines until quotes and brackets are closed.
struct Helper<'a> {
    database: &'a Database,
}

impl completion::CompletionSource for Helper<'_> {
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
        let (start, candidates) = completion::candidates(line, cursor, self);
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
