//! The `stemma` command: parse, run one verb, report.
//!
//! ```text
//! arguments   what may be written
//! verbs       what each verb does          face     the only module that knows the library
//! read        documents coming in          show     data going out
//! failure     error and hint lines, exit   progress bars on standard error
//! shell       the same verbs at a prompt
//! ```

mod arguments;
mod failure;
mod progress;
mod read;
mod shell;

use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;

use arguments::{Arguments, Verb};
use failure::{Exit, Failure, Result};

fn main() -> ExitCode {
    let outcome = Arguments::try_parse().map_err(refusal).and_then(|arguments| run(&arguments.verb));
    let exit = match outcome {
        Ok(()) => Exit::Done,
        Err(failure) => {
            failure.print();
            failure.exit()
        }
    };
    ExitCode::from(exit as u8)
}

fn run(verb: &Verb) -> Result<()> {
    let database = verb.database().to_string_lossy();
    if database.contains("://") {
        return Err(Failure::usage(format!("{database} is a URL: databases on a server are not reached yet"))
            .with_hint("name the directory of a database on this machine"));
    }
    Err(Failure::new(Exit::Internal, "this verb is not built yet"))
}

/// What is wrong with the command line, in our form; help that was asked for is printed right away.
fn refusal(error: clap::Error) -> Failure {
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        return match error.print() {
            Ok(()) => Failure::silent(Exit::Done),
            Err(fault) => Failure::output(fault),
        };
    }
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        eprint!("{error}");
        return Failure::silent(Exit::Usage);
    }
    let text = error.to_string();
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let mut message = lines.next().unwrap_or("wrong usage").trim_start_matches("error: ").to_owned();
    let mut hints = Vec::new();
    for line in lines {
        if let Some(tip) = line.strip_prefix("tip: ") {
            hints.push(tip.to_owned());
        } else if let Some(usage) = line.strip_prefix("Usage: ") {
            hints.push(format!("usage: {usage}"));
        } else if !line.starts_with("For more information") {
            message.push(' ');
            message.push_str(line);
        }
    }
    hints.into_iter().fold(Failure::usage(message), Failure::with_hint)
}
